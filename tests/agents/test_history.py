"""The history queue for a slow disk is bounded, and one owner's agents leave room for the others'."""

import asyncio
from pathlib import Path

from tests.agents.test_fleet import agent
from tests.control.office import Recorder
from tests.registry.samples import add
from watchdog.agents.history import OF_ONE, EventRecorder
from watchdog.clock import Clock
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry


def test_one_owners_events_do_not_fill_the_queue(tmp_path: Path) -> None:
    """Further ones are counted; the log has all of them, and the next one is taken when some are written."""
    registry = Registry(f"sqlite:///{tmp_path}/registry.db").open()
    add(registry, "m", owner_uid=1000)
    add(registry, "a", owner_uid=1001)

    async def play() -> list[int]:
        async_registry = AsyncRegistry(registry)
        recorder = EventRecorder(async_registry, Clock(), Recorder())
        for _ in range(OF_ONE + 50):
            recorder.record("agent.late", agent("m"), "silent")
        lost = [recorder.lost]
        recorder.record("agent.late", agent("a", uid=1001), "silent")
        lost.append(recorder.lost)
        await async_registry.write(registry.history.add_event, "t", "m", "t", "w", Clock().now().wall)  # after those
        recorder.record("agent.late", agent("m"), "silent")
        await async_registry.write(registry.history.add_event, "t", "m", "t", "w", Clock().now().wall)
        return [*lost, recorder.lost]

    assert asyncio.run(play()) == [50, 50, 50]
    assert [row.event for row in registry.history.events(0, agent_id="a")] == ["agent.registered", "agent.late"]
    assert sum(row.event == "agent.late" for row in registry.history.events(0, agent_id="m")) == OF_ONE + 1
    registry.close()
