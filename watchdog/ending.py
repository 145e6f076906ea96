"""Ends one agent's whole tree and proves it: look, ask `core.ladder`, commit the intent, act, look again.

Nothing here decides whether an agent should end; that was decided, claimed and committed before. Signals go out only
through `processes.signals.send`. Dead means: its pidfd says so, and a last look found nobody new.
"""

import asyncio
import os
import select
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta

from watchdog.clock import Clock
from watchdog.core.ladder import Kill, Move, next_step
from watchdog.core.model import Identity, Polite, TreeMember
from watchdog.errors import SignalRefused
from watchdog.processes import evidence
from watchdog.processes.identity import pin
from watchdog.processes.signals import Guard, SendResult, send
from watchdog.scan import Scanner

RESEND = 0.2  # seconds between two rounds of KILL; teardown of 100 processes takes 55 ms


@dataclass(slots=True)
class Member:
    """One process of the tree: how we know it, and how it ended. `pidfd` is open until it is proved dead."""

    seen: TreeMember
    pidfd: int
    sent: list[str] = field(default_factory=list)
    refused: str | None = None
    dead: bool = False

    def how(self) -> str:
        """How it ended, in one word for people and JSON."""
        if not self.dead:
            return f"alive ({self.refused})" if self.refused else "alive"
        return f"after {self.sent[-1]}" if self.sent else "by itself"


@dataclass(frozen=True, slots=True)
class Ended:
    """What became of a tree. `reason` is set when something of it lives: not_permitted, protected, d_state."""

    members: tuple[Member, ...]
    reason: str | None
    gracefully: bool  # nobody needed KILL
    signalled: bool
    main_signalled: bool


@dataclass(slots=True)
class Plan:
    """How a tree is to be ended; `force` may be raised while it is being done."""

    agent_id: str
    main: Identity | None
    grace: timedelta
    verify: timedelta
    polite: Polite
    force: bool = False
    hurry: asyncio.Event = field(default_factory=asyncio.Event)


