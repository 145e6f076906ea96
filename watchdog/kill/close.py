"""The last part of an order: commit that the tree is dead and how, run the hooks, close the task and the agent's row.

The agent's row is closed last, by compare-and-set. A later daemon may do each step again.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Protocol

from watchdog.agents import oom
from watchdog.agents.agent import Agent
from watchdog.agents.history import EventRecorder
from watchdog.agents.persistence import row_of
from watchdog.agents.tracker import AgentTracker
from watchdog.cleanup.runner import CleanupRunner
from watchdog.clock import Clock, Instant
from watchdog.config.settings import Settings
from watchdog.core.agent import LIVE, Status
from watchdog.core.conversations import RESUME, Conversation, conversation_of
from watchdog.core.hooks import HookOutcome
from watchdog.core.kill import KillOptions, KillStep, Reason
from watchdog.core.process import Identity
from watchdog.errors import Conflict
from watchdog.helpers.pool import HelperPool
from watchdog.kill.order import AUTOMATIC, AgentDeath, Json, KillOrder, KillOutcome, KillProgress, withdrawn
from watchdog.kill.terminate import TerminationResult
from watchdog.probes.exit_report import ExitReports
from watchdog.processes import procfs
from watchdog.processes.exit_status import exit_status
from watchdog.processes.identity import boot_id, passed_on
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.rows import AgentEnd, Proof
from watchdog.telemetry.metrics import Metrics

RUN_REPORT = 1.5  # seconds to wait for `run` to report the exit status where the kernel cannot (before 6.15)
NOT_ENDED = "not ended, "  # how the outcome of a tree that could not be killed begins
MOST_LOGGED = 64  # processes in one line of the log; the history has all
FAULTS = frozenset(  # signals that the kernel, or abort(3), sends for what a process itself did (signal(7))
    getattr(signal, f"SIG{name}") for name in ["ABRT", "BUS", "FPE", "ILL", "SEGV", "SYS", "TRAP", "XCPU", "XFSZ"]
)

_CAUSES = {
    Reason.OPERATOR: "killed on request",
    Reason.STOP: "stopped on request",
    Reason.FAILED_TO_START: "not started",
}


class NotOurs(Exception):
    """The order is done already (and a later step failed), or another daemon has closed or claimed it."""


class CloseLog(Protocol):
    """Where closing commits and reports how far it has come. In the daemon: `worker.OrderRun`."""

    async def proved(self, outcome: KillOutcome, proof: Proof | None) -> bool:
        """Commit that all of it is dead. False: the order is done, or another daemon's."""
        ...

    def cleaned(self, cleaned: list[Json], cleaning: tuple[str, ...]) -> None:
        """Report what the hooks that have ended did, and which are left."""
        ...


