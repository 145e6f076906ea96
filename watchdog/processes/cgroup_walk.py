"""Walks cgroup directories of any depth: a process in one may nest them until no path reaches the last.

Uses no recursion, no path longer than a name, and two descriptors.
"""

import errno
import os
from collections.abc import Iterator

GONE = frozenset({errno.ENOENT, errno.ENODEV})  # ENODEV: removed while its file was open


def each(directory: str) -> Iterator[int]:
    """Yield a descriptor of a cgroup, then of each below it, each valid until the next is requested. Raises OSError."""
    try:
        here = _open(directory)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return
    way: list[list[str]] = []  # at each level down to `here`, the children still to visit
    try:
        yield here
        way.append(_names_below(here))
        while way:
            to = way[-1].pop() if way[-1] else ".."
            if to == "..":
                way.pop()
                if not way:
                    return
            try:
                upper, here = here, _open(to, here)
            except OSError as error:
                if error.errno not in GONE or to == "..":
                    raise
                continue
            os.close(upper)
            if to != "..":
                yield here
                way.append(_names_below(here))
    finally:
        os.close(here)


def remove(directory: str) -> bool:
    """Remove it and the empty cgroups below it; True: it is gone, False: it is in use. Raises OSError."""
    way: list[str] = []  # names from `directory` down to `here`
    try:
        here = _open(directory)
        try:
            while True:
                child = _first_below(here)
                if child is not None:
                    way.append(child)
                elif not way:
                    break
                upper, here = here, _open(".." if child is None else child, here)
                os.close(upper)
                if child is None:
                    os.rmdir(way.pop(), dir_fd=here)
        finally:
            os.close(here)
        os.rmdir(directory)
    except OSError as error:
        if error.errno not in GONE | {errno.EBUSY}:
            raise
        return error.errno in GONE
    return True


def _names_below(directory: int) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError as error:
        if error.errno not in GONE:
            raise
        return []


def _open(directory: str, above: int | None = None) -> int:
    return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)


def _first_below(directory: int) -> str | None:
    with os.scandir(directory) as entries:
        return next((entry.name for entry in entries if entry.is_dir(follow_symlinks=False)), None)
