"""One daemon per runtime directory, state directory and registry; and how to reach the one that runs."""

import contextlib
import fcntl
import os
import shlex
import stat
import sys
from datetime import timedelta

from watchdog.config.paths import ensure_runtime, places_for
from watchdog.config.settings import Settings, sqlite_file
from watchdog.errors import AlreadyRunning, ConfigError, WatchdogError
from watchdog.telemetry.logger import EventLogger

LOCK = "agent-watchdogd.lock"


class PidFile:
    """A file with only a pid in it, locked by flock(2): the lock survives forks, and ends with a SIGKILL.

    So a file left by a crash is no obstacle, whatever its content: a power cut may leave zero bytes. Only its owner may
    read it: flock(2) asks for no more, so any reader could lock it and keep the next daemon from starting.
    """

    def __init__(self, path: str, advice: str = "") -> None:
        """Make and lock it. Raises AlreadyRunning, naming the pid; ConfigError if it cannot be made ours."""
        self.path = path
        self._advice = advice
        self._descriptor = self._lock()

    def fileno(self) -> int:
        """Its descriptor, which carries the lock."""
        return self._descriptor

    def write(self, pid: int) -> None:
        """Replace its content by that pid."""
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, b"%d\n" % pid, 0)

    def keep(self) -> bool:
        """Make and lock it again if it was removed or replaced; True if so. Raises as `__init__`."""
        if _lies_at(self.path, self._descriptor):
            return False
        new = self._lock()
        os.close(self._descriptor)
        self._descriptor = new
        self.write(os.getpid())
        return True

    def remove(self) -> None:
        """Remove it while it is still locked, unless another file is in its place."""
        if _lies_at(self.path, self._descriptor):
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self.release()
        self.close()

    def release(self) -> None:
        """Release the lock, whoever else has the descriptor.

        A thread that is stuck in the kernel keeps all descriptors of a process that has exited, and a forked child has
        copies: the next start would fail with "already running" (flock(2): LOCK_UN counts for all of them).
        """
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close this process's descriptor; the lock lasts until all processes have closed it, or until `release`."""
        os.close(self._descriptor)

    def _lock(self) -> int:
        while True:
            descriptor = _open(self.path)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                who = _pid_in(descriptor)
                os.close(descriptor)
                raise AlreadyRunning(f"already running (pid {who}): {self.path} is locked{self._advice}") from None
            if _lies_at(self.path, descriptor):
                return descriptor
            os.close(descriptor)  # an ending daemon removed it between our open and our lock


class InstanceLocks:
    """The locks that keep out a second daemon, and show others our pid. Cleaners may remove the runtime directory."""

    def __init__(self, settings: Settings, log: EventLogger, pid_file: PidFile | None = None) -> None:
        """Lock both directories and the registry's file. Raises AlreadyRunning.

        `pid_file` is already locked, and its creator closes it.
        """
        self._log = log
        self._closed = False
        self._directory = settings.runtime_dir
        socket = os.path.join(settings.runtime_dir, "control.sock")
        advice = f"; its socket is {socket}; talk to it: {client_path()} status{socket_option(settings)}"
        self._runtime = PidFile(os.path.join(settings.runtime_dir, LOCK), advice)
        self._taken = [self._runtime]
        self.had_registry = False  # a lock file was beside the registry before this start
        self._new: PidFile | None = None  # the one that this start has made there
        self._database = sqlite_file(settings.registry_url)
        try:
            if not os.path.samefile(settings.runtime_dir, settings.state_dir):
                # Its runtime directory is another one, or the lock above would have failed: we do not know its socket.
                advice = f"; its daemon.runtime_dir is not {settings.runtime_dir}; give each daemon its own state_dir"
                self._taken.append(PidFile(os.path.join(settings.state_dir, LOCK), advice))
            registry = registry_lock(settings)
            # otherwise opening it reports why
            if registry is not None and os.access(os.path.dirname(registry), os.W_OK):
                # Each would judge the other's agents by beats that it does not receive.
                advice = "; it uses the same registry; give each daemon its own registry.url"
                self.had_registry = os.path.lexists(registry)
                self._taken.append(PidFile(registry, advice))
                self._new = None if self.had_registry else self._taken[-1]
                if (pid := _by_another_name(self._database)) is not None:
                    who = f"{self._database} is in use under another name{advice}"
                    raise AlreadyRunning(f"already running (pid {pid}): {who}")
        except WatchdogError:
            self.close()
            raise
        for file in self._taken:
            file.write(os.getpid())
        self._kept = [self._runtime, *([pid_file] if pid_file is not None else [])]
        self._lost: set[str] = set()

    def keep(self) -> bool:
        """Whether the runtime directory is still ours, made again if need be; a loss is logged once.

        The state directory's lock is not made again: a directory that is missing for a moment (unmounted) must not be
        replaced by an empty one. Its lock holds wherever it is.
        """
        if self._closed:
            return False  # the check hung until the daemon's end
        for file in self._kept:
            try:
                if not os.path.exists(file.path):
                    ensure_runtime(self._directory)
                renewed = file.keep()
            except (OSError, WatchdogError) as error:
                if file.path not in self._lost:
                    self._lost.add(file.path)
                    self._log.event("lock.lost", file=file.path, why=str(error))
                continue
            self._lost.discard(file.path)
            if renewed:
                self._log.event("lock.renewed", file=file.path)
        return self._runtime.path not in self._lost

    def close(self) -> None:
        """Release all; the files stay, as another daemon may be waiting for them.

        Except the lock that a first start made beside a registry that it could not create: the next start would take it
        for the trace of a lost registry.
        """
        self._closed = True
        if self._new is not None and not os.path.isfile(self._database):
            self._taken.remove(self._new)
            self._new.remove()
        self.release()
        for file in self._taken:
            file.close()

    def release(self) -> None:
        """Release the locks but keep the descriptors open: for a forced exit, from any thread."""
        for file in self._taken:
            file.release()


