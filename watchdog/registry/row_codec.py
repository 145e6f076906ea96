"""A database row -> a value of `rows`, or `BadRow` with the column and what is wrong with it.

Rows can be edited by hand, and SQLite stores any type in any column; nothing here trusts a column's declared type.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime

from watchdog.core.agent import ENDED, Registration, State, Status, Verdict
from watchdog.core.kill import KillStep, Reason, Step
from watchdog.core.process import Identity, Listed, TreeMember
from watchdog.core.sites import Site, site_json, site_of
from watchdog.registry.column_decoders import (
    BadRow,
    Raw,
    duration,
    inner,
    listing,
    mapping,
    moment,
    number,
    optional,
    seconds,
    text,
    whole,
    word,
)
from watchdog.registry.rows import AgentRow, EventRow, HoldRow, Json, RequestRow, RunRow, TaskRow
from watchdog.registry.schema import OPEN_STATUSES, PID_MAX

_MEMBER = {field.name for field in fields(TreeMember)}


def dump(value: object) -> str:
    """JSON for a TEXT column; values that JSON has no type for (a datetime, an enum in a set) become text."""
    return json.dumps(value, default=str, separators=(",", ":"))


def entries_json(entries: Iterable[Listed]) -> str:
    """For the column `entries`; `to_agent` reads it."""
    return dump([asdict(entry) for entry in entries])


def to_agent(raw: Raw) -> AgentRow:
    """Decode a row of `agent_lifecycle`."""
    agent_id, host, boot_id = text(raw, "agent_id"), text(raw, "host"), text(raw, "boot_id")
    created_at = moment(raw, "created_at")
    return AgentRow(
        registration=_registration(raw, agent_id, host, boot_id, created_at),
        status=word(raw, "status", Status),
        version=whole(raw, "version", 0),
        created_at=created_at,
        state=None if raw["state"] is None else word(raw, "state", State),
        state_seconds=seconds(raw, "state_seconds"),
        finished=bool(raw["finished"]),
        rests_on=listing(raw, "rests_on", str),
        verdict=None if raw["verdict"] is None else word(raw, "verdict", Verdict),
        notify_socket=optional(raw, "notify_socket", text),
        promised=bool(raw["promised"]),
        beats=whole(raw, "beats", 0),
        silence_seconds=seconds(raw, "silence_seconds"),
        watched_seconds=seconds(raw, "watched_seconds"),
        last_heartbeat=optional(raw, "last_heartbeat", moment),
        last_progress=optional(raw, "last_progress", number),
        progress_silence_seconds=seconds(raw, "progress_silence_seconds"),
        lease_left_seconds=optional(raw, "lease_left_seconds", seconds),
        tool=optional(raw, "tool", text),
        tool_left_seconds=optional(raw, "tool_left_seconds", seconds),
        note=optional(raw, "note", text),
        speaker_pid=optional(raw, "speaker_pid", whole),
        hears=bool(raw["hears"]),
        rung=None if raw["rung"] is None else word(raw, "rung", Step),
        home_cgroup=optional(raw, "home_cgroup", text),
        members=_identities(raw, host, boot_id),
        started_at=optional(raw, "started_at", moment),
        completed_at=optional(raw, "completed_at", moment),
        exit_code=optional(raw, "exit_code", whole),
        exit_signal=optional(raw, "exit_signal", whole),
        error_message=optional(raw, "error_message", text),
        retry_count=whole(raw, "retry_count", 0),
    )


def _registration(raw: Raw, agent_id: str, host: str, boot_id: str, created_at: datetime) -> Registration:
    return Registration(
        agent_id=agent_id,
        name=text(raw, "name"),
        owner_uid=whole(raw, "owner_uid", 0, 2**32 - 1),
        dropped=bool(raw["dropped"]),
        host=host,
        boot_id=boot_id,
        agent_type=text(raw, "agent_type"),
        tags=listing(raw, "tags", str),
        task_id=optional(raw, "task_id", text),
        parent_id=optional(raw, "parent_id", text),
        identity=_identity(raw, host, boot_id),
        stall_after=optional(raw, "stall_after_seconds", duration),
        interval=optional(raw, "interval_seconds", duration),
        ttl=optional(raw, "ttl_seconds", duration),
        worktree=optional(raw, "worktree_path", text),
        temp_dir=optional(raw, "temp_dir", text),
        worktree_site=_site(raw, "worktree"),
        temp_site=_site(raw, "temp_dir"),
        beat_file=optional(raw, "beat_file", text),
        log=optional(raw, "log_path", text),
        transcript=optional(raw, "transcript_path", text),
        cgroup=optional(raw, "cgroup_path", text),
        pane=optional(raw, "pane", mapping),
        source=text(raw, "source"),
        command=optional(raw, "command", text),
        created_at=created_at,
        entries=tuple(_entry(one) for one in listing(raw, "entries", dict)),
    )


def to_request(raw: Raw) -> RequestRow:
    """Decode a row of `kill_request` with the agent's `host` joined to it."""
    identity = None
    if raw["pid"] is not None:
        identity = _identity({**raw, "pidfd_inode": None}, text(raw, "host"), text(raw, "boot_id"))
    outcome = mapping(raw, "outcome")
    if raw["status"] == "claimed" and raw["claimed_by"] is None:
        raise BadRow("claimed_by: None, though it is claimed: no daemon could take it over")
    if raw["status"] in OPEN_STATUSES and raw["step"] == KillStep.CLEANUP and outcome.get("status") not in ENDED:
        raise BadRow(f"outcome: at step 'cleanup' its status is {outcome.get('status')!r}, which is no end")
    return RequestRow(
        request_id=text(raw, "request_id"),
        agent_id=text(raw, "agent_id"),
        reason=word(raw, "reason", Reason),
        by=text(raw, "by_text"),
        status=text(raw, "status"),
        created_at=moment(raw, "created_at"),
        by_uid=optional(raw, "by_uid", whole),
        options=_options(raw),
        identity=identity,
        step=optional(raw, "step", text),
        members=to_members(raw),
        evidence=mapping(raw, "evidence"),
        outcome=outcome,
        claimed_by=optional(raw, "claimed_by", text),
        claimed_at=optional(raw, "claimed_at", moment),
        finished_at=optional(raw, "finished_at", moment),
    )


