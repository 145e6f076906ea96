"""SQLite: its connections, and whether the three files of an open registry are still the ones that were opened.

SQLite silently keeps writing to files that have been removed: to a database that no restart would ever find, or to a
`-wal` that disappears with the last process that has it open. So the device and inode of each file are checked before
each transaction.

- The database itself was removed or replaced: refused until it is put back. Which of the two is right is unknown.
- Its `-wal` or `-shm` was: the files that we hold open have everything. They are checkpointed into the database, and
  both are created again. One connection stays open as long as the registry is, so that SQLite never removes them.
"""

import errno
import os
import sqlite3
import stat
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.pool import QueuePool

from watchdog.errors import RegistryUnavailable, UnsafeDirectory

# Errors that no retry cures: the path is a directory, a link or a socket, or a file stands in place of a directory.
_NEVER_A_FILE = (errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.ENAMETOOLONG)
# The cure, as part of the message: the log line of the failed start may be all that a person sees.
_OPENED_BY = {
    errno.EACCES: "; run chmod 600 {0}, 700 for its directory",
    errno.EROFS: "; remount its disk for writing",
    errno.ENOSPC: "; free some space on its disk",
}
# Bytes that the write-ahead log has from the start. SQLite reuses it from its beginning after each checkpoint (every
# 4 MB), so on a full disk some dozens of kills can still be committed, and no other program can take that room.
WAL_ROOM = 8 << 20
DAMAGE = ("SQLITE_CORRUPT", "SQLITE_NOTADB")  # sqlite.org/rescode.html; any other failure may pass
PART = 8  # at most 1/8 of a small file system
CACHE_KB = 256  # of pages, for each connection (SQLite's default: 2,000; seven connections took 12 MB as the file grew)


def advice(name: str) -> str:
    """What to add to SQLite's message: no retry repairs a damaged file, and only a start checks for damage."""
    if not name.startswith(DAMAGE):
        return ""
    return "; the file is damaged: restart the daemon, which moves it aside, creates a new one and continues"


def make_engine(path: str, busy_timeout: timedelta, pragma: str, begin: str) -> Engine:
    """An engine with one kind of connection."""
    engine = create_engine(
        "sqlite://",
        creator=lambda: _connect(path, busy_timeout, pragma),
        poolclass=QueuePool,  # not the default for this URL, which names no file
        pool_size=2,
        max_overflow=2,
        pool_timeout=busy_timeout.total_seconds() + 1,
    )
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
    return engine


