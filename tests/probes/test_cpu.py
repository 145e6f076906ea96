"""Activity delays a verdict: a child agent at work, or CPU of the tree; an idle child or tree does not."""

from datetime import timedelta

import pytest

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.core.agent import Policy, Registration, State, Status, Verdict
from watchdog.core.observed_activity import ActivityKind, ObservedActivity
from watchdog.core.process import Identity, TreeMember
from watchdog.probes.cpu import measure, see_cpu

PARENT, CHILD = "a" * 32, "b" * 32


def agent(agent_id: str, parent: str | None = None) -> Agent:
    made = Agent(Registration(agent_id, agent_id[0], 0, "host", "boot", parent_id=parent), Policy(), Status.RUNNING)
    made.heartbeat.silence.lasted = timedelta(seconds=60)
    return made


def member(pid: int, cpu: float) -> TreeMember:
    return TreeMember(Identity("host", "boot", pid, pid), 1, 0, "x", "S", "marker", cpu_seconds=cpu)


@pytest.mark.parametrize(
    ("verdict", "state", "promised", "busy", "expected"),
    [
        (Verdict.HEALTHY, State.WORKING, True, False, True),
        (Verdict.WAITING, State.WAITING, True, False, True),
        (Verdict.WAITING, State.IDLE, True, False, False),
        (Verdict.HEALTHY, None, False, False, False),
        (Verdict.HEALTHY, None, False, True, True),
        (Verdict.STALLED, State.WORKING, True, False, False),
    ],
)
def test_a_child_agent_at_work_counts_for_its_parent(
    verdict: Verdict, state: State | None, promised: bool, busy: bool, expected: bool
) -> None:
    """A child that beats, waits for a person or is busy counts; one that is idle, stalled or just there does not."""
    fleet, parent, child = Fleet(), agent(PARENT), agent(CHILD, PARENT)
    fleet.add(parent)
    fleet.add(child)
    child.judged.verdict, child.heartbeat.said.state, child.heartbeat.said.promised = verdict, state, promised
    if busy:
        child.sights.see(ActivityKind.LOG, "its log grew")

    measure(fleet, 10)

    assert expected is (parent.activity is not None)
    assert child.sights.seen.keys() <= {ActivityKind.LOG}


def test_cpu_of_the_whole_tree_counts_from_scan_to_scan() -> None:
    """The first scan is the baseline; then 5 % of a core is activity, and a new process counts from zero."""
    one = agent(PARENT)
    one.tree.members = (member(10, 100.0), member(11, 3.0))
    see_cpu(one, float("inf"))
    one.tree.members = (member(10, 100.1), member(11, 3.1))
    see_cpu(one, 10.0)
    assert one.activity is None

    one.tree.members = (member(10, 100.1), member(12, 0.6))
    see_cpu(one, 10.0)
    assert "used 6% of a core" in str(one.activity)


def test_cpu_used_before_the_silence_does_not_count() -> None:
    """The scan before the silence began 60 s ago: an agent that was busy then and hangs since is found in time."""
    one = agent(PARENT)
    one.tree.members = (member(10, 1.0),)
    see_cpu(one, 61.0)
    one.tree.members = (member(10, 50.0),)
    see_cpu(one, 61.0)
    assert one.activity is None

    one.tree.members = (member(10, 99.0),)
    see_cpu(one, 60.0)
    assert one.activity is not None


def test_no_time_between_two_scans_is_no_evidence() -> None:
    """Two scans at once: no division by zero, no agent is busy."""
    one = agent(PARENT)
    one.tree.members = (member(10, 1.0),)
    see_cpu(one, 1.0)
    see_cpu(one, 0.0)

    assert one.activity is None


def test_observed_activity_counts_for_half_of_the_allowed_silence() -> None:
    """A build that uses a core in bursts stays alive between them; old activity is no excuse."""
    one = agent(PARENT)
    one.sights.see(ActivityKind.TRANSCRIPT, "its transcript grew")
    one.watch(0, 59, 100)
    one.heartbeat.silence.sweep_span = timedelta(seconds=20)
    assert one.activity == "its transcript grew 59s ago"
    one.watch(59, 60, 20)
    assert one.activity is None


def test_the_most_recent_activity_is_shown() -> None:
    """Of several, the strongest."""
    sights = ObservedActivity()
    sights.see(ActivityKind.LOG, "its log grew")
    sights.watch(timedelta(seconds=5))
    sights.see(ActivityKind.CPU, "busy")

    assert sights.best(timedelta(seconds=10)) == "busy"
