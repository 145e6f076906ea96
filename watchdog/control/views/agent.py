"""Agents, events, requests and hooks as JSON, and which user may see what of them.

Of other users' agents only id, name, owner, status and verdict are shown: never evidence, a note, a command, a path.
Durations are seconds, times are UTC with a Z.
"""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime, timedelta

from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.control.views.evidence import signals
from watchdog.control.views.next_change import Ending, next_changes
from watchdog.core.agent import ENDED, Registration, Verdict
from watchdog.core.peer import Peer
from watchdog.core.process import Identity
from watchdog.core.redaction import hide_secrets
from watchdog.probes import panes
from watchdog.registry.rows import AgentRow, EventRow, HoldRow, RequestRow, RunRow

Json = dict[str, object]


def stamp(at: datetime | None) -> str | None:
    """A UTC time as ISO 8601 with Z, to the millisecond."""
    return None if at is None else at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(span: timedelta | None) -> float | None:
    """A duration as seconds, to the tenth."""
    return None if span is None else round(span.total_seconds(), 1)


def public(agent: Agent | AgentRow) -> Json:
    """What every user of the machine may know."""
    reg = _registration(agent)
    verdict = agent.judged.verdict if isinstance(agent, Agent) else agent.verdict
    return {
        "agent_id": reg.agent_id,
        "name": reg.name,
        "owner_uid": reg.owner_uid,
        "status": agent.status.value,
        "verdict": verdict.value if verdict else None,
    }


def listed(agent: Agent | AgentRow, peer: Peer, now: datetime) -> Json:
    """One agent for a list, as much of it as the peer may see."""
    reg = _registration(agent)
    if not peer.may(reg.owner_uid):
        return public(agent)
    return {**public(agent), **_said(reg), **(_living(agent, now) if isinstance(agent, Agent) else _stored(agent))}


def full(
    agent: Agent | AgentRow,
    holds: Holds,
    now: datetime,
    doubts: Iterable[str] = (),
    *,
    observes: bool = False,
    ending: Ending | None = None,
    spared: timedelta | None = None,
    hooks_failed: bool = False,
) -> Json:
    """Everything about one agent, for its owner, root and admins. `hooks_failed`: of one that has ended."""
    reg = _registration(agent)
    if isinstance(agent, AgentRow):
        return {**public(agent), **_said(reg), **_stored(agent), "outlook": [_after(hooks_failed)]}
    members = [
        {
            "pid": m.identity.pid,
            "name": m.name,
            "state": m.state,
            "via": m.via,
            "uid": m.uid,
            "cpu_seconds": round(m.cpu_seconds, 2),
            "rss_bytes": m.rss_bytes,
        }
        for m in agent.tree.members
    ]
    return {
        **public(agent),
        **_said(reg),
        **_living(agent, now),
        "held": holds.reason_for(agent.agent_id, now),
        "line": None if agent.judged.verdict is None else [*Verdict].index(agent.judged.verdict) + 1,
        "signals": signals(agent, now),
        "members": members,
        "members_age_seconds": seconds(agent.judged.scan_age),
        "outlook": next_changes(agent, holds, now, doubts, observes=observes, ending=ending, spared=spared),
    }


def _after(hooks_failed: bool) -> str:
    if hooks_failed:
        return "It has ended. The reaper runs its failed cleanup hook again from time to time."
    return "It has ended; nothing will change."


def unkillable(agent: Agent, peer: Peer) -> Json:
    """An agent with processes that could not be killed, for `status`; the reason only for users that may see it."""
    may = peer.may(agent.reg.owner_uid)
    return {"agent_id": agent.agent_id, "name": agent.reg.name, "why": agent.ending.lives_on if may else None}


def elsewhere(agent: Agent) -> Json:
    """An agent that another daemon of this host watches, for `status`: whose, and what it is called there."""
    holder = agent.owner.elsewhere
    assert holder is not None
    found = {"agent_id": agent.agent_id, "name": agent.reg.name, "holder": str(holder)}
    return {**found, "socket": holder.socket, "name_there": holder.name}


def _registration(agent: Agent | AgentRow) -> Registration:
    return agent.reg if isinstance(agent, Agent) else agent.registration


def _said(reg: Registration) -> Json:
    return {
        "type": reg.agent_type,
        "tags": list(reg.tags),
        "task_id": reg.task_id,
        "parent_id": reg.parent_id,
        "pid": reg.identity.pid if reg.identity else None,
        "source": reg.source,
        "command": reg.command,
        "worktree": reg.worktree,
        "temp_dir": reg.temp_dir,
        "beat_file": reg.beat_file,
        "log": reg.log,
        "transcript": reg.transcript,
        "cgroup": reg.cgroup,
        "entries": [
            {"kind": one.kind, "path": one.path, "key": one.key, "proved": one.proved, "resume": one.resume}
            for one in reg.entries
        ],
        "pane": panes.pane_text(reg.its_pane),
        "stall_after_seconds": seconds(reg.stall_after),
        "interval_seconds": seconds(reg.interval),
        "ttl_seconds": seconds(reg.ttl),
        "created_at": stamp(reg.created_at),
        "host": reg.host,
    }


