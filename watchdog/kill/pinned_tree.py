"""One tree that is being killed: its processes, each held by a pidfd, what was sent to each, and its own cgroup.

Signals are sent only through `processes.signals`. What was stopped or frozen is killed or continued in the end, by
`PinnedTree.close` and `CgroupFreezer.thaw`.
"""

import asyncio
import errno
import os
import resource
import select
import signal
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from watchdog.core.process import Identity, TreeMember
from watchdog.errors import SignalRefused
from watchdog.processes import cgroups, procfs
from watchdog.processes.bounded import Unreadable
from watchdog.processes.identity import pin
from watchdog.processes.reader import awaited
from watchdog.processes.signals import NO_LOOK, Guard, SendResult, SignalTarget, carry_on, kill_cgroup, send
from watchdog.processes.stops import tracers_of

FREEZE_LIMIT = 2.0  # seconds; 100 processes take 1.2 ms, one in uninterruptible sleep may take forever
FREEZE_TICK = 0.005  # seconds between two checks whether it stands still
SPARE_DESCRIPTORS = 64  # for looks at /proc, the registry, and each signal's own pidfd


@dataclass(slots=True)
class Member:
    """One process of the tree: how we know it, and how it ended. `pidfd` is open until the tree is closed."""

    seen: TreeMember
    pidfd: int
    sent: list[str] = field(default_factory=list)  # each signal that ends a process, once
    refused: str | None = None  # why it gets no signal: not_permitted, protected, unreadable
    stuck: str | None = None  # why it outlives KILL: frozen, traced, d_state
    frozen_by: str | None = None  # the directory of the cgroup that holds it, if it is frozen
    tracer: int = 0  # the process that holds it, if it is traced
    stopped: bool = False  # by us, in this attempt
    look: SignalTarget = NO_LOOK  # what was read of it for the next signals
    needs_cont: bool = False  # SIGCONT in the end, unless it is killed: this or an earlier attempt may have stopped it
    dead: bool = False

    @property
    def pid(self) -> int:
        return self.seen.identity.pid

    @property
    def held_by(self) -> int | None:
        """Our pidfd of it, while it is open."""
        return self.pidfd if self.pidfd >= 0 else None

    @property
    def parent_pid(self) -> int:
        return self.seen.parent_pid

    def note(self, sig: signal.Signals) -> None:
        """It was sent this signal, perhaps again: what cannot be killed gets hundreds."""
        if sig.name not in self.sent:
            self.sent.append(sig.name)

    def how(self) -> str:
        """How it ended, in one word for people and JSON."""
        if not self.dead:
            why = self.refused or self.stuck
            if why == "traced":
                return f"alive (held by a debugger, process {self.tracer})"
            return f"alive ({why})" if why else "alive"
        return f"after {self.sent[-1]}" if self.sent else "by itself"

    def lives_on(self) -> str:
        """The same for one that lives, with the remedy if a freezer holds it."""
        if self.frozen_by is None or self.refused:
            return self.how()
        how = "thaw it as root" if cgroups.thawed_by_root(self.frozen_by) else "thaw it"
        return f"alive (frozen by cgroup {self.frozen_by}; {how}: {cgroups.thaw_command(self.frozen_by)})"


class SignalLog(Protocol):
    """Where signals that were sent, or refused, are reported."""

    def signalled(self, name: str, pids: list[int]) -> None:
        """A signal of that name was sent to these."""
        ...

    def refused(self, pid: int, why: str) -> None:
        """A safety check, or the kernel, blocked signals to this one."""
        ...


