"""Tests for every source: further processes of an agent, broken entries, registries that hang."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.owner.sources.orchestrator import Orchestrator
from tests.owner.sources.relay_home import RelayHome
from tests.world import World, alive, wait_for


def source(world: World, kind: str, path: Path, **keys: object) -> None:
    """One more `[[source]]`."""
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "{kind}"\npath = "{path}"\n')
        config.writelines(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


def names(world: World) -> set[str]:
    return {one["name"] for one in world.ask("GET", "/v1/agents")[1]["agents"]}


@contextmanager
def wrapper(home: RelayHome, name: str, harness: str) -> Iterator[tuple[int, int]]:
    """The pids of a wrapper and of its child; the wrapper keeps running when the child has exited."""
    process = home.wrapper(name, harness)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    try:
        yield process.pid, int(wait_for(lambda: children.read_text().split(), "its harness")[0])
    finally:
        process.kill()
        process.wait()


@pytest.mark.faults
def test_a_wrapper_ends_when_its_child_has_died(world: World) -> None:
    """Its registry would call it connected for ever; a wrapper whose harness lives is left alone."""
    home = RelayHome(world.dir)
    home.connected("Alpha", "Beta")
    source(world, "agent_relay", home.root)
    with wrapper(home, "Alpha", "sleep 300") as (alpha, harness), wrapper(home, "Beta", "sleep 300") as (beta, other):
        world.start()
        for pid in (harness, other):
            listed = f"SELECT 1 FROM agent_lifecycle WHERE entries LIKE '%\"pid\":{pid},%'"
            wait_for(lambda listed=listed: world.sql(listed), f"{pid} is known")  # type: ignore[misc]
        os.kill(harness, signal.SIGKILL)
        wait_for(lambda: not alive(alpha), "its wrapper is ended")
        wait_for(lambda: "Alpha" not in (home.team / "connected-agents.json").read_text(), "it is connected no more")
        assert alive(beta) and alive(other)
        assert "Beta" in (home.team / "connected-agents.json").read_text()
        wait_for(lambda: names(world) == {"Beta"}, "it is gone from the list")
        os.kill(other, signal.SIGKILL)


@pytest.mark.faults
def test_a_hanging_or_invalid_registry_is_reported_once_and_delays_no_other(world: World) -> None:
    """A FIFO and a text file beside a good one; and a broken row affects only itself."""
    made = Orchestrator(world.dir / "data")
    process = world.spawn("sleep", "300")
    for agent_id, name in (("one", "fine"), ("x" * 5000, "too long")):
        made.insert(agent_id=agent_id, agent_type=name, status="running", pid=process.pid, created_at=...)
    (world.dir / "text.db").write_text("no database")
    os.mkfifo(world.dir / "pipe.db")
    for path in (world.dir / "pipe.db", world.dir / "text.db", made.path):
        source(world, "orchestrator_db", path)
    world.start()
    wait_for(lambda: "one" in names(world), "the one that is in order")
    wait_for(lambda: world.count("source.unread") >= 3, "each is told")
    seen = world.story("one")["agent"]["watched_seconds"]
    wait_for(lambda: world.story("one")["agent"]["watched_seconds"] > seen + 1, "some more looks")
    assert world.count("source.unread") == 3
    assert names(world) == {"one"}
    assert alive(process.pid)


@pytest.mark.faults
def test_an_agent_that_beats_in_an_unreadable_registry_is_not_killed_for_it(world: World) -> None:
    """It may beat, unseen; when the registry is readable again its silence begins again."""
    made = Orchestrator(world.dir / "data")
    process = world.spawn("sleep", "300")
    made.insert(agent_id="one", status="running", pid=process.pid, created_at=..., last_heartbeat="first")
    source(world, "orchestrator_db", made.path, after_seconds=2.5)
    world.start()
    wait_for(lambda: "one" in names(world), "it is known")
    away = made.path.with_name("away")
    os.rename(made.path, away)
    wait_for(lambda: world.story("one")["agent"]["silence_seconds"] > 6, "it is not heard for long")
    assert world.story("one")["agent"]["verdict"] == "unknown"
    assert alive(process.pid)
    os.rename(away, made.path)
    wait_for(lambda: made.agent("one")["status"] == "killed", "it is mute indeed")


@pytest.mark.faults
def test_two_entries_of_one_process_are_no_beats_of_each_other(world: World) -> None:
    """One row per task, and one process for all of them: their beats differ, and each counts by itself."""
    made = Orchestrator(world.dir / "data")
    process = world.spawn("sleep", "300")
    for agent_id in ("one", "two"):
        row: dict[str, Any] = {
            "status": "running",
            "pid": process.pid,
            "created_at": ...,
            "last_heartbeat": f"of {agent_id}",
        }
        made.insert(agent_id=agent_id, **row)
    source(world, "orchestrator_db", made.path, after_seconds=2.5)
    world.start()
    wait_for(lambda: not alive(process.pid), "it is silent, and ended")
    wait_for(lambda: {made.agent(key)["status"] for key in ("one", "two")} == {"killed"}, "both rows are closed")
