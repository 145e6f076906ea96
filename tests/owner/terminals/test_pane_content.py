"""What a pane shows, as a hash, and whom it waits for: a real tmux server of our own."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.owner.terminals.conftest import Pane, coupled, in_the_background, scrolled
from tests.owner.tmux_servers import child_of
from tests.world import started_at, wait_for
from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals.pane_content import essence, first_prompt, pane_shows

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


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


@pytest.mark.parametrize("use", [scrolled, coupled])
def test_a_pane_that_is_read_in_is_looked_at(pane: Pane, use: Callable[[Pane, int], None]) -> None:
    """Nothing is typed: who scrolls changes nothing of what it shows."""
    pid, ticks = pane.agent()
    before = pane_shows(pid, ticks)
    use(pane, pid)
    assert pane_shows(pid, ticks) == before


def test_a_pane_in_which_something_else_runs_says_nothing_of_its_agent(pane: Pane) -> None:
    """Its shell has the foreground: what that one shows is a person's work."""
    pid, ticks = pane.agent()
    in_the_background(pane, pid)
    with pytest.raises(OwnerCallFailed, match="shows another program"):
        pane_shows(pid, ticks)
