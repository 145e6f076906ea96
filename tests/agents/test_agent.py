"""An agent as a whole: its display."""

from datetime import UTC, datetime, timedelta

from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.core.agent import Beat, Policy, Registration, Status, Verdict
from watchdog.core.observed_activity import ActivityKind
from watchdog.core.verdict import Judgement

WALL = datetime(2030, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)


def agent(agent_id: str = "a" * 32, name: str = "alpha", uid: int = 1000, **rest: object) -> Agent:
    return Agent(Registration(agent_id, name, uid, "host", "boot", **rest), Policy(), Status.RUNNING)  # type: ignore[arg-type]


def fleet(*agents: Agent) -> Fleet:
    made = Fleet()
    for one in agents:
        made.add(one)
    return made


def test_a_displayed_agent_is_a_copy_with_present_ages() -> None:
    """Its ages advance by themselves; a beat that improves the verdict counts at once, time alone worsens none."""
    known = agent(stall_after=60 * S)
    known.sights.see(ActivityKind.CPU, "cpu 50 %")
    judging.remember(
        known, Judgement(Verdict.STARTING, "it promised a heartbeat and none has come yet: 2s of 5m"), 0.0, 10.0
    )

    shown = known.copy()
    shown.watch(0.0, 5.0, 20.0)
    assert (known.heartbeat.ages.age, known.sights.seen[ActivityKind.CPU].age) == (0 * S, 0 * S)
    assert (shown.heartbeat.ages.age, shown.sights.seen[ActivityKind.CPU].age) == (5 * S, 5 * S)
    judging.show(shown, Judgement(Verdict.LATE, "silent"), 5 * S)
    assert (shown.judged.verdict, judging.why(shown)) == (known.judged.verdict, f"{known.judged.line} (5s ago)")

    known.beat(Beat(), 5.0, WALL)
    shown = known.copy()
    judging.show(shown, Judgement(Verdict.HEALTHY, "silent for 0s of 1m"), 5 * S)
    assert (shown.judged.verdict, known.judged.verdict) == (Verdict.HEALTHY, Verdict.STARTING)
    assert judging.why(shown) == "silent for 0s of 1m"


def test_foreign_text_is_reported_five_times_per_kind() -> None:
    """For rejected messages and reasons of holds, which may differ each time; our own are reported beside them."""
    one = agent()
    assert sum(one.reported.first_refusal(f"rejected {n}", "rejected ") for n in range(1000)) == 5
    assert sum(one.reported.first(f"held operator {n}", "held operator ") for n in range(1000)) == 5
    assert [one.reported.first("agent.late"), one.reported.first("agent.late")] == [True, False]
    assert (len(one.reported.events), len(one.reported.refused)) == (6, 5)
