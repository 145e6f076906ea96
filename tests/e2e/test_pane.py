"""An agent in a tmux pane: nudged by a line, and asked to leave by its exit keys, by a real daemon and a real tmux."""

import os
import shlex
import shutil
import signal
import subprocess
from typing import Any

import pytest

from tests.world import BIN, World, wait_for

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


def in_pane(world: World, name: str, *words: str) -> None:
    """An agent in the only pane of a tmux server for this world."""
    command = [str(BIN / "agent-watchdog"), "run", "--name", name, "--", *world.script("agent.py", *words)]
    tmux = ["tmux", "-S", str(world.dir / "tmux"), "-f", "/dev/null", "new-session", "-d", shlex.join(command)]
    subprocess.run(tmux, cwd=world.dir, env=world.environ, check=True, timeout=60)
    world.wait_event("agent.first_beat", name=name)


def test_stop_types_the_exit_keys_and_the_agent_leaves(world: World) -> None:
    """No signal is needed; an agent without a pane gets no keys, and TERM."""
    world.configure(kill={"exit_keys": ["bye", "Enter"], "grace_seconds": 5}, stall={"after_seconds": 3600})
    world.start()
    in_pane(world, "talker", "read")
    world.run("walker", *world.script("agent.py", "beat=0.3"))
    world.wait_event("agent.first_beat", name="walker")

    left = world.json("stop", "talker")
    assert (left["status"], left["message"]) == ("stopped", "it exited by itself when it was asked to stop")
    assert "typed into tmux pane %0" in world.wait_event("stop.keys", name="talker")["why"]
    assert world.signalled() == set()

    ended = world.json("stop", "walker")
    assert (ended["status"], ended["killed_gracefully"]) == ("stopped", True)
    assert "no tmux pane" in world.wait_event("stop.keys", name="walker")["why"]


@pytest.mark.faults
def test_a_daemon_killed_while_keys_are_typed_types_none_again(world: World) -> None:
    """Killed when the keys are committed: its helper may finish, then TERM comes instead."""
    world.configure(kill={"exit_keys": ["one", "Enter", "two", "Enter"], "grace_seconds": 5})
    world.start()
    in_pane(world, "talker", "read")
    asked = ["tmux", "-S", str(world.dir / "tmux"), "display-message", "-p", "#{pid}"]
    server = int(subprocess.run(asked, env=world.environ, capture_output=True, check=True, timeout=60).stdout)
    os.kill(server, signal.SIGSTOP)  # the helper that types waits for it
    stop = subprocess.Popen(
        [str(BIN / "agent-watchdog"), "stop", "talker"], env=world.environ, stderr=subprocess.DEVNULL
    )
    wait_for(lambda: world.sql("SELECT step FROM kill_request") == [("keys",)] or None, "it types")
    world.crash()
    assert stop.wait(60) == 69
    os.kill(server, signal.SIGCONT)
    world.start()
    world.wait_status("talker", "stopped")
    assert world.count("stop.keys") == 0
    assert world.count("stop.asked") == 1
    assert len(world.signalled()) == 1
    assert world.agents()["talker"]["beats"] <= 3  # its own, and one for each line


@pytest.mark.faults
def test_a_nudge_is_typed_and_the_ladder_ends_when_the_agent_obeys(world: World) -> None:
    """The line reaches the agent, which beats; nothing more is done before it is silent again."""
    world.configure(
        sweep={"interval_seconds": 0.3},
        stall={"after_seconds": 2, "start_limit_seconds": 60, "busy_limit_seconds": 0},
        kill={"ladder": ["nudge", "kill"], "nudge_pause_seconds": 30, "nudge_text": "go on; -l C-c"},
    )
    world.start()
    in_pane(world, "talker", "read")
    world.wait_event("agent.obeyed", name="talker")
    assert "typed into tmux pane %0" in world.wait_event("agent.nudged", name="talker")["why"]
    wait_for(lambda: world.agents()["talker"]["beats"] >= 2 or None, "one beat at the start, one for each line")
    assert world.count("kill.requested") == 0


@pytest.mark.faults
def test_a_prompt_that_only_its_pane_shows_is_reported_once_and_so_is_its_end(world: World) -> None:
    """Case B2 for an agent that beats without a state: reported with its age, once over a restart; no kill."""
    world.configure(
        sweep={"interval_seconds": 0.3}, stall={"after_seconds": 3, "prompt_limit_seconds": 2}, log={"level": "debug"}
    )
    world.start()
    in_pane(world, "asks", "witness", "prompt", "beat=0.3")
    told = world.wait_event("agent.needs_human", name="asks")["why"]
    assert "its pane %0 has shown a prompt like Claude Code's for " in told
    assert "(limit 2s)" in told
    assert "its pane shows a prompt like Claude Code's" in world.cli("why", "asks").stdout
    assert world.stop() == 0
    world.start()
    world.wait_sweeps(10)  # more than the limit
    assert world.count("agent.needs_human") == 1

    keys = ["tmux", "-S", str(world.dir / "tmux"), "send-keys", "-t", "%0", "1", "Enter"]
    subprocess.run(keys, check=True, timeout=60)
    world.wait_event("agent.human_answered", name="asks")
    assert world.agents()["asks"]["status"] == "running"
    assert (world.witnessed(), world.count("kill.requested")) == ([], 0)


