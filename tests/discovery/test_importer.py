"""What is asked of whose helper, and what is kept of each registry."""

import asyncio
import os
import pwd
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from watchdog.agents.fleet import Agent, Fleet
from watchdog.agents.process_claim import ProcessClaim, refuse_twice
from watchdog.clock import Clock
from watchdog.config.schema import SourceSection
from watchdog.core.agent import Beat, Policy, Registration, State, Status
from watchdog.core.peer import Peer
from watchdog.core.process import Listed
from watchdog.core.source_entries import Entry, entry_json
from watchdog.discovery import entry_match as entries
from watchdog.discovery import source_places
from watchdog.discovery.importer import MOST_LISTED, SourceImporter
from watchdog.discovery.stale_entries import StaleEntries
from watchdog.errors import Conflict, OwnerCallFailed
from watchdog.processes import identity


def importer(
    call: Callable[..., Awaitable[object]],
    *sources: SourceSection,
    fleet: Fleet | None = None,
    told: list[dict[str, Any]] | None = None,
    **registrar: Any,
) -> SourceImporter:
    """One that asks helpers by `call`. `told` gets the events; `registrar`: what replaces that of the registrar."""

    def event(name: str, **fields: Any) -> None:
        assert told is not None, f"{name} is reported: {fields}"
        told.append({"event": name, **fields})

    def keep_entries(agent: Agent, entries: tuple[Listed, ...]) -> asyncio.Future[bool]:
        agent.listed(entries)
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        written.set_result(True)
        return written

    async def holder_of(*_: object) -> None:
        return None

    settings, clock, recorder = SimpleNamespace(sources=sources, observe=False), Clock(), SimpleNamespace(event=event)
    here = {
        "fleet": Fleet() if fleet is None else fleet,
        "host": "host",
        "boot_id": identity.boot_id(),
        "keep_entries": keep_entries,
    }
    owners = SimpleNamespace(call=call)
    parts: Any = (
        settings,
        clock,
        SimpleNamespace(**here | registrar),
        StaleEntries(cast("Any", None), clock, cast("Any", settings), cast("Any", owners), cast("Any", recorder)),
        SimpleNamespace(holder_of=holder_of),
        owners,
        recorder,
    )
    return SourceImporter(*parts)


def test_the_usual_place_of_two_users_is_two_registries() -> None:
    """Each is his own: who stands in the second one's is no stranger in the first one's."""
    asked = dict[int, str]()

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        asked[uid] = args["path"]
        return [entry_json(Entry(key="k", token=f"t{uid}", name=f"agent-of-{uid}", uid=uid))]

    sources = importer(call, *(SourceSection(kind="hcom", user=name) for name in ("root", "nobody")))
    asyncio.run(sources.look())

    assert asked == {0: "~root/.hcom", 65534: "~nobody/.hcom"}
    assert {(one["name"], one["owner_uid"]) for one in sources.shown()} == {
        ("agent-of-0", 0),
        ("agent-of-65534", 65534),
    }


def test_a_registry_that_is_named_twice_is_read_once() -> None:
    """A look would count as two: nobody would have the second one in which an entry that was being replaced is back."""
    asked = list[str]()

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        asked.append(args["path"])
        return []

    named = tuple(SourceSection(kind="hcom", path=path) for path in ("/srv/a", "/srv/a", "/srv/b"))
    asyncio.run(importer(call, *named).look())

    assert asked == ["/srv/a", "/srv/b"]


def test_an_agent_whose_entries_get_other_keys_has_some_of_them() -> None:
    """All are written with it, and its end closes them: each look would add to what the registry and we hold of it."""
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
    assert shown[0]["why"] == "a stands in 256 entries already"


