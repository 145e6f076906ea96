"""What a tree of processes used between two scans, including processes that lived only in between. Pure."""

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar


class Used(NamedTuple):
    """CPU seconds of one process so far: its own, and (`reaped`) those of the children that it has waited for."""

    pid: int
    parent: int
    own: float
    reaped: float = 0.0


K = TypeVar("K", bound=Hashable)


def since(before: Mapping[K, Used], now: Mapping[K, Used]) -> float:
    """The CPU seconds used since `before`; a new process counts from zero.

    When a known child exits, its parent's `reaped` grows by all that the child ever used: only the part that was not
    counted before is new. If its parent has exited too, the amount may have gone to that one's parent.
    """
    total = sum(used.own - (before[key].own if key in before else 0.0) for key, used in now.items())
    living = {used.pid: key for key, used in now.items() if key in before}
    former = {used.pid: key for key, used in before.items()}
    known: dict[K, float] = {}  # by living process: what it reaped from exited ones that was already counted
    for key, used in before.items():
        if key in now:
            continue
        above, passed = used.parent, set()
        while above not in living and above in former and above not in passed:
            passed.add(above)
            above = before[former[above]].parent
        if above in living:
            known[living[above]] = known.get(living[above], 0.0) + used.own + used.reaped
    for key, used in now.items():
        reaped = used.reaped - (before[key].reaped if key in before else 0.0)
        total += max(0.0, reaped - known.get(key, 0.0))
    return total
