"""Activity inside a program: what a report of one thread means for the agent."""

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
def test_a_rest_restored_by_a_restarted_daemon_ends_with_its_subagent(words: list[Beat], state: State) -> None:
    """No report of the main thread comes: it was at its prompt, `blocked` to us, and was killed after `wait_limit`."""
    one = speaker()
    one.said.state, one.subagents.inherited, one.said.promised = State.BLOCKED, True, True
    for at, word in enumerate(words):
        one.beat(word, at, WALL)
    assert one.said.state is state


def thread(name: str, goes_on: bool | None = None, **more: Any) -> Beat:
    return Beat(thread=name, goes_on=goes_on, promises=False, **more)


RESTS = Beat(state=State.IDLE, tool="", goes_on=False)


Told = list[tuple[float, float, Beat]]  # (received at, sent at, beat)


@pytest.mark.parametrize(
    ("told", "rests_on"),
    [
        # Two hooks are two processes, each with its own connection: the end of a turn arrived before its beginning.
        ([(1, 1, thread("a", False)), (1.2, 1.2, thread("a", True))], ()),
        ([(1, 1, thread("a", False)), (1.2, 1.2, thread("a", True)), (2, 2, thread("a", True))], ("a",)),
        ([(1, 1, thread("a", False)), (9, 9, thread("a", True))], ("a",)),
        ([(0, 0, thread("a", True)), (1, 1, thread("a", False)), (2, 2, thread("a", True))], ("a",)),
        ([(1, 1, thread("a", False)), (1.2, 1.2, thread("b", True))], ("b",)),
        # The buffer of `run` arrives after later reports of a hook to us.
        ([(9, 9, thread("a", False)), (9.5, 2, thread("a", True))], ()),
        ([(0, 0, thread("a", True)), (9, 9, thread("a", True)), (9.5, 2, thread("a", False))], ("a",)),
        ([(9, 9, RESTS), (9.5, 2, thread("a", True))], ()),
        ([(9, 9, RESTS), (9.5, 9.2, thread("a", True))], ("a",)),
        ([(0, 0, thread("a", True)), (9, 9, Beat(state=State.IDLE)), (9.5, 2, RESTS)], ("a",)),
    ],
)
def test_reports_received_out_of_order_leave_the_same_rest(told: Told, rests_on: tuple[str, ...]) -> None:
    """A finished subagent counted as at work: its agent was at its prompt, and was killed after `wait_limit`."""
    one = speaker()
    for mono, said, word in told:
        one.beat(word, mono, WALL, seconds(mono - said))
    assert one.subagents.resting_on == rests_on


def test_a_late_report_revokes_no_newer_one() -> None:
    """`run` buffered that it works; its hook reported the rest to the daemon as soon as that was there."""
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


def test_as_many_threads_as_named_are_tracked_up_to_a_limit() -> None:
    """Their names come from the agent."""
    one = speaker()
    for number in range(2000):
        one.beat(thread(str(number), number % 2 == 0), number / 100, WALL)
    assert max(map(len, (one.subagents.spoken, one.subagents.threads, one.subagents.unbegun))) <= 257


@pytest.mark.parametrize(("source", "hung"), [("run", ("b",)), ("register", ())])
def test_after_a_restart_the_end_of_one_of_two_subagents_is_not_the_end_of_both(
    source: str, hung: tuple[str, ...]
) -> None:
    """The other one hung and was never found. Without the buffer of `run`, its end may have been lost."""
    before = Heartbeat(Silence(SilenceLimits(Policy())))
    for name in ("a", "b"):
        before.beat(thread(name, True), 0, WALL)
    before.beat(Beat(state=State.IDLE), 1, WALL)
    after = Heartbeat(Silence(SilenceLimits(Policy())))
    after.said.promised = True
    after.said.state = after.subagents.restore(before.subagents.resting_on, State.BLOCKED, kept=source == "run")
    after.beat(thread("a", False), 2, WALL)
    assert (after.said.state, after.subagents.resting_on, after.rests_on) == (State.IDLE, hung, bool(hung))


def test_after_a_restart_a_subagent_that_reports_is_at_work() -> None:
    """Its tool call shows it, even if nothing was stored about it."""
    one = speaker()
    one.said.promised = True
    one.said.state = one.subagents.restore((), State.BLOCKED, kept=False)
    one.beat(thread("b", tool="Bash"), 1, WALL)
    one.beat(thread("a", False), 2, WALL)
    assert (one.said.state, one.subagents.resting_on) == (State.BLOCKED, ("b",))
    one.beat(thread("b", False), 3, WALL)
    assert (one.said.state, one.subagents.resting_on) == (State.IDLE, ())


def test_after_a_restart_the_report_of_an_idle_prompt_does_not_end_background_work() -> None:
    """Claude Code moves an MCP call of two minutes to the background; a minute later it reports an idle prompt.

    With a restart in between that counted as the report of an agent at rest: its call hung, unreported.
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


def test_only_the_main_thread_asks_a_human_on_the_terminal() -> None:
    """The terminal shows that thread; about a subagent's dialog, or after a restart of the daemon, nothing is known."""
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