class Close:
    """Writes rows and has the hooks run; sends no signal."""

    def __init__(
        self,
        registry: AsyncRegistry,
        clock: Clock,
        tracker: AgentTracker,
        cleanup: CleanupRunner,
        recorder: EventRecorder,
        metrics: Metrics,
        helpers: HelperPool,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._tracker = tracker
        self._cleanup = cleanup
        self._recorder = recorder
        self._metrics = metrics
        self._reports = ExitReports(helpers)
        self._me = f"daemon {os.getpid()}"

    def apply(self, settings: Settings) -> None:
        """Begin each hook's failure counter at 0: one that appears with the first failure would show no increase."""
        self._metrics.expect(hook.name for hook in settings.hooks)

    async def build_outcome(self, order: KillOrder, progress: KillProgress) -> KillOutcome:
        """How the agent ended, whose whole tree is dead.

        It is committed before the first hook runs, or when the row is closed.
        """
        agent = order.agent
        if agent.status is Status.UNKILLABLE and await self._registry.write(
            self._registry.agents.transition,
            agent.agent_id,
            {Status.UNKILLABLE},
            Status.ENDING,
            now=self._clock.now().wall,
            who=self._me,
            why="the processes that could not be killed are gone",
        ):
            agent.become(Status.ENDING)
        if not agent.exit.known:
            await self._learn_exit(agent)
        now, status = self._clock.now(), status_of(order, progress)
        shared = agent.reg.shared(agent.perhaps.values())
        message = message_of(order, progress) + _left(progress.result) + _reused(agent)
        message += f"; {shared}" if shared else ""
        resume = resume_command(agent, progress.conversation)
        processes = [{**process, "started": _started(one, now)} for one, process in progress.processes.items()]
        death = AgentDeath(
            pid=agent.identity.pid if agent.identity else None,
            task_id=agent.reg.task_id,
            task_status=task_of(order, status, message)[0],
            killed_at=now.wall,
            grace=progress.planned,
            silence=agent.heartbeat.rhythm.since(now.wall, agent.heartbeat.silence.lasted),
            resume=resume,
            conversation=progress.conversation,
            stop_reason=order.why if status is Status.STOPPED else None,
            exit_code=agent.exit.code,
            exit_signal=agent.exit.signal,
        )
        return KillOutcome(
            agent.agent_id, message, status=status, killed=progress.killed, processes=tuple(processes), death=death
        )

    async def mark_unkillable(self, agent: Agent, why: str) -> None:
        """Processes of it live on: it gets that status, and no cleanup while they do."""
        if await self._registry.write(
            self._registry.agents.transition,
            agent.agent_id,
            {Status.ENDING, Status.UNKILLABLE},
            Status.UNKILLABLE,
            now=self._clock.now().wall,
            who=self._me,
            why=why,
        ):
            agent.become(Status.UNKILLABLE)

    async def clean_up(
        self, order: KillOrder, progress: KillProgress, outcome: KillOutcome, log: CloseLog
    ) -> KillOutcome:
        """Commit `outcome`, which says that the tree is dead; then run the hooks. Returns it with what they did.

        Raises NotOurs.
        """
        if not order.options.cleanup:
            return outcome
        agent, status = order.agent, _end_of(outcome)

        async def commit_proof() -> None:
            if progress.step is KillStep.CLEANUP:  # by an earlier attempt, or an earlier daemon
                return
            proof = None
            if _worth_logging(order, progress):
                now = self._clock.now().wall
                proof = Proof(agent.agent_id, agent.reg.owner_uid, self._me, outcome.message, now)
            if not await log.proved(outcome, proof):
                raise _not_ours(order)
            self._log_end(order, progress, outcome)

        words = end_words(agent, status, order.options, order.by, order.why, outcome.json())
        runs = await self._cleanup.run(
            agent, status, order.reason, order.request_id, before_run=commit_proof, progress=log.cleaned, **words
        )
        for run in runs:
            if run["outcome"] in (HookOutcome.FAILED, HookOutcome.TIMEOUT):
                self._metrics.cleanup_failures.labels(str(run["hook"])).inc()
        return outcome.cleaned(runs)

    async def close(self, order: KillOrder, progress: KillProgress, outcome: KillOutcome) -> None:
        """Close the task's row and, last, the agent's, in one transaction. Raises NotOurs."""
        agent, status = order.agent, _end_of(outcome)
        task = task_of(order, status, outcome.message)
        self._tracker.sockets.drain(agent.agent_id)  # its last messages, which no sweep has written
        logged = progress.step is KillStep.CLEANUP  # with the proof, before the hooks
        end = AgentEnd(
            order.request_id,
            order.holders,
            status,
            row_of(agent),
            by=order.by,
            outcome=outcome.json(),
            error=error_of(order, status, outcome.message),
            task=None if agent.reg.task_id is None else (agent.reg.task_id, *task),
            say=not logged and _worth_logging(order, progress),
            unsaved=progress.unsaved,
            cancelled=order.options.cancel,
        )
        now, owner_uid = self._clock.now().wall, agent.reg.owner_uid
        write = self._registry.kills.close_agent
        if not await self._registry.write(write, agent.agent_id, end, now=now, who=self._me, owner_uid=owner_uid):
            raise _not_ours(order)
        if not logged:
            self._log_end(order, progress, outcome)
        if agent.reg.task_id is not None and order.options.cancel:
            self._recorder.log("task.cancelled", agent, str(task[1]), {"task_id": agent.reg.task_id})
        self._metrics.kills.labels(order.reason.value, status.value).inc()
        self._tracker.forget(agent)
        self._recorder.logger_of(agent).event("agent.ended", status=status, why=outcome.message)

    def _log_end(self, order: KillOrder, progress: KillProgress, outcome: KillOutcome) -> None:
        """Log how it ended, once that is committed."""
        agent = order.agent
        if outcome.status is Status.FAILED and by_itself(order, progress):
            resume = resume_command(agent, progress.conversation)
            hint = f"; to resume: {resume}" if resume else ""
            facts = {"exit_code": agent.exit.code, "exit_signal": agent.exit.signal}
            self._recorder.record("agent.crashed", agent, f"{outcome.message}{hint}", evidence=facts)
        if progress.touched:
            self._log_finished(order, outcome)

    def _log_finished(self, order: KillOrder, outcome: KillOutcome) -> None:
        self._recorder.logger_of(order.agent).event(
            "kill.finished",
            request_id=order.request_id,
            status=outcome.status,
            why=outcome.message,
            processes=list(outcome.processes[:MOST_LOGGED]),
        )

    async def close_orphans(self, order: KillOrder, progress: KillProgress) -> KillOutcome:
        """Finish an order for what outlived its agent. The agent's row is closed already, and its hooks have run."""
        outcome = orphans_outcome(order, progress)
        await self._finish_request(order, progress, "done", outcome.json(), outcome.message)
        self._log_finished(order, outcome)
        return outcome

    async def withdraw(self, order: KillOrder, progress: KillProgress, why: str) -> KillOutcome:
        """Finish an order that was withdrawn; its agent keeps running."""
        agent = order.agent
        await self._finish_request(order, progress, "withdrawn", {"why": why}, why)
        agent.ending.withdrawn()
        self._recorder.logger_of(agent).event("kill.withdrawn", request_id=order.request_id, why=why)
        return withdrawn(agent.agent_id, why)

    async def forget_if_closed(self, agent: Agent) -> bool:
        """Whether its row is closed or unreadable; then stop watching it, or each sweep would order a kill again."""
        try:
            row = await self._registry.read(self._registry.agents.get, agent.agent_id)
        except Conflict as error:
            row = None
            self._recorder.logger_of(agent).event("row.quarantined", why=str(error))
        if row is not None and row.status in LIVE:
            return False
        self._tracker.forget(agent)
        return True

    async def _finish_request(
        self, order: KillOrder, progress: KillProgress, status: str, outcome: Json, why: str
    ) -> None:
        await self._registry.write(
            self._registry.kills.finish_request,
            order.request_id,
            status,
            outcome,
            now=self._clock.now().wall,
            who=self._me,
            why=why,
            owner_uid=order.agent.reg.owner_uid,
            by=order.holders,
            say=_worth_logging(order, progress),
        )

    async def _learn_exit(self, agent: Agent) -> None:
        """How the main process ended: from the kernel through the pidfd, else from `run`'s report, else unknown."""
        if agent.tree.pidfd is not None:
            told = exit_status(agent.tree.pidfd)
            if told is not None:
                agent.exit.learn(*told)
                return
        if agent.reg.source != "run" or (agent.tree.wrapper is None and await self._reports.learn(agent)):
            return
        deadline = self._clock.mono() + RUN_REPORT
        while not agent.exit.known and self._clock.mono() < deadline:
            await asyncio.sleep(0.05)
        # `run` may still report while we look for the file that it leaves if it cannot reach a daemon.
        if agent.exit.known or (not await self._reports.learn(agent) and agent.exit.known):
            agent.exit.reported_at_once()


def orphans_outcome(order: KillOrder, progress: KillProgress) -> KillOutcome:
    """How processes ended that had outlived their agent."""
    agent, processes = order.agent, tuple(progress.processes.values())
    count = len(processes)
    message = f"{count} process{'' if count == 1 else 'es'} that outlived it ended{_left(progress.result)}"
    return KillOutcome(agent.agent_id, message, status=agent.status, killed=progress.killed, processes=processes)


def survivors_outcome(order: KillOrder, result: TerminationResult) -> KillOutcome:
    """How an attempt went that left something alive."""
    alive = [f"{m.seen.name}[{m.pid}] {m.lives_on()}" for m in result.members if not m.dead]
    alive += [f"pid {pid} in its cgroup, which we may not see" for pid in result.unseen]
    reason = str(result.reason)
    why = f"{reason}: {', '.join(sorted(alive)[:8])}"
    if reason == "not_permitted" and order.sender is not None:
        why += f"; uid {order.sender} may not signal all of it, root can (agent-watchdog kill)"
    error = "permission_denied" if reason == "not_permitted" else "kill_failed"
    return KillOutcome(order.agent.agent_id, f"{NOT_ENDED}{why}", error)


def status_of(order: KillOrder, progress: KillProgress) -> Status:
    """How the agent ended. One that was never signalled ended by itself, whatever was about to be done."""
    agent = order.agent
    match Reason.GONE if by_itself(order, progress) else order.reason:
        case Reason.GONE:
            # An agent's `run` is its witness: if that reported nothing, it was killed too, and no success was seen.
            unseen = not agent.exit.known and agent.reg.source == "run"
            well = (
                not unseen and not agent.exit.code and not agent.exit.signal and not _ended_with_a_part(order, progress)
            )
            return Status.COMPLETED if well else Status.FAILED
        case Reason.FAILED_TO_START:
            return Status.FAILED
        case Reason.LOST:
            return Status.LOST
        case Reason.STOP:
            return Status.STOPPED
        case _:
            return Status.KILLED


def by_itself(order: KillOrder, progress: KillProgress) -> bool:
    """Whether it ended before any signal was sent to its main process."""
    return order.reason is Reason.GONE or (
        order.reason in AUTOMATIC and not progress.main_signalled and order.agent.identity is not None
    )


def message_of(order: KillOrder, progress: KillProgress) -> str:
    """One sentence on how it ended."""
    agent, count = order.agent, len(progress.processes)
    if order.reason is Reason.LOST:
        return "its host was restarted; none of its processes can live"
    if by_itself(order, progress):
        part, shortage = _ended_with_a_part(order, progress), oom.oom_kill_reason(agent)
        if shortage:
            end = shortage
        elif part:
            end = f"another of its processes exited, and its main process was then killed {_force(order, progress)}"
        elif agent.exit.signal:
            whose = "a crash, or sent by another process" if agent.exit.signal in FAULTS else "sent by another process"
            end = f"killed by signal {agent.exit.signal} ({whose})"
        elif agent.exit.code is None:
            end = "exited by itself, exit status unknown"
        else:
            end = f"exited by itself with status {agent.exit.code}"
        end += f" ({agent.exit.source})" if agent.exit.source and not shortage and not part else ""
        left = sum("after" in str(process["how"]) for process in progress.processes.values()) - part
        return f"{end}; {left} process{'' if left == 1 else 'es'} that it left behind killed" if left else end
    if not progress.touched:
        if agent.identity is None:
            return "no pid was ever registered, so there was nothing to kill"
        return (
            "it exited by itself when it was asked to stop"
            if order.asked_at(progress.step)
            else "no process of it was left to kill"
        )
    cause = _CAUSES.get(order.reason, order.reason.value)
    return f"{cause}: {count} process{'' if count == 1 else 'es'} ended{_ways(order, progress)}"


def _ended_with_a_part(order: KillOrder, progress: KillProgress) -> bool:
    """Whether the agent counts as gone because another process of it exited, and we then killed its main process.

    So it is with a wrapper that keeps running after the agent program in it has exited.
    """
    main = None if order.agent.identity is None else progress.processes.get(order.agent.identity)
    return order.reason is Reason.GONE and progress.main_signalled and main is not None and "after" in str(main["how"])


def _ways(order: KillOrder, progress: KillProgress) -> str:
    """What ended its processes; how many each, where it was not the same for all."""
    told = [str(process["how"]) for process in progress.processes.values()]
    by_kill, on_term = (sum(f"after {name}" in how for how in told) for name in ("SIGKILL", "SIGTERM"))
    if len(told) in (by_kill, on_term):
        return f" {_force(order, progress)}"
    rest = len(told) - by_kill - on_term
    ways = {
        _force(order, progress) if by_kill else "by KILL": by_kill,
        "on TERM": on_term,
        "by itself" if rest == 1 else "by themselves": rest,
    }
    return ": " + "; ".join(f"{count} {way}" for way, count in ways.items() if count)


def _force(order: KillOrder, progress: KillProgress) -> str:
    if progress.killed:
        return "by KILL" if order.options.force else "by KILL, TERM was not enough"
    return "on TERM"


def task_of(order: KillOrder, status: Status, message: str) -> tuple[str, str | None]:
    """The task's new status and error message.

    Finished work is completed, whatever became of its agent afterwards, unless the agent then exited with a status that
    is not 0.
    """
    if order.options.cancel:
        return "cancelled", f"cancelled by {order.by}: {order.why}"
    if status is Status.COMPLETED or (order.finished and not (status is Status.FAILED and order.agent.exit.code)):
        return "completed", None
    failed = status not in (Status.LOST, Status.KILLED, Status.STOPPED)
    return "failed" if failed else order.agent.policy.task_status, error_of(order, status, message)


def error_of(order: KillOrder, status: Status, message: str) -> str | None:
    """Why the agent did not succeed, in words; None: it did."""
    match status:
        case Status.COMPLETED:
            return None
        case Status.LOST:
            return "Agent lost: its host was restarted"
        case Status.KILLED | Status.STOPPED if order.options.cancel:
            return f"cancelled by {order.by}: {order.why}"
        case Status.KILLED:
            return f"Agent killed: {order.why}"
        case Status.STOPPED:
            return f"Agent stopped: {order.why}"
        case _:
            return f"Agent failed: {message}"


def resume_command(agent: Agent, conversation: Conversation | None) -> str | None:
    """The command that resumes the conversation: of the program that lists the agent, else its own program's."""
    told = {entry.kind: entry.resume for entry in agent.reg.entries if entry.resume}
    others = [resume for kind, resume in told.items() if kind not in RESUME]
    own = [] if conversation is None else [conversation.resume]
    return next(iter([*others, *own, *told.values()]), None)


def end_words(
    agent: Agent, status: Status, options: KillOptions, by: str, why: str, outcome: Mapping[str, object]
) -> dict[str, Any]:
    """How it ended, as hooks get it beside `outcome` and `reason`; the same after a restart."""
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


def _end_of(outcome: KillOutcome) -> Status:
    assert outcome.status is not None, "it is proved dead"
    return outcome.status


def _not_ours(order: KillOrder) -> NotOurs:
    return NotOurs(f"kill request {order.request_id} belongs to another daemon now: it is left alone")


def _worth_logging(order: KillOrder, progress: KillProgress) -> bool:
    """Whether the end of the request gets its own event; where no process was killed, `agent.ended` says enough."""
    return progress.touched or order.reason not in (Reason.GONE, Reason.LOST)


def _started(identity: Identity, now: Instant) -> str | None:
    """When a process was started (UTC, to the second); None for one of another boot, or if that was never read (0)."""
    if identity.boot_id != boot_id() or identity.start_ticks == 0:
        return None
    age = now.boot - identity.start_ticks / procfs.TICKS_PER_SECOND
    return (now.wall - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _left(ended: TerminationResult) -> str:
    """The processes left in its cgroup that are not the agent's: a spared program, or one that has such a name."""
    names = ", ".join(ended.left[:8]) + (" and more" if len(ended.left) > 8 else "")
    return f"; left alive in its cgroup: {names}" if names else ""


def _reused(agent: Agent) -> str:
    """A note for people who look for the pid: another process has it now, which was not touched."""
    main = agent.identity
    return f"; pid {main.pid} has been reused by another process" if main is not None and passed_on(main) else ""
