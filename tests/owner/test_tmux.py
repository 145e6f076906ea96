"""Keys go into the pane that a process sits in, and into no other: a real tmux server of our own."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.owner.tmux_servers import child_of
from tests.world import AGENTS, started_at, wait_for
from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals.pane_content import essence, first_prompt, pane_shows
from watchdog.owner.terminals.panes import type_keys

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
READER = (
    "import os, sys\nopen('pid', 'w').write(str(os.getpid()))\nfor line in sys.stdin: open('lines', 'a').write(line)"
)


ODD = "~ 'a' \\n \"$HOME\" #{pane_id} %1 #(date) %H é; {x} \\;"  # all of it means something to tmux


class Pane:
    """One tmux server with one session; its shell runs what a test types."""

    def __init__(self, directory: Path) -> None:
        self.dir, self.socket = directory, str(directory / "tmux")
        variables = {k: v for k, v in os.environ.items() if not k.startswith("TMUX")}
        variables |= {"PS1": "$ ", "ENV": "", "SHELL": "/bin/sh"}  # it starts commands by $SHELL; nobody's is nologin
        start = ["tmux", "-S", self.socket, "-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "/bin/sh"]
        subprocess.run(start, cwd=directory, env=variables, check=True, timeout=20)

    def tmux(self, *words: str) -> str:
        ran = subprocess.run(
            ["tmux", "-S", self.socket, *words], capture_output=True, text=True, check=True, timeout=20
        )
        return ran.stdout.strip()

    def shell(self, command: str) -> None:
        self.tmux("send-keys", "-l", command)
        self.tmux("send-keys", "Enter")

    def agent(self) -> tuple[int, int]:
        """An agent that writes down each line it reads: its pid and start ticks."""
        (self.dir / "reader.py").write_text(READER)
        self.shell(f"{sys.executable} reader.py")
        pid = wait_for(lambda: (self.dir / "pid").exists() and (self.dir / "pid").read_text(), "the agent runs")
        return int(str(pid)), int(started_at(int(str(pid))) or 0)

    def vendor(self, mode: str = "", vendor: str = "claude") -> tuple[int, int]:
        """What looks like a vendor's program, at its prompt: its pid and start ticks."""
        program = f"exec -a {vendor} {sys.executable} {AGENTS / 'prompting.py'} {mode}"
        self.shell(f"bash -c '{program}'")
        wait_for(
            lambda: "some words" in (shown := self.tmux("capture-pane", "-p")) or "❯ No" in shown or None, "it draws"
        )
        pid = int((self.dir / "pid").read_text())
        return pid, int(started_at(pid) or 0)

    def draft(self, words: str) -> None:
        """A person has written that, and not sent it."""
        self.tmux("send-keys", "-l", words)
        wait_for(lambda: words in self.tmux("capture-pane", "-p") or None, "it is shown")

    def lines(self) -> list[str]:
        path = self.dir / "lines"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def pane(tmp_path: Path) -> Iterator[Pane]:
    pane = Pane(tmp_path)
    try:
        yield pane
    finally:
        pane.tmux("kill-server")


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


def _scrolled(pane: Pane, pid: int) -> None:
    pane.tmux("copy-mode")


def _coupled(pane: Pane, pid: int) -> None:
    pane.tmux("set-option", "-w", "synchronize-panes", "on")


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


def _in_the_background(pane: Pane, pid: int) -> None:
    pane.tmux("send-keys", "C-z")
    wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T" or None, "stopped")
    wait_for(lambda: pane.tmux("capture-pane", "-p").endswith("\n$") or None, "the shell says so")


@pytest.mark.parametrize("use", [_scrolled, _coupled, _in_the_background])
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


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("⠋ Working", "⠙ Working", id="a spinner of braille dots"),
        pytest.param("| build [==  ]", "/ build [=== ]", id="a spinner of strokes, and a bar"),
        pytest.param("✻ Thinking… (59s · ↓ 999 tokens)", "✳ Thinking…  (1m 0s · ↓ 1.0k tokens)", id="times and counts"),
        pytest.param("12:59 PM  waited 59 seconds", "1:00 AM  waited 1 minute", id="a clock and words for units"),
        pytest.param("long\nline", "long line", id="where a line ends"),
    ],
)
def test_what_turns_and_counts_by_itself_is_no_word(before: str, after: str) -> None:
    """A stalled agent's spinner and timer go on; a word more is something else."""
    assert essence(before) == essence(after)
    assert essence(f"{after} done") != essence(after)


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


@pytest.mark.parametrize(
    ("vendor", "mode", "waits"),
    [
        ("opencode", "", "opencode was started without one"),
        ("codex", "", "tmux pane %0 shows the prompt of codex"),
        ("nobody", "", ""),
        ("codex", "dialog", ""),
    ],
)
def test_why_one_may_wait_for_its_first_prompt(pane: Pane, vendor: str, mode: str, waits: str) -> None:
    """Its command line holds none, or it shows its prompt: opencode's first word may be a directory, Codex' is one."""
    pid, ticks = pane.vendor(mode, vendor)
    assert first_prompt(pid, ticks) == {"waits": waits}
    with pytest.raises(OwnerCallFailed):
        first_prompt(pid, ticks + 1)


def test_a_program_that_reads_no_terminal_waits_for_no_person(pane: Pane) -> None:
    """`echo fix it | claude`: what it reads is its prompt."""
    pane.shell("sleep 1000 | bash -c 'exec -a claude sleep 1001'")
    shell = int(pane.tmux("display-message", "-p", "#{pane_pid}"))
    first = child_of(shell)
    pid = wait_for(lambda: next((one for one in beside(first) if one != first), None), "it runs")
    wait_for(lambda: b"claude" in Path(f"/proc/{pid}/cmdline").read_bytes() or None, "it is named so")
    assert first_prompt(pid, int(started_at(pid) or 0)) == {"waits": ""}


def beside(pid: int) -> list[int]:
    """The children of the parent of a process."""
    parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]
    return [int(one) for one in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_what_a_pane_shows_is_told_as_a_hash(pane: Pane) -> None:
    """It stays what it is while nothing is written, and changes with a line, also one of the agent's child."""
    pid, ticks = pane.agent()
    before = pane_shows(pid, ticks)
    assert pane_shows(pid, ticks) == before
    pane.shell("some words")

    def other() -> dict[str, object] | None:
        now = pane_shows(pid, ticks)
        return None if now == before else now

    after = wait_for(other, "it shows the line")
    assert (after["pane"], after["size"], after["works"]) == (before["pane"], "80x24", False)
    pane.shell("Working (8s • esc to interrupt)")
    wait_for(lambda: pane_shows(pid, ticks)["works"] or None, "it shows a turn")


@pytest.mark.parametrize("use", [_scrolled, _coupled])
def test_a_pane_that_is_read_in_is_looked_at(pane: Pane, use: Callable[[Pane, int], None]) -> None:
    """Nothing is typed: who scrolls changes nothing of what it shows."""
    pid, ticks = pane.agent()
    before = pane_shows(pid, ticks)
    use(pane, pid)
    assert pane_shows(pid, ticks) == before


def test_a_pane_in_which_something_else_runs_says_nothing_of_its_agent(pane: Pane) -> None:
    """Its shell has the foreground: what that one shows is a person's work."""
    pid, ticks = pane.agent()
    _in_the_background(pane, pid)
    with pytest.raises(OwnerCallFailed, match="shows another program"):
        pane_shows(pid, ticks)
