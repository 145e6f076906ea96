"""The table of nine lines, and what must hold for every observation."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.agent import Policy, State, Status, Verdict
from watchdog.core.process import Presence
from watchdog.core.verdict import Observation, judge, span

POLICY = Policy(after=timedelta(seconds=120), confirm_sweeps=2)


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def seen(**signals: object) -> Observation:
    """A living agent that has promised and sent beats, and nothing else."""
    base: dict[str, object] = {"presence": Presence.ALIVE, "promised": True, "has_beaten": True}
    return Observation(**{**base, **signals})  # type: ignore[arg-type]


CASES = [
    ("an ended main process is gone", seen(presence=Presence.ABSENT), Verdict.GONE),
    (
        "gone comes before everything",
        seen(presence=Presence.ABSENT, state=State.IDLE, ttl_left=seconds(-1)),
        Verdict.GONE,
    ),
    ("a failed look is unknown", seen(presence=Presence.UNKNOWN, silence=seconds(9999), late_looks=9), Verdict.UNKNOWN),
    (
        "an unread heartbeat file is unknown",
        seen(unread=seconds(30), silence=seconds(999), late_looks=9),
        Verdict.UNKNOWN,
    ),
    (
        "an unread file is judged after wait_limit",
        seen(unread=seconds(21601), silence=seconds(21601), late_looks=1),
        Verdict.STALLED,
    ),
    (
        "a queued agent is never judged",
        seen(status=Status.QUEUED, presence=Presence.NO_PID, age=seconds(10**6)),
        Verdict.STARTING,
    ),
    ("no pid yet is starting", seen(presence=Presence.NO_PID, has_beaten=False, age=seconds(10)), Verdict.STARTING),
    (
        "who works and has not beaten yet is starting still",
        seen(has_beaten=False, age=seconds(999), activity="its log grew"),
        Verdict.STARTING,
    ),
    (
        "who is held by a debugger is waited for",
        seen(silence=seconds(999), late_looks=9, halt="a debugger holds it", halted=seconds(900)),
        Verdict.WAITING,
    ),
    (
        "and before its first beat, too",
        seen(has_beaten=False, age=seconds(999), halt="a debugger holds it"),
        Verdict.WAITING,
    ),
    (
        "but not for longer than wait_limit",
        seen(silence=seconds(21601), late_looks=9, halt="a debugger holds it", halted=seconds(21600)),
        Verdict.STALLED,
    ),
    ("a halted one that beats is healthy", seen(halt="a debugger holds it"), Verdict.HEALTHY),
    ("who beats without a pid has started", seen(presence=Presence.NO_PID, age=seconds(9999)), Verdict.HEALTHY),
    (
        "who beat without a pid stalls",
        seen(presence=Presence.NO_PID, silence=seconds(120), late_looks=1),
        Verdict.STALLED,
    ),
    (
        "whose processes live without a promise or a pid has started",
        seen(presence=Presence.NO_PID, promised=False, has_beaten=False, age=seconds(9999), members=1),
        Verdict.HEALTHY,
    ),
    (
        "who lives without a promise or a pid has a time to live",
        seen(presence=Presence.NO_PID, promised=False, members=1, ttl_left=seconds(0)),
        Verdict.EXPIRED,
    ),
    (
        "who lives without a promise or a pid may linger",
        seen(presence=Presence.NO_PID, promised=False, members=1, state=State.DONE, state_age=seconds(9999)),
        Verdict.LINGERING,
    ),
    (
        "a promise without a first beat is starting",
        seen(has_beaten=False, age=seconds(299), silence=seconds(299)),
        Verdict.STARTING,
    ),
    (
        "who is shown to ask a person before its first beat waits for that",
        seen(has_beaten=False, asks="a prompt", age=seconds(9999), silence=seconds(9999)),
        Verdict.WAITING,
    ),
    (
        "also within the limit of a start",
        seen(has_beaten=False, asks="a prompt", age=seconds(9), silence=seconds(9)),
        Verdict.WAITING,
    ),
    (
        "its time to live is over all the same",
        seen(has_beaten=False, asks="a prompt", age=seconds(9999), ttl_left=seconds(0)),
        Verdict.EXPIRED,
    ),
    (
        "who was not prompted yet waits for that after the limit of a start",
        seen(has_beaten=False, unprompted="started without one", age=seconds(9999), silence=seconds(9999)),
        Verdict.WAITING,
    ),
    (
        "before that it starts",
        seen(has_beaten=False, unprompted="started without one", age=seconds(9)),
        Verdict.STARTING,
    ),
    ("who beats and is shown to ask is healthy", seen(asks="a prompt", silence=seconds(9)), Verdict.HEALTHY),
    (
        "who is silent and shown to ask waits",
        seen(asks="a prompt", silence=seconds(999), late_looks=9),
        Verdict.WAITING,
    ),
    (
        "what it was not prompted for counts no more once it beats",
        seen(unprompted="started without one", silence=seconds(999), late_looks=9),
        Verdict.STALLED,
    ),
    ("no promise needs no first beat", seen(promised=False, has_beaten=False, age=seconds(9999)), Verdict.HEALTHY),
    ("ttl over is expired", seen(ttl_left=seconds(0)), Verdict.EXPIRED),
    ("done and still there lingers", seen(state=State.DONE, state_age=seconds(60)), Verdict.LINGERING),
    ("done just now waits", seen(state=State.DONE, state_age=seconds(59)), Verdict.WAITING),
    ("idle is never stalled", seen(state=State.IDLE, silence=seconds(10**6), late_looks=99), Verdict.WAITING),
    (
        "idle until what it began wakes it is accepted for wait_limit of silence",
        seen(state=State.IDLE, rests_on=True, state_age=seconds(10**6), silence=seconds(21599), late_looks=9),
        Verdict.WAITING,
    ),
    (
        "after that its silence counts",
        seen(state=State.IDLE, rests_on=True, state_age=seconds(10**6), silence=seconds(21600), late_looks=1),
        Verdict.STALLED,
    ),
    (
        "a promise that is longer than wait_limit is kept",
        seen(state=State.IDLE, rests_on=True, silence=seconds(40000), after=seconds(40001), late_looks=9),
        Verdict.WAITING,
    ),
    (
        "waiting for a human has no limit",
        seen(state=State.WAITING, silence=seconds(10**6), late_looks=99),
        Verdict.WAITING,
    ),
    (
        "blocked is not a stall up to wait_limit",
        seen(state=State.BLOCKED, state_age=seconds(21599), silence=seconds(21599), late_looks=99),
        Verdict.WAITING,
    ),
    (
        "blocked for longer than wait_limit is judged by its silence",
        seen(state=State.BLOCKED, state_age=seconds(21600), silence=seconds(21600), late_looks=1),
        Verdict.STALLED,
    ),
    ("a lease runs", seen(lease_left=seconds(1), silence=seconds(500), late_looks=9), Verdict.WAITING),
    (
        "a declared tool runs",
        seen(tool="make", tool_left=seconds(1), silence=seconds(500), late_looks=9),
        Verdict.WAITING,
    ),
    ("a tool over its limit excuses nothing", seen(tool="make", silence=seconds(500), late_looks=1), Verdict.STALLED),
    ("silent but in time is healthy", seen(silence=seconds(119.9)), Verdict.HEALTHY),
    ("the first silent look is late", seen(silence=seconds(120)), Verdict.LATE),
    ("the second silent look is stalled", seen(silence=seconds(130), late_looks=1), Verdict.STALLED),
    ("after a start one look more confirms", seen(silence=seconds(500), first_look=True), Verdict.LATE),
    (
        "activity delays",
        seen(silence=seconds(500), late_looks=9, activity="its processes used 80% of a core"),
        Verdict.LATE,
    ),
    (
        "activity is believed up to busy_limit",
        seen(silence=seconds(3720), late_looks=9, activity="busy"),
        Verdict.STALLED,
    ),
    ("a lost channel delays", seen(silence=seconds(500), late_looks=9, channel_lost=True), Verdict.LATE),
    (
        "a lost channel is believed up to wait_limit",
        seen(silence=seconds(21600), late_looks=9, channel_lost=True),
        Verdict.STALLED,
    ),
    ("progress that moves is healthy", seen(progress_age=seconds(1799)), Verdict.HEALTHY),
    ("beats without progress stall", seen(progress_age=seconds(1800), late_looks=1), Verdict.STALLED),
    (
        "activity delays a progress that stands",
        seen(progress_age=seconds(5399), late_looks=9, activity="busy"),
        Verdict.LATE,
    ),
    (
        "activity delays a progress that stands up to busy_limit",
        seen(progress_age=seconds(5400), late_looks=9, activity="busy"),
        Verdict.STALLED,
    ),
    ("idle needs no progress", seen(progress_age=seconds(9999), state=State.IDLE), Verdict.WAITING),
]


@pytest.mark.parametrize(("observation", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_the_first_line_that_fits_wins(observation: Observation, expected: Verdict) -> None:
    """Each line of the table, and each pair where two could fit."""
    judgement = judge(observation, POLICY)

    assert expected == judgement.verdict
    assert judgement.line


def test_starting_is_overdue_after_the_limit() -> None:
    """An agent that never gave a pid, or promised and never beat, has failed to start after start_limit."""
    assert judge(seen(presence=Presence.NO_PID, has_beaten=False, age=seconds(300)), POLICY).overdue
    assert judge(seen(presence=Presence.NO_PID, promised=False, age=seconds(300)), POLICY).overdue
    assert judge(seen(presence=Presence.NO_PID, has_beaten=False, age=seconds(300), members=1), POLICY).overdue
    assert judge(seen(has_beaten=False, age=seconds(300)), POLICY).overdue
    assert not judge(seen(has_beaten=False, age=seconds(299)), POLICY).overdue
    assert not judge(seen(has_beaten=False, age=seconds(399), forgiven=seconds(100)), POLICY).overdue
    assert judge(seen(has_beaten=False, age=seconds(400), forgiven=seconds(100)), POLICY).overdue


def test_an_agent_that_shows_activity_has_started() -> None:
    """Whatever its hooks report: it is no failed start for busy_limit; then it is one."""
    works = seen(has_beaten=False, age=seconds(300), activity="its pane changes")
    assert not judge(works, POLICY).overdue
    assert "its pane changes" in judge(works, POLICY).line
    limit = 300 + POLICY.busy_limit.total_seconds()
    assert judge(seen(has_beaten=False, age=seconds(limit), activity="its pane changes"), POLICY).overdue


def test_a_slow_rhythm_gets_a_long_start() -> None:
    """A promise of one beat in four hours allows four hours for the first."""
    slow = seen(has_beaten=False, age=seconds(3600), after=timedelta(hours=4))

    assert judge(slow, POLICY).verdict == Verdict.STARTING
    assert not judge(slow, POLICY).overdue


def test_one_confirming_look_follows_a_start_even_with_confirm_one() -> None:
    """confirm_sweeps = 1 still allows one more check after the daemon's own start."""
    policy = Policy(confirm_sweeps=1)

    assert judge(seen(silence=seconds(500), first_look=True), policy).verdict == Verdict.LATE
    assert judge(seen(silence=seconds(500), first_look=True, late_looks=1), policy).verdict == Verdict.STALLED
    assert judge(seen(silence=seconds(500)), policy).verdict == Verdict.STALLED


