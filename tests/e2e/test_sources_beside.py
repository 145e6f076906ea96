"""A registry that lists an agent which was registered another way."""

import pytest

from tests.e2e.test_sources import source
from tests.owner.sources.orchestrator import Orchestrator
from tests.world import World, alive, wait_for


@pytest.mark.faults
def test_an_agent_that_beats_in_a_registry_is_heard_there_however_it_was_registered(world: World) -> None:
    """The registry's second beat is its first promise; all that follow are received, over a restart too."""
    made = Orchestrator(world.dir / "data")
    source(world, "orchestrator_db", made.path, after_seconds=2.5)
    world.start()
    process = world.registered("one", "sleep", "300")
    made.insert(agent_id="one", status="running", pid=process.pid, created_at=..., last_heartbeat="0")
    beats = iter(range(1, 1_000_000))

    def agent() -> dict[str, object]:
        """It beats at each read."""
        made.sql("UPDATE agent_lifecycle SET last_heartbeat = ?", str(next(beats)))
        assert alive(process.pid)
        told: dict[str, object] = world.story("one")["agent"]
        return told

    wait_for(lambda: agent()["promised"], "his registry's promise is his")
    for _ in range(2):
        seen = float(str(agent()["watched_seconds"]))
        wait_for(lambda seen=seen: float(str(agent()["watched_seconds"])) > seen + 5, "he lives on")  # type: ignore[misc]
        world.stop()
        world.start()
    assert agent()["promised"]
    wait_for(lambda: made.agent("one")["status"] == "killed", "then he is mute, and is ended")


@pytest.mark.faults
def test_many_entries_to_be_closed_delay_no_beats(world: World) -> None:
    """Many entries left by a crash in one registry: beats in another one are read meanwhile."""
    left, made = Orchestrator(world.dir / "left"), Orchestrator(world.dir / "data")
    dead = world.spawn("true")
    dead.wait()
    for number in range(40):
        left.insert(agent_id=f"dead-{number}", status="running", pid=dead.pid, created_at=...)
    process = world.spawn("sleep", "300")
    made.insert(agent_id="one", status="running", pid=process.pid, created_at=..., last_heartbeat="0")
    source(world, "orchestrator_db", left.path)
    source(world, "orchestrator_db", made.path, after_seconds=2.5)
    world.start()
    beats = iter(range(1, 1_000_000))

    def closed() -> bool:
        made.sql("UPDATE agent_lifecycle SET last_heartbeat = ?", str(next(beats)))
        assert alive(process.pid)
        return not left.sql("SELECT 1 FROM agent_lifecycle WHERE status = 'running'")

    wait_for(closed, "each is closed", seconds=60)
