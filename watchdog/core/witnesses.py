"""What one agent's beats say about another's silence. Pure.

An agent that alone is silent has stalled; one that is silent with all others may have lost what all of them need: the
provider, the network, the daemon. As agents beat at different phases, one is late long before the others, so a check
that finds one of six late proves neither. The evidence is whether the others have been heard since the first of them
could have been cut off.
"""

from dataclasses import dataclass
from datetime import timedelta

ZERO = timedelta()
NARROW, WIDE = 16, 4  # beats may come later than usual by 1/NARROW of the limit; by 1/WIDE after a first kill


@dataclass(frozen=True, slots=True)
class Witness:
    """One agent as a witness of another's silence.

    `quiet`: watched time since its last beat, or since its registration. `pause`: the longest of its recent pauses
    between two beats; None: not known. `age`: watched time since its registration. `returned`: how long ago it beat
    again after it had missed its own interval; None: it did not.
    """

    owner: int
    quiet: timedelta
    after: timedelta
    age: timedelta
    pause: timedelta | None = None
    returned: timedelta | None = None

    @property
    def rhythm(self) -> timedelta:
        """The time within which its next beat is expected: half of its limit if its interval is not known."""
        return min(self.after, self.after / 2 if self.pause is None else self.pause)


def cut_off(silent: Witness, *, again: bool = False) -> timedelta:
    """The latest it can have been cut off, as a time ago: its next beat would have come then.

    `again`: another agent was killed for silence shortly before. Then more time is allowed, as a common cause need not
    hit all agents at the same instant.
    """
    return silent.quiet - min(silent.after, silent.rhythm + silent.after / (WIDE if again else NARROW))


def comes_back(silent: Witness) -> timedelta:
    """How long it may still be silent after others are heard again following an outage: its phase differs."""
    return min(silent.after, silent.rhythm + silent.after / NARROW)


def heard(other: Witness, silent: Witness, since: timedelta) -> bool | None:
    """Whether the other agent was heard within `since`: True shows that only one is silent, False that both are.

    Also False if the other has only just come back: the silent one is given its interval to do so too. None: no
    evidence, because the other was registered later or beats too rarely to wait for it.
    """
    if other.quiet < min(since, other.age):
        return other.returned is None or other.returned >= comes_back(silent)
    if other.age <= since or other.rhythm > silent.after:
        return None
    return False
