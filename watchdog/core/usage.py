"""What a tree of processes used between two looks at it, those included that lived in between alone. Pure."""

from collections.abc import Hashable, Mapping
from typing import NamedTuple, TypeVar


class Used(NamedTuple):
    """CPU seconds of one process so far: its own, and (`reaped`) what its ended children used that it waited for."""

    pid: int
    parent: int
    own: float
    reaped: float = 0.0


K = TypeVar("K", bound=Hashable)


def since(before: Mapping[K, Used], now: Mapping[K, Used]) -> float:
    """The seconds that these used since `before`; a new process counts from zero.

    A child that was seen before and has ended since brings its parent all that it ever used: only what is beyond that
    is new. Where its parent has ended, too, it may have come to that one's parent.
    """
    total = sum(used.own - (before[key].own if key in before else 0.0) for key, used in now.items())
    living = {used.pid: key for key, used in now.items() if key in before}
    former = {used.pid: key for key, used in before.items()}
    known: dict[K, float] = {}  # what came to the living from those that have ended, and was used before
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
