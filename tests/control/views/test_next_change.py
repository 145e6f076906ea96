"""What `why` says would change a verdict is what changes it, at the moment that it names."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.agents.state_of import put
from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.control.views.next_change import held_back, next_changes
from watchdog.core.agent import Policy, Registration, State, Status, Verdict
from watchdog.core.custody import DaemonProcess, Holder
from watchdog.core.observed_activity import ActivityKind
from watchdog.core.process import Identity, Presence
from watchdog.core.verdict import judge

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
HOUR = 60 * MINUTE
UNITS = {"s": SECOND, "m": MINUTE, "h": HOUR}


def agent(**state: Any) -> Agent:
    """One that beats, and is so silent that each further look confirms it."""
    identity = Identity("host", "boot", 4711, 1)
    one = Agent(Registration("a" * 32, "alpha", 1000, "host", "boot", identity=identity), Policy(), Status.RUNNING)
    put(one, promised=True, beats=1, late_looks=9, first_look=False)
    if state.pop("busy", False):
        one.sights.see(ActivityKind.LOG, "its log grew")
    put(one, **state)
    return one


def times_in(sentence: str) -> list[timedelta]:
    """Each duration in it, as `span` writes them."""
    found = re.findall(r"\bin ((?:\d+[hms])+)|\bwithin ((?:\d+[hms])+)|\bfor ((?:\d+[hms])+) more", sentence)
    words = ["".join(groups) for groups in found]
    return [sum((int(n) * UNITS[u] for n, u in re.findall(r"(\d+)([hms])", word)), timedelta()) for word in words]


def after(one: Agent, passed: timedelta) -> tuple[str, bool]:
    """Its verdict, and whether it failed to start, when nothing but that time has passed."""
    later = one.copy()
    silence, ages, seen = later.heartbeat.silence, later.heartbeat.ages, one.heartbeat.silence.hindrance
    silence.lasted, ages.age, ages.state_age = silence.lasted + passed, ages.age + passed, ages.state_age + passed
    halted = seen.halted + passed if seen.halt is not None else seen.halted
    unread = None if seen.unread is None else seen.unread + passed
    silence.hindrance = replace(seen, halted=halted, unread=unread)
    if one.heartbeat.ages.progress_age is not None:
        later.heartbeat.ages.progress_age = one.heartbeat.ages.progress_age + passed
    if one.sights.seen:  # seen again meanwhile
        later.sights.see(ActivityKind.LOG, "its log grew")
    found = judge(judging.observe(later, Presence.ALIVE, 0.0, 10.0), one.policy)
    return found.verdict.value, found.overdue


@pytest.mark.parametrize(
    "state",
    [
        {"silence": 30 * SECOND},
        {"silence": 10 * MINUTE, "busy": True},
        {"silence": SECOND, "progress": "1", "progress_age": 40 * MINUTE, "busy": True},
        {"beats": 0, "age": MINUTE, "silence": MINUTE},
        {"beats": 0, "age": 10 * MINUTE, "silence": 10 * MINUTE, "busy": True},
        {"beats": 0, "age": 10 * MINUTE, "silence": 10 * MINUTE, "channel_lost": True},
        {"silence": 10 * MINUTE, "channel_lost": True},
        {"silence": 10 * MINUTE, "halt": "a debugger (process 7) holds it", "halted": 8 * MINUTE},
        {"silence": 10 * MINUTE, "unread": 9 * MINUTE},
        {"silence": 10 * MINUTE, "state": State.BLOCKED, "state_age": 10 * MINUTE},
        {"silence": 10 * MINUTE, "state": State.IDLE, "state_age": 10 * MINUTE, "goes_on": 1},
        {"silence": SECOND, "state": State.DONE, "state_age": SECOND},
    ],
    ids=lambda state: "-".join(state),
)
def test_the_verdict_changes_when_it_says(state: dict[str, Any]) -> None:
    """P17: a limit that follows from two, or begins late, is named as what is left of it, and is as it says."""
    one = agent(**state)
    now = judge(judging.observe(one, Presence.ALIVE, 0.0, 10.0), one.policy)
    one.judged.verdict, one.judged.line = now.verdict, now.line
    sentence = next_changes(one, Holds(), datetime.now(UTC))[0]

    (left,) = times_in(sentence)
    assert timedelta() < left, sentence
    before = (now.verdict.value, now.overdue)
    assert after(one, left - SECOND) == before, sentence
    assert after(one, left + SECOND) != before, sentence


@pytest.mark.parametrize("gone", [False, True])
def test_what_another_daemon_watches_is_not_said_to_be_judged_here(gone: bool) -> None:
    """A1: `why` said "late in 17s, and stalled 1 look later" and `list` "silent for 2.7s of 20s", though neither is."""
    holder = Holder(DaemonProcess(0, 7, 1), "/run/agent-watchdog/control.sock", "b" * 32, "beta")
    one = agent(silence=30 * SECOND, elsewhere=holder)
    now = judge(judging.observe(one, Presence.ABSENT if gone else Presence.ALIVE, 0.0, 10.0), one.policy)
    one.judged.verdict, one.judged.line = now.verdict, now.line

    assert (judging.why(one) == f"watched by {holder}, not by this daemon") is not gone
    said = next_changes(one, Holds(), datetime.now(UTC))
    assert said[0].startswith(f"It is watched by {holder}, as beta.")
    assert "agent-watchdog --socket /run/agent-watchdog/control.sock kill beta" in said[1]
    assert not any(words in " ".join(said) for words in ("is late in", "stalled", "cleaned up next"))


@pytest.mark.parametrize(
    ("doomed", "spared", "words"),
    [
        (7.0, 12 * MINUTE, "kills no agent for silence at present, for this agent for 12m more at most: 4 of 4."),
        (7.0, -SECOND, "4 of 4. It has done so for this agent long enough."),
    ],
)
def test_a_kill_that_is_held_back_is_not_said_to_come(doomed: float, spared: timedelta, words: str) -> None:
    """A4: "it is stalled and killed" stood above "kills no agent for silence", with no limit, of a stalled one."""
    one = agent(silence=10 * MINUTE, verdict=Verdict.STALLED, kill_due_since=doomed)
    first, *rest = next_changes(one, Holds(), datetime.now(UTC), ["4 of 4"], spared=spared)
    assert ("is held back" in first) is (spared > timedelta())
    assert "Without one" not in first and words in rest[0]
    (only,) = next_changes(one, Holds(), datetime.now(UTC))
    assert only == "It is stalled and killed next. A heartbeat before the first signal withdraws the kill."


def test_a_list_says_whose_kill_is_held_back() -> None:
    """A4: the line of a stalled agent said nothing of it. Only where a kill is due, and for as long as it is held."""
    due = agent(verdict=Verdict.STALLED, kill_due_since=1.0)
    assert held_back(due, ["4 of 4"], None, 12 * MINUTE) == "4 of 4 (for 12m more at most)"
    assert held_back(due, [], "upgrade", 12 * MINUTE) == "all agents are held: upgrade"
    assert held_back(agent(verdict=Verdict.EXPIRED), ["4 of 4"], "upgrade", MINUTE) == "all agents are held: upgrade"
    for one, spared in ((due, timedelta()), (agent(verdict=Verdict.LATE), MINUTE)):
        assert held_back(one, ["4 of 4"], None, spared) is None
    assert (
        held_back(agent(verdict=Verdict.STALLED, kill_due_since=1.0, request_id="r"), ["4 of 4"], "x", MINUTE) is None
    )


def test_of_a_read_that_hangs_the_file_and_the_command_are_named() -> None:
    """A3: "its processes could not be looked at; that never means dead", "see the reason above", and no command."""
    one = agent(silence=10 * MINUTE, hangs="/proc/4711/stat")
    now = judge(judging.observe(one, Presence.UNKNOWN, 0.0, 10.0), one.policy)
    one.judged.verdict, one.judged.line = now.verdict, now.line
    assert judging.why(one) == "reading /proc/4711/stat hangs, so it counts neither as ended nor as silent"
    said = next_changes(one, Holds(), datetime.now(UTC))
    assert said[0].startswith("Once /proc/4711/stat can be read again")
    assert said[1].endswith("agent-watchdog kill alpha.")
