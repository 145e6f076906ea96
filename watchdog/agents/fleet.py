"""The agents in memory: what each has said and done (`speaker`), what was made of it, its tree and its pidfd.

Only the event loop touches this; nothing here does I/O beyond closing a pidfd.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import timedelta
from operator import attrgetter
from typing import Any

from watchdog.agents.heartbeat import Heartbeat
from watchdog.config.settings import Settings
from watchdog.core.agent import LIVE, Policy, State, Status, Verdict
from watchdog.core.custody import Holder
from watchdog.core.kill import Step
from watchdog.core.process import Identity, Listed, Presence, TreeMember, cgroup_names
from watchdog.core.sessions import SESSION, shared_words
from watchdog.core.sites import Site
from watchdog.core.usage import Used
from watchdog.core.verdict import Judgement, Observation, left_to_another, quiet, span
from watchdog.errors import Conflict
from watchdog.processes.signals import Guard

ZERO = timedelta()
MOST_WORDS = 5  # of one kind in which others' words stand, told of the present condition of an agent
_TREE = attrgetter("reg", "members")


@dataclass(slots=True)
class Agent(Heartbeat):
    """One watched run: its status, what was made of what it said, and its processes."""

    status: Status
    notify_socket: str | None = None
    pidfd: int | None = None
    met_alive: bool = False  # its process lived when we first held it: an end that came later is one that we watched
    ended: bool = False  # its pidfd said so
    wrapper: Identity | None = None  # the `run` that started it, which adopts its orphans
    home_cgroup: str | None = None  # where its main process was seen last
    dropping: int | None = None  # the user to whom its process has dropped from root, until that is committed
    untouchable: str | None = None  # why nothing is done as its owner, by the last look at its process (`ownership`)
    unseen: str | None = None  # why that look failed
    untouchable_told: bool = False
    rung: Step | None = None  # the step of its ladder that was taken last, in this spell of trouble
    rung_at: timedelta = ZERO  # its age then
    rung_renewed: int = 0  # and what it had said: another word obeys the step
    # what was made of it
    verdict: Verdict | None = None
    line: str = ""
    presence: Presence = Presence.ALIVE  # by the last look
    hangs: str | None = None  # which file of its main process did, then
    beats_judged: int = 0  # its count then
    scan_age: timedelta | None = None  # of a copy that is shown: how old what is known of its processes is
    silence_written: timedelta = ZERO
    renewed_judged: int = 0  # `renewed` at the last look: one more since then makes the verdict old
    doomed_since: float | None = None  # monotonic instant from which on its silence asks for its end
    first_look: bool = True
    members: tuple[TreeMember, ...] = ()
    members_read: tuple[TreeMember, ...] = ()  # those that `recording` has seen
    tree_written: tuple[str | None, tuple[Identity, ...]] = (None, ())  # home and members, as its row has them
    marks: frozenset[str] = frozenset()  # values of vendors' markers that were made in its tree
    cpu_used: dict[Identity, Used] | None = None  # by each process of the tree, at the last scan
    cpu_waited: dict[Identity, float] = field(default_factory=dict)  # the same, if it was in question then
    oom_counts: dict[str, int] = field(default_factory=dict)  # by its memory cgroup and the one above, at the last look
    request_id: str | None = None
    ordering: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while an order to end it is committed
    said: set[str] = field(default_factory=set)  # events of the present condition, told once
    refused: set[str] = field(default_factory=set)  # messages about it that did not count, each told once
    needed_human: bool = False  # told, and not answered yet
    recovering: bool = False  # it was late, and is well for no word of its own: what it says next is its recovery
    perhaps: dict[str, str] = field(default_factory=dict)  # by id: agents that stand for sessions it may have begun
    lives_on: str | None = None  # what of it could not be killed, at the last attempt
    expiry_told: bool = False
    cap_told: bool = False
    exit_code: int | None = None
    exit_signal: int | None = None
    elsewhere: Holder | None = None  # another daemon, whose it is
    exit_told: str = ""  # by whom, if not by the kernel or `run` at once; or why nobody knows it

    def first(self, key: str, kind: str = "") -> bool:
        """Whether this is to be told: not yet told of the present condition.

        `kind`: what keys begin with that hold another's words, of which there may be any number: five are told.
        """
        if key in self.said or (kind and sum(one.startswith(kind) for one in self.said) >= MOST_WORDS):
            return False
        self.said.add(key)
        return True

    def first_refusal(self, key: str, kind: str) -> bool:
        """Whether this is to be told, as `first`; what does not count has nothing to do with its condition."""
        if key in self.refused or sum(one.startswith(kind) for one in self.refused) >= MOST_WORDS:
            return False
        self.refused.add(key)
        return True

    @property
    def agent_id(self) -> str:
        return self.reg.agent_id

    @property
    def identity(self) -> Identity | None:
        return self.reg.identity

    @property
    def conversations(self) -> frozenset[str]:
        """Ids of its sessions that a shared service works for."""
        return frozenset([one.key for one in self.reg.entries if one.kind == SESSION])

    @property
    def served(self) -> frozenset[tuple[str, Identity]]:
        """The same, each with the service: below another one the same id is another session."""
        return frozenset([(one.key, it) for one in self.reg.entries if one.kind == SESSION for it in one.also])

    @property
    def served_by(self) -> frozenset[int]:
        """Pids of the shared services that work for its sessions."""
        return frozenset([one.pid for entry in self.reg.entries if entry.kind == SESSION for one in entry.also])

    @property
    def shared(self) -> str:
        """What of it a shared service does, in words."""
        sessions = [one for one in self.reg.entries if one.kind == SESSION]
        services = [f"{one.path}[{service.pid}]" for one in sessions for service in one.also]
        return shared_words(services, self.perhaps.values())

    @property
    def exit_known(self) -> bool:
        return self.exit_code is not None or self.exit_signal is not None

    @property
    def processes(self) -> frozenset[tuple[int, int]]:
        """Its main process and its tree, as pid and start ticks."""
        known = [member.identity for member in self.members]
        known += [self.identity] if self.identity is not None else []
        return frozenset([(one.pid, one.start_ticks) for one in known])

    @property
    def started(self) -> bool:
        """Whether what one waits for has come that starts: its first beat, where it promised any, or a process."""
        return self.beats > 0 if self.promised else self.identity is not None or bool(self.members)

    @property
    def cgroup(self) -> str | None:
        """The cgroup v2 that is its own, as /proc/PID/cgroup names it; nobody but `run` makes one of that name."""
        path = self.reg.cgroup
        return path if path is not None and path.rpartition("/")[2] in cgroup_names(self.agent_id) else None

    @property
    def in_question(self) -> bool:
        """Whether it has been silent for so long that what it does may soon decide."""
        if not self.promised or self.request_id is not None or (4 * self.silence < self.after and not self.stuck):
            return False
        return not self.excused

    def needs_scan(self, interval: timedelta) -> bool:
        """Whether the activity of one in question, which takes a scan to see, decides now or at the next look.

        What its tree used is known from scan to scan: one has to lie before the look that finds it late.
        """
        if self.verdict is Verdict.STALLED:
            return False
        return self.stuck or self.counted >= self.after - 1.5 * interval

    @property
    def settled(self) -> bool:
        """Whether a look could find nothing new as long as its process lives."""
        return self.verdict is Verdict.HEALTHY and self.age < self.settled_until and not self.recovering

    @property
    def why(self) -> str:
        """The line of its verdict, of which a healthy one's goes on counting.

        Or what of it could not be killed, or whose it is.
        """
        if self.status is Status.UNKILLABLE and self.lives_on:
            return f"cannot be killed: {self.lives_on}"
        if self.elsewhere is not None and self.verdict is not Verdict.GONE:  # its silence is not counted here
            return left_to_another(str(self.elsewhere))
        counts = self.verdict is Verdict.HEALTHY and self.promised and self.line
        return quiet(self.counted, self.after, self.forgiven) if counts else self.line

    @property
    def needs_person(self) -> bool:
        """Whether it waits for a person: by its own word, as was reported of its pane, or as its pane shows now."""
        asks = self.verdict is Verdict.WAITING and self.sights.prompt is not None
        return self.state is State.WAITING or self.needed_human or asks

    @property
    def ttl_left(self) -> timedelta | None:
        return None if self.reg.ttl is None else self.reg.ttl - self.age

    @property
    def ttl_warning(self) -> timedelta:
        """How long before the end of its time that is told: a tenth of it, five minutes at most."""
        return ZERO if self.reg.ttl is None else min(self.reg.ttl / 10, timedelta(minutes=5))

    @property
    def expires_soon(self) -> bool:
        return self.ttl_left is not None and ZERO < self.ttl_left <= self.ttl_warning

    def unsaved(self, slack: timedelta) -> bool:
        """Whether its row has to be written, since it lacks a word, or holds more silence than there is (by `slack`).

        A daemon that goes on from such a row would call it late too early; what a row lacks of silence harms nobody.
        """
        return self.changed or self.silence_written > self.silence + slack

    def observe(self, presence: Presence, now: float, interval: float) -> Observation:
        """What `judge` needs, as a value; a look too soon after the last late one does not count as another."""
        again = self.looked is not None and now - self.looked < 0.9 * interval
        return Observation(
            presence=presence,
            hangs=self.hangs,
            status=self.status,
            promised=self.promised,
            has_beaten=self.beats > 0,
            age=self.age,
            forgiven=self.forgiven,
            silence=self.counted,
            after=self.after,
            state=self.state,
            state_age=self.state_age,
            rests_on=self.rests_on,
            lease_left=self.lease_left,
            tool=self.tool,
            tool_left=self.tool_left,
            progress_age=self.progress_age,
            asks=None if self.sights.prompt is None else self.sights.prompt.text,
            unprompted=self.sights.unprompted,
            ttl_left=self.ttl_left,
            ttl_warning=self.ttl_warning,
            late_looks=self.late_looks - again,
            first_look=self.first_look,
            activity=self.activity,
            channel_lost=self.channel_lost,
            elsewhere=None if self.elsewhere is None else str(self.elsewhere),
            members=len(self.members),
            unread=self.unread,
            halt=self.halt,
            halted=self.halted,
        )

    def perhaps_started(self, presence: Presence) -> bool:
        """Whether it counts as not started, if no process of it lives: nobody has told a pid, and it may need none."""
        return presence is Presence.NO_PID and not self.promised and self.age >= self.policy.start_limit

    def copy(self) -> "Agent":
        """One whose ages go on by themselves, to be shown; it holds what this one holds, and must not be closed."""
        shown = copy(self)
        shown.sights = self.sights.copy()
        return shown

    def shown(self, judgement: Judgement, since: timedelta) -> None:
        """Of a copy: what its ages of now make of its verdict. `since`: the last look.

        A verdict that only time has changed is for a look, which tells it; a word since then counts at once.
        """
        spoke = self.beats != self.beats_judged
        if judgement.verdict is self.verdict or (spoke and judgement.verdict in (Verdict.HEALTHY, Verdict.WAITING)):
            self.verdict, self.line = judgement.verdict, judgement.line
        elif self.verdict is not Verdict.HEALTHY and self.line:
            self.line += f" ({span(since)} ago)"

    def judged(self, judgement: Judgement, now: float, interval: float) -> None:
        """Remember a verdict and count the look."""
        self.settled_until = self.age + judgement.stands
        self.changed = self.changed or judgement.verdict is not self.verdict
        self.verdict, self.line, self.renewed_judged = judgement.verdict, judgement.line, self.renewed
        self.beats_judged = self.beats
        if judgement.verdict is not Verdict.STALLED and not judgement.overdue:
            self.doomed_since = None
        elif self.doomed_since is None:
            self.doomed_since = now
        if judgement.verdict not in (Verdict.LATE, Verdict.STALLED):
            self.late_looks, self.looked, self.first_look = 0, None, False
        elif self.looked is None or now - self.looked >= 0.9 * interval:
            self.late_looks += 1
            self.looked = now

    def left_to(self, holder: Holder) -> None:
        """It is another daemon's: nothing is judged here."""
        self.elsewhere, self.settled_until = holder, ZERO

    def taken_over(self) -> None:
        """It is ours (again): what it said to that daemon nobody has told us, so its silence begins now.

        Its `run` may not have found out yet that it is ours, and what it says cannot reach us before.
        """
        self.elsewhere, self.settled_until = None, ZERO
        self.silence = self.forgiven = self.halted = ZERO
        self.late_looks, self.looked, self.doomed_since = 0, None, None
        if self.reg.source == "run":
            self.lose_channel()

    def climbed(self, rung: Step | None) -> None:
        """It has come to that step of its ladder now (None: to none)."""
        self.rung, self.rung_at, self.rung_renewed = rung, self.age, self.renewed

    def adopt(self, policy: Policy) -> None:
        """Other limits from now on."""
        self.policy, self.settled_until = policy, ZERO

    def identify(self, identity: Identity, owner_uid: int) -> None:
        """Take the identity and owner that the kernel told."""
        self.reg = replace(self.reg, identity=identity, owner_uid=owner_uid)

    def drop(self, uid: int) -> None:
        """Its process dropped from root to that user, which is committed. A pane that root found is not the user's."""
        self.reg = replace(self.reg, owner_uid=uid, dropped=True, pane=None)
        self.dropping = None

    def lies_at(self, worktree: Site | None, temp_dir: Site | None) -> None:
        """What was seen at its places."""
        self.reg = replace(self.reg, worktree_site=worktree, temp_site=temp_dir)

    def listed(self, entries: tuple[Listed, ...]) -> None:
        """Where foreign registries tell of it now."""
        self.reg = replace(self.reg, entries=entries)

    def released(self) -> None:
        """Who promised its beats says nothing of it any more."""
        self.reg = replace(self.reg, stall_after=None)
        self.promised, self.after_said, self.settled_until, self.changed = False, None, ZERO, True

    def placed(self, cgroup: str) -> None:
        """It sits in a cgroup of its own."""
        self.reg = replace(self.reg, cgroup=cgroup)

    def close(self) -> None:
        """Let go of the pidfd."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class Fleet:
    """All agents that are not closed, by id."""

    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}
        self._processes_of: list[tuple[Any, Any]] = []
        self._processes: frozenset[tuple[int, int]] = frozenset()
        self._shared: frozenset[tuple[int, int]] = frozenset()  # that two agents have

    def __iter__(self) -> Iterator[Agent]:
        return iter(list(self._agents.values()))

    def __len__(self) -> int:
        return len(self._agents)

    def apply(self, settings: Settings) -> None:
        """Each goes by its policy of these from now on."""
        for agent in self:
            agent.adopt(settings.policy_for(agent.reg))

    def add(self, agent: Agent) -> None:
        """Take in an agent whose row is committed."""
        self._agents[agent.agent_id] = agent

    def get(self, agent_id: str) -> Agent | None:
        return self._agents.get(agent_id)

    def drop(self, agent_id: str) -> None:
        """Forget a closed agent."""
        agent = self._agents.pop(agent_id, None)
        if agent is not None:
            agent.close()

    def named(self, name: str, owner_uid: int | None = None) -> list[Agent]:
        """Living agents of that name, of one owner or of all."""
        return [a for a in self if a.reg.name == name and owner_uid in (None, a.reg.owner_uid) and a.status in LIVE]

    def refuse_taken(self, name: str, owner_uid: int) -> None:
        """Raise Conflict when the owner has a living agent of that name."""
        for agent in self.named(name, owner_uid):
            raise Conflict(
                f"{name} is a living agent of yours ({agent.agent_id}): replace it (--replace), or choose another name"
            )

    def children(self, agent_id: str) -> list[Agent]:
        """Living agents that name this one as their parent."""
        return [a for a in self if a.reg.parent_id == agent_id]

    def guard(self, agent: Agent, host: str) -> Guard:
        """What must not be signalled while it is ended: every other agent and its tree, what its policy spares, and
        services that sessions share, whoever has their processes recorded."""
        spare = frozenset(agent.policy.spare)
        return Guard(host, self.processes_but(agent.agent_id), spare, agent.identity)

    def processes_but(self, agent_id: str) -> frozenset[tuple[int, int]]:
        """Every process of every other agent's tree, and every shared service, as pid and start ticks.

        Each signal asks. So what all have is kept for as long as nobody has come, gone, or got another tree.
        """
        of = list(map(_TREE, self._agents.values()))
        if self._processes_of != of:
            counts = Counter(one for agent in self._agents.values() for one in agent.processes)
            mains = {(a.identity.pid, a.identity.start_ticks) for a in self._agents.values() if a.identity is not None}
            served = {(one.pid, one.start_ticks) for agent in self._agents.values() for _, one in agent.served} - mains
            self._processes = frozenset(counts) | served
            self._shared = frozenset(one for one, count in counts.items() if count > 1) | served
        self._processes_of = of  # also where it is equal: the very same is compared fifteen times as fast
        mine = self.get(agent_id)
        return self._processes if mine is None else self._processes - (mine.processes - self._shared)
