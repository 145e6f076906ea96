"""What holds back the daemon's own kills: operators, an unavailable registry, a budget, and doubt in ourselves.

Doubt holds back kills of agents against which there is nothing but silence. Its kinds: we have only just begun to look
again (a gap in our own ticks, a suspend, a set clock), the host is under pressure, many agents fell silent together. It
is logged when it begins and when it ends. It holds back the kill of one agent for at most `hold.max_seconds`, and none
once an operator lifts it; from then on the daemon kills at the rate of `kill.max_per_minute`. A start is no doubt: a
daemon that is restarted again and again would never kill. Instead each agent is looked at once more (`first_look`) and
gets one fresh limit (`Silence.forgive`).

A mass stall and the budget are kept by user (`user_of`: sub-uids count for theirs); a gap and pressure are the host's.
So pressure that one user makes holds back all kills: a sleeping agent may wait for something outside its tree that is
starved, which no figure of its own shows. It does so for at most `hold.max_seconds` of each agent.
"""

from collections import Counter, deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.agents.heartbeat import witness
from watchdog.agents.holds import Holds
from watchdog.clock import Clock, Instant
from watchdog.config.settings import Settings
from watchdog.core.agent import Verdict
from watchdog.core.decision import Budget, Limits, Look, Veto
from watchdog.core.mass_stall import lingering, mass_stalls, one_by_one
from watchdog.errors import RegistryUnavailable
from watchdog.helpers.users import Users
from watchdog.host.clock_steps import Steps
from watchdog.probes import host_pressure
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.telemetry.logger import EventLogger

FRESH = 2  # intervals without a gap, until we trust our own watch again
SUSPENDED = 1.0  # seconds by which BOOTTIME ran ahead of MONOTONIC: the machine slept
STEPPED = 1.0  # seconds by which the wall clock was set
_SILENT = frozenset({Verdict.LATE, Verdict.STALLED})


@dataclass(slots=True)
class _SelfHold:
    """One that is on."""

    why: str
    lifted: bool = False


