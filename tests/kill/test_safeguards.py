"""What holds the daemon's own kills back: logged once, in force for a limited time, lifted by an operator."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from tests.control.office import Recorder as Kept
from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.clock import Clock, Instant
from watchdog.config.paths import places_for
from watchdog.config.schema import Config
from watchdog.config.settings import Settings, settings_of
from watchdog.core.agent import Policy, Registration, Status, Verdict
from watchdog.core.decision import Limits, Look, Veto
from watchdog.core.verdict import Judgement
from watchdog.core.witnesses import Witness
from watchdog.helpers.users import Users
from watchdog.kill.safeguards import Safeguards
from watchdog.probes.host_pressure import judged
from watchdog.registry.async_registry import AsyncRegistry

INTERVAL = 10.0
BEGAN = datetime(2030, 1, 1, tzinfo=UTC)


class Set(Clock):
    """Three clocks that are set by hand."""

    def __init__(self) -> None:
        self.at = self.slept = self.stepped = 0.0

    def now(self) -> Instant:
        wall = BEGAN + timedelta(seconds=self.at + self.slept + self.stepped)
        return Instant(self.at, self.at + self.slept, wall)

    def mono(self) -> float:
        return self.at


class Bench:
    """A restraint, its clock and its log."""

    def __init__(self) -> None:
        self.clock, self.log = Set(), Kept()
        self.settings: Settings = settings_of(
            Config.model_validate({"hold": {"cpu_pressure_percent": 100.0}, "kill": {"max_per_minute": 3}}),
            None,
            places_for(0, {}),
        )
        registry = cast("AsyncRegistry", None)  # nothing is held
        self.restraint = Safeguards(self.settings, registry, self.clock, Holds(), self.log, Users(self.clock, self.log))
        self.restraint.note_sweep(INTERVAL)

    def sweep(self, *, after: float = INTERVAL, slept: float = 0, step: float = 0, silent: float = 0) -> Veto | None:
        """What holds back kills for silence at the next look."""
        self.clock.at += after
        self.clock.slept += slept
        self.clock.stepped += step
        self.missed = self.restraint.note_sweep(INTERVAL)
        looks = [Look(f"s{n}", Judgement(Verdict.STALLED, "silent"), Policy()) for n in range(int(silent))]
        doubt = self.restraint.limits(looks, (), self.clock.now(), True).doubt
        return None if doubt is None else doubt[0]

    def look(self, *looks: Look, settled: tuple[Agent, ...] = (), after: float = INTERVAL) -> Limits:
        """The sweep so many seconds later sees these; none in between was late."""
        end = self.clock.at + after
        while self.clock.at < end:
            self.clock.at = min(end, self.clock.at + INTERVAL)
            self.restraint.note_sweep(INTERVAL)
        return self.restraint.limits(list(looks), settled, self.clock.now(), True)

    def told(self) -> list[str]:
        return [str(event["event"]) for event in self.log.events]


def agent(name: str, uid: int = 0, after: float = 300) -> Agent:
    policy = Policy(after=timedelta(seconds=after))
    made = Agent(Registration(name, name, uid, "host", "boot"), policy, Status.RUNNING)
    made.heartbeat.said.promise(True)
    return made


def stalled(name: str, uid: int = 0) -> Look:
    return Look(name, Judgement(Verdict.STALLED, "silent"), Policy(), owner=uid)


@pytest.mark.parametrize(
    ("what", "missed"),
    [
        ({"after": 31.0}, True),
        ({"slept": 3600.0}, True),
        ({"step": -3600.0}, False),
        ({"step": 31_536_000.0}, False),
    ],
    ids=["a gap", "a suspend", "an hour back", "a year on"],
)
def test_after_a_gap_a_suspend_or_a_set_clock_no_kill_for_two_intervals(what: dict[str, float], missed: bool) -> None:
    """We have only just begun to look again; beats that were missed give each agent a fresh limit."""
    bench = Bench()
    assert bench.sweep() is None
    assert bench.sweep(**what) is Veto.UNSETTLED
    assert bench.missed is missed
    assert bench.told() == (["clock.gap"] if missed else [])
    assert bench.sweep() is Veto.UNSETTLED
    assert bench.sweep() is None


def test_a_mass_stall_is_told_once_and_ends_when_fewer_are_silent() -> None:
    """While it is on more may fall silent; that is the same one."""
    bench = Bench()
    assert [bench.sweep(silent=n) for n in (2, 3, 4, 3, 2)] == [None, *3 * [Veto.MASS_STALL], None]
    assert bench.told() == ["hold.started", "hold.ended"]


def test_what_an_operator_lifts_counts_no_more_until_it_begins_anew() -> None:
    """`unhold` means: I know better. The next mass stall is another one."""
    bench = Bench()
    bench.sweep(silent=3)
    assert "mass stall" in bench.restraint.lift()[0]
    assert bench.restraint.lift() == []
    assert bench.sweep(silent=5) is None
    assert bench.sweep(silent=0) is None
    assert bench.sweep(silent=3) is Veto.MASS_STALL


def test_the_budget_is_that_of_a_minute() -> None:
    """Three a minute, as configured here."""
    bench = Bench()
    for name in "ab":
        bench.restraint.count_kill(agent(name))
    assert sum(bench.look(after=0).budget.spent.values()) == 2
    assert not bench.restraint.budget_exhausted(0)
    bench.restraint.count_kill(agent("c"))
    assert bench.restraint.budget_exhausted(0)
    assert not bench.look(after=60).budget.spent
    assert not bench.restraint.budget_exhausted(0)


def test_a_user_who_uses_up_the_budget_leaves_others_their_share() -> None:
    """Three a minute for three users: one each, whatever one of them has borrowed. Sub-uids count for their user."""
    bench = Bench()
    bench.restraint.user_of = lambda uid: 1000 if uid >= 100_000 else uid  # type: ignore[method-assign]
    bench.look(stalled("r", 0), stalled("a", 1001), settled=(agent("m", 1000), agent("n", 165_000)))
    for number in range(3):
        bench.restraint.count_kill(agent(f"m{number}", 100_000 + number))
    assert [bench.restraint.budget_exhausted(uid) for uid in (1000, 100_007, 0, 1001)] == [True, True, False, False]
    bench.restraint.count_kill(agent("r", 0))
    assert [bench.restraint.budget_exhausted(uid) for uid in (0, 1001)] == [True, False]


def test_a_mass_stall_of_one_users_agents_is_that_users() -> None:
    """Told with its uid, and shown to others' agents as no reason; `unhold` lifts it as any."""
    bench = Bench()
    crowd = [stalled(f"m{number}", 1000) for number in range(30)]
    limits = bench.look(*crowd, stalled("r", 0))
    assert (limits.doubt_of(0), limits.doubt_of(1000) is None) == (None, False)
    assert bench.log.events == [
        {
            "event": "hold.started",
            "reason": "mass_stall",
            "uid": 1000,
            "why": "mass stall: 30 of 30 agents of uid 1000 fell silent together;"
            " the cause may be this host or the daemon",
        }
    ]
    assert (len(bench.restraint.on()), bench.restraint.on(0), len(bench.restraint.on(1000))) == (1, [], 1)
    assert (bench.restraint.kinds()["mass_stall"], bench.restraint.mass_stalled()) == (1, ["1000"])
    assert len(bench.restraint.lift()) == 1
    assert bench.look(*crowd, stalled("r", 0)).doubt_of(1000) is None
    bench.look(stalled("r", 0))
    assert bench.told() == ["hold.started", "hold.ended"]


