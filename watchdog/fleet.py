"""The agents in memory: what each has said, how long the daemon has watched it silent, and its pidfd.

Only the event loop touches this; nothing here does I/O beyond closing a pidfd. Silence grows only in `watch`, by time
that the daemon watched on its monotonic clock, so no clock step, suspend or late start can make anybody stale.
"""

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from watchdog.core.model import (
    LIVE,
    Beat,
    Identity,
    Policy,
    Presence,
    Registration,
    State,
    Status,
    TreeMember,
    Verdict,
)
from watchdog.core.verdict import Judgement, Observation
from watchdog.errors import AgentNotFound, Ambiguous, Conflict
from watchdog.registry.rows import AgentRow, SweepRow

ZERO = timedelta()


@dataclass(slots=True)
class Agent:
    """One watched run: its registration, its status, and all that silence is reckoned from."""

    reg: Registration
    policy: Policy
    status: Status
    notify_socket: str | None = None
    pidfd: int | None = None
    wrapper: Identity | None = None  # the `run` that started it, which adopts its orphans
    owner_saved: int | None = None  # the owner that the registry knows
    # what it said
    beats: int = 0
    touched: float | None = None  # monotonic instant of the last word, not yet reckoned by `watch`
    last_heartbeat: datetime | None = None
    promised: bool = False
    after_said: timedelta | None = None
    state: State | None = None
    note: str | None = None
    speaker_pid: int | None = None  # who sent its last word through a socket of ours
    tool: str | None = None
    progress: float | None = None
    # what was watched
    age: timedelta = ZERO
    silence: timedelta = ZERO
    state_age: timedelta = ZERO
    progress_age: timedelta | None = None
    lease_left: timedelta = ZERO
    tool_left: timedelta = ZERO
    unread: timedelta | None = None
    channel_lost: bool = False
    # what was made of it
    verdict: Verdict | None = None
    line: str = ""
    beats_judged: int = 0  # its count of beats at the last look: one more since then makes the verdict old
    late_looks: int = 0
    looked: float | None = None  # monotonic instant of the last counted late look
    first_look: bool = True
    activity: str | None = None
    members: tuple[TreeMember, ...] = ()
    cpu_used: dict[Identity, float] | None = None  # of each process of the tree, at the last scan
    request_id: str | None = None
    ordering: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while an order to end it is committed
    said: set[str] = field(default_factory=set)  # events of the present condition, told once
    exit_code: int | None = None
    exit_signal: int | None = None

    @property
    def agent_id(self) -> str:
        return self.reg.agent_id

    @property
    def identity(self) -> Identity | None:
        return self.reg.identity

    @property
    def after(self) -> timedelta:
        """The silence that is too long: its own word, else its registration, else the policy; never under two beats."""
        after = self.after_said or self.reg.stall_after or self.policy.after
        if self.reg.interval is not None:
            after = max(after, 2 * self.reg.interval)
        return after

    @property
    def silent(self) -> bool:
        """Whether only its activity, which takes a scan to see, still speaks for it."""
        excused = self.lease_left > ZERO or self.tool_left > ZERO or self.state not in (None, State.WORKING)
        if not self.promised or excused or self.request_id is not None:
            return False
        return self.silence >= self.after and self.verdict is not Verdict.STALLED

    @property
    def ttl_left(self) -> timedelta | None:
        return None if self.reg.ttl is None else self.reg.ttl - self.age

    def beat(self, beat: Beat, mono: float, wall: datetime) -> None:
        """Take one word of the agent. The same content again is a new beat."""
        self.beats += 1
        self.touched = mono
        self.last_heartbeat = wall
        self.silence = ZERO
        self.unread = None
        self.channel_lost = False
        self.late_looks = 0
        self.promised = self.promised or beat.promises
        if beat.promises or beat.state is not None:
            state = beat.state or State.WORKING
            if state is not self.state:
                self.state, self.state_age = state, ZERO
        if beat.after is not None:
            self.after_said = min(beat.after, self.policy.wait_limit)
        if beat.silent_for is not None:
            self.lease_left = min(beat.silent_for, self.policy.wait_limit)
        if beat.tool is not None:
            self.tool = beat.tool or None
            self.tool_left = min(beat.tool_limit or ZERO, self.policy.wait_limit) if self.tool else ZERO
        if beat.progress is not None:
            if beat.progress != self.progress:
                self.progress_age = ZERO
            self.progress = beat.progress
        if beat.note is not None:
            self.note = beat.note

    def watch(self, last: float, now: float, cap: float) -> None:
        """Reckon the time from `last` to `now` (monotonic seconds), at most `cap`, to everything that ages.

        A lease and a declared tool are used up first: silence begins when they end.
        """
        self.age += timedelta(seconds=min(now - last, cap))
        since = last if self.touched is None else max(last, self.touched)
        quiet = timedelta(seconds=max(0.0, min(now - since, cap)))
        excused = min(max(self.lease_left, self.tool_left), quiet)
        self.lease_left = max(ZERO, self.lease_left - quiet)
        self.tool_left = max(ZERO, self.tool_left - quiet)
        self.silence += quiet - excused
        self.state_age += quiet
        if self.progress_age is not None:
            self.progress_age += quiet
        if self.unread is not None:
            self.unread += quiet
        self.touched = None

    def restore(self, row: AgentRow) -> None:
        """Take over what an earlier daemon watched; the time without one does not count."""
        self.beats, self.last_heartbeat = row.beats, row.last_heartbeat
        self.promised = row.promised or self.reg.stall_after is not None
        self.state, self.note, self.tool, self.progress = row.state, row.note, row.tool, row.last_progress
        self.age = timedelta(seconds=row.watched_seconds)
        self.silence = timedelta(seconds=row.silence_seconds)
        self.lease_left = timedelta(seconds=row.lease_left_seconds or 0)
        self.tool_left = timedelta(seconds=row.tool_left_seconds or 0)
        self.speaker_pid = row.speaker_pid
        if row.last_progress is not None:
            self.progress_age = timedelta(seconds=row.progress_silence_seconds)

    def row(self) -> SweepRow:
        """What a sweep writes down of it; `restore` reads it back."""
        after = self.after_said or self.reg.stall_after
        return SweepRow(
            agent_id=self.agent_id,
            silence_seconds=self.silence.total_seconds(),
            watched_seconds=self.age.total_seconds(),
            beats=self.beats,
            promised=self.promised,
            stall_after_seconds=None if after is None else after.total_seconds(),
            last_heartbeat=self.last_heartbeat,
            state=self.state,
            verdict=self.verdict,
            note=self.note,
            last_progress=self.progress,
            progress_silence_seconds=(self.progress_age or ZERO).total_seconds(),
            lease_left_seconds=self.lease_left.total_seconds(),
            tool=self.tool,
            tool_left_seconds=self.tool_left.total_seconds(),
            speaker_pid=self.speaker_pid,
        )

    def observe(self, presence: Presence, now: float, interval: float) -> Observation:
        """What `judge` needs, as a value; a look too soon after the last late one does not count as another."""
        again = self.looked is not None and now - self.looked < 0.9 * interval
        return Observation(
            presence=presence,
            status=self.status,
            promised=self.promised,
            has_beaten=self.beats > 0,
            age=self.age,
            silence=self.silence,
            after=self.after,
            state=self.state,
            state_age=self.state_age,
            lease_left=self.lease_left,
            tool=self.tool,
            tool_left=self.tool_left,
            progress_age=self.progress_age,
            ttl_left=self.ttl_left,
            late_looks=self.late_looks - again,
            first_look=self.first_look,
            activity=self.activity,
            channel_lost=self.channel_lost,
            unread=self.unread,
        )

    def judged(self, judgement: Judgement, now: float, interval: float) -> None:
        """Remember a verdict and count the look."""
        self.verdict, self.line, self.beats_judged = judgement.verdict, judgement.line, self.beats
        if judgement.verdict not in (Verdict.LATE, Verdict.STALLED):
            self.late_looks, self.looked, self.first_look = 0, None, False
        elif self.looked is None or now - self.looked >= 0.9 * interval:
            self.late_looks += 1
            self.looked = now

    def identify(self, identity: Identity, owner_uid: int) -> None:
        """Take the identity and owner that the kernel told."""
        self.reg = replace(self.reg, identity=identity, owner_uid=owner_uid)

    def close(self) -> None:
        """Let go of the pidfd."""
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None


