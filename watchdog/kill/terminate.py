"""Ends one agent's whole tree and proves it: look, ask `core.ladder`, commit the intent, act, look again.

Nothing here decides whether an agent should end; that was decided, claimed and committed before. Signals go out only
through the `roll`. Dead means: its pidfd says so, and a last look found nobody new.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple, Protocol

from watchdog.clock import Clock
from watchdog.core.kill import KillStep, Polite
from watchdog.core.ladder import END_PHASE, LadderState, Looks, Move, asked, next_step
from watchdog.core.process import Identity, TreeMember
from watchdog.kill.pinned_tree import CgroupFreezer, Member, PinnedTree, SignalLog
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes import cgroups
from watchdog.processes import snapshot as evidence
from watchdog.processes.reader import awaited
from watchdog.processes.signals import Guard

Json = dict[str, object]
RESTLESS = 5  # looks in a row that missed somebody in its cgroup; from then on he counts as alive, to be frozen
TELL = 1.0  # seconds after which it is committed that a grace runs: most trees are gone by then
RESEND = 0.2  # seconds between two rounds of the end phase; teardown of 100 processes takes 55 ms


@dataclass(frozen=True, slots=True)
class TerminationResult:
    """What became of a tree.

    `reason` is set when something of it lives: not_permitted, protected, unreadable, frozen, traced, d_state, outrun.
    """

    members: tuple[Member, ...] = ()
    reason: str | None = None
    unseen: tuple[int, ...] = ()  # pids in its cgroup that we may not look at
    left: tuple[str, ...] = ()  # who lives on in its cgroup, and is not its own: name[pid]

    @property
    def signalled(self) -> bool:
        return any(m.sent for m in self.members)

    @property
    def alive(self) -> tuple[Identity, ...]:
        return tuple(m.seen.identity for m in self.members if not m.dead)

    def after(self, former: "TerminationResult") -> "TerminationResult":
        """The whole story of two attempts: whom the former one could not end, this one may have found dead."""
        now = {m.seen.identity: m for m in self.members}
        for member in former.members:
            known = now.get(member.seen.identity, member)
            before = [name for name in member.sent if name not in known.sent]
            dead = known.dead or self.reason is None
            now[member.seen.identity] = replace(known, sent=before + known.sent, dead=dead)
        return replace(self, members=tuple(now.values()))


class Grace(NamedTuple):
    """One that goes on. `started`: by this boot's monotonic clock; `everybody`: not the main process alone has TERM."""

    started: float
    everybody: bool


@dataclass(frozen=True, slots=True)
class TerminationPlan:
    """How a tree is to be ended. `hurry` is set when `force` is wanted while it is being done."""

    agent_id: str
    main: Identity | None
    grace: timedelta
    verify: timedelta
    polite: Polite
    force: bool = False
    cgroup: str | None = None  # its own
    main_pidfd: int | None = None  # the fleet's
    begun: bool = False  # an attempt before this one has signalled: what it saw before is the evidence
    stopped: tuple[TreeMember, ...] = ()  # an attempt before this one was in its end phase with these
    termed: Grace | None = None  # that an attempt before this one gave
    hurry: asyncio.Event = field(default_factory=asyncio.Event)


