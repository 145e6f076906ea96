"""The last part of an order: commit that the tree is dead and how, run the hooks, tell the task, close the row.

The row is closed last, by compare-and-set; every step may be done again by a later daemon.
"""

import asyncio
import os
from datetime import timedelta
from functools import partial
from typing import Any

from watchdog.agents import oom
from watchdog.agents.fleet import Agent
from watchdog.agents.history import EventRecorder
from watchdog.agents.persistence import row_of
from watchdog.agents.tracker import AgentTracker
from watchdog.cleanup.runner import CleanupRunner
from watchdog.clock import Clock, Instant
from watchdog.core.agent import LIVE, Status
from watchdog.core.hooks import HookOutcome
from watchdog.core.kill import KillStep, Reason
from watchdog.core.process import Identity
from watchdog.errors import Conflict
from watchdog.helpers.pool import HelperPool
from watchdog.kill.order import Order, by_itself, error_of, member_json, status_of, task_of, told
from watchdog.kill.outcome import AgentDeath, KillOutcome, end_words
from watchdog.kill.terminate import TerminationResult
from watchdog.probes.exit_report import ExitReports
from watchdog.processes import procfs
from watchdog.processes.exit_status import exit_status
from watchdog.processes.identity import boot_id, passed_on
from watchdog.registry.rows import AgentEnd, Proof
from watchdog.registry.store import AsyncStore
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.metrics import Metrics

RUN_REPORT = 1.5  # seconds to wait for `run`'s word on the exit status where the kernel cannot tell (before 6.15)
NOT_ENDED = "not ended, "  # how an outcome of what could not be ended begins
MOST_TOLD = 64  # processes in one line of the log; the history has all


class NotOurs(Exception):
    """The order is done already (and what followed failed), or was closed or taken by somebody else."""


