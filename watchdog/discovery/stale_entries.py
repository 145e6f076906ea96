"""Closes entries of foreign registries whose process provably is gone or another's, as `lost`; nothing is signalled.

Not at the first read: an agent that writes its entry again meanwhile lives somewhere, perhaps in a container with pids
of its own. And beside the reads: with a hundred entries, or a wait for a lock, the helpers take a minute, in which no
beats would be read.
"""

import asyncio
from dataclasses import dataclass, field

from watchdog.agents.history import EventRecorder
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.core.agent import ENDED, Status
from watchdog.core.source_entries import Became, Entry, EntryEnd, end_json
from watchdog.errors import OwnerCallFailed, WatchdogError
from watchdog.helpers.pool import HelperPool
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.telemetry import logger

LOOKS = 2  # reads with the same finding
BEATS = 60.0  # seconds that an entry with a heartbeat of unknown rhythm is watched for another beat
DEADLINE = 10.0  # seconds for closing one
ROUND = 10.0  # seconds for the entries of one registry, until those of other registries may have to wait
Place = tuple[str, ...]  # kind, path, key, token


@dataclass(slots=True)
class _StaleEntry:
    """One of them. `logged`: the events about it that are already logged."""

    entry: Entry
    uid: int  # of the registry's owner
    why: str
    since: float  # monotonic
    looks: int = 0
    logged: set[str] = field(default_factory=set)


class StaleEntries:
    """The stale entries of all registries."""

    def __init__(
        self, registry: AsyncRegistry, clock: Clock, settings: Settings, helpers: HelperPool, recorder: EventRecorder
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._settings = settings
        self._helpers = helpers
        self._recorder = recorder
        self._known: dict[Place, _StaleEntry] = {}
        # by place: the agent that the entry belongs or belonged to, while this daemon runs
        self._agents: dict[Place, str] = {}

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self._settings = settings

    def keep(self, kind: str, path: str, entries: list[Entry]) -> None:
        """Drop entries that are no longer in the registry."""
        there = {(kind, path, one.key, one.token) for one in entries}
        self._known = {key: stale for key, stale in self._known.items() if key[:2] != (kind, path) or key in there}
        self._agents = {key: agent for key, agent in self._agents.items() if key[:2] != (kind, path) or key in there}

    def remember(self, kind: str, path: str, entry: Entry, agent_id: str) -> None:
        """Record which agent the entry belongs to, also for after that agent's end."""
        self._agents[kind, path, entry.key, entry.token] = agent_id

    def clear(self, kind: str, path: str, entry: Entry) -> None:
        """It is not stale: its process lives, or is not known to be gone."""
        self._known.pop((kind, path, entry.key, entry.token), None)

    def mark_dead(self, kind: str, path: str, entry: Entry, uid: int, why: str) -> None:
        """One more read found that its process is gone. `uid`: the owner of its registry."""
        stale = self._known.setdefault(
            (kind, path, entry.key, entry.token), _StaleEntry(entry, uid, why, self._clock.mono())
        )
        if _content(stale.entry) != _content(entry):
            stale.since, stale.looks = self._clock.mono(), 0
        stale.entry, stale.why = entry, why
        stale.looks += 1

    async def round(self) -> None:
        """Close entries that are proven dead: once per read, and as many per registry as fit in `ROUND`."""
        registries = dict[Place, list[Place]]()
        for place in self._known:
            registries.setdefault(place[:2], []).append(place)
        await asyncio.gather(*map(self._some, registries.values()))

    async def _some(self, places: list[Place]) -> None:
        until = self._clock.mono() + ROUND
        for place in places:
            stale = self._known.get(place)
            if stale is None or not self._due(stale):
                continue  # it was closed or is no longer stale since the round began
            if self._clock.mono() >= until:
                return
            stale.looks = LOOKS - 1
            self._known[place] = self._known.pop(place)  # one that hangs comes last in the next round
            try:
                await self._close(place, stale)
            except WatchdogError as error:  # tried again after the next read
                self._report(stale, "source.entry_kept", place, str(error))

    def _due(self, stale: _StaleEntry) -> bool:
        entry = stale.entry
        patience = 0.0 if entry.beat is None else BEATS if entry.promise is None else entry.promise / 2
        passed = self._clock.mono() - stale.since
        return stale.looks >= LOOKS and passed >= patience and not self._settings.observe

    async def _close(self, place: Place, stale: _StaleEntry) -> None:
        kind, path = place[:2]
        entry, uid, why = stale.entry, stale.uid, stale.why
        end = await self._end(place, why)
        evidence = {"source": kind, "path": path, "key": entry.key, "pid": entry.pid}
        if "history" not in stale.logged:  # the intent, once
            stale.logged.add("history")
            add, now = self._registry.history.add_event, self._clock.now().wall
            words = f"{entry.name} in {kind}: {why}"
            await self._registry.write(
                add, "source.ghost", self._agents.get(place), "daemon", words, now, evidence=evidence, owner_uid=uid
            )
        args = {"kind": kind, "path": path, "key": entry.key, "token": entry.token, "end": end_json(end)}
        try:
            done = await self._helpers.call_in_fresh_helper(uid, "source_forget", args, DEADLINE)
        except OwnerCallFailed as error:
            if error.reason != "kept":
                raise
            return
        if done["became"] == Became.DONE:
            self._report(stale, "source.ghost", place, f"{why}; {done['message']}")

    async def _end(self, place: Place, why: str) -> EntryEnd:
        """How it ended: by our own row, if it was our agent and its hook failed; else unknown."""
        now = self._clock.now().wall.timestamp()
        agent_id = self._agents.get(place)
        row = None if agent_id is None else await self._registry.read(self._registry.agents.get, agent_id)
        if row is None or row.status not in ENDED:
            return EntryEnd("lost", why, "daemon", now)
        ended_at = now if row.completed_at is None else row.completed_at.timestamp()
        reason = (row.error_message or why).removeprefix(f"Agent {row.status}: ")
        task = {Status.COMPLETED: "completed", Status.FAILED: "failed"}.get(row.status)
        task = "completed" if row.finished and row.status is not Status.FAILED else task
        task = task or self._settings.policy_for(row.registration).task_status
        return EntryEnd(row.status.value, reason, "daemon", ended_at, row.exit_code, task_status=task)

    def _report(self, stale: _StaleEntry, event: str, place: Place, why: str) -> None:
        if event not in stale.logged:
            stale.logged.add(event)
            with logger.caused_by(stale.uid):
                self._recorder.event(event, source=place[0], path=place[1], name=stale.entry.name, why=why)


def _content(entry: Entry) -> object:
    """The fields that a living process changes."""
    return entry.beat, entry.state, entry.note, entry.pid
