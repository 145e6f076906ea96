"""next_step(): the order of a kill, and that it always ends."""

from dataclasses import dataclass, replace
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog.core.agent import Policy
from watchdog.core.kill import Polite, Step
from watchdog.core.ladder import (
    EMPTY_IN_A_ROW,
    END_PHASE,
    OUTRUN,
    RESEND,
    STOP_LIMIT,
    LadderState,
    Looks,
    Move,
    Next,
    acted,
    next_rung,
    next_step,
    parents_first,
    with_grace,
)

KILL = LadderState(started=100.0, grace=timedelta(seconds=10), verify=timedelta(seconds=60), rest_alive=3, running=4)
LOOKED = replace(KILL, fresh=True)
TERMED = replace(KILL, main_termed=True, rest_termed=True)
END = replace(LOOKED, killing_since=110.0, round_since=110.0)
ASKED = replace(TERMED, main_in_grace=True, rest_in_grace=True, first=100.0)
LATE = replace(ASKED, rest_termed=False)  # a process is found that got no TERM
GONE = replace(KILL, main_alive=False, rest_alive=0, running=0)


@pytest.mark.parametrize(
    ("kill", "now", "expected"),
    [
        (KILL, 100, Next(Move.TERM_MAIN)),
        (replace(KILL, main_termed=True), 100, Next(Move.WAIT, 105)),
        (replace(KILL, main_termed=True), 105, Next(Move.LOOK)),
        (replace(LOOKED, main_termed=True), 105, Next(Move.TERM_REST)),
        (replace(KILL, main_termed=True, main_alive=False), 101, Next(Move.LOOK)),
        (replace(LOOKED, main_termed=True, main_alive=False), 101, Next(Move.TERM_REST)),
        (TERMED, 106, Next(Move.WAIT, 110)),
        (replace(TERMED, rest_alive=0), 101, Next(Move.WAIT, 110)),
        (replace(LOOKED, polite=Polite.ALL), 100, Next(Move.TERM_ALL)),
        (replace(KILL, polite=Polite.ALL), 100, Next(Move.LOOK)),
        (replace(TERMED, polite=Polite.ALL), 100, Next(Move.WAIT, 110)),
        # the end phase: scan, stop, scan until nothing new runs, KILL
        (TERMED, 110, Next(Move.LOOK)),
        (replace(TERMED, fresh=True), 110, Next(Move.STOP)),
        (replace(END, fresh=False), 110, Next(Move.LOOK)),
        (replace(END, running=1), 110, Next(Move.STOP)),
        (replace(END, running=0), 110, Next(Move.KILL)),
        (replace(END, running=9), 110 + STOP_LIMIT, Next(Move.KILL)),
        (replace(LOOKED, force=True), 100, Next(Move.STOP)),
        (replace(LOOKED, grace=timedelta()), 100, Next(Move.STOP)),
        (replace(END, killed_until=110.2, round_since=None), 110.1, Next(Move.WAIT, 110.2)),
        (replace(END, killed_until=110.2, round_since=None), 110.2, Next(Move.STOP)),
        (replace(END, killed_until=170.1), 170, Next(Move.WAIT, 170.1)),  # its effect is observed first
        (replace(END, killed_until=170.1), 170.1, Next(Move.GIVE_UP)),
        (replace(END, fresh=False), 900, Next(Move.LOOK)),  # a scan took longer than `verify`
        (replace(END, running=0), 900, Next(Move.KILL)),
        # with a cgroup of its own: first a scan that shows whether it holds another process
        (replace(END, freezable=True, fresh=False), 110, Next(Move.LOOK)),
        (replace(END, freezable=True), 110, Next(Move.FREEZE)),
        (replace(END, freezable=True, running=0), 110, Next(Move.FREEZE)),
        (replace(LOOKED, freezable=True), 100, Next(Move.TERM_MAIN)),
        # a daemon that comes too late has sent no TERM yet: it is sent, and the grace counts from there
        (KILL, 900, Next(Move.TERM_MAIN)),
        (replace(LOOKED, polite=Polite.ALL), 900, Next(Move.TERM_ALL)),
        (replace(KILL, polite=Polite.ALL), 900, Next(Move.LOOK)),
        (replace(LOOKED, main_termed=True, main_in_grace=True), 900, Next(Move.TERM_REST)),
        (replace(LOOKED, main_termed=True, main_in_grace=True, rest_in_grace=True), 110, Next(Move.STOP)),
        (replace(LOOKED, main_in_grace=True, rest_in_grace=True), 110, Next(Move.STOP)),
        (replace(LOOKED, grace=timedelta()), 900, Next(Move.STOP)),
        (replace(LOOKED, main_alive=False, rest_termed=True), 900, Next(Move.STOP)),
        # each has a full grace: the main process from 100, the rest from 105
        (replace(ASKED, started=105.0), 106, Next(Move.WAIT, 110)),
        (replace(ASKED, started=105.0), 110, Next(Move.LOOK)),
        (replace(ASKED, started=105.0, fresh=True), 110, Next(Move.WAIT, 115)),
        (replace(ASKED, started=105.0, fresh=True), 115, Next(Move.STOP)),
        # at the end of the first grace new processes get TERM, and a full grace too; once
        (LATE, 110, Next(Move.LOOK)),
        (replace(LATE, fresh=True), 110, Next(Move.TERM_REST)),
        (replace(LATE, fresh=True, polite=Polite.ALL), 110, Next(Move.TERM_ALL)),
        (replace(LATE, fresh=True, main_alive=False), 104, Next(Move.TERM_REST)),
        (replace(ASKED, started=110.0, late_in_grace=True), 111, Next(Move.WAIT, 120)),
        (replace(ASKED, started=110.0, late_in_grace=True), 120, Next(Move.LOOK)),
        (replace(LATE, started=110.0, late_in_grace=True, fresh=True), 120, Next(Move.STOP)),
        (GONE, 100, Next(Move.LOOK)),
        (replace(GONE, fresh=True), 100, Next(Move.LOOK)),
        (replace(GONE, stable=True), 100, Next(Move.VERIFIED)),
        (replace(GONE, stable=True, killing_since=0.0), 900, Next(Move.VERIFIED)),
    ],
)
def test_each_state_has_its_next_step(kill: LadderState, now: float, expected: Next) -> None:
    """TERM to main, to the rest at half of the grace or when main has exited; at its end stop, KILL, scan again."""
    assert expected == next_step(kill, now)


