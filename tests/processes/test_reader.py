"""The reader: one process whose files hang holds up nobody, and a reader that says nothing is given up.

It reads a directory of ours that looks like /proc, in which a FIFO without a writer stands for a file that hangs. The
real ones: tests/faults/rows/hung.py.
"""

import asyncio
import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.processes.conftest import HOST, Family, known, until
from watchdog.core.process import Identity, Presence
from watchdog.core.users import Range, UserMap
from watchdog.errors import SignalRefused
from watchdog.processes import bounded, procfs, reader, reader_main, snapshot, table
from watchdog.processes import identity as identities
from watchdog.processes.bounded import LookFailed, Unreadable
from watchdog.processes.reader import Reader
from watchdog.processes.signals import Guard, SendResult, SignalTarget, send

FIRST = 5_000_000  # pids that no kernel gives out
CODE = """
from watchdog.processes import procfs
procfs.PROC = {proc!r}
from watchdog.processes import reader_main
reader_main.OF_ONE_USER, reader_main.OF_ALL = {of_one}, {of_all}
reader_main.main()
"""
LINE = "{pid} (a) S 1 {pid} {pid} 0 -1 4194304 1 0 0 0 1 1 0 0 20 0 1 0 7 0 9 0"


class Proc:
    """A directory that looks like /proc, and a reader that reads it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.reader: Reader | None = None

    def start(self, of_one: int = 256, of_all: int = 512) -> Reader:
        code = CODE.format(proc=str(self.directory), of_one=of_one, of_all=of_all)
        self.reader = Reader((sys.executable, "-c", code))
        bounded.use(self.reader)
        until(self.answers, "it takes questions")
        return self.reader

    def answers(self) -> bool:
        """Whether it has started."""
        assert self.reader is not None
        with suppress(LookFailed):
            return bool(self.reader.ask("hung", ()) == {})
        return False

    def process(self, pid: int) -> None:
        """One that can be read."""
        (self.directory / str(pid)).mkdir()
        (self.directory / str(pid) / "stat").write_text(LINE.format(pid=pid))

    def hang(self, pid: int) -> None:
        """From now on, or from the start, its stat line hangs."""
        file = self.directory / str(pid) / "stat"
        file.parent.mkdir(exist_ok=True)
        file.unlink(missing_ok=True)
        os.mkfifo(file)

    def release(self, pid: int) -> None:
        """Reads that hang return, with nothing; later ones find a line."""
        file = self.directory / str(pid) / "stat"
        os.rename(file, file.with_name("former"))
        file.write_text(LINE.format(pid=pid))
        os.close(os.open(file.with_name("former"), os.O_RDWR | os.O_NONBLOCK))


@pytest.fixture
def proc(tmp_path: Path) -> Iterator[Proc]:
    made = Proc(tmp_path)
    yield made
    bounded.use(None)
    if made.reader is not None:
        made.reader.close()


def took(look: Callable[[], object]) -> float:
    began = time.monotonic()
    with suppress(LookFailed):
        look()
    return time.monotonic() - began


def test_a_read_that_hangs_is_given_up_and_told_and_not_made_again(proc: Proc) -> None:
    """At once from the second time on; others go on; when it returns it is read again."""
    found = proc.start()
    proc.process(FIRST)
    proc.hang(FIRST + 1)
    assert procfs.stat(FIRST).pid == FIRST
    with pytest.raises(Unreadable) as failure:
        procfs.stat(FIRST + 1)
    assert (failure.value.pid, failure.value.file, failure.value.errno) == (FIRST + 1, "stat", errno.ETIMEDOUT)
    assert [one[:3] for one in found.hung.values()] == [(FIRST + 1, "stat", os.getuid())]
    for _ in range(40):
        with pytest.raises(Unreadable):
            procfs.stat(FIRST + 1)
    assert _threads(found) < 20, "each try took a thread"
    assert procfs.stat(FIRST).pid == FIRST
    proc.release(FIRST + 1)
    until(lambda: _reads(FIRST + 1), "it can be read again")
    assert found.hung == {}


def test_a_scan_steps_over_those_that_hang(proc: Proc) -> None:
    """60 of 100; the others are all there."""
    proc.start()
    for number in range(100):
        proc.hang(FIRST + number) if number % 5 < 3 else proc.process(FIRST + number)
    seen = table.table(HOST, frozenset(), os.getpid())
    assert set(seen.rows) == {FIRST + number for number in range(100) if number % 5 >= 3}
    assert seen.unreadable == {FIRST + number for number in range(100) if number % 5 < 3}
    assert set(bounded.hung()) == seen.unreadable


def test_of_one_user_only_so_many_hold_a_thread(proc: Proc) -> None:
    """The others are not asked, but told; who was read before is."""
    found = proc.start(of_one=5)
    for number in range(3):
        proc.process(FIRST + number)
    table.table(HOST, frozenset(), os.getpid())
    for number in range(3, 90):
        proc.hang(FIRST + number)
    seen = table.table(HOST, frozenset(), os.getpid())
    assert set(seen.rows) == {FIRST, FIRST + 1, FIRST + 2}
    assert set(found.hung) == seen.unreadable == {FIRST + number for number in range(3, 90)}
    assert _threads(found) < 60, "at most as many more as go on at once within the patience"
    for number in range(3, 90):
        proc.release(FIRST + number)
    until(lambda: len(table.table(HOST, frozenset(), os.getpid()).rows) == 90, "all can be read")
    assert found.hung == {}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: files of other uids")
def test_users_of_whom_none_hangs_are_read_whatever_others_do(proc: Proc) -> None:
    """Also those that were not read before, and root's; sub-uids count for their user."""
    found = proc.start(of_one=4, of_all=8)
    found.share(UserMap([Range(100_000, 65_536, 1001)]))

    def of(uid: int, pid: int, *, hangs: bool) -> int:
        (proc.hang if hangs else proc.process)(pid)
        os.chown(proc.directory / str(pid), uid, uid)
        return pid

    hostile = (*range(100_000, 100_010), 1002)
    for number in range(99):
        with suppress(Unreadable):
            procfs.stat(of(hostile[number % len(hostile)], FIRST + number, hangs=True))
    assert procfs.stat(of(1003, FIRST + 200, hangs=False)).pid == FIRST + 200
    assert procfs.stat(of(0, FIRST + 201, hangs=False)).pid == FIRST + 201
    for uid in hostile:
        with pytest.raises(Unreadable):
            procfs.stat(of(uid, FIRST + 300 + hostile.index(uid), hangs=False))


