"""One user's agents may take only so much of the registry; no other user's rows and no needed ones are deleted."""

import asyncio
import time
from datetime import timedelta
from typing import Any

from tests.control.office import Recorder
from tests.registry.samples import NOW, add
from watchdog.clock import Clock
from watchdog.core.agent import Status
from watchdog.core.kill import Reason
from watchdog.reaper.shares import Shares
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.retention_queries import RetentionKind

MALLORY, ALICE, ROOT = 1000, 1001, 0
LONG = "x" * 400
KB = 1024


def run(registry: Registry, most: int, *, log: Recorder | None = None, **more: Any) -> Shares:
    """One round of a daemon that allows each user that many bytes."""
    shares = Shares(AsyncRegistry(registry), Clock(), log or Recorder(), most=most, **more)

    async def play() -> None:
        await shares.round()

    asyncio.run(play())
    return shares


def end(registry: Registry, agent_id: str, minutes: int = 0) -> None:
    at = NOW + timedelta(minutes=minutes)
    assert registry.agents.transition(agent_id, {Status.RUNNING}, Status.KILLED, now=at, who="t", why="w")


def events(registry: Registry, agent_id: str) -> list[str]:
    return [row.event for row in registry.history.events(0, agent_id=agent_id, limit=100_000)]


def total(registry: Registry, uid: int) -> int:
    return registry.shares.uses().get(uid, {}).total()  # type: ignore[union-attr]


def test_each_kind_of_row_counts_for_its_owner(registry: Registry) -> None:
    """Requests, runs and tasks count for the owner of their agent, holds for the user that set them."""
    add(registry, "a", owner_uid=MALLORY, worktree="/" + "w" * 1000)
    bare = registry.shares.uses()[MALLORY]
    registry.kills.open_request("r", "a", Reason.STALLED, by="t", now=NOW, evidence={"e": LONG}, owner_uid=MALLORY)
    registry.history.open_run("run", "a", "temp_dir", NOW)
    registry.history.assign_task("T", "a", NOW)
    registry.history.add_hold("a", LONG, ALICE, NOW, host="h1")
    registry.history.add_event("hold.started", "a", "t", LONG, NOW, owner_uid=MALLORY)
    registry.history.add_event("hold.started", None, "t", LONG, NOW)
    uses = registry.shares.uses()
    assert bare[RetentionKind.AGENTS] > 1200
    assert uses[MALLORY][RetentionKind.AGENTS] - bare[RetentionKind.AGENTS] > 400 + 400
    assert uses[MALLORY][RetentionKind.TASKS] > 200
    assert uses[MALLORY][RetentionKind.EVENTS] - bare[RetentionKind.EVENTS] > 400 + 400 + 400
    assert uses[ALICE] == {RetentionKind.HOLDS: 600 + len("a") + len("h1")}
    assert uses.keys() == {MALLORY, ALICE}


def test_history_of_living_agents_is_forgotten_from_its_beginning(registry: Registry) -> None:
    """A user holds and unholds its own agents again and again. The agents stay, and all other users' history."""
    for uid, name in ((MALLORY, "m"), (ALICE, "a"), (ROOT, "r")):
        add(registry, name, owner_uid=uid)
        with registry.engines.group():
            for number in range(300):
                registry.history.add_event("hold.started", name, "t", f"{number} {LONG}", NOW, owner_uid=uid)
    log = Recorder()
    shares = run(registry, 100 * KB, log=log)
    assert total(registry, MALLORY) <= 80 * KB
    left = [row.why for row in registry.history.events(0, agent_id="m", limit=1000)]
    assert left[-1].startswith("299 ")
    assert 50 < len(left) < 150
    assert len(events(registry, "r")) == 301
    assert not shares.over(MALLORY)


def test_ended_agents_go_with_all_that_is_about_them_the_oldest_first(registry: Registry) -> None:
    """A user registers and removes agents with long paths. What is live or needed stays, however much it is."""
    with registry.engines.group():
        for number in range(100):
            add(registry, f"m{number}", owner_uid=MALLORY, worktree="/" + "w" * 1000)
            registry.kills.open_request(f"r{number}", f"m{number}", Reason.STOP, by="t", now=NOW, owner_uid=MALLORY)
            registry.history.open_run(f"run{number}", f"m{number}", "temp_dir", NOW)
        for number in range(2, 100):
            if number != 3:
                registry.kills.finish_request(f"r{number}", "done", {}, now=NOW, who="t", why="w", owner_uid=MALLORY)
            end(registry, f"m{number}", number)
    run(registry, 60 * KB)
    there = {row.agent_id for row in registry.agents.newest(ended=True, limit=1000)}
    assert {"m0", "m1", "m3", "m99"} <= there, "two live, one has an open request, one is the newest"
    assert "m4" not in there
    assert len(there) < 60
    assert (events(registry, "m4"), registry.kills.requests_of("m4"), registry.history.runs_of("m4")) == ([], [], [])
    assert registry.kills.requests_of("m99")
    assert total(registry, MALLORY) <= 60 * KB


