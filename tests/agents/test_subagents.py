"""Who in a program is at work: what one of them says, and what it means for the agent."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from watchdog.agents.heartbeat import Heartbeat
from watchdog.agents.silence import Silence, SilenceLimits
from watchdog.core.agent import Beat, Policy, State

WALL = datetime(2030, 1, 1, tzinfo=UTC)


def speaker() -> Heartbeat:
    return Heartbeat(Silence(SilenceLimits(Policy())))


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


OVER = Beat(thread="t", goes_on=False, promises=False)


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ([OVER], State.IDLE),
        ([Beat(thread="u", goes_on=True, promises=False), OVER], State.BLOCKED),
        ([Beat(thread="u", goes_on=True, promises=False), OVER, replace(OVER, thread="u")], State.IDLE),
        ([Beat(state=State.BLOCKED), OVER], State.BLOCKED),
        ([Beat(promises=False)], State.BLOCKED),
    ],
    ids=["the last one is over", "another one goes on", "then that is over", "it says so itself", "a mere sign"],
)
def test_who_rested_when_the_daemon_was_restarted_rests_when_its_subagent_is_over(
    words: list[Beat], state: State
) -> None:
    """No word of the main thread comes: it sat at its prompt, `blocked` to us, and was ended after `wait_limit`."""
    one = speaker()
    one.said.state, one.subagents.inherited, one.said.promised = State.BLOCKED, True, True
    for at, word in enumerate(words):
        one.beat(word, at, WALL)
    assert one.said.state is state


def thread(name: str, goes_on: bool | None = None, **more: Any) -> Beat:
    return Beat(thread=name, goes_on=goes_on, promises=False, **more)


RESTS = Beat(state=State.IDLE, tool="", goes_on=False)


Told = list[tuple[float, float, Beat]]  # when it came, and when it was said


@pytest.mark.parametrize(
    ("told", "rests_on"),
    [
        # Two hooks are two processes, each with a connection of its own: the end of a turn came before its beginning.
        ([(1, 1, thread("a", False)), (1.2, 1.2, thread("a", True))], ()),
        ([(1, 1, thread("a", False)), (1.2, 1.2, thread("a", True)), (2, 2, thread("a", True))], ("a",)),
        ([(1, 1, thread("a", False)), (9, 9, thread("a", True))], ("a",)),
        ([(0, 0, thread("a", True)), (1, 1, thread("a", False)), (2, 2, thread("a", True))], ("a",)),
        ([(1, 1, thread("a", False)), (1.2, 1.2, thread("b", True))], ("b",)),
        # What `run` has kept comes after what a hook has said to us since.
        ([(9, 9, thread("a", False)), (9.5, 2, thread("a", True))], ()),
        ([(0, 0, thread("a", True)), (9, 9, thread("a", True)), (9.5, 2, thread("a", False))], ("a",)),
        ([(9, 9, RESTS), (9.5, 2, thread("a", True))], ()),
        ([(9, 9, RESTS), (9.5, 9.2, thread("a", True))], ("a",)),
        ([(0, 0, thread("a", True)), (9, 9, Beat(state=State.IDLE)), (9.5, 2, RESTS)], ("a",)),
    ],
)
def test_what_is_heard_in_another_order_than_it_was_said_leaves_it_resting_on_the_same(
    told: Told, rests_on: tuple[str, ...]
) -> None:
    """One that was over counted as at work: its agent sat at its prompt, and was ended after `wait_limit`."""
    one = speaker()
    for mono, said, word in told:
        one.beat(word, mono, WALL, seconds(mono - said))
    assert one.subagents.resting_on == rests_on


def test_a_word_that_is_heard_late_takes_back_nothing_that_was_said_since() -> None:
    """`run` kept that it works; that it rests its hook said to the daemon, as soon as that was there."""
    one = speaker()
    one.beat(Beat(state=State.IDLE, tool="", note="rests"), 10, WALL)
    late = one.beat(Beat(state=State.WORKING, tool="Bash", note="", silent_for=seconds(60)), 10.5, WALL, seconds(5.5))
    assert (one.said.state, one.said.tool, one.said.note, one.said.promised) == (State.IDLE, None, "rests", True)
    assert (late.tool, one.ages.lease_left) == (None, seconds(54.5))
    one.beat(Beat(), 10.6, WALL, seconds(0.7))
    assert one.said.state is State.IDLE, "a plain beat of before as well"
    one.beat(Beat(), 11, WALL, seconds(0.2))
    states = {one.said.state}
    assert states == {State.WORKING}


def test_as_many_threads_as_are_named_are_kept_in_order_and_no_more() -> None:
    """Their names are the agent's words."""
    one = speaker()
    for number in range(2000):
        one.beat(thread(str(number), number % 2 == 0), number / 100, WALL)
    assert max(map(len, (one.subagents.spoken, one.subagents.threads, one.subagents.unbegun))) <= 257


