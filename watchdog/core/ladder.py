"""What a kill does next, and when its tree is proved dead. Pure: whoever acts looks, asks here, acts, and asks again.

`next_rung`: which step of its policy's ladder an agent has come to, before anything is signalled. `next_step`: the next
move of one kill. `Looks`: what looks at /proc prove.

TERM (and CONT, so that a stopped process can act on it) -> grace -> freeze, or STOP until a scan finds nothing new ->
KILL -> scan until nothing new is found. Each process has one full grace from its own TERM: the work is often in the
child, which gets TERM last. So the polite phase lasts until the grace of the last process to get TERM is over
(`with_grace`): 1.5 times the grace if the main process goes first and ignores TERM, twice at most.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Protocol, TypeVar

from watchdog.core.agent import Policy
from watchdog.core.kill import Polite, Step

STOP_LIMIT = 2.0  # seconds that one round of the end phase stops and looks before it sends KILL to what it knows
RESEND = 0.2  # seconds between two rounds of the end phase; teardown of 100 processes takes 55 ms
EMPTY_IN_A_ROW = 3  # complete scans that must find no process, once one has found a process started during the kill
INCOMPLETE = 1 / 3  # of a complete scan: what one counts that could not read each process before it exited
OUTRUN = 5  # scans in a row that find only new processes: the tree replaces itself as fast as it is found


def next_rung(policy: Policy, reached: Step | None, waited: timedelta) -> Step | None:
    """The step to take now; None while the step `reached`, `waited` ago, still has time, or if there is no later one.

    A step that a new configuration has removed from the ladder still counts as reached.
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
    STOP = "stop"  # SIGSTOP to the processes that no KILL round has found stopped yet
    KILL = "kill"
    WAIT = "wait"  # until an exit, or `Next.until`
    LOOK = "look"  # scan again
    VERIFIED = "verified"
    GIVE_UP = "give_up"  # unkillable


END_PHASE = frozenset({Move.FREEZE, Move.STOP, Move.KILL})  # moves that may leave a process stopped or frozen by us


@dataclass(frozen=True, slots=True)
class LadderState:
    """How far one kill has come. Instants are seconds of the daemon's monotonic clock.

    `main_alive`, `rest_alive` and `running` come from the last scan and from pidfds since then.
    """

    started: float  # the start of the grace of the processes that got TERM last
    grace: timedelta
    verify: timedelta
    polite: Polite = Polite.MAIN_FIRST
    force: bool = False  # no grace, or none left because an earlier daemon began the end phase
    main_alive: bool = True
    rest_alive: int = 0
    fresh: bool = False  # no signal was sent since the last scan
    stable: bool = False  # no known process lived when the last scan began, and it found no new one
    main_termed: bool = False  # no living main process lacks TERM, except one that may get no signal
    rest_termed: bool = False  # the same for the rest
    main_in_grace: bool = False  # its grace has begun: it was sent TERM, in this attempt or an earlier one
    rest_in_grace: bool = False  # the same for the rest; also True if the rest was empty as the final wait began
    first: float | None = None  # when the first TERM was sent; None: not yet
    late_in_grace: bool = False  # the same for processes found at the end of the first grace; later ones get no TERM
    # The last scan found no other agent's process in its own cgroup, and this round has not frozen it yet.
    freezable: bool = False
    running: int = 0  # living processes that could be stopped or frozen by us and are not yet
    killing_since: float | None = None  # start of the end phase
    round_since: float | None = None  # start of its current round: freeze, stop, KILL
    killed_until: float | None = None  # no new round before this instant: the last KILL is still being delivered


@dataclass(frozen=True, slots=True)
class Next:
    """A move, and for WAIT the instant of the next call."""

    move: Move
    until: float = 0.0


def next_step(kill: LadderState, now: float) -> Next:
    """Return the next move.

    1. No process alive: a scan that began after the last one died and finds nothing new verifies that.
    2. In the end phase, after the grace, or with `force`: rounds of stopping and KILL, until `verify` is over.
       The grace is not over while a process found later has yet to get TERM.
    3. Otherwise the polite phase: TERM to all, or to the main process first and to the rest when it has exited or half
       the grace is over. At the end of the first grace one more scan: processes started since then get TERM too.
    """
    if not kill.main_alive and not kill.rest_alive:
        return Next(Move.VERIFIED if kill.stable else Move.LOOK)
    deadline = kill.started + kill.grace.total_seconds()
    if kill.killing_since is not None or kill.force:
        return _end_phase(kill, now)
    if _late_look(kill, now):
        if not kill.fresh:
            return Next(Move.LOOK)
        if kill.rest_alive and not kill.rest_termed:
            return Next(Move.TERM_ALL if kill.polite is Polite.ALL else Move.TERM_REST)
    if now >= deadline and not _term_owed(kill):
        return _end_phase(kill, now)
    end = _first_end(kill)
    wait = deadline if end is None or end <= now or kill.late_in_grace else min(end, deadline)
    if kill.polite is Polite.ALL:
        if not (kill.main_termed and kill.rest_termed):
            return Next(Move.TERM_ALL if kill.fresh else Move.LOOK)
        return Next(Move.WAIT, wait)
    if kill.main_alive and not kill.main_termed:
        return Next(Move.TERM_MAIN)
    half = kill.started + kill.grace.total_seconds() / 2
    if kill.rest_alive and not kill.rest_termed:
        if not kill.main_alive or kill.rest_in_grace or now >= half:
            # Processes that the rest has started since the first scan get TERM too.
            return Next(Move.TERM_REST if kill.fresh else Move.LOOK)
        return Next(Move.WAIT, half)
    return Next(Move.WAIT, wait)


