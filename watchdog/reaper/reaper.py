"""The reaper: finds what dead agents left and cleans it up, every ten minutes; `reap` shows or does the same.

    process  orphans of ended agents (`orphans`), killed by the kill worker by an ordinary kill request
    hook     cleanup hooks that gave up or during which a daemon died: retried with the same `run_id`;
             those that kept a worktree only because it was in use: once a day for a week
    notify   the daemon's own sockets in the runtime directory
    cgroup   empty cgroups that were an ended agent's own; systemd removes its scopes itself
    …        the kinds in `owner.finders`: the owner's helper finds and removes them

It is a job of its own, slower than the sweep, and never delays it: each owner's places are checked by a helper of their
own with a deadline, the scan runs in a thread, and a round does a bounded amount of work. Users do not wait for each
other, nor an operator's order for a round: places are handled user by user, four users at once (a helper may be stopped
and leftovers may resist); where others wait for the end of the round, each user gets at most `SHARE` seconds. Observe
mode only reports. A hold on an agent is respected, and a hold on all agents by the daemon's own rounds. What is removed
is recorded in the history before and after.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.errors import OwnerCallFailed, RegistryUnavailable
from watchdog.helpers.users import Users
from watchdog.reaper.events import WELL, ReapEvents
from watchdog.reaper.failed_hooks import FailedHooks
from watchdog.reaper.leftovers import Leftover, OwnerLeftovers
from watchdog.reaper.outlived import OutlivedProcesses
from watchdog.reaper.own_leftovers import OwnLeftovers

EVERY = timedelta(minutes=10)
ACTS = 50  # actions of the daemon's own round per user
SHARE = 120.0  # seconds for one user's part of a round; an action that has begun is finished
AT_ONCE = 4  # users that are handled concurrently

May = Callable[[int], bool]
Deal = Callable[[int, Leftover], Awaitable[None]]  # with the user that the leftover counts for


@dataclass(frozen=True, slots=True)
class LeftoverFinders:
    """The finders: each lists its kinds of leftovers, with the action for each."""

    processes: OutlivedProcesses
    hooks: FailedHooks
    own: OwnLeftovers
    places: OwnerLeftovers


class Reaper:
    """Finds and reports leftovers and runs the action of each; itself it touches only the daemon's own sockets."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        finders: LeftoverFinders,
        holds: Holds,
        users: Users,
        events: ReapEvents,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._finders = finders
        self._holds = holds
        self._users = users
        self._events = events
        self._former: dict[tuple[str, str], tuple[HookOutcome, str]] = {}  # by kind and place: last outcome
        self._looked: dict[int, float] = {}  # monotonic seconds of the last check of each owner's places
        self._doing: set[tuple[str, str, str | None, int]] = set()  # in progress: kind, place, agent, owner

    def apply(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = settings

    async def round(self) -> None:
        """The daemon's own round. Errors are logged; the next round follows in any case."""
        acts = Counter[int]()

        async def deal(user: int, one: Leftover) -> None:
            if one.act is None or self._settings.observe:
                self._events.found(one)
            if one.act is not None and acts[user] < ACTS:
                acts[user] += 1
                await self._act(one, "daemon")

        try:
            found = await self._each(lambda _: True, "daemon", deal)
            self._events.keep(found)
            places = {(one.kind, one.what) for one in found}
            self._former = {place: came for place, came in self._former.items() if place in places}
        except RegistryUnavailable:
            pass  # the next sweep reports it, the next round continues
        except Exception as error:  # noqa: BLE001 - a failed round must not stop the daemon
            self._events.trouble("a round", error)

    async def reap(self, may: May, by: str, *, dry_run: bool) -> list[dict[str, object]]:
        """What an operator's `reap` found for the owners that they may act for, and (`dry_run` False) the outcomes.

        Raises RegistryUnavailable.
        """

        async def deal(_: int, one: Leftover) -> None:
            if not dry_run:
                await self._act(one, by)

        return [one.json() for one in await self._each(may, by, deal)]

    async def orphans(self) -> list[Agent]:
        """Ended agents whose orphans are alive and may be killed, for `kill orphans`. Raises Conflict,
        RegistryUnavailable.
        """
        return await self._finders.processes.agents()

    # -- finding

    async def _each(self, may: May, by: str, deal: Deal) -> list[Leftover]:
        """All leftovers, each handed to `deal` during its user's turn. Raises RegistryUnavailable."""
        found = (
            await self._finders.processes.look(by_root=by != "daemon" and may(0))
            + await self._finders.hooks.look(due=by == "daemon")
            + await self._finders.own.look()
        )
        ours: dict[int, list[Leftover]] = {}
        for one in found:
            if may(one.owner_uid):
                ours.setdefault(self._users.user_of(one.owner_uid), []).append(self._unless_held(one, by))
        uids: dict[int, list[int]] = {user: [] for user in ours}
        known = await self._finders.places.owners()
        self._looked = {uid: when for uid, when in self._looked.items() if uid in known}
        for uid in sorted(known, key=lambda uid: (self._looked.get(uid, 0.0), uid)):
            if may(uid) and os.geteuid() in (0, uid):
                uids.setdefault(self._users.user_of(uid), []).append(uid)
        seconds = SHARE if by == "daemon" or len(uids) > 1 else float("inf")
        at_once = asyncio.Semaphore(AT_ONCE)

        async def of(user: int) -> list[Leftover]:
            async with at_once:
                return await self._of_user(user, ours.get(user, []), uids[user], by, deal, seconds)

        parts = [asyncio.ensure_future(of(user)) for user in sorted(uids)]
        try:
            return [one for part in await asyncio.gather(*parts) for one in part]
        finally:
            for part in parts:  # if one failed because the registry is unavailable, cancel the others
                part.cancel()

    async def _of_user(
        self, user: int, ours: list[Leftover], uids: list[int], by: str, deal: Deal, seconds: float
    ) -> list[Leftover]:
        """The daemon's own findings for that user (`ours`) and its helpers'; handled until `seconds` are over."""
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
                self._events.trouble(
                    f"the look at the places of user {user}", f"too slow; {len(uids) - number} uids are left"
                )
                break
            self._looked[uid] = self._clock.mono()
            await take([self._unless_held(one, by) for one in await self._of_owner(uid)])
        return found

    def _unless_held(self, one: Leftover, by: str) -> Leftover:
        held = self._holds.blocking_reason(one.agent_id or "", self._clock.now().wall, own=by == "daemon")
        if held is None or one.act is None:
            return one
        return replace(one, action="keep", why=f"held: {held}", act=None)

    async def _of_owner(self, uid: int) -> list[Leftover]:
        try:
            found, problems = await self._finders.places.look(uid)
        except OwnerCallFailed as error:
            self._events.trouble(f"the look at the places of uid {uid}", error)
            return []
        for problem in problems:
            self._events.trouble(f"the look at the places of uid {uid}", problem)
        return found

    # -- acting

    async def _act(self, one: Leftover, by: str) -> None:
        """Run the action of one leftover, whatever it raises. Raises RegistryUnavailable: then nothing was begun."""
        if one.act is None:
            return
        if self._settings.observe:
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
            await self._events.history("reap.begun", one, by)
        try:
            one.result = await act(by)
        except RegistryUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 one leftover's failure must not affect the others
            one.result = hooks.failed(f"{type(error).__name__}: {error}")
        outcome, message = one.result.outcome, one.result.message
        if former != (outcome, message):  # what stays for the same reason is reported once
            event = "reap.finished" if outcome in WELL else "reap.failed"
            if not one.journaled:
                await self._events.history(event, one, by)
            facts = {"outcome": outcome, "message": message, "by": by, "details": one.result.details}
            self._events.done(event, one, by, facts)
        if outcome in (HookOutcome.DONE, HookOutcome.NOTHING):
            self._former.pop(place, None)
        else:
            self._former[place] = outcome, message
