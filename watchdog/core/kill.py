"""What a kill is asked for by: its reason, the steps of a ladder, its options."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Reason(StrEnum):
    """Why a kill was asked for (`kill_request.reason`)."""

    STALLED = "stalled"
    EXPIRED = "expired"
    LINGERING = "lingering"
    FAILED_TO_START = "failed_to_start"
    GONE = "gone"  # the main process ended by itself; only what is left of the tree is ended
    LOST = "lost"  # its host was restarted, and every process with it
    OPERATOR = "operator"  # `kill`
    STOP = "stop"  # `stop`, `cancel`
    ORPHANED = "orphaned"  # its row is closed and its main process dead: processes that outlived it are ended


class Step(StrEnum):
    """The ladder's rungs, in climbing order."""

    WARN = "warn"
    NUDGE = "nudge"
    STOP = "stop"
    KILL = "kill"


class KillStep(StrEnum):
    """How far a kill order has come: the step that is committed to its row before it is taken, in this order.

    From `TERM_MAIN` to `KILL` by the names of `core.ladder.Move`.
    """

    REQUESTED = ""  # its row has none
    ASKED = "asked"  # to end by itself, in the answers to its beats
    PROGRAM = "program"  # the stop command of the program that lists it
    KEYS = "keys"  # exit keys
    LOOKED = "looked"  # the members of its tree are recorded, with evidence
    TERM_MAIN = "term_main"
    TERM_REST = "term_rest"
    TERM_ALL = "term_all"
    FREEZE = "freeze"
    STOP = "stop"
    KILL = "kill"
    CLEANUP = "cleanup"  # all of it is proved dead

    @classmethod
    def of(cls, stored: str | None) -> "KillStep":
        """The step of a row. One that no version of ours knows counts as TERM: a process may have been signalled."""
        try:
            return cls(stored or "")
        except ValueError:
            return cls.TERM_ALL


class Polite(StrEnum):
    """The order of TERM: the main process first and the rest at half of the grace, or all at once.

    Each has a whole grace from then on.
    """

    MAIN_FIRST = "main_first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class KillOptions:
    """How one kill is to be done, as it was asked for. `grace` None: the policy's.

    `ask`: the agent is first asked to end by itself, and has so long for that where it can hear it; None: not asked.
    `only_ask`: an agent that does not exit is left alone (a ladder that ends at `stop`). `cancel`: its task becomes
    `cancelled`. `with_messages`: what foreign registries keep of its messages goes with its entry there. `by_root`:
    root or the admin group ordered it, so processes are ended that its owner may not signal.
    """

    force: bool = False
    grace: timedelta | None = None
    cleanup: bool = True
    text: str = ""
    ask: timedelta | None = None
    only_ask: bool = False
    cancel: bool = False
    with_messages: bool = False
    by_root: bool = False


@dataclass(frozen=True, slots=True)
class StopAsked:
    """An agent is asked to end by itself: each of its beats over HTTP is answered so. `until`: monotonic seconds."""

    reason: str
    until: float
    heard: bool = False  # a beat was answered so
