"""When scans that found no process prove that none is left. Pure.

A process that starts a successor and exits lives shorter than a scan takes: a scan may miss all of them. So after scans
that kept finding new processes, one scan that finds none is no proof; several complete ones in a row are.
"""

from dataclasses import dataclass, replace

ROW = 3  # complete empty scans in a row that are needed once a scan found a process born during the kill
PART = 1 / 3  # what an empty scan counts if processes came and went too fast for all of them to be read
OUTRUN = 5  # scans in a row that find only new processes: they replace themselves as fast as they are found


@dataclass(frozen=True, slots=True)
class Looks:
    """What the scans of one attempt to kill a tree have found."""

    count: int = 0
    born: bool = False  # a scan after the first has found a new process, or may have missed one
    empty: float = 0.0  # complete scans in a row since then that found no process, new or known
    replaced: int = 0  # scans in a row that found new processes and none of the former ones alive

    def after(self, *, new: bool, alive: bool, whole: bool, lost: bool = False) -> "Looks":
        """The state after one more scan.

        `new`: it found an unknown process; `alive`: a known process lived; `whole`: it was complete; `lost`: a process
        exited before the scan could tell which agent it belonged to.
        """
        born = self.born or lost or (new and self.count > 0)
        empty = 0.0 if new or alive else self.empty + (PART if lost or (born and not whole) else 1.0)
        replaced = self.replaced + 1 if new and not alive and self.count > 0 else 0 if alive else self.replaced
        return replace(self, count=self.count + 1, born=born, empty=empty, replaced=replaced)

    @property
    def prove(self) -> bool:
        """Whether they prove that no process is left."""
        return self.empty >= (ROW - 0.01 if self.born else 1)

    @property
    def outrun(self) -> bool:
        """Whether the tree replaces itself faster than scans can follow; False once no process is proved to be left."""
        return self.replaced > OUTRUN and not self.prove