durations = st.timedeltas(min_value=timedelta(), max_value=timedelta(days=400))
observations = st.builds(
    Observation,
    presence=st.sampled_from(Presence),
    status=st.sampled_from([Status.QUEUED, Status.STARTING, Status.RUNNING]),
    promised=st.booleans(),
    has_beaten=st.booleans(),
    age=durations,
    silence=durations,
    after=st.timedeltas(min_value=timedelta(seconds=1), max_value=timedelta(days=1)),
    state=st.none() | st.sampled_from(State),
    state_age=durations,
    rests_on=st.booleans(),
    lease_left=durations,
    tool=st.none() | st.just("make"),
    tool_left=durations,
    progress_age=st.none() | durations,
    ttl_left=st.none() | durations,
    late_looks=st.integers(0, 100),
    first_look=st.booleans(),
    activity=st.none() | st.just("busy"),
    channel_lost=st.booleans(),
    unread=st.none() | durations,
)


def test_a_start_is_not_overdue_while_no_agent_could_be_heard() -> None:
    """Its first beat, or its pid, may have been rejected; accepted up to wait_limit."""
    heard, unheard = (
        seen(age=seconds(5000), has_beaten=False),
        seen(age=seconds(5000), has_beaten=False, channel_lost=True),
    )
    assert judge(heard, POLICY).overdue
    assert not judge(unheard, POLICY).overdue
    assert "too many connections" in judge(unheard, POLICY).line
    assert judge(seen(age=seconds(21600), has_beaten=False, channel_lost=True), POLICY).overdue


