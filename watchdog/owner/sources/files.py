"""Reads and changes other programs' files for the sources: reads them completely or not at all, replaces by a rename.

A JSON value is edited in the text at its place: if the document were written again, a number could look different from
what the program wrote, and our change could not be distinguished from the rest.
"""

import contextlib
import json
import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from urllib.parse import quote

from watchdog.core.source_entries import LONGEST
from watchdog.errors import OwnerCallFailed

MOST_BYTES = 4 << 20  # per file
READ_WAIT, WRITE_WAIT = 1.0, 5.0  # seconds to wait for a database lock; hcom and agent-relay themselves wait 5 s
ATTEMPTS = 5  # to change a file that others write meanwhile

Step = str | int  # a member's name, an item's number
Edit = Callable[[str], str | None]  # the whole text -> the new one; None: nothing to do

_decoder = json.JSONDecoder()


def read(path: str, limit: int = MOST_BYTES) -> tuple[str, os.stat_result]:
    """A regular file's text and its stat. Raises OSError; OwnerCallFailed if it is too long or not text."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OwnerCallFailed("not_regular", f"{path} is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OwnerCallFailed("too_long", f"{path} is longer than {limit} bytes")
    try:
        return data.decode(), status
    except UnicodeDecodeError as error:
        raise OwnerCallFailed("not_understood", f"{path}: {error}") from None


def read_json(path: str) -> tuple[object, os.stat_result]:
    """A JSON file's value. Raises OSError, OwnerCallFailed."""
    text, status = read(path)
    return parsed(path, text), status


def parsed(path: str, text: str) -> object:
    """The text as JSON. Raises OwnerCallFailed if it is being written, or is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OwnerCallFailed("not_understood", f"{path} is no whole JSON: {error}") from None


def change(path: str, edit: Edit) -> bool:
    """Replace the file by what `edit` makes of its text; whether anything changed.

    Mode and owner stay. If another process wrote meanwhile, its text is edited instead of overwritten. Between the last
    check and the rename a short race remains: these programs use no locks. Raises OSError, OwnerCallFailed.
    """
    for _ in range(ATTEMPTS):
        try:
            text, before = read(path)
        except FileNotFoundError:
            return False
        edited = edit(text)
        if edited is None or edited == text:
            return False
        if replaced(path, edited, before):
            return True
    raise OwnerCallFailed("busy", f"{path} is rewritten by another process again and again")


def replaced(path: str, text: str, before: os.stat_result) -> bool:
    """Replace the file's text, keeping mode and owner; False if the file has changed since `before`."""
    descriptor, beside = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=os.path.dirname(path))
    try:
        with open(descriptor, "w", encoding="utf-8", newline="") as file:
            os.fchown(descriptor, before.st_uid, before.st_gid)
            os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        if _stamp(os.lstat(path)) == _stamp(before):
            os.rename(beside, path)
            return True
    except FileNotFoundError:
        pass
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
    return False


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def remove(path: str, is_kind: Callable[[int], bool]) -> bool:
    """Remove our own file if it is of that kind (`stat.S_ISREG`, …), without following links; whether it was
    removed.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = os.lstat(path)
        if is_kind(status.st_mode) and status.st_uid == os.geteuid():
            os.unlink(path)
            return True
    return False


def _end_of_space(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _children(text: str, at: int) -> list[tuple[Step, int, int, int]]:
    """The children of the object or array there: name or index, its position, position and end of its value."""
    is_object = text[at] == "{"
    found: list[tuple[Step, int, int, int]] = []
    at = _end_of_space(text, at + 1)
    while text[at] not in "]}":
        begin = at
        name: Step = len(found)
        if is_object:
            name, at = _decoder.raw_decode(text, at)
            at = _end_of_space(text, _end_of_space(text, at) + 1)  # the colon
        value = at
        _, at = _decoder.raw_decode(text, at)
        found.append((name, begin, value, at))
        at = _end_of_space(text, at)
        if text[at] == ",":
            at = _end_of_space(text, at + 1)
    return found


def _place(text: str, steps: tuple[Step, ...]) -> int:
    """The position of the value below those steps. Raises KeyError."""
    at = _end_of_space(text, 0)
    for step in steps:
        at = {name: value for name, _, value, _ in _children(text, at)}[step]
    return at


def without(text: str, *steps: Step) -> str:
    """The JSON text without that member or item. Raises KeyError."""
    at = _place(text, steps[:-1])
    children = _children(text, at)
    number = {child[0]: index for index, child in enumerate(children)}[steps[-1]]
    if len(children) == 1:
        return text[: at + 1] + text[_end_of_space(text, children[0][3]) :]
    if number:
        return text[: children[number - 1][3]] + text[children[number][3] :]
    return text[: children[0][1]] + text[children[1][1] :]


def with_value(text: str, value: object, *steps: Step) -> str:
    """The JSON text with another value there. Raises KeyError."""
    at = _place(text, steps)
    _, end = _decoder.raw_decode(text, at)
    return text[:at] + json.dumps(value, ensure_ascii=False, separators=(",", ":")) + text[end:]


def with_member(text: str, name: str, value: object) -> str:
    """The JSON object's text with one more member at its end, formatted like the others."""
    children = _children(text, _end_of_space(text, 0))
    if not children:
        return json.dumps({name: value})
    _, begin, at, end = children[-1]
    _, after_name = _decoder.raw_decode(text, begin)
    before = text[children[-2][3] : begin] if len(children) > 1 else ", "
    return f"{text[:end]}{before}{json.dumps(name)}{text[after_name:at]}{json.dumps(value)}{text[end:]}"


