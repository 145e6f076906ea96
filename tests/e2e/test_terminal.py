"""An interactive agent at a terminal, watched by a real daemon: it behaves as without us, and its state is known."""

from contextlib import suppress
from pathlib import Path

from tests.cli.terminal import a_terminal
from tests.world import World, alive, pids_with, wait_for


def named(program: str, agent_id: str) -> list[int]:
    """Processes of an agent that run that program by now."""
    found = []
    for pid in pids_with("AGENT_WATCHDOG_ID", agent_id):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has exited since
            if Path(f"/proc/{pid}/comm").read_text() == f"{program}\n":
                found.append(pid)
    return found


def stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


def test_a_shell_under_run_is_a_shell_and_is_watched(world: World) -> None:
    """`run -- bash`: /dev/tty, Ctrl-C, the window's size and the exit status; the daemon sees its exit."""
    world.start()
    with a_terminal(world.environ, world.dir) as terminal:
        terminal.type("agent-watchdog run --name shell -- bash --norc --noprofile --noediting -i")
        agent = world.wait_status("shell", "running")
        terminal.type("echo tty=$(head -c0 </dev/tty && echo yes); PS1=")
        terminal.expect("tty=yes")
        terminal.resize(41, 117)
        terminal.type("stty size")
        terminal.expect("41 117")
        terminal.type("sleep 1000")
        asleep = wait_for(lambda: named("sleep", agent["agent_id"]), "sleep runs")[0]
        terminal.press("\x03")
        wait_for(lambda: not alive(asleep), "Ctrl-C ends it")
        terminal.type("echo after=$?")
        terminal.expect("after=130")
        terminal.type("exit 7")
        wait_for(lambda: not alive(agent["pid"]), "the agent ends")
        terminal.type("echo status=$?")
        terminal.expect("status=7")

    ended = world.wait_status("shell", "failed")
    assert ended["exit_code"] == 7
    assert world.count("kill.signal_sent") == 0


def test_an_agent_that_is_stopped_by_ctrl_z_is_still_watched(world: World) -> None:
    """Ctrl-Z stops it and returns to the shell; it continues after `fg`, and was not killed meanwhile."""
    world.start()
    with a_terminal(world.environ, world.dir) as terminal:
        terminal.type("agent-watchdog run --name cat -- cat; echo status=$?")
        agent = world.wait_status("cat", "running")
        terminal.press("\x1a")
        terminal.expect("Stopped")
        wait_for(lambda: stopped(agent["pid"]), "the agent is stopped")
        assert world.agents()["cat"]["status"] == "running"
        terminal.type("fg")
        terminal.type("hello")
        terminal.expect("hello")
        wait_for(lambda: not stopped(agent["pid"]), "the agent runs on")
        terminal.press("\x04")
        wait_for(lambda: not alive(agent["pid"]), "the agent ends")

    world.wait_status("cat", "completed")


def test_a_killed_agent_gives_the_terminal_back(world: World) -> None:
    """A deaf agent in the foreground falls silent: KILL, and the shell has its terminal and the status 137."""
    world.start()
    with a_terminal(world.environ, world.dir) as terminal:
        command = " ".join(world.script("agent.py", "beat=0.3/3", "deaf"))
        terminal.type(f"agent-watchdog run --name deaf -- {command}; echo status=$?")
        world.wait_status("deaf", "killed")
        said = terminal.expect("status=137", 20)
        assert "agent-watchdog run: deaf was killed by the daemon: silent for " in said
        assert "; the whole story: agent-watchdog why deaf\n" in said
        terminal.type("echo shell=$((20 + 3))")
        terminal.expect("shell=23")
