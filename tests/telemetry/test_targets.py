"""Targets of log lines: files that rotate and fill up, pipes whose reader stops, a journal that comes and goes."""

import contextlib
import fcntl
import json
import logging
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from tests.telemetry.test_logger import Begin, begin, lines, out, text, wait_for
from watchdog.clock import Clock
from watchdog.telemetry.logger import finish, get_logger
from watchdog.telemetry.queue_handler import QueueHandler
from watchdog.telemetry.targets import FileTarget, Line, StreamTarget, Target, Wait, datagram

__all__ = ["begin", "out"]

TALKERS = 4


def numbers(*paths: Path) -> list[int]:
    """The `n` of every line in these files; a line that is not JSON fails here."""
    return [json.loads(line)["n"] for path in paths for line in path.read_text().splitlines()]


# -- files


def test_no_line_is_lost_or_doubled_when_a_file_rotates_under_load(begin: Begin, tmp_path: Path) -> None:
    """logrotate's rename without a signal, thirty times, while four threads log."""
    path = tmp_path / "log"
    sink = begin("info", "auto", str(path))
    log = get_logger()

    def talk(talker: int) -> None:
        for n in range(500):
            log.event("agent.late", n=talker * 500 + n)

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(TALKERS)]
    for thread in threads:
        thread.start()
    for number in range(30):
        wait_for(lambda: (path.exists() and path.stat().st_size > 0) or not any(t.is_alive() for t in threads))
        if path.exists():
            path.rename(tmp_path / f"log.{number}")
    for thread in threads:
        thread.join()
    log.event("agent.late", n=TALKERS * 500)
    finish(sink)
    files = list(tmp_path.glob("log*"))
    assert len(files) > 2
    assert sorted(numbers(*files)) == list(range(TALKERS * 500 + 1))
    assert sink.lost == 0
    assert path.stat().st_mode & 0o137 == 0, "others may read it"


@pytest.mark.parametrize("how", ["deleted", "truncated", "directory gone and back", "told to reopen"])
def test_a_removed_file_is_made_again(begin: Begin, tmp_path: Path, how: str) -> None:
    """No signal is needed; a truncated one continues at its beginning, without a hole."""
    path = tmp_path / "logs" / "log"
    path.parent.mkdir()
    sink = begin("info", "auto", str(path))
    log = get_logger()
    log.event("agent.late", n=1)
    wait_for(lambda: path.exists() and path.stat().st_size > 0)
    match how:
        case "deleted":
            path.unlink()
        case "truncated":
            os.truncate(path, 0)
        case "told to reopen":
            path.unlink()
            open_files = Path("/proc/self/fd")
            sink.reopen()
            wait_for(lambda: not any("logs/log" in target(fd) for fd in open_files.iterdir()))
        case _:
            path.unlink()
            path.parent.rmdir()
            path.parent.mkdir()
    log.event("agent.late", n=2)
    finish(sink)
    assert numbers(path) == [2]


def target(descriptor: Path) -> str:
    """The target of an entry of /proc/self/fd; "" when it is closed meanwhile."""
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:
        return ""


def test_an_unwritable_file_is_reported_on_stderr_and_used_again(begin: Begin, out: TextIO, tmp_path: Path) -> None:
    """Once; the lines go there meanwhile, and the file later says that it lacks them."""
    path = tmp_path / "missing" / "log"
    sink = begin("info", "auto", str(path), stream=out)
    log = get_logger()
    log.event("agent.late", n=1)
    log.event("agent.late", n=2)
    wait_for(lambda: text(out).count("\n") == 3)
    assert (sink.health().target, sink.health().error) == (str(path), "No such file or directory")
    path.parent.mkdir()
    log.event("agent.late", n=3)
    finish(sink)
    said, *others = lines(out)
    assert (said["event"], said["level"], said["target"]) == ("log.failed", "error", str(path))
    assert [line["n"] for line in others] == [1, 2]
    back, line = (json.loads(line) for line in path.read_text().splitlines())
    assert (back["event"], back["lost"], back["elsewhere"]) == ("log.recovered", 0, 2)
    assert line["n"] == 3
    assert sink.lost == 0
    assert sink.health().error is None