class PinnedTree:
    """All processes that were found to belong to the tree since the attempt began, the dead included."""

    def __init__(
        self,
        main: Identity | None,
        guard: Callable[[], Guard],
        log: SignalLog,
        main_pidfd: int | None = None,
    ) -> None:
        """`guard` gives what must not be signalled, as of now.

        `main_pidfd`: the caller's pidfd of the main process, in case that cannot be read now.
        """
        self._main = main
        self._main_pidfd = main_pidfd
        self._guard = guard
        self._log = log
        self._members: dict[Identity, Member] = {}

    def admit(self, seen: TreeMember) -> bool:
        """Take in a process of the tree; False when it is known already.

        True also for one that has exited since the scan found it, as the scan did find a new process, and for one that
        no descriptor is left for: a tree may have more processes than we may have descriptors. That one is taken in
        after a later scan, when others have died.
        """
        if seen.identity in self._members:
            return False
        try:
            pidfd = self._pinned(seen.identity)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) and self._holds_any():
                return True
            refused = "unreadable" if isinstance(error, Unreadable) else "not_permitted"
            self._members[seen.identity] = Member(seen, -1, refused=refused)
            self._log.refused(seen.identity.pid, str(error))
            return True
        if pidfd is None:
            return True
        if pidfd >= resource.getrlimit(resource.RLIMIT_NOFILE)[0] - SPARE_DESCRIPTORS and self._holds_any():
            os.close(pidfd)  # the lowest free number is given out (open(2)): few are left
            return True
        self._members[seen.identity] = Member(seen, pidfd)
        return True

    def _pinned(self, identity: Identity) -> int | None:
        """As `pin`; if the main process cannot be read, the pidfd that the fleet has held since its registration."""
        try:
            return pin(identity)
        except Unreadable:
            if identity != self._main or self._main_pidfd is None:
                raise
            return os.dup(self._main_pidfd)

    def note_refused(self) -> None:
        """Note to which members the kernel would refuse our signals: these are neither stopped nor frozen."""
        guard = self._guard()
        for member in self.alive():
            if member.refused is None and not guard.permits(member.pidfd):
                member.refused = "not_permitted"

    def all(self) -> tuple[Member, ...]:
        return tuple(self._members.values())

    def alive(self) -> list[Member]:
        """The members that are not proved dead, as of now."""
        held = {m.pidfd: m for m in self._members.values() if m.pidfd >= 0 and not m.dead}
        for descriptor in held.keys() - _unended(held):
            held[descriptor].dead = True
            os.close(descriptor)
            held[descriptor].pidfd = -1
        return [m for m in self._members.values() if not m.dead]

    def seen(self) -> list[TreeMember]:
        """All members, as they are committed."""
        return [m.seen for m in self._members.values()]

    async def look(self) -> None:
        """Read what sending a signal needs to know, so that nothing is read between the last beat and the first signal.

        If that fails, each signal reads for itself.
        """
        held = [m for m in self.alive() if m.pidfd >= 0]
        stats: dict[int, procfs.Stat | OSError] = {}
        with suppress(OSError):
            stats = await awaited(None, procfs.stats, tuple(m.pid for m in held))
        for member in held:
            stat = stats.get(member.pid)
            member.look = SignalTarget(stat if isinstance(stat, procfs.Stat) else None, member.seen.name)

    def looks(self) -> dict[Identity, SignalTarget]:
        """What the last `look` saw."""
        return {m.seen.identity: m.look for m in self._members.values()}

    def were_killed(self, pids: Collection[int]) -> None:
        """Their cgroup was killed as a whole."""
        hit = [m for m in self._members.values() if m.pid in pids and not m.dead]
        for member in hit:
            member.note(signal.SIGKILL)
        if hit:
            self._log.signalled(signal.SIGKILL.name, [m.pid for m in hit])

    def were_stopped(self, seen: Iterable[TreeMember]) -> None:
        """An earlier attempt was in its end phase with these. Those that left the tree since are continued."""
        for each in seen:
            member = self._members.get(each.identity)
            if member is None:
                release([each], self._guard())
            else:
                member.needs_cont = True

    async def stuck(self) -> str | None:
        """Why it lives after all that was sent, in one word: not_permitted protected unreadable frozen traced d_state.

        A traced process dies when its tracer lets it go: even at its exit it waits for a tracer that asked for that
        (PTRACE_O_TRACEEXIT of ptrace(2)).
        """
        alive = self.alive()
        pids = tuple(m.pid for m in alive)
        frozen: dict[int, str] = {}
        tracers: dict[int, int] = {}
        with suppress(OSError):
            frozen = await awaited(None, cgroups.frozen_among, pids)
        with suppress(OSError):
            tracers = await awaited(None, tracers_of, pids)
        for member in alive:
            member.tracer = tracers.get(member.pid, 0)
            member.frozen_by = frozen.get(member.pid)
            # One that is traced counts as frozen in a v2 cgroup, our own freeze included (cgroup_enter_frozen, 6.18).
            member.stuck = "traced" if member.tracer else "frozen" if member.pid in frozen else "d_state"
        reasons = [m.refused for m in alive] + [m.stuck for m in alive]
        return next((reason for reason in reasons if reason), None)

    async def exit_or(self, hurry: asyncio.Event, timeout: float) -> None:
        """Wait for an exit that `alive` has not seen yet, for `hurry`, or `timeout` seconds."""
        await _woken([m.pidfd for m in self._members.values() if m.pidfd >= 0], hurry, timeout)

    def close(self) -> None:
        """Continue what was stopped and not killed, and close all pidfds."""
        for member in self.alive():
            if member.needs_cont and "SIGKILL" not in member.sent:
                release([member.seen], self._guard())
        for member in self._members.values():
            if member.pidfd >= 0:
                os.close(member.pidfd)
                member.pidfd = -1

    def _holds_any(self) -> bool:
        return any(member.pidfd >= 0 for member in self._members.values())

    def send_to(self, members: Iterable[Member], *signals: signal.Signals) -> None:
        """Send each member these signals, in the given order of members, as far as `signals.send` lets them through."""
        guard = self._guard()
        sent = []
        for member in members:
            for sig in signals:
                try:
                    result = send(member.seen.identity, sig, guard, member.held_by, member.look)
                except SignalRefused as refusal:
                    self._refused(member, refusal)
                    break
                if result is not SendResult.SENT:
                    member.refused = "not_permitted" if result is SendResult.NOT_PERMITTED else member.refused
                    break
                member.refused = None
                if sig is signal.SIGCONT:
                    continue
                sent.append(member.pid)
                if sig is signal.SIGSTOP:
                    member.stopped = member.needs_cont = True
                else:
                    member.note(sig)
        if sent:
            self._log.signalled(signals[0].name, sent)

    def _refused(self, member: Member, refusal: SignalRefused) -> None:
        """A check blocked the signal. A process that turned out to be another agent's, or spared, leaves the tree."""
        identity = member.seen.identity
        if member.refused is None:
            self._log.refused(identity.pid, str(refusal))
        member.refused = "unreadable" if refusal.reason == "unreadable" else "protected"
        if refusal.reason in ("other_agent", "spared") and identity != self._main:
            if member.needs_cont:
                release([member.seen], self._guard())
            if member.pidfd >= 0:
                os.close(member.pidfd)
            del self._members[identity]


