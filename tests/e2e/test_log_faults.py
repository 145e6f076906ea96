"""A log that cannot be written: the daemon continues to sweep and kill, and reports it elsewhere."""

import fcntl
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.world import BIN, World, wait_for


def log_of(world: World) -> dict[str, Any]:
    """What `status` says about the log."""
    found = world.ask("GET", "/v1/status")[1]["log"]
    assert isinstance(found, dict)
    return found


def end_a_silent_agent(world: World, name: str) -> None:
    """A whole kill by the daemon's own verdict, observed by the client and not by the log."""
    world.run(name, *world.script("agent.py", "beat=0.2/2"), options=("--stall-after", "1.5s"))
    world.wait_status(name, "killed")


@pytest.mark.faults
def test_a_full_disk_below_the_log_stops_no_kill(world: World) -> None:
    """/dev/full refuses every line: stderr gets them with the reason once, and `status` reports it too."""
    world.configure(log={"file": "/dev/full"}, sweep={"interval_seconds": 0.3}, stall={"after_seconds": 1.5})
    world.start()
    end_a_silent_agent(world, "alpha")
    assert log_of(world) == {"target": "/dev/full", "lost": 0, "error": "No space left on device"}
    assert "/dev/full, lost lines: 0, No space left on device" in world.cli("status").stdout
    assert world.count("log.failed") == 1
    assert world.count("kill.finished", name="alpha") == 1
    assert world.stop() == 0


@pytest.mark.faults
def test_a_reader_of_the_log_that_is_stopped_stops_no_kill(world: World) -> None:
    """stderr is a pipe of one page to a stopped `cat`: kills continue, and after SIGCONT no line is missing."""
    world.configure(
        log={"level": "debug"}, sweep={"interval_seconds": 0.1}, stall={"after_seconds": 1.5}
    )  # debug: a line per sweep soon fills the page
    fifo = world.dir / "fifo"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDWR)
    fcntl.fcntl(held, fcntl.F_SETPIPE_SZ, 4096)
    reader = world.spawn("/bin/sh", "-c", 'exec cat "$0" >>"$1"', str(fifo), str(world.log))
    world.start(prefix=("/bin/sh", "-c", 'exec "$@" 2>"$0"', str(fifo)))
    reader.send_signal(signal.SIGSTOP)
    end_a_silent_agent(world, "alpha")
    wait_for(lambda: "its reader has stopped" in str(log_of(world)["error"]), "status tells of it")
    end_a_silent_agent(world, "beta")
    assert world.count("kill.finished") == 0, "nobody has read it"

    reader.send_signal(signal.SIGCONT)
    world.wait_event("kill.finished", name="beta")
    wait_for(lambda: log_of(world)["error"] is None, "the log is well again")
    assert [e["name"] for e in world.events() if e["event"] == "kill.finished"] == ["alpha", "beta"]
    assert log_of(world)["lost"] == 0
    assert world.stop() == 0
    os.close(held)


@pytest.mark.faults
@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_daemon_without_stderr_runs_and_no_file_takes_its_place(world: World, closed: str) -> None:
    """faulthandler then has no output; and messages of libraries must not end up in the registry."""
    world.configure(log={"file": str(world.log)})

    world.start(prefix=("sh", "-c", f'exec "$@" {closed}', "sh"))

    assert world.daemon is not None
    names = [os.readlink(f"/proc/{world.daemon.pid}/fd/{number}") for number in range(3)]
    assert names[2] == "/dev/null"
    assert all(name == "/dev/null" for name in names)
    end_a_silent_agent(world, "alpha")
    assert world.stop() == 0


@pytest.mark.faults
def test_check_and_faults_without_stderr_have_their_exit_status(world: World) -> None:
    """A message without a reader goes nowhere else: not to stdout either."""
    for text, code, out in (("[kil]\n", 78, ""), ("", 0, f"{world.config}: fine\n")):
        world.config.write_text(text)
        words = [str(BIN / "agent-watchdogd"), "--check", "--config", str(world.config)]
        done = subprocess.run(
            ["sh", "-c", 'exec "$@" 2>&-', "sh", *words], stdout=subprocess.PIPE, text=True, timeout=30
        )
        assert (done.returncode, done.stdout) == (code, out)
