"""Agents that began and ended without a daemon: their `run` has recorded who they were and how they ended.

read by each owner's helper -> registered as they would have been, for the uid that owns the file -> closed as gone,
with the exit status that their `run` reports and all hooks -> the report is removed when the row is closed

The same applies to an agent that was registered without a pid. All others are closed by the sweep, which reads their
report; here it is only removed. A report that is addressed to another daemon stays.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from watchdog.agents.agent import Agent
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.registration import Registrar
from watchdog.clock import Clock
from watchdog.core.agent import ENDED
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.names import name_for
from watchdog.core.peer import Peer
from watchdog.core.registration import RegistrationRequest, registration_of
from watchdog.errors import BadRequest, Conflict, OwnerCallFailed, RegistryUnavailable, WatchdogError
from watchdog.helpers.pool import HelperPool
from watchdog.kill.worker import KillWorker
from watchdog.probes.exit_report import DEADLINE, DIRECTORY, end_of, source_of
from watchdog.telemetry import logger

AT_ONCE = 4  # owners that are read concurrently
MOST = 1024  # reports of one owner in one round
TOLD = 16  # unusable reports of one owner that are logged per round; the next round logs more
WHY = "its `run` recorded that it ended when no daemon could be reached"


class RunReportImporter:
    """A job of its own, at start and then as rarely as the reaper. An error in one owner's files affects no other."""

    def __init__(
        self,
        registrar: Registrar,
        holds: Holds,
        kills: KillWorker,
        clock: Clock,
        helpers: HelperPool,
        recorder: EventRecorder,
        runtime_dir: str,
    ) -> None:
        self._registrar = registrar
        self._registry = registrar.registry
        self._holds = holds
        self._kills = kills
        self._clock = clock
        self._helpers = helpers
        self._recorder = recorder
        self._runtime_dir = runtime_dir
        self._told: dict[int, frozenset[str]] = {}  # by owner: unusable reports already logged

    async def round(self) -> None:
        """Read the reports of every owner once, and process them."""
        at_once = asyncio.Semaphore(AT_ONCE)

        async def of(uid: int) -> None:
            async with at_once:
                await self._of_owner(uid)

        with suppress(RegistryUnavailable):  # the sweep reports it, the next round continues
            await asyncio.gather(*map(of, await self._uids()))

    async def _uids(self) -> set[int]:
        """Users that may have left one for us: our own; for root also those with agents here, and those logged in."""
        if os.geteuid() != 0:
            return {os.geteuid()}
        uids = {0} | await self._registry.read(self._registry.agents.owners, self._registrar.host)
        with suppress(OSError):
            uids |= {int(name) for name in os.listdir("/run/user") if name.isdigit() and len(name) < 11}
        return uids

    def _directories(self, uid: int) -> list[str]:
        """The directories that `cli.run.inbox.open_inbox` may choose."""
        fallback = f"/tmp/agent-watchdog-{uid}"  # noqa: S108  read by that uid, as all of these
        beside = f"/tmp/.agent-watchdog-{uid}-*"  # noqa: S108  all of them: client.sockets.fallbacks
        runtime = [f"/run/user/{uid}/agent-watchdog", fallback, beside]
        own = [self._runtime_dir, *runtime] if uid == os.geteuid() else runtime
        return [f"{directory}/{DIRECTORY}" for directory in dict.fromkeys(own)]

    async def _of_owner(self, uid: int) -> None:
        passed: dict[str, str | None] = {}  # by path, why it was not used
        try:
            while len(passed) < MOST:
                args = {"directories": self._directories(uid), "passed": list(passed)}
                answer = await self._helpers.call(uid, "end_reports", args, DEADLINE)
                reports = {str(path): report for path, report in answer["reports"].items() if path not in passed}
                passed |= {str(path): str(why) for path, why in answer["problems"].items()}
                if not reports:
                    break
                for path, report in list(reports.items())[:MOST]:
                    passed[path] = await self._take(uid, path, report)
        except OwnerCallFailed as error:
            passed[f"uid {uid}"] = str(error)
        except (AttributeError, KeyError, TypeError) as error:  # it is that user's process and may answer anything
            passed[f"uid {uid}"] = f"no answer to end_reports: {error!r}"
        self._report(uid, {f"{path[:500]}: {why[:500]}" for path, why in passed.items() if why is not None})

    def _report(self, uid: int, problems: set[str]) -> None:
        news = sorted(problems - self._told.get(uid, frozenset()))
        for words in news[:TOLD]:
            with logger.caused_by(uid):
                self._recorder.event(
                    "row.quarantined", why=f"how an agent ended, as its `run` recorded it for uid {uid}: {words}"
                )
        self._told[uid] = frozenset(problems.difference(news[TOLD:]))

    async def _take(self, uid: int, path: str, report: object) -> str | None:
        """Process one: None, or why it is unusable. Raises RegistryUnavailable, OwnerCallFailed."""
        agent_id = os.path.basename(path)
        try:
            end = end_of(report)
            assert isinstance(report, dict)
            agent = self._registrar.fleet.get(agent_id)
            row = None if agent is not None else await self._registry.read(self._registry.agents.get, agent_id)
            if report.get("boot_id") != self._registrar.boot_id or (row is not None and row.status in ENDED):
                await self._helpers.call(uid, "end_report_done", {"path": path}, DEADLINE)
                return None
            mine = report.get("socket") in (None, f"{self._runtime_dir}/control.sock")
            held = self._holds.reason_for(agent_id, self._clock.now().wall) is not None
            if row is not None or not mine or held:
                return None
            if agent is None:
                agent = await self._registered(uid, agent_id, report.get("registration"))
            if agent.identity is None and agent.ending.request_id is None and agent.reg.owner_uid == uid:
                agent.exit.read(end.exit_code, end.exit_signal, source_of(end))
                await self._kills.request(agent, Reason.GONE, KillOptions(by_root=uid == 0), f"uid {uid}", WHY)
        except (RegistryUnavailable, OwnerCallFailed):
            raise
        except (WatchdogError, RecursionError) as error:
            return str(error)
        return None

    async def _registered(self, uid: int, agent_id: str, registration: object) -> Agent:
        """Register it, without fields that conflict by now.

        `registration`: the document that its `run` would have sent (POST /agents). Raises BadRequest, Conflict,
        Forbidden, RegistryUnavailable.
        """
        asked = registration_of(registration)
        if asked.agent_id != agent_id or asked.source != "run":
            raise BadRequest("it is not the file's agent, or none of a `run`")
        async with self._registrar.turn(uid):
            task = None if asked.task is None else await self._registry.read(self._registry.history.task, asked.task)
            if task is not None and task.assigned_agent is not None:
                asked = replace(asked, task=None)  # another works on it, or has done it
            for one in _variants(asked):
                try:
                    return (await self._registrar.register(one, Peer(uid, uid, os.getpid()))).agent
                except (BadRequest, Conflict) as error:
                    refusal = error
        raise refusal


def _variants(asked: RegistrationRequest) -> Iterator[RegistrationRequest]:
    """Its parent may have ended by now; its temp dir and its name may be another's."""
    whole = replace(asked, replace=False, pid=None)
    yield whole
    yield (orphan := replace(whole, parent=None))
    yield (bare := replace(orphan, temp_dir=None))
    yield replace(bare, name=name_for(asked.name, str(asked.agent_id)[:4]))
