"""Agents that a `[[source]]` tells of: other programs' registries, each read beside the sweep by its owner's helper.

    read -> who is new is registered by the identity that the kernel tells -> other content is a beat
         -> whose process is gone is closed there (`ghosts`) -> who stands there no more is told, and kept watched

A registry whose program beats is a promise, in that program's own rhythm; any other one promises nothing. What ends
here is an agent like any other; its entry is closed last, by the hook `registry_entry`.
"""

import asyncio
import os
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta

from watchdog.agents.fleet import Agent
from watchdog.agents.history import EventRecorder
from watchdog.agents.registration import Registrar
from watchdog.clock import Clock
from watchdog.config.schema import SourceSection
from watchdog.config.settings import Settings
from watchdog.core.admission import WAIT
from watchdog.core.agent import Beat, State, Status
from watchdog.core.peer import Peer
from watchdog.core.process import Identity, Listed, Presence, TreeMember
from watchdog.core.session_states import quiet_for
from watchdog.core.source_entries import MOST_ENTRIES, Entry
from watchdog.discovery import entry_match
from watchdog.discovery.custody import Custodians
from watchdog.discovery.entry_match import Match, MatchResult
from watchdog.discovery.source_places import FULL, SourceState, UserLookup
from watchdog.discovery.stale_entries import StaleEntries
from watchdog.errors import BadRequest, Conflict, Forbidden, OwnerCallFailed, WatchdogError
from watchdog.helpers.pool import HelperPool
from watchdog.probes import session_files
from watchdog.processes.identity import presence
from watchdog.telemetry import logger

Json = dict[str, object]
DEADLINE = 3.0  # seconds for one look
PATIENCE = 60.0  # seconds until a registry on which two helpers in a row hung is read again
MOST_TEMP = 32  # files that one entry leaves behind
MOST_LISTED = MOST_ENTRIES  # of one agent: a program that gives its entry another key at each look has more and more
MISSED = 2  # looks that do not find an entry, until it counts as taken away: a file may be just being replaced
Known = tuple[Agent, Listed]
_SPOKEN = frozenset({Status.STARTING, Status.RUNNING})


class RegistryLocked(OwnerCallFailed):
    """Nobody can read a registry, as the first of these processes stands still with its lock; the others are above."""

    def __init__(self, words: str, holders: tuple[int, ...]) -> None:
        super().__init__("busy", words)
        self.holders = holders


