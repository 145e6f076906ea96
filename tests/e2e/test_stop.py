"""`stop` and `cancel`: an agent that reads our answers exits by itself after its present tool call, others by TERM."""

import json
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.owner.sources.hcom_home import HcomHome
from tests.world import BIN, World, alive, pids_with, started_at, wait_for
from watchdog.processes.identity import boot_id

LOOP = ("agent.py", "loop=0.6")


def calls(world: World) -> list[str]:
    """The record of the looping agent: begun, done, told and the request."""
    path: Path = world.dir / "calls"
    return path.read_text().splitlines() if path.exists() else []


def in_a_call(world: World, count: int = 1) -> None:
    wait_for(lambda: calls(world).count("begun") == count + calls(world).count("done") or None, "it is in a tool call")


def task(world: World) -> Any:
    return world.sql("SELECT status FROM orchestrator_task WHERE task_id = 'T-1'")[0][0]


def test_cancel_ends_a_looping_agent_after_its_present_tool_call(world: World) -> None:
    """No signal is sent, the call is not interrupted and no other begins; the task is cancelled, also when repeated."""
    world.start()
    world.run("looper", *world.script(*LOOP), options=("--task", "T-1"))
    in_a_call(world)
    answer = world.json("cancel", "T-1", "--reason", "another plan")

    assert (answer["success"], answer["results"][0]["status"]) == (True, "stopped")
    assert answer["results"][0]["message"] == "it exited by itself when it was asked to stop"
    assert world.signalled() == set()
    *before, last = calls(world)
    assert before == ["begun", "done"] * (len(before) // 2)
    told = json.loads(last.removeprefix("told "))
    assert told["reason"] == "another plan"
    assert 20 < told["deadline_seconds"] <= 60
    assert task(world) == "cancelled"
    assert world.wait_event("task.cancelled")["name"] == "looper"
    again = world.json("cancel", "T-1")
    assert (again["success"], again["results"][0]["message"]) == (True, "already stopped")
    assert "already stopped since" in world.cli("stop", "looper").stdout
    assert world.count("task.cancelled") == 1


@pytest.mark.faults
def test_an_agent_that_does_not_read_answers_is_not_waited_for(world: World) -> None:
    """One that beats by datagrams gets TERM at once; one that reads answers but disobeys, when its time is over."""
    with world.config.open("a") as config:
        config.write('[[policy]]\nmatch = { name = "busy" }\nstop_pause_seconds = 2\n')
    world.start()
    world.run("mute", *world.script("agent.py", "beat=0.3"))
    world.run("busy", *world.script("agent.py", "loop=60"))
    world.wait_event("agent.first_beat", name="mute")
    in_a_call(world)
    for name, least, most in (("mute", 0, 30), ("busy", 2, 60)):
        asked = world.json("stop", name)
        assert (asked["status"], asked["killed_gracefully"]) == ("stopped", True)
        ordered, signalled = (
            datetime.fromisoformat(world.wait_event(event, name=name)["ts"]).timestamp()
            for event in ("stop.asked", "kill.signal_sent")
        )
        assert least - 0.1 <= signalled - ordered < most, name


@pytest.mark.faults
def test_a_kill_does_not_wait_for_a_stop(world: World) -> None:
    """`kill` while an agent is asked to stop ends the request; its outcome stays `stopped`."""
    world.start()
    world.run("busy", *world.script("agent.py", "loop=60"))
    in_a_call(world)
    stop = subprocess.Popen([str(BIN / "agent-watchdog"), "stop", "busy"], env=world.environ, stdout=subprocess.DEVNULL)
    world.wait_event("stop.asked", name="busy")
    assert world.story("busy")["agent"]["outlook"][0].startswith("It was asked to exit by itself")
    assert world.json("kill", "busy")["status"] == "stopped"
    assert stop.wait(60) == 0
    assert world.count("kill.requested") == 1


def test_a_daemon_killed_in_the_middle_of_a_stop_resumes_it(world: World) -> None:
    """The next daemon asks again; the agent exits after its call, and the task is cancelled, without a person."""
    world.start()
    world.run("looper", *world.script("agent.py", "loop=go"), options=("--task", "T-1"))
    in_a_call(world)
    cancel = subprocess.Popen(
        [str(BIN / "agent-watchdog"), "cancel", "T-1"], env=world.environ, stderr=subprocess.DEVNULL
    )
    world.wait_event("stop.asked", name="looper")
    world.crash()
    assert cancel.wait(60) == 69
    assert calls(world) == ["begun"]

    world.start()
    (world.dir / "go").touch()
    world.wait_status("looper", "stopped")
    *before, last = calls(world)
    assert before == ["begun", "done"] * (len(before) // 2)  # what had begun was finished while no daemon ran
    assert last.startswith("told")
    assert task(world) == "cancelled"
    assert world.signalled() == set()
    assert len(world.story("looper")["requests"]) == 1


def test_run_refuses_a_living_name_and_replaces_it_only_when_its_agent_is_dead(world: World) -> None:
    """The second starts nothing; with --replace it starts when the stubborn former one, and its whole tree, is gone."""
    world.configure(kill={"grace_seconds": 3})
    world.start()
    world.run("alpha", *world.script("agent.py", "deaf", "grandchild", "beat=0.3"))
    former = wait_for(lambda: world.agents().get("alpha"), "the first")
    wait_for(lambda: len(pids_with("AGENT_WATCHDOG_ID", former["agent_id"])) == 2 or None, "its child")
    family = pids_with("AGENT_WATCHDOG_ID", former["agent_id"])
    see = ("/bin/sh", "-c", f"kill -0 {' '.join(map(str, family))} 2>> seen; echo $? >> seen")

    refused = world.cli("run", "--name", "alpha", "--", *see, check=False)
    assert refused.returncode == 1
    assert "alpha is a living agent of yours" in refused.stderr
    assert all(map(alive, family))
    assert not (world.dir / "seen").exists()

    world.cli("run", "--name", "alpha", "--replace", "--", *see)
    assert (world.dir / "seen").read_text().endswith("\n1\n")
    assert not any(map(alive, family))
    assert world.story(former["agent_id"])["agent"]["status"] == "killed"


@pytest.mark.faults
def test_run_replace_starts_nothing_beside_a_former_one_that_cannot_be_killed(world: World) -> None:
    """Without a daemon, or while the former one is held: exit status, the reason, and no start."""
    nobody = world.cli("run", "--name", "alpha", "--replace", "--", "touch", "started", check=False)
    assert (nobody.returncode, "cannot be killed" in nobody.stderr) == (69, True)
    world.start()
    world.run("alpha", *world.script("agent.py", "beat=0.3"))
    wait_for(lambda: world.agents().get("alpha"), "the first")
    world.cli("hold", "alpha")
    held = world.cli("run", "--name", "alpha", "--replace", "--", "touch", "started", check=False)
    assert (held.returncode, "is held" in held.stderr) == (1, True)
    assert world.agents()["alpha"]["status"] == "running"
    assert not (world.dir / "started").exists()


@pytest.mark.faults
def test_the_own_stop_command_of_the_program_that_lists_it_comes_first(world: World) -> None:
    """`hcom stop NAME`, as its owner; it leaves the process running, which TERM then ends."""
    world.configure(kill={"grace_seconds": 10})
    home = HcomHome(world.dir)
    (world.dir / "bin").mkdir()
    hcom = world.dir / "bin" / "hcom"
    hcom.write_text(f'#!/bin/sh\necho "$HCOM_DIR" "$@" >>{world.dir}/asked\necho "Stopped hcom for $2."\n')
    hcom.chmod(0o755)
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "hcom"\npath = "{home.root}"\n')
    process = world.spawn("sleep", "600")
    identity = f"linux:{boot_id()}:{started_at(process.pid)}"
    home.add("mira", pid=process.pid, launch_context=json.dumps({"pid_identity": identity}))
    world.start(PATH=f"{world.dir}/bin:{world.environ['PATH']}")
    wait_for(lambda: world.agents().get("mira"), "it is watched")

    stopped = world.json("stop", "mira")

    assert (stopped["status"], stopped["killed_gracefully"], alive(process.pid)) == ("stopped", True, False), stopped
    assert (world.dir / "asked").read_text() == f"{home.root} stop mira\n"
    assert "hcom stop mira: done" in world.wait_event("stop.program", name="mira")["why"]
    assert stopped["resume"].endswith("hcom r mira")
    home.database.close()