def test_whoever_cannot_be_brought_down_writes_nothing_that_can_be_left_out(registry: Registry) -> None:
    """All its rows are live agents'. Events of a kill, and of a change of status, are written anyway."""
    with registry.engines.group():
        for number in range(100):
            add(registry, f"m{number}", owner_uid=MALLORY, worktree="/" + "w" * 1000)
    add(registry, "a", owner_uid=ALICE)
    log = Recorder()
    shares = run(registry, 60 * KB, log=log)
    assert (shares.over(MALLORY), shares.over(ALICE)) == (True, False)
    assert shares.facts() == {str(MALLORY): total(registry, MALLORY)}
    assert [event["event"] for event in log.events] == ["registry.share_trimmed"]
    before = len(events(registry, "m0"))
    assert registry.history.add_event("hold.started", "m0", "t", "w", NOW, owner_uid=MALLORY) == 0
    assert registry.history.add_event("kill.held", "m0", "t", "w", NOW, owner_uid=MALLORY)
    assert registry.history.add_event("hold.started", "a", "t", "w", NOW, owner_uid=ALICE)
    assert registry.kills.open_request("r", "m0", Reason.STALLED, by="t", now=NOW, owner_uid=MALLORY)
    end(registry, "m0")
    assert len(events(registry, "m0")) == before + 3
    assert registry.history.unwritten == {MALLORY: 1}


def test_sub_uids_count_for_their_user_and_root_has_no_limit(registry: Registry) -> None:
    """A user has 65,536 uids in /etc/subuid."""
    for uid in (MALLORY, 100_000, 100_001, ROOT):
        add(registry, f"a{uid}", owner_uid=uid)
        with registry.engines.group():
            for number in range(100):
                registry.history.add_event("hold.started", f"a{uid}", "t", f"{number} {LONG}", NOW, owner_uid=uid)
    before = {uid: total(registry, uid) for uid in (MALLORY, 100_000, 100_001, ROOT)}
    assert before[MALLORY] < 100 * KB
    run(registry, 100 * KB, user_of=lambda uid: MALLORY if uid >= 100_000 else uid)
    assert sum(total(registry, uid) for uid in (MALLORY, 100_000, 100_001)) <= 80 * KB
    assert total(registry, ROOT) == before[ROOT]


def test_who_was_brought_down_is_counted_again_when_it_can_be_over_once_more(registry: Registry) -> None:
    """A share smaller than the growth after which the registry was counted again was not enforced for ten minutes."""
    add(registry, "m", owner_uid=MALLORY)

    def write(rows: int) -> None:
        with registry.engines.group():
            for number in range(rows):
                registry.history.add_event("hold.started", "m", "t", f"{number} {LONG}", NOW, owner_uid=MALLORY)

    write(300)
    shares = Shares(AsyncRegistry(registry), Clock(), Recorder(), most=100 * KB)

    async def play() -> None:
        await shares.round()
        assert total(registry, MALLORY) <= 80 * KB
        write(100)
        assert total(registry, MALLORY) > 100 * KB
        await shares.round()

    asyncio.run(play())
    assert total(registry, MALLORY) <= 100 * KB


def test_a_registry_that_has_not_grown_is_not_counted(registry: Registry) -> None:
    """A look is three pragmas; each user's share is counted again after a megabyte more."""
    counted: list[float] = []
    uses = registry.shares.uses
    registry.shares.uses = lambda: counted.append(time.monotonic()) or uses()  # type: ignore[method-assign, func-returns-value]
    shares = Shares(AsyncRegistry(registry), Clock(), Recorder(), most=1 << 30)
    add(registry, "m", owner_uid=MALLORY)

    async def play() -> None:
        await shares.round()
        await shares.round()
        assert len(counted) == 1
        with registry.engines.group():
            for _ in range(3000):
                registry.history.add_event("t", "m", "t", LONG, NOW, owner_uid=MALLORY)
        await shares.round()
        assert len(counted) == 2

    asyncio.run(play())
