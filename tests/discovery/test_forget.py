"""Remains of an ended agent are removed from foreign registries when a person asks for it."""

import asyncio
from dataclasses import replace
from typing import Any, cast

from tests.registry.samples import FULL, NOW
from watchdog.core.agent import Status
from watchdog.core.process import Listed
from watchdog.core.source_entries import Entry, entry_json
from watchdog.discovery.forget import remove_entries
from watchdog.errors import OwnerCallFailed
from watchdog.registry.rows import AgentRow

LEFT = Listed("hcom", "/p", "row-7", "run-1")


class Owner:
    """A helper that reads these entries, and closes those it is asked to close."""

    def __init__(self, *entries: Entry) -> None:
        self.entries = entries
        self.closed: list[dict[str, Any]] = []

    async def call_in_fresh_helper(self, uid: int, call: str, args: dict[str, Any], timeout: float) -> Any:
        if args["path"] == "/broken":
            raise OwnerCallFailed("late", "no answer")
        if call == "source_discover":
            return [entry_json(one) for one in self.entries]
        assert call == "source_forget"
        self.closed.append(args)
        return {"message": f"{args['key']} removed"}


def removed(owner: Owner, *entries: Listed) -> list[str]:
    """The report of `remove` about an agent with these entries."""
    row = AgentRow(replace(FULL, entries=entries), Status.KILLED, 1, NOW, completed_at=NOW, exit_code=137)
    done = remove_entries(cast("Any", owner), row, "uid 0", NOW, resumable=True, with_messages=False)
    return asyncio.run(done)


def test_a_remaining_entry_is_closed_in_its_present_state() -> None:
    """By its present token: a concurrent write keeps it."""
    owner = Owner(Entry("row-7", "run-2", "a1", 1000, living=False), Entry("row-8", "run-1", "other", 1000))
    assert removed(owner, LEFT) == ["hcom: row-7 removed"]
    (args,) = owner.closed
    assert (args["key"], args["token"]) == ("row-7", "run-2")
    assert (args["end"]["status"], args["end"]["by"], args["end"]["exit_code"]) == ("killed", "uid 0", 137)


def test_an_entry_that_is_gone_or_alive_is_left_alone() -> None:
    """An entry with a living process is another run's by now."""
    assert removed(Owner(), LEFT) == ["hcom: nothing left"]
    owner = Owner(Entry("row-7", "run-2", "a1", 1000, pid=42))
    assert removed(owner, LEFT) == ["hcom: kept, it belongs to another run now"]
    assert not owner.closed


def test_a_registry_that_does_not_answer_keeps_no_other_from_being_cleaned() -> None:
    owner = Owner(Entry("row-7", "run-1", "a1", 1000, living=False))
    assert removed(owner, replace(LEFT, path="/broken"), LEFT) == ["hcom: no answer", "hcom: row-7 removed"]
