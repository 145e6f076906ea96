"""The cgroup that `run` made for an agent, while the agent is being ended: who is in it, and whether it stands still.

It is frozen and killed as a whole only while nobody else's is in it. Without a cgroup, or where it may not be written,
nothing here does anything, and each process is stopped for itself. Whoever froze thaws: `thaw` is always called.
"""

import asyncio
import os
from collections.abc import Collection, Mapping
from contextlib import suppress

from watchdog.core.process import Identity
from watchdog.errors import SignalRefused
from watchdog.processes import cgroups, procfs
from watchdog.processes.signals import Guard, SignalTarget, kill_cgroup

FREEZE_LIMIT = 2.0  # seconds; 100 processes take 1.2 ms, one in uninterruptible sleep may take for ever
_TICK = 0.005


class CgroupFreezer:
    """One agent's cgroup. All answers are of the last `look`."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._tried = False  # in this round; once is enough
        self._foreign = False
        self._populated = False
        self.frozen = False
        self.inside: frozenset[int] = frozenset()

    @property
    def freezable(self) -> bool:
        """Whether to freeze it: it is in use, nobody else's as far as is known, and this round did not try."""
        return self._populated and not self._foreign and not self.frozen and not self._tried

    def pids(self) -> frozenset[int]:
        """The pids in it now; none where that cannot be read: then the scan's word counts alone."""
        if self._path is None:
            return frozenset()
        try:
            return cgroups.members(self._path)
        except OSError:
            return frozenset()

    def look(self, before: frozenset[int], ours: Collection[int]) -> bool:
        """Learn from a scan: `before` were in it when the scan began, `ours` are the agent's, as the scan found.

        Who was in it and is not ours is somebody else's: it goes on, they must not wait for us. False when only one is
        in it whom the scan cannot have seen.
        """
        found = self.pids()
        self._populated = bool(found)
        self.inside = found.intersection(ours)
        strangers = found - self.inside
        self._foreign = not strangers.isdisjoint(before)
        if self._foreign:
            self.thaw()
        return self._foreign or not strangers

    def unseen(self) -> list[int]:
        """Who is in it and not to be seen by a scan (hidepid=2, another pid namespace): nobody knows whose that is."""
        hidden = [pid for pid in self.pids() if not os.path.exists(f"{procfs.PROC}/{pid}/stat")]
        return sorted(self.pids().intersection(hidden))  # else it went between the two looks

    def strangers(self) -> tuple[str, ...]:
        """Who is in it when all that is the agent's own is dead, as name[pid]: programs that are spared."""
        found = []
        for pid in sorted(self.pids()):
            with suppress(OSError, ValueError):  # ended meanwhile
                found.append(f"{procfs.stat(pid).name}[{pid}]")
        return tuple(found)

    async def freeze(self) -> None:
        """Have all in it stand still. Where that fails it goes on, and is not tried again before `next_round`."""
        self._tried = True
        if self._path is None:
            return
        try:
            self.frozen = True  # before it is: whatever happens next, `thaw` knows
            still = cgroups.freeze(self._path, 0)
            for _ in range(int(FREEZE_LIMIT / _TICK)):
                if still:
                    return
                await asyncio.sleep(_TICK)
                still = cgroups.events(self._path).frozen
        except OSError:
            pass  # EACCES, EROFS
        self.thaw()

    def kill(
        self, ours: Mapping[Identity, int | None], guard: Guard, looks: Mapping[Identity, SignalTarget]
    ) -> frozenset[int]:
        """Kill it as a whole, with `ours` and `looks` as for `kill_cgroup`; the pids that this hit, perhaps none."""
        if self._path is None or not self.frozen:
            return frozenset()
        try:
            return kill_cgroup(self._path, ours, guard, looks) or frozenset()
        except SignalRefused:
            return frozenset()

    def thaw(self) -> None:
        """Let it go on."""
        if self._path is None or not self.frozen:
            return
        self.frozen = False
        cgroups.thaw_if_ours(self._path)

    def next_round(self) -> None:
        """It may be frozen again."""
        self.thaw()
        self._tried = False
