"""What a `run` has written down of its agent's end, for a daemon that was not there (`cli.run.report`).

Read by a helper of the uid that reports it: the file and its directory belong to that uid and no other can write
there, or it is refused. Whatever it holds is bounded here and checked by the daemon.
"""

import contextlib
import json
import os
import re
import stat
from typing import Any

from watchdog.errors import PathRefused, WatchdogError
from watchdog.owner import paths

MOST_BYTES = 1 << 16  # of one, as the control socket takes them
MOST_LISTED = 256  # as many as a `run` leaves in one directory
ROOM = 1 << 19  # bytes of all reports in one answer; the next call gets the rest
MOST_FALLBACKS = 8  # directories of one uid in /tmp; there is one, or two were made at the same time
_NAME = re.compile(r"[0-9a-f]{32}")


def end_report(path: str) -> dict[str, Any]:
    """The report at that path. Raises FileNotFoundError; PathRefused for what is not a report of this uid's."""
    parent, name = paths.open_parent(path)
    try:
        return _read(parent, name)
    finally:
        os.close(parent)


def end_reports(directories: list[str], passed: list[str]) -> dict[str, Any]:
    """All reports in these directories, by path, but for the `passed` ones; and what is none, in words.

    A directory `PREFIX*/NAME` means each NAME in directories of this uid's own whose names begin so.
    """
    found: dict[str, object] = {}
    problems: dict[str, str] = {}
    room = ROOM
    for directory in (one for told in directories for one in _expanded(told)):
        try:
            parent = paths.open_directory(directory)
        except (FileNotFoundError, PathRefused):
            continue
        except PermissionError as error:
            if _is_own(os.path.dirname(directory)):  # else another user has taken its name
                problems[directory] = str(error)
            continue
        try:
            listing = paths.readable(parent)
            try:
                names = [name for name in os.listdir(listing) if _NAME.fullmatch(name)]
            finally:
                os.close(listing)
            if len(names) > MOST_LISTED:
                problems[directory] = f"{len(names)} reports, of which {MOST_LISTED} are looked at"
            for name in sorted(names)[:MOST_LISTED]:
                path = f"{directory}/{name}"
                if path in passed or room < 0:
                    continue
                try:
                    found[path] = report = _read(parent, name)
                    room -= len(json.dumps(report))
                except (OSError, ValueError, WatchdogError) as error:
                    problems[path] = str(error)[:500]
        except OSError as error:
            problems[directory] = str(error)
        finally:
            os.close(parent)
    return {"reports": found, "problems": problems}


def _is_own(directory: str) -> bool:
    with contextlib.suppress(OSError):
        return os.lstat(directory).st_uid == os.geteuid()
    return False


def _expanded(directory: str) -> list[str]:
    start, star, rest = directory.partition("*")
    if not star:
        return [directory]
    top, prefix = os.path.split(start)
    own = []
    for name in sorted(os.listdir(top)):
        if name.startswith(prefix) and _is_own(f"{top}/{name}"):
            own.append(f"{top}/{name}{rest}")
    return own[:MOST_FALLBACKS]


def end_report_done(path: str) -> bool:
    """Remove one that is done with; False when it is gone already. Raises PathRefused."""
    parent, name = paths.open_parent(path)
    try:
        if not _NAME.fullmatch(name):
            raise PathRefused("agent_id", f"{name!r} is not an agent's report")
        _refuse_foreign(parent)
        os.unlink(name, dir_fd=parent)
        return True
    except FileNotFoundError:
        return False
    finally:
        os.close(parent)


def _read(parent: int, name: str) -> dict[str, Any]:
    _refuse_foreign(parent)
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent)
    with open(fd, "rb", buffering=0) as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PathRefused("not_yours", f"{name} is not a file of uid {os.geteuid()}")
        if status.st_size > MOST_BYTES:
            raise PathRefused("too_long", f"{name} has {status.st_size} bytes, a report has {MOST_BYTES} at most")
        text = file.read(MOST_BYTES)
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        told = None
    if not isinstance(told, dict):
        raise PathRefused("no_report", f"{name} is not a report of a `run`")
    return told


def _refuse_foreign(directory: int) -> None:
    status = os.fstat(directory)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PathRefused("not_yours", f"its directory is uid {status.st_uid}'s, or others may write there")