@pytest.mark.parametrize(
    ("kill", "move", "now", "began", "rest_in_grace"),
    [
        (KILL, Move.TERM_MAIN, 101, 101, False),
        (KILL, Move.TERM_MAIN, 130, 130, False),
        (KILL, Move.TERM_ALL, 130, 130, True),
        (replace(KILL, main_in_grace=True), Move.TERM_MAIN, 130, 100, False),
        (replace(KILL, main_in_grace=True, first=100.0), Move.TERM_REST, 106, 106, True),
        (replace(KILL, main_in_grace=True, first=100.0), Move.TERM_REST, 130, 130, True),
        (replace(KILL, main_in_grace=True, first=100.0), Move.TERM_ALL, 130, 130, True),
        # processes found later: while the first grace runs, and at its end
        (replace(ASKED, started=105.0), Move.TERM_REST, 108, 108, True),
        (replace(ASKED, started=105.0), Move.TERM_REST, 110, 110, True),
        (ASKED, Move.TERM_ALL, 130, 130, True),
        (replace(ASKED, started=110.0, late_in_grace=True), Move.TERM_REST, 115, 110, True),
        (KILL, Move.WAIT, 103, 100, False),
        (TERMED, Move.WAIT, 106, 100, True),
        (replace(KILL, rest_alive=0), Move.WAIT, 101, 100, True),
    ],
)
def test_a_grace_counts_from_the_term_that_went_out(
    kill: LadderState, move: Move, now: float, began: float, rest_in_grace: bool
) -> None:
    """Each process has a full one; a tree that keeps forking has two in all."""
    after = with_grace(kill, move, now)
    assert (after.started, after.rest_in_grace) == (began, rest_in_grace)


