"""What one agent's words tell of another's silence. Pure.

An agent that alone is silent has stalled; one that is silent with all others has perhaps lost what all of them need:
the provider, the network, us. At different phases one is late long before the others are, so a look that finds one
late of six proves neither. What tells is whether the others have been heard since the first of them could have been
cut off.
"""

from dataclasses import dataclass
from datetime import timedelta

ZERO = timedelta()
NARROW, WIDE = 16, 4  # parts of a limit by which beats may come later than they used to; wide, after a first kill


@dataclass(frozen=True, slots=True)
class Witness:
    """One agent as the silence of another sees it.

    `quiet`: watched since its last word, or since its registration. `pause`: the longest of its last pauses between two
    words; None: not known. `age`: watched since its registration. `returned`: so long ago it spoke again after it had
    missed its own rhythm; None: it did not.
    """

    owner: int
    quiet: timedelta
    after: timedelta
    age: timedelta
    pause: timedelta | None = None
    returned: timedelta | None = None

    @property
    def rhythm(self) -> timedelta:
        """Within which its next beat is expected: half of its limit if its interval is not known."""
        return min(self.after, self.after / 2 if self.pause is None else self.pause)


def cut_off(silent: Witness, *, again: bool = False) -> timedelta:
    """At the latest so long ago it was cut off, if it was: its next word would have come then.

    `again`: another one was ended for silence a short time before. Then more is allowed: not all need to lose at the
    same instant what all of them need.
    """
    return silent.quiet - min(silent.after, silent.rhythm + silent.after / (WIDE if again else NARROW))


def comes_back(silent: Witness) -> timedelta:
    """So long it may still be silent when others are heard again after an outage: its phase is another."""
    return min(silent.after, silent.rhythm + silent.after / NARROW)


def heard(other: Witness, silent: Witness, since: timedelta) -> bool | None:
    """Whether the other was heard `since` so long: a witness that only one is silent, or (False) that both are.

    Both were, too, where it has only just come back: the silent one may take its rhythm for that. None where it tells
    nothing: it came later, or speaks so seldom that there is no waiting for its word.
    """
    if other.quiet < min(since, other.age):
        return other.returned is None or other.returned >= comes_back(silent)
    if other.age <= since or other.rhythm > silent.after:
        return None
    return False