def at_prompt(
    world: World, name: str, mode: str = "", *, vendor: str = "claude", options: tuple[str, ...] = ()
) -> None:
    """A program that looks like a vendor's in the only pane of a tmux server for this world, after its first output."""
    program = f"exec -a {vendor} {shlex.join(world.script('prompting.py', mode))}"
    command = [str(BIN / "agent-watchdog"), "run", "--name", name, *options, "--", "bash", "-c", program]
    tmux = ["tmux", "-u", "-S", str(world.dir / "tmux"), "-f", "/dev/null"]
    environ = {**world.environ, "LC_ALL": "C.UTF-8"}
    start = [*tmux, "new-session", "-d", "-x", "80", "-y", "24", shlex.join(command)]
    subprocess.run(start, cwd=world.dir, env=environ, check=True, timeout=60)
    wait_for(lambda: "❯" in shown(world) or None, "it draws")


def shown(world: World) -> str:
    asked = ["tmux", "-u", "-S", str(world.dir / "tmux"), "capture-pane", "-p"]
    return subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False).stdout


def press(world: World, *keys: str) -> None:
    subprocess.run(["tmux", "-S", str(world.dir / "tmux"), "send-keys", *keys], check=True, timeout=60)


# 6 s: before a pane is seen three interpreters have started (run, the program, the owner's helper), at any load.
STARTING: dict[str, dict[str, object]] = {
    "sweep": {"interval_seconds": 0.3},
    "stall": {"after_seconds": 6, "start_limit_seconds": 6, "prompt_limit_seconds": 2, "busy_limit_seconds": 0},
    "kill": {"ladder": ["nudge", "kill"], "nudge_pause_seconds": 1, "grace_seconds": 1},
    "log": {"level": "debug"},
}


def test_an_agent_at_its_first_screen_waits_for_a_person(world: World) -> None:
    """No hook runs before its folder is trusted: a person is called, nothing is typed, and it is no failed start."""
    world.configure(**STARTING)
    world.start()
    at_prompt(world, "new", "dialog", options=("--stall-after", "6s"))
    told = world.wait_event("agent.needs_human", name="new")["why"]
    assert "has shown a prompt like Claude Code's" in told
    world.wait_sweeps(24)  # longer than every limit
    agent = world.agents()["new"]
    assert (agent["status"], agent["verdict"]) == ("running", "waiting")
    assert "needs a person: its pane shows a prompt like Claude Code's" in agent["why"]
    assert not (world.dir / "lines").exists()
    press(world, "y")
    world.wait_status("new", "completed", "failed")
    assert (world.dir / "lines").read_text() == "'y'\n"
    assert (world.count("kill.requested", reason="failed_to_start"), world.count("agent.nudged")) == (0, 0)


def test_an_agent_without_its_first_prompt_is_no_failed_start(world: World) -> None:
    """Codex and opencode run no hook before the first prompt. One that hangs is killed, without a nudge first."""
    world.configure(**STARTING)
    world.start()
    at_prompt(world, "idle", vendor="codex", options=("--stall-after", "6s"))
    world.run("hung", "sleep", "300", options=("--stall-after", "6s"))
    world.wait_status("hung", "killed", "failed")
    world.wait_sweeps(6)

    def waiting() -> dict[str, Any] | None:
        agent = world.agents()["idle"]
        return agent if agent["verdict"] == "waiting" else None

    agent = wait_for(waiting, "its pane was looked at")
    assert agent["status"] == "running"
    assert "waits for its first prompt: tmux pane %0 shows the prompt of codex" in agent["why"]
    assert (world.count("agent.nudged"), world.count("agent.needs_human")) == (0, 0)


def test_an_agent_that_has_not_started_gets_no_exit_keys(world: World) -> None:
    """Its screen is unknown, also if its program is; TERM comes instead."""
    world.configure(kill={"exit_keys": ["y", "Enter"], "grace_seconds": 5})
    world.start()
    at_prompt(world, "new", vendor="nobodys", options=("--stall-after", "60s"))
    world.json("stop", "new")
    assert "not typed: it has not started" in world.wait_event("stop.keys", name="new")["why"]
    assert not (world.dir / "lines").exists()


@pytest.mark.parametrize("mode", ["", pytest.param("stubborn", marks=pytest.mark.faults)])
def test_stop_sends_no_draft(world: World, mode: str) -> None:
    """A person's half-typed prompt is cleared before the exit keys; if the program's key fails, TERM comes instead."""
    world.configure(kill={"exit_keys": ["/exit", "Enter"], "grace_seconds": 5})
    world.start()
    at_prompt(world, "drafts", mode)
    press(world, "-l", "half a draft")
    wait_for(lambda: "half a draft" in shown(world) or None, "it is shown")
    world.json("stop", "drafts")
    why = world.wait_event("stop.keys", name="drafts")["why"]
    if mode:
        assert "not typed: a draft stands in the prompt of tmux pane %0, and C-c leaves it" in why
        assert not (world.dir / "lines").exists()
    else:
        assert "typed into tmux pane %0" in why
        assert (world.dir / "lines").read_text() == "/exit\n"
        assert world.signalled() == set()


