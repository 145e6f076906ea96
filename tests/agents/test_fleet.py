"""Silence is watched, not computed; names and targets find exactly who is meant."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from watchdog.agents.fleet import Agent, Fleet
from watchdog.core.agent import Beat, Policy, Registration, State, Status, Verdict
from watchdog.core.observed_activity import ActivityKind
from watchdog.core.process import Identity, Listed, Presence, TreeMember
from watchdog.core.sessions import SESSION
from watchdog.core.verdict import Judgement, judge
from watchdog.errors import Conflict

WALL = datetime(2030, 1, 1, tzinfo=UTC)
S = timedelta(seconds=1)


def agent(agent_id: str = "a" * 32, name: str = "alpha", uid: int = 1000, **rest: object) -> Agent:
    return Agent(Registration(agent_id, name, uid, "host", "boot", **rest), Policy(), Status.RUNNING)  # type: ignore[arg-type]


def test_a_tool_that_runs_is_told_without_secrets() -> None:
    """Whoever declares it may put the whole command into its name; the verdict's line goes into log and history."""
    one = agent()
    one.beat(Beat(tool="Bash: curl -u token=hunter2", tool_limit=60 * S), 0, WALL)
    line = judge(one.observe(Presence.ALIVE, 1, 10), one.policy).line
    assert line.startswith("running tool Bash: curl -u token=***: ")


def test_every_process_of_every_other_agent_is_protected_as_of_now() -> None:
    """Whatever was asked before: one came, got another tree or process, or went. What two have is the other's, too."""

    def process(pid: int) -> Identity:
        return Identity("host", "boot", pid, 7)

    def tree(*pids: int) -> tuple[TreeMember, ...]:
        return tuple(TreeMember(process(pid), 1, 1000, "sleep", "S", "marker") for pid in pids)

    fleet, one, other = Fleet(), agent("a" * 32), agent("b" * 32, "beta", identity=process(20))

    def protected() -> set[int]:
        return {pid for pid, _ in fleet.processes_but("a" * 32)}

    fleet.add(one)
    one.members = tree(10, 11)
    assert protected() == set()
    fleet.add(other)
    assert protected() == {20}
    other.members = tree(20, 21, 11)
    assert protected() == {20, 21, 11}
    one.members = tree(10)
    other.members = tree(20, 22)
    assert protected() == {20, 22}
    other.identify(process(30), 1000)
    assert protected() == {20, 22, 30}
    fleet.drop("b" * 32)
    assert protected() == set()
    assert {pid for pid, _ in fleet.processes_but("nobody")} == {10}


def test_a_shared_service_is_never_signalled_with_an_agent() -> None:
    """Nor with the one in whose tree an older version recorded it; as an agent's main process it is that agent's."""
    server = Identity("host", "boot", 70, 7)
    entry = Listed(kind=SESSION, path="codex app-server", key="s-1", token="7", also=(server,))
    fleet, one = Fleet(), agent("a" * 32)
    one.members = (TreeMember(server, 1, 1000, "codex", "S", "marker"),)
    fleet.add(one)
    fleet.add(agent("b" * 32, "beta", entries=(entry,)))
    assert fleet.guard(one, "host").protected == {(70, 7)}
    one.listed((entry,))  # its own session lives there, too
    assert fleet.guard(one, "host").protected == {(70, 7)}
    one.identify(server, 1000)
    assert fleet.guard(one, "host").protected == set()


def test_a_beat_between_two_sweeps_leaves_only_the_time_since_it() -> None:
    """Beat at 7 of a sweep from 0 to 10: three seconds of silence."""
    one = agent()
    one.watch(0, 0, 20)
    one.beat(Beat(), 7, WALL)
    one.watch(0, 10, 20)

    assert one.silence == 3 * S
    assert one.age == 10 * S