def test_a_mass_stall_is_seen_across_phases() -> None:
    """Agents that beat at different times fall silent one after another: each was killed before the next was late.

    Three silent of three are a mass stall, also when two of them were ordered to be killed within the third's limit;
    later they are another matter. One that lives on, since its beat withdrew the order, is not silent any more.
    """
    bench = Bench()
    for name in "ab":
        bench.look(stalled(name))
        bench.restraint.count_kill(agent(name), silent=True)
    assert bench.look(stalled("c")).doubt_of(0) is not None
    assert bench.look(settled=(agent("a"),)).doubt_of(0) is None
    assert bench.look(stalled("c")).doubt_of(0) is None  # `a` spoke again: two of three

    bench = Bench()
    for name in "ab":
        bench.restraint.count_kill(agent(name), silent=True)
    assert bench.look(stalled("c"), after=299).doubt_of(0) is not None
    assert bench.look(stalled("c"), after=1).doubt_of(0) is None
    bench.restraint.count_kill(agent("d"))  # expired, or its main process gone: no silence
    bench.restraint.count_kill(agent("e"))
    assert bench.look(stalled("c")).doubt_of(0) is None


def test_an_agent_that_was_held_back_for_long_enough_is_no_sign_once_it_is_killed() -> None:
    """As a look at it is none (`doomed_for`): else each kill at the end of a hold would renew the hold of others."""
    bench = Bench()
    bench.look(after=2000)
    for name in "ab":
        old = agent(name)
        old.judged.kill_due_since = 1000.0
        bench.restraint.count_kill(old, silent=True)
    assert bench.look(stalled("c")).doubt_of(0) is None


@pytest.mark.parametrize(
    ("cpu", "memory", "load", "held"),
    [
        (95.0, 0.0, 4.0, True),
        (95.0, 0.0, 1.9, False),  # three programs that spin on two cores starve no other
        (89.0, 0.0, 9.0, False),
        (None, None, 4.0, True),
        (None, None, 3.9, False),
        (0.0, 45.0, 0.1, True),
        (0.0, 39.0, 0.1, False),
    ],
)
def test_a_host_is_pressed_by_what_waits_and_by_its_load(
    cpu: float | None, memory: float | None, load: float, held: bool
) -> None:
    """Both say it, or the load alone where the kernel tells no pressure."""
    assert (judged(cpu, memory, load, 90) is not None) is held


@pytest.mark.skipif(not Path("/proc/pressure/cpu").exists(), reason="this kernel tells no pressure")
def test_the_kernels_own_figures_are_read() -> None:
    """0 % is always reached; the load decides then. 100 is off."""
    import os

    from watchdog.probes.host_pressure import LOAD, host_pressure

    loaded = os.getloadavg()[0] / (os.cpu_count() or 1) >= LOAD
    assert (host_pressure(0) is not None) is loaded
    assert host_pressure(100) is None


def test_one_late_agent_waits_until_the_others_were_heard() -> None:
    """Case Q1: none of six is late but one, and all are cut off; with five that spoke since it is alone."""
    bench = Bench()
    minute = timedelta(minutes=1)
    late = replace(stalled("a"), witness=Witness(0, 2.2 * minute, 2 * minute, 60 * minute, minute))

    def settled(quiet: float) -> tuple[Agent, ...]:
        made = [agent(name, after=120) for name in "bcdef"]
        for one in made:
            one.heartbeat.silence.lasted, one.heartbeat.ages.age, one.heartbeat.rhythm.pause = (
                timedelta(seconds=quiet),
                60 * minute,
                minute,
            )
        return tuple(made)

    assert bench.look(late, settled=settled(90)).doubt_of(0) is not None
    assert bench.look(late, settled=settled(20)).doubt_of(0) is not None  # they are back, and it has not had the time
    assert bench.look(late, settled=settled(20), after=70).doubt_of(0) is None
    assert bench.told() == ["hold.started", "hold.ended"]
