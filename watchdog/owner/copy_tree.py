"""Copies small trees of plain files, such as git's entry of a worktree, and compares them."""

import hashlib
import os
import stat
from collections.abc import Iterator

from watchdog.errors import PathRefused
from watchdog.owner import paths, trash


def copy_tree(source: str, container: int, name: str) -> None:
    """Copy a small tree of plain files and links (a worktree's entry) to a new directory of the container, durably."""
    top = os.path.join(paths.real_path(container), name)
    for directory, names, files in paths.below(source, onerror=_raise):
        target = os.path.normpath(os.path.join(top, os.path.relpath(directory, source)))
        os.mkdir(target, trash.PRIVATE)
        os.chmod(target, stat.S_IMODE(os.lstat(directory).st_mode) | trash.PRIVATE)
        links = [entry for entry in names if os.path.islink(os.path.join(directory, entry))]
        for file in [*files, *links]:
            copy_file(os.path.join(directory, file), os.path.join(target, file))


def _raise(error: OSError) -> None:
    raise error


def copy_file(source: str, target: str) -> None:
    """Copy one file or link with mode and mtime, durably; `target` must not exist. Raises OSError, PathRefused."""
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
        return
    # O_NONBLOCK: a FIFO would block for ever; it is refused instead.
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(reader).st_mode):
            raise PathRefused("not_regular", f"{source} is not a regular file")
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            while data := os.read(reader, 1 << 20):
                view = memoryview(data)
                while view:
                    view = view[os.write(writer, view) :]
            status = os.fstat(reader)
            os.fchmod(writer, stat.S_IMODE(status.st_mode))
            # Git compares a file by content if it is not older than the index (racy git): a younger copy would hide
            # changes.
            os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
            os.fsync(writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def same(one: str, other: str) -> bool:
    """Whether two such trees have the same names with the same content."""
    return dict(content(one)) == dict(content(other))


def content(top: str) -> Iterator[tuple[str, bytes]]:
    """Yield each name in the tree with its type or digest. Raises OSError."""
    for directory, names, files in paths.below(top, onerror=_raise):
        for name in [*names, *files]:
            path = os.path.join(directory, name)
            if os.path.islink(path):
                yield os.path.relpath(path, top), b"link " + os.fsencode(os.readlink(path))
            elif name in names:
                yield os.path.relpath(path, top), b"directory"
            elif not stat.S_ISREG(os.lstat(path).st_mode):
                yield os.path.relpath(path, top), b"other"  # not opened: a FIFO would block for ever
            else:
                with open(path, "rb") as file:
                    yield os.path.relpath(path, top), b"file " + hashlib.file_digest(file, "sha256").digest()