def test_time_that_nobody_watched_is_not_silence() -> None:
    """A sweep that comes an hour late counts for two intervals at most."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.watch(0, 3600, 20)

    assert one.silence == 20 * S


def test_the_same_content_again_is_a_new_beat() -> None:
    """Case C15: identical words renew; nothing is compared."""
    one = agent()
    for second in (1, 2, 3):
        one.beat(Beat(state=State.WORKING, note="same"), second, WALL)

    assert one.beats == 3


def test_silence_begins_when_a_lease_ends() -> None:
    """A lease of 20 s, then 30 s of silence: stalled 30 s, not 50 s."""
    one = agent()
    one.beat(Beat(silent_for=20 * S), 0, WALL)
    for now in range(10, 60, 10):
        one.watch(now - 10, now, 20)

    assert one.silence == 30 * S
    assert timedelta() == one.lease_left


def test_a_plain_beat_does_not_end_a_lease_and_zero_does() -> None:
    """A child's library may beat during a long build; only the agent's word ends its lease."""
    one = agent()
    one.beat(Beat(silent_for=600 * S), 0, WALL)
    one.beat(Beat(), 5, WALL)
    assert one.lease_left == 600 * S

    one.beat(Beat(silent_for=timedelta()), 6, WALL)
    assert timedelta() == one.lease_left


def test_a_lease_of_ten_years_is_capped() -> None:
    """Leases, tools and an own limit are believed up to wait_limit."""
    one = agent()
    one.beat(
        Beat(silent_for=timedelta(days=3650), tool="make", tool_limit=timedelta(days=99), after=timedelta(days=9)),
        0,
        WALL,
    )

    assert {one.policy.wait_limit} == {one.lease_left, one.tool_left, one.after}


def test_words_that_promise_nothing_make_no_promise() -> None:
    """READY=1 once at start must not make a program stalled two minutes later."""
    one = agent()
    one.beat(Beat(promises=False), 0, WALL)

    assert not one.promised
    one.beat(Beat(), 1, WALL)
    assert one.promised


def test_its_own_rhythm_raises_a_limit_that_is_too_short() -> None:
    """Case C12: one beat a minute is never judged by a limit below two minutes."""
    slow = agent(interval=60 * S)
    slow.policy = Policy(after=5 * S)

    assert slow.after == 120 * S
    assert agent(stall_after=5 * S).after == 5 * S


def test_a_plain_beat_after_waiting_means_working() -> None:
    """Who says waiting and later only beats works again, and can stall again."""
    one = agent()
    one.beat(Beat(state=State.WAITING), 0, WALL)
    one.beat(Beat(), 1, WALL)

    assert one.state == State.WORKING


def test_looks_closer_than_an_interval_count_once() -> None:
    """An exit elsewhere makes a look come sooner; it must not confirm anybody's silence early."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.first_look = False
    one.silence = 500 * S
    verdicts = []
    for now in (100.0, 100.1, 104.0, 110.0):
        judgement = judge(one.observe(Presence.ALIVE, now, 10), one.policy)
        one.judged(judgement, now, 10)
        verdicts.append(judgement.verdict)

    assert verdicts == [Verdict.LATE, Verdict.LATE, Verdict.LATE, Verdict.STALLED]


def test_beats_whose_progress_stands_still_confirm_and_withdraw_nothing() -> None:
    """Case B5: a thread beats while the work loop is deadlocked; its beats must not save it. One step does."""
    one, verdicts, renewed = agent(), [], []
    one.first_look = False
    one.beat(Beat(progress=41), 0, WALL)
    for now in range(10, 1840, 10):
        one.watch(now - 10, now, 20)
        one.beat(Beat(progress=41), now, WALL)
        judgement = judge(one.observe(Presence.ALIVE, now, 10), one.policy)
        one.judged(judgement, now, 10)
        verdicts.append(judgement.verdict)
        renewed.append(one.renewed)

    assert verdicts[-5:] == [Verdict.HEALTHY, Verdict.LATE, *3 * [Verdict.STALLED]]
    assert renewed[-1] == renewed[-4] == one.renewed_judged
    one.beat(Beat(progress=42), 1840, WALL)
    assert one.renewed > one.renewed_judged
    assert judge(one.observe(Presence.ALIVE, 1840, 10), one.policy).verdict is Verdict.HEALTHY


@pytest.mark.parametrize(
    "word", [Beat(state=State.IDLE), Beat(silent_for=9999 * S), Beat(tool="x", tool_limit=9999 * S)]
)
def test_progress_stands_for_no_time_while_nothing_is_to_be_expected(word: Beat) -> None:
    """Idle over night, then a new order: the progress of yesterday is no stall."""
    one = agent()
    one.beat(Beat(progress=41), 0, WALL)
    one.beat(word, 1, WALL)
    for now in range(600):
        one.watch(10 * now + 1, 10 * now + 11, 20)
    one.beat(Beat(state=State.WORKING, silent_for=0 * S, tool="", progress=41), 6002, WALL)

    assert one.progress_age is not None
    assert one.progress_age < 30 * S
    assert not one.stuck


