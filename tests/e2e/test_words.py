"""Reports are true: they describe the present, one number means one thing, events come in the order of happening."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from functools import partial
from typing import Any

import psutil
import pytest

from tests.world import BIN, PATIENCE, World, wait_for

SAYS_DONE_ON_TERM = """
import os, signal, socket, time
def say(state):
    to = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    to.sendto(f"X_AGENT_STATE={state}".encode(), os.environ["NOTIFY_SOCKET"])
def leave(*_):
    say("done")
    time.sleep(1.5)
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
say("working")
time.sleep(600)
"""


def follow(world: World, verb: str, output: int) -> subprocess.Popen[bytes]:
    words = [str(BIN / "agent-watchdog"), *verb.split()]
    follower = subprocess.Popen(
        words,
        env=world.environ,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    world.started.append(follower)
    return follower


def read_until(descriptor: int, word: bytes) -> None:
    """pytest-timeout limits it."""
    text = b""
    while word not in text:
        text += os.read(descriptor, 65536)


def has_spoken(world: World, name: str) -> bool:
    return bool(world.agents()[name]["beats"])


def order_of(names: list[str], *wanted: str) -> list[str]:
    return [name for name in names if name in wanted]


def test_the_history_has_the_end_of_an_agent_in_the_order_of_the_log(world: World) -> None:
    """O16: proven dead, then the cleanup, then the task, and the agent's own end last of all."""
    world.start()
    world.run("alpha", "sleep", "600", options=("--task", "T-1", "--temp-dir", "auto"))
    world.wait_status("alpha", "running")
    world.cli("cancel", "T-1")
    world.wait_event("agent.ended", name="alpha")
    end = ("kill.finished", "cleanup.hook_finished", "task.cancelled", "agent.ended")

    logged = order_of([event["event"] for event in world.events()], *end)
    told: list[Any] = world.story("alpha")["events"]
    shown = world.cli("why", "alpha").stdout.partition("what happened")[2].splitlines()
    assert logged == list(end)
    assert order_of([event["event"] for event in told], *end) == list(end)
    lines = [next(number for number, line in enumerate(shown) if word in line) for word in end if "hook" not in word]
    removed = next(number for number, line in enumerate(shown) if "cleanup temp_dir: done" in line)
    assert sorted([*lines, removed]) == [lines[0], removed, *lines[1:]]


def test_the_order_is_the_same_without_anything_to_clean_up(world: World) -> None:
    """No hook runs: the proof is committed with the row's end, and reported before it."""
    world.start()
    world.run("alpha", "sleep", "600")
    world.wait_status("alpha", "running")
    world.cli("kill", "alpha", "--no-cleanup")
    names = [event["event"] for event in world.story("alpha")["events"]]
    assert names[-2:] == ["kill.finished", "agent.ended"]


def tasks(world: World) -> dict[str, str]:
    return {str(task): str(status) for task, status in world.sql("SELECT task_id, status FROM orchestrator_task")}


def test_finished_work_is_completed_whatever_happened_to_its_agent(world: World) -> None:
    """P14: killed, lingering or rebooted away after `done`; a `done` sent only at exit does not mean finished work."""
    world.configure(stall={"linger_seconds": 3600, "after_seconds": 600}, kill={"task_status": "ready_for_retry"})
    with world.config.open("a") as config:
        config.write('[[policy]]\nmatch = { name = "lingers" }\nlinger_seconds = 1\n')
    world.start()
    done = "agent-watchdog beat --state done; sleep 600"
    for name in ("killed", "stopped", "lingers", "rebooted"):
        world.run(name, "sh", "-c", done, options=("--task", f"T-{name}"))
    world.registered("says", "python3", "-c", SAYS_DONE_ON_TERM, task="T-says")
    world.wait_status("lingers", "killed")
    for name in ("killed", "stopped", "rebooted", "says"):
        wait_for(partial(has_spoken, world, name), f"{name} has said it")

    world.json("kill", "killed", "says")
    world.json("stop", "stopped")
    assert world.story("says")["agent"]["state"] == "done"
    world.crash()
    world.sql("UPDATE agent_lifecycle SET boot_id = 'another' WHERE name = 'rebooted'")
    world.start()
    world.wait_status("rebooted", "lost")
    assert tasks(world) == {
        **{f"T-{name}": "completed" for name in ("killed", "stopped", "lingers", "rebooted")},
        "T-says": "ready_for_retry",
    }
    assert world.agents()["killed"]["why"].startswith("Agent killed: "), "what became of the agent is still told"


