"""Matches an entry of a foreign registry with the kernel: which process it names, and whether it is that very one.

An entry is a claim of the uid that owns the file. It counts for processes of that uid alone, and a pid in it means the
process that has the pid now only if the entry also says when it was written, or which process it means.
"""

import os
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar, assert_never

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.process_claim import Look, ProcessClaim, checked, look_at
from watchdog.clock import Instant
from watchdog.core.names import name_for, name_problem
from watchdog.core.peer import Peer
from watchdog.core.process import Identity, Listed
from watchdog.core.provenance import SLACK, Named, ToldTime, named
from watchdog.core.registration import RegistrationRequest, field_problem
from watchdog.core.source_entries import MOST_ENTRIES, WORDS_LIMIT, Entry, entry_of, unread_entry
from watchdog.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    OwnerCallFailed,
    ProcessHidden,
    ProcessNotFound,
    WatchdogError,
)
from watchdog.processes import procfs
from watchdog.processes.identity import Seen, ThreadSeen, boot_id
from watchdog.processes.inside import numbered_inside
from watchdog.processes.reader import awaited

T = TypeVar("T")
Json = dict[str, object]
Double = int | OSError  # the pid here of another process with that number, or why the search failed
MOST_FURTHER = 8  # processes of one entry beside its main one: each costs 160 µs of kernel queries per look


class MatchResult(StrEnum):
    """The kernel's answer about the process that an entry names."""

    PROVED = "proved"  # it is that very process
    UNPROVED = "unproved"  # a process of that uid has the pid, but nothing says whether it is that one
    GONE = "gone"  # no such process any more, or another one has its pid
    STRANGER = "stranger"  # a process that existed before the entry, and is not the one that it means
    OTHERS = "others"  # another uid's, or never an agent (the daemon itself): nothing is done
    UNSEEN = "unseen"  # no pid yet, or the query failed: nothing is known


@dataclass(frozen=True, slots=True)
class Match:
    """The result, also as text. `taken` is set where the process may be registered."""

    standing: MatchResult
    why: str = ""
    taken: ProcessClaim | None = None


def parse_entries(answer: object, uid: int) -> tuple[list[Entry], list[str]]:
    """The entries in a helper's answer, and the errors in malformed ones. Raises OwnerCallFailed.

    A malformed entry with a key is `unread`: the agent that was listed there has not disappeared.
    """
    if not isinstance(answer, list):
        raise OwnerCallFailed("garbled", "its helper's answer is not a list")
    told, problems = [], []
    for one in answer[:MOST_ENTRIES]:
        try:
            told.append(entry_of(one))
        except ValueError as error:
            problems.append(str(error))
            key = one.get("key") if isinstance(one, dict) else None
            if isinstance(key, str) and 0 < len(key) <= WORDS_LIMIT:
                told.append(unread_entry(key, str(error), uid))
    return told, problems


def unread_of(entry: Listed, unread: Iterable[Entry]) -> str:
    """Why this entry cannot be read, according to `unread` entries; "": it can be, or it is not there."""
    return next((one.unread for one in unread if entry.key == one.key or _is_below(entry.key, one.key)), "")


def _is_below(key: str, above: str) -> bool:
    return above.endswith(("/", ":")) and key.startswith(above)


async def looks(told: Iterable[Entry], host: str) -> dict[int, Look]:
    """The kernel's view of the processes that entries name, in one call: one that hangs delays no other."""
    pids = {pid for entry in told for pid in (entry.pid, *entry.also[:MOST_FURTHER]) if pid is not None}
    return await look_at(pids, host) if pids else {}


@dataclass(frozen=True, slots=True)
class Arrival:
    """When an entry came, by earlier reads of its registry, in seconds of boot time.

    `came`: after that moment; None: it was there at the first read. `first`: when it was first seen. `zone`: see
    `core.provenance`.
    """

    came: float | None = None
    first: float = 0.0
    zone: float | None = None


async def doubles(told: Iterable[Entry], seen: Mapping[int, Look], uid: int) -> dict[int, Double]:
    """Processes in containers that share a pid number with an entry.

    For the numbers of living processes in entries that do not say when the process began.
    """
    wanted = {entry.pid for entry in told if entry.living and entry.ticks is None and entry.started is None}
    numbers = tuple(number for number in wanted if number is not None and isinstance(seen.get(number), Seen))
    if not numbers:
        return {}
    try:
        return {**await awaited(None, numbered_inside, numbers, uid)}
    except OSError as error:
        return dict.fromkeys(numbers, error)


