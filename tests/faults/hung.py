"""Files of processes whose read hangs: a FIFO without a writer, bound over them in the daemon's own mount namespace.

It has the shape of a read that waits for a process in execve: it can be killed, is in state S, and returns when the
other side lets it. Nobody outside that namespace sees it. Needs root.
"""

import os
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.world import World, make_world

PREFIX = ("unshare", "--mount", "--propagation", "private")
FILES = ("stat", "status", "environ", "cmdline", "cgroup", "maps", "schedstat", "io", "wchan")


class Hung:
    """The files of one daemon's world that hang."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._fifos: dict[tuple[int, str], Path] = {}

    def hang(self, pids: Iterable[int], files: Iterable[str] = ("stat",)) -> dict[int, Path]:
        """From now on reads of these hang, for the daemon, its reader and its helpers; the last file's FIFO of each."""
        lines, made = [], dict[int, Path]()
        files = list(files)
        for pid in pids:
            for file in files:
                fifo = self._world.dir / f"hung-{pid}-{file.replace('/', '-')}"
                os.mkfifo(fifo, 0o666)
                fifo.chmod(0o666)
                self._fifos[pid, file] = made[pid] = fifo
                lines.append(f"mount -n --bind {fifo} /proc/{pid}/{file}")
        self._inside("\n".join(lines))
        return made

    def release(self, pids: Iterable[int]) -> None:
        """They can be read again: reads that hang return, with nothing."""
        for pid in pids:
            for (one, file), fifo in list(self._fifos.items()):
                if one == pid:
                    self._inside(f"umount -n -l /proc/{pid}/{file}")
                    os.close(os.open(fifo, os.O_RDWR | os.O_NONBLOCK))  # wakes who waits to open it
                    del self._fifos[one, file]

    def _inside(self, script: str) -> None:
        assert self._world.daemon is not None
        into = ("nsenter", f"--mount=/proc/{self._world.daemon.pid}/ns/mnt", "sh", "-e")
        done = subprocess.run(into, input=script, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr


@contextmanager
def hanging(**settings: Any) -> Iterator[tuple[World, Hung]]:
    """A world whose daemon runs in a mount namespace of its own, and what can be made to hang in it."""
    with contextmanager(make_world)(**settings) as world:
        world.start(prefix=PREFIX)
        yield world, Hung(world)
