"""`--daemonize`: a real daemon in the background, the output of the parent process, and the daemon's descriptors."""

import fcntl
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.world import BIN, World, alive, make_world, wait_for


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world(log={"level": "debug"})


def start(world: World, *options: str, shell: str = '"$@"', **environ: str) -> subprocess.CompletedProcess[str]:
    """Start it in the background, as a shell would; a process that holds our pipes open would make this time out."""
    command = [str(BIN / "agent-watchdogd"), "--config", "config.toml", "--daemonize", *options]
    return subprocess.run(
        ["/bin/sh", "-c", shell, "sh", *command],
        env={**world.environ, **environ},
        cwd=world.dir,
        capture_output=True,
        text=True,
        timeout=30,
    )


def descriptors(pid: int) -> dict[int, str]:
    """The file of each of its descriptors; closed ones, and an exiting process, are left out."""
    opened = {}
    for name in Path("/proc").glob(f"{pid}/fd/*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            opened[int(name.name)] = os.readlink(name)
    return opened


def pipes(pid: int) -> set[str]:
    return {path for path in descriptors(pid).values() if path.startswith("pipe:")}


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]


def pid_in(path: Path) -> int:
    """The file contains one pid and nothing else."""
    text = path.read_text()
    assert text == f"{int(text)}\n"
    return int(text)


def default_pid_file(world: World) -> Path:
    return world.runtime / "agent-watchdog.pid"


def stop(world: World, path: Path) -> None:
    """Ask it to stop, and wait for that; it is not our child."""
    pid = pid_in(path)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not alive(pid), f"the end of {pid}")


def test_a_daemon_in_the_background_keeps_its_descriptors_apart(world: World) -> None:
    """File log, SQLite and pid file, five sweeps and a kill: each file has its own content, and no terminal's."""
    pid_file = world.dir / "here.pid"
    world.configure(log={"level": "debug", "file": str(world.log)})

    done = start(world, "--pidfile", "here.pid")

    assert (done.returncode, done.stderr) == (0, "")
    pid = pid_in(pid_file)
    assert f"(pid {pid}, in {pid_file})" in done.stdout and str(world.log) in done.stdout
    world.run("victim", *world.script("agent.py", "sleep"))
    world.wait_status("victim", "running")
    world.wait_sweeps(5)
    size = world.log.stat().st_size
    world.cli("kill", "victim")

    # One parent: init; its own session, which it does not lead, so it can never get a terminal.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert fields[2] == fields[3] != str(pid) and fields[4] == "0"
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    opened = descriptors(pid)
    assert (opened[0], opened[1], opened[2]) == ("/dev/null", "/dev/null", str(world.log))
    others = [path for number, path in opened.items() if number > 2 and path.startswith("/")]
    others.remove("/memfd:users (deleted)")  # the reader's copy of the users
    assert {path for path in others if not path.startswith((str(world.state), str(world.runtime)))} == {
        str(world.log),
        str(pid_file),
    }
    assert not [path for path in opened.values() if "/tty" in path or "/pts" in path]
    if os.geteuid() == 0:  # helpers are not dumpable: only root may read their descriptors
        wait_for(
            lambda: pipes(pid) <= {each for child in children(pid) for each in pipes(child)}, "only helpers have pipes"
        )
    # Each file has grown by its own content.
    assert pid_in(pid_file) == pid
    assert world.log.stat().st_size > size
    assert all(json.loads(line)["event"] for line in world.log.read_text().splitlines())
    assert "Bad file descriptor" not in world.log.read_text() and "EBADF" not in world.log.read_text()
    assert not world.count("sweep.failed") and world.count("kill.finished") == 1
    with sqlite3.connect(world.state / "registry.db") as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        rows = database.execute("SELECT name, status FROM agent_lifecycle").fetchall()
    assert rows == [("victim", "killed")]

    stop(world, pid_file)

    assert not pid_file.exists()
    assert world.events()[-1]["event"] == "daemon.stopped"