class Files:
    """The database, its `-wal` and its `-shm`, as they were opened."""

    def __init__(self, path: str, busy_timeout: timedelta, engines: tuple[Engine, ...]) -> None:
        self._path = path
        self._busy_timeout = busy_timeout
        self._engines = engines
        self._opened: tuple[int, int] | None = None  # the database
        self._beside: tuple[tuple[int, int] | None, ...] = ()  # the other two
        self._anchor: sqlite3.Connection | None = None
        self._anchors = 0  # made so far
        self._lock = threading.Lock()
        self._users = 0  # transactions that are open

    def make(self) -> None:
        """Create the file for its owner only (SQLite gives the other two the same mode).

        The other two may exist already: a reader of a registry with mode 0444 creates both with that mode, and after
        the registry's mode is repaired they make each write fail with SQLITE_READONLY. They get the mode of the first.

        Raises RegistryUnavailable, and UnsafeDirectory for what is not a file of ours.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            if error.errno in _NEVER_A_FILE:
                raise UnsafeDirectory(f"registry {self._path}: {error.strerror}; use the path of a file") from None
            right = _OPENED_BY.get(error.errno or 0, "").format(self._path)
            raise RegistryUnavailable(f"registry {self._path}: {error.strerror}{right}") from error
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                raise UnsafeDirectory(f"registry {self._path}: not a regular file of uid {os.geteuid()}")
            if found.st_mode & 0o077:
                os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        for beside in (f"{self._path}-wal", f"{self._path}-shm"):
            _for_owner_alone(beside)

    def opened(self) -> None:
        """Remember the files: from now on they must stay the same."""
        self._opened = _file(self._path)
        with self._lock, self._named():
            self._hold()

    def close(self) -> None:
        """Close our own connection; the next transaction opens another."""
        anchor, self._anchor = self._anchor, None
        if anchor is not None:
            anchor.close()

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """For the time of a transaction. Raises RegistryUnavailable if the files are not those that were opened."""
        with self._lock:
            if self._opened is not None:
                self._look()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1

    def version(self) -> tuple[int, int] | None:
        """A value that changes with each commit of any process (PRAGMA data_version). Raises RegistryUnavailable.

        The pragma shows one connection what others have committed, and ours writes only checkpoints. None: not open.
        """
        with self.in_use(), self._named():
            if self._anchor is None:
                return None
            anchors, told = self._anchors, self._anchor.execute("PRAGMA data_version").fetchone()
            return anchors, int(told[0])

    def _look(self) -> None:
        if _file(self._path) != self._opened:
            raise RegistryUnavailable(
                f"registry {self._path}: the file was removed or replaced; put it back, or restart the daemon"
            )
        with self._named():
            if self._anchor is None:
                self._hold()
            elif self._found() != self._beside:
                if not self._users:
                    self._rescue(self._anchor)
                raise RegistryUnavailable(
                    f"registry {self._path}: its -wal or -shm was removed or replaced; they are made again"
                    " from the daemon's copy"
                )

    def _rescue(self, anchor: sqlite3.Connection) -> None:
        """Called while no transaction is open. Raises RegistryUnavailable if not all of it reached the database."""
        busy, *_ = anchor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise RegistryUnavailable(
                f"registry {self._path}: its -wal or -shm was removed, and another process reads it"
            )
        for engine in self._engines:
            engine.dispose()
        self.close()  # the last one: SQLite has now removed both files, old or new
        self._hold()

    def _hold(self) -> None:
        self._anchor = _connect(self._path, self._busy_timeout, "PRAGMA query_only=OFF")
        self._anchors += 1
        self._anchor.execute("SELECT count(*) FROM sqlite_master").fetchone()  # opens the other two
        self._beside = self._found()
        _make_room(f"{self._path}-wal")

    def _found(self) -> tuple[tuple[int, int] | None, ...]:
        return _file(f"{self._path}-wal"), _file(f"{self._path}-shm")

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            name = getattr(error, "sqlite_errorname", None) or type(error).__name__
            raise RegistryUnavailable(f"registry {self._path}: {name}: {error}{advice(name)}") from error


def _connect(path: str, busy_timeout: timedelta, pragma: str) -> sqlite3.Connection:
    # mode=rw: a file that was deleted meanwhile is an error, not a new empty registry.
    connection = sqlite3.connect(
        f"file:{urllib.parse.quote(path)}?mode=rw",
        uri=True,
        timeout=busy_timeout.total_seconds(),
        isolation_level=None,  # the driver opens no transactions by itself
        check_same_thread=False,  # the pool hands a connection to one thread at a time
    )
    connection.text_factory = _decode
    try:
        size = f"PRAGMA cache_size=-{CACHE_KB}"
        # temp_store: a savepoint's journal beyond 64 KB is otherwise a file in /var/tmp (sqlite.org/tempfiles.html),
        # which any user can fill: SQLITE_FULL for the registry, however much room its own disk has.
        memory = "PRAGMA temp_store=MEMORY"
        # A long-lived reader makes the write-ahead log grow without limit; after it has gone, the next writer that
        # restarts the log truncates it to this (sqlite.org/pragma.html#pragma_journal_size_limit): the room stays.
        limit = f"PRAGMA journal_size_limit={WAL_ROOM}"
        for statement in ("PRAGMA journal_mode=WAL", limit, "PRAGMA foreign_keys=ON", memory, size, pragma):
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_room(path: str) -> None:
    """Allocate the write-ahead log's space in advance, if there is enough. SQLite ignores zeros at its end.

    SQLite's locks are on the other two files, so closing a descriptor of this one releases none.
    """
    with suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            disk = os.fstatvfs(fd)
            room = min(WAL_ROOM, disk.f_frsize * disk.f_blocks // PART)
            if os.fstat(fd).st_size < room <= disk.f_frsize * disk.f_bavail // 2:
                os.posix_fallocate(fd, 0, room)
        finally:
            os.close(fd)


def _for_owner_alone(path: str) -> None:
    """Set mode 0600 if the file exists. Raises RegistryUnavailable if we may not."""
    try:
        descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)  # needs no read permission
    except FileNotFoundError:
        return
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafeDirectory(f"registry file {path}: not a regular file; use a SQLite file, or remove it")
        if stat.S_IMODE(found.st_mode) != 0o600:
            os.chmod(f"/proc/self/fd/{descriptor}", 0o600)  # fchmod refuses such a descriptor (open(2))
    except OSError as error:
        raise RegistryUnavailable(
            f"registry file {path}: of uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):04o}: {error.strerror};"
            f" chown it to uid {os.geteuid()}"
        ) from error
    finally:
        os.close(descriptor)


def _file(path: str) -> tuple[int, int] | None:
    """Device and inode of the file; a copy of its disk has the same inodes."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _decode(stored: bytes) -> str:
    """Text that is not UTF-8 affects only its own value; sqlite3's default fails the whole query."""
    return stored.decode("utf-8", "replace")