def _first_end(kill: LadderState) -> float | None:
    """When the grace of the processes that got TERM first is over; None while none has got it."""
    return None if kill.first is None else kill.first + kill.grace.total_seconds()


def _late_look(kill: LadderState, now: float) -> bool:
    """Whether the first grace is over and processes that the tree started during it have yet to get TERM."""
    end = _first_end(kill)
    return end is not None and now >= end and not kill.late_in_grace and bool(kill.grace)


def with_grace(kill: LadderState, move: Move, now: float) -> LadderState:
    """The state after a move of the polite phase: whose grace has begun, and when (`started`) the last one began.

    A process that gets TERM has a full grace from then on, also one that is found later, within the first grace.
    So a tree that keeps forking has two graces in all.
    """
    grace = kill.grace.total_seconds()
    match move:
        case Move.TERM_MAIN | Move.TERM_ALL if not kill.main_in_grace:
            everybody = kill.rest_in_grace or move is Move.TERM_ALL
            return replace(kill, main_in_grace=True, rest_in_grace=everybody, started=now, first=now)
        case Move.TERM_REST | Move.TERM_ALL if not kill.rest_in_grace:
            return replace(kill, rest_in_grace=True, started=now, first=now if kill.first is None else kill.first)
        case Move.TERM_REST | Move.TERM_ALL:
            if _late_look(kill, now):
                return replace(kill, late_in_grace=True, started=now)
            latest = now if kill.first is None else min(now, kill.first + grace)
            return replace(kill, started=max(kill.started, latest))
        case Move.WAIT:
            waited_out = kill.rest_termed or not kill.rest_alive
            return replace(kill, rest_in_grace=kill.rest_in_grace or waited_out)
    return kill


def acted(kill: LadderState, move: Move, now: float) -> LadderState:
    """What a move that was made changes. After a signal or a freeze nothing that was seen before is fresh any more."""
    if move is Move.WAIT:
        return with_grace(kill, move, now)
    kill = replace(kill, fresh=False, stable=False)
    if move not in END_PHASE:
        return with_grace(kill, move, now)
    kill = replace(kill, killing_since=now if kill.killing_since is None else kill.killing_since)
    if move is Move.KILL:
        return replace(kill, round_since=None, killed_until=now + RESEND)
    return replace(kill, round_since=now if kill.round_since is None else kill.round_since)


def _term_owed(kill: LadderState) -> bool:
    """Whether a living process got no TERM although there is a grace."""
    main = kill.main_alive and not kill.main_termed and not kill.main_in_grace
    rest = kill.rest_alive and not kill.rest_termed and not kill.rest_in_grace
    return bool(kill.grace and (main or rest))


def _end_phase(kill: LadderState, now: float) -> Next:
    """One round: scan, freeze what can be frozen, scan, stop what still runs, scan until nothing new runs, KILL.

    A stopped process cannot fork, so each scan finds fewer; a tree that forks faster than that gets KILL anyway. So
    does one whose scan, on a busy host, takes longer than `verify`: KILL is sent at least once before giving up.
    """
    if kill.killed_until is not None and now < kill.killed_until:
        return Next(Move.WAIT, kill.killed_until)
    over = kill.killing_since is not None and now >= kill.killing_since + kill.verify.total_seconds()
    if over and kill.killed_until is not None:
        return Next(Move.GIVE_UP)
    if not kill.fresh:
        return Next(Move.LOOK)
    if kill.freezable:
        return Next(Move.FREEZE)
    if kill.running and (kill.round_since is None or now < kill.round_since + STOP_LIMIT):
        return Next(Move.STOP)
    return Next(Move.KILL)


@dataclass(frozen=True, slots=True)
class Looks:
    """What the scans of one attempt to end a tree have found, and whether that proves it dead.

    A process that starts a successor and exits lives for less time than a scan takes: a scan may miss each of them. So
    where scans keep finding new processes, one that finds none is no proof; several complete ones in a row are.
    """

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
        empty = 0.0 if new or alive else self.empty + (INCOMPLETE if lost or (born and not whole) else 1.0)
        replaced = self.replaced + 1 if new and not alive and self.count > 0 else 0 if alive else self.replaced
        return replace(self, count=self.count + 1, born=born, empty=empty, replaced=replaced)

    @property
    def prove(self) -> bool:
        """Whether they prove that no process is left."""
        return self.empty >= (EMPTY_IN_A_ROW - 0.01 if self.born else 1)

    @property
    def outrun(self) -> bool:
        """Whether the tree replaces itself faster than scans can follow; False once no process is proved to be left."""
        return self.replaced > OUTRUN and not self.prove


class Related(Protocol):
    """A process with its parent."""

    @property
    def pid(self) -> int: ...
    @property
    def parent_pid(self) -> int: ...


R = TypeVar("R", bound=Related)


def parents_first(processes: Iterable[R]) -> list[R]:
    """The processes in the order in which to stop them: parents, which may restart or continue a child, before
    children.

    KILL uses the reverse order: a stopped process restarts nothing, but the death of a parent can continue its children
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
        for each in reversed(chain):  # in a cycle of parents (reused pids) the last comes first
            depths[each] = depths.get(by_pid[each].parent_pid, -1) + 1
    return sorted(by_pid.values(), key=lambda process: (depths[process.pid], process.pid))
