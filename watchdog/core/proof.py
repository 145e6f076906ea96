"""When looks that found no process prove that none is left. Pure.

A process that starts a successor and ends lives for less than a look takes: a look may miss all of them. So where looks
have found new processes again and again, one that found none is no proof; several complete ones in a row are.
"""

from dataclasses import dataclass, replace

ROW = 3  # whole looks in a row that find no process, after one that found one born during the kill
PART = 1 / 3  # of a whole look is one during which others came and went so fast that not all could be read
OUTRUN = 5  # looks in a row that find only new ones: they replace themselves as fast as they are found


@dataclass(frozen=True, slots=True)
class Looks:
    """What the looks of one attempt to end a tree have found."""

    count: int = 0
    born: bool = False  # a look after the first has found a new process, or may have missed one
    empty: float = 0.0  # whole looks in a row since, that found no process, new or known
    replaced: int = 0  # looks in a row that found new processes, and none of the former alive

    def after(self, *, new: bool, alive: bool, whole: bool, lost: bool = False) -> "Looks":
        """With one more.

        `new`: it found a process that was not known; `alive`: of those that were known one lived; `lost`: one ended
        before the look could tell whose it was.
        """
        born = self.born or lost or (new and self.count > 0)
        empty = 0.0 if new or alive else self.empty + (PART if lost or (born and not whole) else 1.0)
        replaced = self.replaced + 1 if new and not alive and self.count > 0 else 0 if alive else self.replaced
        return replace(self, count=self.count + 1, born=born, empty=empty, replaced=replaced)

    @property
    def prove(self) -> bool:
        """That no process is left."""
        return self.empty >= (ROW - 0.01 if self.born else 1)

    @property
    def outrun(self) -> bool:
        """Whether a process may be left, until we have looked; False once it is proved that none is."""
        return self.replaced > OUTRUN and not self.prove