class Ending:
    """One attempt to end one tree."""

    def __init__(
        self,
        plan: Plan,
        scanner: Scanner,
        clock: Clock,
        guard: Callable[[str], Guard],
        intend: Callable[[str, list[TreeMember], dict[str, object] | None], Awaitable[None]],
        signalled: Callable[[str, list[int]], None],
        refused: Callable[[int, str], None],
    ) -> None:
        """`guard` gives what must not be signalled for this agent's sake, as of now; `intend` commits an intent;
        `signalled` is told what went out to whom, `refused` whom nothing may go out to (pid) and why.
        """
        self._plan = plan
        self._scanner = scanner
        self._clock = clock
        self._guard = guard
        self._intend = intend
        self._signalled = signalled
        self._told_refusal = refused
        self._members: dict[Identity, Member] = {}

    async def run(self) -> Ended:
        """End the tree.

        1. Look once and commit who belongs to it, with evidence, before the first signal.
        2. Ask for the next step, commit it, do it; repeat.
        3. Stop when a look finds nobody alive and nobody new, or when what lives cannot be ended.
        """
        plan = self._plan
        try:
            await self._look()
            snapshot = await asyncio.to_thread(evidence.snapshot, [m.seen for m in self._alive()])
            await self._intend("looked", self._known(), snapshot)
            kill = Kill(self._clock.mono(), plan.grace, plan.verify, plan.polite)
            killing_since = killed_until = None
            stable = False
            while True:
                self._reap()
                alive = self._alive()
                if alive and all(m.refused for m in alive):
                    return self._result(next(m.refused for m in alive))
                main = [m for m in alive if m.seen.identity == plan.main]
                rest = [m for m in alive if m.seen.identity != plan.main]
                kill = Kill(
                    started=kill.started,
                    grace=plan.grace,
                    verify=plan.verify,
                    polite=plan.polite,
                    force=plan.force,
                    main_alive=bool(main),
                    rest_alive=len(rest),
                    stable=stable,
                    main_termed=all("SIGTERM" in m.sent or m.refused for m in main),
                    rest_termed=all("SIGTERM" in m.sent or m.refused for m in rest),
                    killing_since=killing_since,
                    killed_until=killed_until,
                )
                step = next_step(kill, self._clock.mono())
                match step.move:
                    case Move.TERM_MAIN:
                        await self._polite("term_main", main)
                    case Move.TERM_REST:
                        await self._polite("term_rest", rest)
                    case Move.TERM_ALL:
                        await self._polite("term_all", alive)
                    case Move.KILL:
                        await self._look()
                        await self._hard()
                        now = self._clock.mono()
                        killing_since = now if killing_since is None else killing_since
                        killed_until = now + RESEND
                    case Move.WAIT:
                        await self._exit_or(step.until)
                    case Move.LOOK:
                        stable = not await self._look()
                    case Move.VERIFIED:
                        return self._result(None)
                    case Move.GIVE_UP:
                        return self._result(next((m.refused for m in self._alive() if m.refused), "d_state"))
        finally:
            for member in self._members.values():
                if member.pidfd >= 0:
                    os.close(member.pidfd)
                    member.pidfd = -1

    async def _look(self) -> bool:
        """Scan once; True when somebody alive was found whom we did not know."""
        trees = await self._scanner.trees()
        found = [self._admit(seen) for seen in trees.get(self._plan.agent_id, ())]
        return any(found)

    def _admit(self, seen: TreeMember) -> bool:
        """Pin a process of the tree by its pidfd; False when it is known already or provably gone."""
        if seen.identity in self._members:
            return False
        try:
            pidfd = pin(seen.identity)
        except OSError as error:
            self._members[seen.identity] = Member(seen, -1, refused="not_permitted")
            self._told_refusal(seen.identity.pid, str(error))
            return True
        if pidfd is None:
            return False
        self._members[seen.identity] = Member(seen, pidfd)
        return True

    def _alive(self) -> list[Member]:
        return [m for m in self._members.values() if not m.dead]

    def _known(self) -> list[TreeMember]:
        return [m.seen for m in self._members.values()]

    def _reap(self) -> None:
        """Mark dead whose pidfd says so: readable when every thread has ended, zombie or not (pidfd_open(2))."""
        poller = select.poll()
        open_ones = {m.pidfd: m for m in self._alive() if m.pidfd >= 0}
        for descriptor in open_ones:
            poller.register(descriptor, select.POLLIN)
        for descriptor, _ in poller.poll(0):
            open_ones[descriptor].dead = True

    async def _polite(self, step: str, members: list[Member]) -> None:
        await self._intend(step, self._known(), None)
        # CONT after TERM, so that a stopped process can act on it (systemd.kill(5) does the same).
        self._signal(members, [signal.SIGTERM, signal.SIGCONT])

    async def _hard(self) -> None:
        await self._intend("kill", self._known(), None)
        self._signal(self._alive(), [signal.SIGKILL])

    def _signal(self, members: list[Member], signals: list[signal.Signals]) -> None:
        guard = self._guard(self._plan.agent_id)
        sent = []
        for member in members:
            if member.dead:
                continue
            for sig in signals:
                try:
                    result = send(member.seen.identity, sig, guard)
                except SignalRefused as refusal:
                    self._refused(member, refusal)
                    break
                if result is SendResult.NOT_PERMITTED:
                    member.refused = "not_permitted"
                    break
                if result is SendResult.GONE:
                    break
                member.refused = None
                if sig is not signal.SIGCONT:
                    member.sent.append(sig.name)
                    sent.append(member.seen.identity.pid)
        if sent:
            self._signalled(signals[0].name, sent[:64])

    def _refused(self, member: Member, refusal: SignalRefused) -> None:
        """The guard said no. Who turned out to be another agent's, or spared, was never ours to end."""
        identity = member.seen.identity
        if member.refused is None:
            self._told_refusal(identity.pid, str(refusal))
        member.refused = "protected"
        if refusal.reason in ("other_agent", "spared") and identity != self._plan.main:
            os.close(member.pidfd)
            del self._members[identity]

    async def _exit_or(self, until: float) -> None:
        """Wait for the next exit of a member, a raised `force`, or the instant."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        watched = [m.pidfd for m in self._alive() if m.pidfd >= 0]
        for descriptor in watched:
            loop.add_reader(descriptor, wake)
        hurry = asyncio.ensure_future(self._plan.hurry.wait())
        hurry.add_done_callback(lambda _: wake())
        try:
            await asyncio.wait([woken], timeout=max(0.0, until - self._clock.mono()))
        finally:
            for descriptor in watched:
                loop.remove_reader(descriptor)
            hurry.cancel()
            if self._plan.hurry.is_set():
                self._plan.force = True
                self._plan.hurry.clear()

    def _result(self, reason: str | None) -> Ended:
        members = tuple(self._members.values())
        return Ended(
            members=members,
            reason=reason,
            gracefully=reason is None and not any("SIGKILL" in m.sent for m in members),
            signalled=any(m.sent for m in members),
            main_signalled=any(m.sent for m in members if m.seen.identity == self._plan.main),
        )
