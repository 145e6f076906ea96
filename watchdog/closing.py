"""The last part of an order: commit that the tree is dead and how, run the hooks, tell the task, close the row.

The row is closed last, by compare-and-set; every step may be done again by a later daemon.
"""

import asyncio
import os

from watchdog.chronicle import Chronicle
from watchdog.clock import Clock
from watchdog.core.model import LIVE, HookOutcome, Reason, Status
from watchdog.ending import Ended
from watchdog.errors import Conflict
from watchdog.fleet import Agent
from watchdog.hearing import Hearing
from watchdog.journal import Cleanup
from watchdog.logs import Log
from watchdog.metrics import Metrics
from watchdog.orders import Order, status_of, task_of, told
from watchdog.processes.identity import exit_status
from watchdog.registry.store import AsyncStore

RUN_REPORT = 1.5  # seconds to wait for `run`'s word on the exit status where the kernel cannot tell (before 6.15)


class Closing:
    """Knows the store, the hooks and the ears; kills nobody."""

    def __init__(
        self,
        store: AsyncStore,
        clock: Clock,
        hearing: Hearing,
        cleanup: Cleanup,
        chronicle: Chronicle,
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._store = store
        self._clock = clock
        self._hearing = hearing
        self._cleanup = cleanup
        self._chronicle = chronicle
        self._metrics = metrics
        self._log = log
        self._me = f"daemon {os.getpid()}"

    async def prove(self, order: Order, ended: Ended) -> None:
        """Commit that the whole tree is dead, and how."""
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
        if agent.exit_code is None and agent.exit_signal is None:
            await self._learn_exit(agent)
        order.signalled = order.signalled or ended.main_signalled
        status = status_of(order, agent)
        now = self._clock.now().wall
        order.outcome = {
            "success": True,
            "agent_id": agent.agent_id,
            "action": "graceful_kill" if ended.gracefully else "force_kill",
            "pid": agent.identity.pid if agent.identity else None,
            "kill_signal": "SIGTERM" if ended.gracefully else "SIGKILL",
            "task_id": agent.reg.task_id,
            "killed_at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "grace_period_seconds": order.plan.grace.total_seconds() if order.plan else None,
            "killed_gracefully": ended.gracefully,
            "seconds_since_heartbeat": round(agent.silence.total_seconds(), 1) if agent.beats else None,
            "message": told(order, ended),
            "status": status.value,
            "resume": None,
            "exit_code": agent.exit_code,
            "exit_signal": agent.exit_signal,
            "processes": [{"pid": m.seen.identity.pid, "name": m.seen.name, "how": m.how()} for m in ended.members],
        }
        order.step = "cleanup"
        await self._store.write(self._store.store.save_step, order.request_id, "cleanup", outcome=order.outcome)
        if ended.signalled:
            self._logged(agent).event(
                "kill.finished", request_id=order.request_id, status=status, why=order.outcome["message"]
            )

    async def put_in_order(self, order: Order) -> None:
        """Hooks, then the task, then our row, last."""
        agent, outcome = order.agent, order.outcome or {}
        status = Status(str(outcome["status"]))
        error = None if status is Status.COMPLETED else task_of(order, agent, status)[1]
        if order.options.cleanup:
            runs = await self._cleanup.run(agent, status, order.reason, order.request_id)
            outcome["cleanup"] = runs
            for run in runs:
                if run["outcome"] in (HookOutcome.FAILED, HookOutcome.TIMEOUT):
                    self._metrics.cleanup_failures.labels(str(run["hook"])).inc()
        if agent.reg.task_id is not None:
            task_status, message = task_of(order, agent, status)
            await self._store.write(
                self._store.store.update_task,
                agent.reg.task_id,
                task_status,
                error_message=message,
                agent_id=agent.agent_id,
                now=self._clock.now().wall,
            )
        self._hearing.sockets.drain(agent.agent_id)  # its last words, which no sweep has written down
        await self._store.write(self._store.store.save_sweep, [agent.row()])
        await self._store.write(
            self._store.store.transition,
            agent.agent_id,
            {Status.ENDING},
            status,
            now=self._clock.now().wall,
            who=order.by,
            why=str(outcome["message"]),
            evidence={"processes": outcome.get("processes"), "cleanup": outcome.get("cleanup")},
            exit_code=outcome.get("exit_code"),
            exit_signal=outcome.get("exit_signal"),
            error_message=error,
        )
        await self.finish_request(order, "done", outcome, str(outcome["message"]))
        self._metrics.kills.labels(order.reason.value, status.value).inc()
        self._hearing.forget(agent)
        self._logged(agent).event("agent.ended", status=status, why=outcome["message"])

    async def let_go(self, agent: Agent) -> None:
        """Watch it no longer if somebody closed its row or made it unreadable: each look would order a kill anew."""
        try:
            row = await self._store.read(self._store.store.agent, agent.agent_id)
        except Conflict as error:
            row = None
            self._logged(agent).event("row.quarantined", why=str(error))
        if row is None or row.status not in LIVE:
            self._hearing.forget(agent)

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
            say=order.reason not in (Reason.GONE, Reason.LOST),  # nobody was killed; `agent.ended` tells it
        )

    async def _learn_exit(self, agent: Agent) -> None:
        """How the main process ended: the kernel's word through the pidfd, else `run`'s, else unknown."""
        if agent.pidfd is not None:
            told = exit_status(agent.pidfd)
            if told is not None:
                agent.exit_code, agent.exit_signal = told
                return
        deadline = self._clock.mono() + (RUN_REPORT if agent.reg.source == "run" else 0.0)
        while agent.exit_code is None and agent.exit_signal is None and self._clock.mono() < deadline:
            await asyncio.sleep(0.05)

    def _logged(self, agent: Agent) -> Log:
        return self._log.bind(agent_id=agent.agent_id, name=agent.reg.name)