def healthy() -> Agent:
    """An agent that promised beats, has beaten, and was looked at."""
    one = agent(stall_after=120 * S)
    one.beat(Beat(), 0, WALL)
    one.watch(0, 10, 20)
    one.judged(judge(one.observe(Presence.ALIVE, 10, 10), one.policy), 10, 10)
    return one


def test_who_is_healthy_is_judged_anew_only_when_a_limit_is_reached() -> None:
    """Silent for 10 s of 120 s at a look: nothing can change for 110 s, and a beat makes that no shorter."""
    one, settled = healthy(), []
    for now in range(10, 120, 10):
        settled.append(one.settled)
        if now == 110:
            one.beat(Beat(), now, WALL)
            settled.append(one.settled)
        one.watch(now, now + 10, 20)

    assert settled == [True] * 12
    assert not one.settled, "then it is looked at again, whatever it said meanwhile"
    assert one.why == "silent for 10s of 2m"


@pytest.mark.parametrize(
    "word",
    [
        Beat(state=State.WAITING),
        Beat(silent_for=5 * S),
        Beat(tool="make", tool_limit=5 * S),
        Beat(after=20 * S),
        Beat(progress=0.5),
    ],
    ids=str,
)
def test_who_says_more_than_that_he_lives_is_judged_by_the_next_look(word: Beat) -> None:
    """A shorter limit among them."""
    one = healthy()
    one.beat(word, 11, WALL)

    assert not one.settled
    assert one.unsaved(10 * S)


def test_other_limits_and_a_file_that_cannot_be_read_ask_for_a_look() -> None:
    """Neither is a word of the agent."""
    for change in (lambda one: one.adopt(Policy(after=S)), Agent.unread_now):
        one = healthy()
        change(one)
        assert not one.settled


def test_no_word_switches_the_watch_off_for_ever() -> None:
    """Case B6: a wait until ten years ahead is cut to wait_limit, and told."""
    for word in (Beat(silent_for=10**8 * S), Beat(tool="x", tool_limit=10**8 * S), Beat(after=10**8 * S)):
        one = agent()
        one.beat(word, 0, WALL)
        assert max(one.lease_left, one.tool_left, one.after_said or 0 * S) == one.policy.wait_limit
        assert "6h is the limit" in one.asked_too_much


def test_who_has_yet_to_start_gets_one_fresh_limit_too() -> None:
    """His first heartbeat may have come while nobody was there; once, however often that happens."""
    one = Agent(agent().reg, Policy(after=timedelta(seconds=100)), Status.RUNNING, promised=True)
    one.watch(0.0, 290.0, 300.0)
    for _ in range(3):
        one.forgive()
    one.watch(290.0, 399.0, 300.0)
    assert not judge(one.observe(Presence.ALIVE, 399.0, 10.0), one.policy).overdue
    one.watch(399.0, 401.0, 300.0)
    one.forgive()
    assert judge(one.observe(Presence.ALIVE, 401.0, 10.0), one.policy).overdue


def test_who_may_not_have_been_heard_gets_one_fresh_limit_in_one_silence() -> None:
    """A gap after 100 s of silence: 120 s more; each further gap adds none, so that a stalled one is found."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.silence, one.late_looks = 100 * S, 1
    one.forgive()
    assert (one.counted, one.late_looks) == (0 * S, 0)
    for _ in range(20):
        one.silence += 100 * S
        one.forgive()
    assert one.forgiven == one.after
    one.late_looks = 1
    one.forgive()
    assert one.late_looks == 1, "nothing more is forgiven, so what was confirmed stays so"
    one.beat(Beat(), 0, WALL)
    assert one.counted == one.silence == 0 * S


def silent(one: Agent, *, unread: int = 0, read: int = 0) -> None:
    """So many seconds in which its file cannot be read, then so many in which it says nothing new."""
    if unread:
        one.unread_now()
        one.watch(0, unread, unread)
        one.read_again()
    one.watch(0, read, read)


def test_a_file_that_is_locked_now_and_then_keeps_no_stalled_one_alive() -> None:
    """The first time all of `after` is waited once more; then what was locked does not count, and the rest does."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.watch(0, 0, 1)
    silent(one, read=100)
    silent(one, unread=10)
    assert one.counted == 0 * S
    for _ in range(12):
        silent(one, read=10, unread=0)
        silent(one, unread=10)
    assert one.counted == one.after


