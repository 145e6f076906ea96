"""Case Q9: what a scan says of processes each of which starts the next and ends: real ones, faster than it reads."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes.conftest import HOST, Family
from tests.world import wait_for
from watchdog.core.process import TreeMember
from watchdog.processes import identity, table, tree
from watchdog.processes.procfs import stat
from watchdog.processes.survey import Trees, survey
from watchdog.processes.table import scan
from watchdog.processes.tree import Root

RELAY = """
import os, sys, time
os.write(1, b"up\\n")
for number in range(100_000):
    time.sleep({rest})
    if os.fork() or os.path.exists({over!r}):
        os._exit(0)
    os.setsid()
"""
SCANS = 20


@pytest.mark.parametrize("rest", [0.0, 0.002, 0.02])
def test_a_scan_that_found_nobody_of_a_relay_says_that_it_may_have_missed_one(
    family: Family, rest: float, tmp_path: Path
) -> None:
    """Each in a session of its own, so its marks alone tell whose it is: found, or a look that is no proof."""
    over = tmp_path / "over"  # nobody can end a relay from outside: it ends itself
    code = RELAY.format(rest=rest, over=str(over))
    relay = family.start("python3", "-c", code, env={"AGENT_WATCHDOG_ID": "a-relay"}, session=True)
    assert family.line(relay) == "up"
    silent = []
    try:
        for number in range(SCANS):
            seen = scan(HOST, frozenset([os.getuid()]))
            found = [row for row in seen.rows.values() if row.marker == "a-relay"]
            if not found and seen.whole and not seen.lost:
                silent.append(number)
        end = scan(HOST, frozenset([os.getuid()]))
    finally:
        over.touch()
    assert not silent, (silent, len(end.rows), os.getloadavg())


ME, MARKED = os.getuid(), {"AGENT_WATCHDOG_ID": "a-relay"}


def look(*agents: str) -> Trees:
    """As a kill asks; by process 1, as what we start ourselves is nobody's."""
    return survey(HOST, [Root(agent_id, ME, None) for agent_id in agents], 1)[1]


@pytest.fixture
def link(family: Family, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """One of a relay is born when a scan has begun; what is given ends it."""
    born: list[subprocess.Popen[bytes]] = []
    listdir = os.listdir

    def begun(path: object = ".") -> list[str]:
        if not born:
            born.append(family.start("sleep", "1000", env={"AGENT_WATCHDOG_ID": "a-link"}, session=True))
            wait_for(lambda: stat(born[0].pid).state == "S", "it sleeps, and its program is loaded")
        return listdir(path)  # type: ignore[call-overload, no-any-return]

    def over() -> None:
        born[0].kill()
        born[0].wait()

    monkeypatch.setattr(os, "listdir", begun)
    return over


def test_whose_it_was_is_known_of_one_that_ended_before_all_lines_were_read(
    link: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found, and that it has passed on is told: such a look has found somebody, and proves nothing."""
    tick_is_over: Callable[[int], bool] = identity.tick_is_over

    def over(ticks: int) -> bool:
        link()
        return tick_is_over(ticks)

    monkeypatch.setattr(identity, "tick_is_over", over)
    trees = look("a-link")
    assert not trees["a-link"] and trees.passed == {"a-link"}


def test_one_that_has_ended_by_the_time_it_is_pinned_down_was_there(
    link: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Likewise; of whom no process was found nothing is told."""
    with_inodes = tree.with_inodes

    def pin(members: list[TreeMember]) -> tuple[TreeMember, ...]:
        link()
        return with_inodes(members)

    monkeypatch.setattr(tree, "with_inodes", pin)
    trees = look("a-link", "another")
    assert not trees["a-link"] and trees.passed == {"a-link"}


@pytest.mark.parametrize("rest", [0.002, 0.02])
def test_a_look_for_a_relay_finds_one_or_who_has_passed_on(family: Family, rest: float, tmp_path: Path) -> None:
    """None is silent, as above, also of those whose marks were read: by the whole of what a kill asks."""
    over = tmp_path / "over"
    relay = family.start("python3", "-c", RELAY.format(rest=rest, over=str(over)), env=MARKED, session=True)
    assert family.line(relay) == "up"
    silent, lost = [], 0
    try:
        for number in range(SCANS):
            trees = look("a-relay")
            found = bool(trees["a-relay"] or trees.passed)
            lost += not found and (trees.lost or not trees.whole)
            if not found and trees.whole and not trees.lost:
                silent.append(number)
    finally:
        over.touch()
    assert not silent, (silent, lost, os.getloadavg())


def test_a_look_during_which_numbers_began_anew_is_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of /proc goes up by number: who is born behind it is in none."""
    told = iter([32_767, 302])
    monkeypatch.setattr(table, "_last_number", lambda _: next(told))
    assert not scan(HOST, frozenset([ME])).whole


def test_the_last_number_is_known(family: Family) -> None:
    """Of the process that was born last; others are born meanwhile."""
    proc_fd = os.open("/proc", os.O_RDONLY)
    try:
        former = table._last_number(proc_fd)
        child = family.start("sleep", "1000").pid
        assert table._last_number(proc_fd) >= child or child < former
    finally:
        os.close(proc_fd)


def test_one_whose_marks_cannot_be_read_may_be_a_link(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody sleeps uninterruptibly for moments of a fork; who has only just begun was nowhere seen before."""
    child = family.start("sleep", "1000", session=True)

    def unreadable(pid: int, proc_fd: int) -> table.Marks:
        if pid == child.pid:
            raise OSError("in uninterruptible sleep and not seen before")
        return marks_of(pid, proc_fd)

    marks_of = table.marks_of
    monkeypatch.setattr(table, "marks_of", unreadable)
    seen = scan(HOST, frozenset([ME]))
    assert child.pid in seen.unreadable and seen.lost