def test_a_full_disk_leaves_no_torn_line(tmp_path: Path) -> None:
    """RLIMIT_FSIZE in place of a full disk: a line that does not fit is lost whole; with room the log continues."""
    script = (
        "import resource, sys, os, json\n"
        "from watchdog.telemetry.logger import *\n"
        "path = sys.argv[1]\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n"
        "full = open('/dev/full', 'w'); sink = set_up('info', 'auto', path, stream=full); log = get_logger()\n"
        "for n in range(20): log.event('agent.late', n=n, text='x' * 80)\n"
        "import time\n"
        "until = time.monotonic() + 20\n"
        "while sink.lost < 15 and time.monotonic() < until: time.sleep(0.01)\n"
        "print(sink.health().error)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))\n"
        "log.event('agent.late', n=20)\n"
        "finish(sink); print(sink.lost)\n"
    )
    path = tmp_path / "log"
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    error, lost = done.stdout.splitlines()
    assert error == "File too large"
    written = [json.loads(line) for line in path.read_text().splitlines()]
    kept = [line["n"] for line in written if line["event"] == "agent.late"]
    assert kept == [*range(20 - int(lost)), 20]
    assert [(line["event"], line["lost"]) for line in written[-2:-1]] == [("log.recovered", int(lost))]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small tmpfs")
def test_a_full_file_system_is_survived(begin: Begin, out: TextIO, tmp_path: Path) -> None:
    """A real ENOSPC, on a tmpfs of 64 KiB; when there is room again, the file takes lines again."""
    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mount)], capture_output=True)
    if done.returncode:
        pytest.skip("this machine lets nobody mount: " + done.stderr.decode().strip())
    try:
        sink = begin("info", "auto", str(mount / "log"), stream=out)
        log = get_logger()
        for n in range(1000):
            log.event("agent.late", n=n, text="x" * 100)
        wait_for(lambda: sink.health().error == "No space left on device")
        wait_for(lambda: '"n": 999,' in text(out))  # otherwise waiting lines would fill the new file as well
        (mount / "log").rename(mount / "log.1")
        os.truncate(mount / "log.1", 0)
        log.event("agent.late", n=1000)
        finish(sink)
        assert (mount / "log").read_text().endswith('"n": 1000}\n')
        assert sink.lost == 0, "stderr had room"
        assert text(out).count('"log.failed"') <= 2, "said each time"
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_a_path_that_is_not_our_file_is_not_written(begin: Begin, out: TextIO, tmp_path: Path, kind: str) -> None:
    """A link may lead to any user's file, a FIFO without a reader may block us for ever."""
    path, other = tmp_path / "log", tmp_path / "other"
    other.touch()
    match kind:
        case "link":
            path.symlink_to(other)
        case "fifo":
            os.mkfifo(path)
        case _:
            path.mkdir()
    sink = begin("info", "auto", str(path), stream=out)
    get_logger().event("agent.late", n=1)
    finish(sink)
    assert other.read_text() == ""
    assert [line["event"] for line in lines(out)] == ["log.failed", "agent.late"]


# -- pipes


@contextlib.contextmanager
def small_pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe that holds one page: its reading end, and its writing end in place of stderr."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    stream = os.fdopen(writer, "w")
    try:
        yield reader, stream
    finally:
        stream.close()
        with contextlib.suppress(OSError):
            os.close(reader)


def plain_sink(stream: TextIO, **bounds: int) -> tuple[QueueHandler, Callable[[str], object]]:
    """A queue handler with its own bounds, and a function that logs a line to it; without structlog."""

    sink = QueueHandler(StreamTarget(stream), **bounds)  # type: ignore[arg-type]
    return sink, lambda word: sink.handle(logging.makeLogRecord({"msg": word, "levelno": logging.INFO}))


def test_a_stopped_reader_blocks_no_caller_and_the_log_reports_the_gap() -> None:
    """Lines are queued up to the bound, then counted; none is torn, and the loss is reported where the gap is."""
    with small_pipe() as (reader, stream):
        sink, say = plain_sink(stream, room=100)
        say("x" * 20_000)
        wait_for(lambda: sink._since is not None)
        for n in range(1000):
            say(str(n))
        assert sink.lost == 900
        read = b""
        while b"log.lost" not in read:
            read += os.read(reader, 65536)
        say("after")
        sink.finish()
        os.set_blocking(reader, False)
        read += os.read(reader, 65536)
        got = read.decode().splitlines()
        assert got[:-2] == ["x" * 20_000, *(str(n) for n in range(100))]
        assert "'lost': 900" in got[-2]
        assert got[-1] == "after"
        assert sink.lost == 900