class KillLog(SignalLog, Protocol):
    """Where one attempt says what it is about to do, and what it did."""

    async def before_signal(self, step: KillStep, members: list[TreeMember], snapshot: Json | None) -> None:
        """Commit the step before it is taken; `snapshot`: what its processes are doing, before the first signal.

        Raises what keeps it from being taken: the registry is away, the order is not ours, a beat has come.
        """
        ...

    async def grace_started(self, grace: Grace) -> None:
        """The grace of the main process goes on, or that of all."""
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
        """`guard` gives what must not be signalled for this agent's sake, as of now."""
        self._plan = plan
        self._scanner = scanner
        self._clock = clock
        self._log = log
        self._force = plan.force
        self._told: bool | None = None  # by `grace_started`
        self._tree = PinnedTree(plan.main, guard, log, plan.main_pidfd)
        self._guard = guard
        self._restless = 0
        self._looks = Looks()
        self._cgroup = CgroupFreezer(plan.cgroup)
        self._kill = LadderState(clock.mono(), plan.grace, plan.verify, plan.polite)

    async def run(self) -> TerminationResult:
        """End the tree.

        1. Look once and commit who belongs to it, with evidence, before the first signal of all attempts.
        2. Ask for the next step, commit it, do it; repeat.
        3. Stop when a look finds nobody alive and nobody new, or when what lives cannot be ended.

        However it ends (cancelled, the registry away), nobody stays stopped who was not sent KILL.
        """
        plan, tree = self._plan, self._tree
        try:
            await self._look()
            if plan.stopped:
                cgroups.thaw_if_ours(plan.cgroup)
                tree.were_stopped(plan.stopped)
            if not plan.begun:
                snapshot = await _evidence(tree)
                await self._log.before_signal(KillStep.LOOKED, tree.seen(), snapshot)
            started, everybody = (self._clock.mono(), False) if plan.termed is None else plan.termed
            before = plan.termed is not None
            first = started if before else None
            self._kill = replace(self._kill, started=started, first=first, main_asked=before)
            self._kill = replace(self._kill, rest_asked=everybody, late_asked=everybody)
            while True:
                alive = tree.alive()
                if alive and all(m.refused for m in alive):
                    return TerminationResult(tree.all(), await tree.stuck())
                step = next_step(self._state(alive), self._clock.mono())
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
                        await self._wait(step.until, self._state(alive))
                    case _:
                        await self._act(step.move, alive)
        finally:
            self._cgroup.thaw()
            tree.close()

    def _state(self, alive: list[Member]) -> LadderState:
        """How far it has come, as the ladder wants to know it."""
        plan = self._plan
        main = [m for m in alive if m.seen.identity == plan.main]
        rest = [m for m in alive if m.seen.identity != plan.main]
        return replace(
            self._kill,
            force=self._force or bool(plan.stopped),
            main_alive=bool(main),
            rest_alive=len(rest) + (self._restless > RESTLESS or self._looks.outrun),
            main_termed=all("SIGTERM" in m.sent or m.refused for m in main),
            rest_termed=all("SIGTERM" in m.sent or m.refused for m in rest),
            freezable=self._cgroup.freezable and not any(m.refused for m in alive),
            running=len(self._running(alive)),
        )

    def _running(self, alive: list[Member]) -> list[Member]:
        """Who could still fork, and may be stopped."""
        still = self._cgroup.inside if self._cgroup.frozen else frozenset()
        return [m for m in alive if not (m.stopped or m.refused or m.pid in still)]

    async def _look(self) -> None:
        """Scan, and take in whoever is new."""
        lived, before = bool(self._tree.alive()), self._cgroup.pids()
        trees = await self._scanner.trees()
        new = [self._tree.admit(seen) for seen in trees.get(self._plan.agent_id, ())]
        self._tree.check()
        quiet = self._cgroup.look(before, [m.pid for m in self._tree.alive()])
        self._restless = 0 if quiet else self._restless + 1
        found = any(new) or self._plan.agent_id in trees.passed
        self._looks = self._looks.after(new=found, alive=lived, whole=trees.whole, lost=trees.lost)
        self._kill = replace(self._kill, fresh=True, stable=quiet and self._looks.prove)

    async def _act(self, move: Move, alive: list[Member]) -> None:
        """Commit the intent, then send what it says."""
        await self._log.before_signal(KillStep(move.value), self._tree.seen(), None)
        await self._tree.look()
        main = self._plan.main
        match move:
            case Move.TERM_MAIN:
                self._tree.term(m for m in alive if m.seen.identity == main)
            case Move.TERM_REST:
                self._tree.term(m for m in alive if m.seen.identity != main and "SIGTERM" not in m.sent)
            case Move.TERM_ALL:
                self._tree.term(m for m in alive if "SIGTERM" not in m.sent)  # many take a second one for "at once"
            case Move.FREEZE:
                await self._cgroup.freeze()
            case Move.STOP:
                self._tree.stop(self._running(alive))
            case Move.KILL:
                ours = {m.seen.identity: m.held_by for m in alive}
                hit = self._cgroup.kill(ours, self._guard(), self._tree.looks())
                # A process whose first thread is dead outlives cgroup.kill, not a KILL by its pidfd (seen on 6.18).
                outlived = {m.pid for m in alive if "SIGKILL" in m.sent}
                self._tree.killed(hit)
                self._tree.kill(m for m in alive if m.pid not in hit or m.pid in outlived)
                self._cgroup.next_round()
        self._kill = self._acted(move)

    def _acted(self, move: Move) -> LadderState:
        """What an act changes in the state: nothing that was seen before it is fresh any more."""
        kill, now = replace(self._kill, fresh=False, stable=False), self._clock.mono()
        if move not in END_PHASE:
            return asked(kill, move, now)
        kill = replace(kill, killing_since=now if kill.killing_since is None else kill.killing_since)
        if move is Move.KILL:
            return replace(kill, round_since=None, killed_until=now + RESEND)
        return replace(kill, round_since=now if kill.round_since is None else kill.round_since)

    async def _wait(self, until: float, kill: LadderState) -> None:
        """Until an exit, a raised `force`, or the instant. A grace that goes on is told, so that none is begun anew.

        But not while somebody was refused: a later attempt may reach him, who has had no TERM.
        """
        hurry, tell = self._plan.hurry, kill.started + TELL
        polite = kill.main_termed and kill.killing_since is None and not any(m.refused for m in self._tree.alive())
        if polite and self._told not in (True, kill.rest_termed):
            if self._clock.mono() >= tell:
                self._told = kill.rest_termed
                await self._log.grace_started(Grace(kill.started, kill.rest_termed))
            else:
                until = min(until, tell)
        self._kill = asked(kill, Move.WAIT, self._clock.mono())
        await self._tree.exit_or(hurry, until - self._clock.mono())
        if hurry.is_set():
            self._force = True
            hurry.clear()


async def _evidence(tree: PinnedTree) -> dict[str, object]:
    """What its processes were doing; that this cannot be read stops no kill."""
    try:
        return await awaited(None, evidence.snapshot, [m.seen for m in tree.alive()])
    except OSError as error:
        return {"processes": [], "failed": str(error)}
