"""The reaper's own acts: in the history before and after, and what stays as it is told once, not in each round."""

import asyncio
from pathlib import Path
from typing import Any

from watchdog.clock import Clock
from watchdog.config import load
from watchdog.core.model import HookOutcome, HookResult
from watchdog.holds import Holds
from watchdog.leftovers import Leftover
from watchdog.logs import get_logger
from watchdog.reaper import Reaper
from watchdog.registry.store import AsyncStore, Store

KEPT, FAILED, DONE = HookOutcome.KEPT, HookOutcome.FAILED, HookOutcome.DONE


def play(place: Path, *answers: HookResult | Exception, by: str = "daemon", observe: bool = False) -> list[str]:
    """One leftover, acted on as often as there are answers; and events of the history."""
    file = place / "config.toml"
    file.write_text(f'[daemon]\nmode = "{"observe" if observe else "enforce"}"\n')
    file.chmod(0o600)
    story: list[str] = []

    async def whole() -> None:
        store = AsyncStore(Store(f"sqlite:///{place}/registry.db").open())
        nobody: Any = None
        settings = load(str(file), environ={"HOME": str(place)})
        finders = nobody, nobody, nobody
        doers = nobody, nobody, Holds(), nobody, get_logger()
        reaper = Reaper(nobody, store, Clock(), settings, finders, *doers, host="h", notify=str(place))

        async def hear() -> None:
            heard = sum(word != "act" for word in story)
            story.extend(one.event for one in (await store.read(store.store.events, 0))[heard:])

        for answer in answers:

            async def act(_: str, answer: HookResult | Exception = answer) -> HookResult:
                await hear()
                story.append("act")
                if isinstance(answer, Exception):
                    raise answer
                return answer

            await reaper._act(Leftover("temp_dir", "/tmp/x", 1000, None, "left", "remove", act=act), by)
            await hear()
        store.close()

    asyncio.run(whole())
    return story


def test_an_act_is_in_the_history_before_and_after(tmp_path: Path) -> None:
    """Intent before act."""
    assert play(tmp_path, HookResult(DONE)) == ["reap.begun", "act", "reap.finished"]


def test_what_stays_as_it_is_is_told_once(tmp_path: Path) -> None:
    """Case H19: it is tried in every round; another reason, or another outcome, is news."""
    busy, full = HookResult(KEPT, "in use"), HookResult(FAILED, "no space")
    assert play(tmp_path, busy, busy, busy, full, OSError("gone"), HookResult(DONE)) == [
        *("reap.begun", "act", "reap.finished"),
        *("act", "act", "act", "reap.failed"),
        *("act", "reap.failed"),
        *("act", "reap.finished"),
    ]


def test_what_a_person_asks_for_is_told_each_time(tmp_path: Path) -> None:
    """His `reap` is an act of his."""
    busy = HookResult(KEPT, "in use")
    assert play(tmp_path, busy, busy, by="uid 0").count("reap.begun") == 2


def test_observe_mode_acts_on_nothing(tmp_path: Path) -> None:
    """Not even by an operator's word."""
    assert play(tmp_path, HookResult(DONE), by="uid 0", observe=True) == []
