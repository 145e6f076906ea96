"""`agent-watchdog run` on a terminal: job control, keys, resize, hang-up and exit status are as without it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import FakeDaemon, lives, stat_of, wait_for
from tests.cli.run.conftest import LISTENER, RUN, Tmux, agent_of, children_of, command_of
from tests.cli.terminal import Terminal
from watchdog.cli.run.options import Options
from watchdog.cli.run.wrapper import Wrapper


def test_shares_session_group_and_terminal_with_its_shell(terminal: Terminal, daemon: FakeDaemon) -> None:
    """Wrapper and agent are one job; /dev/tty is usable."""
    terminal.type(f"{RUN} sh -c 'echo [tty] > /dev/tty; exec sleep 60'")
    terminal.expect("[tty]")
    pid = agent_of(daemon)
    wrapper = int(stat_of(pid)[1])
    assert stat_of(pid)[2:5] == stat_of(wrapper)[2:5]
    assert stat_of(pid)[3] == str(int(stat_of(wrapper)[3]))
    assert int(stat_of(pid)[2]) == os.tcgetpgrp(terminal.master), "the foreground job"


def test_ctrl_c_reaches_the_agent_once_and_from_the_terminal_alone(terminal: Terminal) -> None:
    """An agent that asks "press again to quit" must not see two."""
    terminal.type(f"{RUN} {sys.executable} listener.py; echo status=$?")
    terminal.expect("[up]")
    terminal.press("\x03")
    terminal.expect("<2>")
    terminal.type("still there")
    assert "<2>" not in terminal.expect("[still there]")
    terminal.type("q")
    terminal.expect("status=7")


def test_ctrl_c_ends_an_ordinary_program_with_130(terminal: Terminal) -> None:
    """Died of SIGINT, as the shell tells it."""
    terminal.type(f"{RUN} sleep 60")
    agent = wait_for(lambda: [p for p in children_of(terminal.bash.pid, 2) if _comm(p) == "sleep"])[0]
    terminal.press("\x03")
    wait_for(lambda: not lives(agent))
    terminal.type("echo status=$?")
    terminal.expect("status=130")


def test_quit_from_the_terminal_leaves_one_core_at_most(terminal: Terminal) -> None:
    """Ctrl-backslash: 131."""
    terminal.type(f"{RUN} sleep 60")
    wait_for(lambda: [p for p in children_of(terminal.bash.pid, 2) if _comm(p) == "sleep"])
    terminal.press("\x1c")
    terminal.expect("Quit")
    terminal.type("echo status=$?")
    terminal.expect("status=131")


def test_ctrl_z_stops_the_job_and_fg_continues_it(terminal: Terminal, daemon: FakeDaemon) -> None:
    """The shell takes its terminal back, and gives it again."""
    terminal.type(f"{RUN} {sys.executable} listener.py; echo status=$?")
    terminal.expect("[up]")
    pid = agent_of(daemon)
    for turn in range(3):
        terminal.press("\x1a")
        terminal.expect("Stopped")
        wait_for(lambda: stat_of(pid)[0] == "T")  # the terminal tells both; the shell only watches the wrapper
        terminal.type(f"echo shell=$(({turn} + 10))")
        terminal.expect(f"shell={turn + 10}")
        terminal.type("fg")
        terminal.type(f"hello {turn}")
        terminal.expect(f"[hello {turn}]")
    terminal.type("q")
    wait_for(lambda: not lives(pid))


@pytest.mark.parametrize("again", [False, True])
def test_a_continue_that_is_read_late_does_not_undo_the_next_stop(again: bool) -> None:
    """The group's SIGCONT (`fg`) has reached the agent; one for the wrapper alone is passed on."""
    wrapper = Wrapper(Options({}, ["sleep"], "0" * 32))
    with subprocess.Popen(["sleep", "60"]) as agent:
        try:
            wrapper.pid, wrapper.terminal = agent.pid, False
            agent.send_signal(signal.SIGSTOP)
            wait_for(lambda: stat_of(agent.pid)[0] == "T")
            wrapper._reap()
            if again:
                agent.send_signal(signal.SIGCONT)
                wait_for(lambda: stat_of(agent.pid)[0] != "T")
                agent.send_signal(signal.SIGSTOP)
                wait_for(lambda: stat_of(agent.pid)[0] == "T")
            wrapper._take(signal.struct_siginfo((signal.SIGCONT, 0, 0, os.getppid(), os.getuid(), 0, 0)))
            wait_for(lambda: (stat_of(agent.pid)[0] == "T") == again)
        finally:
            agent.kill()


