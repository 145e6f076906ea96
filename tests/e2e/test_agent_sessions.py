"""Sessions of tmux-agent-orchestrate under a real daemon: a real tmux server, and rows whose session is gone."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.owner.sources.test_agent_sessions import NAME, Registry
from tests.world import World, alive, wait_for


def watched(world: World, made: Registry) -> None:
    """A daemon with that registry as a source."""
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "agent_sessions"\npath = "{made.yaml}"\n')
    world.start()


@pytest.mark.faults
def test_kill_ends_what_ignores_the_hangup_of_its_pane_and_the_row_is_stopped(world: World) -> None:
    """`tmux kill-session` sends HUP, which this one and its child ignore."""
    server = f"aw-e2e-{os.getpid()}"
    tmux = ["tmux", "-f", "/dev/null", "-L", server]
    command = "trap '' HUP TERM; sleep 300 & wait; sleep 300"
    subprocess.run([*tmux, "new-session", "-d", "-s", NAME, "sh", "-c", command], check=True)
    try:
        ran = subprocess.run([*tmux, "list-panes", "-a", "-F", "#{pane_pid}"], check=True, capture_output=True)
        made = Registry(world.dir / ".mam", "rows", server, int(ran.stdout))
        watched(world, made)
        wait_for(lambda: NAME in world.cli("list").stdout, "it is known")
        subprocess.run([*tmux, "new-session", "-d", "-s", "p-app-creator-agy", "sleep", "300"], check=True)
        drift = world.wait_event("source.drift", name="p-app-creator-agy")
        assert "the registry has no such session" in drift["why"]
        assert "p-app-creator-agy" in world.cli("list").stdout

        world.cli("kill", NAME, "--grace", "20s")

        wait_for(lambda: made.stored()["status"] == "stopped", "its row is closed")
        assert not alive(int(ran.stdout))
        assert world.count("source.drift") == 1
        assert (made.stored()["resumable"], made.stored()["termination_mode"]) == (True, "graceful")
        assert "status: stopped  # at work" in made.yaml.read_text()
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)
        Path(f"/tmp/tmux-{os.geteuid()}/{server}").unlink(missing_ok=True)  # tmux leaves it


def test_a_row_without_its_session_is_terminated_and_an_innocent_process_lives(world: World) -> None:
    """Its tmux session is gone and its pid was reused: `(auto-detected)`, and no signal."""
    innocent = world.spawn("sleep", "300")
    made = Registry(world.dir / ".mam", "rows", f"aw-none-{os.getpid()}", innocent.pid)
    watched(world, made)

    wait_for(lambda: made.stored()["status"] == "terminated", "its row is closed")

    assert (made.stored()["stop_reason"], made.stored()["resumable"]) == ("(auto-detected)", False)
    assert "status: terminated  # at work" in made.yaml.read_text()
    assert made.stored("p-old-creator-agy")["status"] == "stopped"
    assert alive(innocent.pid)
    assert not world.signalled()
