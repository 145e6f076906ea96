"""A kill request in memory: what was asked for, how far it has come, and how its outcome is told.

Values and words only; `kill_worker` acts. The registry keeps the same as JSON, so a later daemon can go on with it.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from watchdog.core.model import Identity, KillOptions, Reason, Status, TreeMember
from watchdog.ending import Ended, Plan
from watchdog.fleet import Agent

OWN = frozenset({Reason.STALLED, Reason.EXPIRED, Reason.LINGERING, Reason.FAILED_TO_START})


@dataclass(slots=True)
class Order:
    """A kill request in memory. `beats` is the agent's count when it was decided: one more withdraws a stall."""

    request_id: str
    agent: Agent
    reason: Reason
    options: KillOptions
    by: str
    why: str
    beats: int
    step: str = ""
    resumed: bool = False  # taken up after a restart
    former: str | None = None  # the daemon, gone now, that had claimed it
    signalled: bool = False  # the main process may have got a signal of ours, from this daemon or a former one
    members: tuple[TreeMember, ...] = ()
    plan: Plan | None = None
    outcome: dict[str, object] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    left: int = 0  # rows of history on what could not be ended
    said: set[str] = field(default_factory=set)  # troubles and signals that were told: attempts repeat them

    def first(self, words: str) -> bool:
        """Whether this was not told of it yet."""
        new = words not in self.said
        self.said.add(words)
        return new


def status_of(order: Order, agent: Agent) -> Status:
    """How the agent ended. Who was never signalled ended by himself, whatever we were about to do."""
    match Reason.GONE if _by_itself(order) else order.reason:
        case Reason.GONE:
            return Status.COMPLETED if not agent.exit_code and not agent.exit_signal else Status.FAILED
        case Reason.FAILED_TO_START:
            return Status.FAILED
        case Reason.LOST:
            return Status.LOST
        case Reason.STOP:
            return Status.STOPPED
        case _:
            return Status.KILLED


def _by_itself(order: Order) -> bool:
    return order.reason is Reason.GONE or (
        order.reason in OWN and not order.signalled and order.agent.identity is not None
    )


def told(order: Order, ended: Ended) -> str:
    """One sentence on how it ended."""
    agent, count = order.agent, len(ended.members)
    if order.reason is Reason.LOST:
        return "its host was restarted; none of its processes can live"
    if _by_itself(order):
        if agent.exit_signal:
            end = f"ended by signal {agent.exit_signal} from somebody else"
        elif agent.exit_code is None:
            end = "ended by itself, exit status unknown"
        else:
            end = f"ended by itself with exit status {agent.exit_code}"
        left = sum(bool(m.sent) for m in ended.members)
        return f"{end}; {left} processes that it left were ended" if left else end
    if not ended.signalled:
        return "there was no process left to end"
    force = "on TERM" if ended.gracefully else "by KILL, TERM was not enough" if not order.options.force else "by KILL"
    return f"{order.reason}: {count} process{'' if count == 1 else 'es'} ended {force}"


def task_of(order: Order, agent: Agent, status: Status) -> tuple[str, str | None]:
    """The task's new status and error message."""
    match status:
        case Status.COMPLETED:
            return "completed", None
        case Status.LOST:
            return agent.policy.task_status, "Agent lost: its host was restarted"
        case Status.KILLED:
            return agent.policy.task_status, f"Agent killed: {order.why}"
        case Status.STOPPED:
            return agent.policy.task_status, f"Agent stopped: {order.why}"
        case _:
            return "failed", f"Agent failed: {(order.outcome or {}).get('message', order.why)}"


def to_json(options: KillOptions, beats: int, why: str) -> dict[str, object]:
    grace = None if options.grace is None else options.grace.total_seconds()
    return {"force": options.force, "grace_seconds": grace, "cleanup": options.cleanup, "beats": beats, "why": why}


def from_json(stored: dict[str, object]) -> tuple[KillOptions, int, str]:
    grace, beats = stored.get("grace_seconds"), stored.get("beats")
    options = KillOptions(
        force=stored.get("force") is True,
        grace=timedelta(seconds=grace) if isinstance(grace, int | float) else None,
        cleanup=stored.get("cleanup") is not False,
    )
    return options, beats if isinstance(beats, int) else 0, str(stored.get("why", ""))


def member_of(stored: dict[str, object]) -> TreeMember:
    """A member as it was committed. A stored one is only a memory: `pin` asks the kernel before anything is done."""
    fields = dict(stored)
    identity = fields.pop("identity")
    if not isinstance(identity, dict):
        raise TypeError(f"a member of a kill request has no identity: {stored}")
    return TreeMember(identity=Identity(**identity), **fields)  # type: ignore[arg-type] # checked by its constructor's use
