"""Faults of the registry under a real daemon: nobody is ended for them, no intent is lost, each is told once.

Each row of FAULTS breaks the file while one agent beats and another falls silent, and is undone again. Expected of all:
the silent one lives while the registry is away and is ended afterwards, the beating one lives, the daemon is the same
process, one `registry.unavailable`, one `registry.recovered`.
"""

import os
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.world import World, alive, make_world

pytestmark = pytest.mark.faults
Fault = Callable[[World], AbstractContextManager[None]]


def registry(world: World) -> Path:
    return world.state / "registry.db"


@contextmanager
def aside(world: World) -> Iterator[None]:
    """The file is gone, and back."""
    kept = world.dir / "aside"
    registry(world).rename(kept)
    yield
    registry(world).unlink(missing_ok=True)
    kept.rename(registry(world))


@contextmanager
def replaced(world: World, make: Callable[[Path], object]) -> Iterator[None]:
    """Something else lies in its place."""
    with aside(world):
        make(registry(world))
        yield
        if registry(world).is_dir():
            registry(world).rmdir()


@contextmanager
def directory_aside(world: World) -> Iterator[None]:
    kept = world.dir / "kept"
    world.state.rename(kept)
    yield
    kept.rename(world.state)


@contextmanager
def locked(world: World, how: str) -> Iterator[None]:
    """Somebody stopped inside a transaction."""
    other = sqlite3.connect(registry(world), isolation_level=None, timeout=30)
    other.execute(how)
    yield
    other.execute("ROLLBACK")
    other.close()


@contextmanager
def changed(world: World, do: str, undo: str) -> Iterator[None]:
    """Somebody changed the schema by hand."""
    with sqlite3.connect(registry(world), timeout=30) as other:
        other.execute(do)
    yield
    with sqlite3.connect(registry(world), timeout=30) as other:
        other.execute(undo)
    other.close()


FAULTS: dict[str, Fault] = {
    "deleted": aside,
    "replaced by an empty file": lambda world: replaced(world, lambda path: path.touch(0o600)),
    "replaced by text": lambda world: replaced(world, lambda path: path.write_text("no database\n" * 500)),
    "replaced by a copy": lambda world: replaced(world, lambda path: shutil.copy(world.dir / "aside", path)),
    "replaced by a directory": lambda world: replaced(world, lambda path: path.mkdir()),
    "replaced by a FIFO": lambda world: replaced(world, os.mkfifo),
    "replaced by a link to nothing": lambda world: replaced(world, lambda path: path.symlink_to("/nowhere")),
    "its directory deleted": directory_aside,
    "locked for writing": lambda world: locked(world, "BEGIN IMMEDIATE"),
    "a table renamed": lambda world: changed(
        world, "ALTER TABLE kill_request RENAME TO lost", "ALTER TABLE lost RENAME TO kill_request"
    ),
    "the agents' table renamed": lambda world: changed(
        world, "ALTER TABLE agent_lifecycle RENAME TO lost", "ALTER TABLE lost RENAME TO agent_lifecycle"
    ),
    "a column renamed": lambda world: changed(
        world,
        "ALTER TABLE agent_lifecycle RENAME COLUMN silence_seconds TO lost",
        "ALTER TABLE agent_lifecycle RENAME COLUMN lost TO silence_seconds",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_registry_ends_nobody_and_loses_nothing(fault: str) -> None:
    """Told once, survived, and gone on with."""
    for world in make_world(stall={"after_seconds": 3}):
        world.start()
        world.run("well", *world.script("agent.py", "beat=0.3"))
        world.run("mute", *world.script("agent.py", "beat=0.3/3"))
        well, mute = world.wait_status("well", "running"), world.wait_status("mute", "running")
        world.wait_event("agent.first_beat", name="mute")
        assert world.daemon is not None
        with FAULTS[fault](world):
            world.wait_event("registry.unavailable", seconds=30)
            world.wait_event("agent.stalled", name="mute", seconds=30)
            assert alive(mute["pid"])
            assert world.count("kill.signal_sent") == 0

        world.wait_event("registry.recovered", seconds=90)
        world.wait_status("mute", "killed", seconds=60)
        assert not alive(mute["pid"])
        assert alive(well["pid"])
        assert world.daemon.poll() is None
        assert world.count("registry.unavailable") == world.count("registry.recovered") == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, or acting as another uid")
def test_a_full_disk_ends_nobody_and_loses_nothing() -> None:
    """ENOSPC on a file system of 4 MiB; when somebody makes room, it goes on."""
    for world in make_world(stall={"after_seconds": 3}):
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "none", world.state], check=True)
        try:
            world.start()
            world.run("mute", *world.script("agent.py", "beat=0.3/3"))
            mute = world.wait_status("mute", "running")
            world.wait_event("agent.first_beat", name="mute")
            ballast = world.state / "ballast"
            with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(b"x" * 4096)
            world.wait_event("registry.unavailable", seconds=30)
            world.wait_event("agent.stalled", name="mute", seconds=30)
            assert alive(mute["pid"])
            ballast.unlink()
            world.wait_event("registry.recovered", seconds=90)
            world.wait_status("mute", "killed", seconds=60)
            assert world.count("registry.unavailable") == world.count("registry.recovered") == 1
            world.stop()
        finally:
            world.close()
            subprocess.run(["umount", "--lazy", world.state], check=True)