def test_the_age_of_a_wait_for_a_person_is_kept_over_a_restart(world: World) -> None:
    """O12: `has needed a person for` continues where the last daemon left it, and so does the wait for the person."""
    world.configure(stall={"after_seconds": 600, "prompt_limit_seconds": 6})
    world.start()
    world.run("alpha", "sh", "-c", "agent-watchdog beat --state waiting; sleep 600")
    wait_for(lambda: (world.agents()["alpha"]["state_age_seconds"] or 0) >= 3, "it waits")
    world.stop()
    world.start()
    waited = world.agents()["alpha"]
    assert waited["state_age_seconds"] >= 3
    assert waited["why"].startswith("has needed a person for ")
    assert "for 0" not in waited["why"]
    told = world.wait_event("agent.needs_human", name="alpha")
    assert told["why"].startswith("waits for a human for 6")


def test_ready_is_reported_after_the_first_sweep(world: World) -> None:
    """P13: a client that waits for READY=1 and then asks sees each agent judged."""
    world.configure(log={"level": "debug"}, sweep={"interval_seconds": 5}, stall={"after_seconds": 60})
    world.start()
    world.run("alpha", "sleep", "600")
    world.wait_status("alpha", "running")
    world.crash()
    before = len(world.events())
    world.start()
    assert world.agents()["alpha"]["verdict"] == "healthy"
    names = [event["event"] for event in world.events()[before:]]
    assert names.index("sweep.finished") < names.index("daemon.ready"), names


@pytest.mark.parametrize("reader", ["grep -m1 agent.registered", "head -n 1", "cat >first & wait-for first; kill $!"])
def test_a_follower_ends_with_its_reader(world: World, reader: str) -> None:
    """N11: a quiet daemon writes nothing more, so no write would reveal that the reader is gone."""
    world.start()
    world.run("alpha", "sleep", "600")
    world.wait_status("alpha", "running")
    wait = "wait-for() { until test -s $1; do sleep 0.05; done; }"
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{wait}; agent-watchdog events --agent alpha --follow | {{ {reader}; }}; echo ${{PIPESTATUS[0]}}",
        ],
        env=world.environ,
        cwd=world.dir,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.splitlines()[-1] == "0", done
    assert not done.stderr or "Terminated" in done.stderr


def test_a_verb_whose_terminal_closes_before_its_output_exits_normally(world: World) -> None:
    """A write then fails with EIO, as with a broken disk: it was "Input/output error" and 74, now and then."""
    world.start()
    master, terminal = pty.openpty()
    os.close(master)
    follower = follow(world, "list", terminal)
    os.close(terminal)
    assert follower.communicate(timeout=PATIENCE)[1] in (b"", "")
    assert follower.returncode == 0


@pytest.mark.parametrize("verb", ["events --follow", "list --watch"])
def test_a_follower_ends_with_its_terminal_and_while_the_daemon_is_away(world: World, verb: str) -> None:
    """A terminal that is closed without a signal; a reader that exits while no daemon answers."""
    world.start()
    world.run("alpha", "sleep", "600")
    world.wait_status("alpha", "running")
    master, terminal = pty.openpty()
    follower = follow(world, verb, terminal)
    os.close(terminal)
    read_until(master, b"alpha")
    os.close(master)
    follower.communicate(timeout=PATIENCE)  # and close its pipe
    assert follower.returncode == 0
    if verb == "list --watch":
        return
    reading, writing = os.pipe()
    follower = follow(world, verb, writing)
    os.close(writing)
    read_until(reading, b"alpha")
    world.crash()
    assert follower.stderr is not None
    assert b"the daemon stops" in follower.stderr.readline()
    os.close(reading)
    follower.communicate(timeout=PATIENCE)  # and close its pipe
    assert follower.returncode == 0


def test_a_daemon_that_cannot_start_reports_it_in_the_format_of_its_log(world: World) -> None:
    """O15: only JSON on a stderr that is a file; with a log file, both get it."""
    for own in (False, True):
        file = world.dir / "own.log"
        settings = {"registry": {"url": "sqlite:////nowhere/x.db"}, **({"log": {"file": str(file)}} if own else {})}
        world.configure(**settings)
        world.log.unlink(missing_ok=True)
        world.start(wait=False)
        assert world.daemon is not None
        assert world.daemon.wait(PATIENCE) == 75
        lines = world.log.read_text().splitlines()
        if own:
            assert lines == ["agent-watchdogd: registry /nowhere/x.db: No such file or directory"]
            lines = file.read_text().splitlines()
        assert [json.loads(line)["event"] for line in lines][-1] == "daemon.failed"