def look(
    entry: Entry,
    seen: Mapping[int, Look],
    uid: int,
    fleet: Fleet,
    now: Instant,
    arrival: Arrival = Arrival(),
    double: Double | None = None,
) -> Match:
    """Match an entry against the kernel's view `seen`. `uid` owns the registry. `double`: see `doubles`."""
    if entry.uid != uid:
        return Match(MatchResult.OTHERS, f"its file is uid {entry.uid}'s, the registry's owner is uid {uid}")
    if entry.pid is None:
        if entry.gone:
            return Match(MatchResult.GONE, entry.gone)
        return Match(MatchResult.UNSEEN, "its registry gives no pid")
    if entry.boot_id is not None and entry.boot_id != boot_id():
        return Match(MatchResult.GONE, "it is of another boot")
    try:
        taken = checked(entry.pid, seen[entry.pid], Peer(uid, uid, os.getpid()), fleet)
    except ProcessNotFound as error:
        if _is_thread(entry, seen[entry.pid], now, arrival):
            return Match(MatchResult.UNSEEN, f"its pid, {entry.pid}, is the number of a thread")
        return Match(MatchResult.GONE, str(error).removeprefix("pid: "))
    except ProcessHidden as error:
        return Match(MatchResult.UNSEEN, str(error))
    except (BadRequest, Conflict, Forbidden) as error:
        return Match(MatchResult.OTHERS, str(error))
    if entry.ticks is not None:
        if entry.ticks != taken.identity.start_ticks:
            return Match(MatchResult.GONE, f"process {entry.pid} is another than the one that it names")
        return Match(MatchResult.PROVED, taken=taken)
    whom, why = _named(entry, taken.identity, seen, now, arrival)
    if whom in (Named.IT, Named.PERHAPS) and isinstance(double, OSError):
        return Match(MatchResult.UNSEEN, f"whether process {entry.pid} is the one that it means: {double}")
    if whom in (Named.IT, Named.PERHAPS) and double is not None:
        why = f"process {double} has the number {entry.pid} in a container: nothing tells which of the two it means"
        return Match(MatchResult.STRANGER, why)
    match whom:
        case Named.IT:
            return Match(MatchResult.PROVED, taken=taken)
        case Named.PERHAPS:
            return Match(MatchResult.UNPROVED, why, taken)
        case Named.STRANGER:
            return Match(MatchResult.STRANGER, f"process {entry.pid} {why}: it is another one")
        case Named.ANOTHER:
            return Match(MatchResult.GONE, f"process {entry.pid} {why}")
    assert_never(whom)


def _named(
    entry: Entry, identity: Identity, seen: Mapping[int, Look], now: Instant, arrival: Arrival
) -> tuple[Named, str]:
    """Whether it means that process, and why not."""
    epoch = now.wall.timestamp() - now.boot
    came = None if arrival.came is None else epoch + arrival.came
    first, leads = epoch + arrival.first, _leads(seen.get(identity.pid))
    return named(_reported_time(entry), began(identity, now), came=came, first=first, leads=leads, zone=arrival.zone)


def _reported_time(entry: Entry) -> ToldTime:
    return ToldTime(
        entry.since,
        entry.since_local,
        entry.started,
        entry.started_local,
        since_ahead=entry.since_ahead,
        started_ahead=entry.started_ahead,
    )


def _leads(seen: Look | None) -> bool:
    """Whether it leads a session of its own."""
    return isinstance(seen, Seen) and seen.stat.session == seen.identity.pid


def _is_thread(entry: Entry, seen: Look, now: Instant, arrival: Arrival) -> bool:
    """Whether its number is a thread's, and perhaps of the process that it means."""
    if not isinstance(seen, ThreadSeen):
        return False
    if entry.ticks is not None:
        return entry.ticks == seen.start_ticks
    return _may_mean(entry, _epoch(seen.start_ticks, now), arrival)


def _may_mean(entry: Entry, began: float, arrival: Arrival) -> bool:
    """Whether a process that began then existed when the number can have been written."""
    latest = _reported_time(entry).latest(arrival.zone)
    return latest is None or began <= latest + SLACK


def identifies_process(entry: Entry) -> bool:
    """Whether it says which process has its pid, or when it was written."""
    return entry.ticks is not None or entry.since is not None