def test_one_of_which_each_read_takes_long_is_not_read_for_a_while(proc: Proc) -> None:
    """Each of them below what counts as hanging. Others are read, and so is it when its time is over."""
    proc.start()
    proc.process(FIRST)
    proc.hang(FIRST + 1)
    fifo = proc.directory / str(FIRST + 1) / "stat"
    over = threading.Event()

    def breathe() -> None:
        while not over.is_set():
            writer = os.open(fifo, os.O_WRONLY)  # waits for a reader
            time.sleep(0.11)
            with suppress(BrokenPipeError):  # whoever waited for it on a busy machine has been given up meanwhile
                os.write(writer, LINE.format(pid=FIRST + 1).encode())
            os.close(writer)
            time.sleep(0.01)

    breathing = threading.Thread(target=breathe)
    breathing.start()
    reads = 0
    with pytest.raises(Unreadable):
        for _ in range(40):
            with suppress(ValueError):  # it opened the FIFO before the last line's writer had closed it: nothing came
                procfs.stat(FIRST + 1)
                reads += 1
    assert 2 <= reads < 19
    assert took(lambda: procfs.stat(FIRST + 1)) < 0.09
    assert procfs.stat(FIRST).pid == FIRST
    until(lambda: _is_read(FIRST + 1), "it is read again")
    over.set()
    with suppress(Unreadable, ValueError):
        procfs.stat(FIRST + 1)
    os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))
    breathing.join()


def test_of_a_user_of_whom_many_let_reads_take_long_each_further_one_rests_after_its_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three long reads of each of 150 kept root's kill from all else for 10 s. Root's own are never a crowd."""
    users = {FIRST: 61101, 2 * FIRST: 61102, 3 * FIRST: 0}
    monkeypatch.setattr(reader_main, "uid_of", lambda pid, _: users[pid // FIRST * FIRST])
    monkeypatch.setattr(bounded, "slow", {})
    crew = reader_main.Crew()
    for number in range(2 * reader_main.CROWD):
        for first in users:
            if first != 2 * FIRST or number < reader_main.CROWD:  # one of these users has no more
                crew._note_slow(first + number)
    assert bounded.slow.keys() == {FIRST + number for number in range(reader_main.CROWD, 2 * reader_main.CROWD)}
    for _ in range(reader_main.SLOW - 1):
        crew._note_slow(FIRST)
    assert FIRST in bounded.slow


def _is_read(pid: int) -> bool:
    """Whether it is asked for, whatever comes."""
    try:
        procfs.stat(pid)
    except ValueError:
        return True
    except LookFailed:
        return False
    return True


def test_what_many_ask_at_once_is_answered_to_each(proc: Proc) -> None:
    """Threads and the loop share one reader; a read that hangs holds up its own asker alone."""
    proc.start()
    proc.hang(FIRST)
    for number in range(1, 9):
        proc.process(FIRST + number)
    answers: list[int] = []

    def ask(pid: int) -> None:
        for _ in range(25):
            answers.append(procfs.stat(pid).pid)

    threads = [threading.Thread(target=ask, args=(FIRST + number,)) for number in range(1, 9)]
    for thread in threads:
        thread.start()
    with pytest.raises(Unreadable):
        procfs.stat(FIRST)
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(FIRST + number for number in range(1, 9) for _ in range(25))


def test_a_reader_that_ends_is_replaced(proc: Proc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed by somebody: a look or two fail, then another one reads."""
    monkeypatch.setattr(reader, "AGAIN", 0.0)
    found = proc.start()
    proc.process(FIRST)
    assert procfs.stat(FIRST).pid == FIRST
    former = found.pid
    assert former is not None
    os.kill(former, signal.SIGKILL)
    until(lambda: _reads(FIRST), "another reader")
    assert found.pid not in (None, former)


