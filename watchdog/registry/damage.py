"""Is the SQLite file of a registry fit to be opened? A damaged one is put aside, so that the daemon can begin another.

A daemon that does not start watches nobody, and no restart mends a damaged file. Nothing is deleted: the file and its
`-wal` and `-shm` keep their content below a name with the time. One that is missing where a daemon had one is lost like
a damaged one: what operators held with it is not known any more.
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
PATIENCE = 5.0  # seconds for somebody else's lock
# What a daemon that has opened its registry leaves in its state directory (`registration_backup`, `disk_reserve`,
# `clock_steps`). Its lock there is no such trace: it is taken before.
TRACES = ("agents", "reserve", "clock.json")


@dataclass(frozen=True)
class Lost:
    """How a registry was lost, and where its file lies now (None: there was nothing in it)."""

    why: str
    kept_as: str | None


def put_aside(url: str, home: str, now: datetime, *, had_lock: bool = False) -> Lost | None:
    """Before the registry is opened: what is not fit for use is renamed. None: nothing is wrong, or it is not a file.

    `had_lock`: the lock beside it was there before ours. `home` is the daemon's state directory, where whatever lies in
    the registry's place was meant to be ours. Elsewhere only what is a damaged SQLite file, or has our own tables, is
    moved: not somebody's notes, not another program's database. Raises OSError where it cannot be renamed.
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
    """What shows that a daemon had a registry: beside its file, or in the state directory, wherever the file lies.

    Where the disk of the file is not mounted, only the state directory tells of it.
    """
    if had_lock:
        yield f"{path}.lock"
    yield from (beside for beside in (f"{path}-wal", f"{path}-shm") if os.path.lexists(beside))
    yield from (trace for name in TRACES if os.path.lexists(trace := os.path.join(home, name)))


def _moved(path: str, now: datetime, *suffixes: str) -> str | None:
    """Rename what there is of a registry; the name of the first part, or None where there is nothing.

    SQLite would delete a `-wal` beside a database that is empty or new, with all that was committed into it alone.
    """
    kept_as = f"{path}.damaged-{now.astimezone(UTC):%Y%m%dT%H%M%SZ}"
    while any(os.path.lexists(kept_as + suffix) for suffix in ("", "-wal", "-shm")):
        kept_as += "+"
    moved: str | None = None
    # The database last: a crash in between leaves it to be judged anew.
    for suffix in suffixes or ("-shm", "-wal", ""):
        with suppress(FileNotFoundError):
            os.rename(path + suffix, kept_as + suffix)
            moved = kept_as + suffix
    return moved


def damage_of(path: str) -> str | None:
    """What makes that file useless as a registry. None: nothing, or what may pass (a lock, a full disk, no right)."""
    try:
        with closing(_connect(path)) as database:
            database.execute("PRAGMA ignore_check_constraints=ON")
            for (found,) in database.execute("PRAGMA quick_check").fetchall():
                if not str(found).startswith(("ok", "NULL value in ")):  # a row's own fault is that row's: quarantined
                    return f"SQLite finds it damaged: {' '.join(str(found).split())}"
            return next(_missing(database), None)
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or ""
        return f"SQLite cannot read it: {name}: {error}" if name.startswith(DAMAGE) else None


def _missing(database: sqlite3.Connection) -> Iterator[str]:
    """Tables and columns of this revision that are not there; another revision is migrated, or refused, by `open`."""
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
    """Whether it is an SQLite file, and has our own table of the revision, or nothing can be read of it."""
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
    """A link or a directory is refused by `open`."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