@given(observations)
def test_no_healthy_agent_is_ever_stalled(observation: Observation) -> None:
    """Whatever else is observed, these are never STALLED."""
    if judge(observation, POLICY).verdict is not Verdict.STALLED:
        return

    assert observation.presence is Presence.ALIVE
    assert observation.promised
    assert observation.has_beaten
    blocked = observation.state is State.BLOCKED and observation.state_age >= POLICY.wait_limit
    limit = max(POLICY.wait_limit, observation.after)
    rests_on = observation.rests_on and observation.silence >= limit
    assert observation.state in (None, State.WORKING) or blocked or rests_on
    assert observation.lease_left == timedelta()
    stands = observation.progress_age is not None and observation.progress_age >= POLICY.progress_limit
    assert observation.silence >= observation.after or stands
    assert observation.late_looks + 1 >= (2 if observation.first_look else POLICY.confirm_sweeps)


@given(observations, st.floats(0, 1, exclude_max=True), st.booleans())
def test_what_stands_is_not_changed_by_time_alone(observation: Observation, part: float, renewed: bool) -> None:
    """At each instant before that time is over, with or without a bare beat meanwhile, the verdict is the same."""
    before = judge(observation, POLICY)
    passed = before.stands * part
    progress, ttl = observation.progress_age, observation.ttl_left
    after = replace(
        observation,
        age=observation.age + passed,
        silence=timedelta() if renewed else observation.silence + passed,
        has_beaten=observation.has_beaten or renewed,
        progress_age=None if progress is None else progress + passed,
        ttl_left=None if ttl is None else ttl - passed,
    )

    assert (before.stands > timedelta()) == (before.verdict is Verdict.HEALTHY)
    if passed and before.verdict is Verdict.HEALTHY:
        assert judge(after, POLICY).verdict is Verdict.HEALTHY


