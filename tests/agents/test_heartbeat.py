"""What an agent says, and what is held against it: pauses, debuggers."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from watchdog.agents.heartbeat import Heartbeat
from watchdog.core.agent import Beat, Policy, Registration, State

WALL = datetime(2030, 1, 1, tzinfo=UTC)


def speaker() -> Heartbeat:
    return Heartbeat(Registration("a", "a", 0, "host", "boot"), Policy())


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


def pause_of(one: Heartbeat) -> timedelta:
    assert one.pause is not None
    return one.pause


def test_its_pause_is_the_longest_of_the_last_ones() -> None:
    """A long one is remembered for a while; what it was excused for is none."""
    one = speaker()
    one.beat(Beat(), 0, WALL)
    assert one.pause is None
    for at in (30, 60, 150, 160):
        one.beat(Beat(), at, WALL)
    assert seconds(75) < pause_of(one) < seconds(90)
    for at in range(170, 400, 10):
        one.beat(Beat(), at, WALL)
    assert pause_of(one) < seconds(15)
    one.beat(Beat(), 800, WALL)  # it was late: the network was away
    assert pause_of(one) < seconds(15)
    one.beat(Beat(silent_for=seconds(600)), 810, WALL)
    one.beat(Beat(state=State.IDLE, silent_for=seconds(0)), 860, WALL)
    one.beat(Beat(), 5000, WALL)
    assert pause_of(one) < seconds(15)


@pytest.mark.parametrize("what", ["idle", "leases", "lost", "unread", "halted", "unpromised"])
def test_of_whom_no_word_is_expected_is_no_witness(what: str) -> None:
    """Its silence says nothing of others'."""
    one = speaker()
    one.beat(Beat(), 0, WALL)
    assert one.witness(7) is not None
    match what:
        case "idle":
            one.beat(Beat(state=State.IDLE), 1, WALL)
        case "leases":
            one.beat(Beat(silent_for=seconds(60)), 1, WALL)
        case "lost":
            one.channel_lost = True
        case "unread":
            one.unread_now()
        case "halted":
            one.stopped("a debugger holds it")
        case _:
            one.promised = False
    assert one.witness(7) is None


def test_who_was_held_by_a_debugger_has_a_fresh_limit_when_it_goes_on() -> None:
    """Once it runs all of it is waited for; beyond wait_limit in one silence there is no more."""
    one = speaker()
    one.beat(Beat(), 0, WALL)
    one.watch(0, 100, 1e9)
    one.stopped("a debugger holds it")
    one.watch(100, 1000, 1e9)
    assert (one.halted, one.counted) == (seconds(900), seconds(1000))
    one.stopped(None)
    assert one.counted == seconds(0)
    one.watch(1000, 1050, 1e9)
    assert (one.halted, one.counted) == (seconds(900), seconds(50))
    one.stopped("a debugger holds it")
    one.watch(1050, 30_000, 1e9)
    one.stopped(None)
    assert one.counted == seconds(29_000)
    one.beat(Beat(), 30_000, WALL)
    assert one.halted == seconds(0)


def test_of_a_tools_limit_nothing_is_used_up_while_a_human_is_asked_for_it() -> None:
    """Answered after ten minutes it has all of it; and whoever waits is silent meanwhile, so that its file is asked."""
    one = speaker()
    one.beat(Beat(state=State.WORKING, tool="Bash", tool_limit=seconds(120)), 0, WALL)
    one.watch(0, 1, 20)
    one.beat(Beat(state=State.WAITING, asks=" Bash 1", promises=False), 1, WALL)
    for at in range(10, 610, 10):
        one.watch(at - 10, at, 20)
    assert (one.tool_left, one.silence) == (seconds(119), seconds(599))
    one.beat(Beat(state=State.WORKING, promises=False), 600, WALL)
    one.watch(600, 610, 20)
    assert (one.tool_left, one.silence) == (seconds(109), seconds(0))


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
    restarted.state = State.WAITING
    assert not restarted.asks_itself


