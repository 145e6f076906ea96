"""One `[[source]]`: another program's registry, read by its owner's helper, and the consequences for its agents.

read -> register a new entry by the identity that the kernel reports -> treat changed content as a beat -> close an
entry there whose process is gone (`stale_entries`) -> report an agent whose entry is gone, keep watching it

A registry whose program beats is a promise, in that program's own rhythm; any other one promises nothing. An agent of a
registry is killed like any other; its entry is closed last, by the hook `registry_entry`.
"""

import os
from collections.abc import Awaitable
from dataclasses import dataclass, replace
from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.agents.heartbeat import newer_beat
from watchdog.agents.history import EventRecorder
from watchdog.agents.process_claim import Look
from watchdog.agents.registration import Registrar
from watchdog.clock import Clock, Instant
from watchdog.core.admission import WAIT
from watchdog.core.agent import Beat, State, Status
from watchdog.core.peer import Peer
from watchdog.core.process import Identity, Listed, Presence, TreeMember
from watchdog.core.provenance import zone_of
from watchdog.core.session_states import quiet_for
from watchdog.core.source_entries import MOST_ENTRIES, Entry
from watchdog.discovery import entry_match
from watchdog.discovery.custody import Custodians
from watchdog.discovery.entry_match import Match, MatchResult
from watchdog.discovery.stale_entries import StaleEntries
from watchdog.errors import BadRequest, Conflict, Forbidden, OwnerCallFailed, WatchdogError
from watchdog.helpers.nss import UserLookup
from watchdog.helpers.pool import HelperPool
from watchdog.probes import session_files
from watchdog.processes.identity import presence
from watchdog.telemetry import logger

DEADLINE = 3.0  # seconds for one read
PATIENCE = 60.0  # seconds until a registry on which two helpers in a row hung is read again
MOST_TEMP = 32  # temporary files recorded of one entry
MOST_LISTED = MOST_ENTRIES  # of one agent: a program that changes an entry's key at each read makes more and more
MISSED = 2  # reads without an entry until it counts as gone: a file may be in the middle of being replaced
FULL = (
    f"{MOST_ENTRIES + 1} living entries or more, of which {MOST_ENTRIES} are watched, as many as one uid may have"
    " agents: the others are not; stop those that are not needed, or spread them over registries of several users"
)
REPORTED_AT_ONCE = 16  # drifts of one read: with 256 new ones each time the log would hold nothing else
Json = dict[str, object]
Known = tuple[Agent, Listed]
EntryOf = tuple[str, str]  # agent id and key of its entry: it may have several in one registry
_SPOKEN = frozenset({Status.STARTING, Status.RUNNING})


class RegistryLocked(OwnerCallFailed):
    """A registry cannot be read: a stopped process holds its lock. `holders`: that process, then its ancestors."""

    def __init__(self, words: str, holders: tuple[int, ...]) -> None:
        super().__init__("busy", words)
        self.holders = holders


@dataclass(frozen=True, slots=True)
class ImportParts:
    """The parts of the daemon that every registry works with."""

    clock: Clock
    registrar: Registrar
    stale: StaleEntries
    custodians: Custodians
    helpers: HelperPool
    users: UserLookup
    recorder: EventRecorder


