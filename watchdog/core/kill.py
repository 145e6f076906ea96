"""The terms of a kill: its reason, the steps of a ladder, its options."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum


class Reason(StrEnum):
    """Why a kill was requested (`kill_request.reason`)."""

    STALLED = "stalled"
    EXPIRED = "expired"
    LINGERING = "lingering"
    FAILED_TO_START = "failed_to_start"
    GONE = "gone"  # the main process exited on its own; only the rest of the tree is killed
    LOST = "lost"  # its host was restarted, and every process with it
    OPERATOR = "operator"  # `kill`
    STOP = "stop"  # `stop`, `cancel`
    ORPHANED = "orphaned"  # its row is closed and its main process dead: processes that outlived it are killed


class Step(StrEnum):
    """The steps of the ladder, in order."""

    WARN = "warn"
    NUDGE = "nudge"
    STOP = "stop"
    KILL = "kill"


class KillStep(StrEnum):
    """How far a kill request has come: the step that is committed to its row before it is taken, in this order.

    `TERM_MAIN` to `KILL` have the names of `core.ladder.Move`.
    """

    REQUESTED = ""  # no step in its row yet
    ASKED = "asked"  # the agent is asked to exit, in the responses to its beats
    PROGRAM = "program"  # the stop command of the program that lists it is run
    KEYS = "keys"  # exit keys are typed
    LOOKED = "looked"  # the members of its tree are recorded, with evidence
    TERM_MAIN = "term_main"
    TERM_REST = "term_rest"
    TERM_ALL = "term_all"
    FREEZE = "freeze"
    STOP = "stop"
    KILL = "kill"
    CLEANUP = "cleanup"  # the whole tree is proved dead

    @classmethod
    def of(cls, stored: str | None) -> "KillStep":
        """The step in a row. An unknown one counts as TERM: a process may have been signalled."""
        try:
            return cls(stored or "")
        except ValueError:
            return cls.TERM_ALL


class Polite(StrEnum):
    """The order of TERM: the main process first and the rest after half of the grace, or all at once.

    Each process has a full grace from its TERM on.
    """

    MAIN_FIRST = "main_first"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class KillOptions:
    """How one kill is to be done, as requested. `grace` None: the policy's.

    `ask`: how long the agent, if it can receive the request, has to exit on its own first; None: it is not asked.
    `only_ask`: an agent that does not exit is left alone (a ladder that ends at `stop`). `cancel`: its task becomes
    `cancelled`. `with_messages`: its messages in foreign registries are deleted with its entry there. `by_root`:
    root or the admin group ordered it, so processes that its owner may not signal are killed too.
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
    """An agent is asked to exit, in the response to each of its beats over HTTP. `until`: monotonic seconds."""

    reason: str
    until: float
    heard: bool = False  # a response to a beat carried the request
