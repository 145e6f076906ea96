"""next_step(): the order of a kill, and that it always ends."""

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.core.ladder import Kill, Move, Next, next_step
from watchdog.core.model import Polite

KILL = Kill(started=100.0, grace=timedelta(seconds=10), verify=timedelta(seconds=60), rest_alive=3)


@pytest.mark.parametrize(
    ("kill", "now", "expected"),
    [
        (KILL, 100, Next(Move.TERM_MAIN)),
        (replace(KILL, main_termed=True), 100, Next(Move.WAIT, 105)),
        (replace(KILL, main_termed=True), 105, Next(Move.TERM_REST)),
        (replace(KILL, main_termed=True, main_alive=False), 101, Next(Move.TERM_REST)),
        (replace(KILL, main_termed=True, rest_termed=True), 106, Next(Move.WAIT, 110)),
        (replace(KILL, main_termed=True, rest_alive=0, rest_termed=True), 101, Next(Move.WAIT, 110)),
        (replace(KILL, main_termed=True, rest_termed=True), 110, Next(Move.KILL)),
        (replace(KILL, polite=Polite.ALL), 100, Next(Move.TERM_ALL)),
        (replace(KILL, polite=Polite.ALL, main_termed=True, rest_termed=True), 100, Next(Move.WAIT, 110)),
        (replace(KILL, force=True), 100, Next(Move.KILL)),
        (replace(KILL, grace=timedelta()), 100, Next(Move.KILL)),
        (replace(KILL, killing_since=110.0, killed_until=110.2), 110.1, Next(Move.WAIT, 110.2)),
        (replace(KILL, killing_since=110.0, killed_until=110.2), 110.2, Next(Move.KILL)),
        (replace(KILL, killing_since=110.0, killed_until=170.1), 170, Next(Move.GIVE_UP)),
        (replace(KILL, main_alive=False, rest_alive=0), 100, Next(Move.LOOK)),
        (replace(KILL, main_alive=False, rest_alive=0, stable=True), 100, Next(Move.VERIFIED)),
        (replace(KILL, main_alive=False, rest_alive=0, stable=True, killing_since=0.0), 900, Next(Move.VERIFIED)),
    ],
)
def test_each_state_has_its_next_step(kill: Kill, now: float, expected: Next) -> None:
    """TERM main, the rest at half of the grace or when main has gone, KILL at its end, look again."""
    assert expected == next_step(kill, now)


@given(
    st.builds(
        replace,
        st.just(KILL),
        main_alive=st.booleans(),
        rest_alive=st.integers(0, 5),
        stable=st.booleans(),
        main_termed=st.booleans(),
        rest_termed=st.booleans(),
        force=st.booleans(),
        polite=st.sampled_from(Polite),
        killing_since=st.none() | st.floats(100, 200),
    ),
    st.floats(100, 400),
)
def test_verified_means_nobody_is_left(kill: Kill, now: float) -> None:
    """VERIFIED only after a look that found nobody alive and nobody new; KILL only after the grace, or by force."""
    step = next_step(kill, now)

    if step.move is Move.VERIFIED:
        assert not kill.main_alive
        assert kill.rest_alive == 0
        assert kill.stable
    if step.move is Move.KILL and kill.killing_since is None:
        assert kill.force or now >= 110
    if step.move is Move.WAIT:
        assert step.until > now


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.sampled_from(Polite))
def test_every_kill_comes_to_an_end(deaths: list[int], polite: Polite) -> None:
    """Whatever dies when, the worker reaches VERIFIED or GIVE_UP in bounded time, and never waits for nothing."""
    kill, now, dying = replace(KILL, polite=polite), 100.0, iter(deaths)
    for _ in range(10_000):
        step = next_step(kill, now)
        match step.move:
            case Move.VERIFIED | Move.GIVE_UP:
                assert now <= 100 + 10 + 60 + 1
                return
            case Move.TERM_MAIN:
                kill = replace(kill, main_termed=True)
            case Move.TERM_REST:
                kill = replace(kill, rest_termed=True)
            case Move.TERM_ALL:
                kill = replace(kill, main_termed=True, rest_termed=True)
            case Move.KILL:
                kill = replace(kill, killing_since=kill.killing_since or now, killed_until=now + 0.2)
            case Move.LOOK:
                kill = replace(kill, stable=True)
            case Move.WAIT:
                fallen = next(dying, 0)
                if fallen:
                    now = min(step.until, now + 0.01)
                    kill = replace(
                        kill, main_alive=kill.main_alive and fallen < 2, rest_alive=max(0, kill.rest_alive - fallen)
                    )
                else:
                    now = step.until
    pytest.fail("the kill never ended")
