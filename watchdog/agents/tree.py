"""The known processes of an agent: the main one by a pidfd, its tree, and their resource use.

Tests: tests/agents/test_persistence.py, tests/agents/test_tracker.py, tests/probes/test_cpu.py.
"""

import os
from dataclasses import dataclass, field

from watchdog.core.process import Identity, TreeMember
from watchdog.core.usage import Used

Recorded = tuple[str | None, tuple[Identity, ...]]  # home cgroup and members, as stored in a row


@dataclass(slots=True)
class Tree:
    """As of the last scan."""

    pidfd: int | None = None
    met_alive: bool = False  # its process lived when we pinned it, so a later exit was watched
    wrapper: Identity | None = None  # the `run` that started it, which adopts its orphans
    home_cgroup: str | None = None  # where its main process was last seen
    members: tuple[TreeMember, ...] = ()
    marks: frozenset[str] = frozenset()  # values of vendors' markers set in its tree
    members_read: tuple[TreeMember, ...] = ()  # the members that `persistence` has seen
    tree_written: Recorded = (None, ())
    cpu_used: dict[Identity, Used] | None = None  # by each process of the tree, as of the last scan
    cpu_waited: dict[Identity, float] = field(default_factory=dict)  # CPU wait in seconds, if it was in question then
    # of its memory cgroup and the one above, as of the last reading
    oom_counts: dict[str, int] = field(default_factory=dict)

    def hold(self, pidfd: int | None) -> None:
        """Keep the pidfd of its main process; `close` closes it."""
        self.pidfd = pidfd

    def meet(self, *, alive: bool) -> None:
        """Record whether its main process lived when it was pinned."""
        self.met_alive = alive

    def close(self) -> None:
        """Close the pidfd."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def wrapped_by(self, wrapper: Identity | None) -> None:
        """Record the `run` that started it."""
        self.wrapper = wrapper

    def lives_in(self, cgroup: str | None) -> None:
        """Record the cgroup of its main process (None: it could not be seen)."""
        self.home_cgroup = cgroup or self.home_cgroup

    def scanned(self, members: tuple[TreeMember, ...], marks: frozenset[str], home_cgroup: str | None) -> None:
        """Record the result of a scan."""
        self.members, self.marks = members, marks
        self.lives_in(home_cgroup)

    def remember(self, members: tuple[TreeMember, ...]) -> None:
        """Add further processes; the next scan drops those that do not belong to it."""
        self.members += members

    def used(
        self, used: dict[Identity, Used], waited: dict[Identity, float]
    ) -> tuple[dict[Identity, Used] | None, dict[Identity, float]]:
        """Record CPU use and wait; returns the values of the scan before."""
        before = self.cpu_used, self.cpu_waited
        self.cpu_used, self.cpu_waited = used, waited
        return before

    def begin_measuring(self) -> None:
        """Its process has become known; earlier scans have not seen it."""
        self.cpu_used = None

    def count_oom(self, counts: dict[str, int]) -> None:
        """Record the numbers of OOM kills around it while it lived."""
        self.oom_counts = counts

    def recorded(self, members: tuple[TreeMember, ...], written: Recorded) -> None:
        """Record that its row has that tree, made of these members."""
        self.members_read, self.tree_written = members, written

    def restore(self, members: tuple[TreeMember, ...], written: Recorded) -> None:
        """Restore the tree that an earlier daemon stored."""
        self.members = members
        self.home_cgroup = written[0]
        self.recorded(members, written)
