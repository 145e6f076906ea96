"""Directories of cgroups, however deep they were nested: whoever sits in one may go on until no path reaches the last.

No recursion, no path longer than a name, two descriptors.
"""

import errno
import os
from collections.abc import Iterator

GONE = frozenset({errno.ENOENT, errno.ENODEV})  # ENODEV: removed while its file was open


def each(directory: str) -> Iterator[int]:
    """A descriptor of a cgroup, then one of each below it, to be used until the next is asked for. Raises OSError."""
    try:
        here = _open(directory)
    except OSError as error:
        if error.errno not in GONE:
            raise
        return
    way: list[list[str]] = []  # at each level down to `here`, whom to go to next
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
    """Remove it and the empty ones below it; True when it is gone, False when it is in use. Raises OSError."""
    way: list[str] = []  # from it down to `here`
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