@pytest.mark.parametrize("by", ["ask", "call"])
def test_a_reader_that_says_nothing_is_given_up(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped, or stuck as a whole: killed, not waited for; nothing is known meanwhile."""
    monkeypatch.setattr(reader, "START", 0.0)
    monkeypatch.setattr(reader, "ANSWER", 0.2)
    monkeypatch.setattr(reader, "SCAN", 0.2)
    found = Reader((sys.executable, "-c", "import time; time.sleep(1000)"))
    bounded.use(found)
    try:
        with pytest.raises(LookFailed, match="does not answer"):
            procfs.stat(1) if by == "ask" else asyncio.run(reader.awaited(None, procfs.stat, 1))
        assert found.pid is None
        with pytest.raises(LookFailed, match="in a second"):
            procfs.stat(1)
    finally:
        bounded.use(None)
        found.close()


def test_a_reader_that_cannot_be_started_is_a_failed_look() -> None:
    """Never "gone"."""
    found = Reader(("/nonexistent",))
    bounded.use(found)
    try:
        identity = Identity(HOST, identities.boot_id(), os.getpid(), 1)
        assert identities.presence(identity, None) is Presence.UNKNOWN
    finally:
        bounded.use(None)
        found.close()


def test_its_end_is_the_daemons_end(proc: Proc) -> None:
    """Also with a thread that is stuck for ever."""
    found = proc.start()
    proc.hang(FIRST)
    with pytest.raises(Unreadable):
        procfs.stat(FIRST)
    pid = found.pid
    assert pid is not None
    identity = Identity(HOST, identities.boot_id(), pid, _start_of(pid))
    bounded.use(None)
    fd = identities.pin(identity)
    assert fd is not None
    assert found._control is not None
    found._control.close()  # as the kernel does when the daemon is killed
    until(lambda: identities.ended(fd), "it has ended")
    os.close(fd)


def test_the_reader_says_of_the_real_proc_what_is_said_here(family: Family) -> None:
    """Whole identities, and errors as they are."""
    child = family.start("sleep", "300")
    here = identities.read_identity(child.pid, HOST)
    found = Reader()
    bounded.use(found)
    try:
        until(lambda: _reads(os.getpid()), "it takes questions")
        assert identities.read_identity(child.pid, HOST) == here
        assert procfs.stats((child.pid, FIRST)).keys() == {child.pid, FIRST}
        with pytest.raises(FileNotFoundError):
            procfs.stat(FIRST)
        assert snapshot.snapshot([]) == {"processes": [], "omitted": 0}
    finally:
        bounded.use(None)
        found.close()


@pytest.mark.usefixtures("inodes")
def test_one_that_hangs_is_signalled_by_the_pinned_pidfd_and_no_other_way(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pinned while it could be read: it gets the signal. Never pinned: refused, and a spared name is spared."""
    child, other = family.start("sleep", "300"), family.start("sleep", "300")
    identity = known(child.pid)
    pin, wrong = identities.pin(identity), identities.pin(known(other.pid))
    assert pin is not None and wrong is not None

    def hang(pid: int) -> procfs.Stat:
        raise Unreadable(pid, "stat")

    monkeypatch.setattr(procfs, "stat", hang)
    for pidfd in (None, wrong):
        with pytest.raises(SignalRefused) as refusal:
            send(identity, signal.SIGTERM, Guard(HOST), pidfd)
        assert refusal.value.reason == "unreadable"
    spares = Guard(HOST, spare=frozenset({"tmux: server"}))
    with pytest.raises(SignalRefused) as refusal:
        send(identity, signal.SIGTERM, spares, pin, SignalTarget(name="tmux: server"))
    assert refusal.value.reason == "spared"
    assert send(identity, signal.SIGTERM, spares, pin, SignalTarget(name="sleep")) is SendResult.SENT
    assert child.wait(60) == -signal.SIGTERM
    assert send(identity, signal.SIGKILL, spares, pin, SignalTarget(name="sleep")) is SendResult.GONE
    os.close(pin)
    os.close(wrong)


def _reads(pid: int) -> bool:
    with suppress(LookFailed):
        return procfs.stat(pid).pid == pid
    return False


def _threads(found: Reader) -> int:
    return len(os.listdir(f"/proc/{found.pid}/task"))


def _start_of(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        return int(stat.read().rpartition(")")[2].split()[19])