def to_members(raw: Raw) -> tuple[Json, ...]:
    """Decode the members that a `kill_request` has committed: of each a `TreeMember` can be made."""
    found = listing(raw, "members", dict)
    for stored in found:
        try:
            who = inner(stored, "identity")
            if set(stored) - _MEMBER or _identity(who, text(who, "host"), text(who, "boot_id")) is None:
                raise BadRow(f"{stored!r} is no process")
            for key in ("name", "state", "via"):
                text(stored, key)
            for key in ("parent_pid", "uid", "rss_bytes"):
                whole({"rss_bytes": 0, **stored}, key, 0)
            number({"cpu_seconds": 0, **stored}, "cpu_seconds")
        except KeyError as error:
            raise BadRow(f"members: {error} is missing") from None
        except BadRow as error:
            raise BadRow(f"members: {error}") from None
    return found


def to_run(raw: Raw) -> RunRow:
    """Decode a row of `cleanup_run`."""
    return RunRow(
        run_id=text(raw, "run_id"),
        agent_id=text(raw, "agent_id"),
        hook=text(raw, "hook"),
        status=text(raw, "status"),
        attempts=whole(raw, "attempts", 0),
        started_at=moment(raw, "started_at"),
        request_id=optional(raw, "request_id", text),
        message=text(raw, "message"),
        details=mapping(raw, "details"),
        finished_at=optional(raw, "finished_at", moment),
    )


def to_task(raw: Raw) -> TaskRow:
    """Decode a row of `orchestrator_task`."""
    return TaskRow(
        task_id=text(raw, "task_id"),
        status=text(raw, "status"),
        created_at=moment(raw, "created_at"),
        assigned_agent=optional(raw, "assigned_agent", text),
        error_message=optional(raw, "error_message", text),
        started_at=optional(raw, "started_at", moment),
        completed_at=optional(raw, "completed_at", moment),
        updated_at=optional(raw, "updated_at", moment),
        retry_count=whole(raw, "retry_count", 0),
        priority=optional(raw, "priority", whole),
        spec_id=optional(raw, "spec_id", text),
    )