class CgroupFreezer:
    """The cgroup that `run` made for an agent: which processes are in it, and whether it is frozen.

    It is frozen and killed as a whole only while no other agent's process is in it. Without a cgroup, or if it may not
    be written, nothing here does anything, and each process is stopped by itself. `thaw` is always called in the end.
    Unless a method says otherwise, it answers by the last `look`.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._tried = False  # in this round: once is enough
        self._foreign = False
        self._populated = False
        self.frozen = False
        self.inside: frozenset[int] = frozenset()

    @property
    def freezable(self) -> bool:
        """Whether to freeze it: it is in use, only by this agent as far as is known, and this round did not try."""
        return self._populated and not self._foreign and not self.frozen and not self._tried

    def pids(self) -> frozenset[int]:
        """The pids in it now; none if that cannot be read: then the scan alone counts."""
        if self._path is None:
            return frozenset()
        try:
            return cgroups.members(self._path)
        except OSError:
            return frozenset()

    def look(self, before: frozenset[int], ours: Collection[int]) -> bool:
        """Learn from a scan: `before` were in it when the scan began, `ours` are the agent's, as the scan found.

        A process that was in it and is not the agent's is another's: the cgroup is thawed, that one must not wait for
        us. False if a process is in it that the scan cannot have seen.
        """
        found = self.pids()
        self._populated = bool(found)
        self.inside = found.intersection(ours)
        strangers = found - self.inside
        self._foreign = not strangers.isdisjoint(before)
        if self._foreign:
            self.thaw()
        return self._foreign or not strangers

    def unseen(self) -> list[int]:
        """The pids in it that no scan can see (hidepid=2, another pid namespace): it is not known whose they are."""
        hidden = [pid for pid in self.pids() if not os.path.exists(f"{procfs.PROC}/{pid}/stat")]
        return sorted(self.pids().intersection(hidden))  # else it ended between the two reads

    def strangers(self) -> tuple[str, ...]:
        """What is still in it when all of the agent's processes are dead, as name[pid]: programs that are spared."""
        found = []
        for pid in sorted(self.pids()):
            with suppress(OSError, ValueError):  # ended meanwhile
                found.append(f"{procfs.stat(pid).name}[{pid}]")
        return tuple(found)

    async def freeze(self) -> None:
        """Freeze it. If that fails it is thawed, and not tried again before `next_round`."""
        self._tried = True
        if self._path is None:
            return
        try:
            self.frozen = True  # before it is: whatever happens next, `thaw` knows
            still = cgroups.freeze(self._path, 0)
            for _ in range(int(FREEZE_LIMIT / FREEZE_TICK)):
                if still:
                    return
                await asyncio.sleep(FREEZE_TICK)
                still = cgroups.events(self._path).frozen
        except OSError:
            pass  # EACCES, EROFS
        self.thaw()

    def kill(
        self, ours: Mapping[Identity, int | None], guard: Guard, looks: Mapping[Identity, SignalTarget]
    ) -> frozenset[int]:
        """Kill it as a whole, with `ours` and `looks` as for `kill_cgroup`; the pids that were killed, perhaps none."""
        if self._path is None or not self.frozen:
            return frozenset()
        try:
            return kill_cgroup(self._path, ours, guard, looks) or frozenset()
        except SignalRefused:
            return frozenset()

    def thaw(self) -> None:
        """Let its processes continue."""
        if self._path is None or not self.frozen:
            return
        self.frozen = False
        cgroups.thaw_if_ours(self._path)

    def next_round(self) -> None:
        """It may be frozen again."""
        self.thaw()
        self._tried = False