def test_bg_lets_a_stopped_job_run_on(terminal: Terminal, daemon: FakeDaemon) -> None:
    """And `kill %1` ends it."""
    terminal.type(f"{RUN} sleep 60")
    pid = agent_of(daemon)
    wait_for(lambda: _comm(pid) == "sleep")
    terminal.press("\x1a")
    terminal.expect("Stopped")
    terminal.type("bg")
    wait_for(lambda: stat_of(pid)[0] == "S")
    terminal.type("kill %1; wait %1; echo status=$?")
    terminal.expect("status=143")
    assert not lives(pid)


def test_a_job_started_with_ampersand_is_stopped_when_it_reads(terminal: Terminal, daemon: FakeDaemon) -> None:
    """SIGTTIN: in the background nobody takes the shell's input; `fg` gives it to the agent."""
    terminal.type(f"{RUN} {sys.executable} listener.py &")
    terminal.expect("[up]")
    pid = agent_of(daemon)
    wait_for(lambda: stat_of(pid)[0] == "T")
    terminal.type("echo shell=$((1 + 1))")
    terminal.expect("shell=2")
    wait_for(lambda: _shows(terminal, "jobs", "Stopped"))
    terminal.type("fg")
    terminal.type("hello")
    terminal.expect("[hello]")
    terminal.type("q")
    wait_for(lambda: not lives(pid))


def test_an_agent_that_is_stopped_alone_stops_the_job(terminal: Terminal, daemon: FakeDaemon) -> None:
    """The shell notices; continued alone, it runs on and the wrapper with it."""
    terminal.type(f"{RUN} sleep 60")
    pid = agent_of(daemon)
    wait_for(lambda: _comm(pid) == "sleep")
    wrapper = int(stat_of(pid)[1])
    os.kill(pid, signal.SIGSTOP)
    terminal.expect("Stopped")
    assert stat_of(wrapper)[0] == "T"
    os.kill(pid, signal.SIGCONT)
    wait_for(lambda: stat_of(wrapper)[0] == "S")
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: not stat_of(wrapper))


def test_an_agent_killed_while_stopped_does_not_leave_its_wrapper_behind(
    terminal: Terminal, daemon: FakeDaemon
) -> None:
    """The kill worker stops a tree before it kills it; nobody else would continue us."""
    terminal.type(f"{RUN} sleep 60")
    pid = agent_of(daemon)
    wait_for(lambda: _comm(pid) == "sleep")
    wrapper = int(stat_of(pid)[1])
    os.kill(pid, signal.SIGSTOP)
    terminal.expect("Stopped")
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not stat_of(wrapper))
    assert daemon.requests[-1].body == {"exit_signal": signal.SIGKILL}


def test_an_agent_that_is_stopped_to_be_killed_is_no_stopped_job(terminal: Terminal, daemon: FakeDaemon) -> None:
    """As the daemon does it: the shell hears of the end alone, and its prompt does not come in between."""
    terminal.type(f"{RUN} sleep 60; echo status $?")
    pid = agent_of(daemon)
    wait_for(lambda: _comm(pid) == "sleep")
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: stat_of(pid)[0] == "T")
    time.sleep(0.1)  # as long as the daemon takes
    os.kill(pid, signal.SIGKILL)
    assert "Stopped" not in terminal.expect("status 137")


def test_resize_is_seen_once(terminal: Terminal) -> None:
    """The terminal tells the whole group; we do not tell it again."""
    terminal.type(f"{RUN} {sys.executable} listener.py")
    terminal.expect("[up]")
    terminal.resize(50, 100)
    terminal.expect("<28>")
    terminal.type("after")
    assert "<28>" not in terminal.expect("[after]")
    terminal.type("q")


def test_hang_up_ends_the_job(terminal: Terminal, daemon: FakeDaemon) -> None:
    """The window is closed: bash tells its jobs, and they end."""
    terminal.type(f"{RUN} sleep 60")
    pid = agent_of(daemon)
    wait_for(lambda: _comm(pid) == "sleep")
    wrapper = int(stat_of(pid)[1])
    terminal.hang_up()
    wait_for(lambda: not lives(pid) and not lives(wrapper))
    assert daemon.requests[-1].body == {"exit_signal": signal.SIGHUP}