@given(
    st.builds(
        replace,
        st.just(KILL),
        main_alive=st.booleans(),
        rest_alive=st.integers(0, 5),
        fresh=st.booleans(),
        stable=st.booleans(),
        running=st.integers(0, 5),
        freezable=st.booleans(),
        main_termed=st.booleans(),
        rest_termed=st.booleans(),
        main_in_grace=st.booleans(),
        rest_in_grace=st.booleans(),
        force=st.booleans(),
        polite=st.sampled_from(Polite),
        killing_since=st.none() | st.floats(100, 200),
        round_since=st.none() | st.floats(100, 200),
    ),
    st.floats(100, 400),
)
def test_verified_means_no_process_is_left(kill: LadderState, now: float) -> None:
    """VERIFIED only after a scan that found nothing alive and nothing new; the end phase only after the grace, or
    force.

    KILL is sent while a known process still runs only if stopping has taken too long.
    """
    step = next_step(kill, now)

    if step.move is Move.VERIFIED:
        assert not kill.main_alive
        assert kill.rest_alive == 0
        assert kill.stable
    if step.move in END_PHASE:
        assert kill.fresh
        assert kill.killing_since is not None or kill.force or now >= 110
    if step.move is Move.KILL and kill.running:
        assert kill.round_since is not None and now >= kill.round_since + STOP_LIMIT
    if step.move is Move.WAIT:
        assert step.until > now


@dataclass
class Process:
    """One process of a simulated tree."""

    known: bool = False
    alive: bool = True
    termed: bool = False
    stopped: bool = False
    deaf: bool = True


class Bomb:
    """A tree that forks at will: running processes may fork between any two moves, stopped ones may not."""

    def __init__(self, size: int, forks: list[int], room: int) -> None:
        self.all = [Process(known=True) for _ in range(size)]
        self.forks = iter(forks)
        self.room = room
        self.fresh, self.stable = True, False

    def fork(self) -> None:
        running = sum(p.alive and not p.stopped for p in self.all)
        for _ in range(min(next(self.forks, 0), running, self.room - len(self.alive()))):
            self.all.append(Process())

    def alive(self) -> list[Process]:
        return [p for p in self.all if p.alive]

    def known(self) -> list[Process]:
        return [p for p in self.alive() if p.known]