def test_a_user_that_nobody_can_look_up_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory server that is away: who was known stays so, and one thread waits for it, not one a look."""
    hangs, asked = threading.Event(), list[str]()
    uids = {"one": 7, "two": 8}

    def getpwnam(name: str) -> SimpleNamespace:
        asked.append(name)
        if asked.count(name) > 1:
            hangs.wait(60)
        return SimpleNamespace(pw_uid=uids[name])

    monkeypatch.setattr(pwd, "getpwnam", getpwnam)

    async def play() -> None:
        accounts = source_places.UserLookup()
        assert [await accounts.uid(""), await accounts.uid("one"), await accounts.uid("two")] == [os.geteuid(), 7, 8]
        for _ in range(5):
            assert await accounts.uid("one") == 7
        assert asked.count("one") == 2
        with pytest.raises(OwnerCallFailed, match="no user three"):
            await accounts.uid("three")
        asked.append("four")
        monkeypatch.setattr(source_places, "DEADLINE", 0.05)
        with pytest.raises(OwnerCallFailed, match="NSS does not answer"):
            await accounts.uid("four")
        hangs.set()

    asyncio.run(play())


def test_of_many_entries_that_drift_anew_at_each_look_some_are_told() -> None:
    """Else the log would hold nothing else; one whose words change is told once."""
    place, told = source_places.SourceState(7), 0
    for look in range(3):
        place.lines = 0
        told += sum(
            place.drifts_anew(Entry(f"k{look}-{number}", "t", "n", 7, drift="x"), look) for number in range(256)
        )
    assert told == 3 * source_places.TOLD_AT_ONCE
    for words in ("x", "y"):
        place.lines = 0
        told += place.drifts_anew(Entry("same", "t", "n", 7, drift=words), 4)
    assert told == 3 * source_places.TOLD_AT_ONCE + 1


def test_of_more_living_entries_than_are_watched_it_is_told_once() -> None:
    """As many as one uid may have agents are: who stands beyond them would be missing without a word."""
    living, told = [256], list[dict[str, Any]]()

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        entries = [Entry(f"k{number}", "t", f"n{number}", uid, living=number < living[0]) for number in range(257)]
        return [entry_json(entry) for entry in entries]

    sources = importer(call, SourceSection(kind="hcom", path="/nowhere"), told=told)
    for living[0] in (256, 257, 257, 256, 257):
        asyncio.run(sources.look())

    full = {"event": "source.unread", "source": "hcom", "path": "/nowhere", "why": source_places.FULL}
    assert "257 living entries or more, of which 256 are watched" in source_places.FULL
    assert told == [full, full]


def test_a_session_whose_hook_registers_it_meanwhile_stays_one_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are told of it in the same moment, as when an orchestrator starts a dozen sessions together."""
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
        (10, 60, False),  # from before its last word: it is not kept up to date
    ],
)
def test_a_list_of_sessions_ends_what_no_hook_ends_whatever_the_type_of_the_agent_is(
    quiet: float, listed_ago: float, ends: bool
) -> None:
    """Case V3: Esc tells no event. `session_files` asks about agents of the vendors' own types alone; of one of
    another (`run --type reviewer`) the list that was named as a source says that the session rests.
    """
    here = identity.read_identity(os.getpid(), "host")
    assert here is not None
    reg = Registration("a", "a", os.geteuid(), "host", identity.boot_id(), identity=here, agent_type="reviewer")
    agent, fleet, clock = Agent(reg, Policy(), Status.RUNNING, hears=True), Fleet(), Clock()
    now = clock.now()
    agent.beat(Beat(state=State.WORKING), now.mono, now.wall)
    agent.silence = timedelta(seconds=quiet)
    fleet.add(agent)
    which = dict[str, Any](pid=here.pid, ticks=here.start_ticks)
    entry = Entry("k", "t", "a", reg.owner_uid, **which, state="idle", state_since=now.wall.timestamp() - listed_ago)

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        return [entry_json(entry)]

    asyncio.run(importer(call, SourceSection(kind="claude", path="/nowhere"), fleet=fleet).look())
    assert agent.state is (State.IDLE if ends else State.WORKING)
