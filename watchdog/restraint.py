"""What holds the daemon's own kills back: operators, a registry that is away, a budget, and doubt in ourselves.

Doubt speaks for everybody whose silence is all that is against him. It is one of: we have only just begun to look
again (a gap in our own ticks, a suspend, a set clock), the host is pressed, many fell silent together. It is told when
it begins and when it ends, holds back no agent's end for longer than `hold.max_seconds`, and none when an operator
lifts it; from then on the daemon goes on at `kill.max_per_minute`. A start is no such: who is restarted again and again
would end nobody. There each agent is looked at once more (`first_look`) and gets one fresh limit (`Speaker.forgive`).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from watchdog import pressure
from watchdog.clock import Clock, Instant
from watchdog.config import Settings
from watchdog.core.decision import Limits, Look, Veto, mass_stall
from watchdog.core.model import Verdict
from watchdog.holds import Holds
from watchdog.logs import Log

FRESH = 2  # intervals without a gap, until we trust our own watch again
SUSPENDED = 1.0  # seconds by which BOOTTIME ran ahead of MONOTONIC: the machine slept
STEPPED = 1.0  # seconds by which the wall clock was set


@dataclass(slots=True)
class _Doubt:
    """One that is on."""

    why: str
    lifted: bool = False


class Restraint:
    """Asked once a sweep; `settings` gives those that hold now."""

    def __init__(self, settings: Callable[[], Settings], clock: Clock, holds: Holds, log: Log) -> None:
        self._settings = settings
        self._clock = clock
        self._holds = holds
        self._log = log
        self._kills: deque[float] = deque()
        self._last: Instant | None = None  # of a look at everybody
        self._unsettled, self._until = "", 0.0  # why we do not trust our own watch, and until when
        self.doubts: dict[Veto, _Doubt] = {}

    def killed(self) -> None:
        """The daemon ordered a kill of its own."""
        self._kills.append(self._clock.mono())

    def spent(self) -> bool:
        """Whether the daemon has ordered as many kills of its own within a minute as it may."""
        while self._kills and self._clock.mono() - self._kills[0] >= 60:
            self._kills.popleft()
        return len(self._kills) >= self._settings().kill.max_per_minute

    @property
    def last(self) -> float | None:
        """Monotonic seconds of the last look at everybody."""
        return None if self._last is None else self._last.mono

    def tick(self, interval: float) -> tuple[float | None, bool]:
        """A look at everybody begins: monotonic seconds of the last one, and whether we may have missed words since."""
        now = self._clock.now()
        last, self._last = self._last, now
        if last is None:
            return None, False
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
            self._settle(f"we did not watch for {passed:.0f} s", now.mono, interval)
            self._log.event("clock.gap", seconds=round(passed, 1), counted=2 * interval)
        elif abs(stepped) > STEPPED:
            self._settle(f"the clock was set by {stepped:+.0f} s", now.mono, interval)
        return last.mono, missed

    def _settle(self, why: str, now: float, interval: float) -> None:
        self._unsettled, self._until = why, now + FRESH * interval

    def of_all(self, now: Instant, recorded: bool) -> Limits:
        """What binds every kill, whatever its reason. `recorded`: the registry could be written."""
        hold, hold_by = self._holds.reason_for(None, now.wall), Veto.OPERATOR
        if not recorded:
            hold, hold_by = "the registry cannot be written", Veto.REGISTRY
        return Limits(hold=hold, hold_by=hold_by)

    def limits(self, looks: list[Look], others: int, now: Instant, recorded: bool) -> Limits:
        """What binds a sweep that has looked. `others`: how many more promised beats and are not silent."""
        while self._kills and now.mono - self._kills[0] >= 60:
            self._kills.popleft()
        hold = self._settings().hold
        self._doubt(Veto.UNSETTLED, self._unsettled if now.mono < self._until else None, tell=False)
        silent = any(look.judgement.verdict in (Verdict.LATE, Verdict.STALLED, Verdict.STARTING) for look in looks)
        asked = silent or Veto.PRESSURE in self.doubts
        self._doubt(Veto.PRESSURE, pressure.pressed(hold.cpu_pressure_percent) if asked else None)
        limit = timedelta(seconds=hold.max_seconds)
        mass = mass_stall(looks, hold.mass_stall_count, hold.mass_stall_fraction, others, limit)
        self._doubt(Veto.MASS_STALL, mass)
        on = ((veto, doubt.why) for veto, doubt in self.doubts.items() if not doubt.lifted)
        return replace(
            self.of_all(now, recorded),
            doubt=next(on, None),
            doubt_limit=limit,
            budget=max(0, self._settings().kill.max_per_minute - len(self._kills)),
        )

    def on(self) -> list[str]:
        """Those that hold kills back now, in words."""
        return [doubt.why for doubt in self.doubts.values() if not doubt.lifted]

    def lift(self) -> list[str]:
        """An operator lifts what is on: it counts no more before it has ended and begun anew. Says what it was."""
        lifted = [doubt for doubt in self.doubts.values() if not doubt.lifted]
        for doubt in lifted:
            doubt.lifted = True
        return [doubt.why for doubt in lifted]

    def kinds(self) -> dict[str, int]:
        """Which of the daemon's own are on, for figures."""
        return {str(veto): int(veto in self.doubts) for veto in (Veto.UNSETTLED, Veto.PRESSURE, Veto.MASS_STALL)}

    def _doubt(self, veto: Veto, why: str | None, *, tell: bool = True) -> None:
        """It is on, for that reason, or (None) it is not; said when that changes."""
        known = self.doubts.get(veto)
        if why is None:
            if self.doubts.pop(veto, None) is not None and tell:
                self._log.event("hold.ended", reason=str(veto))
        elif known is not None:
            known.why = why
        else:
            self.doubts[veto] = _Doubt(why)
            if tell:
                self._log.event("hold.started", reason=str(veto), why=why)
