"""The reader: the daemon's child that reads files of single processes, each of which may hang (`bounded`).

Started by `reader`; exits when the daemon's end of its socket is closed. It holds no lock, database or socket of the
daemon. Its main thread never reads such a file: it accepts requests, and every `TICK` checks the threads that do.

- A thread that is in the same system call for `PATIENCE` ticks is abandoned: its process and file are Unreadable and
  not read again before that call has returned, and another thread continues its work. Ticks are counted instead of
  seconds, because a reader that did not get to run has not waited.
- For a series of processes (`each`) one thread is enough while none hangs. When one does not return within a tick, as
  many threads are added as are stuck: 200 hung processes cost half a second, once.
- A process whose reads take nearly that long is skipped for `REST` seconds after each third such read: a scan reads a
  process several times, a kill scans several times, and others wait for both. For a user with `CROWD` such processes
  lately, further ones are skipped after their first slow read.
- A thread stuck for ever counts towards the unit's TasksMax. So `OF_ONE_USER` may be stuck with processes of one user,
  `OF_ALL` with all; beyond that, processes that were not read before count as hung without a try. `KEPT` more are
  reserved for root's and the daemon's own, half of them also for users with no hung process: these can always be
  registered and killed.

Tests: tests/processes/test_reader.py.
"""

import errno
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from watchdog.clock import Clock
from watchdog.core.users import Range, UserMap
from watchdog.processes import bounded as bounds
from watchdog.processes import identity as identities
from watchdog.processes import pidfd_info
from watchdog.processes.bounded import Hung, ThreadRead, Unreadable
from watchdog.processes.procfs import PROC

TICK = 0.05  # seconds
PATIENCE = 3  # ticks in one system call: 100 to 150 ms; a read that does not hang takes 10 to 100 µs
SLOW = 3  # reads that took a tick or longer within `WITHIN` seconds: an execve on a busy host causes one or two
WITHIN, REST = 10.0, 5.0
CROWD = 32  # processes of one user with such a read within `WITHIN`
AT_ONCE = 64  # threads that work concurrently for one `each`
OF_ONE_USER = 256  # stuck threads; 20 KiB each
OF_ALL = 512
KEPT = 64  # reserved beyond that
STACK = 256 * 1024  # bytes; the deepest call here needs a few KB of it
SPARE = 4  # idle threads that are kept
CLOSED = -2  # value of `pidfd` when the read is no longer stuck, or its process has exited
LENGTH = struct.Struct("!I")


class _Stuck:
    """One read that has not returned, and its process."""

    def __init__(self, pid: int, file: str) -> None:
        self.pidfd = _pidfd_of(pid)
        self.hung = Hung(pid, file, uid_of(pid, self.pidfd), _clock.mono())
        self.user = users.of(self.hung.uid)

    @property
    def gone(self) -> bool:
        """Whether its process has exited: then its pid may be another's, whose files may be read."""
        if self.pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
        self.pidfd = CLOSED


class _Users:
    """Which user a uid counts for, as published by the daemon (`Reader.share`)."""

    def __init__(self) -> None:
        self.file = -1
        self._read = 0
        self._map = UserMap()

    def of(self, uid: int) -> int:
        """The user's uid; the uid itself while nothing is published."""
        if self.file >= 0:
            version, count = bounds.HEAD.unpack(os.pread(self.file, bounds.HEAD.size, 0).ljust(bounds.HEAD.size, b"\0"))
            if version != self._read:
                data = os.pread(self.file, count * bounds.RANGE.size, bounds.HEAD.size)
                self._read, self._map = version, UserMap(Range(*one) for one in bounds.RANGE.iter_unpack(data))
        return self._map.user_of(uid)


def _pidfd_of(pid: int) -> int:
    """A pidfd, or -1 if there is none."""
    try:
        found = identities.open_pidfd(pid)
    except OSError:
        return -1
    return -1 if found is None else found


def uid_of(pid: int, pidfd: int) -> int:
    """A process's uid without reading its files: its real uid, else the owner of /proc/PID; -1 when it is gone."""
    known = pidfd_info.info(pidfd) if pidfd >= 0 else None
    if known is not None and known.uids is not None:
        return known.uids.real
    try:
        return os.stat(f"{PROC}/{pid}").st_uid  # stat(2) of the directory takes no lock
    except OSError:
        return -1


