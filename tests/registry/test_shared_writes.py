"""A change of status is made once, by a caller that saw the current row; a sweep's values only move forward."""

from datetime import timedelta

import pytest

from tests.registry.samples import NOW, add
from watchdog.core.agent import Status
from watchdog.registry.registry import Registry
from watchdog.registry.rows import AgentRow, SweepRow

LIVING = {Status.STARTING, Status.RUNNING}
LATER = NOW + timedelta(minutes=1)


def row_of(registry: Registry, agent_id: str = "a1") -> AgentRow:
    row = registry.agents.get(agent_id)
    assert row is not None
    return row


def change(registry: Registry, to: Status = Status.KILLED, agent_id: str = "a1", **more: object) -> bool:
    more = {"now": LATER, "who": "test", "why": "x", **more}
    return registry.agents.transition(agent_id, LIVING, to, **more)  # type: ignore[arg-type]


def test_of_two_who_change_a_status_one_has_changed_it(registry: Registry) -> None:
    """The other gets False, and nothing of its change is saved."""
    version = add(registry).version
    assert change(registry, expected_version=version, exit_code=3)
    row = row_of(registry)
    assert (row.status, row.version, row.exit_code, row.completed_at) == (Status.KILLED, version + 1, 3, LATER)
    assert not change(registry, Status.FAILED, exit_code=4)
    assert not change(registry, agent_id="nobody")
    assert row_of(registry) == row


def test_who_saw_an_older_row_changes_nothing(registry: Registry) -> None:
    """Even if the status is the same again."""
    version = add(registry).version
    assert change(registry, Status.STARTING)
    assert not change(registry, expected_version=version)
    assert row_of(registry).completed_at is None


def test_a_column_that_is_not_of_a_status_is_refused(registry: Registry) -> None:
    """A programming error, reported as one."""
    add(registry)
    with pytest.raises(TypeError, match="no column that a change of status may set: owner_uid"):
        change(registry, owner_uid=0)


def test_a_change_writes_its_event_with_it_unless_it_is_told_elsewhere(registry: Registry) -> None:
    """Under the default name or another one."""
    for agent_id in ("a1", "b", "c"):
        add(registry, agent_id)
    began = registry.history.events(0)[-1].id
    assert change(registry, Status.UNKILLABLE)
    assert change(registry, agent_id="b", event="agent.forgotten", evidence={"x": 1})
    assert change(registry, agent_id="c", say=False)
    told = registry.history.events(began)
    assert [(one.event, one.agent_id, one.from_status, one.to_status, one.who, one.why) for one in told] == [
        ("agent.unkillable", "a1", "running", "unkillable", "test", "x"),
        ("agent.forgotten", "b", "running", "killed", "test", "x"),
    ]
    assert told[1].evidence == {"x": 1}


def swept(beats: int = 0, watched: float = 0.0, silence: float = 0.0, progress: float | None = None) -> SweepRow:
    return SweepRow("a1", silence, watched, beats, promised=True, last_progress=progress, rests_on=("x",))


def test_what_was_watched_goes_forward_only(registry: Registry) -> None:
    """A sweep that is written late must not undo the next one's."""
    add(registry)
    registry.agents.save_sweep([swept(5, 60.0, 1.0)])
    for older in (swept(4, 70.0, 9.0), swept(6, 59.0, 9.0)):
        registry.agents.save_sweep([older])
    row = row_of(registry)
    assert (row.beats, row.watched_seconds, row.silence_seconds, row.rests_on) == (5, 60.0, 1.0, ("x",))
    registry.agents.save_sweep([swept(5, 60.0, 2.0)])
    assert row_of(registry).silence_seconds == 2.0
    assert change(registry)
    registry.agents.save_sweep([swept(9, 99.0, 9.0)])
    assert row_of(registry).beats == 5


@pytest.mark.parametrize("progress", [float("nan"), float("inf"), float("-inf")])
def test_a_progress_that_is_no_number_does_not_spoil_its_row(registry: Registry, progress: float) -> None:
    """The value comes from the agent itself."""
    add(registry)
    registry.agents.save_sweep([swept(1, 1.0, progress=progress)])
    assert row_of(registry).last_progress is None
    registry.agents.save_sweep([swept(2, 2.0, progress=0.5)])
    assert row_of(registry).last_progress == 0.5
