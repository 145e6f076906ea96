"""How a kill order went: the value that its row keeps, its hooks are run by, and whoever waits for it is told."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.core.agent import ENDED, Status
from watchdog.core.conversations import Conversation, conversation_json, conversation_of
from watchdog.core.kill import KillOptions
from watchdog.registry.rows import RequestRow

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class AgentDeath:
    """What is told of an agent that ended, beside what `KillOutcome` has of every order."""

    pid: int | None
    task_id: str | None
    task_status: str
    killed_at: datetime
    grace: timedelta | None  # None: nothing had to be asked to end
    silence: timedelta | None  # None: it has never beaten
    resume: str | None  # the command that takes it up again
    conversation: Conversation | None
    stop_reason: str | None
    exit_code: int | None
    exit_signal: int | None


@dataclass(frozen=True, slots=True)
class KillOutcome:
    """How an order went, so far or at last.

    `error` None: all that was to be ended is dead. `status`: how the agent ended; None while it lives.
    """

    agent_id: str
    message: str
    error: str | None = None
    status: Status | None = None
    killed: bool = False  # TERM was not enough, or was not tried
    processes: tuple[Json, ...] = ()  # how each of them ended
    death: AgentDeath | None = None  # None: its agent lives, or had ended before (orphans)
    cleanup: tuple[Json, ...] | None = None  # what each hook did; None: not yet, or none was to be run
    stored: Json | None = None  # as an earlier daemon wrote it, perhaps of another version: it is kept as it is

    @classmethod
    def of_row(cls, agent_id: str, stored: Mapping[str, object]) -> "tuple[KillOutcome | None, object]":
        """The outcome so far that an earlier daemon committed, if any, and apart from it what it noted of a grace."""
        rest = dict(stored)
        termed = rest.pop("termed", None)
        if not rest:
            return None, termed
        error, status = rest.get("error"), rest.get("status")
        told = cls(
            agent_id,
            str(rest.get("message", "")),
            None if error is None else str(error),
            Status(status) if isinstance(status, str) and status in ENDED else None,
            stored=rest,
        )
        return told, termed

    def cleaned(self, runs: Iterable[Json]) -> "KillOutcome":
        """The same with what its hooks did."""
        return replace(self, cleanup=tuple(runs))

    def json(self) -> Json:
        """As the row and the wire have it: the keys, and their order, are those of the first version."""
        told = self._told() if self.stored is None else dict(self.stored)
        if self.cleanup is not None:
            told["cleanup"] = list(self.cleanup)
            if retry := next((run["retry"] for run in self.cleanup if "retry" in run), None):
                told |= {"pane_cleanup_failed": True, "pane_retry_command": retry}  # the kill is a success
        return told

    def _told(self) -> Json:
        if self.error is not None or self.status is None:
            error = {} if self.error is None else {"error": self.error}
            return {"success": self.error is None, **error, "agent_id": self.agent_id, "message": self.message}
        action = "force_kill" if self.killed else "graceful_kill"
        head = {"success": True, "agent_id": self.agent_id, "action": action}
        processes, death = list(self.processes), self.death
        if death is None:
            return {**head, "message": self.message, "status": self.status.value, "processes": processes}
        kept = {} if death.conversation is None else {"conversation": conversation_json(death.conversation)}
        return {
            **head,
            "pid": death.pid,
            "kill_signal": "SIGKILL" if self.killed else "SIGTERM",
            "task_id": death.task_id,
            "killed_at": death.killed_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "grace_period_seconds": None if death.grace is None else death.grace.total_seconds(),
            "killed_gracefully": not self.killed,
            "seconds_since_heartbeat": None if death.silence is None else round(death.silence.total_seconds(), 1),
            "message": self.message,
            "status": self.status.value,
            "resume": death.resume,
            "resumable": death.resume is not None,
            **kept,
            "stop_reason": death.stop_reason,
            "exit_code": death.exit_code,
            "exit_signal": death.exit_signal,
            "processes": processes,
            "task_status": death.task_status,
        }


def withdrawn(agent_id: str, why: str = "withdrawn") -> KillOutcome:
    """What is told to whoever waits for an order that was called off."""
    return KillOutcome(agent_id, why, "withdrawn")


def result_of(row: RequestRow) -> Json | None:
    """What is told of an order that only the registry remembers; None while it is open."""
    if row.finished_at is None:
        return None
    return withdrawn(row.agent_id, str(row.outcome["why"])).json() if "why" in row.outcome else row.outcome


def end_words(
    agent: Agent, status: Status, options: KillOptions, by: str, why: str, outcome: Mapping[str, object]
) -> dict[str, Any]:
    """How it ended, as hooks are told of it beside `outcome` and `reason`; the same after a restart."""
    task = "cancelled" if options.cancel else outcome.get("task_status")  # none: of an earlier version
    task = task or {Status.COMPLETED: "completed", Status.FAILED: "failed"}.get(status)
    try:
        ended_at = datetime.fromisoformat(str(outcome.get("killed_at"))).timestamp()
    except ValueError:
        ended_at = 0.0  # an edited row
    conversation = conversation_of(outcome.get("conversation"))
    return {
        "why": why if why and status in (Status.KILLED, Status.STOPPED, Status.LOST) else str(outcome.get("message")),
        "by": by,
        "ended_at": ended_at,
        "task_status": task or agent.policy.task_status,
        "resumable": outcome.get("resumable") is True,
        "conversation": None if conversation is None else conversation.id,
        "with_messages": options.with_messages,
    }