class ForeignRegistry:
    """State of one registry since the last read, and the success of reads. `shown`: the entries not watched."""

    def __init__(self, kind: str, path: str, parts: ImportParts) -> None:
        self.kind = kind
        self.path = path
        self.shown: list[Json] = []
        self._parts = parts
        self._clock = parts.clock
        self._registrar = parts.registrar
        self._fleet = parts.registrar.fleet
        self._stale = parts.stale
        self._uid = os.geteuid()  # its owner
        self._after_seconds: float | None = None
        self._writes: list[Awaitable[object]] = []
        # Success of the reads.
        self._late = 0  # reads in a row without an answer in time
        self._failed = 0  # reads in a row that failed
        self._not_before = 0.0  # monotonic
        self._reported = False  # that it cannot be read completely
        self._full = False  # there are more living entries than are watched: reported
        self._held_by: tuple[int, ...] = ()  # at the last read: the stopped process with its lock, first
        self._looked: float | None = None  # boot time of the last successful read
        # State of the entries at the last read.
        self._arrivals: dict[EntryOf, entry_match.Arrival] = {}  # of each entry, by key and token
        self._beats: dict[EntryOf, str | None] = {}
        # beat, state and note of each agent's entry
        self._last_beats: dict[EntryOf, tuple[str | None, str | None, str]] = {}
        self._missing: dict[str, int] = {}  # by agent, reads in a row without its entry
        self._named: dict[EntryOf, tuple[Identity, ...]] = {}  # further processes
        self._drifts: dict[str, float] = {}  # by key: reported drifts, and when last seen (monotonic)
        # Results of this read.
        self._seen: dict[int, Look] = {}  # of the processes that entries name
        self._doubles: dict[int, entry_match.Double] = {}  # of those with a new entry
        self._unheard_agents: list[str] = []  # agents whose beats cannot be read or written, and why
        self._looks_unheard = 0  # in a row
        self._lines = 0  # of drifts

    def writes(self) -> list[Awaitable[object]]:
        """Writes to the daemon's own registry that are not awaited yet; each is returned once."""
        writes, self._writes = self._writes, []
        return writes

    def _event(self, event: str, **fields: object) -> None:
        self._parts.recorder.event(event, source=self.kind, path=self.path, **fields)

    async def look(self, after_seconds: float | None, user: str) -> None:
        """Read it and apply it; errors are reported once, and none is raised.

        `after_seconds`: a promise that replaces its own. `user`: its owner; "": the daemon's own user.
        """
        self._after_seconds = after_seconds
        now = self._clock.mono()
        if now < self._not_before:
            return
        try:
            self._uid = await self._parts.users.uid(user)
        except OwnerCallFailed as error:
            self._unread(error)
            return
        with logger.caused_by(self._uid):  # the owner can write any content there
            await self._read(now)

    async def _read(self, now: float) -> None:
        """Its present content, read as its owner; `now`: when the read began."""
        try:
            args = {"kind": self.kind, "path": self.path}
            answer = await self._parts.helpers.call(self._uid, "source_discover", args, DEADLINE)
            told, problems = entry_match.parse_entries(answer, self._uid)
            for holder in (one for one in told if one.holders):
                raise RegistryLocked(holder.note, holder.holders)
        except OwnerCallFailed as error:
            self._unread(error)
            return
        if problems and not self._reported:
            why = f"{len(problems)} of its entries are passed over: {problems[0]}"
            self._event("source.unread", why=why)
        if self._reported and not problems:
            self._event("source.readable")
        self._late, self._failed, self._reported, self.shown, self._lines = 0, 0, bool(problems), [], 0
        self._held_by, self._unheard_agents = (), []
        unread = [one for one in told if one.unread]
        told = [one for one in told if not one.unread]
        if self._newly_full(answer):
            self._event("source.unread", why=FULL)
        self._stale.keep(self.kind, self.path, told)
        known = self._known()
        self._note_arrivals(told, self._clock.now())
        self._seen = await entry_match.looks(told, self._registrar.host)
        runs = {(own.key, own.token) for agents in known.values() for _, own in agents}
        new = (one for one in told if (one.key, one.token) not in runs)
        self._doubles = await entry_match.doubles(new, self._seen, self._uid)
        for entry in told:
            try:
                await self._take(entry, known.get(entry.key, []))
            except (OSError, WatchdogError) as error:
                self._show(entry, str(error))
        self._drifts = {drift: seen for drift, seen in self._drifts.items() if seen >= now}
        self._note_missing(told, unread)
        for one in unread:
            if not any(entry_match.unread_of(own, [one]) for agents in known.values() for _, own in agents):
                self._show(one, one.unread)
        if why := self._newly_unheard():
            self._event("source.unread", why=why)

    def _unread(self, error: OwnerCallFailed) -> None:
        """It cannot be read: reported once. After a second such read its agents are not judged by their silence.

        Except a stopped agent that keeps all others from reading it: its silence counts from the first such read on.
        """
        if error.reason == "closed":
            return
        self._failed += 1
        self._late = self._late + 1 if error.reason == "late" else 0
        if self._late > 1:
            self._not_before = self._clock.mono() + PATIENCE
        if not self._reported:
            self._reported = True
            self._event("source.unread", why=str(error))
        holders = error.holders if isinstance(error, RegistryLocked) else ()
        holds = self._first_of(holders, self._uid)
        for agent in self._fleet:
            if not agent.heartbeat.said.promised or not self._is_held_to(agent):
                continue
            if agent is not holds:
                if (self._failed > 1 or holders) and agent.heartbeat.silence.hindrance.unread is None:
                    agent.heartbeat.silence.unread_now()
            elif agent.heartbeat.silence.hindrance.unread is not None:
                agent.heartbeat.silence.read_again()
            elif holders != self._held_by:
                agent.heartbeat.silence.grant_fresh_limit()  # a beat right before it was not seen
        self._held_by = holders

    def _first_of(self, pids: tuple[int, ...], uid: int) -> Agent | None:
        """The nearest agent of that uid: a child acts for its own agent, not for that agent's ancestors."""
        mains = {one.identity.pid: one for one in self._fleet if one.identity and one.reg.owner_uid == uid}
        return next((mains[pid] for pid in pids if pid in mains), None)

    # -- one entry

    async def _take(self, entry: Entry, known: list[Known]) -> None:
        """Apply an entry to its agent; a new one is registered. `known`: agents that have had this entry.

        Raises WatchdogError, OSError.
        """
        if self._after_seconds is not None and entry.promise is not None:
            entry = replace(entry, promise=self._after_seconds)
        if entry.remote:
            self._show(entry, "it lives on another device")
            return
        if entry.drift:
            self._refuse(entry, entry.drift)
            return
        agent: Agent | None = None
        if known:
            agent, own = next((one for one in known if one[1].token == entry.token), known[0])
            if own.token != entry.token and not self._names(entry, agent):
                agent = None  # another run has its place by now
            elif not entry.living:
                return  # `_note_missing` reports it
            else:
                await self._refresh(agent, own, entry)
        if agent is None:
            agent = next((one for one in self._fleet if self._names(entry, one)), None)
            if not entry.living or (agent is not None and not agent.reg.owner_uid == self._uid == entry.uid):
                return  # a file proves nothing about another owner's agent
            if agent is not None:
                await self._attach(agent, entry)
        if agent is not None:
            self._stale.clear(self.kind, self.path, entry)
            await self._apply_beat(agent, entry)
            return
        double = self._doubles.get(entry.pid or 0)
        now, arrival = self._clock.now(), self._arrival(entry)
        found = entry_match.look(entry, self._seen, self._uid, self._fleet, now, arrival, double)
        if found.standing is MatchResult.GONE:
            self._stale.mark_dead(self.kind, self.path, entry, self._uid, found.why)
        elif found.standing is MatchResult.STRANGER:
            self._stale.clear(self.kind, self.path, entry)
            self._refuse(entry, found.why)
        elif found.standing is MatchResult.UNSEEN:
            self._show(entry, found.why)
        elif found.taken is not None:
            self._stale.clear(self.kind, self.path, entry)
            holder = await self._parts.custodians.holder_of(found.taken.identity, found.taken.uid)
            if holder is not None:
                self._show(entry, f"watched by {holder}")
                return
            await self._register(entry, found)

    def _refuse(self, entry: Entry, why: str) -> None:
        """It is not watched, and has no effect: shown, and reported once."""
        self._show(entry, why)
        if self._newly_drifts(entry, self._clock.mono()):
            self._event("source.drift", name=entry.name, why=why)

    def _known(self) -> dict[str, list[Known]]:
        """The agents with an entry in here, by its key: two if a new run took over the entry of a living one."""
        found: dict[str, list[Known]] = {}
        for agent in self._fleet:
            for own in self._listed(agent):
                found.setdefault(own.key, []).append((agent, own))
        return found

    def _names(self, entry: Entry, agent: Agent) -> bool:
        return entry_match.names(entry, agent, self._registrar.boot_id, self._clock.now(), self._arrival(entry))

    def _proves(self, entry: Entry, agent: Agent) -> bool:
        now, arrival = self._clock.now(), self._arrival(entry)
        return entry_match.proves(entry, agent, self._registrar.boot_id, now, self._seen, arrival)

    async def _register(self, entry: Entry, found: Match) -> None:
        """Register the process that it means, with as many fields as other agents permit. Raises WatchdogError."""
        uid, registrar = self._uid, self._registrar
        peer, proved = Peer(uid, uid, os.getpid()), found.standing is MatchResult.PROVED
        listed = entry_match.listed(self.kind, self.path, entry, proved)
        if registrar.take_share(uid) > WAIT:
            return  # its owner exceeds the share for new agents: the next read tries again
        async with registrar.turn_of_its_user(uid):
            if any(self._names(entry, agent) for agent in self._fleet):
                return  # its hook was faster: the next read attaches the entry to that agent
            for request in entry_match.registration_requests(self.kind, entry, listed):
                try:
                    agent = (await registrar.register(request, peer, found.taken)).agent
                    break
                except (BadRequest, Conflict, Forbidden) as error:
                    refusal = error  # its name, its parent or its task
            else:
                raise refusal
        self._stale.remember(self.kind, self.path, entry, agent.agent_id)
        _remember(agent, listed)
        await self._apply_beat(agent, entry, first=True)

    async def _attach(self, agent: Agent, entry: Entry) -> None:
        """Store the entry with an agent that was registered another way: it is closed with that agent."""
        listed = entry_match.listed(self.kind, self.path, entry, entry_match.identifies_process(entry))
        others = tuple(
            one for one in agent.reg.entries if (one.kind, one.path, one.key) != (self.kind, self.path, entry.key)
        )
        if len(others) >= MOST_LISTED:
            raise Conflict(f"{agent.reg.name} is in {len(others)} entries already")
        await self._keep(agent, (*others, listed))

    async def _refresh(self, agent: Agent, own: Listed, entry: Entry) -> None:
        """Store the present content: how to stop it may change while it lives."""
        new = replace(
            own,
            token=entry.token,
            proved=own.proved or self._proves(entry, agent),
            conversation=entry.conversation,
            resume=entry.resume,
            stop=entry.stop,
            pane=entry.pane,
            temp=tuple(dict.fromkeys([*own.temp, *entry.temp]))[:MOST_TEMP],  # its exit must not hide former ones
        )
        if entry.also or own.also:
            new = replace(new, also=self._also(agent, own, entry))
        if new != own:
            await self._keep(agent, tuple(new if one is own else one for one in agent.reg.entries))
        self._stale.remember(self.kind, self.path, entry, agent.agent_id)

    def _also(self, agent: Agent, own: Listed, entry: Entry) -> tuple[Identity, ...]:
        """Its further processes, each from the second read on: the exit of one that was named only once means nothing.

        One that has exited stays: its exit is the agent's, whether the registry still names it or not.
        """
        before = self._named.get((agent.agent_id, entry.key), ())
        named = self._named[agent.agent_id, entry.key] = entry_match.further(entry, self._seen, self._uid, self._fleet)
        stay = [one for one in own.also if one in named or presence(one, None) is Presence.ABSENT]
        return (*stay, *(one for one in named if one in before and one not in stay))

    async def _keep(self, agent: Agent, listed: tuple[Listed, ...]) -> None:
        self._writes.append(self._registrar.keep_entries(agent, listed))
        for one in listed:
            _remember(agent, one)

    # -- beats

    async def _apply_beat(self, agent: Agent, entry: Entry, *, first: bool = False) -> None:
        """Content that changed since the last read is a beat; the content of the first read is only the baseline."""
        word = (entry.beat, entry.state, entry.note)
        where = agent.agent_id, entry.key
        former = self._last_beats.get(where)
        held = self._is_held_to(agent)
        if entry.beat is None and held and agent.heartbeat.said.promised and (entry.unheard or (former and former[0])):
            # Its registry has had a beat without a visible time: the baseline stays.
            self._cannot_hear(agent, entry.unheard or "it shows none any more, and did before")
            return
        self._last_beats[where] = word
        if agent.status not in _SPOKEN:
            return
        state = State(entry.state) if entry.state in set(State) else None
        if agent.heartbeat.said.promised and not held:  # its own beats, by hooks perhaps, say more, but not all
            newer = newer_beat(agent.heartbeat, state, entry.state_since)
            if newer is not None:
                now = self._clock.now()
                agent.beat(newer, now.mono, now.wall)
            elif entry.promise is None:
                self._end_state(agent, state, entry)
            return
        if entry.promise is None:
            self._end_state(agent, state, entry)
            said = state is not None and (
                state is not agent.heartbeat.said.state or entry.note != (agent.heartbeat.said.note or "")
            )
            if agent.heartbeat.said.promised or not (said or (former is not None and former != word)):
                return  # its own beat, by a hook perhaps, says more
            beat = Beat(state=state, note=entry.note, promises=False)
        elif not first and (former is None or former == word):
            if entry.unheard:
                self._cannot_hear(agent, entry.unheard)
            else:
                agent.heartbeat.silence.read_again()
            return
        elif first and entry_match.before_its_process(entry, agent, self._clock.now(), self._arrival(entry)):
            return  # a former run's: this run has not begun to keep that promise
        else:
            if not held:  # the first promise: all that follows counts, for a later daemon too
                own = [one for one in self._listed(agent) if one.key == entry.key]
                kept = (replace(one, promises=True) if one in own else one for one in agent.reg.entries)
                await self._keep(agent, tuple(kept))
            after = timedelta(seconds=entry.promise)
            beat = Beat(state=state, note=entry.note, after=None if after == agent.heartbeat.silence.after else after)
        now = self._clock.now()
        agent.beat(beat, now.mono, now.wall)

    def _cannot_hear(self, agent: Agent, why: str) -> None:
        """Do not judge it by its silence while this lasts."""
        if agent.status in _SPOKEN:
            self._unheard_agents.append(f"{agent.reg.name}: {why}")
            if agent.heartbeat.silence.hindrance.unread is None:
                agent.heartbeat.silence.unread_now()

    def _end_state(self, agent: Agent, state: State | None, entry: Entry) -> None:
        """End a state whose end no hook reports."""
        if (
            agent.heartbeat.reads_answers
            and entry.state_since is not None
            and agent.heartbeat.silence.lasted >= quiet_for(agent.heartbeat.silence.after)
        ):
            session_files.take(agent, state, entry.state_since, self._clock)

    def _note_missing(self, told: list[Entry], unread: list[Entry]) -> None:
        """Report living agents whose entry is gone or says "ended", keep watching them, and stop counting silence.

        If an entry cannot be read, neither is known: an agent that beats there is not judged until it can be read.
        """
        there = {(one.key, one.token) for one in told if one.living}
        missing = dict[str, int]()
        for agent in self._fleet:
            own = self._listed(agent)
            if not own or agent.status not in _SPOKEN or any((one.key, one.token) in there for one in own):
                continue
            if why := next(filter(None, (entry_match.unread_of(one, unread) for one in own)), ""):
                missing[agent.agent_id] = self._missing.get(agent.agent_id, 0)
                if agent.heartbeat.said.promised and self._is_held_to(agent):
                    self._cannot_hear(agent, why)
                continue
            count = missing[agent.agent_id] = self._missing.get(agent.agent_id, 0) + 1
            if count == MISSED:
                says = {one.key for one in own} & {one.key for one in told}
                why = "its registry says that it has ended" if says else "it is gone there"
                self._parts.recorder.event(
                    "source.entry_gone", agent_id=agent.agent_id, name=agent.reg.name, source=self.kind, why=why
                )
                if self._is_held_to(agent):
                    agent.amend(replace(agent.reg, stall_after=None))
                    agent.heartbeat.release()
        self._missing = missing
        self._last_beats = {key: word for key, word in self._last_beats.items() if self._fleet.get(key[0]) is not None}
        self._named = {key: named for key, named in self._named.items() if key in self._last_beats}

    # -- from one read to the next

    def _note_arrivals(self, told: list[Entry], now: Instant) -> None:
        """Record which entries are new since the last read, and the time zone that their beats reveal."""
        former, self._arrivals = self._arrivals, {}
        beats, self._beats = self._beats, {}
        for entry in told:
            key = entry.key, entry.token
            arrival = former.get(key) or entry_match.Arrival(self._looked, now.boot)
            if entry.beat_at is not None and key in beats and beats[key] != entry.beat:
                arrival = replace(arrival, zone=zone_of(entry.beat_at, now.wall.timestamp()))
            self._arrivals[key], self._beats[key] = arrival, entry.beat
        self._looked = now.boot

    def _arrival(self, entry: Entry) -> entry_match.Arrival:
        """When it came, as far as that is known."""
        return self._arrivals.get((entry.key, entry.token), entry_match.Arrival())

    def _show(self, entry: Entry, why: str) -> None:
        """Show it in `list` as not watched, and why."""
        self.shown.append(entry_match.shown(self.kind, entry, self._uid, why))

    def _newly_unheard(self) -> str:
        """New problems with reading beats: reported once, at the second read in a row (a write may be in progress)."""
        self._looks_unheard = self._looks_unheard + 1 if self._unheard_agents else 0
        if self._looks_unheard != 2:
            return ""
        more = f" (and of {len(self._unheard_agents) - 1} more)" if len(self._unheard_agents) > 1 else ""
        return f"the heartbeats of {self._unheard_agents[0]}{more}; none of them is judged by its silence meanwhile"

    def _newly_full(self, answer: object) -> bool:
        """Whether to report a living entry beyond `MOST_ENTRIES`: once as long as there is one."""
        beyond = answer[MOST_ENTRIES:] if isinstance(answer, list) else []
        former, self._full = self._full, any(isinstance(one, dict) and one.get("living", True) for one in beyond)
        return self._full and not former

    def _newly_drifts(self, entry: Entry, now: float) -> bool:
        """Whether to report this drift: once as long as it lasts, however its text changes, and only some of many."""
        new = entry.key not in self._drifts
        if new and self._lines >= REPORTED_AT_ONCE:
            return False
        self._lines += new
        self._drifts[entry.key] = now
        return new

    def _listed(self, agent: Agent) -> list[Listed]:
        """Its entries in here."""
        return [one for one in agent.reg.entries if (one.kind, one.path) == (self.kind, self.path)]

    def _is_held_to(self, agent: Agent) -> bool:
        """Whether it promised the beats in here: it was registered from here, or had promised nothing before."""
        return any(agent.reg.source == self.kind or one.promises for one in self._listed(agent))


def _remember(agent: Agent, listed: Listed) -> None:
    """Add further processes of the agent to its tree, whatever started them."""
    known = {member.identity for member in agent.tree.members}
    agent.tree.remember(
        tuple(TreeMember(one, 0, agent.reg.owner_uid, "", "", "remembered") for one in listed.also if one not in known)
    )