class Safeguards:
    """Gives the limits of each sweep."""

    def __init__(
        self,
        settings: Settings,
        registry: AsyncRegistry,
        clock: Clock,
        holds: Holds,
        log: EventLogger,
        users: Users,
        steps: Steps | None = None,
    ) -> None:
        """`steps` sees whether the wall clock was set."""
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self.holds = holds
        self._log = log
        self._users = users
        self._steps = steps
        self._kills: deque[tuple[float, int]] = deque()  # of the last minute: when, and of which user
        self._fell: dict[str, tuple[int, float, float]] = {}  # ordered to be killed for silence: user, when, until when
        self._stalled: dict[int | None, float] = {}  # when a mass stall was seen last, by user
        self._sharing = 1  # users that have agents
        self._last: Instant | None = None  # of a sweep
        self._unsettled, self._until = "", 0.0  # why we do not trust our own watch, and until when
        self.doubts: dict[tuple[Veto, int | None], _SelfHold] = {}  # by kind and user (None: all agents)

    def apply(self, settings: Settings) -> None:
        """Use these from now on."""
        self._settings = settings

    def user_of(self, uid: int) -> int:
        """The user that a uid counts for."""
        return self._users.user_of(uid)

    async def end_holds(self, now: Instant) -> None:
        """Log and store that the time of an operator's hold is over."""
        for row in self.holds.moved():
            with suppress(RegistryUnavailable):
                await self._registry.write(self._registry.history.move_hold, row.id, row.until_at)
        for row in self.holds.expire(now.wall):
            self._log.event("hold.ended", reason="operator", why=f"its time is over: {row.reason}", hold=row.id)
            with suppress(RegistryUnavailable):  # it is over by its own time, also for a later daemon
                await self._registry.write(self._registry.history.end_hold, row.id, now.wall)

    def count_kill(self, agent: Agent, *, silent: bool = False) -> None:
        """The daemon ordered a kill of its own. `silent`: for a silence that may be part of a mass stall.

        Such an agent counts as silent for its limit more: what fell silent with it is found within that time. One that
        set itself a longer limit than its policy's counts for no longer than that.
        """
        now, user = self._clock.mono(), self.user_of(agent.reg.owner_uid)
        self._kills.append((now, user))
        limit = self._settings.hold.max_seconds
        if silent and (agent.judged.kill_due_since is None or now - agent.judged.kill_due_since < limit):
            self._fell[agent.agent_id] = (
                user,
                now,
                now + min(agent.heartbeat.silence.after, agent.policy.after).total_seconds(),
            )

    def budget_exhausted(self, owner_uid: int) -> bool:
        """Whether the daemon has ordered as many kills of its own of this owner's agents within a minute as it may."""
        return not self._budget().allows(self.user_of(owner_uid))

    def _budget(self) -> Budget:
        while self._kills and self._clock.mono() - self._kills[0][0] >= 60:
            self._kills.popleft()
        spent = Counter(user for _, user in self._kills)
        return Budget(self._settings.kill.max_per_minute, spent, self._sharing)

    def note_sweep(self, interval: float) -> bool:
        """A sweep begins: whether we may have missed beats since the last one."""
        if self._steps is not None:
            self._steps.look()
        now = self._clock.now()
        last, self._last = self._last, now
        if last is None:
            return False
        passed = now.mono - last.mono
        slept = now.boot - last.boot - passed
        stepped = (now.wall - last.wall).total_seconds() - passed - max(0.0, slept)
        missed = slept > SUSPENDED or passed > 3 * interval
        if slept > SUSPENDED:
            self._settle(f"the machine slept for {slept:.0f} s", now.mono, interval)
            self._log.event(
                "clock.gap", seconds=round(passed + slept, 1), counted=min(passed, 2 * interval), slept=True
            )
        elif missed:
            self._settle(f"the daemon did not watch for {passed:.0f} s", now.mono, interval)
            self._log.event("clock.gap", seconds=round(passed, 1), counted=2 * interval)
        elif abs(stepped) > STEPPED:
            self._settle(f"the clock was set by {stepped:+.0f} s", now.mono, interval)
        return missed

    def _settle(self, why: str, now: float, interval: float) -> None:
        self._unsettled, self._until = why, now + FRESH * interval

    def of_all(self, now: Instant, recorded: bool) -> Limits:
        """What binds every kill, whatever its reason. `recorded`: the registry could be written."""
        hold, hold_by = self.holds.reason_for(None, now.wall), Veto.OPERATOR
        if not recorded:
            hold, hold_by = "the registry cannot be written", Veto.REGISTRY
        return Limits(hold=hold, hold_by=hold_by)

    def limits(self, looks: list[Look], settled: Collection[Agent], now: Instant, recorded: bool) -> Limits:
        """What binds a sweep that has looked. `settled`: the other agents, which are healthy."""
        hold = self._settings.hold
        self._doubt(Veto.UNSETTLED, self._unsettled if now.mono < self._until else None, tell=False)
        silent = any(look.judgement.verdict in (Verdict.LATE, Verdict.STALLED, Verdict.STARTING) for look in looks)
        asked = silent or (Veto.PRESSURE, None) in self.doubts
        self._doubt(Veto.PRESSURE, host_pressure.host_pressure(hold.cpu_pressure_percent) if asked else None)
        limit = timedelta(seconds=hold.max_seconds)
        self._mass_stalls(looks, settled, limit)
        on = {key: (key[0], doubt.why) for key, doubt in self.doubts.items() if not doubt.lifted}
        return replace(
            self.of_all(now, recorded),
            doubt=next((one for (_, user), one in on.items() if user is None), None),
            doubts={user: one for (_, user), one in on.items() if user is not None},
            doubt_limit=limit,
            budget=self._budget(),
        )

    def _mass_stalls(self, looks: list[Look], settled: Collection[Agent], limit: timedelta) -> None:
        """Those that are on, of each user and of all."""
        uids = Counter(agent.reg.owner_uid for agent in settled)
        promised = Counter(agent.reg.owner_uid for agent in settled if agent.heartbeat.said.promised)
        others: Counter[int] = Counter()
        for uid in uids:
            others[self.user_of(uid)] += promised[uid]
        self._sharing = len(others.keys() | {look.owner for look in looks})
        judged = {look.agent_id: look.judgement for look in looks}
        well = {agent.agent_id for agent in settled if agent.agent_id in self._fell}
        well |= {key for key, one in judged.items() if not (one.overdue or one.verdict in _SILENT)}
        now = self._clock.mono()
        self._fell = {key: fell for key, fell in self._fell.items() if key not in well and now < fell[2]}
        fell = [(user, timedelta(seconds=now - at)) for key, (user, at, _) in self._fell.items() if key not in judged]
        hold = self._settings.hold
        few = hold.mass_stall_count, hold.mass_stall_fraction
        unheard: dict[int | None, tuple[str, bool]] = {}
        found = mass_stalls(looks, *few, others, [user for user, _ in fell], limit)
        if None not in found and any(look.ending for look in looks):
            witnesses = (
                one for agent in settled if (one := witness(agent.heartbeat, self.user_of(agent.reg.owner_uid)))
            )
            unheard = one_by_one(looks, witnesses, *few, fell, limit, others.keys())
        known = {user for veto, user in self.doubts if veto is Veto.MASS_STALL}
        self._stalled |= dict.fromkeys([*found, *(user for user, (_, evident) in unheard.items() if evident)], now)
        found = {user: why for user, (why, _) in unheard.items()} | found
        over = {
            user: timedelta(seconds=now - self._stalled[user]) for user in (known & self._stalled.keys()) - found.keys()
        }
        found |= {user: self.doubts[Veto.MASS_STALL, user].why for user in lingering(looks, over, limit)}
        for user in known | found.keys():
            self._doubt(Veto.MASS_STALL, found.get(user), user)

    def on(self, owner_uid: int | None = None) -> list[str]:
        """The reasons that hold back kills now; with `owner_uid` those that hold back kills of its agents."""
        user = None if owner_uid is None else self.user_of(owner_uid)
        return [
            doubt.why
            for (_, whose), doubt in self.doubts.items()
            if not doubt.lifted and (user is None or whose in (None, user))
        ]

    def lasting(self) -> list[str]:
        """Those of these reasons that do not end by themselves within two intervals."""
        return [
            doubt.why for (veto, _), doubt in self.doubts.items() if not doubt.lifted and veto is not Veto.UNSETTLED
        ]

    def lift(self) -> list[str]:
        """An operator lifts the current doubts: none counts until it has ended and begun again. Gives their reasons."""
        lifted = [doubt for doubt in self.doubts.values() if not doubt.lifted]
        for doubt in lifted:
            doubt.lifted = True
        return [doubt.why for doubt in lifted]

    def kinds(self) -> dict[str, int]:
        """How many of the daemon's own are on, for figures; of a mass stall one for each user."""
        counts = Counter(veto for veto, _ in self.doubts)
        return {str(veto): counts[veto] for veto in (Veto.UNSETTLED, Veto.PRESSURE, Veto.MASS_STALL)}

    def mass_stalled(self) -> list[str]:
        """The uids whose agents fell silent together, for figures; `all` if it is all users'."""
        return ["all" if user is None else str(user) for veto, user in self.doubts if veto is Veto.MASS_STALL]

    def _doubt(self, veto: Veto, why: str | None, user: int | None = None, *, tell: bool = True) -> None:
        """It holds for this reason, or (None) it does not; logged when that changes."""
        key = veto, user
        fields: dict[str, object] = {"reason": str(veto)} | ({} if user is None else {"uid": user})
        known = self.doubts.get(key)
        if why is None:
            if self.doubts.pop(key, None) is not None and tell:
                self._log.event("hold.ended", exc_info=None, **fields)
        elif known is not None:
            known.why = why
        else:
            self.doubts[key] = _SelfHold(why)
            if tell:
                self._log.event("hold.started", exc_info=None, why=why, **fields)