class Close:
    """Knows the store, the hooks and the ears; kills nobody."""

    def __init__(
        self,
        store: AsyncStore,
        clock: Clock,
        hearing: AgentTracker,
        cleanup: CleanupRunner,
        chronicle: EventRecorder,
        metrics: Metrics,
        log: EventLogger,
        owners: HelperPool,
    ) -> None:
        self._store = store
        self._clock = clock
        self._hearing = hearing
        self._cleanup = cleanup
        self._chronicle = chronicle
        self._metrics = metrics
        self._log = log
        self._reports = ExitReports(owners)
        self._me = f"daemon {os.getpid()}"

    async def proved(self, order: Order) -> None:
        """The whole tree is dead: see how. That is committed before the first hook runs, or with the row's closing."""
        agent = order.agent
        if agent.status is Status.UNKILLABLE and await self._store.write(
            self._store.store.transition,
            agent.agent_id,
            {Status.UNKILLABLE},
            Status.ENDING,
            now=self._clock.now().wall,
            who=self._me,
            why="what could not be ended is gone",
        ):
            agent.status = Status.ENDING
        if not agent.exit_known:
            await self._learn_exit(agent)
        order.shortage = oom.told(agent)
        status = status_of(order, agent)
        now = self._clock.now()
        processes = [{**process, "started": _started(one, now)} for one, process in order.processes.items()]
        reused = _reused(agent) + (f"; {agent.shared}" if agent.shared else "")
        order.outcome = KillOutcome(
            agent.agent_id,
            told(order) + _left(order.ended) + reused,
            status=status,
            killed=order.killed,
            processes=tuple(processes),
            death=AgentDeath(
                pid=agent.identity.pid if agent.identity else None,
                task_id=agent.reg.task_id,
                task_status=task_of(order, agent, status)[0],
                killed_at=now.wall,
                grace=order.plan.grace if order.plan else None,
                silence=agent.silence if agent.beats else None,
                resume=order.resume,
                conversation=order.conversation,
                stop_reason=order.why if status is Status.STOPPED else None,
                exit_code=agent.exit_code,
                exit_signal=agent.exit_signal,
            ),
        )

    async def _prove(self, order: Order) -> None:
        """Commit that it is dead, before anything is cleaned up. Raises NotOurs."""
        if order.step is KillStep.CLEANUP or order.outcome is None:
            return
        if not await self.save(order, KillStep.CLEANUP, order.outcome, proof=self._proof(order, order.outcome)):
            raise _not_ours(order)
        outcome = order.outcome
        order.prove()  # no sooner: an attempt that finds the step goes on with the hooks, and tells no more of the end
        self._tell_end(order, outcome)

    def _proof(self, order: Order, outcome: KillOutcome) -> Proof | None:
        agent = order.agent
        if not _worth_saying(order):
            return None
        return Proof(agent.agent_id, agent.reg.owner_uid, self._me, outcome.message, self._clock.now().wall)

    def _tell_end(self, order: Order, outcome: KillOutcome) -> None:
        """Once it is committed."""
        agent = order.agent
        if outcome.status is Status.FAILED and by_itself(order):
            hint = f"; to resume: {order.resume}" if order.resume else ""
            facts = {"exit_code": agent.exit_code, "exit_signal": agent.exit_signal}
            self._chronicle.tell("agent.crashed", agent, f"{outcome.message}{hint}", evidence=facts)
        if order.touched:
            self._logged(agent).event(
                "kill.finished",
                request_id=order.request_id,
                status=outcome.status,
                why=outcome.message,
                processes=list(outcome.processes[:MOST_TOLD]),
            )

    async def put_aside(self, order: Order, ended: TerminationResult) -> None:
        """Say once that something lives on; no cleanup while it does."""
        agent = order.agent
        alive = [f"{m.seen.name}[{m.pid}] {m.lives_on()}" for m in ended.members if not m.dead]
        alive += [f"pid {pid} in its cgroup, which we may not see" for pid in ended.unseen]
        outcome = survived(order, str(ended.reason), alive)
        news = Telling(order, self._chronicle, self._logged(agent)).left(outcome)
        order.outcome = outcome
        agent.lives_on = outcome.message.removeprefix(NOT_ENDED)
        if news:
            await self.save(order, order.step, outcome)
        elif agent.status is Status.UNKILLABLE:
            return
        if await self._store.write(
            self._store.store.transition,
            agent.agent_id,
            {Status.ENDING, Status.UNKILLABLE},
            Status.UNKILLABLE,
            now=self._clock.now().wall,
            who=self._me,
            why=agent.lives_on,
        ):
            agent.status = Status.UNKILLABLE

    async def put_in_order(self, order: Order) -> None:
        """Hooks, then the task, then our row, last."""
        agent, outcome = order.agent, order.outcome
        assert outcome is not None and outcome.status is not None, "it is proved dead"
        status = outcome.status
        task = task_of(order, agent, status)
        if order.options.cleanup:
            words = end_words(agent, status, order.options, order.by, order.why, outcome.json())
            first = partial(self._prove, order)
            runs = await self._cleanup.run(
                agent, status, order.reason, order.request_id, first=first, progress=order.clean, **words
            )
            order.outcome = outcome = outcome.cleaned(runs)
            for run in runs:
                if run["outcome"] in (HookOutcome.FAILED, HookOutcome.TIMEOUT):
                    self._metrics.cleanup_failures.labels(str(run["hook"])).inc()
        self._hearing.sockets.drain(agent.agent_id)  # its last words, which no sweep has written down
        end = AgentEnd(
            order.request_id,
            order.holders,
            status,
            row_of(agent),
            by=order.by,
            outcome=outcome.json(),
            error=error_of(order, status),
            task=None if agent.reg.task_id is None else (agent.reg.task_id, *task),
            say=order.step is not KillStep.CLEANUP and _worth_saying(order),
            unsaved=_unsaved(order),
            cancelled=order.options.cancel,
        )
        now, owner_uid = self._clock.now().wall, agent.reg.owner_uid
        close = self._store.store.close_agent
        if not await self._store.write(close, agent.agent_id, end, now=now, who=self._me, owner_uid=owner_uid):
            raise _not_ours(order)
        if order.step is not KillStep.CLEANUP:
            self._tell_end(order, outcome)
        if agent.reg.task_id is not None and order.options.cancel:
            self._chronicle.log("task.cancelled", agent, str(task[1]), {"task_id": agent.reg.task_id})
        self._metrics.kills.labels(order.reason.value, status.value).inc()
        self._hearing.forget(agent)
        self._logged(agent).event("agent.ended", status=status, why=outcome.message)

    async def close_orphans(self, order: Order) -> None:
        """What outlived its agent is dead: tell it. The agent's row is closed already, and its hooks have run."""
        agent = order.agent
        count = len(order.processes)
        message = f"{count} process{'' if count == 1 else 'es'} that outlived it ended{_left(order.ended)}"
        processes = tuple(order.processes.values())
        outcome = KillOutcome(agent.agent_id, message, status=agent.status, killed=order.killed, processes=processes)
        order.outcome = outcome
        await self.finish_request(order, "done", outcome.json(), message)
        self._logged(agent).event(
            "kill.finished",
            request_id=order.request_id,
            status=agent.status,
            why=message,
            processes=list(processes[:MOST_TOLD]),
        )

    async def let_go(self, agent: Agent) -> bool:
        """Watch it no longer if its row is closed or somebody made it unreadable: each look would order a kill anew."""
        try:
            row = await self._store.read(self._store.store.agent, agent.agent_id)
        except Conflict as error:
            row = None
            self._logged(agent).event("row.quarantined", why=str(error))
        if row is not None and row.status in LIVE:
            return False
        self._hearing.forget(agent)
        return True

    async def finish_request(self, order: Order, status: str, outcome: dict[str, object], why: str) -> None:
        await self._store.write(
            self._store.store.finish_request,
            order.request_id,
            status,
            outcome,
            now=self._clock.now().wall,
            who=self._me,
            why=why,
            owner_uid=order.agent.reg.owner_uid,
            by=order.holders,
            say=_worth_saying(order),
        )

    async def save(
        self, order: Order, step: KillStep, outcome: KillOutcome | None = None, proof: Proof | None = None
    ) -> bool:
        """Commit a step, with the outcome so far and whatever else its row lacks. False: done, or somebody else's."""
        return await self._save(order, step, None if outcome is None else outcome.json(), proof)

    async def save_grace(self, order: Order, started: float, everybody: bool) -> None:
        """Commit with the step that it has come to that a grace goes on, so that no attempt begins it again."""
        await self._save(order, order.step, order.have_termed(started, everybody))

    async def _save(
        self, order: Order, step: KillStep, outcome: dict[str, object] | None, proof: Proof | None = None
    ) -> bool:
        more = {"by": order.holders, "outcome": outcome, "proof": proof, **_unsaved(order)}
        saved = await self._store.write(self._store.store.save_step, order.request_id, step.value, **more)
        if saved:
            order.stored, order.evidence = (step, order.members), None
        return saved

    async def _learn_exit(self, agent: Agent) -> None:
        """How the main process ended: the kernel's word through the pidfd, else `run`'s, told or left, else unknown."""
        if agent.pidfd is not None:
            told = exit_status(agent.pidfd)
            if told is not None:
                agent.exit_code, agent.exit_signal = told
                return
        if agent.reg.source != "run" or (agent.wrapper is None and await self._reports.learn(agent)):
            return
        deadline = self._clock.mono() + RUN_REPORT
        while not agent.exit_known and self._clock.mono() < deadline:
            await asyncio.sleep(0.05)
        if agent.exit_known or (not await self._reports.learn(agent) and agent.exit_known):
            agent.exit_told = ""

    def _logged(self, agent: Agent) -> EventLogger:
        return self._log.bind(agent_id=agent.agent_id, name=agent.reg.name)