@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 6), max_size=60),
    st.integers(5, 40),
    st.sampled_from(Polite),
    st.booleans(),
)
def test_a_tree_that_forks_while_it_is_killed_leaves_no_process(
    size: int, forks: list[int], room: int, polite: Polite, force: bool
) -> None:
    """In bounded time all are dead, including processes that were never known; none stays stopped."""
    tree, now = Bomb(size, forks, room), 100.0
    kill = replace(KILL, polite=polite, force=force)
    for _ in range(1_000):
        known = tree.known()
        kill = replace(
            kill,
            main_alive=tree.all[0].alive,
            rest_alive=sum(p is not tree.all[0] for p in known),
            main_termed=tree.all[0].termed,
            rest_termed=all(p.termed for p in known if p is not tree.all[0]),
            running=sum(not p.stopped for p in known),
        )
        step = next_step(kill, now)
        match step.move:
            case Move.VERIFIED:
                assert not tree.alive()
                return
            case Move.LOOK:
                lived, new = bool(known), [p for p in tree.alive() if not p.known]
                for process in new:
                    process.known = True
                kill = replace(kill, fresh=True, stable=not lived and not new)
            case Move.TERM_MAIN | Move.TERM_REST | Move.TERM_ALL:
                for process in known:
                    process.termed |= step.move is Move.TERM_ALL or (process is tree.all[0]) is (
                        step.move is Move.TERM_MAIN
                    )
                kill = replace(with_grace(kill, step.move, now), fresh=False)
            case Move.STOP:
                for process in known:
                    process.stopped = True
                since = kill.killing_since or now
                kill = replace(kill, fresh=False, killing_since=since, round_since=kill.round_since or now)
            case Move.KILL:
                assert all(p.stopped for p in known) or now >= (kill.round_since or now) + STOP_LIMIT
                for process in known:
                    process.alive = False
                since = kill.killing_since or now
                kill = replace(kill, fresh=False, killing_since=since, round_since=None, killed_until=now + 0.2)
            case Move.WAIT:
                kill, now = with_grace(kill, step.move, now), step.until
            case _:
                pytest.fail(f"it has no cgroup: {step}")
        now += 0.05
        tree.fork()
    pytest.fail("the kill never ended")


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.sampled_from(Polite), st.booleans())
def test_every_kill_comes_to_an_end(deaths: list[int], polite: Polite, freezable: bool) -> None:
    """Whatever dies when, the worker reaches VERIFIED or GIVE_UP in bounded time, and never waits without a reason."""
    kill, now, dying = replace(KILL, polite=polite, freezable=freezable), 100.0, iter(deaths)
    for _ in range(10_000):
        step = next_step(kill, now)
        acted = replace(with_grace(kill, step.move, now), fresh=False, stable=False)
        match step.move:
            case Move.VERIFIED | Move.GIVE_UP:
                assert now <= 100 + 2 * 10 + 60 + 1
                return
            case Move.TERM_MAIN:
                kill = replace(acted, main_termed=True)
            case Move.TERM_REST:
                kill = replace(acted, rest_termed=True)
            case Move.TERM_ALL:
                kill = replace(acted, main_termed=True, rest_termed=True)
            case Move.FREEZE | Move.STOP:
                kill = replace(
                    acted,
                    killing_since=kill.killing_since or now,
                    round_since=kill.round_since or now,
                    freezable=False,
                    running=0,
                )
            case Move.KILL:
                kill = replace(acted, killing_since=kill.killing_since or now, killed_until=now + 0.2)
            case Move.LOOK:
                kill = replace(kill, fresh=True, stable=not (kill.main_alive or kill.rest_alive))
            case Move.WAIT:
                kill, fallen = with_grace(kill, step.move, now), next(dying, 0)
                if fallen:
                    now = min(step.until, now + 0.01)
                    kill = replace(
                        kill, main_alive=kill.main_alive and fallen < 2, rest_alive=max(0, kill.rest_alive - fallen)
                    )
                else:
                    now = step.until
    pytest.fail("the kill never ended")


@dataclass(frozen=True)
class Child:
    """A process and its parent."""

    pid: int
    parent_pid: int


@given(st.lists(st.tuples(st.integers(2, 12), st.integers(1, 12)), max_size=20, unique_by=lambda pair: pair[0]))
def test_a_process_that_could_restart_another_comes_before_it(pairs: list[tuple[int, int]]) -> None:
    """Parents before their children; a cycle of parents (reused pids) loses no process."""
    tree = [Child(*pair) for pair in pairs]
    order = parents_first(tree)

    assert sorted(order, key=lambda c: c.pid) == sorted(tree, key=lambda c: c.pid)
    places = {child.pid: place for place, child in enumerate(order)}
    parents = {child.pid: child.parent_pid for child in tree}
    for child in tree:
        above, line = child.parent_pid, {child.pid}
        while above in parents and above not in line:
            line.add(above)
            above = parents[above]
        if above not in line and child.parent_pid in places:  # not below a cycle
            assert places[child.parent_pid] < places[child.pid]


LADDER = (Step.WARN, Step.NUDGE, Step.STOP, Step.KILL)


