"""Ends one agent's whole tree and proves it: look, ask `core.ladder`, commit the intent, act, look again.

Nothing here decides whether an agent is to be killed: that was decided, claimed and committed before. Signals are sent
only by `PinnedTree` and `CgroupFreezer`. A process is dead when its pidfd says so; the tree is, when the last scans
found no other process (`Looks`).
"""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple, Protocol

from watchdog.clock import Clock
from watchdog.core.kill import KillStep, Polite
from watchdog.core.ladder import LadderState, Looks, Move, acted, next_step, parents_first
from watchdog.core.process import Identity, TreeMember
from watchdog.kill.pinned_tree import CgroupFreezer, Member, PinnedTree, SignalLog
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes import cgroups
from watchdog.processes import snapshot as evidence
from watchdog.processes.reader import awaited
from watchdog.processes.signals import Guard

Json = dict[str, object]
RESTLESS = 5  # looks in a row that missed a process in its cgroup; from then on it counts as alive, to be frozen
REPORT_GRACE = 1.0  # seconds after which it is committed that a grace runs: most trees are dead by then


@dataclass(frozen=True, slots=True)
class TerminationResult:
    """What became of a tree.

    `reason` is set when something of it lives: not_permitted, protected, unreadable, frozen, traced, d_state, outrun.
    """

    members: tuple[Member, ...] = ()
    reason: str | None = None
    unseen: tuple[int, ...] = ()  # pids in its cgroup that we may not look at
    left: tuple[str, ...] = ()  # living processes in its cgroup that are not the agent's: name[pid]

    @property
    def signalled(self) -> bool:
        return any(m.sent for m in self.members)

    @property
    def alive(self) -> tuple[Identity, ...]:
        return tuple(m.seen.identity for m in self.members if not m.dead)

    def after(self, former: "TerminationResult") -> "TerminationResult":
        """Both attempts together: what the former one could not end, this one may have found dead."""
        now = {m.seen.identity: m for m in self.members}
        for member in former.members:
            known = now.get(member.seen.identity, member)
            before = [name for name in member.sent if name not in known.sent]
            dead = known.dead or self.reason is None
            now[member.seen.identity] = replace(known, sent=before + known.sent, dead=dead)
        return replace(self, members=tuple(now.values()))


class Grace(NamedTuple):
    """A grace that runs. `started`: by this boot's monotonic clock; `everybody`: all have had TERM, not only the main
    process.
    """

    started: float
    everybody: bool


@dataclass(frozen=True, slots=True)
class TerminationPlan:
    """How to end a tree. `hurry` is set when `force` is ordered meanwhile."""

    agent_id: str
    main: Identity | None
    grace: timedelta
    verify: timedelta
    polite: Polite
    force: bool = False
    cgroup: str | None = None  # the agent's own
    main_pidfd: int | None = None  # the fleet's
    begun: bool = False  # an earlier attempt has sent signals: what it saw before them is the evidence
    stopped: tuple[TreeMember, ...] = ()  # an earlier attempt was in its end phase with these
    termed: Grace | None = None  # the grace that an earlier attempt gave
    hurry: asyncio.Event = field(default_factory=asyncio.Event)


class KillLog(SignalLog, Protocol):
    """Where one attempt commits what it is about to do, and reports what it did. In the daemon: `worker.OrderRun`."""

    async def before_signal(self, step: KillStep, members: list[TreeMember], snapshot: Json | None) -> None:
        """Commit the step before it is taken. `snapshot`: what the processes do, right before the first signal.

        Raises what forbids the step: the registry is unavailable, the order is another daemon's, a beat has arrived.
        """
        ...

    async def grace_started(self, grace: Grace) -> None:
        """The grace of the main process, or that of all, has run for `REPORT_GRACE`."""
        ...


