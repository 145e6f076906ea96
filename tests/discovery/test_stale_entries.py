"""When an entry whose process is gone is closed in its registry, and how often that is tried."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.discovery.test_entry_match import FULL
from watchdog.clock import Clock
from watchdog.core.source_entries import Entry
from watchdog.discovery.stale_entries import StaleEntries
from watchdog.errors import OwnerCallFailed


class Hand(Clock):
    """A clock whose monotonic time is set by hand."""

    def __init__(self) -> None:
        self.at = 0.0

    def mono(self) -> float:
        return self.at


class Parts:
    """The parts needed for closing entries: a registry and a log that record their calls."""

    def __init__(self, owner: "Owner") -> None:
        self.told = list[str]()
        self.clock = Hand()
        self.registry = SimpleNamespace(
            history=SimpleNamespace(add_event=None), agents=SimpleNamespace(get=None), write=self.write
        )
        settings: Any = SimpleNamespace(observe=False)
        registry, owners, recorder = cast("Any", self.registry), cast("Any", owner), cast("Any", self)
        self.stale = StaleEntries(registry, self.clock, settings, owners, recorder)

    async def write(self, *_: object, **__: object) -> None:
        self.told.append("intent")

    def event(self, event: str, **_: object) -> None:
        self.told.append(event)


class Owner:
    """A helper that closes entries, or fails."""

    def __init__(self) -> None:
        self.asked = list[dict[str, Any]]()
        self.error: OwnerCallFailed | None = None

    async def call_in_fresh_helper(self, uid: int, call: str, args: dict[str, Any], timeout: float) -> dict[str, str]:
        assert (uid, call) == (7, "source_forget")
        self.asked.append(args)
        if self.error is not None:
            raise self.error
        return {"became": "done", "message": "row removed"}


async def _looks(entry: Entry, *seconds: float, error: OwnerCallFailed | None = None) -> tuple[list[str], int]:
    owner = Owner()
    owner.error = error
    parts = Parts(owner)
    for number, passed in enumerate(seconds):
        parts.clock.at += passed
        told = replace(entry, beat=f"{entry.beat}{number}") if entry.beat == "changes" else entry
        parts.stale.mark_dead("hcom", "/p", told, 7, "no such process")
        await parts.stale.round()
    return parts.told, len(owner.asked)


def looks(entry: Entry, *seconds: float, error: OwnerCallFailed | None = None) -> tuple[list[str], int]:
    """The reported events and the number of calls to the helper, after reads so many seconds apart."""
    return asyncio.run(_looks(entry, *seconds, error=error))


def test_an_entry_is_closed_when_two_reads_agree() -> None:
    """The intent is in the history before; one read is not enough."""
    gone = replace(FULL, beat=None)
    assert looks(gone, 0) == ([], 0)
    assert looks(gone, 0, 10) == (["intent", "source.ghost"], 1)


def test_an_entry_that_promised_beats_is_watched_for_half_of_its_allowed_silence() -> None:
    """A living process in a container, with other pids, writes its entry again meanwhile."""
    beats = replace(FULL, beat="b", promise=120.0)
    assert looks(beats, 0, 50) == ([], 0)
    assert (looks(beats, 0, 50, 10))[1] == 1
    assert looks(replace(beats, beat="changes"), *(50.0,) * 10) == ([], 0)
    assert looks(replace(beats, promise=None), 0, 59) == ([], 0)


def test_an_entry_that_cannot_be_closed_is_reported_once_and_tried_again() -> None:
    """And its intent is in the history once."""
    told, asked = looks(replace(FULL, beat=None), *(10.0,) * 5, error=OwnerCallFailed("busy", "locked"))
    assert (told, asked) == (["intent", "source.entry_kept"], 4)


def test_a_registry_that_cannot_be_written_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor any read: entries are closed beside them, each registry's for a while, and one that hung comes last."""
    owner = Owner()
    parts = Parts(owner)
    asked = list[tuple[str, str]]()

    async def late(uid: int, call: str, args: dict[str, Any], timeout: float) -> dict[str, str]:
        asked.append((args["path"], args["key"]))
        parts.clock.at += timeout if args["path"] == "/hangs" else 0.1
        raise OwnerCallFailed("late", "no answer")

    monkeypatch.setattr(owner, "call_in_fresh_helper", late)

    async def play() -> None:
        for _ in range(2):
            for number in range(5):
                for path in ("/fine", "/hangs"):
                    parts.stale.mark_dead("hcom", path, replace(FULL, key=str(number), beat=None), 7, "no such process")
        began = parts.clock.at
        await parts.stale.round()
        assert parts.clock.at - began < 12
        assert len([one for one in asked if one[0] == "/fine"]) == 5
        assert [key for path, key in asked if path == "/hangs"] == ["0"]
        await parts.stale.round()
        assert [key for path, key in asked if path == "/hangs"] == ["0", "1"]

    asyncio.run(play())