def test_only_who_says_it_of_its_work_has_finished() -> None:
    """P14: STOPPING=1 and a session's end tell of the process, which may be told to end in the middle of its work."""
    for beat, finished in (
        (Beat(state=State.DONE), True),
        (Beat(state=State.DONE, promises=False), False),
        (Beat(state=State.DONE, tool="", session_ended="s1"), False),
        (Beat(state=State.WORKING), False),
    ):
        agent = speaker()
        agent.beat(beat, 1.0, WALL)
        assert agent.finished is finished, beat
    agent.beat(Beat(state=State.DONE), 2.0, WALL)
    agent.beat(Beat(state=State.DONE, promises=False), 3.0, WALL)
    assert agent.finished, "what it says on its way out takes nothing back"
    agent.beat(Beat(), 4.0, WALL)
    assert not agent.finished, "it works again"


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
    one.state, one.inherited, one.promised = State.BLOCKED, True, True
    for at, word in enumerate(words):
        one.beat(word, at, WALL)
    assert one.state is state


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
        one.beat(word, mono, WALL, said)
    assert one.resting_on == rests_on


def test_a_word_that_is_heard_late_takes_back_nothing_that_was_said_since() -> None:
    """`run` kept that it works; that it rests its hook said to the daemon, as soon as that was there."""
    one = speaker()
    one.beat(Beat(state=State.IDLE, tool="", note="rests"), 10, WALL)
    late = one.beat(Beat(state=State.WORKING, tool="Bash", note="", silent_for=seconds(60)), 10.5, WALL, 5)
    assert (one.state, one.tool, one.note, one.promised) == (State.IDLE, None, "rests", True)
    assert (late.tool, one.lease_left) == (None, seconds(60))
    one.beat(Beat(), 10.6, WALL, 9.9)
    assert one.state is State.IDLE, "a plain beat of before as well"
    one.beat(Beat(), 11, WALL, 10.8)
    states = {one.state}
    assert states == {State.WORKING}


def test_as_many_threads_as_are_named_are_kept_in_order_and_no_more() -> None:
    """Their names are the agent's words."""
    one = speaker()
    for number in range(2000):
        one.beat(thread(str(number), number % 2 == 0), number / 100, WALL)
    assert max(map(len, (one.spoken, one.threads, one.unbegun))) <= 257


@pytest.mark.parametrize(("source", "hung"), [("run", ("b",)), ("register", ())])
def test_after_a_restart_the_end_of_one_of_two_subagents_is_not_the_end_of_both(
    source: str, hung: tuple[str, ...]
) -> None:
    """The other one hung: never found. Where no `run` keeps what was said meanwhile, its end may be what was lost."""
    before = Heartbeat(Registration("a", "a", 0, "host", "boot", source=source), Policy())
    for name in ("a", "b"):
        before.beat(thread(name, True), 0, WALL)
    before.beat(Beat(state=State.IDLE), 1, WALL)
    after = Heartbeat(before.reg, Policy())
    after.promised, after.state = True, State.BLOCKED
    after.goes_on_with(before.resting_on)
    after.beat(thread("a", False), 2, WALL)
    assert (after.state, after.resting_on, after.rests_on) == (State.IDLE, hung, bool(hung))


def test_after_a_restart_a_subagent_that_speaks_goes_on() -> None:
    """Its tool call says so, also where nothing was kept of it."""
    one = speaker()
    one.promised, one.state = True, State.BLOCKED
    one.goes_on_with(())
    one.beat(thread("b", tool="Bash"), 1, WALL)
    one.beat(thread("a", False), 2, WALL)
    assert (one.state, one.resting_on) == (State.BLOCKED, ("b",))
    one.beat(thread("b", False), 3, WALL)
    assert (one.state, one.resting_on) == (State.IDLE, ())


def test_after_a_restart_the_word_that_its_prompt_is_idle_does_not_end_what_goes_on() -> None:
    """Claude Code takes an MCP call of two minutes to the background; a minute later it says that its prompt is idle.

    With a restart in between that was the word of one that rests: its call hung, and nobody was told.
    """
    before = Heartbeat(Registration("a", "a", 0, "host", "boot", source="run"), Policy())
    before.beat(Beat(state=State.IDLE, tool="", goes_on=True), 0, WALL)
    after = Heartbeat(before.reg, Policy())
    after.promised, after.state = True, State.BLOCKED
    after.goes_on_with(before.resting_on)
    after.beat(Beat(state=State.IDLE, tool=""), 60, WALL)
    assert (after.rests_on, after.excused) == (True, True)
    after.silence = Policy().wait_limit
    assert not after.excused