def _unsaved(order: Order) -> dict[str, Any]:
    """What its row lacks, for the next write: evidence, and members where they are others than before."""
    members = None if order.stored[1] == order.members else list(map(member_json, order.members))
    return {"members": members, "evidence": order.evidence}


def _not_ours(order: Order) -> NotOurs:
    return NotOurs(f"kill request {order.request_id} is not ours any more: it is left alone")


def _worth_saying(order: Order) -> bool:
    """Whether the end of the request is; where nobody was killed `agent.ended` tells it."""
    return order.touched or order.reason not in (Reason.GONE, Reason.LOST)


def _started(identity: Identity, now: Instant) -> str | None:
    """When a process of this boot was started (UTC, to the second); None for one of another, or never read (0)."""
    if identity.boot_id != boot_id() or identity.start_ticks == 0:
        return None
    age = now.boot - identity.start_ticks / procfs.TICKS_PER_SECOND
    return (now.wall - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _left(ended: TerminationResult) -> str:
    """Who was not the agent's own, and lives on where it was: a program that is spared, or says that it is one."""
    names = ", ".join(ended.left[:8]) + (" and more" if len(ended.left) > 8 else "")
    return f"; left alive in its cgroup: {names}" if names else ""


def _reused(agent: Agent) -> str:
    """Who looks for the pid now finds somebody else, whom nobody has touched."""
    main = agent.identity
    return f"; its pid {main.pid} has passed on to another process" if main is not None and passed_on(main) else ""


def survived(order: Order, reason: str, alive: list[str]) -> KillOutcome:
    """The outcome of an attempt that left these alive."""
    why = f"{reason}: {', '.join(sorted(alive)[:8])}"
    if reason == "not_permitted" and order.sender is not None:
        why += f"; uid {order.sender} may not signal all of it, root can (agent-watchdog kill)"
    error = "permission_denied" if reason == "not_permitted" else "kill_failed"
    return KillOutcome(order.agent.agent_id, f"{NOT_ENDED}{why}", error)


MOST_LEFT = 20  # rows of history that one order gets for what it could not end, whatever changes with each attempt


class Telling:
    """The words of one order."""

    def __init__(self, order: Order, chronicle: EventRecorder, log: EventLogger) -> None:
        """`log` has the agent bound."""
        self._order = order
        self._chronicle = chronicle
        self._log = log.bind(request_id=order.request_id)

    def signal(self, name: str, pids: list[int]) -> None:
        """A signal of that name went out to these."""
        why = f"{name} to {len(pids)} process{'' if len(pids) == 1 else 'es'}"
        facts = {"request_id": self._order.request_id, "pids": pids[:64]}
        if self._order.first(f"{name} {pids}"):
            self._chronicle.tell("kill.signal_sent", self._order.agent, why, f"daemon {os.getpid()}", facts)

    def refused(self, pid: int, why: str) -> None:
        """The guard, or the kernel, let no signal out to this one."""
        if self._order.first(f"refused {pid} {why}"):
            self._log.event("kill.refused", pid=pid, why=why)

    def left(self, outcome: KillOutcome) -> bool:
        """An attempt left something alive: it went so. True when the history should have it.

        The log is told once; the history again when it is something else than before, also before a restart.
        """
        order, message = self._order, outcome.message
        if order.first("unkillable"):
            self._log.event("kill.unkillable", why=message.removeprefix(NOT_ENDED))
        former = None if order.outcome is None else order.outcome.message
        if message == former or order.left >= MOST_LEFT or not order.first(message):
            return False
        order.left += 1
        return True
