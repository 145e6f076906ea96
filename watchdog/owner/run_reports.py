"""Reads the reports that a `run` wrote about its agent's end while no daemon was there (`cli.run.report`).

A helper of the reporting uid reads them: file and directory must belong to that uid and be writable for no other, or
the report is refused. Its size is limited here and its content checked by the daemon.
"""

import contextlib
import json
import os
import re
import stat
from typing import Any

from watchdog.errors import PathRefused, WatchdogError
from watchdog.owner import paths

MOST_BYTES = 1 << 16  # per report, the limit of the control socket
MOST_LISTED = 256  # as many as `run` leaves in one directory
ROOM = 1 << 19  # bytes of all reports in one answer; the next call gets the rest
MOST_FALLBACKS = 8  # directories of one uid in /tmp; normally one, more if several were made at the same time
_NAME = re.compile(r"[0-9a-f]{32}")


def end_report(path: str) -> dict[str, Any]:
    """The report at that path. Raises FileNotFoundError; PathRefused if it is not a report of this uid's."""
    parent, name = paths.open_parent(path)
    try:
        return _read(parent, name)
    finally:
        os.close(parent)


def end_reports(directories: list[str], passed: list[str]) -> dict[str, Any]:
    """All reports in these directories, by path, except the `passed` ones; and problems, by path.

    A directory `PREFIX*/NAME` means each NAME in this uid's own directories whose names begin with PREFIX.
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
            if _is_own(os.path.dirname(directory)):  # otherwise another user has taken its name
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
    """Remove a report that has been handled; False when it is gone already. Raises PathRefused."""
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
