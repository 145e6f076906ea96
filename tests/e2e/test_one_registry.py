"""One registry has one daemon per host, by whichever path it is named (report P5)."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import BIN, PATIENCE, World, alive, make_world

BUSY = 75


@pytest.fixture
def other() -> Iterator[World]:
    """A second daemon with its own state and runtime directory."""
    yield from make_world()


def named(world: World, how: str) -> str:
    """The registry of `world` under another name."""
    file = world.state / "registry.db"
    match how:
        case "by a link to its directory":
            (world.dir / "link").symlink_to(world.state)
            file = world.dir / "link" / "registry.db"
        case "with a doubled slash":
            return f"sqlite:///{world.state}//registry.db"
        case "with a dot":
            return f"sqlite:///{world.state}/./registry.db"
    return f"sqlite:///{file}"


def checked(world: World) -> "subprocess.CompletedProcess[str]":
    command = [str(BIN / "agent-watchdogd"), "--config", str(world.config), "--check"]
    return subprocess.run(command, env=world.environ, capture_output=True, text=True, timeout=PATIENCE)


@pytest.mark.skipif(World.server is not None, reason="of SQLite's files; a server has a lock of its own")
@pytest.mark.parametrize("how", ["as it is", "by a link to its directory", "with a doubled slash", "with a dot"])
def test_a_second_daemon_on_the_same_registry_is_refused(world: World, other: World, how: str) -> None:
    """It would judge the first one's agents by beats that it never receives: exit 75 with a message; the agent lives.

    `--check` reports it as well, and finds nothing wrong with the first one's own configuration while that runs.
    """
    world.start()
    world.run("well", *world.script("agent.py", "beat=0.3"))
    world.wait_event("agent.first_beat", name="well")
    pid = world.agents()["well"]["pid"]
    other.configure(registry={"url": named(world, how)})
    assert world.daemon is not None

    other.start(wait=False)
    assert other.daemon is not None
    assert other.daemon.wait(PATIENCE) == BUSY
    words = f"already running (pid {world.daemon.pid}): {os.path.realpath(world.state)}/registry.db.lock is locked"
    assert words in other.log.read_text()
    assert "give each daemon its own registry.url" in other.log.read_text()

    refused, fine = checked(other), checked(world)
    assert refused.returncode == 78
    assert f"registry.url: another daemon (pid {world.daemon.pid}) uses " in refused.stderr
    assert fine.returncode == 0, fine.stderr
    assert alive(pid)

    assert world.stop() == 0
    assert checked(other).returncode == 0, checked(other).stderr
    other.start()


def test_a_lock_file_that_a_power_cut_emptied_is_no_obstacle(world: World) -> None:
    """The lock decides; the content of the file is for people."""
    world.start()
    world.crash()
    lock = Path(f"{world.state}/registry.db.lock")
    if World.server is None:
        assert lock.exists()
        lock.write_text("")
    world.start()