def to_event(raw: Raw) -> EventRow:
    """Decode a row of `lifecycle_event`."""
    return EventRow(
        id=whole(raw, "id"),
        at=moment(raw, "at"),
        event=text(raw, "event"),
        who=text(raw, "who"),
        why=text(raw, "why"),
        agent_id=optional(raw, "agent_id", text),
        from_status=optional(raw, "from_status", text),
        to_status=optional(raw, "to_status", text),
        evidence=mapping(raw, "evidence"),
        owner_uid=optional(raw, "owner_uid", whole),
        name=name
        if isinstance(name := raw["name"], str)
        else None,  # joined from the agent's row, which may be broken: the event is shown anyway
    )


def to_hold(raw: Raw) -> HoldRow:
    """Decode a row of `operator_hold`. Only its id and agent must be readable; if the rest is not, it holds for ever.

    An operator wanted the agent left alone; ignoring a damaged hold could get it killed.
    """
    hold, agent_id = whole(raw, "id"), optional(raw, "agent_id", text)
    try:
        return HoldRow(
            id=hold,
            agent_id=agent_id,
            reason=text(raw, "reason"),
            by_uid=optional(raw, "by_uid", whole),
            created_at=moment(raw, "created_at"),
            until_at=optional(raw, "until_at", moment),
            ended_at=optional(raw, "ended_at", moment),
        )
    except BadRow as error:
        why = f"until it is lifted, as its row cannot be read: {error}"
        return HoldRow(id=hold, agent_id=agent_id, reason=why, by_uid=None, created_at=datetime.min.replace(tzinfo=UTC))


def _options(raw: Raw) -> Json:
    """The options of a kill request; a missing one has a default."""
    options = mapping(raw, "options")
    try:
        for key in ("grace_seconds", "ask_seconds"):
            optional({key: None, **options}, key, seconds)
    except BadRow as error:
        raise BadRow(f"options: {error}") from None
    return options


def sites_json(registration: Registration) -> str:
    """For the column `sites`."""
    sites = {"worktree": registration.worktree_site, "temp_dir": registration.temp_site}
    return dump({place: site_json(site) for place, site in sites.items() if site is not None})


def _site(raw: Raw, place: str) -> Site | None:
    """The identity of what lay at one of its places; None: unknown."""
    stored = mapping(raw, "sites").get(place)
    if stored is None:
        return None
    try:
        if not isinstance(stored, dict):
            raise TypeError("no JSON object")
        return site_of(stored)
    except (KeyError, TypeError, ValueError) as error:
        raise BadRow(f"sites: {place}: {error}") from None


def _entry(stored: Json) -> Listed:
    """An agent's entry in a foreign registry."""
    try:
        also = tuple(Identity(**one) for one in stored["also"])  # type: ignore[attr-defined]
        made = Listed(**{**stored, "also": also})  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise BadRow(f"entries: {error}") from None
    for value in (made.kind, made.path, made.key, made.token):
        if not isinstance(value, str):
            raise BadRow(f"entries: {value!r} is not text")
    return replace(made, temp=tuple(made.temp), stop=None if made.stop is None else tuple(made.stop))


def _identity(raw: Raw, host: str, boot_id: str) -> Identity | None:
    """The process that a row names. A pid without start ticks identifies no process and is refused."""
    if raw["pid"] is None:
        return None
    return Identity(
        host=host,
        boot_id=boot_id,
        pid=whole(raw, "pid", 2, PID_MAX),
        start_ticks=whole(raw, "start_ticks", 0),
        pidfd_inode=optional(raw, "pidfd_inode", whole),
    )


def from_members(members: Iterable[Identity]) -> str:
    """The processes of an agent's tree, for its row, which has their host and boot."""
    return dump([[one.pid, one.start_ticks, one.pidfd_inode] for one in members])


def _identities(raw: Raw, host: str, boot_id: str) -> tuple[Identity, ...]:
    """The inverse. Host and boot are the row's, so processes of another boot match none that runs now."""
    found = []
    for stored in listing(raw, "members", list):
        keys = ("pid", "start_ticks", "pidfd_inode")
        one = _identity(dict(zip(keys, stored, strict=True)), host, boot_id) if len(stored) == len(keys) else None
        if one is None:
            raise BadRow(f"members: {stored!r} is no process")
        found.append(one)
    return tuple(found)
