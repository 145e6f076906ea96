"""Reserved disk space: made, given away in slices, made again; and SQLite on a disk that is really full."""

import asyncio
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.control.office import Recorder
from tests.registry.samples import NOW, add
from watchdog.errors import RegistryUnavailable
from watchdog.host import disk_reserve
from watchdog.host.disk_reserve import MIB, Reserve
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.rows import SweepRow

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and foreign uids need root")
Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Small file systems for tests."""
    made: list[Path] = []

    def small(size: str) -> Path:
        place = tmp_path / f"small{len(made)}"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "none", str(place)], check=True)
        made.append(place)
        return place

    yield small
    for place in made:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path, leave: int = 0) -> Path:
    """Leave no byte free, or so many."""
    blob = place / f"blob{secrets.token_hex(4)}"
    with blob.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    os.truncate(blob, max(0, blob.stat().st_size - leave))
    return blob


@needs_root
def test_it_is_given_away_in_slices_and_made_again_when_there_is_room_for_it_twice(mount: Mount) -> None:
    """A disk that fills and empties in turn is reported once, until it has stayed empty enough."""
    place, log = mount("32m"), Recorder()
    one = Reserve(str(place), "", log)
    one.look()
    file = place / "reserve"
    assert (file.stat().st_size, file.stat().st_blocks * 512, file.stat().st_mode & 0o777) == (8 * MIB, 8 * MIB, 0o600)
    assert (one.in_use, log.events) == (False, [])

    blob = fill(place)
    assert [one.give() for _ in range(9)] == [True] * 8 + [False]
    assert one.in_use
    assert one.facts() == {str(file): {"bytes": 0, "disk_full": True}}
    one.look()
    os.truncate(blob, blob.stat().st_size - 4 * MIB)
    one.look()
    assert one.in_use, "8 MiB missing, 12 free: it would be there, and no more than 4 beside it"
    blob.unlink()
    one.look()
    assert (one.in_use, file.stat().st_size) == (False, 8 * MIB)
    assert [event["event"] for event in log.events] == ["disk.reserve_used", "disk.reserve_restored"]


@needs_root
def test_a_nearly_full_disk_is_reported_before_a_write_fails(mount: Mount) -> None:
    """And one that is too small for the whole reserve has a part of it."""
    place, log = mount("8m"), Recorder()
    one = Reserve(str(place), "", log)
    one.look()
    assert (place / "reserve").stat().st_size == 2 * MIB
    blob = fill(place, leave=4096)
    one.look()
    assert one.in_use
    os.truncate(blob, blob.stat().st_size - MIB)
    one.look()
    assert one.in_use
    blob.unlink()
    one.look()
    assert [event["event"] for event in log.events] == ["disk.reserve_used", "disk.reserve_restored"]


@needs_root
def test_the_log_has_its_own_reserve_on_another_disk(mount: Mount) -> None:
    """Beside a log that moves it moves too; a log that is not a file has none."""
    state, other = mount("32m"), mount("32m")
    one = Reserve(str(state), str(other / "log"), Recorder())
    one.look()
    beside = other / "log.reserve"
    assert beside.stat().st_size == 8 * MIB
    assert one.give_log(str(other / "log"))
    assert (beside.stat().st_size, (state / "reserve").stat().st_size) == (7 * MIB, 8 * MIB)
    assert not one.in_use, "the registry's disk has room"
    assert not one.give_log("journal")
    one._follow_log(str(state / "log"))
    assert not beside.exists()
    assert one.give_log(str(state / "log"))
    assert (state / "reserve").stat().st_size == 7 * MIB


def test_a_foreign_file_in_its_place_is_left_alone(tmp_path: Path) -> None:
    """A link, a file with a second name, a directory."""
    other = tmp_path / "other"
    other.write_text("precious")
    path = tmp_path / "reserve"
    for make in ("link", "hard link", "directory"):
        match make:
            case "link":
                path.symlink_to(other)
            case "hard link":
                path.hardlink_to(other)
            case _:
                path.mkdir()
        Reserve(str(tmp_path), "", Recorder()).look()
        assert other.read_text() == "precious"
        path.rmdir() if make == "directory" else path.unlink()


# -- SQLite


@needs_root
def test_intents_are_committed_on_a_full_disk(mount: Mount) -> None:
    """First into the room of the write-ahead log, then into the reserve, as long as it lasts."""
    place = mount("32m")
    registry = Registry(f"sqlite:///{place}/registry.db").open()
    one = Reserve(str(place), "", Recorder())
    one.look()

    async def play() -> int:
        add(registry, "a")
        fill(place)
        async_registry = AsyncRegistry(registry, reserve=one.give)
        for _ in range(20):
            await async_registry.write(registry.history.add_event, "kill.requested", "a", "daemon", "w", NOW)
        assert (place / "reserve").stat().st_size == 8 * MIB, "the write-ahead log had room"
        number = 0
        with pytest.raises(RegistryUnavailable, match="SQLITE_FULL"):
            while True:
                why = secrets.token_hex(2000)
                many = [async_registry.ask(registry.history.add_event, "t", "a", "daemon", why, NOW) for _ in range(10)]
                await asyncio.gather(*many)
                number += len(many)
        async_registry.close()
        return number

    assert asyncio.run(play()) * 4000 > 8 * MIB
    assert (place / "reserve").stat().st_size == 0
    again = Registry(f"sqlite:///{place}/registry.db").open()
    assert len(again.history.events(0, agent_id="a")) > 20
    again.close()


INSIDE = """
import sys
from datetime import UTC, datetime
from watchdog.core.agent import Registration, Status
from watchdog.registry.registry import Registry
from watchdog.registry.rows import SweepRow

