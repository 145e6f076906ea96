"""Keys go into the pane that a process sits in, and into no other: a real tmux server of our own."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.owner.terminals.conftest import Pane, coupled, in_the_background, scrolled
from tests.owner.tmux_servers import child_of
from tests.world import started_at, wait_for
from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals.pane_content import pane_shows
from watchdog.owner.terminals.panes import type_keys

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


ODD = "~ 'a' \\n \"$HOME\" #{pane_id} %1 #(date) %H é; {x} \\;"  # all of it means something to tmux


def refusal(pid: int, ticks: int, keys: list[str]) -> str:
    with pytest.raises(OwnerCallFailed) as caught:
        type_keys(pid, ticks, keys)
    return caught.value.reason


def test_a_line_is_typed_as_it_is(pane: Pane) -> None:
    """Text that tmux would take for keys or flags is text; `Enter` is the key."""
    pid, ticks = pane.agent()
    typed = type_keys(pid, ticks, ["-l C-c; go on, $HOME; ", "C-u", "Enter up", "Enter", ODD, "Enter"])
    assert typed == {"terminal": "tmux", "pane": pane.tmux("display-message", "-p", "#{pane_id}")}
    wait_for(lambda: len(pane.lines()) == 2 or None, "two lines")
    assert pane.lines() == ["Enter up", ODD]


def test_a_program_that_ends_by_the_first_key_is_not_said_to_have_got_none(pane: Pane) -> None:
    """Codex at an empty prompt ends by its first Ctrl-C; `stop` said that its keys were not typed."""
    pid, ticks = pane.agent()
    assert type_keys(pid, ticks, ["C-c", "x", "C-u"])["terminal"] == "tmux"
    wait_for(lambda: started_at(pid) is None or None, "it has ended")


def test_nothing_is_typed_where_somebody_types(pane: Pane, tmp_path: Path) -> None:
    """He may be within a line, which Enter would send."""
    pid, ticks = pane.agent()
    keyboard, terminal = os.openpty()
    argv, environ = ["tmux", "-S", pane.socket, "attach-session"], {**os.environ, "TERM": "xterm", "TMUX": ""}
    person = subprocess.Popen(argv, stdin=terminal, stdout=terminal, stderr=terminal, env=environ)
    try:
        wait_for(lambda: pane.tmux("list-clients"), "he is there")
        os.write(keyboard, b"do not")
        wait_for(lambda: "do not" in pane.tmux("capture-pane", "-p"), "his words are there")
        assert refusal(pid, ticks, ["x", "Enter"]) == "left"
    finally:
        person.kill()
        person.wait()
        os.close(keyboard)
        os.close(terminal)
    assert pane.lines() == []


@pytest.mark.parametrize("use", [scrolled, coupled, in_the_background])
def test_a_pane_in_another_use_is_left_alone(pane: Pane, use: Callable[[Pane, int], None]) -> None:
    """Somebody reads in it, it is coupled with others, or its shell has the foreground: nothing is typed."""
    pid, ticks = pane.agent()
    use(pane, pid)
    before = pane.tmux("capture-pane", "-p")
    assert refusal(pid, ticks, ["x", "Enter"]) == "left"
    time.sleep(0.1)  # a key that was typed all the same would show by then
    assert pane.tmux("capture-pane", "-p") == before
    assert pane.lines() == []


def test_nothing_is_typed_below_a_question(pane: Pane) -> None:
    """Enter would say yes to it, also where nobody was told of the prompt."""
    pid, ticks = pane.agent()
    pane.tmux("send-keys", "-l", "Overwrite it? [y/N] ")
    wait_for(lambda: "[y/N]" in pane.tmux("capture-pane", "-p") or None, "the question")
    assert refusal(pid, ticks, ["go on", "Enter"]) == "asks"
    assert pane.lines() == []


def test_who_only_carries_the_variables_of_a_pane_does_not_sit_in_it(pane: Pane) -> None:
    """Started from the pane without its terminal, or after the server that is named has gone for another."""
    pane.agent()
    pane.shell("x")  # for the reader
    variables = {"TMUX": f"{pane.socket},{pane.tmux('display-message', '-p', '#{pid}')},0", "TMUX_PANE": "%0"}
    for changed in ({}, {"TMUX": f"{pane.socket},1,0"}, {"TMUX_PANE": "%7"}, {"TMUX": ""}):
        sleeper = subprocess.Popen(["sleep", "60"], env=variables | changed, start_new_session=True)
        try:
            ticks = int(started_at(sleeper.pid) or 0)
            assert refusal(sleeper.pid, ticks, ["y"]) in ("no_pane", "tmux"), changed
        finally:
            sleeper.kill()
            sleeper.wait()


def test_a_pid_that_passed_on_gets_no_keys(pane: Pane) -> None:
    """Another start tick: another process."""
    pid, ticks = pane.agent()
    assert refusal(pid, ticks + 1, ["x"]) == "left"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
def test_another_users_server_is_not_spoken_to(pane: Pane) -> None:
    """The owner's helper speaks to its own uid's server, whatever a process of its says."""
    os.chown(pane.socket, 61001, 61001)
    pid, ticks = pane.agent()
    assert refusal(pid, ticks, ["x"]) == "no_pane"


def test_a_draft_is_cleared_before_the_exit_keys(pane: Pane) -> None:
    """By the program's own key; else the draft would be sent with them behind it."""
    pid, ticks = pane.vendor()
    pane.draft("rm -rf build but wait")
    assert type_keys(pid, ticks, ["/exit", "Enter"], clear=True)["terminal"] == "tmux"
    wait_for(lambda: pane.lines() or None, "it read them")
    assert pane.lines() == ["/exit"]


def test_an_empty_prompt_gets_its_keys_at_once(pane: Pane) -> None:
    """The key that clears a draft ends some programs at an empty prompt."""
    pid, ticks = pane.vendor("stubborn")
    type_keys(pid, ticks, ["go on", "Enter"])
    wait_for(lambda: pane.lines() == ["go on"] or None, "it read them")


@pytest.mark.parametrize(("mode", "clear"), [("", False), ("stubborn", True)])
def test_behind_a_draft_that_stays_nothing_is_typed(pane: Pane, mode: str, clear: bool) -> None:
    """A nudge leaves it; and what the program's key does not clear is not sent either."""
    pid, ticks = pane.vendor(mode)
    pane.draft("half a draft")
    with pytest.raises(OwnerCallFailed) as caught:
        type_keys(pid, ticks, ["/exit", "Enter"], clear=clear)
    assert caught.value.reason == "draft"
    assert "half a draft" in pane.tmux("capture-pane", "-p")
    assert pane.lines() == []


def test_a_first_screen_gets_no_keys(pane: Pane) -> None:
    """Its choices have no numbers; Enter would take one of them."""
    pid, ticks = pane.vendor("dialog")
    assert refusal(pid, ticks, ["/exit", "Enter"]) == "asks"
    assert pane_shows(pid, ticks)["asks"] == "a prompt like Claude Code's"
    assert pane.lines() == []


def test_a_program_that_shows_no_prompt_of_its_own_gets_no_keys(pane: Pane) -> None:
    """`claude -p` in a pane reads none; nor is it known what another screen of it would do with them."""
    pane.shell("bash -c 'exec -a claude sleep 1000'")
    pid = child_of(int(pane.tmux("display-message", "-p", "#{pane_pid}")))
    assert refusal(pid, int(started_at(pid) or 0), ["/exit", "Enter"]) == "no_prompt"