class _Worker(threading.Thread):
    """Runs one task after another, until it is abandoned in a system call that hangs."""

    def __init__(self, crew: "Crew") -> None:
        super().__init__(daemon=True)
        self._crew = crew
        self.place = ThreadRead()
        self.left = False  # it was abandoned: another thread has its task
        self.task: _Task | None = None
        self.seen = -1  # the step at the last tick
        self.ticks = 0  # ticks that it has been in that step

    def run(self) -> None:
        bounds.here.place = self.place
        while self._crew.waits(self):
            task = self._crew.tasks.get()
            self.task, self.ticks = task, 0
            task.run(self)
            self.task = None
            self.place.pid = 0
            self._crew.finished(self)
        self._crew.returned(self)

    def still_in_it(self) -> bool:
        """Whether it is in the same system call as at the last tick and is blocked there."""
        if self.place.pid == 0 or self.place.step != self.seen:
            self.seen, self.ticks = self.place.step, 0
            return False
        try:
            with open(f"{PROC}/self/task/{self.native_id}/stat", "rb") as stat:
                runs = stat.read().rpartition(b")")[2].split()[0] == b"R"  # runnable, so only waiting for a CPU
        except OSError:
            runs = False
        self.ticks += not runs
        return self.ticks > 0


class _Task:
    """The work of a worker; `give_up` is called instead when the worker is abandoned."""

    def run(self, worker: _Worker) -> None:
        raise NotImplementedError

    def slow(self) -> None:
        """Called while its worker is blocked in a system call."""

    def give_up(self, worker: _Worker, error: Unreadable) -> None:
        raise NotImplementedError