def test_the_parent_returns_after_the_first_sweep(world: World) -> None:
    """Sibling of P13: a script that continues then finds each agent judged."""
    world.configure(log={"level": "debug", "file": str(world.log)})
    world.start()
    world.run("alpha", "sleep", "600")
    world.wait_status("alpha", "running")
    world.crash()
    before = len(world.events())

    assert start(world).returncode == 0

    assert world.agents()["alpha"]["verdict"] == "healthy"
    names = [event["event"] for event in world.events()[before:]]
    assert names.index("sweep.finished") < names.index("daemon.ready"), names
    stop(world, default_pid_file(world))


@pytest.mark.faults
def test_a_second_start_is_refused_and_one_after_a_crash_is_not(world: World) -> None:
    """Only the lock counts, which a SIGKILL releases; a leftover pid counts for nothing."""
    pid_file = default_pid_file(world)
    pid_file.write_text(f"{os.getpid()}\n")  # left behind, and another process has that pid now
    assert start(world).returncode == 0
    first = pid_in(pid_file)

    again = start(world)
    elsewhere = start(world, "--pidfile", "other.pid")  # another pid file, the same directories

    assert (again.returncode, again.stdout) == (75, "")
    assert f"already running (pid {first})" in again.stderr
    assert (elsewhere.returncode, elsewhere.stdout) == (75, "")
    assert f"already running (pid {first})" in elsewhere.stderr and "status --socket" in elsewhere.stderr
    assert f"its socket is {world.runtime}/control.sock" in elsewhere.stderr
    assert not (world.dir / "other.pid").exists()
    assert pid_in(pid_file) == first and alive(first)

    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not alive(first), "its end")
    assert start(world).returncode == 0
    assert pid_in(pid_file) != first


@pytest.mark.faults
def test_a_removed_runtime_directory_comes_back_with_pid_file_and_lock(world: World) -> None:
    """As after `rm -rf /run/*`: reported once, found by its pid file again, and no second daemon can start."""
    world.configure(log={"level": "debug", "file": str(world.log)})
    assert start(world).returncode == 0
    pid_file, lock = default_pid_file(world), world.runtime / "agent-watchdogd.lock"
    pid = pid_in(pid_file)

    shutil.rmtree(world.runtime)
    world.wait_event("control.reopened")

    assert pid_in(pid_file) == pid_in(lock) == pid
    assert world.json("status")["pid"] == pid
    again = start(world)
    assert (again.returncode, f"already running (pid {pid})" in again.stderr) == (75, True)
    world.configure(daemon={"state_dir": str(world.dir / "other")})
    elsewhere = start(world, "--pidfile", "other.pid")
    assert (elsewhere.returncode, f"already running (pid {pid})" in elsewhere.stderr) == (75, True)
    lock.unlink()  # each of them alone, too
    pid_file.write_text("")
    pid_file.unlink()
    wait_for(lambda: lock.exists() and pid_file.exists(), "both are made anew")
    world.wait_sweeps(2)
    assert world.count("control.lost") == 1 and world.count("lock.lost") == 0
    assert [world.count("lock.renewed", file=str(path)) for path in (lock, pid_file)] == [2, 2]

    stop(world, pid_file)
    assert not pid_file.exists()


