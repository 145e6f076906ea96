"""Which path a piece of work is at just now, for whoever ends it at its deadline: there a disk or a mount hangs.

A process that hangs cannot report: so each path is written down before it is touched, where the parent reads it.
"""

import os

LIMIT = 4096  # bytes (PATH_MAX)

_board: int | None = None  # a descriptor; None: not asked for


def tell(board: int) -> None:
    """From now on, in this process, each path is written to that file."""
    global _board
    _board = board


def at(path: str) -> None:
    """We are about to touch it."""
    if _board is not None:
        os.pwrite(_board, os.fsencode(path)[:LIMIT] + b"\0", 0)


def read(board: int) -> str | None:
    """The path that was noted last; None when there was none."""
    told = os.pread(board, LIMIT, 0).partition(b"\0")[0]
    return os.fsdecode(told) if told else None