def release(members: Iterable[TreeMember], guard: Guard) -> None:
    """Continue processes that were stopped to be killed, and now are not."""
    for member in members:
        try:
            pidfd = pin(member.identity)
            if pidfd is None:
                continue
            try:
                carry_on(member.identity, guard, pidfd)
            finally:
                os.close(pidfd)
        except (SignalRefused, OSError):
            continue  # not ours to continue: then we have not stopped it


async def until_gone(identities: Collection[Identity], again: asyncio.Event, timeout: float) -> None:
    """Wait until all of these have exited (if there are any), `again` is set, or `timeout` seconds are over."""
    blind, loop = not identities, asyncio.get_running_loop()
    end = loop.time() + timeout
    pinned = []
    try:
        for identity in identities:
            try:
                pidfd = pin(identity)
            except OSError:
                blind = True  # no descriptor, or no right to look: only time helps
                continue
            if pidfd is not None:
                pinned.append(pidfd)
        waiting = _unended(pinned)
        while (waiting or blind) and not again.is_set() and (left := end - loop.time()) > 0:
            await _woken(waiting, again, left)
            waiting = _unended(waiting)
    finally:
        again.clear()
        for pidfd in pinned:
            os.close(pidfd)


async def _woken(pidfds: Collection[int], event: asyncio.Event, timeout: float) -> None:
    """Wait until one of these processes ends, or for the event, or for `timeout` seconds."""
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not woken.done():
            woken.set_result(None)

    for descriptor in pidfds:
        loop.add_reader(descriptor, wake)
    happened = asyncio.ensure_future(event.wait())
    happened.add_done_callback(lambda _: wake())
    try:
        await asyncio.wait([woken], timeout=max(0.0, timeout))
    finally:
        for descriptor in pidfds:
            loop.remove_reader(descriptor)
        happened.cancel()


def _unended(pidfds: Collection[int]) -> list[int]:
    """The pidfds whose process has not ended.

    A pidfd is readable when every thread has ended, zombie or not (pidfd_open(2)).
    """
    poller = select.poll()
    for descriptor in pidfds:
        poller.register(descriptor, select.POLLIN)
    ended = {descriptor for descriptor, _ in poller.poll(0)}
    return [descriptor for descriptor in pidfds if descriptor not in ended]