class SourceImporter:
    """Looks at each source, each within its own deadline; one that hangs or breaks is told once, and delays nobody."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registrar: Registrar,
        stale: StaleEntries,
        custodians: Custodians,
        owners: HelperPool,
        recorder: EventRecorder,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._registrar = registrar
        self._fleet = registrar.fleet
        self._ghosts = stale
        self._custodians = custodians
        self._owners = owners
        self._recorder = recorder
        self._places: dict[tuple[str, str], SourceState] = {}
        self._accounts = UserLookup()
        self._writes: list[Awaitable[object]] = []

    def apply(self, settings: Settings) -> None:
        """Go by these from the next look on."""
        self._settings = settings

    async def look(self) -> None:
        """Each source once, also one that is named twice: then as it was named last."""
        there = {(source.kind, source.place()): source for source in self._settings.sources}
        self._places = {key: place for key, place in self._places.items() if key in there}
        await asyncio.gather(*(self._look(source, path) for (_, path), source in there.items()))
        writes, self._writes = self._writes, []
        for write in writes:
            with suppress(WatchdogError):  # that the registry takes nothing is told by the sweep
                await write

    def shown(self) -> list[Json]:
        """Entries that are not watched (remote, without a pid, another's), as `list` shows them."""
        return [one for place in self._places.values() for one in place.shown]

    async def _look(self, source: SourceSection, path: str) -> None:
        """One source; whatever its entries hold is bound to them."""
        place = self._places.setdefault((source.kind, path), SourceState(os.geteuid()))
        now = self._clock.mono()
        if now < place.not_before:
            return
        try:
            place.uid = await self._accounts.uid(source.user)
        except OwnerCallFailed as error:
            self._unread(place, source.kind, path, error)
            return
        with logger.caused_by(place.uid):  # who may write what stands there
            await self._read(source, path, place, now)

    async def _read(self, source: SourceSection, path: str, place: SourceState, now: float) -> None:
        """What it says now, as its owner; `now`: when the look began."""
        try:
            args = {"kind": source.kind, "path": path}
            answer = await self._owners.call(place.uid, "source_discover", args, DEADLINE)
            told, problems = entry_match.told_by(answer, place.uid)
            for holder in (one for one in told if one.holders):
                raise RegistryLocked(holder.note, holder.holders)
        except OwnerCallFailed as error:
            self._unread(place, source.kind, path, error)
            return
        if problems and not place.told:
            why = f"{len(problems)} of its entries are passed over: {problems[0]}"
            self._recorder.event("source.unread", source=source.kind, path=path, why=why)
        if place.told and not problems:
            self._recorder.event("source.readable", source=source.kind, path=path)
        place.late, place.failed, place.told, place.shown, place.lines = 0, 0, bool(problems), [], 0
        place.held_by, place.unheard = (), []
        unread = [one for one in told if one.unread]
        told = [one for one in told if not one.unread]
        if place.full_anew(answer):
            self._recorder.event("source.unread", source=source.kind, path=path, why=FULL)
        self._ghosts.keep(source.kind, path, told)
        known = self._known(source.kind, path)
        place.note(told, self._clock.now())
        place.seen = await entry_match.looks(told, self._registrar.host)
        runs = {(own.key, own.token) for agents in known.values() for _, own in agents}
        new = (one for one in told if (one.key, one.token) not in runs)
        place.doubles = await entry_match.doubles(new, place.seen, place.uid)
        for entry in told:
            try:
                await self._take(source, path, place, entry, known.get(entry.key, []))
            except (OSError, WatchdogError) as error:
                place.show(source.kind, entry, str(error))
        place.drifts = {drift: seen for drift, seen in place.drifts.items() if seen >= now}
        self._miss(place, source.kind, path, told, unread)
        for one in unread:
            if not any(entry_match.unread_of(own, [one]) for agents in known.values() for _, own in agents):
                place.show(source.kind, one, one.unread)
        if why := place.unheard_anew():
            self._recorder.event("source.unread", source=source.kind, path=path, why=why)

    def _unread(self, place: SourceState, kind: str, path: str, error: OwnerCallFailed) -> None:
        """It tells nothing: told once. Who is judged by it alone is, after a second time, not judged by his silence.

        But for who stands still and keeps all others from reading it: his silence counts from the first such look on.
        """
        if error.reason == "closed":
            return
        place.failed += 1
        place.late = place.late + 1 if error.reason == "late" else 0
        if place.late > 1:
            place.not_before = self._clock.mono() + PATIENCE
        if not place.told:
            place.told = True
            self._recorder.event("source.unread", source=kind, path=path, why=str(error))
        holders = error.holders if isinstance(error, RegistryLocked) else ()
        holds = self._first_of(holders, place.uid)
        for agent in self._fleet:
            if not agent.promised or not _is_held_to(agent, kind, path):
                continue
            if agent is not holds:
                if (place.failed > 1 or holders) and agent.unread is None:
                    agent.unread_now()
            elif agent.unread is not None:
                agent.read_again()
            elif holders != place.held_by:
                agent.forgive()  # a beat right before it was not seen
        place.held_by = holders

    def _first_of(self, pids: tuple[int, ...], uid: int) -> Agent | None:
        """The nearest agent of that uid: what a child does for its agent is the agent's doing, and nobody's above."""
        mains = {one.identity.pid: one for one in self._fleet if one.identity and one.reg.owner_uid == uid}
        return next((mains[pid] for pid in pids if pid in mains), None)

    # -- one entry

    async def _take(
        self, source: SourceSection, path: str, place: SourceState, entry: Entry, known: list[Known]
    ) -> None:
        """What its entry says of an agent; who is new is registered. `known` have had it. Raises WatchdogError."""
        kind = source.kind
        if source.after_seconds is not None and entry.promise is not None:
            entry = replace(entry, promise=source.after_seconds)
        if entry.remote:
            place.show(kind, entry, "it lives on another device")
            return
        if entry.drift:
            self._refuse(place, kind, path, entry, entry.drift)
            return
        agent: Agent | None = None
        if known:
            agent, own = next((one for one in known if one[1].token == entry.token), known[0])
            if own.token != entry.token and not self._names(place, entry, agent):
                agent = None  # another run has its place by now
            elif not entry.living:
                return  # `_miss` tells it
            else:
                await self._refresh(place, agent, own, entry)
        if agent is None:
            agent = next((one for one in self._fleet if self._names(place, entry, one)), None)
            if not entry.living or (agent is not None and not agent.reg.owner_uid == place.uid == entry.uid):
                return  # of another's agent nobody's file says anything
            if agent is not None:
                await self._attach(agent, kind, path, entry)
        if agent is not None:
            self._ghosts.alive(kind, path, entry)
            await self._hear(place, kind, path, agent, entry)
            return
        double = place.doubles.get(entry.pid or 0)
        found = entry_match.look(
            entry, place.seen, place.uid, self._fleet, self._clock.now(), place.arrival(entry), double
        )
        if found.standing is MatchResult.GONE:
            self._ghosts.seen(kind, path, entry, place.uid, found.why)
        elif found.standing is MatchResult.STRANGER:
            self._ghosts.alive(kind, path, entry)
            self._refuse(place, kind, path, entry, found.why)
        elif found.standing is MatchResult.UNSEEN:
            place.show(kind, entry, found.why)
        elif found.taken is not None:
            self._ghosts.alive(kind, path, entry)
            holder = await self._custodians.holder_of(found.taken.identity, found.taken.uid)
            if holder is not None:
                place.show(kind, entry, f"watched by {holder}")
                return
            await self._register(place, kind, path, entry, found)

    def _refuse(self, place: SourceState, kind: str, path: str, entry: Entry, why: str) -> None:
        """It is not watched, and nothing is done by it: shown, and told once."""
        place.show(kind, entry, why)
        if place.drifts_anew(entry, self._clock.mono()):
            self._recorder.event("source.drift", source=kind, path=path, name=entry.name, why=why)

    def _known(self, kind: str, path: str) -> dict[str, list[Known]]:
        """Who has an entry in that registry, by its key: two where another run has got the place of one that lives."""
        found: dict[str, list[Known]] = {}
        for agent in self._fleet:
            for own in _listed(agent, kind, path):
                found.setdefault(own.key, []).append((agent, own))
        return found

    def _names(self, place: SourceState, entry: Entry, agent: Agent) -> bool:
        return entry_match.names(entry, agent, self._registrar.boot_id, self._clock.now(), place.arrival(entry))

    def _proves(self, place: SourceState, entry: Entry, agent: Agent) -> bool:
        now, arrival = self._clock.now(), place.arrival(entry)
        return entry_match.proves(entry, agent, self._registrar.boot_id, now, place.seen, arrival)

    async def _register(self, place: SourceState, kind: str, path: str, entry: Entry, found: Match) -> None:
        uid, registrar = place.uid, self._registrar
        peer, proved = Peer(uid, uid, os.getpid()), found.standing is MatchResult.PROVED
        listed = entry_match.listed(kind, path, entry, proved)
        if registrar.take_share(uid) > WAIT:
            return  # its owner's file comes and goes faster than its share: the next look tries again
        async with registrar.turn_of_its_user(uid):
            if any(self._names(place, entry, agent) for agent in self._fleet):
                return  # its hook was faster: the next look attaches the entry to that agent
            for request in entry_match.registration_requests(kind, entry, listed):
                try:
                    agent = (await registrar.register(request, peer, found.taken)).agent
                    break
                except (BadRequest, Conflict, Forbidden) as error:
                    refusal = error  # its name, its parent or its task
            else:
                raise refusal
        self._ghosts.agents[(kind, path, entry.key, entry.token)] = agent.agent_id
        _remember(agent, listed)
        await self._hear(place, kind, path, agent, entry, first=True)

    async def _attach(self, agent: Agent, kind: str, path: str, entry: Entry) -> None:
        """An agent that came another way stands there too: the entry is closed with it."""
        listed = entry_match.listed(kind, path, entry, entry_match.tells(entry))
        others = tuple(one for one in agent.reg.entries if (one.kind, one.path, one.key) != (kind, path, entry.key))
        if len(others) >= MOST_LISTED:
            raise Conflict(f"{agent.reg.name} stands in {len(others)} entries already")
        await self._keep(agent, (*others, listed))

    async def _refresh(self, place: SourceState, agent: Agent, own: Listed, entry: Entry) -> None:
        """What its program says of ending it may change while it lives."""
        new = replace(
            own,
            token=entry.token,
            proved=own.proved or self._proves(place, entry, agent),
            conversation=entry.conversation,
            resume=entry.resume,
            stop=entry.stop,
            pane=entry.pane,
            temp=tuple(dict.fromkeys([*own.temp, *entry.temp]))[:MOST_TEMP],  # its end must not hide what it had
        )
        if entry.also or own.also:
            new = replace(new, also=self._also(place, agent, own, entry))
        if new != own:
            await self._keep(agent, tuple(new if one is own else one for one in agent.reg.entries))
        self._ghosts.agents[(own.kind, own.path, entry.key, entry.token)] = agent.agent_id

    def _also(self, place: SourceState, agent: Agent, own: Listed, entry: Entry) -> tuple[Identity, ...]:
        """Its further processes, each from the second look on: what only passes by is none, and its end is nobody's.

        One that has ended stays: its end is the agent's, whether the registry names it still or not.
        """
        before = place.named.get((agent.agent_id, entry.key), ())
        named = place.named[agent.agent_id, entry.key] = entry_match.further(entry, place.seen, place.uid, self._fleet)
        stay = [one for one in own.also if one in named or presence(one, None) is Presence.ABSENT]
        return (*stay, *(one for one in named if one in before and one not in stay))

    async def _keep(self, agent: Agent, listed: tuple[Listed, ...]) -> None:
        self._writes.append(self._registrar.keep_entries(agent, listed))
        for one in listed:
            _remember(agent, one)

    # -- what it says

    async def _hear(
        self, place: SourceState, kind: str, path: str, agent: Agent, entry: Entry, *, first: bool = False
    ) -> None:
        """Other content than at the last look is its word; the first that is seen is only where we begin."""
        word = (entry.beat, entry.state, entry.note)
        where = agent.agent_id, entry.key
        former = place.heard.get(where)
        held = _is_held_to(agent, kind, path)
        if entry.beat is None and held and agent.promised and (entry.unheard or (former and former[0])):
            # Its registry has heard from it, and does not show when: what is compared stays what it was.
            self._cannot_hear(place, agent, entry.unheard or "it shows none any more, and did before")
            return
        place.heard[where] = word
        if agent.status not in _SPOKEN:
            return
        state = State(entry.state) if entry.state in set(State) else None
        if agent.promised and not held:  # its own words, by hooks perhaps, say more, but not all
            newer = agent.newer_word(state, entry.state_since)
            if newer is not None:
                now = self._clock.now()
                agent.beat(newer, now.mono, now.wall)
            elif entry.promise is None:
                self._end_state(agent, state, entry)
            return
        if entry.promise is None:
            self._end_state(agent, state, entry)
            said = state is not None and (state is not agent.state or entry.note != (agent.note or ""))
            if agent.promised or not (said or (former is not None and former != word)):
                return  # its own word, by a hook perhaps, says more
            beat = Beat(state=state, note=entry.note, promises=False)
        elif not first and (former is None or former == word):
            if entry.unheard:
                self._cannot_hear(place, agent, entry.unheard)
            else:
                agent.read_again()
            return
        elif first and entry_match.before_its_process(entry, agent, self._clock.now(), place.arrival(entry)):
            return  # a former run's: what it promised it has not begun to keep
        else:
            if not held:  # the first to promise anything: all that follows is heard, by a daemon after us, too
                own = [one for one in _listed(agent, kind, path) if one.key == entry.key]
                kept = (replace(one, promises=True) if one in own else one for one in agent.reg.entries)
                await self._keep(agent, tuple(kept))
            after = timedelta(seconds=entry.promise)
            beat = Beat(state=state, note=entry.note, after=None if after == agent.after else after)
        now = self._clock.now()
        agent.beat(beat, now.mono, now.wall)

    def _cannot_hear(self, place: SourceState, agent: Agent, why: str) -> None:
        """It is not judged by its silence while that is so."""
        if agent.status in _SPOKEN:
            place.unheard.append(f"{agent.reg.name}: {why}")
            if agent.unread is None:
                agent.unread_now()

    def _end_state(self, agent: Agent, state: State | None, entry: Entry) -> None:
        """End what no hook tells the end of."""
        if agent.hears and entry.state_since is not None and agent.silence >= quiet_for(agent.after):
            session_files.take(agent, state, entry.state_since, self._clock)

    def _miss(self, place: SourceState, kind: str, path: str, told: list[Entry], unread: list[Entry]) -> None:
        """Living agents whose entry is gone, or says "ended": told, watched on, their silence not counted.

        One whose entry cannot be read is neither: it is unknown until it can be, where it beats there.
        """
        there = {(one.key, one.token) for one in told if one.living}
        missing = dict[str, int]()
        for agent in self._fleet:
            own = _listed(agent, kind, path)
            if not own or agent.status not in _SPOKEN or any((one.key, one.token) in there for one in own):
                continue
            if why := next(filter(None, (entry_match.unread_of(one, unread) for one in own)), ""):
                missing[agent.agent_id] = place.missing.get(agent.agent_id, 0)
                if agent.promised and _is_held_to(agent, kind, path):
                    self._cannot_hear(place, agent, why)
                continue
            count = missing[agent.agent_id] = place.missing.get(agent.agent_id, 0) + 1
            if count == MISSED:
                says = {one.key for one in own} & {one.key for one in told}
                why = "its registry says that it has ended" if says else "it is gone there"
                self._recorder.event(
                    "source.entry_gone", agent_id=agent.agent_id, name=agent.reg.name, source=kind, why=why
                )
                if _is_held_to(agent, kind, path):
                    agent.released()
        place.missing = missing
        place.heard = {key: word for key, word in place.heard.items() if self._fleet.get(key[0]) is not None}
        place.named = {key: named for key, named in place.named.items() if key in place.heard}


def _listed(agent: Agent, kind: str, path: str) -> list[Listed]:
    """Its entries in that registry."""
    return [one for one in agent.reg.entries if (one.kind, one.path) == (kind, path)]


def _is_held_to(agent: Agent, kind: str, path: str) -> bool:
    """Whether that registry's beats are what it promised: it came from there, or had promised nothing before."""
    return any(agent.reg.source == kind or one.promises for one in _listed(agent, kind, path))


def _remember(agent: Agent, listed: Listed) -> None:
    """Further processes of the agent belong to its tree, wherever they come from."""
    known = {member.identity for member in agent.members}
    agent.members += tuple(
        TreeMember(one, 0, agent.reg.owner_uid, "", "", "remembered") for one in listed.also if one not in known
    )