@given(observations)
def test_a_missing_signal_never_makes_it_worse(observation: Observation) -> None:
    """GONE needs proof: only a main process that is ABSENT gives it; an unknown one gives UNKNOWN."""
    verdict = judge(observation, POLICY).verdict

    if observation.status is not Status.QUEUED:
        assert (verdict is Verdict.GONE) == (observation.presence is Presence.ABSENT)
        if observation.presence is Presence.UNKNOWN:
            assert verdict == Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0s"),
        (0.42, "0.4s"),
        (42, "42s"),
        (60, "1m"),
        (200, "3m20s"),
        (7500, "2h05m"),
        (273600, "3d4h"),
        (-5, "-5s"),
    ],
)
def test_durations_read_as_people_say_them(duration: float, text: str) -> None:
    """One or two units, never a long fraction."""
    assert text == span(seconds(duration))


@pytest.mark.parametrize(
    ("age", "activity", "overdue"),
    [(301.0, None, True), (301.0, "its log grew", False), (3899.0, "its log grew", False), (3901.0, "it grew", True)],
)
def test_activity_delays_a_first_beat_as_it_delays_a_late_one(age: float, activity: str | None, overdue: bool) -> None:
    """Case Q2: up to busy_limit beyond the start limit."""
    judgement = judge(seen(has_beaten=False, age=seconds(age), silence=seconds(age), activity=activity), POLICY)
    assert (judgement.verdict, judgement.overdue) == (Verdict.STARTING, overdue)


def test_a_mute_agent_whose_child_works_on_is_stalled_busy_limit_after_its_own_limit() -> None:
    """Case P17: with the defaults an hour and two minutes after its last beat, as agent-watchdog(7) says."""
    policy = Policy()
    assert (policy.after, policy.busy_limit) == (seconds(120), seconds(3600))
    for silence, verdict in ((3719, Verdict.LATE), (3720, Verdict.STALLED)):
        found = judge(seen(silence=seconds(silence), late_looks=9, activity="child agent b at work"), policy)
        assert found.verdict is verdict, silence
