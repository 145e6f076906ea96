"""What an agent that was ended left switched on at its terminal is switched off."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import FakeDaemon, wait_for
from tests.cli.run.conftest import RUN, Tmux, agent_of, children_of, command_of
from tests.cli.terminal import Terminal

DRAWS = """
import os, signal, sys, time, tty
tty.setraw(0)
os.write(1, b"\\x1b[?1049h\\x1b[?1000h\\x1b[?1003h\\x1b[?1006h\\x1b[?25l\\x1b[?1h\\x1b=drawn")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if sys.argv[1] == "exit":
    os._exit(3)
if sys.argv[1] == "crash":
    os.kill(os.getpid(), signal.SIGSEGV)
time.sleep(1000)
"""
MODES = " ".join(
    f"#{{{flag}}}"
    for flag in ("alternate_on", "mouse_any_flag", "mouse_sgr_flag", "cursor_flag", "keypad_cursor_flag", "keypad_flag")
)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("end", ["killed", "crash", "exit", "below a shell"])
def test_what_an_agent_switched_on_at_its_terminal_is_off_after_its_death(
    environment: dict[str, str], tmp_path: Path, runtime: Path, daemon: FakeDaemon, end: str
) -> None:
    """Case N19: alternate screen, mouse, hidden cursor, keys one by one. KILL cannot be caught."""
    (tmp_path / "draws.py").write_text(DRAWS)
    screen = Tmux(environment, runtime / "tmux", tmp_path)
    try:
        screen.type("echo before")
        wait_for(lambda: "\nbefore" in screen.text())
        before = screen.do("display-message", "-p", MODES)
        command = f"{sys.executable} draws.py {end.replace(' ', '-')}"
        if end == "below a shell":
            command = f"sh -c '{command}; exit $?'"
        screen.type(f"{RUN} {command}; echo sta''tus=$?")
        if end in ("killed", "below a shell"):
            wait_for(lambda: "drawn" in screen.text())
            assert screen.do("display-message", "-p", MODES) != before
            agent = agent_of(daemon)
            (drawing,) = [
                one for one in (agent, *children_of(agent, 1)) if b"draws.py" in command_of(one).split(b"\0")[1:2]
            ]
            os.kill(drawing, signal.SIGKILL)
        wait_for(lambda: "status=" in screen.text())
        assert screen.do("display-message", "-p", MODES) == before
        assert "before" in screen.text()
        screen.type("stty -a")
        wait_for(lambda: " icanon" in screen.text() and " echo " in screen.text())
    finally:
        screen.close()


def test_nothing_is_written_for_who_leaves_the_terminal_as_it_was_or_means_it(terminal: Terminal) -> None:
    """A plain program that is killed, one that was asked to change the settings, and one in the background."""
    terminal.type(f"{RUN} sh -c 'kill -KILL $$'; echo one=$?")
    assert "\x1b" not in terminal.expect("one=137")
    terminal.type(f"{RUN} stty -icanon; echo two=$?; stty -a | tr ';' '\\n' | grep -c -e -icanon; stty icanon")
    assert "\x1b" not in terminal.expect("two=0\n1\n")
    terminal.type(
        f"{RUN} sh -c 'sleep 0.5; kill -KILL $$' & stty -icanon; wait; echo three; stty -a | grep -c -e -icanon"
    )
    assert "\x1b" not in terminal.expect("three\n1\n")
