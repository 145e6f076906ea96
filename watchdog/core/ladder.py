"""The ladder. next_rung(): which step of its policy an agent has come to, before anything is signalled.

next_step(): the next move of one kill. Pure; the worker looks, asks, commits the intent, acts, and asks again.

TERM (and CONT, so that a stopped process can act on it) -> grace -> freeze, or STOP until a look finds nothing new ->
KILL -> look again until a look finds nothing new. One monotonic deadline serves the whole tree; it counts from the TERM
that went out, so that however late we come nobody loses by it (`asked`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Protocol, TypeVar

from watchdog.core.model import Policy, Polite, Step

LATE = 0.1  # of the grace may have passed before a TERM has gone out that was due
STOP_LIMIT = 2.0  # seconds that one round of the end phase stops and looks before it sends KILL to whom it knows


def next_rung(policy: Policy, reached: Step | None, waited: timedelta) -> Step | None:
    """The step to take now; None while the one that was `reached`, so long ago, has time left, or there is none above.

    A step that another configuration took out of the ladder meanwhile counts as reached all the same.
    """
    steps = list(Step)
    pauses = {Step.WARN: policy.warn_pause, Step.NUDGE: policy.nudge_pause, Step.STOP: policy.stop_pause}
    if reached is not None and waited < pauses.get(reached, timedelta()):
        return None
    above = steps[0 if reached is None else steps.index(reached) + 1 :]
    return next((step for step in above if step in policy.ladder), None)


class Move(StrEnum):
    """What the worker does next."""

    TERM_MAIN = "term_main"
    TERM_REST = "term_rest"
    TERM_ALL = "term_all"
    FREEZE = "freeze"  # the agent's own cgroup
    STOP = "stop"  # SIGSTOP to whom no KILL round has found stopped yet
    KILL = "kill"
    WAIT = "wait"  # until an exit, or `Next.until`
    LOOK = "look"  # scan again
    VERIFIED = "verified"
    GIVE_UP = "give_up"  # unkillable


END_PHASE = frozenset({Move.FREEZE, Move.STOP, Move.KILL})  # who was in one may be stopped or frozen by us


@dataclass(frozen=True, slots=True)
class Kill:
    """How far one kill has come. Instants are seconds of the daemon's monotonic clock.

    `main_alive`, `rest_alive` and `running` come from the last look and from pidfds since.
    """

    started: float  # from where the grace counts
    grace: timedelta
    verify: timedelta
    polite: Polite = Polite.MAIN_FIRST
    force: bool = False  # no grace, or none left: an earlier daemon began the end phase
    main_alive: bool = True
    rest_alive: int = 0
    fresh: bool = False  # no signal went out since the last look
    stable: bool = False  # nobody lived when the last look began, and it found nobody new
    main_termed: bool = False
    rest_termed: bool = False
    main_asked: bool = False  # TERM went out to it, so that the grace began, in this attempt or before it
    rest_asked: bool = False  # the same, or there was nobody when the grace's end began to be waited for
    freezable: bool = False  # the last look found nobody else's in its own cgroup, and this round has not frozen it yet
    running: int = 0  # who of the living is neither frozen nor stopped by us, and could be
    killing_since: float | None = None  # the end phase
    round_since: float | None = None  # this round of it: freeze, stop, KILL
    killed_until: float | None = None  # no further round before this instant: the last KILL is still being delivered


@dataclass(frozen=True, slots=True)
class Next:
    """A move, and for WAIT the instant at which to ask again."""

    move: Move
    until: float = 0.0


def next_step(kill: Kill, now: float) -> Next:
    """Say the next move.

    1. Nobody alive: a look that began after the last one died, and finds nothing new, verifies it.
    2. In the end phase, or when the grace is over, or by force: rounds of stopping and KILL, until `verify` is over.
       The grace is not over for whom we were too late to send TERM to.
    3. Else the polite phase: the main process first and the rest at half of the grace or when it has gone, or all.
    """
    if not kill.main_alive and not kill.rest_alive:
        return Next(Move.VERIFIED if kill.stable else Move.LOOK)
    deadline = kill.started + kill.grace.total_seconds()
    if kill.killing_since is not None or kill.force or (now >= deadline and not _owed(kill)):
        return _end(kill, now)
    if kill.polite is Polite.ALL:
        if not (kill.main_termed and kill.rest_termed):
            return Next(Move.TERM_ALL if kill.fresh else Move.LOOK)
        return Next(Move.WAIT, deadline)
    if kill.main_alive and not kill.main_termed:
        return Next(Move.TERM_MAIN)
    half = kill.started + kill.grace.total_seconds() / 2
    if kill.rest_alive and not kill.rest_termed:
        if not kill.main_alive or now >= half:
            # Whom the rest has started since the first look is told as well.
            return Next(Move.TERM_REST if kill.fresh else Move.LOOK)
        return Next(Move.WAIT, half)
    return Next(Move.WAIT, deadline)


def asked(kill: Kill, move: Move, now: float) -> Kill:
    """What a TERM that has gone out, or the wait for the grace's end, changes: how long the grace is.

    From then on the main process has all of it, the rest half; less by LATE at most. The first TERM of each counts.
    """
    match move:
        case Move.TERM_MAIN | Move.TERM_ALL if not kill.main_asked:
            everybody = kill.rest_asked or move is Move.TERM_ALL
            return replace(kill, main_asked=True, rest_asked=everybody, started=_began(kill, now, LATE))
        case Move.TERM_REST | Move.TERM_ALL if not kill.rest_asked:
            return replace(kill, rest_asked=True, started=_began(kill, now, 0.5 + LATE))
        case Move.WAIT:
            waited_out = kill.rest_termed or not kill.rest_alive
            return replace(kill, rest_asked=kill.rest_asked or waited_out)
    return kill


def _began(kill: Kill, now: float, gone: float) -> float:
    """From where it counts, when no more than this share of it may be gone."""
    return max(kill.started, now - gone * kill.grace.total_seconds())


def _owed(kill: Kill) -> bool:
    """Whether somebody lives whom no TERM was sent to although there is a grace."""
    main = kill.main_alive and not kill.main_termed and not kill.main_asked
    rest = kill.rest_alive and not kill.rest_termed and not kill.rest_asked
    return bool(kill.grace and (main or rest))


def _end(kill: Kill, now: float) -> Next:
    """One round: look, freeze what can be frozen, look, stop who still runs, look until nobody new does, KILL.

    Who is stopped cannot fork, so each look finds fewer; a tree that outruns us gets KILL all the same.
    """
    if kill.killing_since is not None and now >= kill.killing_since + kill.verify.total_seconds():
        return Next(Move.GIVE_UP)
    if kill.killed_until is not None and now < kill.killed_until:
        return Next(Move.WAIT, kill.killed_until)
    if not kill.fresh:
        return Next(Move.LOOK)
    if kill.freezable:
        return Next(Move.FREEZE)
    if kill.running and (kill.round_since is None or now < kill.round_since + STOP_LIMIT):
        return Next(Move.STOP)
    return Next(Move.KILL)


class Related(Protocol):
    """A process that knows its parent."""

    @property
    def pid(self) -> int: ...
    @property
    def parent_pid(self) -> int: ...


R = TypeVar("R", bound=Related)


def parents_first(processes: Iterable[R]) -> list[R]:
    """In the order in which to stop them: whoever would restart, or continue, what has stopped is stopped before it.

    KILL goes the other way: a stopped process restarts nothing, but the death of a parent can continue its children
    (SIGHUP and SIGCONT to a group that becomes an orphan, setpgid(2)).
    """
    by_pid = {process.pid: process for process in processes}
    depths: dict[int, int] = {}
    for pid in by_pid:
        chain: dict[int, None] = {}
        current = pid
        while current in by_pid and current not in depths and current not in chain:
            chain[current] = None
            current = by_pid[current].parent_pid
        for each in reversed(chain):  # of a ring of parents (numbers that passed on) the last stands first
            depths[each] = depths.get(by_pid[each].parent_pid, -1) + 1
    return sorted(by_pid.values(), key=lambda process: (depths[process.pid], process.pid))
