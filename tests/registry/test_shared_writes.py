"""A change of status is made once, by whoever saw the row as it stands; what is watched goes forward only."""

from datetime import timedelta

import pytest

from tests.registry.samples import NOW, add
from watchdog.core.agent import Status
from watchdog.registry.rows import AgentRow, SweepRow
from watchdog.registry.store import Store

LIVING = {Status.STARTING, Status.RUNNING}
LATER = NOW + timedelta(minutes=1)


def row_of(store: Store, agent_id: str = "a1") -> AgentRow:
    row = store.agent(agent_id)
    assert row is not None
    return row


def change(store: Store, to: Status = Status.KILLED, agent_id: str = "a1", **more: object) -> bool:
    more = {"now": LATER, "who": "test", "why": "x", **more}
    return store.transition(agent_id, LIVING, to, **more)  # type: ignore[arg-type]


def test_of_two_who_change_a_status_one_has_changed_it(store: Store) -> None:
    """The other is told so, and nothing of its change is there."""
    version = add(store).version
    assert change(store, expected_version=version, exit_code=3)
    row = row_of(store)
    assert (row.status, row.version, row.exit_code, row.completed_at) == (Status.KILLED, version + 1, 3, LATER)
    assert not change(store, Status.FAILED, exit_code=4)
    assert not change(store, agent_id="nobody")
    assert row_of(store) == row


def test_who_saw_an_older_row_changes_nothing(store: Store) -> None:
    """Its status is the same again."""
    version = add(store).version
    assert change(store, Status.STARTING)
    assert not change(store, expected_version=version)
    assert row_of(store).completed_at is None


def test_a_column_that_is_not_of_a_status_is_refused(store: Store) -> None:
    """A slip of ours, told as one."""
    add(store)
    with pytest.raises(TypeError, match="no column that a change of status may set: owner_uid"):
        change(store, owner_uid=0)


def test_a_change_writes_its_event_with_it_unless_it_is_told_elsewhere(store: Store) -> None:
    """By its own name, or another's."""
    for agent_id in ("a1", "b", "c"):
        add(store, agent_id)
    began = store.events(0)[-1].id
    assert change(store, Status.UNKILLABLE)
    assert change(store, agent_id="b", event="agent.forgotten", evidence={"x": 1})
    assert change(store, agent_id="c", say=False)
    told = store.events(began)
    assert [(one.event, one.agent_id, one.from_status, one.to_status, one.who, one.why) for one in told] == [
        ("agent.unkillable", "a1", "running", "unkillable", "test", "x"),
        ("agent.forgotten", "b", "running", "killed", "test", "x"),
    ]
    assert told[1].evidence == {"x": 1}


def swept(beats: int = 0, watched: float = 0.0, silence: float = 0.0, progress: float | None = None) -> SweepRow:
    return SweepRow("a1", silence, watched, beats, promised=True, last_progress=progress, rests_on=("x",))


def test_what_was_watched_goes_forward_only(store: Store) -> None:
    """A sweep that was late to write must not undo the next one's."""
    add(store)
    store.save_sweep([swept(5, 60.0, 1.0)])
    for older in (swept(4, 70.0, 9.0), swept(6, 59.0, 9.0)):
        store.save_sweep([older])
    row = row_of(store)
    assert (row.beats, row.watched_seconds, row.silence_seconds, row.rests_on) == (5, 60.0, 1.0, ("x",))
    store.save_sweep([swept(5, 60.0, 2.0)])
    assert row_of(store).silence_seconds == 2.0
    assert change(store)
    store.save_sweep([swept(9, 99.0, 9.0)])
    assert row_of(store).beats == 5


@pytest.mark.parametrize("progress", [float("nan"), float("inf"), float("-inf")])
def test_a_progress_that_is_no_number_does_not_spoil_its_row(store: Store, progress: float) -> None:
    """It is an agent's own word."""
    add(store)
    store.save_sweep([swept(1, 1.0, progress=progress)])
    assert row_of(store).last_progress is None
    store.save_sweep([swept(2, 2.0, progress=0.5)])
    assert row_of(store).last_progress == 0.5