@pytest.mark.parametrize(
    ("ladder", "reached", "waited", "next_"),
    [
        (LADDER, None, 0, Step.WARN),
        (LADDER, Step.WARN, 59, None),
        (LADDER, Step.WARN, 60, Step.NUDGE),
        (LADDER, Step.NUDGE, 60, Step.STOP),
        (LADDER, Step.STOP, 60, Step.KILL),
        ((Step.KILL,), None, 0, Step.KILL),
        ((Step.WARN, Step.KILL), Step.WARN, 60, Step.KILL),
        ((Step.WARN,), Step.WARN, 9999, None),
        ((Step.STOP,), Step.STOP, 9999, None),
        ((Step.STOP, Step.KILL), Step.NUDGE, 60, Step.STOP),  # after a change of the configuration
    ],
)
def test_each_step_comes_when_the_one_before_it_had_its_time(
    ladder: tuple[Step, ...], reached: Step | None, waited: int, next_: Step | None
) -> None:
    """From the policy's first step to its last, each once."""
    assert next_rung(Policy(ladder=ladder), reached, timedelta(seconds=waited)) is next_


def test_after_a_signal_nothing_that_was_seen_is_fresh_and_the_end_phase_begins_once() -> None:
    """Each KILL ends its round; a wait changes nothing that was seen."""
    seen = replace(KILL, fresh=True, stable=True)
    assert not acted(seen, Move.TERM_MAIN, 100).fresh and acted(seen, Move.TERM_MAIN, 100).main_in_grace
    assert acted(seen, Move.WAIT, 100).stable
    frozen = acted(seen, Move.FREEZE, 110)
    assert (frozen.fresh, frozen.stable, frozen.killing_since, frozen.round_since) == (False, False, 110, 110)
    stopped = acted(frozen, Move.STOP, 111)
    assert (stopped.killing_since, stopped.round_since) == (110, 110)
    killed = acted(stopped, Move.KILL, 112)
    assert (killed.killing_since, killed.round_since, killed.killed_until) == (110, None, 112 + RESEND)


# -- what proves a tree dead; case Q9: a relay of processes, each of which starts the next and ends


def looks(*found_by_each: str) -> Looks:
    """Scans: `n` found a new process, `a` a known one alive, `-` nothing; with `~` incomplete, with `?` one was
    lost.
    """
    found = Looks()
    for look in found_by_each:
        found = found.after(new=look == "n", alive=look == "a", whole=look != "~", lost=look == "?")
    return found


def test_one_empty_scan_is_proof_for_a_tree_that_starts_nothing() -> None:
    """The normal case: the first scan finds all processes new and alive."""
    assert looks("n", "a", "-").prove
    assert looks("-").prove
    assert looks("n", "~").prove
    assert not looks("n", "a").prove


def test_one_empty_scan_after_new_processes_were_found_is_no_proof() -> None:
    """Several in a row are; if scans are incomplete, more of them."""
    relay = ("n", "n", "-", "n", "-")
    assert not looks(*relay).prove
    assert looks(*relay, *["-"] * (EMPTY_IN_A_ROW - 1)).prove
    assert not looks(*relay, *["~"] * 5).prove
    assert looks(*relay, *["~"] * 3 * EMPTY_IN_A_ROW).prove


def test_a_scan_that_lost_a_process_is_no_proof_even_if_none_was_new_before() -> None:
    """Seen at a load of 25: the first scan found only the main process and missed its relay."""
    assert not looks("n", "?").prove
    assert not looks("n", "?", "-", "-").prove
    assert looks("n", "?", "-", "-", "-").prove
    assert looks("n", *["?"] * 3 * EMPTY_IN_A_ROW).prove


def test_those_that_replace_themselves_count_as_alive() -> None:
    """Otherwise it would scan for ever and send nothing."""
    assert not looks("n", *["n"] * OUTRUN).outrun
    assert looks("n", *["n"] * (OUTRUN + 1)).outrun
    assert looks("n", *["n", "-"] * (OUTRUN + 1)).outrun
    assert not looks("n", *["n"] * (OUTRUN + 1), "a").outrun


def test_processes_that_replaced_themselves_until_they_were_killed_are_dead() -> None:
    """Seen on a busy host: all were killed at once, so no scan found one alive, and `outrun` stayed True for ever."""
    relay = ("n", *["n"] * (OUTRUN + 1))
    assert looks(*relay, "-", "-").outrun
    killed = looks(*relay, *["-"] * EMPTY_IN_A_ROW)
    assert (killed.prove, killed.outrun) == (True, False)