@pytest.mark.faults
def test_a_runtime_directory_that_another_daemon_took_is_left_to_it(world: World) -> None:
    """Its lock decides: our socket does not replace its, until it has gone."""
    world.configure(log={"level": "debug"})
    world.start()
    other = world.dir / "other"
    other.mkdir(mode=0o700)
    with (other / "agent-watchdogd.lock").open("w") as lock:
        lock.write("1\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        world.runtime.rename(world.dir / "former")
        other.rename(world.runtime)
        world.wait_event("lock.lost")
        world.wait_sweeps(3)
        assert os.listdir(world.runtime) == ["agent-watchdogd.lock"]
    world.wait_event("control.reopened")
    assert "already running (pid 1)" in world.wait_event("lock.lost")["why"]
    assert world.count("lock.lost") == world.count("lock.renewed") == world.count("control.lost") == 1
    assert world.json("status")["agents"] == 0


@pytest.mark.faults
def test_the_parent_reports_why_the_daemon_could_not_start(world: World) -> None:
    """It fails long after the fork; the parent has its message and its exit status all the same."""
    (world.state / "registry.db").mkdir()

    done = start(world)

    assert done.returncode not in (0, 1, 2)
    assert "registry.db" in done.stderr
    assert not default_pid_file(world).exists()
    log = (world.state / "agent-watchdogd.log").read_text()
    assert "daemon.failed" in log


@pytest.mark.parametrize(("make", "why"), [(os.mkdir, "Is a directory"), (os.mkfifo, "No such device or address")])
def test_a_log_that_cannot_be_opened_is_reported_in_one_line(
    world: World, make: Callable[[Path], None], why: str
) -> None:
    """No traceback in the terminal, and no wait for the reader of a FIFO."""
    make(world.log)
    world.configure(log={"file": str(world.log)})

    done = start(world)

    assert done.returncode == 78
    assert done.stderr == f"agent-watchdogd: log.file: {world.log}: {why}; use a file that it may write\n"
    assert not default_pid_file(world).exists()


def test_it_starts_with_its_standard_streams_closed(world: World) -> None:
    """As a cron job or an init script may; no file of ours becomes descriptor 0."""
    done = start(world, shell='"$@" <&- >&- 2>&-')

    assert done.returncode == 0
    pid = pid_in(default_pid_file(world))
    log = world.state / "agent-watchdogd.log"
    assert [os.readlink(f"/proc/{pid}/fd/{n}") for n in (0, 1, 2)] == ["/dev/null", "/dev/null", str(log)]
    wait_for(lambda: "daemon.ready" in log.read_text(), "the log's thread has written it")


@pytest.mark.faults
def test_a_file_that_is_no_pid_file_is_not_overwritten(world: World) -> None:
    """A typing error by root must not cost a file."""
    precious = world.dir / "precious"
    precious.write_text("my thesis\n")
    (world.dir / "link.pid").symlink_to("precious")
    os.mkfifo(world.dir / "fifo.pid")
    (world.dir / "twice.pid").touch()
    (world.dir / "twice").hardlink_to(world.dir / "twice.pid")

    for name in ("precious", "link.pid", "fifo.pid", "twice.pid", "missing/x.pid"):
        done = start(world, "--pidfile", name)
        assert done.returncode == 78, name
        assert f"agent-watchdogd: {world.dir}/{name}: " in done.stderr

    assert precious.read_text() == "my thesis\n"
    assert not (world.state / "agent-watchdogd.log").exists()


@pytest.mark.faults
def test_below_a_service_manager_it_stays_in_the_foreground(world: World) -> None:
    """A manager follows the process that it started, and waits for its message: Type=notify, and no --daemonize."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(world.dir / "n"))
        waited_for = start(world, NOTIFY_SOCKET=str(world.dir / "n"))
    unit = start(world, shell='SYSTEMD_EXEC_PID=$$ exec "$@"', INVOCATION_ID="0" * 32)
    terminal = start(world, INVOCATION_ID="0" * 32, SYSTEMD_EXEC_PID=str(os.getpid()))  # a terminal's shell has both

    assert [waited_for.returncode, unit.returncode, terminal.returncode] == [78, 78, 0]
    assert "NOTIFY_SOCKET" in waited_for.stderr and "Type=notify" in waited_for.stderr
    assert "systemd started this process" in unit.stderr and "Type=notify" in unit.stderr


@pytest.mark.faults
def test_descriptors_of_the_parent_are_closed(world: World) -> None:
    """Also one that claims to be passed by a manager: it must not be taken for a socket of ours."""
    done = start(world, shell='LISTEN_PID=$$ LISTEN_FDS=1 exec "$@" 3<config.toml 7<config.toml')

    assert done.returncode == 0
    pid = pid_in(default_pid_file(world))
    opened = list(descriptors(pid).values())
    assert str(world.config) not in opened


@pytest.mark.faults
def test_a_pid_file_needs_a_daemon_in_the_background(world: World) -> None:
    """In the foreground it has no use."""
    done = subprocess.run(
        [str(BIN / "agent-watchdogd"), "--pidfile", "x.pid"], env=world.environ, capture_output=True, text=True
    )

    assert done.returncode == 64
    assert "--daemonize" in done.stderr