def test_the_queue_is_bounded_in_characters_too() -> None:
    """Ten thousand lines of a megabyte would take all memory."""
    with small_pipe() as (_, stream):
        sink, say = plain_sink(stream, room_characters=10_000)
        for _ in range(20):
            say("x" * 6_000)
        assert sink.lost >= 17
        sink.finish(0.1)
        assert sink.lost == 20, "what was not written at the end is lost, and counted"


def test_a_stuck_target_is_shown_by_health() -> None:
    """A stopped reader causes no error; the time shows it."""

    class Later:
        def __init__(self) -> None:
            self.now = 0.0

        def mono(self) -> float:
            return self.now

    with small_pipe() as (_, stream):
        clock = Later()
        sink, say = plain_sink(stream, clock=clock)  # type: ignore[arg-type]
        say("x" * 20_000)
        say("y")
        wait_for(lambda: sink._since is not None)
        assert sink.health().error is None
        clock.now = 60.0
        assert sink.health().error == "blocked for 60 s with 1 lines queued; its reader has stopped"
        sink.finish(0.1)


def test_a_stuck_target_can_be_replaced(tmp_path: Path) -> None:
    """A reload that names a file works although stderr is blocked; the present line goes there whole."""

    with small_pipe() as (_, stream):
        sink, say = plain_sink(stream)
        say("x" * 20_000)
        say("y")
        wait_for(lambda: sink._since is not None)
        sink.set_target(FileTarget(str(tmp_path / "log")), None)
        sink.finish()
        assert (tmp_path / "log").read_text() == "x" * 20_000 + "\ny\n"
        assert sink.lost == 0


def test_a_missing_reader_is_counted(begin: Begin) -> None:
    """EPIPE is no reason to exit; health shows it."""
    with small_pipe() as (reader, stream):
        os.close(reader)
        sink = begin("info", "json", stream=stream)
        get_logger().event("agent.late")
        wait_for(lambda: sink.lost == 1)
        assert sink.health().error == "Broken pipe"
        finish(sink)


def test_a_target_with_a_bug_ends_no_thread(begin: Begin, out: TextIO) -> None:
    """Whatever it raises, the next line is tried."""

    class Broken:
        name = "broken"

        def write(self, line: Line, wait: Wait) -> None:
            raise RuntimeError("bug")

        def reopen(self) -> None:
            """Does nothing."""

    sink = begin("info", "json", stream=out)
    broken: Target = Broken()
    sink.set_target(broken, None)
    get_logger().event("agent.late", n=1)
    wait_for(lambda: sink.lost == 1)
    assert sink.health().error == "bug"
    sink.set_target(StreamTarget(out), None)
    get_logger().event("agent.late", n=2)
    finish(sink)
    assert [line["event"] for line in lines(out)] == ["log.recovered", "agent.late"]


# -- the journal


def fields_of(data: bytes) -> dict[str, str]:
    """Parse a datagram as systemd.io/JOURNAL_NATIVE_PROTOCOL says."""
    found = {}
    while data:
        head, _, data = data.partition(b"\n")
        key, equals, value = head.partition(b"=")
        if not equals:
            size = int.from_bytes(data[:8], "little")
            value, data = data[8 : 8 + size], data[8 + size + 1 :]
        found[key.decode()] = value.decode()
    return found