def test_a_second_daemon_reports_itself_in_the_format_of_its_log(world: World) -> None:
    """Siblings of O15: one that runs already, and a registry of a newer version."""
    world.start()
    ended = subprocess.run(
        [str(BIN / "agent-watchdogd"), "--config", str(world.config)],
        env=world.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ended.returncode == 75
    assert [json.loads(line)["event"] for line in ended.stderr.splitlines()] == ["daemon.starting", "daemon.failed"]

    world.stop()
    world.sql("UPDATE alembic_version SET version_num = '9999'")
    world.log.unlink()
    world.start(wait=False)
    assert world.daemon is not None
    assert world.daemon.wait(PATIENCE) == 78
    events = [json.loads(line) for line in world.log.read_text().splitlines()]
    assert "a newer agent-watchdogd wrote it" in events[-1]["error"]


HOLDS_ITS_EXIT = """
import ctypes, os, signal, sys
SEIZE, TRACEEXIT = 0x4206, 0x40  # ptrace(2)
assert ctypes.CDLL(None).ptrace(SEIZE, int(sys.argv[1]), ctypes.c_void_p(0), ctypes.c_void_p(TRACEEXIT)) == 0
open("traced", "w").close()
os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
"""


def test_an_agent_held_by_a_stopped_debugger_is_reported_as_such(world: World) -> None:
    """Q10: it was "d_state", which points to the disks; the debugger's process is named, and its exit helps."""
    world.configure(kill={"verify_seconds": 2, "grace_seconds": 1}, stall={"after_seconds": 600})
    world.start()
    world.run("held", "sleep", "600")
    pid = world.wait_status("held", "running")["pid"]
    debugger = world.spawn(sys.executable, "-c", HOLDS_ITS_EXIT, str(pid))
    wait_for((world.dir / "traced").exists, "it is traced")

    answer = world.json("kill", "held", check=False)
    words = f"not ended, traced: sleep[{pid}] alive (held by a debugger, process {debugger.pid})"
    assert (answer["success"], answer["message"]) == (False, words)
    assert words.removeprefix("not ended, ") in world.cli("why", "held").stdout
    debugger.kill()
    world.wait_status("held", "killed")


def test_displayed_values_are_current_and_consistent(world: World) -> None:
    """O10, O11: without a sweep in between, a beat, the ages and what a restart forgave are shown as they are."""
    world.configure(sweep={"interval_seconds": 60}, stall={"after_seconds": 300, "start_limit_seconds": 600})
    world.start()
    os.mkfifo(world.dir / "go")
    world.run("alpha", "sh", "-c", "read line <go; agent-watchdog beat; sleep 600", options=("--stall-after", "300s"))
    world.wait_status("alpha", "running")
    wait_for(lambda: world.agents()["alpha"]["verdict"] == "starting", "the look at a new process")
    (world.dir / "go").write_text("go\n")
    wait_for(lambda: world.agents()["alpha"]["beats"] == 1, "it has beaten")

    (first,), why = world.json("list")["agents"], world.cli("why", "alpha").stdout
    assert (first["verdict"], world.json("status")["verdicts"]) == ("healthy", {"healthy": 1})
    assert "none has come yet" not in why
    assert "A first heartbeat" not in why
    wait_for(lambda: world.agents()["alpha"]["silence_seconds"] >= first["silence_seconds"] + 2, "its silence grows")
    assert_one_number(world)

    world.stop()
    world.start()
    shown = assert_one_number(world)
    assert shown["forgiven_seconds"] >= 2
    assert shown["silence_seconds"] == pytest.approx(shown["counted_seconds"] + shown["forgiven_seconds"], abs=0.11)
    assert "not counted: the daemon could not hear it" in shown["why"]
    assert "not counted: the daemon could not hear it" in world.cli("why", "alpha").stdout


def assert_one_number(world: World) -> Any:
    """The silence in `list` equals that in its reason, at the same moment."""
    _, _, line = world.cli("list").stdout.splitlines()
    silent, reason = re.search(r"(\S+) of 5m", line), re.search(r"silent for (\S+) of 5m", line)
    assert silent is not None
    assert reason is not None
    assert silent[1] == reason[1], line
    return world.agents()["alpha"]


def test_a_dry_run_describes_the_present(world: World) -> None:
    """Sibling of O10: no sweep comes in between."""
    world.configure(sweep={"interval_seconds": 60}, stall={"after_seconds": 300, "start_limit_seconds": 600})
    world.start()
    world.run("alpha", "sh", "-c", "agent-watchdog beat; sleep 600", options=("--stall-after", "300s"))
    wait_for(lambda: world.agents()["alpha"]["beats"] == 1, "it has beaten")

    def dry() -> Any:
        return world.json("kill", "alpha", "--dry-run")

    assert "would be killed: running, healthy" in dry()["message"]
    first = dry()["seconds_since_heartbeat"]
    wait_for(lambda: dry()["seconds_since_heartbeat"] >= first + 2, "its silence grows")


def test_a_dry_run_names_the_processes_that_live_now(world: World) -> None:
    """It named a `beat` that had long ended, and not the program after it: those of the last scan."""
    world.configure(sweep={"interval_seconds": 60}, stall={"after_seconds": 300, "start_limit_seconds": 600})
    world.start()
    world.run("alpha", "sh", "-c", "read line <go; sleep 600")
    os.mkfifo(world.dir / "go")
    world.wait_status("alpha", "running")
    (world.dir / "go").write_text("go\n")
    pid = world.agents()["alpha"]["pid"]
    wait_for(lambda: [one.name() for one in psutil.Process(pid).children()] == ["sleep"], "it goes on")

    named = {one["name"] for one in world.json("kill", "alpha", "--dry-run")["processes"]}

    assert "sleep" in named, named


@pytest.mark.parametrize("beats", [True, False])
def test_an_agent_that_only_got_more_time_has_not_recovered(world: World, beats: bool) -> None:
    """P15: a gap in our own watch: no beat was received. The agent's next beat is its recovery, reported once."""
    world.configure(stall={"after_seconds": 600, "confirm_sweeps": 1000, "start_limit_seconds": 4})
    world.start()
    beat = "agent-watchdog beat; " if beats else ""
    held = ("--stall-after", "4s")
    if not beats:
        world.cli("hold")  # all, before it is there: its four seconds may be over when the client comes to it
    world.run("mute", "sh", "-c", f"{beat}read line <go; agent-watchdog beat; sleep 600", options=held)
    os.mkfifo(world.dir / "go")
    world.wait_status("mute", "running")
    if beats:
        world.wait_event("agent.late", name="mute")
    else:
        world.wait_event("kill.held", name="mute")
    assert world.daemon is not None
    world.daemon.send_signal(signal.SIGSTOP)
    time.sleep(2.5)  # the case itself: five intervals, in which it may have beaten
    world.daemon.send_signal(signal.SIGCONT)
    world.wait_event("clock.gap")
    wait_for(lambda: world.agents()["mute"]["forgiven_seconds"], "its silence is forgiven")
    wait_for(lambda: world.agents()["mute"]["verdict"] == ("healthy" if beats else "starting"), "it has more time")
    told = [event["event"] for event in world.story("mute")["events"]]
    assert not {"agent.recovered", "kill.withdrawn"} & set(told), told
    (world.dir / "go").write_text("go\n")
    if beats:
        world.wait_event("agent.recovered", name="mute")
        assert world.count("agent.recovered") == 1


@pytest.mark.skipif(World.server is not None, reason="of SQLite's files")
def test_why_explains_an_agent_without_its_history(world: World) -> None:
    """A registry that is away takes the history along, not the daemon's knowledge: the verdict and its evidence."""
    world.start()
    world.run("alpha", "sh", "-c", "agent-watchdog beat; sleep 600")
    wait_for(lambda: has_spoken(world, "alpha"), "a heartbeat")
    registry, aside = world.state / "registry.db", world.state / "aside.db"
    registry.rename(aside)
    told = world.cli("why", "alpha").stdout
    assert "its history cannot be read now: registry" in told
    assert "the file was removed or replaced" in told
    assert "evidence now" in told
    assert json.loads(world.cli("why", "alpha", "--json").stdout)["agent"]["name"] == "alpha"

    aside.rename(registry)
    told = world.cli("why", "alpha").stdout
    assert "cannot be read now" not in told
    assert "agent.registered" in told
