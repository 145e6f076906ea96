"""The answers to /kill, /stop and /cancel: keys of the kill-stalled-agent command, plus four of ours."""

from dataclasses import dataclass, field
from datetime import datetime

from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.control.context import ControlContext, Json
from watchdog.core.agent import Status
from watchdog.core.hooks import HookOutcome
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.peer import Peer
from watchdog.errors import PathRefused, WatchdogError
from watchdog.registry.rows import AgentRow, RequestRow

OWN = 30.0  # seconds that an answer waits for the cleanup of the caller's own agents, once they are proved dead
OTHERS = 5.0  # and for that of other users' agents
_UNDONE = frozenset({HookOutcome.FAILED, HookOutcome.TIMEOUT})
# In the order in which the command lists them; every result has all of them.
KEYS = (
    "success",
    "agent_id",
    "name",
    "action",
    "pid",
    "kill_signal",
    "task_id",
    "killed_at",
    "grace_period_seconds",
    "killed_gracefully",
    "seconds_since_heartbeat",
    "message",
    "how",
    "status",
    "resume",
    "resumable",
    "processes",
    "cleanup",
)


@dataclass
class Patience:
    """How long the answer to one request waits for cleanup, which is done as the owner of the agent that is dead.

    An owner can make that take as long as its deadlines allow (a helper that is stopped, a disk that hangs). So the
    answer to another user waits a few seconds for one agent's cleanup; if that was not enough, it waits for no other's.
    The cleanup is finished all the same.
    """

    peer: Peer
    spent: set[bool] = field(default_factory=set)  # of the caller's own agents (True), of others'

    def for_cleanup(self, owner_uid: int) -> float:
        """Seconds for the cleanup of an agent of this owner."""
        own = owner_uid == self.peer.uid
        return 0.0 if own in self.spent else OWN if own else OTHERS

    def spend(self, results: list[Json]) -> None:
        """Learn from the results of agents whose cleanup was waited for at the same time."""
        self.spent |= {one.get("owner_uid") == self.peer.uid for one in results if goes_on(one)}


def kill_result(
    agent: Agent,
    request_id: str,
    outcome: Json | None,
    options: KillOptions,
    *,
    now: datetime,
    waited: bool,
    at: str = "",
) -> Json:
    """A kill's result. `outcome` None: not known yet, no failure if the caller did not wait. `at`: `@HOST`."""
    grace = agent.policy.grace if options.grace is None else options.grace
    result: Json = {
        **dict.fromkeys(KEYS),
        "success": not waited,
        "agent_id": agent.agent_id,
        "name": agent.reg.name,
        "owner_uid": agent.reg.owner_uid,
        "action": "force_kill" if options.force else "graceful_kill",
        "pid": agent.identity.pid if agent.identity else None,
        "task_id": agent.reg.task_id,
        "grace_period_seconds": grace.total_seconds(),
        "seconds_since_heartbeat": _since_heartbeat(agent, now),
        "processes": [],
        "cleanup": [],
        "request_id": request_id,
    }
    if outcome is not None:
        result |= {key: value for key, value in outcome.items() if value is not None or key not in result}
        _as_the_command_says(result, options)
        if goes_on(result):
            result["how"] = f"{result['how']}; {what_goes_on(result, agent.reg.name + at)}"
    elif waited:
        result |= {
            "error": "kill_failed",
            "message": f"not dead yet; the kill goes on (agent-watchdog why {agent.reg.name})",
        }
    else:
        result["message"] = f"a kill request is committed; see agent-watchdog why {agent.reg.name}"
    if options.force:
        del result["grace_period_seconds"]  # there was none
    if not result["success"]:
        result.setdefault("error", "kill_failed")
        result["http_status"] = {"permission_denied": 403, "protected": 409, "withdrawn": 409}.get(
            str(result["error"]), 500
        )
    return result


def _since_heartbeat(agent: Agent, now: datetime) -> int | None:
    since = agent.heartbeat.rhythm.since(now, agent.heartbeat.silence.lasted)
    return None if since is None else round(since.total_seconds())


def _as_the_command_says(result: Json, options: KillOptions) -> None:
    """Put in the texts and numbers that the command documents; `how` has ours."""
    result["how"] = result["message"]
    if result.get("status") == Status.KILLED and result["success"]:
        forced = result["action"] == "force_kill"
        result["message"] = "Agent force killed" if forced else "Agent terminated gracefully"
    for key in ("grace_period_seconds", "seconds_since_heartbeat"):
        value = result[key]
        if isinstance(value, float):
            result[key] = int(value) if value.is_integer() or key == "seconds_since_heartbeat" else value
    cleanup = result.get("cleanup")
    runs = cleanup if isinstance(cleanup, list) else []
    failed = [
        run for run in runs if run.get("outcome") in _UNDONE and "retry" not in run
    ]  # a pane is reported beside it
    if failed and result["success"]:
        words = "; ".join(f"{run.get('hook')}: {run.get('message')}" for run in failed)
        result |= {
            "success": False,
            "error": PathRefused.code,
            "message": f"{result['message']}; not everything was cleaned up: {words}",
        }


