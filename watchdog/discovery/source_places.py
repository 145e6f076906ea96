"""Whose each `[[source]]` is, and what is kept of it from one look to the next."""

import asyncio
import os
import pwd
from dataclasses import dataclass, field, replace
from functools import partial

from watchdog.agents.process_claim import Look
from watchdog.clock import Instant
from watchdog.core.process import Identity
from watchdog.core.provenance import zone_of
from watchdog.core.source_entries import MOST_ENTRIES, Entry
from watchdog.discovery import entry_match
from watchdog.errors import OwnerCallFailed
from watchdog.helpers import nss

DEADLINE = 3.0  # seconds for the account of one user
FULL = (
    f"{MOST_ENTRIES + 1} living entries or more, of which {MOST_ENTRIES} are watched, as many as one uid may have"
    " agents: the others are not; end those that are not needed, or share them out over registries of several users"
)
TOLD_AT_ONCE = 16  # drifts of one look: of 256 that are new each time the log would hold nothing else
Json = dict[str, object]
Heard = tuple[str, str]  # the agent, and the key of its entry: it may have several in one registry


@dataclass(slots=True)
class SourceState:
    """One registry: how its looks went, what each agent's entry said last, and who is shown but not watched."""

    uid: int
    late: int = 0
    failed: int = 0
    not_before: float = 0.0
    told: bool = False
    full: bool = False  # more living ones stand there than are watched: told
    held_by: tuple[int, ...] = ()  # at the last look: who stands still with its lock, so that nobody can read it
    heard: dict[Heard, tuple[str | None, str | None, str]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    named: dict[Heard, tuple[Identity, ...]] = field(default_factory=dict)  # further processes, at the last look
    seen: dict[int, Look] = field(default_factory=dict)  # of the processes that it names, at this look
    doubles: dict[int, entry_match.Double] = field(default_factory=dict)  # of those whose entry is new, at this look
    shown: list[Json] = field(default_factory=list)
    unheard: list[str] = field(default_factory=list)  # at this look: whose beats cannot be read or written, and why
    looks_unheard: int = 0  # in a row
    lines: int = 0  # of drifts, at this look
    drifts: dict[str, float] = field(default_factory=dict)  # told already, and when last seen (monotonic)
    looked: float | None = None  # boot time of the last look that found anything out
    arrivals: dict[Heard, entry_match.Arrival] = field(default_factory=dict)  # of each entry, by key and token
    beats: dict[Heard, str | None] = field(default_factory=dict)  # at the last look

    def note(self, told: list[Entry], now: Instant) -> None:
        """Which of these have come since the last look, and what their beats tell of the zone that they write in."""
        former, self.arrivals = self.arrivals, {}
        beats, self.beats = self.beats, {}
        for entry in told:
            key = entry.key, entry.token
            arrival = former.get(key) or entry_match.Arrival(self.looked, now.boot)
            if entry.beat_at is not None and key in beats and beats[key] != entry.beat:
                arrival = replace(arrival, zone=zone_of(entry.beat_at, now.wall.timestamp()))
            self.arrivals[key], self.beats[key] = arrival, entry.beat
        self.looked = now.boot

    def arrival(self, entry: Entry) -> entry_match.Arrival:
        """When it came, as far as that is known."""
        return self.arrivals.get((entry.key, entry.token), entry_match.Arrival())

    def show(self, kind: str, entry: Entry, why: str) -> None:
        """In `list`, and not watched."""
        self.shown.append(entry_match.shown(kind, entry, self.uid, why))

    def unheard_anew(self) -> str:
        """What is to be told of those: once, at the second look in a row, as a file may be just being written."""
        self.looks_unheard = self.looks_unheard + 1 if self.unheard else 0
        if self.looks_unheard != 2:
            return ""
        more = f" (and of {len(self.unheard) - 1} more)" if len(self.unheard) > 1 else ""
        return f"the heartbeats of {self.unheard[0]}{more}; none of them is judged by its silence meanwhile"

    def full_anew(self, answer: object) -> bool:
        """Whether a living entry beyond `MOST_ENTRIES` is to be told: once as long as there is one."""
        beyond = answer[MOST_ENTRIES:] if isinstance(answer, list) else []
        former, self.full = self.full, any(isinstance(one, dict) and one.get("living", True) for one in beyond)
        return self.full and not former

    def drifts_anew(self, entry: Entry, now: float) -> bool:
        """Whether that is to be told: once as long as it lasts, whatever its words are by then, and of many some."""
        anew = entry.key not in self.drifts
        if anew and self.lines >= TOLD_AT_ONCE:
            return False
        self.lines += anew
        self.drifts[entry.key] = now
        return anew


class UserLookup:
    """The uids of users by their names. NSS may take minutes (a directory server that is away): one question each."""

    def __init__(self) -> None:
        self._asked: dict[str, asyncio.Future[int | None]] = {}
        self._known: dict[str, int] = {}

    async def uid(self, user: str) -> int:
        """Of that user; of none ourselves. While NSS does not answer, what it said last.

        Raises OwnerCallFailed: there is no such user (any more), or nothing is known yet.
        """
        if not user:
            return os.geteuid()
        answer = self._asked.get(user)
        if answer is None:
            answer = self._asked[user] = nss.ask(partial(_uid, user))
        if not (await asyncio.wait([answer], timeout=0.0 if user in self._known else DEADLINE))[0]:
            if user in self._known:
                return self._known[user]
            raise OwnerCallFailed("unknown_user", f"nothing has told yet which uid {user} has (NSS does not answer)")
        self._asked.pop(user, None)
        found = answer.result()
        if found is None:
            self._known.pop(user, None)
            raise OwnerCallFailed("not_permitted", f"there is no user {user} any more")
        self._known[user] = found
        return found


def _uid(user: str) -> int | None:
    try:
        return pwd.getpwnam(user).pw_uid
    except KeyError:
        return None
