"""Is the SQLite file of a registry usable? A damaged one is moved aside, so that the daemon can create a new one.

A daemon that does not start watches no agent, and no restart repairs a damaged file. Nothing is deleted: the file, its
`-wal` and its `-shm` are renamed, with the time in the new name. A file that is missing where a daemon had one counts
as lost, too: the holds that operators had set are unknown in both cases.
"""

import os
import sqlite3
import stat
import urllib.parse
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from watchdog.config.settings import sqlite_file
from watchdog.registry.schema import REVISION, metadata
from watchdog.registry.sqlite import DAMAGE

_HEADER = b"SQLite format 3\0"  # sqlite.org/fileformat.html, 1.3
PATIENCE = 5.0  # seconds to wait for another process's lock
# What a daemon that has opened its registry leaves in its state directory (`registration_backup`, `disk_reserve`,
# `clock_steps`). The lock there proves nothing: it is taken before the registry is opened.
TRACES = ("agents", "reserve", "clock.json")


@dataclass(frozen=True)
class Lost:
    """How a registry was lost, and where its file lies now (None: there was nothing in it)."""

    why: str
    kept_as: str | None


def put_aside(url: str, home: str, now: datetime, *, had_lock: bool = False) -> Lost | None:
    """Before the registry is opened: rename it if it is unusable. None: nothing is wrong, or the path is not a file.

    `had_lock`: a lock file lay beside it before this daemon took its own. `home` is the daemon's state directory, where
    any file at the registry's path was meant to be ours. Elsewhere only a damaged SQLite file, or one with our tables,
    is moved: not a person's notes, not another program's database. Raises OSError if it cannot be renamed.
    """
    path = sqlite_file(url)
    if not path:
        return None
    if not os.path.lexists(path):
        traces = list(_traces(path, home, had_lock=had_lock))
        gone = f"{path} is gone; that there was one is shown by {', '.join(traces)}"
        return Lost(gone, _moved(path, now)) if traces else None
    if not _is_file(path):
        return None
    if os.stat(path).st_size == 0:
        return Lost("the file was empty", _moved(path, now, "-wal", "-shm"))
    why = damage_of(path)
    if why is None or not (os.path.dirname(path) == home or _ours(path)):
        return None
    return Lost(why, _moved(path, now))


def _traces(path: str, home: str, *, had_lock: bool) -> Iterator[str]:
    """Files that prove that a daemon had a registry: beside the registry's file, or in the state directory.

    If the disk of the registry is not mounted, only the state directory has such a file.
    """
    if had_lock:
        yield f"{path}.lock"
    yield from (beside for beside in (f"{path}-wal", f"{path}-shm") if os.path.lexists(beside))
    yield from (trace for name in TRACES if os.path.lexists(trace := os.path.join(home, name)))


def _moved(path: str, now: datetime, *suffixes: str) -> str | None:
    """Rename those files of a registry that exist; returns the new name of the last one, or None.

    SQLite would delete a `-wal` beside an empty or new database, with everything that was committed only to it.
    """
    kept_as = f"{path}.damaged-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    while any(os.path.lexists(kept_as + suffix) for suffix in ("", "-wal", "-shm")):
        kept_as += "+"
    moved: str | None = None
    # The database last: after a crash in between, the next start checks it again.
    for suffix in suffixes or ("-shm", "-wal", ""):
        with suppress(FileNotFoundError):
            os.rename(path + suffix, kept_as + suffix)
            moved = kept_as + suffix
    return moved


def damage_of(path: str) -> str | None:
    """Why that file is unusable as a registry. None: usable, or the trouble may pass (lock, full disk, no rights)."""
    try:
        with closing(_connect(path)) as database:
            database.execute("PRAGMA ignore_check_constraints=ON")
            for (found,) in database.execute("PRAGMA quick_check").fetchall():
                if not str(found).startswith(("ok", "NULL value in ")):  # only that row is bad, and is quarantined
                    return f"SQLite finds it damaged: {' '.join(str(found).split())}"
            return next(_missing(database), None)
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or ""
        return f"SQLite cannot read it: {name}: {error}" if name.startswith(DAMAGE) else None


def _missing(database: sqlite3.Connection) -> Iterator[str]:
    """Missing tables and columns of this revision; `open` migrates or refuses another revision."""
    tables = {row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        yield "it has no tables"
        return
    stored = None
    if "alembic_version" in tables:
        stored = (database.execute("SELECT * FROM alembic_version").fetchone() or (None,))[0]
    if stored is None:
        yield f"it has tables of something else: {', '.join(sorted(tables)[:3])}"
    if stored == REVISION:
        for table in metadata.sorted_tables:
            there = {row[1] for row in database.execute(f'PRAGMA table_info("{table.name}")')}
            for column in table.columns:
                if column.name not in there:
                    yield f"table {table.name} has no column {column.name}" if there else f"table {table.name} is gone"


def _ours(path: str) -> bool:
    """Whether it is an SQLite file with our table of the revision, or one that cannot be read at all."""
    try:
        with open(path, "rb") as file:
            if file.read(len(_HEADER)) != _HEADER:
                return False
        with closing(_connect(path)) as database:
            named = "SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'"
            return bool(database.execute(named).fetchone()[0])
    except sqlite3.Error:
        return True
    except OSError:
        return False


def _connect(path: str) -> sqlite3.Connection:
    uri = f"file:{urllib.parse.quote(path)}?mode=rw"
    database = sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None)
    database.text_factory = lambda stored: stored.decode("utf-8", "replace")
    return database


def _is_file(path: str) -> bool:
    """A regular file of ours; `open` refuses a link or a directory."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