@pytest.mark.parametrize(("source", "hung"), [("run", ("b",)), ("register", ())])
def test_after_a_restart_the_end_of_one_of_two_subagents_is_not_the_end_of_both(
    source: str, hung: tuple[str, ...]
) -> None:
    """The other one hung: never found. Where no `run` keeps what was said meanwhile, its end may be what was lost."""
    before = Heartbeat(Silence(SilenceLimits(Policy())))
    for name in ("a", "b"):
        before.beat(thread(name, True), 0, WALL)
    before.beat(Beat(state=State.IDLE), 1, WALL)
    after = Heartbeat(Silence(SilenceLimits(Policy())))
    after.said.promised = True
    after.said.state = after.subagents.restore(before.subagents.resting_on, State.BLOCKED, kept=source == "run")
    after.beat(thread("a", False), 2, WALL)
    assert (after.said.state, after.subagents.resting_on, after.rests_on) == (State.IDLE, hung, bool(hung))


def test_after_a_restart_a_subagent_that_speaks_goes_on() -> None:
    """Its tool call says so, also where nothing was kept of it."""
    one = speaker()
    one.said.promised = True
    one.said.state = one.subagents.restore((), State.BLOCKED, kept=False)
    one.beat(thread("b", tool="Bash"), 1, WALL)
    one.beat(thread("a", False), 2, WALL)
    assert (one.said.state, one.subagents.resting_on) == (State.BLOCKED, ("b",))
    one.beat(thread("b", False), 3, WALL)
    assert (one.said.state, one.subagents.resting_on) == (State.IDLE, ())


def test_after_a_restart_the_word_that_its_prompt_is_idle_does_not_end_what_goes_on() -> None:
    """Claude Code takes an MCP call of two minutes to the background; a minute later it says that its prompt is idle.

    With a restart in between that was the word of one that rests: its call hung, and nobody was told.
    """
    before = Heartbeat(Silence(SilenceLimits(Policy())))
    before.beat(Beat(state=State.IDLE, tool="", goes_on=True), 0, WALL)
    after = Heartbeat(Silence(SilenceLimits(Policy())))
    after.said.promised = True
    after.said.state = after.subagents.restore(before.subagents.resting_on, State.BLOCKED, kept=True)
    after.beat(Beat(state=State.IDLE, tool=""), 60, WALL)
    assert (after.rests_on, after.excused) == (True, True)
    after.silence.lasted = Policy().wait_limit
    assert not after.excused


def test_a_human_is_asked_in_view_by_the_main_thread_alone() -> None:
    """Its terminal shows that one; of a subagent's dialog, or after a restart of ours, nothing is known."""
    main, sub, rests = (
        Beat(state=State.WAITING, asks=" Bash 1"),
        Beat(state=State.WAITING, asks="a1 Bash 1"),
        Beat(state=State.IDLE),
    )
    calls, notice = Beat(thread="a1", tool="Bash", promises=False), Beat(state=State.WAITING)
    for beats, asks in (([main], True), ([main, sub], False), ([sub, rests], False), ([calls, notice], False)):
        one = speaker()
        for at, beat in enumerate(beats):
            one.beat(beat, at, WALL)
        assert one.asks_itself is asks
    restarted = speaker()
    restarted.said.state = State.WAITING
    assert not restarted.asks_itself