def test_what_was_not_to_be_read_stays_forgiven_when_a_look_comes_late() -> None:
    """The disk was full for ten minutes; half a minute later the daemon was starved: that is no reason to end it."""
    one = agent()
    one.beat(Beat(), 0, WALL)
    one.watch(0, 0, 1)
    silent(one, unread=600, read=30)
    one.forgive()
    assert one.counted == 30 * S


def test_a_beat_each_second_stops_no_other_clock() -> None:
    """How long a state lasts and progress stands, and what is left of a lease and a tool, is not renewed by a beat."""
    prompt, builds, stuck = agent(), agent(), agent()
    prompt.beat(Beat(state=State.WAITING), 0, WALL)
    builds.beat(Beat(silent_for=600 * S, tool="make", tool_limit=500 * S), 0, WALL)
    stuck.beat(Beat(progress=41), 0, WALL)
    for second in range(1, 401):
        for one in (prompt, builds, stuck):
            if second % 10 == 0:
                one.watch(second - 10, second, 20)
            one.beat(Beat(state=one.state, progress=one.progress), second, WALL)

    assert (prompt.state_age, stuck.progress_age) == (400 * S, 400 * S)
    assert (builds.lease_left, builds.tool_left) == (200 * S, 100 * S)


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=60))
def test_silence_never_exceeds_what_was_watched(steps: list[tuple[float, bool]]) -> None:
    """Whatever the clock and the beats do: 0 ≤ silence ≤ time watched since the last beat, two intervals a sweep."""
    one, now, bound = agent(), 0.0, 0.0
    for step, beats in steps:
        if beats:
            one.beat(Beat(), now, WALL)
            bound = 0.0
        one.watch(now, now + step, 20)
        bound += min(step, 20)
        now += step

        assert timedelta() <= one.silence
        assert one.silence.total_seconds() <= bound + 0.001


def fleet(*agents: Agent) -> Fleet:
    made = Fleet()
    for one in agents:
        made.add(one)
    return made


def test_a_living_name_is_taken_for_its_owner_only() -> None:
    """Another owner may use the same name; the same owner may not."""
    one = fleet(agent())

    with pytest.raises(Conflict, match="a" * 32):
        one.refuse_taken("alpha", 1000)
    one.refuse_taken("alpha", 1001)


def test_what_others_say_is_told_five_times_of_each_kind() -> None:
    """Any number of different messages that are rejected, and of reasons of holds; ours are told beside them."""
    one = agent()
    assert sum(one.first_refusal(f"rejected {n}", "rejected ") for n in range(1000)) == 5
    assert sum(one.first(f"held operator {n}", "held operator ") for n in range(1000)) == 5
    assert [one.first("agent.late"), one.first("agent.late")] == [True, False]
    assert (len(one.said), len(one.refused)) == (6, 5)


def test_what_is_shown_of_an_agent_is_a_copy_of_now() -> None:
    """Its ages go on alone; a word counts at once where it makes the verdict better, time alone makes none worse."""
    known = agent(stall_after=60 * S)
    known.sights.see(ActivityKind.CPU, "cpu 50 %")
    known.judged(Judgement(Verdict.STARTING, "it promised a heartbeat and none has come yet: 2s of 5m"), 0.0, 10.0)

    shown = known.copy()
    shown.watch(0.0, 5.0, 20.0)
    assert (known.age, known.sights.seen[ActivityKind.CPU].age) == (0 * S, 0 * S)
    assert (shown.age, shown.sights.seen[ActivityKind.CPU].age) == (5 * S, 5 * S)
    shown.shown(Judgement(Verdict.LATE, "silent"), 5 * S)
    assert (shown.verdict, shown.why) == (known.verdict, f"{known.line} (5s ago)")

    known.beat(Beat(), 5.0, WALL)
    shown = known.copy()
    shown.shown(Judgement(Verdict.HEALTHY, "silent for 0s of 1m"), 5 * S)
    assert (shown.verdict, known.verdict) == (Verdict.HEALTHY, Verdict.STARTING)
    assert shown.why == "silent for 0s of 1m"