class TreeTermination:
    """One attempt to end one tree."""

    def __init__(
        self,
        plan: TerminationPlan,
        scanner: ProcessScanner,
        clock: Clock,
        guard: Callable[[], Guard],
        log: KillLog,
    ) -> None:
        """`guard` gives what must not be signalled while this agent is killed, as of now."""
        self._plan = plan
        self._scanner = scanner
        self._clock = clock
        self._log = log
        self._force = plan.force
        self._grace_reported: bool | None = None  # by `grace_started`: for all processes, or for the main process alone
        self._tree = PinnedTree(plan.main, guard, log, plan.main_pidfd)
        self._guard = guard
        self._restless = 0
        self._looks = Looks()
        self._cgroup = CgroupFreezer(plan.cgroup)
        self._state = LadderState(clock.mono(), plan.grace, plan.verify, plan.polite)

    async def run(self) -> TerminationResult:
        """End the tree.

        1. Look once and commit which processes belong to it, with evidence, before the first signal of all attempts.
        2. Ask for the next move, commit it, make it; repeat.
        3. Stop when it is proved dead, or when what lives cannot be killed.

        However this ends (cancelled, the registry unavailable), no process stays stopped that was not sent KILL.
        """
        plan, tree = self._plan, self._tree
        try:
            await self._look()
            if plan.stopped:
                cgroups.thaw_if_ours(plan.cgroup)
                tree.were_stopped(plan.stopped)
            if not plan.begun:
                await self._log.before_signal(KillStep.LOOKED, tree.seen(), await _evidence(tree))
            self._start_grace()
            while True:
                alive = tree.alive()
                if alive and all(m.refused for m in alive):
                    return TerminationResult(tree.all(), await tree.stuck())
                step = next_step(self._seen_now(alive), self._clock.mono())
                match step.move:
                    case Move.VERIFIED:
                        unseen = tuple(self._cgroup.unseen())
                        left = () if unseen else self._cgroup.strangers()
                        return TerminationResult(tree.all(), "not_permitted" if unseen else None, unseen, left)
                    case Move.GIVE_UP:
                        self._cgroup.thaw()  # else our own freezer would be what holds them
                        nobody = "outrun" if self._looks.outrun else "not_permitted"
                        return TerminationResult(tree.all(), await tree.stuck() or nobody)
                    case Move.LOOK:
                        await self._look()
                    case Move.WAIT:
                        await self._wait(step.until, self._seen_now(alive))
                    case _:
                        await self._act(step.move, alive)
        finally:
            self._cgroup.thaw()
            tree.close()

    def _start_grace(self) -> None:
        """Start it now, or continue the one that an earlier attempt gave."""
        given = self._plan.termed
        started = self._clock.mono() if given is None else given.started
        everybody = given is not None and given.everybody
        self._state = replace(
            self._state,
            started=started,
            first=None if given is None else started,
            main_in_grace=given is not None,
            rest_in_grace=everybody,
            late_in_grace=everybody,
        )

    def _seen_now(self, alive: list[Member]) -> LadderState:
        """How far the kill has come, with what is known of the living now."""
        plan = self._plan
        main = [m for m in alive if m.seen.identity == plan.main]
        rest = [m for m in alive if m.seen.identity != plan.main]
        return replace(
            self._state,
            force=self._force or bool(plan.stopped),
            main_alive=bool(main),
            rest_alive=len(rest) + (self._restless > RESTLESS or self._looks.outrun),
            main_termed=all("SIGTERM" in m.sent or m.refused for m in main),
            rest_termed=all("SIGTERM" in m.sent or m.refused for m in rest),
            freezable=self._cgroup.freezable and not any(m.refused for m in alive),
            running=len(self._running(alive)),
        )

    def _running(self, alive: list[Member]) -> list[Member]:
        """Those that can still fork, and may be stopped."""
        still = self._cgroup.inside if self._cgroup.frozen else frozenset()
        return [m for m in alive if not (m.stopped or m.refused or m.pid in still)]

    async def _look(self) -> None:
        """Scan, and take in the processes that are new."""
        lived, before = bool(self._tree.alive()), self._cgroup.pids()
        trees = await self._scanner.trees()
        new = [self._tree.admit(seen) for seen in trees.get(self._plan.agent_id, ())]
        self._tree.note_refused()
        quiet = self._cgroup.look(before, [m.pid for m in self._tree.alive()])
        self._restless = 0 if quiet else self._restless + 1
        found = any(new) or self._plan.agent_id in trees.passed  # one had ended by the time it was to be pinned
        self._looks = self._looks.after(new=found, alive=lived, whole=trees.whole, lost=trees.lost)
        self._state = replace(self._state, fresh=True, stable=quiet and self._looks.prove)

    async def _act(self, move: Move, alive: list[Member]) -> None:
        """Commit the intent, then send what it says."""
        await self._log.before_signal(KillStep(move.value), self._tree.seen(), None)
        await self._tree.look()
        main, tree = self._plan.main, self._tree
        termed = {m.pid for m in alive if "SIGTERM" in m.sent}  # many programs take a second TERM for "at once"
        match move:  # CONT after TERM, so that a stopped process can act on it (as systemd.kill(5) does)
            case Move.TERM_MAIN:
                tree.send_to((m for m in alive if m.seen.identity == main), signal.SIGTERM, signal.SIGCONT)
            case Move.TERM_REST:
                rest = (m for m in alive if m.seen.identity != main and m.pid not in termed)
                tree.send_to(rest, signal.SIGTERM, signal.SIGCONT)
            case Move.TERM_ALL:
                tree.send_to((m for m in alive if m.pid not in termed), signal.SIGTERM, signal.SIGCONT)
            case Move.FREEZE:
                await self._cgroup.freeze()
            case Move.STOP:
                tree.send_to(parents_first(self._running(alive)), signal.SIGSTOP)
            case Move.KILL:
                ours = {m.seen.identity: m.held_by for m in alive}
                hit = self._cgroup.kill(ours, self._guard(), tree.looks())
                # A process whose first thread is dead outlives cgroup.kill, not a KILL by its pidfd (seen on 6.18).
                outlived = {m.pid for m in alive if "SIGKILL" in m.sent}
                tree.were_killed(hit)
                left = parents_first(m for m in alive if m.pid not in hit or m.pid in outlived)
                tree.send_to(reversed(left), signal.SIGKILL)
                self._cgroup.next_round()
        self._state = acted(self._state, move, self._clock.mono())

    async def _wait(self, until: float, state: LadderState) -> None:
        """Until a process exits, `force` is ordered, or the instant has come.

        A grace that runs is reported, so that no later attempt starts it again; but not while a process was refused: it
        has had no TERM, and a later attempt may be allowed to send it.
        """
        hurry, report = self._plan.hurry, state.started + REPORT_GRACE
        polite = state.main_termed and state.killing_since is None and not any(m.refused for m in self._tree.alive())
        if polite and self._grace_reported not in (True, state.rest_termed):
            if self._clock.mono() >= report:
                self._grace_reported = state.rest_termed
                await self._log.grace_started(Grace(state.started, state.rest_termed))
            else:
                until = min(until, report)
        self._state = acted(state, Move.WAIT, self._clock.mono())
        await self._tree.exit_or(hurry, until - self._clock.mono())
        if hurry.is_set():
            self._force = True
            hurry.clear()


async def _evidence(tree: PinnedTree) -> dict[str, object]:
    """What its processes do; if that cannot be read, the kill continues all the same."""
    try:
        return await awaited(None, evidence.snapshot, [m.seen for m in tree.alive()])
    except OSError as error:
        return {"processes": [], "failed": str(error)}