def is_dead(result: Json) -> bool:
    """Whether the agent of a result is dead, even if its cleanup failed."""
    return bool(result.get("success")) or result.get("error") == PathRefused.code


def ended_already(row: AgentRow, order: RequestRow | None = None, *, purged: bool = False) -> Json:
    """The result for an agent that is dead already. `order`: the one that killed it. `purged`: it cannot be resumed."""
    reg, outcome = row.registration, {} if order is None else order.outcome
    message = "already stopped" if row.status is Status.STOPPED else f"already dead: {row.status}"
    asked = order is not None and order.reason not in (Reason.GONE, Reason.LOST)
    who = f", by {order.by}: {order.options.get('why')}" if order is not None and asked else ""
    return {
        **dict.fromkeys(KEYS),
        "success": True,
        "agent_id": reg.agent_id,
        "name": reg.name,
        "owner_uid": reg.owner_uid,
        "action": "none",
        "pid": reg.identity.pid if reg.identity else None,
        "task_id": reg.task_id,
        "killed_at": outcome.get("killed_at"),
        "message": message,
        "how": f"{message} since {stamp}{who}" if (stamp := outcome.get("killed_at")) else message,
        "status": row.status.value,
        "resume": None if purged else outcome.get("resume"),
        "resumable": not purged and outcome.get("resume") is not None,
        "stop_reason": outcome.get("stop_reason"),
        "processes": [],
        "cleanup": [],
    }


def failure(target: str, error: WatchdogError, agent: Agent | None = None) -> Json:
    """A target that was not killed, and why."""
    result: Json = {"success": False, "error": error.code, "message": str(error), "target": target}
    result["agent_id"] = agent.agent_id if agent is not None else target
    if agent is not None:
        result |= {"name": agent.reg.name, "owner_uid": agent.reg.owner_uid, "task_id": agent.reg.task_id}
    result["http_status"] = error.http_status
    return result


def dry(agent: Agent, now: datetime) -> Json:
    """What would be killed."""
    verdict = agent.judged.verdict or "not looked at yet"
    return {
        "success": True,
        "agent_id": agent.agent_id,
        "name": agent.reg.name,
        "owner_uid": agent.reg.owner_uid,
        "action": "would_end",
        "pid": agent.identity.pid if agent.identity else None,
        "task_id": agent.reg.task_id,
        "seconds_since_heartbeat": _since_heartbeat(agent, now),
        "message": f"would be killed: {agent.status}, {verdict}; {judging.why(agent)}".rstrip("; "),
        "processes": [{"pid": m.identity.pid, "name": m.name, "how": "would be killed"} for m in agent.tree.members],
    }


def preview(agent: Agent, tree: str, now: datetime) -> Json:
    """What would be killed, for a caller that may not know which agents it means; nothing was done."""
    result = dry(agent, now)
    message = f"not done, as this command runs in the tree {tree}; with --go (JSON: go) it {result['message']}"
    return result | {"success": False, "error": "preview", "message": message}


def summary(targets: list[str], results: list[Json], dry_run: bool, context: ControlContext) -> Json:
    """The answer for several agents."""
    killed = [r for r in results if is_dead(r) and r.get("status") is not None and r["action"] != "none"]
    keys = ("agent_id", "name", "pid", "seconds_since_heartbeat", "killed_gracefully", "task_id")
    return {
        "success": all(bool(r.get("success")) for r in results),
        "action": "would_end"
        if dry_run or any(r.get("error") == "preview" for r in results)
        else "kill_stalled"
        if targets == ["stalled"]
        else "kill",
        "agents_killed": len(killed),
        "killed_agents": [{key: r.get(key) for key in keys} for r in killed],
        "timestamp": context.now().strftime("%Y-%m-%dT%H:%M:%SZ"),
        "results": results,
    }


def goes_on(outcome: Json) -> bool:
    """Whether the agent is dead and its cleanup has not ended."""
    return "cleanup_left" in outcome


def what_goes_on(outcome: Json, name: str) -> str:
    """The end of a sentence on such an agent: what is left, and where to look."""
    left = outcome.get("cleanup_left")
    names = f" ({', '.join(map(str, left))})" if isinstance(left, list) and left else ""
    return f"its cleanup goes on{names}: agent-watchdog why {name}"