def test_hang_up_reaches_an_agent_whose_wrapper_leads_the_session(terminal: Terminal, daemon: FakeDaemon) -> None:
    """`exec agent-watchdog run`, or a terminal that starts us itself: the kernel tells the leader alone."""
    terminal.type(f"exec {RUN} {sys.executable} -c 'import time; time.sleep(60)'")
    pid = agent_of(daemon)
    wait_for(lambda: _comm(pid).startswith("python"))
    terminal.hang_up()
    wait_for(lambda: not lives(pid))


def test_exit_by_signal_is_the_agents(terminal: Terminal) -> None:
    """143, and what the shell says of it."""
    terminal.type(f"{RUN} sh -c 'kill -TERM $$'; echo status=$?")
    assert "Terminated" in terminal.expect("status=143")


def test_a_pipeline_of_agents_works(terminal: Terminal) -> None:
    """Streams pass us by."""
    terminal.type(f"echo through | {RUN} cat | {RUN} tr a-z A-Z")
    terminal.expect("THROUGH")


def test_a_shell_as_the_agent_has_its_own_job_control(terminal: Terminal) -> None:
    """`run -- bash`: it makes a group of its own and takes the terminal; Ctrl-C and Ctrl-Z are its jobs'."""
    terminal.type(f"{RUN} bash --norc --noprofile --noediting -i; echo outer=$?")
    terminal.type("sleep 61; echo inner=$?")
    wait_for(lambda: [p for p in children_of(terminal.bash.pid, 3) if _comm(p) == "sleep"])
    terminal.press("\x1a")
    assert "no job control" not in terminal.expect("Stopped")
    terminal.type("kill %1; echo inner=$((2 + 3))")
    terminal.expect("inner=5")
    terminal.type("sleep 62")
    wait_for(lambda: [p for p in children_of(terminal.bash.pid, 3) if b"62" in command_of(p)])
    terminal.press("\x03")
    terminal.type("exit 3")
    terminal.expect("outer=3")


def test_kill_0_by_the_agent_does_not_come_back_to_it(terminal: Terminal) -> None:
    """It is in our group: the signal has reached it already."""
    program = "import os,signal; n=[]; signal.signal(10, lambda *a: n.append(1)); os.kill(0, 10)"
    terminal.type(
        f'{RUN} {sys.executable} -c "{program}; import time; time.sleep(0.5); print(len(n), sep=str(), end=chr(59))"'
    )
    terminal.expect("1;")


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_in_tmux_the_same(environment: dict[str, str], tmp_path: Path, runtime: Path, daemon: FakeDaemon) -> None:
    """Ctrl-C, Ctrl-Z with fg, resize, and the pane closed under a running agent."""
    (tmp_path / "listener.py").write_text(LISTENER)
    screen = Tmux(environment, runtime / "tmux", tmp_path)
    try:
        screen.type(f"{RUN} {sys.executable} listener.py; echo status=$?")
        wait_for(lambda: "[up]" in screen.text())
        pid = agent_of(daemon)
        screen.keys("C-c")
        wait_for(lambda: screen.text().count("<2>") == 1)
        screen.do("resize-window", "-x", "100", "-y", "40")
        wait_for(lambda: "<28>" in screen.text())
        screen.keys("C-z")
        wait_for(lambda: "Stopped" in screen.text())
        screen.type("fg")
        wait_for(lambda: stat_of(pid)[0] == "S")  # before, readline could take what is typed
        screen.type("hello")
        wait_for(lambda: "[hello]" in screen.text())
        assert screen.text().count("<2>") == 1
        assert screen.text().count("<28>") == 1
        screen.type("q")
        wait_for(lambda: not lives(pid))
        screen.type(f"{RUN} sleep 60")
        second = wait_for(lambda: [p for p in (agent_of(daemon),) if p != pid and _comm(p) == "sleep"])[0]
        screen.do("kill-pane")
        wait_for(lambda: not lives(second))
    finally:
        screen.close()


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _shows(terminal: Terminal, command: str, text: str) -> bool:
    terminal.type(f"{command}; echo shown=$((4 + 5))")
    return text in terminal.expect("shown=9")