registry = Registry(f"sqlite:///{sys.argv[1]}/registry.db").open()
names = [f"a{n}" for n in range(3000)]
with registry.engines.group():
    for name in names:
        registry.agents.add(Registration(name, name, 0, "h", "b"), Status.RUNNING, datetime.now(UTC), "t")
    registry.agents.save_sweep([SweepRow(name, 1, 1, 1, True, note="x" * 200) for name in names])
print("committed")
"""


@needs_root
def test_a_full_var_tmp_does_not_affect_the_registry(tmp_path: Path) -> None:
    """Any user can fill /var/tmp, where SQLite by default keeps the journal of a savepoint beyond 64 KB.

    At f87b3bd: `SQLITE_FULL: database or disk is full` for a sweep of 3,000 agents, on a disk with room.
    """
    script = tmp_path / "inside.py"
    script.write_text(INSIDE)
    state = tmp_path / "state"
    state.mkdir()
    full = "mount -t tmpfs -o size=64k none /var/tmp; cat /dev/zero > /var/tmp/blob 2>/dev/null"
    words = f'{full}; exec "$0" {script} {state}'
    environ = {key: value for key, value in os.environ.items() if key not in ("SQLITE_TMPDIR", "TMPDIR")}
    done = subprocess.run(
        ["unshare", "-m", "/bin/sh", "-c", words, sys.executable],
        env={**environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "committed\n", done.stderr


@needs_root
def test_the_write_ahead_log_keeps_its_room(mount: Mount) -> None:
    """After checkpoints, and when another daemon opens the registry; zeros at its end are no frames."""
    place = mount("64m")
    for turn in range(2):
        registry = Registry(f"sqlite:///{place}/registry.db").open()
        assert (place / "registry.db-wal").stat().st_size == 8 * MIB
        add(registry, f"a{turn}")
        for _ in range(300):
            registry.history.add_event("t", f"a{turn}", "t", "x" * 4000, NOW)
        registry.agents.save_sweep([SweepRow(f"a{turn}", 1, 1, 1, True)])
        assert (place / "registry.db-wal").stat().st_size == 8 * MIB
        with registry.engines.begin(registry.engines.durable) as connection:
            assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
        copy = Registry(f"sqlite:///{place}/copy.db")
        (place / "copy.db").write_bytes((place / "registry.db").read_bytes())  # as after a crash
        (place / "copy.db-wal").write_bytes((place / "registry.db-wal").read_bytes())
        copy.open()
        assert len(copy.history.events(0, agent_id=f"a{turn}")) == 301
        copy.close()
        (place / "copy.db").unlink()
        registry.close()


def test_a_disk_that_hangs_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round ends, its thread is left to the disk, and the next round does not try again."""
    answered = threading.Event()
    asked = []
    monkeypatch.setattr(disk_reserve, "PATIENCE", 0.1)
    made = Reserve(str(tmp_path), "", Recorder())

    def look(self: Reserve) -> None:
        asked.append(1)
        answered.wait(60)

    monkeypatch.setattr(Reserve, "look", look)
    try:
        asyncio.run(made.round())
        asyncio.run(made.round())
        assert asked == [1]
    finally:
        answered.set()