def wrapped_in_pane(world: World, name: str, *words: str, ends: str = "exec sh") -> str:
    """An agent below a shell that survives it, in a second window of this world's server: its pane."""
    options = ["--name", name, "--stall-after", "1h"]  # it beats once, and the story may take a busy machine long
    run = shlex.join([str(BIN / "agent-watchdog"), "run", *options, "--", *world.script("agent.py", *words)])
    tmux = ["tmux", "-S", str(world.dir / "tmux"), "-f", "/dev/null"]
    how = {"cwd": world.dir, "env": world.environ, "check": True, "timeout": 20, "capture_output": True}
    subprocess.run([*tmux, "new-session", "-d", "exec sleep 1000"], **how)  # type: ignore[call-overload]
    command = f"exec bash -c {shlex.quote(f'echo export API_TOKEN=hunter2abc; {run}; {ends}')}"
    asked = [*tmux, "new-window", "-P", "-F", "#{pane_id}", command]
    pane = subprocess.run(asked, **how).stdout.decode().strip()  # type: ignore[call-overload]
    world.wait_event("agent.first_beat", name=name)
    return str(pane)


def panes_of(world: World) -> list[str]:
    asked = ["tmux", "-S", str(world.dir / "tmux"), "list-panes", "-a", "-F", "#{pane_id}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.split()


def test_a_killed_agents_pane_is_closed_and_its_last_screen_kept(world: World) -> None:
    """The pane that was made for it, and no other; its last content is in `why`, without secrets."""
    world.start()
    pane = wrapped_in_pane(world, "talker", "read")
    assert pane in panes_of(world)

    killed = world.json("kill", "talker")

    assert {run["hook"]: run["outcome"] for run in killed["cleanup"]}["pane"] == "done"
    assert pane not in panes_of(world)
    assert len(panes_of(world)) == 1
    story = world.story("talker")
    kept = story["requests"][0]["evidence"]["said"]["pane"]
    assert (kept["where"], kept["screen"][0]) == (
        f"tmux pane {pane} ({world.dir}/tmux)",
        "export API_TOKEN=***",
    )
    assert "screen: export API_TOKEN=***" in world.cli("why", "talker").stdout
    assert "hunter2abc" not in world.log.read_text()


def test_a_pane_that_cannot_be_closed_leaves_the_kill_a_success(world: World) -> None:
    """Exit status 1, and the command to type; the agent is dead, and its row says so."""
    (world.dir / "bin").mkdir()
    fake = world.dir / "bin" / "tmux"
    fake.write_text(f'#!/bin/sh\ncase " $* " in *"kill-pane "*) exit 0;; esac\nexec {shutil.which("tmux")} "$@"\n')
    fake.chmod(0o755)
    world.start(PATH=f"{world.dir}/bin:{world.environ['PATH']}")
    pane = wrapped_in_pane(world, "talker", "read")

    done = world.cli("kill", "talker", check=False)

    assert done.returncode == 1
    assert f"tmux -S {world.dir}/tmux kill-pane -t '{pane}'" in [line.strip() for line in done.stdout.splitlines()]
    assert "its pane remains" in done.stderr
    assert world.agents()["talker"]["status"] == "killed"
    story = world.story("talker")
    outcome = story["requests"][0]["outcome"]
    assert (outcome["success"], outcome["pane_cleanup_failed"]) == (True, True)
    run = next(run for run in story["cleanup"] if run["hook"] == "pane")
    assert (run["status"], run["attempts"], run["details"]["reason"]) == ("failed", 1, "pane_cleanup_failed")
    again = world.cli("kill", "talker")
    assert "already dead" in again.stdout
    assert pane in panes_of(world)


@pytest.mark.faults
def test_a_terminal_that_hangs_delays_a_kill_by_its_limit(world: World) -> None:
    """The last screen is given up after two seconds, the kill continues, and the pane is reported as not closed."""
    world.start()
    pane = wrapped_in_pane(world, "talker", "read")
    asked = ["tmux", "-S", str(world.dir / "tmux"), "display-message", "-p", "#{pid}"]
    server = int(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout)
    wait_for(lambda: world.story("talker")["agent"]["pane"], "its pane is known")
    os.kill(server, signal.SIGSTOP)
    try:
        killed = world.json("kill", "talker", check=False)
    finally:
        os.kill(server, signal.SIGCONT)

    assert (killed["success"], killed["pane_retry_command"].split()[-1]) == (True, f"'{pane}'")
    request = world.story("talker")["requests"][0]
    assert "did not answer" in request["evidence"]["said"]["pane"]["screen"], (request, world.events())