class Journald:
    """A datagram socket at a path, in place of journald."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start()

    def start(self) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.settimeout(60)
        self.socket.bind(str(self.path))

    def stop(self) -> None:
        self.socket.close()
        self.path.unlink()

    def next(self) -> dict[str, str]:
        return fields_of(self.socket.recv(1 << 20))


@pytest.fixture
def journald(tmp_path: Path) -> Iterator[Journald]:
    """A journald that listens."""
    served = Journald(tmp_path / "socket")
    yield served
    served.socket.close()


def in_journal(begin: Begin, out: TextIO, journald: Journald, form: str = "auto") -> QueueHandler:
    """Log as a service whose stderr the journal reads."""
    found = os.fstat(out.fileno())
    environ = {"JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
    return begin("info", form, stream=out, environ=environ, journal=str(journald.path))


def test_the_journal_gets_fields_to_search_by(begin: Begin, out: TextIO, journald: Journald) -> None:
    """`journalctl AGENT_ID=… REQUEST_ID=… EVENT=…`, and one readable line."""
    in_journal(begin, out, journald)
    log = get_logger(host="h1").bind(request_id="r1")
    log.event("kill.requested", agent_id="a1", name="alpha", why="silent for 130 s", pids=[1, 2], note="a\nb")
    got = journald.next()
    assert got == {
        "MESSAGE": r"kill.requested alpha: silent for 130 s (pids=[1, 2], note='a\nb')",
        "PRIORITY": "4",
        "SYSLOG_IDENTIFIER": "agent-watchdogd",
        "EVENT": "kill.requested",
        "HOST": "h1",
        "AGENT_ID": "a1",
        "REQUEST_ID": "r1",
        "NAME": "alpha",
        "WHY": "silent for 130 s",
        "PIDS": "[1, 2]",
        "NOTE": r"'a\nb'",
    }
    assert text(out) == "", "told twice"


def test_foreign_fields_replace_none_of_journald_or_ours() -> None:
    """A leading `_` is journald's own, MESSAGE and PRIORITY are ours; a traceback keeps its lines."""
    line = {
        "event": "log.message",
        "_PID": 1,
        "9lives": 2,
        "message": "m",
        "priority": 0,
        "a-b": "c",
        "exception": "x\ny",
    }
    got = fields_of(datagram(Line(40, json.dumps(line))))
    assert got["PRIORITY"] == "3"
    assert got["PRIORITY_"] == "0"
    assert got["MESSAGE_"] == "m"
    assert (got["PID"], got["LIVES"], got["A_B"], got["EXCEPTION"]) == ("1", "2", "c", "x\ny")
    assert all(re.fullmatch(r"[A-Z][A-Z0-9_]{0,63}", key) for key in got)


def test_a_restarted_journald_loses_no_line(begin: Begin, out: TextIO, journald: Journald) -> None:
    """It then has another socket."""
    sink = in_journal(begin, out, journald)
    log = get_logger()
    log.event("agent.late", n=1)
    assert journald.next()["N"] == "1"
    journald.stop()
    journald.start()
    log.event("agent.late", n=2)
    assert journald.next()["N"] == "2"
    assert sink.health().error is None


def test_without_journald_lines_go_to_stderr(begin: Begin, out: TextIO, journald: Journald) -> None:
    """With the priority before them; the journal later says what it lacks."""
    sink = in_journal(begin, out, journald)
    journald.stop()
    get_logger().event("agent.late", n=1)
    wait_for(lambda: text(out).count("\n") == 2)
    assert text(out).startswith('<3>{"event": "log.failed"')
    assert sink.health().error == "No such file or directory"
    journald.start()
    get_logger().event("agent.late", n=2)
    back = journald.next()
    assert (back["EVENT"], back["ELSEWHERE"]) == ("log.recovered", "1")
    assert journald.next()["N"] == "2"


def test_a_journald_that_does_not_read_blocks_no_caller(begin: Begin, out: TextIO, journald: Journald) -> None:
    """Its queue is full (SIGSTOP, a slow disk): lines wait in ours, and arrive in order."""
    in_journal(begin, out, journald)
    log = get_logger()
    for n in range(2000):
        log.event("agent.late", n=n, text="x" * 500)
    assert [int(journald.next()["N"]) for _ in range(2000)] == list(range(2000))


# -- hanging targets


class Stuck:
    """A target on a dead mount: neither a write nor a close returns."""

    name = "/dead/log"

    def __init__(self) -> None:
        self.gate = threading.Event()

    def write(self, line: Line, wait: Wait) -> None:
        self.gate.wait()

    def reopen(self) -> None:
        self.gate.wait()


class Later(Clock):
    """A minute later at each reading."""

    def mono(self) -> float:
        self.now_ = getattr(self, "now_", 0.0) + 60
        return float(self.now_)


def test_a_target_that_hangs_is_reported_once_on_the_fallback(out: TextIO) -> None:
    """And no caller waits, be it stuck in a write or in a close."""
    stuck, told = Stuck(), StreamTarget(out)
    sink = QueueHandler(stuck, told, clock=Later())
    record = logging.makeLogRecord({"msg": "x", "levelno": logging.INFO})
    sink.emit(record)
    wait_for(lambda: "its reader has stopped" in (sink.health().error or ""))
    for _ in range(3):
        sink.report_if_stuck()
        sink.emit(record)
    wait_for(lambda: "log.failed" in text(out))
    sink.finish(0.1)
    assert text(out).count("log.failed") == 1
    stuck.gate.set()

    closing = Stuck()
    sink = QueueHandler(closing, told)
    sink.reopen()
    for _ in range(3):
        sink.emit(record)  # at f87b3bd: waited for the lock under which the target was closed
    sink.finish(0.1)
    closing.gate.set()
