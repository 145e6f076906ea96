"""How a step of the wall clock distorts the age of what was stored before it."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.steps import ClockReading, ClockStep, credit, step_between, with_step

NOW = datetime(2030, 1, 1, tzinfo=UTC)
spans = st.timedeltas(timedelta(), timedelta(days=30))
steps = st.timedeltas(timedelta(days=-30), timedelta(days=400))


def test_only_what_the_time_since_boot_does_not_explain_is_a_step() -> None:
    """Both clocks include suspend; a small difference is slewing; across a reboot nothing is known."""
    former = ClockReading(NOW, 100.0, "boot")
    for passed, seconds, step in (
        (60.0, 60.0, 0.0),
        (60.5, 60.0, 0.0),
        (3660.0, 60.0, 3600.0),
        (-3540.0, 60.0, -3600.0),
    ):
        now = ClockReading(NOW + timedelta(seconds=passed), 100.0 + seconds, "boot")
        assert step_between(former, now) == timedelta(seconds=step)
    assert not step_between(former, ClockReading(NOW + timedelta(days=4), 1.0, "another"))


@given(
    st.lists(st.tuples(spans, steps), max_size=5),
    st.integers(0, 5),
    spans,
    st.timedeltas(timedelta(hours=1), timedelta(days=30)),
)
def test_nothing_falls_due_before_its_time_however_the_clock_is_set(
    story: list[tuple[timedelta, timedelta]], put_after: int, rest: timedelta, keep: timedelta
) -> None:
    """Safety: something stored between steps is never due too early by the wall clock plus the credit."""
    wall, true, known, put = NOW, timedelta(), list[ClockStep](), None
    for number, (passed, by) in enumerate([*story, (rest, timedelta())]):
        if number == put_after:
            put = wall, true
        wall, true = wall + passed, true + passed
        if put is not None and wall - put[0] >= keep + credit(known, keep, wall):
            assert true - put[1] >= keep
        wall += by
        known = with_step(known, by, wall)
        if put is not None and wall - put[0] >= keep + credit(known, keep, wall):
            assert true - put[1] >= keep


def test_a_step_is_forgotten_when_all_that_it_made_older_is_due() -> None:
    """Liveness: the credit ends."""
    step = ClockStep(NOW, timedelta(days=4))
    assert credit([step], timedelta(days=3), NOW + timedelta(days=2)) == timedelta(days=4)
    assert not credit([step], timedelta(days=3), NOW + timedelta(days=3))
    assert not credit([ClockStep(NOW, timedelta(days=-4))], timedelta(days=3), NOW)
