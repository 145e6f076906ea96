"""The state left by an earlier daemon is restored in the right order."""

import asyncio
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
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.rows import RequestRow
from watchdog.service.recovery import Recovery
from watchdog.service.stored_orders import StoredOrders

HOLDER = Holder(DaemonProcess(0, 4242, 7), "/run/agent-watchdog/control.sock", "b" * 32, "alpha")


class Parts:
    """The parts that recovery calls; `said`: the calls to the worker, in order."""

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
        """No other daemon holds any agent."""

    async def connected(self, _: object) -> frozenset[int]:
        return frozenset()

    def resume(self, request: RequestRow, _: Agent, *, lost: bool) -> None:
        self.said.append(f"resume {request.request_id}")

    def cancel_automatic(self, agent: Agent, why: str) -> None:
        self.said.append(f"veto {agent.agent_id}: {why}")


class Registrar:
    """The parts of the registrar that recovery calls."""

    host, boot_id = "h1", "b1"

    def __init__(self, fleet: Fleet, registry: AsyncRegistry, parts: Parts) -> None:
        self.fleet, self.registry, self.tracker, self.clock = fleet, registry, parts, Clock()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_an_order_for_an_agent_that_another_daemon_took_over_is_vetoed_before_it_runs(
    tmp_path: Path, elsewhere: bool
) -> None:
    """Left by a crash between the decision and the first signal. Vetoed in the same turn, before the worker's task."""

    async def story() -> list[str]:
        registry, parts, fleet = AsyncRegistry(Registry(f"sqlite:///{tmp_path}/registry.db").open()), Parts(), Fleet()
        add(registry.sync, "a1")
        assert registry.kills.open_request("r1", "a1", Reason.STALLED, by="daemon", now=NOW)
        everyone, log = cast("Any", parts), Kept()
        registrar = cast("Any", Registrar(fleet, registry, parts))
        orders = StoredOrders(everyone, registrar, Holds(), everyone, log)
        recovery = Recovery(everyone, registrar, everyone, everyone, orders)
        parts.readmit = lambda agent, row, _: fleet.add(agent)  # type: ignore[attr-defined] # as the tracker does
        if elsewhere:
            parts.settle = lambda agent: agent.left_to(HOLDER)  # type: ignore[method-assign]
        try:
            await recovery.restore_all()
        finally:
            registry.close()
        return parts.said

    vetoes = [f"veto a1: watched by {HOLDER}"] if elsewhere else []
    assert asyncio.run(story()) == ["resume r1", *vetoes]
