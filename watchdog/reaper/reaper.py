"""The reaper: what dead agents have left, looked for every ten minutes and put in order; `reap` shows or does the same.

    process  orphans of ended agents (`orphans`), ended by the kill worker by an order like any other
    hook     cleanup hooks that gave up, or in which a daemon died: tried once more, with the same `run_id`;
             and those that kept a worktree for nothing but its use, once a day for a week
    notify   sockets of ours in the runtime directory
    cgroup   empty ones that were an ended agent's own; scopes systemd removes itself
    …        the owner's kinds (`owner.leftovers`): his helper finds them and removes them

A job of its own, slower than the sweep and never in its way: each owner is asked in a helper of his own with a
deadline, the scan runs in a thread, and a round does a bounded amount. Users do not wait for each other, nor an order
for a round: each user's places are looked at and dealt with in turn (its helpers may be stopped, its leftovers may
resist), four users at once, and where others wait for the end of it, for so long at most. In observe mode it only
tells. A hold on an
agent, or on all for the daemon's own rounds, is respected. What is removed is in the history before and after.
"""

import asyncio
import contextlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.holds import Holds
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.cleanup.runner import CleanupRunner
from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.config.settings import Settings
from watchdog.core import hooks
from watchdog.core.agent import ENDED
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.core.kill import KillOptions, Reason
from watchdog.errors import Conflict, OwnerCallFailed, RegistryUnavailable, WatchdogError
from watchdog.kill.order import from_json
from watchdog.kill.outcome import end_words
from watchdog.kill.safeguards import Safeguards
from watchdog.kill.worker import KillWorker
from watchdog.processes import cgroups
from watchdog.reaper.leftovers import Leftover, OwnerLeftovers
from watchdog.reaper.orphans import Orphans
from watchdog.registry.rows import RunRow
from watchdog.registry.store import AsyncStore
from watchdog.telemetry import logger
from watchdog.telemetry.logger import EventLogger

EVERY = timedelta(minutes=10)
AGAIN = timedelta(minutes=10)  # after which a hook that gave up is tried again; doubled with each try
AGAIN_MOST = timedelta(hours=6)
USED_AGAIN = timedelta(days=1)  # after which what was kept for nothing but its use is looked at again,
USED_FOR = timedelta(days=8)  # for so long: who still sits in it then has it
ACTS = 50  # of the daemon's own for one user in one round
SHARE = 120.0  # seconds for one user's part of a round; what is being done then is finished
PATIENCE = 5.0  # seconds for a look at the directory of the notify sockets
AT_ONCE = 4  # users whose places are looked at at a time
WELL = frozenset({HookOutcome.DONE, HookOutcome.NOTHING, HookOutcome.KEPT})

May = Callable[[int], bool]
Deal = Callable[[int, Leftover], Awaitable[None]]  # told the user that it counts for


