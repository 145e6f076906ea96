"""A policy's ladder: warn, nudge, stop, kill in order, each with its pause, up to the step that the agent obeys."""

import json
from typing import Any

import pytest

from tests.world import World, wait_for

PAUSES = {"warn_pause_seconds": 1, "nudge_pause_seconds": 1, "stop_pause_seconds": 1, "grace_seconds": 1}
TIMES: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.3},
    "stall": {"after_seconds": 1.5, "start_limit_seconds": 60, "busy_limit_seconds": 0},
}
STEPS = (
    "agent.told",
    "agent.nudged",
    "stop.asked",
    "agent.obeyed",
    "kill.requested",
    "kill.signal_sent",
    "agent.ended",
)


def ladder(world: World, *steps: str, **kill: Any) -> None:
    """The ladder, and a nudge that writes its input to a file."""
    note = ["/bin/sh", "-c", f"cat >> {world.dir}/nudges"]
    world.configure(**TIMES, kill={**PAUSES, "ladder": steps, "nudge_command": note, **kill})


def story(world: World, name: str) -> list[str]:
    """The steps taken, each once in the order of its first time."""
    return list(dict.fromkeys(e["event"] for e in world.events() if e["event"] in STEPS and e.get("name") == name))


def test_the_whole_ladder_is_climbed_in_order(world: World) -> None:
    """An agent that obeys nothing: reported, nudged, asked to stop, then killed; each step had its pause."""
    ladder(world, "warn", "nudge", "stop", "kill")
    world.start()
    world.run("mute", *world.script("agent.py", "beat=0.3/2"), options=("--task", "T-7"))
    world.wait_status("mute", "killed")

    world.wait_event("agent.nudged", name="mute")  # logged when the command has ended, which nothing waits for
    steps = story(world, "mute")
    assert steps.index("agent.told") < steps.index("agent.nudged")
    steps.remove("agent.nudged")
    assert steps == ["agent.told", "kill.requested", "stop.asked", "kill.signal_sent", "agent.ended"]
    assert world.count("agent.told", name="mute") == world.count("agent.nudged", name="mute") == 1
    told = json.loads((world.dir / "nudges").read_text())
    assert (told["name"], told["task_id"], told["pid"] > 1) == ("mute", "T-7", True)
    assert "step nudge of warn nudge stop kill" in told["why"]


def test_nothing_is_typed_into_the_pane_of_an_agent_that_waits_for_a_person(world: World) -> None:
    """Its time to live is over; a line and Enter would answer its question."""
    world.configure(**TIMES, kill={**PAUSES, "ladder": ["nudge", "kill"]})
    world.start()
    world.run("asks", *world.script("agent.py", "state=waiting"), options=("--ttl", "2s"))
    why = world.wait_event("agent.nudged", name="asks")["why"]
    assert "could not be nudged: it waits for a person's answer" in why
    world.wait_status("asks", "killed")


heavy = pytest.mark.faults


@pytest.mark.parametrize(
    "obeys", [pytest.param("agent.told", marks=heavy), "agent.nudged", pytest.param("stop.asked", marks=heavy)]
)
def test_it_ends_at_the_first_step_that_the_agent_obeys(world: World, obeys: str) -> None:
    """A beat after that step: no further one is taken, and a later silence begins with `warn`."""
    ladder(world, "warn", "nudge", "stop", "kill", warn_pause_seconds=3, nudge_pause_seconds=3, stop_pause_seconds=30)
    world.start()
    world.run("alpha", *world.script("agent.py", "beat=0.3/2"))
    world.wait_event(obeys, name="alpha")
    assert world.ask("POST", "/v1/agents/alpha/beat", {})[0] in (200, 204)
    world.wait_event("agent.obeyed", name="alpha")
    taken = [
        step for step in ("agent.told", "agent.nudged", "kill.requested", "stop.asked") if step in story(world, "alpha")
    ]
    assert taken[-1] == obeys
    assert world.signalled() == set()
    wait_for(lambda: world.count("agent.told", name="alpha") == 2 or None, "the next silence is told anew")


@heavy
def test_a_ladder_that_ends_at_stop_leaves_the_asked_agent_running(world: World) -> None:
    """Asked once; no signal, and the agent keeps running."""
    ladder(world, "stop")
    world.start()
    world.run("mute", *world.script("agent.py", "beat=0.3/2"))
    world.wait_event("kill.withdrawn", name="mute")
    wait_for(lambda: "ends before a kill" in world.story("mute")["agent"]["outlook"][0] or None, "why says so")
    assert world.agents()["mute"]["status"] == "running"
    assert (world.count("stop.asked"), world.signalled()) == (1, set())


@heavy
@pytest.mark.parametrize("at", ["agent.told", "agent.nudged", "stop.asked"])
def test_a_daemon_killed_in_the_middle_of_a_ladder_resumes_it(world: World, at: str) -> None:
    """No warning or nudge is repeated, and the kill comes as it would have."""
    ladder(world, "warn", "nudge", "stop", "kill", warn_pause_seconds=2, nudge_pause_seconds=2, stop_pause_seconds=3)
    world.start()
    world.run("mute", *world.script("agent.py", "beat=0.3/2"))
    world.wait_event(at, name="mute")
    world.crash()
    world.start()
    world.wait_status("mute", "killed")
    assert world.count("agent.told", name="mute") == world.count("agent.nudged", name="mute") == 1
    assert world.count("stop.asked", name="mute") == 1
    assert world.count("kill.finished", name="mute") == 1
