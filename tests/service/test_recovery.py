"""Orders that others commit: found at the next look, which reads the registry only when somebody has written to it."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from tests.control.office import Recorder as Kept
from tests.registry.samples import NOW, add
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.holds import Holds
from watchdog.clock import Clock
from watchdog.core.agent import Policy
from watchdog.core.custody import DaemonProcess, Holder
from watchdog.core.kill import Reason
from watchdog.registry.rows import RequestRow
from watchdog.registry.store import AsyncStore, Store
from watchdog.service.recovery import Recovery

NOBODY: Any = cast("Any", None)
OTHERS = ("settings", "hearing", "placement", "worker", "registrar", "custodians")  # parts of the daemon
HOLDER = Holder(DaemonProcess(0, 4242, 7), "/run/agent-watchdog/control.sock", "b" * 32, "alpha")


class Counted(Store):
    """Counts the looks at orders."""

    looks = 0

    def open_requests(self, host: str) -> Any:
        """One look."""
        self.looks += 1
        return super().open_requests(host)


def test_a_registry_that_nobody_wrote_to_is_not_read_again(tmp_path: Path) -> None:
    """Another's commit is found by the next look; while anything is open there, each look reads."""

    async def story() -> None:
        registry = Counted(f"sqlite:///{tmp_path}/registry.db")
        store, holds, log = AsyncStore(registry.open()), Holds(), Kept()
        others = dict.fromkeys(OTHERS, NOBODY)
        take_up = Recovery(
            fleet=Fleet(), store=store, clock=Clock(), holds=holds, log=log, host="h", boot_id="b", **others
        )

        async def looks(count: int = 3) -> int:
            before = registry.looks
            for _ in range(count):
                await take_up.orders()
            return registry.looks - before

        def by_hand(statement: str) -> None:
            with closing(sqlite3.connect(tmp_path / "registry.db", isolation_level=None)) as other:
                other.execute(statement)

        try:
            assert await looks() == 1
            by_hand(
                "INSERT INTO operator_hold (host, reason, by_uid, created_at)"
                " VALUES ('h', 'by hand', 0, '2030-01-01 00:00:00.000000')"
            )
            assert await looks() == 3, "a hold is on"
            assert len(holds.ids()) == 1
            by_hand("UPDATE operator_hold SET ended_at = '2030-01-01 00:00:01.000000'")
            assert await looks() == 1
            assert not holds.ids()
        finally:
            store.close()

    asyncio.run(story())


class Parts:
    """What taking up asks of the other parts of the daemon; `said`: of the worker, in order."""

    observe = False

    def __init__(self) -> None:
        self.said: list[str] = []

    def policy_for(self, _: object) -> Policy:
        return Policy()

    def read_copies(self) -> list[object]:
        return []

    def take_up(self) -> None:
        pass

    def settle(self, agent: Agent) -> None:
        """Nobody else's."""

    async def connected(self, _: object) -> frozenset[int]:
        return frozenset()

    def resume(self, request: RequestRow, _: Agent, *, lost: bool) -> None:
        self.said.append(f"resume {request.request_id}")

    def veto(self, agent: Agent, why: str) -> None:
        self.said.append(f"veto {agent.agent_id}: {why}")


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_order_for_an_agent_that_another_daemon_took_over_is_vetoed_before_it_runs(
    tmp_path: Path, elsewhere: bool
) -> None:
    """Left by a crash between the decision and the first signal. Vetoed in the same turn, before the worker's task."""

    async def story() -> list[str]:
        store, parts, fleet = AsyncStore(Store(f"sqlite:///{tmp_path}/registry.db").open()), Parts(), Fleet()
        add(store.store, "a1")
        assert store.store.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)
        take_up = Recovery(
            fleet=fleet,
            store=store,
            clock=Clock(),
            holds=Holds(),
            log=Kept(),
            host="h1",
            boot_id="b1",
            **{part: cast("Any", parts) for part in OTHERS},
        )
        parts.readmit = lambda agent, row, _: fleet.add(agent)  # type: ignore[attr-defined] # what hearing does of it
        if elsewhere:
            parts.settle = lambda agent: agent.left_to(HOLDER)  # type: ignore[method-assign]
        try:
            await take_up.everything()
        finally:
            store.close()
        return parts.said

    vetoes = [f"veto a1: watched by {HOLDER}"] if elsewhere else []
    assert asyncio.run(story()) == ["resume r1", *vetoes]