class Reaper:
    """Looks, tells, and has each leftover dealt with by whoever may; itself it touches our own sockets alone."""

    def __init__(
        self,
        fleet: Fleet,
        store: AsyncStore,
        clock: Clock,
        settings: Settings,
        finders: tuple[Orphans, OwnerLeftovers, CgroupPlacement],
        cleanup: CleanupRunner,
        worker: KillWorker,
        holds: Holds,
        restraint: Safeguards,
        log: EventLogger,
        *,
        host: str,
        notify: str,
    ) -> None:
        """`notify`: the directory of our notify sockets."""
        self._fleet = fleet
        self._store = store
        self._clock = clock
        self.settings = settings
        self._orphans, self._places, self._placement = finders
        self._cleanup = cleanup
        self._worker = worker
        self._holds = holds
        self._restraint = restraint
        self._log = log
        self._host = host
        self._notify = notify
        self._told: set[tuple[str, str, str]] = set()
        self._troubled: set[str] = set()  # told already
        self._former: dict[tuple[str, str], tuple[HookOutcome, str]] = {}  # what was tried, and is there still
        self._looked: dict[int, float] = {}  # monotonic seconds of the last look at each owner's places
        self._doing: set[tuple[str, str, str | None, int]] = set()  # what rounds are about, by kind, place and whose

    async def round(self) -> None:
        """The daemon's own; whatever goes wrong in it is said, and the next one comes."""
        acts = Counter[int]()

        async def deal(user: int, one: Leftover) -> None:
            if one.act is None or self.settings.observe:
                self._tell(one)
            if one.act is not None and acts[user] < ACTS:
                acts[user] += 1
                await self._act(one, "daemon")

        try:
            found = await self._each(lambda _: True, "daemon", deal)
            self._told &= {one.key for one in found}
            places = {(one.kind, one.what) for one in found}
            self._former = {place: came for place, came in self._former.items() if place in places}
        except RegistryUnavailable:
            pass  # the next sweep tells it, the next round goes on
        except Exception as error:  # noqa: BLE001 - the daemon is the last to fall
            self._trouble("a round", error)

    async def reap(self, may: May, by: str, *, dry_run: bool) -> list[dict[str, object]]:
        """What an operator's `reap` found of the owners that he may act for, and (`dry_run` False) what came of it.

        Raises RegistryUnavailable.
        """

        async def deal(_: int, one: Leftover) -> None:
            if not dry_run:
                await self._act(one, by)

        return [one.json() for one in await self._each(may, by, deal)]

    async def orphans(self) -> list[Agent]:
        """Ended agents whose orphans live and may be ended, for `kill orphans`. Raises RegistryUnavailable."""
        try:
            return (await self._orphans.find()).agents
        except OSError as error:
            raise Conflict(f"/proc cannot be read: {error.strerror or error}") from error

    # -- looking

    async def _each(self, may: May, by: str, deal: Deal) -> list[Leftover]:
        """All that is found; each is dealt with by its user's turn. Raises RegistryUnavailable."""
        found = (
            await self._processes(by_root=by != "daemon" and may(0))
            + await self._hooks(due=by == "daemon")
            + await self._ours()
        )
        ours: dict[int, list[Leftover]] = {}
        for one in found:
            if may(one.owner_uid):
                ours.setdefault(self._restraint.user_of(one.owner_uid), []).append(self._unless_held(one, by))
        uids: dict[int, list[int]] = {user: [] for user in ours}
        known = await self._store.read(self._store.store.owners, self._host)
        self._looked = {uid: when for uid, when in self._looked.items() if uid in known}
        for uid in sorted(known, key=lambda uid: (self._looked.get(uid, 0.0), uid)):
            if may(uid) and os.geteuid() in (0, uid):
                uids.setdefault(self._restraint.user_of(uid), []).append(uid)
        seconds = SHARE if by == "daemon" or len(uids) > 1 else float("inf")
        at_once = asyncio.Semaphore(AT_ONCE)

        async def of(user: int) -> list[Leftover]:
            async with at_once:
                return await self._of_user(user, ours.get(user, []), uids[user], by, deal, seconds)

        parts = [asyncio.ensure_future(of(user)) for user in sorted(uids)]
        try:
            return [one for part in await asyncio.gather(*parts) for one in part]
        finally:
            for part in parts:  # one that failed for want of the registry ends the others
                part.cancel()

    async def _of_user(
        self, user: int, ours: list[Leftover], uids: list[int], by: str, deal: Deal, seconds: float
    ) -> list[Leftover]:
        """What we know of that user, and what its helpers find; dealt with while its time lasts."""
        end = self._clock.mono() + seconds
        found: list[Leftover] = []

        async def take(those: list[Leftover]) -> None:
            found.extend(those)
            for one in those:
                if self._clock.mono() < end:
                    await deal(user, one)
                elif one.act is not None:
                    one.result = hooks.kept("not now: what comes before it took too long")

        await take(ours)
        for number, uid in enumerate(uids):
            if self._clock.mono() >= end:
                self._trouble(f"the look at the places of user {user}", f"too slow; {len(uids) - number} uids are left")
                break
            self._looked[uid] = self._clock.mono()
            await take([self._unless_held(one, by) for one in await self._of_owner(uid)])
        return found

    def _unless_held(self, one: Leftover, by: str) -> Leftover:
        held = self._holds.against(one.agent_id or "", self._clock.now().wall, own=by == "daemon")
        if held is None or one.act is None:
            return one
        return replace(one, action="keep", why=f"held: {held}", act=None)

    async def _processes(self, *, by_root: bool) -> list[Leftover]:
        try:
            outlived = await self._orphans.find()
        except OSError as error:
            self._trouble("the look for orphans", error)
            return []
        found = []
        for agent in outlived.agents:
            names = ", ".join(f"{m.name}[{m.identity.pid}] by {m.via}" for m in agent.tree.members[:8])
            names += " and more" if len(agent.tree.members) > 8 else ""
            why = f"outlived agent {agent.reg.name}, which is {agent.status}"
            one = Leftover("process", names, agent.reg.owner_uid, agent.agent_id, why, "end", agent.reg.name)
            found.append(replace(one, act=partial(self._end, agent, by_root), journaled=True))
        for left in outlived.left:
            what = f"{left.name}[{left.pid}]"
            one = Leftover("process", what, left.uid, left.agent_id, left.why, "keep", quiet=left.usual)
            found.append(one)
        for uid, strangers in outlived.strangers.items():
            what = f"{len(strangers)} process{'' if len(strangers) == 1 else 'es'}"
            why = "marked by agents that are not known here: another daemon's, or forgotten"
            found.append(Leftover("process", what, uid, None, why, "keep", quiet=True))
        return found

    async def _hooks(self, *, due: bool) -> list[Leftover]:
        """Hooks that gave up or kept what was in use, one leftover an agent; `due`: those whose pause is over."""
        store, now = self._store.store, self._clock.now().wall
        by_agent: dict[str, list[RunRow]] = {}
        for run in await self._store.read(store.gave_up, self._host, now - AGAIN if due else now):
            since = now - (run.finished_at or run.started_at)
            if not due or since >= min(AGAIN_MOST, AGAIN * 2 ** min(run.attempts, 10)):
                by_agent.setdefault(run.agent_id, []).append(run)
        used = (now - USED_AGAIN, now - USED_FOR) if due else (now, datetime.fromtimestamp(0, UTC))
        for run in await self._store.read(store.kept_in_use, self._host, *used):
            by_agent.setdefault(run.agent_id, []).append(run)
        found = []
        for row in await self._store.read(store.agents_by_id, list(by_agent)):
            runs = [run for run in by_agent[row.agent_id] if self._cleanup.knows(run.hook)]
            if not runs or row.status not in ENDED or self._fleet.get(row.agent_id) is not None:
                continue
            agent = Agent(row.registration, self.settings.policy_for(row.registration), row.status)
            agent.exit.learn(row.exit_code, row.exit_signal)
            why = "; ".join(
                f"{run.hook}: {run.status} after {run.attempts} tr{'y' if run.attempts == 1 else 'ies'}: {run.message}"
                for run in runs
            )
            what = ", ".join(run.hook for run in runs)
            one = Leftover("hook", what, agent.reg.owner_uid, row.agent_id, why[:2000], "run", row.registration.name)
            found.append(replace(one, act=partial(self._run_again, agent, runs), journaled=True))
        return found

    async def _ours(self) -> list[Leftover]:
        """Sockets and cgroups that we made for agents whose rows are closed: a daemon died before it removed them."""
        try:
            names = await threads.call(self._notify, partial(os.listdir, self._notify), PATIENCE)
        except (OSError, threads.Unanswered) as error:  # also while another round looks
            self._trouble("the look for sockets", error)
            names = []
        sockets = {name: os.path.join(self._notify, name) for name in names}
        found = []
        for kind, places, act in (
            ("notify", sockets, os.unlink),
            ("cgroup", self._placement.leaves(), cgroups.remove),
        ):
            left = [agent_id for agent_id in places if self._fleet.get(agent_id) is None]
            for row in await self._store.read(self._store.store.agents_by_id, left[:1000]):
                if row.status in ENDED and self._fleet.get(row.agent_id) is None:
                    what, reg = places[row.agent_id], row.registration
                    why = f"was made for agent {reg.name}, which is {row.status}"
                    one = Leftover(kind, what, reg.owner_uid, row.agent_id, why, "remove", reg.name)
                    found.append(replace(one, act=partial(self._remove, row.agent_id, partial(act, what))))
        return found

    async def _of_owner(self, uid: int) -> list[Leftover]:
        try:
            found, problems = await self._places.look(uid)
        except OwnerCallFailed as error:
            self._trouble(f"the look at the places of uid {uid}", error)
            return []
        for problem in problems:
            self._trouble(f"the look at the places of uid {uid}", problem)
        return found

    # -- acting

    async def _act(self, one: Leftover, by: str) -> None:
        """Deal with one; it may raise what it likes. Raises RegistryUnavailable: then nothing was begun."""
        if one.act is None:
            return
        if self.settings.observe:
            one.result = hooks.nothing("observe mode: nothing is done")
            return
        doing = one.kind, one.what, one.agent_id, one.owner_uid
        if doing in self._doing:
            one.result = hooks.kept("not now: another round is working on it")
            return
        self._doing.add(doing)
        try:
            await self._do(one, one.act, by)
        finally:
            self._doing.discard(doing)

    async def _do(self, one: Leftover, act: Callable[[str], Awaitable[HookResult]], by: str) -> None:
        place = one.kind, one.what
        former = self._former.get(place) if by == "daemon" else None
        if not one.journaled and former is None:
            await self._history("reap.begun", one, by)
        try:
            one.result = await act(by)
        except RegistryUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 one leftover's fault must stay its own
            one.result = hooks.failed(f"{type(error).__name__}: {error}")
        outcome, message = one.result.outcome, one.result.message
        if former != (outcome, message):  # what stays as it is, for the same reason, is told once
            event = "reap.finished" if outcome in WELL else "reap.failed"
            if not one.journaled:
                await self._history(event, one, by)
            facts = {"outcome": outcome, "message": message, "by": by, "details": one.result.details}
            with logger.caused_by(one.owner_uid if by == "daemon" else logger.cause()):
                self._log.bind(**self._facts(one), **facts).event(event)
        if outcome in (HookOutcome.DONE, HookOutcome.NOTHING):
            self._former.pop(place, None)
        else:
            self._former[place] = outcome, message

    async def _end(self, agent: Agent, by_root: bool, by: str) -> HookResult:
        """Order its orphans to be ended. The daemon's own orders keep to the budget; an operator waits for the end."""
        own = by == "daemon"
        if own and self._restraint.spent(agent.reg.owner_uid):
            return hooks.kept("deferred: kill.max_per_minute reached")
        try:
            why = f"{len(agent.tree.members)} process{'' if len(agent.tree.members) == 1 else 'es'} outlived it"
            options = KillOptions(cleanup=False, by_root=by_root)  # its hooks have run
            request_id = await self._worker.request(agent, Reason.ORPHANED, options, by, why)
        except WatchdogError as error:
            return hooks.failed(str(error), reason=error.code)
        if own:
            self._restraint.killed(agent)
            return hooks.done("kill requested", request_id=request_id)
        limit = (agent.policy.grace + agent.policy.verify).total_seconds() + 10
        outcome = await self._worker.finished(request_id, limit)
        if outcome is None:
            return hooks.failed("not finished yet; it continues", request_id=request_id)
        answer = hooks.done if outcome.get("success") else hooks.failed
        return answer(str(outcome.get("message")), request_id=request_id, processes=outcome.get("processes") or [])

    async def _run_again(self, agent: Agent, runs: Iterable[RunRow], by: str) -> HookResult:
        """These hooks, and those that need one of them."""
        reason, request_id, words = Reason.OPERATOR, "", dict[str, Any]()
        for run in runs:
            with contextlib.suppress(Conflict):
                request = await self._store.read(self._store.store.request, run.request_id or "")
                if request is not None:
                    reason, request_id = request.reason, request.request_id
                    options, _, why = from_json(request.options)
                    words = end_words(agent, agent.status, options, request.by, why, request.outcome)
        names = frozenset(run.hook for run in runs)
        seen = {run.hook: str(run.details["seen"]) for run in runs if "seen" in run.details}
        ran = await self._cleanup.again(agent, reason, request_id, names, seen=seen, **words)
        told = "; ".join(f"{one['hook']}: {one['outcome']}: {one['message']}" for one in ran)
        failed = [one for one in ran if one["outcome"] not in WELL]
        return (hooks.failed if failed else hooks.done)(told[: hooks.MESSAGE_LIMIT])

    async def _remove(self, agent_id: str, remove: Callable[[], object], by: str) -> HookResult:
        if self._fleet.get(agent_id) is not None:
            return hooks.kept("its agent lives")
        with contextlib.suppress(FileNotFoundError):
            if remove() is False:
                return hooks.kept("it is in use")
        return hooks.done("removed")

    # -- telling

    def _tell(self, one: Leftover) -> None:
        """What is left as it is, once."""
        if one.key not in self._told and not one.quiet:
            self._told.add(one.key)
            with logger.caused_by(one.owner_uid):
                self._log.bind(**self._facts(one), action=one.action).event("reap.found")

    def _trouble(self, what: str, error: object) -> None:
        """A look that failed, once for each."""
        words = f"{what}: {error}"
        if words not in self._troubled:
            if len(self._troubled) > 100:
                self._troubled.clear()
            self._troubled.add(words)
            self._log.event("reap.trouble", why=words)

    async def _history(self, event: str, one: Leftover, by: str) -> None:
        why = f"{one.kind} {hooks.printable(one.what)}: {one.why}"
        if one.result is not None:
            why = f"{one.kind} {hooks.printable(one.what)}: {one.result.outcome}: {one.result.message}"
        add, now = self._store.store.add_event, self._clock.now().wall
        await self._store.write(add, event, one.agent_id, by, why, now, evidence=one.json(), owner_uid=one.owner_uid)

    def _facts(self, one: Leftover) -> dict[str, object]:
        facts = {"kind": one.kind, "what": hooks.printable(one.what), "why": hooks.printable(one.why)}
        return {**facts, "agent_id": one.agent_id, "name": one.name, "uid": one.owner_uid}
