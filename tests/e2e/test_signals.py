"""Evidence that counts for an agent and evidence that does not, with a real daemon and real processes."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.world import World, wait_for

TIMES: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.3},
    "stall": {"after_seconds": 5, "progress_limit_seconds": 1},
}


def test_a_living_beat_thread_does_not_save_a_work_loop_that_stands_still(world: World) -> None:
    """Case B5: an agent that beats with unchanged progress is killed; one without a progress, or idle, is not."""
    world.configure(**TIMES)
    world.start()
    world.run("plain", *world.script("agent.py", "witness", "beat=0.2"))
    world.run("idle", *world.script("agent.py", "witness", "progress=41", "beat=0.2/2", "state=idle"))
    world.run("stuck", *world.script("agent.py", "progress=41", "beat=0.2"))

    world.wait_status("stuck", "killed")

    assert "its progress has not moved" in world.wait_event("kill.requested", name="stuck")["why"]
    assert {name: agent["status"] for name, agent in world.agents().items()} == {
        "plain": "running",
        "idle": "running",
        "stuck": "killed",
    }
    assert world.witnessed() == []


GROWING = "while :; do date >> $1; sleep 0.4; done"
COPYING = "while :; do dd if=/dev/zero of=/dev/null bs=64k count=1 2>/dev/null; sleep 0.2; done"


def _is_named(world: World, name: str, words: str) -> bool:
    return words in world.story(name)["agent"]["activity"]


@pytest.mark.faults
def test_growth_while_an_agent_is_silent_delays_its_kill(world: World) -> None:
    """Transcript, log, bytes: each alone keeps a silent agent alive, reported as late; one without any is killed."""
    world.configure(sweep={"interval_seconds": 0.3}, stall={"after_seconds": 2, "busy_limit_seconds": 600})
    world.start()
    files = {name: world.dir / name for name in ("transcript", "log", "still")}
    for path in files.values():
        path.touch()
    shell = ("/bin/sh", "-c")
    beat = "systemd-notify WATCHDOG=1 2>/dev/null || agent-watchdog beat; "
    grow = beat + GROWING
    world.run("writes", *shell, grow, "x", str(files["transcript"]), options=("--transcript", str(files["transcript"])))
    world.run("logs", *shell, grow, "x", str(files["log"]), options=("--log", str(files["log"])))
    world.run("moves", *shell, beat + COPYING)
    world.run("mute", *shell, f"{beat} exec sleep 1000", options=("--log", str(files["still"])))

    world.wait_status("mute", "killed")
    for name in ("writes", "logs", "moves"):
        world.wait_event("agent.late", name=name)
    silent = {name: world.story(name)["agent"] for name in ("writes", "logs", "moves")}

    assert {name: agent["status"] for name, agent in silent.items()} == dict.fromkeys(silent, "running")
    assert all(agent["silence_seconds"] >= 2 for agent in silent.values())
    # One source is named at a time, and a shell that starts a program in each round moves 50 kB/s now and then.
    for name, words in (("writes", "transcript grew"), ("logs", "log grew"), ("moves", "moved")):
        wait_for(partial(_is_named, world, name, words), f"{name}: {words}")


@pytest.mark.faults
def test_a_prompt_and_its_end_are_reported_once_also_over_a_restart(world: World) -> None:
    """Case B2: an agent that waits for a human is never killed; a short prompt is not reported, nor is an idle one."""
    world.configure(
        sweep={"interval_seconds": 0.3},
        stall={"after_seconds": 1, "prompt_limit_seconds": 3},
        log={"level": "debug"},
    )
    world.start()
    names = ("asks", "idle", "short")
    for name, state in zip(names, ("waiting", "idle", "waiting"), strict=True):
        world.run(name, *world.script("agent.py", "witness", f"state={state}"))
    world.wait_event("agent.waiting", name="short")
    assert world.ask("POST", "/v1/agents/short/beat", {"state": "idle"})[0] == 204
    world.wait_event("agent.needs_human", name="asks")
    world.wait_event("agent.waiting", name="idle")
    assert world.stop() == 0
    world.start()
    world.wait_sweeps(14)  # longer than the limit
    assert [e["name"] for e in world.events() if e["event"] == "agent.needs_human"] == ["asks"]

    world.cli("beat", "--agent", "asks", "--state", "idle")
    world.wait_event("agent.human_answered", name="asks")

    assert world.count("agent.human_answered") == 1
    assert {agent["status"] for agent in world.agents().values()} == {"running"}
    assert world.witnessed() == []


def test_the_expiry_of_a_time_to_live_is_reported_in_advance(world: World) -> None:
    """Once, a tenth of the time before; then the agent is killed although it beats."""
    world.configure(sweep={"interval_seconds": 0.1})
    world.start()
    world.run("short", *world.script("agent.py", "beat=0.2"), options=("--ttl", "4s"))

    world.wait_status("short", "killed")

    story = [event["event"] for event in world.events() if event.get("name") == "short"]
    assert story.count("agent.expires_soon") == 1
    assert story.index("agent.expires_soon") < story.index("agent.expired") < story.index("kill.requested")


@pytest.mark.faults
@pytest.mark.skipif(not Path("/proc/pressure/cpu").exists(), reason="this kernel tells no pressure")
@pytest.mark.timeout(240)
def test_an_overloaded_host_delays_the_kill_of_a_really_mute_agent_up_to_the_cap(world: World) -> None:
    """Case C8: eight spinning programs; a beating agent lives, a mute one waits for `max_seconds` and no longer."""
    world.configure(
        sweep={"interval_seconds": 0.5},
        stall={"after_seconds": 5},
        hold={"cpu_pressure_percent": 30, "max_seconds": 5},
    )
    world.start()
    cores = os.cpu_count() or 1
    for _ in range(4 * cores):
        world.spawn(sys.executable, "-c", "while True: pass")
    wait_for(lambda: os.getloadavg()[0] >= 2.2 * cores, "the load is high", 120)  # an average over a minute
    world.run("well", *world.script("agent.py", "witness", "beat=0.5"))
    world.run("mute", *world.script("agent.py", "beat=0.3/2"))

    held = world.wait_event("kill.held", name="mute")
    assert "overloaded" in held["why"]
    assert "overloaded" in world.cli("status").stdout
    world.wait_status("mute", "killed")

    assert [e["reason"] for e in world.events() if e["event"] == "hold.started"] == ["pressure"]
    assert world.agents()["well"]["status"] == "running"
    assert world.witnessed() == []
