"""Consequences of the entries in one registry, and the state kept from one read to the next."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from tests.discovery.test_importer import importer
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.process_claim import ProcessClaim, refuse_twice
from watchdog.clock import Clock
from watchdog.config.schema import SourceSection
from watchdog.core.agent import Beat, Policy, Registration, State, Status
from watchdog.core.peer import Peer
from watchdog.core.source_entries import Entry, entry_json
from watchdog.discovery import entry_match as entries
from watchdog.discovery.foreign_registry import FULL, MOST_LISTED, REPORTED_AT_ONCE
from watchdog.errors import Conflict
from watchdog.processes import identity


def test_an_agent_whose_entries_change_their_keys_keeps_some_of_them() -> None:
    """All are stored with it and closed at its end: each read would make that longer."""
    looks = count()
    here = identity.read_identity(os.getpid(), "host")
    assert here is not None
    reg = Registration("a", "a", os.geteuid(), "host", identity.boot_id(), identity=here)
    agent, fleet = Agent(reg, Policy(), Status.RUNNING), Fleet()
    fleet.add(agent)

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        look, which = next(looks), dict[str, Any](pid=here.pid, ticks=here.start_ticks)
        return [entry_json(Entry(f"k{look}-{number}", "t", "a", uid, **which)) for number in range(200)]

    sources = importer(call, SourceSection(kind="hcom", path="/nowhere"), fleet=fleet)
    for _ in range(2):
        asyncio.run(sources.look())

    assert len(agent.reg.entries) == MOST_LISTED == 256
    shown = sources.shown()
    assert len(shown) == 400 - 256
    assert shown[0]["why"] == "a is in 256 entries already"


def test_of_many_drifting_entries_some_are_reported_per_read() -> None:
    """Otherwise the log would hold nothing else; one whose text changes is reported once."""
    looks = iter([*([f"k{look}-{number}" for number in range(256)] for look in range(3)), ["same"], ["same"]])
    words, told = count(), list[dict[str, Any]]()

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        drift = f"drift {next(words)}"
        return [entry_json(Entry(key, "t", "n", uid, drift=drift)) for key in next(looks)]

    sources = importer(call, SourceSection(kind="hcom", path="/nowhere"), told=told)
    for _ in range(5):
        asyncio.run(sources.look())
    assert {one["event"] for one in told} == {"source.drift"}
    assert len(told) == 3 * REPORTED_AT_ONCE + 1


def test_more_living_entries_than_are_watched_are_reported_once() -> None:
    """The limit is that on agents per uid: entries beyond it would be missing without a message."""
    living, told = [256], list[dict[str, Any]]()

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        entries = [Entry(f"k{number}", "t", f"n{number}", uid, living=number < living[0]) for number in range(257)]
        return [entry_json(entry) for entry in entries]

    sources = importer(call, SourceSection(kind="hcom", path="/nowhere"), told=told)
    for living[0] in (256, 257, 257, 256, 257):
        asyncio.run(sources.look())

    full = {"event": "source.unread", "source": "hcom", "path": "/nowhere", "why": FULL}
    assert "257 living entries or more, of which 256 are watched" in FULL
    assert told == [full, full]


def test_a_session_whose_hook_registers_it_meanwhile_stays_one_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both arrive at the same moment, as when an orchestrator starts a dozen sessions together."""
    here = identity.read_identity(os.getppid(), "host")
    assert here is not None
    uid, fleet = os.geteuid(), Fleet()
    taken = ProcessClaim(here, uid, "claude")
    monkeypatch.setattr(entries, "look", lambda *_: entries.Match(entries.MatchResult.PROVED, taken=taken))

    async def call(*_: object) -> list[dict[str, object]]:
        return [entry_json(Entry("k", "t", "a", uid, pid=here.pid, ticks=here.start_ticks))]

    @asynccontextmanager
    async def registering(_: int) -> AsyncIterator[None]:
        reg = Registration("by-its-hook", "a", uid, "host", identity.boot_id(), identity=here, source="hook")
        fleet.add(Agent(reg, Policy(), Status.RUNNING))
        yield

    async def register(*_: object) -> None:
        raise AssertionError("a second agent of that process is registered")

    def take_share(_: int) -> float:
        return 0.0

    sources = importer(
        call,
        SourceSection(kind="claude", path="/nowhere"),
        fleet=fleet,
        turn_of_its_user=registering,
        take_share=take_share,
        register=register,
    )
    asyncio.run(sources.look())

    assert [agent.agent_id for agent in fleet] == ["by-its-hook"]
    assert sources.shown() == []
    with pytest.raises(Conflict, match="main process of agent by-its-hook"):
        refuse_twice(taken, Peer(uid, uid, os.getpid()), fleet)


@pytest.mark.parametrize(
    ("quiet", "listed_ago", "ends"),
    [
        (10, 1, True),
        (1, 1, False),  # its next hook may be on its way
        (10, 60, False),  # older than its last beat: it is outdated
    ],
)
def test_a_list_of_sessions_ends_states_without_a_hook_for_every_agent_type(
    quiet: float, listed_ago: float, ends: bool
) -> None:
    """Case V3: Esc fires no event. `session_files` reads only agents of the vendors' own types.

    For an agent of another type (`run --type reviewer`) the list that is configured as a source says that the session
    rests.
    """
    here = identity.read_identity(os.getpid(), "host")
    assert here is not None
    reg = Registration("a", "a", os.geteuid(), "host", identity.boot_id(), identity=here, agent_type="reviewer")
    agent, fleet, clock = Agent(reg, Policy(), Status.RUNNING), Fleet(), Clock()
    agent.heartbeat.note_reader()
    now = clock.now()
    agent.beat(Beat(state=State.WORKING), now.mono, now.wall)
    agent.heartbeat.silence.lasted = timedelta(seconds=quiet)
    fleet.add(agent)
    which = dict[str, Any](pid=here.pid, ticks=here.start_ticks)
    entry = Entry("k", "t", "a", reg.owner_uid, **which, state="idle", state_since=now.wall.timestamp() - listed_ago)

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        return [entry_json(entry)]

    asyncio.run(importer(call, SourceSection(kind="claude", path="/nowhere"), fleet=fleet).look())
    assert agent.heartbeat.said.state is (State.IDLE if ends else State.WORKING)
