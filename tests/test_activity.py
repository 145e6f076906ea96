"""Activity delays: a child agent at work, or CPU of the tree; an idle child or an idle tree excuses nobody."""

from datetime import timedelta

import pytest

from watchdog.activity import seen_doing
from watchdog.core.model import Identity, Policy, Registration, State, Status, TreeMember, Verdict
from watchdog.fleet import Agent, Fleet

PARENT, CHILD = "a" * 32, "b" * 32


def agent(agent_id: str, parent: str | None = None) -> Agent:
    return Agent(Registration(agent_id, agent_id[0], 0, "host", "boot", parent_id=parent), Policy(), Status.RUNNING)


def member(pid: int, cpu: float) -> TreeMember:
    return TreeMember(Identity("host", "boot", pid, pid), 1, 0, "x", "S", "marker", cpu_seconds=cpu)


@pytest.mark.parametrize(
    ("verdict", "state", "promised", "expected"),
    [
        (Verdict.HEALTHY, State.WORKING, True, True),
        (Verdict.WAITING, State.WAITING, True, True),
        (Verdict.WAITING, State.IDLE, True, False),
        (Verdict.HEALTHY, None, False, False),
        (Verdict.STALLED, State.WORKING, True, False),
    ],
)
def test_a_child_agent_at_work_speaks_for_its_parent(
    verdict: Verdict, state: State | None, promised: bool, expected: bool
) -> None:
    """A child that beats or waits for somebody does; one that is idle, stalled or never promised does not."""
    fleet, parent, child = Fleet(), agent(PARENT), agent(CHILD, PARENT)
    fleet.add(parent)
    fleet.add(child)
    child.verdict, child.state, child.promised = verdict, state, promised

    assert expected is (seen_doing(parent, fleet, 10) is not None)


def test_cpu_of_the_whole_tree_counts_from_scan_to_scan() -> None:
    """The first scan only begins; then 5 % of a core is activity, and a process that is new counts from zero."""
    fleet, one = Fleet(), agent(PARENT)
    fleet.add(one)
    one.members = (member(10, 100.0), member(11, 3.0))
    assert seen_doing(one, fleet, float("inf")) is None

    one.members = (member(10, 100.1), member(11, 3.1))
    assert seen_doing(one, fleet, 10.0) is None

    one.members = (member(10, 100.1), member(12, 0.6))
    assert "used 6% of a core" in str(seen_doing(one, fleet, 10.0))


def test_no_time_between_two_scans_is_no_evidence() -> None:
    """Two scans at once: nothing is divided by zero, nobody is busy."""
    fleet, one = Fleet(), agent(PARENT)
    one.members = (member(10, 1.0),)
    seen_doing(one, fleet, 1.0)

    assert seen_doing(one, fleet, timedelta().total_seconds()) is None
