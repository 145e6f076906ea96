"""Agents whose whole life no daemon saw: their `run` has written down who they were and how they ended.

    read, by each owner's helper -> registered as they would have been, by the uid whose file it is -> closed as gone,
    with the end that their `run` tells and all hooks -> the report is removed when the row is closed

The same goes for one that was registered and whose pid nobody told. All others are closed by the sweep, which asks for
their report; here it is only removed. A report that was left for another daemon by name stays.
"""

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import suppress

from watchdog.agents.fleet import Agent
from watchdog.control.context import ControlContext
from watchdog.control.routes.agents import take_in
from watchdog.control.schemas import Register, parse
from watchdog.core.agent import ENDED
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.names import name_for
from watchdog.core.peer import Peer
from watchdog.errors import BadRequest, Conflict, OwnerCallFailed, RegistryUnavailable, WatchdogError
from watchdog.helpers.pool import HelperPool
from watchdog.probes.exit_report import DEADLINE, DIRECTORY, end_of, told
from watchdog.telemetry import logger

AT_ONCE = 4  # owners that are asked at a time
MOST = 1024  # reports of one owner in one round
TOLD = 16  # of one owner, that cannot be taken; the round after tells more
WHY = "its `run` has written down that it ended, when no daemon could be told"


class RunReportImporter:
    """A job of its own, at start and then as seldom as the reaper. One owner's fault stays his own."""

    def __init__(self, desk: ControlContext, owners: HelperPool) -> None:
        self._desk = desk
        self._owners = owners
        self._told: dict[int, frozenset[str]] = {}  # by owner, what cannot be taken

    async def round(self) -> None:
        """Every owner once."""
        at_once = asyncio.Semaphore(AT_ONCE)

        async def of(uid: int) -> None:
            async with at_once:
                await self._of_owner(uid)

        with suppress(RegistryUnavailable):  # the sweep tells it, the next round goes on
            await asyncio.gather(*map(of, await self._uids()))

    async def _uids(self) -> set[int]:
        """Who may have left one for us: ourselves; for root also who had an agent here, and who is logged in."""
        if os.geteuid() != 0:
            return {os.geteuid()}
        uids = {0} | await self._desk.store.read(self._desk.store.store.owners, self._desk.host)
        with suppress(OSError):
            uids |= {int(name) for name in os.listdir("/run/user") if name.isdigit() and len(name) < 11}
        return uids

    def _directories(self, uid: int) -> list[str]:
        """As `cli.run.inbox.open_inbox` chooses."""
        fallback = f"/tmp/agent-watchdog-{uid}"  # noqa: S108  read by that uid, as all of these
        beside = f"/tmp/.agent-watchdog-{uid}-*"  # noqa: S108  all of them: control.client.fallbacks
        runtime = [f"/run/user/{uid}/agent-watchdog", fallback, beside]
        own = [self._desk.runtime_dir, *runtime] if uid == os.geteuid() else runtime
        return [f"{directory}/{DIRECTORY}" for directory in dict.fromkeys(own)]

    async def _of_owner(self, uid: int) -> None:
        passed: dict[str, str | None] = {}  # by path, why it was not taken
        try:
            while len(passed) < MOST:
                args = {"directories": self._directories(uid), "passed": list(passed)}
                answer = await self._owners.call(uid, "end_reports", args, DEADLINE)
                reports = {str(path): report for path, report in answer["reports"].items() if path not in passed}
                passed |= {str(path): str(why) for path, why in answer["problems"].items()}
                if not reports:
                    break
                for path, report in list(reports.items())[:MOST]:
                    passed[path] = await self._take(uid, path, report)
        except OwnerCallFailed as error:
            passed[f"uid {uid}"] = str(error)
        except (AttributeError, KeyError, TypeError) as error:  # it is his process, which may say anything
            passed[f"uid {uid}"] = f"no answer to end_reports: {error!r}"
        self._tell(uid, {f"{path[:500]}: {why[:500]}" for path, why in passed.items() if why is not None})

    def _tell(self, uid: int, problems: set[str]) -> None:
        news = sorted(problems - self._told.get(uid, frozenset()))
        for words in news[:TOLD]:
            with logger.caused_by(uid):
                self._desk.event(
                    "row.quarantined", why=f"how an agent ended, as its `run` wrote it down for uid {uid}: {words}"
                )
        self._told[uid] = frozenset(problems.difference(news[TOLD:]))

    async def _take(self, uid: int, path: str, report: object) -> str | None:
        """Deal with one: None, or why nothing can be done with it. Raises RegistryUnavailable, OwnerCallFailed."""
        desk, agent_id = self._desk, os.path.basename(path)
        try:
            end = end_of(report)
            assert isinstance(report, dict)
            agent = desk.fleet.get(agent_id)
            row = None if agent is not None else await desk.store.read(desk.store.store.agent, agent_id)
            if report.get("boot_id") != desk.boot_id or (row is not None and row.status in ENDED):
                await self._owners.call(uid, "end_report_done", {"path": path}, DEADLINE)
                return None
            mine = report.get("socket") in (None, desk.socket_path)
            if row is not None or not mine or desk.holds.reason_for(agent_id, desk.now()) is not None:
                return None
            if agent is None:
                agent = await self._registered(uid, agent_id, report.get("registration"))
            if agent.identity is None and agent.request_id is None and agent.reg.owner_uid == uid:
                agent.exit_code, agent.exit_signal, agent.exit_told = end.exit_code, end.exit_signal, told(end)
                await desk.request_kill(agent, Reason.GONE, KillOptions(by_root=uid == 0), f"uid {uid}", WHY)
        except (RegistryUnavailable, OwnerCallFailed):
            raise
        except (WatchdogError, RecursionError) as error:
            return str(error)
        return None

    async def _registered(self, uid: int, agent_id: str, registration: object) -> Agent:
        """It as an agent, without what does not fit any more. Raises BadRequest, Conflict, Forbidden."""
        body = parse(Register, json.dumps(registration).encode())
        if body.agent_id != agent_id or body.source != "run":
            raise BadRequest("it is not the file's agent, or none of a `run`")
        desk = self._desk
        async with desk.registering(uid):
            task = None if body.task is None else await desk.store.read(desk.store.store.task, body.task)
            if task is not None and task.assigned_agent is not None:
                body = body.model_copy(update={"task": None})  # another works on it, or has done it
            for one in _variants(body):
                try:
                    return (await take_in(desk, Peer(uid, uid, os.getpid()), one))[0]
                except (BadRequest, Conflict) as error:
                    refusal = error
        raise refusal


def _variants(body: Register) -> Iterator[Register]:
    """Its parent may have ended by now, its temp dir may be another's, and so may its name."""
    body = body.model_copy(update={"replace": False, "pid": None})
    other = {"name": name_for(body.name, str(body.agent_id)[:4])}
    for less in ({}, {"parent": None}, {"temp_dir": None}, other):
        yield (body := body.model_copy(update=less))
