"""The processes of an agent, as far as they are known: the main one by a pidfd, its tree, and what that used.

Tests: tests/agents/test_persistence.py, tests/agents/test_tracker.py, tests/probes/test_cpu.py.
"""

import os
from dataclasses import dataclass, field

from watchdog.core.process import Identity, TreeMember
from watchdog.core.usage import Used

Recorded = tuple[str | None, tuple[Identity, ...]]  # home and members, as a row has them


@dataclass(slots=True)
class Tree:
    """By the last scan."""

    pidfd: int | None = None
    met_alive: bool = False  # its process lived when we first held it: an end that came later is one that we watched
    wrapper: Identity | None = None  # the `run` that started it, which adopts its orphans
    home_cgroup: str | None = None  # where its main process was seen last
    members: tuple[TreeMember, ...] = ()
    marks: frozenset[str] = frozenset()  # values of vendors' markers that were made in its tree
    members_read: tuple[TreeMember, ...] = ()  # those that `persistence` has seen
    tree_written: Recorded = (None, ())
    cpu_used: dict[Identity, Used] | None = None  # by each process of the tree, at the last scan
    cpu_waited: dict[Identity, float] = field(default_factory=dict)  # the same, if it was in question then
    oom_counts: dict[str, int] = field(default_factory=dict)  # by its memory cgroup and the one above, at the last look

    def hold(self, pidfd: int | None) -> None:
        """Its main process is held by that pidfd; `close` closes it."""
        self.pidfd = pidfd

    def meet(self, *, alive: bool) -> None:
        """Whether its main process lived when it was held."""
        self.met_alive = alive

    def close(self) -> None:
        """Let go of the pidfd."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def wrapped_by(self, wrapper: Identity | None) -> None:
        """That `run` has started it."""
        self.wrapper = wrapper

    def lives_in(self, cgroup: str | None) -> None:
        """Its main process was seen there (None: it could not be seen)."""
        self.home_cgroup = cgroup or self.home_cgroup

    def scanned(self, members: tuple[TreeMember, ...], marks: frozenset[str], home_cgroup: str | None) -> None:
        """A scan has found that."""
        self.members, self.marks = members, marks
        self.lives_in(home_cgroup)

    def remember(self, members: tuple[TreeMember, ...]) -> None:
        """Those belong to it as well; the next scan sorts out who still does."""
        self.members += members

    def used(
        self, used: dict[Identity, Used], waited: dict[Identity, float]
    ) -> tuple[dict[Identity, Used] | None, dict[Identity, float]]:
        """What it has used up to now; returns what it had used and waited for at the scan before."""
        before = self.cpu_used, self.cpu_waited
        self.cpu_used, self.cpu_waited = used, waited
        return before

    def begin_measuring(self) -> None:
        """Its process has become known; the scans before have not seen it."""
        self.cpu_used = None

    def count_oom(self, counts: dict[str, int]) -> None:
        """So many were ended for want of memory around it while it lived."""
        self.oom_counts = counts

    def recorded(self, members: tuple[TreeMember, ...], written: Recorded) -> None:
        """Its row has that tree, which these members are."""
        self.members_read, self.tree_written = members, written

    def restore(self, members: tuple[TreeMember, ...], written: Recorded) -> None:
        """What an earlier daemon saw of it and wrote down."""
        self.members = members
        self.home_cgroup = written[0]
        self.recorded(members, written)