def registry_lock(settings: Settings) -> str | None:
    """The lock beside the registry's file, by whichever path it is named; None: a server, which has its own lock."""
    file = sqlite_file(settings.registry_url)
    return f"{os.path.realpath(file)}.lock" if file else None


def user_of_registry(settings: Settings) -> str | None:
    """The pid of another daemon that has this registry open; None: none, or the daemon of these very settings.

    For `--check`: locks nothing, or a start at that moment would fail with "already running". /proc/locks (proc(5))
    lists the locks: number, kind, class, access, pid, device and inode.
    """
    path = registry_lock(settings)
    held = None if path is None else _holder(path) or _by_another_name(sqlite_file(settings.registry_url))
    own = os.path.join(settings.runtime_dir, LOCK)
    if not os.access(settings.runtime_dir, os.X_OK) and os.path.lexists(settings.runtime_dir):
        # the permissions of the directory were changed while that daemon runs
        own = os.path.join(settings.state_dir, LOCK)
    return None if held == _holder(own) else held


def _holder(path: str) -> str | None:
    """The pid in a lock file that is locked now."""
    try:
        found = os.lstat(path)
        with open("/proc/locks") as locks:
            inodes = {line.split()[5].rpartition(":")[2] for line in locks if " FLOCK " in line and "->" not in line}
        if str(found.st_ino) not in inodes:
            return None
        with open(path, "rb") as file:
            return _pid_in(file.fileno())
    except (OSError, IndexError, ValueError):
        return None


def _by_another_name(file: str) -> str | None:
    """The pid of the process that has a database open of which this is one of several names (hard links).

    Each name has its own lock of ours beside it, and its own WAL, by which two daemons would damage it. A process that
    has a database open in WAL mode holds a lock of SQLite on the file itself. A second name alone, as of a backup, is
    no fault.
    """
    try:
        found = os.lstat(file)
        if found.st_nlink < 2:
            return None
        with open("/proc/locks") as locks:
            held = [line.split() for line in locks if " POSIX " in line and "->" not in line]
    except OSError:
        return None
    users = (one[4] for one in held if len(one) > 5 and one[5].rpartition(":")[2] == str(found.st_ino))
    return next((pid for pid in users if pid.isdigit() and int(pid) != os.getpid()), None)


def _pid_in(descriptor: int) -> str:
    """The pid that its holder wrote; before that the content is arbitrary."""
    word = os.pread(descriptor, 32, 0).strip()
    return word.decode() if word.isdigit() else "not told yet"


def _lies_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(descriptor))
    except OSError:
        return False


def _open(path: str) -> int:
    """Open or make it. Raises ConfigError for a file that is not a pid file of ours: it would be overwritten."""
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
    except OSError as error:
        own = "chmod 600 it" if os.path.isfile(path) else "put it in a directory of the daemon's own uid"
        raise ConfigError([f"{path}: {error.strerror}; {own}"]) from None
    found = os.fstat(descriptor)
    is_ours = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and found.st_nlink <= 1
    if not is_ours or not (path.endswith((".pid", ".lock")) or _holds_a_pid(descriptor)):
        os.close(descriptor)
        raise ConfigError([f"{path}: is something else than a pid file of uid {os.geteuid()}"])
    os.fchmod(descriptor, 0o600)
    return descriptor


def _holds_a_pid(descriptor: int) -> bool:
    """Whether that file contains a pid, or the remains of one after a crash: nothing, or zero bytes.

    Checked where the name is the user's: a typing error in `--pidfile` must not cost a file.
    """
    return (os.pread(descriptor, 32, 0).strip(b"\0 \n") or b"0").isdigit()


def client_path() -> str:
    """The client beside this daemon, quoted for a shell."""
    return shlex.quote(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "agent-watchdog"))


def socket_option(settings: Settings) -> str:
    """` --socket PATH` if the client would not find this daemon by itself."""
    default = places_for(os.geteuid(), os.environ).runtime_dir
    return "" if settings.runtime_dir == default else f" --socket {shlex.quote(settings.runtime_dir)}/control.sock"


def console_hint(settings: Settings) -> str:
    """The lines to paste into a second terminal, with full paths; they can be repeated.

    An agent without a name gets a free one.
    """
    option, mode = socket_option(settings), " (it only observes)" if settings.observe else ""
    every = settings.interval / timedelta(seconds=1)
    return (
        f"agent-watchdogd watches{mode}, every {every:g} s. In another terminal:\n"
        f"  {client_path()} run{option} -- sleep 600 &\n"
        f"  {client_path()} list{option}"
    )