class Crew:
    """The threads that read."""

    def __init__(self) -> None:
        self.tasks: SimpleQueue[_Task] = SimpleQueue()
        self.lock = threading.Lock()
        self.idle = 0  # waiting threads minus waiting tasks
        self.active = 0  # unfinished tasks whose thread is not abandoned
        self.version = 0  # counts changes of what is stuck
        self._slow: dict[int, list[float]] = {}  # by pid, when its last few slow reads began to block
        self._slow_of: dict[int, int] = {}  # by pid, the user of each of these
        self._workers: set[_Worker] = set()
        self._stuck: dict[_Worker, _Stuck] = {}
        self._of_user: Counter[int] = Counter()  # number of stuck reads by user

    def do(self, task: _Task) -> None:
        """Give the task to a thread. Raises RuntimeError if none can be started."""
        with self.lock:
            self.idle -= 1
            if self.idle < 0:
                worker = _Worker(self)
                self._workers.add(worker)
                try:
                    worker.start()
                except RuntimeError:
                    self._workers.discard(worker)
                    self.idle += 1
                    raise
            self.active += 1
        self.tasks.put(task)

    def waits(self, worker: _Worker) -> bool:
        """Whether that thread is to wait for a task; otherwise it exits."""
        with self.lock:
            waits = not worker.left and self.idle < SPARE
            self.idle += waits
            return waits

    def finished(self, worker: _Worker) -> None:
        """Record that its task is done."""
        with self.lock:
            self.active -= not worker.left

    def tick(self) -> None:
        """Check each thread, and abandon those that hang."""
        for worker in list(self._workers):
            task = worker.task
            if task is None or worker.left or not worker.still_in_it():
                continue
            task.slow()
            if worker.ticks == 1:
                self._note_slow(worker.place.pid)
            if worker.ticks < PATIENCE:
                continue
            with self.lock:
                pid, file = worker.place.pid, worker.place.file
                if worker.task is not task or pid == 0 or worker.place.step != worker.seen:
                    continue  # it has just returned
                worker.left = True
                self.active -= 1
                self._stuck[worker] = stuck = _Stuck(pid, file)
                self._of_user[stuck.user] += 1
                bounds.skipped[pid, file] = stuck
                self.version += 1
            task.give_up(worker, Unreadable(pid, file))

    def _note_slow(self, pid: int) -> None:
        now = _clock.mono()
        self._slow = {one: [at for at in those if now - at < WITHIN] for one, those in self._slow.items()}
        self._slow = {one: those for one, those in self._slow.items() if those}
        those = self._slow.setdefault(pid, [])
        those.append(now)
        if len(those) >= (1 if self._in_crowd(pid) else SLOW):
            del those[: 1 - SLOW]
            bounds.slow = {one: until for one, until in bounds.slow.items() if until > now} | {pid: now + REST}

    def _in_crowd(self, pid: int) -> bool:
        """Whether so many processes of its user were slow lately that three slow reads of each would take too long."""
        self._slow_of = {one: user for one, user in self._slow_of.items() if one in self._slow and one != pid}
        pidfd = _pidfd_of(pid)
        user = users.of(uid_of(pid, pidfd))
        if pidfd >= 0:
            os.close(pidfd)
        others = sum(one == user for one in self._slow_of.values())
        self._slow_of[pid] = user
        return others >= CROWD and user not in (0, os.geteuid())

    def returned(self, worker: _Worker) -> None:
        """Record that a thread's hung read has returned: its process may be read again."""
        with self.lock:
            self._workers.discard(worker)
            stuck = self._stuck.pop(worker, None)
            if stuck is not None:
                self._of_user[stuck.user] -= 1
                self._drop(stuck)

    def hung(self) -> dict[int, Hung]:
        """The processes that cannot be read; without those that have exited, even if their read still hangs."""
        with self.lock:
            for stuck in self._stuck.values():
                if stuck.gone:
                    self._drop(stuck)
            for pid in [*bounds.refused]:
                if not os.path.exists(f"{PROC}/{pid}"):
                    self._allow(pid)
            return bounds.refused | {one.hung.pid: one.hung for one in self._stuck.values() if one.pidfd != CLOSED}

    def _drop(self, stuck: _Stuck) -> None:
        if bounds.skipped.get(stuck.hung[:2]) is stuck:
            del bounds.skipped[stuck.hung[:2]]
            self.version += 1
        stuck.close()

    def refuse(self, pid: int, file: str) -> bool:
        """Whether a process must not be read, as too many threads are stuck with its user's processes, or with all.

        A process that the last scan could read is still read up to `OF_ALL`, and always if no process of its user
        hangs.
        """
        stuck, known = len(self._stuck), pid in bounds.readable
        if stuck < OF_ONE_USER or (known and stuck < OF_ALL):
            self._allow(pid)
            return False
        pidfd = _pidfd_of(pid)
        uid = uid_of(pid, pidfd)
        if pidfd >= 0:
            os.close(pidfd)
        if self._has_room(uid, stuck, known=known):
            self._allow(pid)
            return False
        if pid not in bounds.refused:
            bounds.refused[pid] = Hung(pid, file, uid, _clock.mono())
            self.version += 1
        return True

    def _has_room(self, uid: int, stuck: int, *, known: bool) -> bool:
        """Whether one more thread may get stuck with a process of that uid, when `stuck` are already."""
        mine = self._of_user[users.of(uid)]
        if stuck < OF_ALL:
            return mine < OF_ONE_USER
        if uid in (0, os.geteuid()):
            return stuck < OF_ALL + KEPT
        return not mine and (known or stuck < OF_ALL + KEPT // 2)

    def _allow(self, pid: int) -> None:
        if bounds.refused and bounds.refused.pop(pid, None) is not None:
            self.version += 1

    def each(self, keys: Iterable[int], work: Callable[[int], Any]) -> dict[int, Any]:
        """`bounded.each`, with as many threads as needed."""
        batch = _Batch(self, list(keys), work)
        if batch.keys:
            batch.begin()
            batch.done.wait()
        return batch.found


class _Batch(_Task):
    """The same work for many keys; each of its threads takes the next one."""

    def __init__(self, crew: Crew, keys: list[int], work: Callable[[int], Any]) -> None:
        self.keys = keys
        self.found: dict[int, Any] = {}
        self.done = threading.Event()
        self._crew = crew
        self._work = work
        self._left: Iterator[int] = iter(keys)
        self._doing: dict[_Worker, int] = {}
        self._running = 0  # threads that are not abandoned
        self._lost = 0  # threads that are

    def begin(self) -> None:
        self._running += 1
        try:
            self._crew.do(self)
        except RuntimeError as error:
            self._running -= 1
            raise OSError(f"no thread can be started: {error}") from error

    def run(self, worker: _Worker) -> None:
        key = self._next(worker)
        while key is not None:
            found = bounds.outcome(self._work, key)
            with self._crew.lock:
                if worker.left:
                    return
                self.found[key] = found
            key = self._next(worker)
        self._end(worker)

    def _next(self, worker: _Worker) -> int | None:
        with self._crew.lock:
            key = next(self._left, None)
            if key is not None:
                self._doing[worker] = key
            return key

    def _end(self, worker: _Worker) -> None:
        with self._crew.lock:
            self._doing.pop(worker, None)
            self._running -= 1
            if self._running == 0:
                for key in self._left:  # no thread could be started to continue
                    self.found[key] = OSError(errno.EAGAIN, "no thread can be started")
                self.done.set()

    def slow(self) -> None:
        with self._crew.lock:
            waiting = sum(worker.ticks > 0 for worker in self._doing)
            wanted = min(AT_ONCE, waiting + self._lost) - (self._running - waiting)
            wanted = min(wanted, len(self.keys) - len(self.found) - len(self._doing))
        for _ in range(wanted):
            try:
                self.begin()
            except OSError:
                return

    def give_up(self, worker: _Worker, error: Unreadable) -> None:
        with self._crew.lock:
            self.found[self._doing[worker]] = error
            self._lost += 1
        self._end(worker)


class _Call(_Task):
    """One request of the daemon on its own socket: a function and its arguments, then the answer."""

    def __init__(self, crew: Crew, connection: socket.socket) -> None:
        self._crew = crew
        self._connection = connection

    def run(self, worker: _Worker) -> None:
        with suppress(OSError, EOFError):
            name, args = pickle.loads(self._request())  # noqa: S301 - the daemon wrote it
            self._answer(worker, *self._outcome(name, args))

    def _outcome(self, name: str, args: tuple[Any, ...]) -> tuple[bool, object]:
        try:
            return True, function(name)(*args)
        except Exception as error:  # noqa: BLE001 - passed on to the caller
            return False, error

    def _request(self) -> bytes:
        size = LENGTH.unpack(self._read(LENGTH.size))[0]
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._connection.recv(size - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def _answer(self, worker: _Worker, well: bool, value: object) -> None:
        worker.place.pid = 0
        with self._crew.lock:
            if worker.left:
                return
            worker.task = None  # from here on it is not abandoned
        self._send(well, value)

    def _send(self, well: bool, value: object) -> None:
        with suppress(OSError), self._connection:
            self._connection.sendall(pickle.dumps((self._crew.version, well, value), pickle.HIGHEST_PROTOCOL))

    def give_up(self, worker: _Worker, error: Unreadable) -> None:
        self._send(False, error)


def function(name: str) -> Callable[..., Any]:
    """A bounded function of this package by name, or `hung`. Raises LookupError."""
    module, _, rest = name.partition(".")
    if name == "hung":
        return _crew.hung
    found = getattr(importlib.import_module(f"watchdog.processes.{module}"), rest, None)
    if not callable(found):
        raise LookupError(name)
    return found  # type: ignore[no-any-return] # what getattr gives


_clock = Clock()
users = _Users()
_crew = Crew()


def serve(control: socket.socket) -> None:
    """Serve requests until the daemon's end is closed."""
    bounds.crew, bounds.refuse = _crew.each, _crew.refuse
    threading.stack_size(STACK)
    control.setblocking(False)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    ticked = 0.0
    while True:
        if poll.poll(TICK * 1000 if _crew.active else None):
            data, fds, _, _ = socket.recv_fds(control, 1, 1)
            if not data:
                return
            for fd in fds:
                connection = socket.socket(fileno=fd)
                try:
                    _crew.do(_Call(_crew, connection))
                except RuntimeError:  # no thread: the caller sees its socket closed, and nothing is known
                    connection.close()
        if (now := _clock.mono()) - ticked >= TICK * 0.9:
            ticked = now
            _crew.tick()


def main() -> None:
    """Started by the daemon with two arguments: the descriptors of its socket and of the user map."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it exits when the daemon does
    users.file = int(sys.argv[2]) if len(sys.argv) > 2 else -1
    with suppress(OSError):
        serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # does not wait for stuck threads


if __name__ == "__main__":
    main()