def _living(agent: Agent, now: datetime) -> Json:
    silence, ages, said, rhythm = (
        agent.heartbeat.silence,
        agent.heartbeat.ages,
        agent.heartbeat.said,
        agent.heartbeat.rhythm,
    )
    return {
        "state": said.state.value if said.state else None,
        "state_age_seconds": seconds(ages.state_age),
        "why": judging.why(agent),
        "needs_person": judging.needs_person(agent),
        "untouchable": agent.owner.untouchable,
        "promised": said.promised,
        "beats": rhythm.beats,
        "last_heartbeat": stamp(rhythm.last_heartbeat),
        "seconds_since_heartbeat": seconds(rhythm.since(now, silence.lasted)),
        "silence_seconds": seconds(silence.lasted),
        "counted_seconds": seconds(silence.counted),
        "forgiven_seconds": seconds(silence.forgiven),
        "after_seconds": seconds(silence.after),
        "watched_seconds": seconds(ages.age),
        "lease_left_seconds": seconds(ages.lease_left),
        "tool": said.tool and hide_secrets(said.tool),
        "tool_left_seconds": seconds(ages.tool_left),
        "progress": said.progress,
        "progress_age_seconds": seconds(ages.progress_age),
        "ttl_left_seconds": seconds(agent.ttl.left),
        "activity": agent.activity,
        "note": said.note and hide_secrets(said.note),
        "late_looks": silence.doubts.late_looks,
        "channel_lost": silence.hindrance.channel_lost,
        "elsewhere": None if agent.owner.elsewhere is None else str(agent.owner.elsewhere),
        "request_id": agent.ending.request_id,
        "exit_code": agent.exit.code,
        "exit_signal": agent.exit.signal,
    }


def _stored(row: AgentRow) -> Json:
    return {
        "state": row.state.value if row.state else None,
        "why": row.error_message or _end(row),
        "promised": row.promised,
        "beats": row.beats,
        "last_heartbeat": stamp(row.last_heartbeat),
        "seconds_since_heartbeat": _since_heartbeat(row),
        "silence_seconds": row.silence_seconds,
        "watched_seconds": row.watched_seconds,
        "progress": row.last_progress,
        "note": row.note,
        "created_at": stamp(row.created_at),
        "started_at": stamp(row.started_at),
        "completed_at": stamp(row.completed_at),
        "exit_code": row.exit_code,
        "exit_signal": row.exit_signal,
        "error_message": row.error_message,
    }


def _since_heartbeat(row: AgentRow) -> float | None:
    """Seconds from its last beat to its end."""
    if row.last_heartbeat is None or row.completed_at is None:
        return row.silence_seconds if row.beats else None
    return seconds(max(timedelta(), row.completed_at - row.last_heartbeat))


def _end(row: AgentRow) -> str:
    """How one ended that has no error."""
    if row.status not in ENDED:
        return ""
    return "exited by itself" + (", exit status unknown" if row.exit_code is None else f" with status {row.exit_code}")


def event(row: EventRow) -> Json:
    """One entry of the history."""
    return {
        "id": row.id,
        "at": stamp(row.at),
        "event": row.event,
        "agent_id": row.agent_id,
        "name": row.name,
        "from_status": row.from_status,
        "to_status": row.to_status,
        "who": row.who,
        "why": row.why,
        "evidence": row.evidence,
    }


def request(row: RequestRow) -> Json:
    """One kill request, with how far it came."""
    return {
        "request_id": row.request_id,
        "reason": row.reason.value,
        "by": row.by,
        "status": row.status,
        "step": row.step,
        "options": row.options,
        "evidence": row.evidence,
        "outcome": row.outcome,
        "created_at": stamp(row.created_at),
        "claimed_at": stamp(row.claimed_at),
        "finished_at": stamp(row.finished_at),
    }


def run(row: RunRow) -> Json:
    """One run of a cleanup hook."""
    return {
        "hook": row.hook,
        "status": row.status,
        "attempts": row.attempts,
        "message": row.message,
        "details": row.details,
        "started_at": stamp(row.started_at),
        "finished_at": stamp(row.finished_at),
    }


def hold(row: HoldRow, peer: Peer, agent: Agent | None) -> Json:
    """One hold, and the agent that it is on, if that lives here; its reason is text of a user, shown like a note."""
    shown = agent is None or peer.may(agent.reg.owner_uid)
    return {
        "agent_id": row.agent_id,
        "name": None if agent is None else agent.reg.name,
        "reason": row.reason if shown else None,
        "by_uid": row.by_uid,
        "since": stamp(row.created_at),
        "until": stamp(row.until_at),
    }


def identity(value: Identity) -> Json:
    """A process's identity."""
    return asdict(value)
