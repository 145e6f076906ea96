"""Records which path a piece of work is touching, for the process that kills it at its deadline: that path hangs.

A hanging process cannot report, so each path is written before it is touched to a file that the parent can read.
"""

import os

LIMIT = 4096  # bytes (PATH_MAX)

_board: int | None = None  # a descriptor; None: not wanted


def tell(board: int) -> None:
    """From now on write each path of this process to that file."""
    global _board
    _board = board


def at(path: str) -> None:
    """Record that the path is about to be touched."""
    if _board is not None:
        os.pwrite(_board, os.fsencode(path)[:LIMIT] + b"\0", 0)


def read(board: int) -> str | None:
    """The last recorded path; None when there is none."""
    told = os.pread(board, LIMIT, 0).partition(b"\0")[0]
    return os.fsdecode(told) if told else None