def within(text: str, edit: Callable[[str], str], *steps: Step) -> str:
    """The JSON text in which `edit` has changed the text of the value below those steps. Raises KeyError."""
    at = _place(text, steps)
    _, end = _decoder.raw_decode(text, at)
    return text[:at] + edit(text[at:end]) + text[end:]


@contextlib.contextmanager
def database(path: str, *, write: bool = False) -> Iterator[sqlite3.Connection]:
    """Open an SQLite database for one transaction, which is committed at the end of the block.

    Text that is not UTF-8 does not affect other text. Raises OSError; OwnerCallFailed: `busy` when another process
    holds its lock, `unreadable`, and `not_ours`.
    """
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OwnerCallFailed("not_regular", f"{path} is not a regular file")
    if status.st_uid != os.geteuid():
        raise OwnerCallFailed("not_ours", f"{path} belongs to another uid")
    try:
        with contextlib.closing(_begun(path, write=write)) as connection:
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()
    except sqlite3.Error as error:
        busy = getattr(error, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
        raise OwnerCallFailed("busy" if busy else "unreadable", f"{path}: {error}") from None
    except UnicodeEncodeError:
        raise OwnerCallFailed("not_understood", f"{path}: what is to be written again is no UTF-8") from None


def _begun(path: str, *, write: bool) -> sqlite3.Connection:
    """A connection with a transaction that holds its lock.

    A writer killed during COMMIT leaves a journal, and no process can read before SQLite has rolled that back, which it
    does only for a process that opens the file for writing (SQLITE_READONLY_ROLLBACK).
    """
    try:
        return _connected(path, "rw" if write else "ro", write=write)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorname != "SQLITE_READONLY_ROLLBACK":
            raise
    return _connected(path, "rw", write=False)


def _connected(path: str, mode: str, *, write: bool) -> sqlite3.Connection:
    wait = WRITE_WAIT if write else READ_WAIT
    connection = sqlite3.connect(
        f"file:{quote(path)}?mode={mode}", uri=True, timeout=wait, isolation_level=None, check_same_thread=False
    )
    try:
        broken = "surrogateescape" if write else "replace"  # text that is written back keeps its bytes, or is refused
        connection.text_factory = lambda data: data.decode("utf-8", broken)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
        connection.execute("PRAGMA schema_version").fetchone()  # BEGIN alone takes no read lock
    except BaseException:
        connection.close()
        raise
    return connection


def number(value: object) -> float | None:
    """The value if it can be a time, else None: JSON allows numbers of any length, and SQLite infinite ones."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LONGEST:
        return None
    return float(value)


def columns(database: sqlite3.Connection, table: str) -> set[str]:
    """The columns of that table; empty if it does not exist."""
    return {str(row["name"]) for row in database.execute("SELECT name FROM pragma_table_info(?)", (table,))}