class Fleet:
    """All agents that are not closed, by id."""

    def __init__(self) -> None:
        self._agents: dict[str, Agent] = {}

    def __iter__(self) -> Iterator[Agent]:
        return iter(list(self._agents.values()))

    def __len__(self) -> int:
        return len(self._agents)

    def add(self, agent: Agent) -> None:
        """Take in an agent whose row is committed."""
        agent.owner_saved = agent.reg.owner_uid
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
                f"{name} is the name of a living agent of yours ({agent.agent_id}); end it first or take another name"
            )

    def one(self, target: str, visible: frozenset[str] | None = None) -> Agent:
        """The living agent of a name, id, unique id prefix (8 or more characters) or pid.

        `visible` limits names and prefixes to those ids. Raises AgentNotFound or Ambiguous, which lists the ids.
        """
        candidates = [a for a in self if visible is None or a.agent_id in visible]
        exact = [a for a in candidates if a.agent_id == target]
        fits = exact or [a for a in candidates if a.reg.name == target]
        if not fits and target.isdigit():
            fits = [a for a in candidates if a.identity is not None and a.identity.pid == int(target)]
        if not fits and len(target) >= 8:
            fits = [a for a in candidates if a.agent_id.startswith(target)]
        if not fits:
            raise AgentNotFound(f"no living agent is called {target!r} (see: agent-watchdog list)")
        if len(fits) > 1:
            ids = ", ".join(sorted(f"{a.agent_id} (uid {a.reg.owner_uid})" for a in fits))
            raise Ambiguous(f"{target!r} fits {len(fits)} living agents, say which: {ids}")
        return fits[0]

    def many(self, target: str, visible: frozenset[str] | None = None) -> list[Agent]:
        """All living agents of one target: a single one, `tag:X`, `task:X`, `type:X`, `stalled` or `all`."""
        candidates = [a for a in self if visible is None or a.agent_id in visible]
        kind, _, value = target.partition(":")
        if target == "all":
            return candidates
        if target == "stalled":
            return [a for a in candidates if a.verdict is Verdict.STALLED]
        if value and kind == "tag":
            return [a for a in candidates if value in a.reg.tags]
        if value and kind == "task":
            return [a for a in candidates if a.reg.task_id == value]
        if value and kind == "type":
            return [a for a in candidates if a.reg.agent_type == value]
        return [self.one(target, visible)]

    def children(self, agent_id: str) -> list[Agent]:
        """Living agents that name this one as their parent."""
        return [a for a in self if a.reg.parent_id == agent_id]

    def processes_but(self, agent_id: str) -> frozenset[tuple[int, int]]:
        """Every process of every other agent's tree, as pid and start ticks."""
        mine = self.get(agent_id)
        others = [other for other in self if other is not mine]
        theirs = [member.identity for other in others for member in other.members]
        theirs += [main for other in others if (main := other.reg.identity) is not None]
        return frozenset([(one.pid, one.start_ticks) for one in theirs])
