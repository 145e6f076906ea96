"""Which process descends from which, numbered once per `ProcessTable`, so that a query costs the same at any depth.

Any user can make chains of thousands of processes. Walking up from each took quadratic time, and cubic time where each
was queried again: 4,000 took half a minute, during which no agent's tree was known.
"""

from collections.abc import Collection, Iterator

from watchdog.processes.table import ProcessTable


class Descent:
    """Numbers the processes depth first: the descendants of one lie between its first and its last number.

    In a cycle of parents (pids reused during the scan) no process is above another.
    """

    def __init__(self, table: ProcessTable) -> None:
        self._parents = {pid: table.parent(pid) for pid in table.rows}
        self._children: dict[int | None, list[int]] = {}
        for pid, parent in self._parents.items():
            self._children.setdefault(parent, []).append(pid)
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._depths: dict[int, int] = {}
        self._count()

    def __iter__(self) -> Iterator[int]:
        """All processes outside of cycles, parents before children."""
        return iter(self._first)

    def parent(self, pid: int) -> int | None:
        """As `ProcessTable.parent`; None for a process that is not in the table."""
        return self._parents.get(pid)

    def depth(self, pid: int) -> int:
        """The number of its ancestors."""
        return self._depths.get(pid, 0)

    def is_below(self, pid: int, above: int) -> bool:
        """Whether `above` is an ancestor of the process."""
        number = self._first.get(pid)
        return number is not None and above in self._first and self._first[above] < number <= self._last[above]

    def nearest(self, wanted: Collection[int]) -> dict[int, int]:
        """For each process its nearest ancestor among these, if it has one."""
        found: dict[int, int] = {}
        for pid in self:
            parent = self._parents[pid]
            if parent is not None and parent in wanted:
                found[pid] = parent
            elif parent in found:
                found[pid] = found[parent]
        return found

    def above(self, pid: int) -> Iterator[int]:
        """The ancestors of a process, the nearest first."""
        if pid in self._first:
            current = self._parents[pid]
            while current is not None:
                yield current
                current = self._parents[current]

    def _count(self) -> None:
        open_ = [(pid, 0) for pid in reversed(self._children.get(None, []))]
        way: list[int] = []
        for number in range(len(self._parents)):
            if not open_:
                break
            pid, depth = open_.pop()
            while len(way) > depth:
                self._last[way.pop()] = number - 1
            way.append(pid)
            self._first[pid], self._depths[pid] = number, depth
            open_ += [(child, depth + 1) for child in reversed(self._children.get(pid, []))]
        while way:
            self._last[way.pop()] = len(self._first) - 1