def names(entry: Entry, agent: Agent, boot_id: str, now: Instant, arrival: Arrival = Arrival()) -> bool:
    """Whether it names the main process of that agent."""
    one = _numbered(entry, agent, boot_id)
    return one is not None and _may_mean(entry, began(one, now), arrival)


def proves(
    entry: Entry, agent: Agent, boot_id: str, now: Instant, seen: Mapping[int, Look], arrival: Arrival = Arrival()
) -> bool:
    """Whether it means the main process of that agent and no other.

    Proof is that it says which process it means, or that its beats have shown its time zone.
    """
    one = _numbered(entry, agent, boot_id)
    if one is None:
        return False
    return entry.ticks is not None or _named(entry, one, seen, now, arrival)[0] is Named.IT


def _numbered(entry: Entry, agent: Agent, boot_id: str) -> Identity | None:
    """The main process of that agent, if the entry has its number, whenever written."""
    one = agent.identity
    if one is None or one.pid != entry.pid or entry.ticks not in (None, one.start_ticks):
        return None
    return None if entry.boot_id not in (None, one.boot_id) or agent.reg.boot_id != boot_id else one


def before_its_process(entry: Entry, agent: Agent, now: Instant, arrival: Arrival = Arrival()) -> bool:
    """Whether its heartbeat is older than that agent's process, whose start may reveal the entry's time zone."""
    if entry.beat_at is None or agent.identity is None:
        return False
    start = began(agent.identity, now)
    zone = _reported_time(entry).by_start(start) if arrival.zone is None else arrival.zone
    return entry.beat_at + (zone or 0.0) < start - SLACK


def began(identity: Identity, now: Instant) -> float:
    """When a process of this boot was started, in epoch seconds of the present clock."""
    return _epoch(identity.start_ticks, now)


def _epoch(ticks: int, now: Instant) -> float:
    return now.wall.timestamp() - (now.boot - ticks / procfs.TICKS_PER_SECOND)


def further(entry: Entry, seen: Mapping[int, Look], uid: int, fleet: Fleet) -> tuple[Identity, ...]:
    """Its first further processes, only those of that uid according to the kernel that belong to no other agent."""
    found = []
    for pid in entry.also[:MOST_FURTHER]:
        try:
            found.append(checked(pid, seen[pid], Peer(uid, uid, os.getpid()), fleet).identity)
        except WatchdogError:
            continue
    return tuple(found)


def listed(kind: str, path: str, entry: Entry, proved: bool) -> Listed:
    """The entry as stored with its agent, without further processes."""
    return Listed(
        kind=kind,
        path=path,
        key=entry.key,
        token=entry.token,
        proved=proved,
        conversation=entry.conversation,
        resume=entry.resume,
        stop=entry.stop,
        pane=entry.pane,
        temp=entry.temp,
    )


def shown(kind: str, entry: Entry, uid: int, why: str) -> Json:
    """An entry that is not watched, in the format of `list`."""
    return {
        "agent_id": None,
        "name": entry.name[:64],
        "owner_uid": uid,
        "status": "remote" if entry.remote else "unwatched",
        "verdict": None,
        "type": entry.type,
        "task_id": entry.task,
        "pid": entry.pid,
        "source": kind,
        "state": entry.state,
        "note": entry.note,
        "why": why,
        "stop": shlex.join(entry.stop) if entry.stop else None,
    }


def registration_requests(kind: str, entry: Entry, listed: Listed) -> list[RegistrationRequest]:
    """Requests to try, the fullest first: all readable fields; without fields that may conflict; with another name.

    Raises BadRequest when even its pid or its rhythm is unusable.
    """
    name = entry.name if name_problem(entry.name) is None else name_for(entry.name, kind)
    full = RegistrationRequest(
        name,
        pid=entry.pid,
        type=_readable("type", entry.type) or "",
        tags=_readable("tags", entry.tags) or (),
        task=_readable("task", entry.task),
        parent=_readable("parent", entry.parent),
        stall_after_seconds=entry.promise,
        worktree=_readable("worktree", entry.worktree),
        log=_readable("log", entry.log),
        transcript=_readable("transcript", entry.transcript),
        source=kind,
        entry=listed,
    )
    least = replace(full, task=None, parent=None)
    return [full, least, replace(least, name=name_for(name, f"{kind}-{entry.pid}"))]


def _readable(field: str, value: T) -> T | None:
    """The value, or None if a registration cannot have it in that field."""
    return value if value and field_problem(field, value) is None else None
