"""The reaper's own actions: recorded before and after; what stays is reported once, not in each round."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.registry.samples import add
from watchdog.agents.fleet import Fleet
from watchdog.agents.holds import Holds
from watchdog.clock import Clock
from watchdog.config.settings import load
from watchdog.core.agent import Status
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.reaper import reaper as reapers
from watchdog.reaper.events import ReapEvents
from watchdog.reaper.failed_hooks import FailedHooks
from watchdog.reaper.leftovers import Leftover, OwnerLeftovers
from watchdog.reaper.orphans import OrphanScan
from watchdog.reaper.outlived import OutlivedProcesses
from watchdog.reaper.own_leftovers import OwnLeftovers
from watchdog.reaper.reaper import LeftoverFinders, Reaper
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.telemetry.logger import get_logger

KEPT, FAILED, DONE = HookOutcome.KEPT, HookOutcome.FAILED, HookOutcome.DONE


def play(place: Path, *answers: HookResult | Exception, by: str = "daemon", observe: bool = False) -> list[str]:
    """Act on one leftover once per answer; return the actions and the events of the history in order."""
    file = place / "config.toml"
    file.write_text(f'[daemon]\nmode = "{"observe" if observe else "enforce"}"\n')
    file.chmod(0o600)
    story: list[str] = []

    async def whole() -> None:
        registry = AsyncRegistry(Registry(f"sqlite:///{place}/registry.db").open())
        nobody: Any = None
        settings = load(str(file), environ={"HOME": str(place)})
        events = ReapEvents(registry, Clock(), get_logger())
        reaper = Reaper(settings, Clock(), nobody, Holds(), nobody, events)

        async def hear() -> None:
            heard = sum(word != "act" for word in story)
            story.extend(one.event for one in (await registry.read(registry.history.events, 0))[heard:])

        for answer in answers:

            async def act(_: str, answer: HookResult | Exception = answer) -> HookResult:
                await hear()
                story.append("act")
                if isinstance(answer, Exception):
                    raise answer
                return answer

            await reaper._act(Leftover("temp_dir", "/tmp/x", 1000, None, "left", "remove", act=act), by)
            await hear()
        registry.close()

    asyncio.run(whole())
    return story


def test_an_act_is_in_the_history_before_and_after(tmp_path: Path) -> None:
    """The intent is recorded before the action."""
    assert play(tmp_path, HookResult(DONE)) == ["reap.begun", "act", "reap.finished"]


def test_what_stays_as_it_is_is_told_once(tmp_path: Path) -> None:
    """It is tried in each round (case H19), but only another reason or outcome is reported."""
    busy, full = HookResult(KEPT, "in use"), HookResult(FAILED, "no space")
    assert play(tmp_path, busy, busy, busy, full, OSError("gone"), HookResult(DONE)) == [
        *("reap.begun", "act", "reap.finished"),
        *("act", "act", "act", "reap.failed"),
        *("act", "reap.failed"),
        *("act", "reap.finished"),
    ]


def test_what_a_person_asks_for_is_told_each_time(tmp_path: Path) -> None:
    """Each `reap` that a person orders is an action of its own."""
    busy = HookResult(KEPT, "in use")
    assert play(tmp_path, busy, busy, by="uid 0").count("reap.begun") == 2


def test_observe_mode_acts_on_nothing(tmp_path: Path) -> None:
    """Not even when an operator orders it."""
    assert play(tmp_path, HookResult(DONE), by="uid 0", observe=True) == []


def round_of(place: Path, look: Callable[[int], list[Leftover]], by: str, *uids: int) -> list[dict[str, object]]:
    """Run one round over the places of these uids."""
    file = place / "config.toml"
    file.write_text("")
    file.chmod(0o600)

    class Places(OwnerLeftovers):
        async def look(self, uid: int) -> tuple[list[Leftover], list[str]]:
            return look(uid), []

    async def whole() -> list[dict[str, object]]:
        registry = AsyncRegistry(Registry(f"sqlite:///{place}/registry.db").open())
        for uid in uids:
            add(registry.sync, f"{uid:032}", Status.COMPLETED, owner_uid=uid)
        clock, log, fleet = Clock(), get_logger(), Fleet()
        settings = replace(load(str(file), environ={"HOME": str(place)}), host="h1")
        nobody: Any = None
        orphans: Any = SimpleNamespace(find=lambda: asyncio.sleep(0, OrphanScan()))
        placement: Any = SimpleNamespace(leaves=dict)
        users: Any = SimpleNamespace(user_of=lambda uid: uid)
        (place / "notify").mkdir()
        events = ReapEvents(registry, clock, log)
        finders = LeftoverFinders(
            processes=OutlivedProcesses(orphans, nobody, nobody, events),
            hooks=FailedHooks(settings, fleet, registry, clock, nobody),
            own=OwnLeftovers(fleet, registry, placement, events, str(place / "notify")),
            places=Places(fleet, registry, nobody, clock, "h1"),
        )
        reaper = Reaper(settings, clock, finders, Holds(), users, events)
        if by == "daemon":
            await reaper.round()
            told: list[dict[str, object]] = []
        else:
            told = await asyncio.wait_for(reaper.reap(lambda _: True, by, dry_run=False), 60)
        registry.close()
        return told

    return asyncio.run(whole())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: places of other uids")
def test_leftovers_that_resist_leave_room_for_other_users(tmp_path: Path) -> None:
    """A round once handled the first fifty leftovers of all users: one user with fifty that fail took all of it."""
    done: list[int] = []

    def look(uid: int) -> list[Leftover]:
        async def act(_: str) -> HookResult:
            done.append(uid)
            return HookResult(FAILED if uid == 1000 else DONE)

        count = 200 if uid == 1000 else 1
        return [Leftover("temp_dir", f"/t/{uid}/{n}", uid, None, "left", "remove", act=act) for n in range(count)]

    round_of(tmp_path, look, "daemon", 1000, 1001)
    assert Counter(done) == {1000: reapers.ACTS, 1001: 1}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: places of other uids")
def test_one_users_slow_leftovers_hold_up_nobody_elses(tmp_path: Path) -> None:
    """An order once waited for each action of all other rounds: root's `reap` got no answer within 100 s.

    Here the action for the first user's place finishes only after the second user's.
    """
    second = asyncio.Event()

    def look(uid: int) -> list[Leftover]:
        async def act(_: str) -> HookResult:
            if uid == 1000:
                await second.wait()
            second.set()
            return HookResult(DONE)

        return [Leftover("temp_dir", f"/t/{uid}", uid, None, "left", "remove", act=act)]

    told = round_of(tmp_path, look, "uid 0", 1000, 1001)
    assert [(one["owner_uid"], one["outcome"]) for one in told] == [(1000, DONE), (1001, DONE)]
