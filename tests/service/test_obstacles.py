"""Obstacles to a start in its directories: `--check` reports them, changes nothing, and its command removes them."""

import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.world import BIN, World, make_world
from watchdog.clock import Clock
from watchdog.config import settings as config
from watchdog.config.paths import ensure_directories
from watchdog.errors import WatchdogError
from watchdog.host.instance_lock import InstanceLocks
from watchdog.registry.registry import Registry
from watchdog.service.check import problems, warnings
from watchdog.telemetry import logger

Damage = Callable[[Path], object]
ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to give a file to somebody else")


def directory(path: Path) -> None:
    (path / "x").mkdir(parents=True)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.symlink_to(f"{path}.nowhere")


def bound(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def words(path: Path) -> None:
    path.write_text("not ours")


@pytest.fixture
def settings() -> Iterator[config.Settings]:
    """Of a daemon that has run here once, in a short path."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        file = Path(made, "config file.toml")
        file.write_text(f'[daemon]\nstate_dir = "{made}/s t"\nruntime_dir = "{made}/r"\n')
        found = config.load(str(file))
        assert starts(found) is None
        yield found
        subprocess.run(["chattr", "-R", "-i", "-a", made], check=False, capture_output=True)


def starts(settings: config.Settings) -> str | None:
    """What a start needs of its paths, in its order; returns why it fails."""
    try:
        ensure_directories(settings.state_dir, settings.runtime_dir)
        locks = InstanceLocks(settings, logger.get_logger())
        try:
            with closing(
                Registry(settings.registry_url)
            ) as registry:  # also one whose opening fails: otherwise a later
                registry.open()  # collection closes it and removes its -wal
                registry.history.add_hold(None, "a write", os.geteuid(), Clock().now().wall, host="here")
        finally:
            locks.close()
    except WatchdogError as error:
        return str(error)
    return None


def tree(settings: config.Settings) -> list[tuple[object, ...]]:
    """Everything below, in its present state."""
    found: list[tuple[object, ...]] = []
    for path in sorted(Path(settings.state_dir).parent.rglob("*")):
        one = path.lstat()
        found.append((str(path), one.st_mode, one.st_ino, one.st_size, one.st_mtime_ns))
    return found


def one_that_works(settings: config.Settings, path: Path) -> str:
    """The only obstacle, which is at that path; its command is run, and the daemon starts."""
    assert starts(settings) is not None, "a start fails by it"
    before = tree(settings)
    (said,) = problems(settings)
    assert tree(settings) == before
    assert said.startswith(f"{path}: "), said
    command = said.partition("; do: ")[2]
    subprocess.run(["sh", "-c", command], check=True)
    assert problems(settings) == []
    assert starts(settings) is None
    return said


FILES = ("s t/registry.db", "s t/registry.db.lock", "s t/registry.db-wal", "s t/registry.db-shm")
LOCKS = ("s t/agent-watchdogd.lock", "r/agent-watchdogd.lock")


@pytest.mark.parametrize(
    ("place", "damage"),
    [
        *((place, damage) for place in (*FILES, *LOCKS) for damage in (directory, fifo, dangling, bound)),
        *((place, damage) for place in ("r", "s t") for damage in (words, fifo, dangling)),
    ],
)
def test_a_wrong_kind_of_file_in_the_place_of_a_file_or_directory(
    settings: config.Settings, place: str, damage: Damage
) -> None:
    """The command moves it aside, whole."""
    path = Path(settings.state_dir).parent / place
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    damage(path)
    said = one_that_works(settings, path)
    assert f"mv -T {path!s}" in said or f"mv -T '{path}'" in said
    assert os.path.lexists(f"{path}.aside")


@pytest.mark.parametrize("letter", ["i", "a"])
@pytest.mark.parametrize("place", ["s t/registry.db", "s t/registry.db.lock", "r/agent-watchdogd.lock"])
def test_a_flag_that_keeps_even_root_from_writing(settings: config.Settings, place: str, letter: str) -> None:
    """chattr(1), if this file system supports it."""
    path = Path(settings.state_dir).parent / place
    if subprocess.run(["chattr", f"+{letter}", path], capture_output=True, check=False).returncode:
        pytest.skip("needs root, and a file system with such flags")
    assert f"chattr -{letter} " in one_that_works(settings, path)


def test_a_state_directory_that_is_immutable(settings: config.Settings) -> None:
    """SQLite makes its own two files there."""
    path = Path(settings.state_dir)
    if subprocess.run(["chattr", "+i", path], capture_output=True, check=False).returncode:
        pytest.skip("needs root, and a file system with such flags")
    one_that_works(settings, path)


@ROOT
@pytest.mark.parametrize("place", ["s t", "s t/registry.db", "s t/registry.db.lock", "r", "r/agent-watchdogd.lock"])
def test_another_users(settings: config.Settings, place: str) -> None:
    """Given to the uid that the daemon runs as."""
    path = Path(settings.state_dir).parent / place
    os.chown(path, 65534, 65534)
    assert "chown " in one_that_works(settings, path)


@pytest.mark.parametrize("place", ["s t", "r"])
def test_writable_by_others(settings: config.Settings, place: str) -> None:
    """As with a wide umask of its creator."""
    path = Path(settings.state_dir).parent / place
    path.chmod(0o777)
    assert "chmod 7" in one_that_works(settings, path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write whatever the mode says")
@pytest.mark.parametrize("place", ["s t", "s t/registry.db", "s t/registry.db.lock", "r"])
def test_closed_to_its_own_uid(settings: config.Settings, place: str) -> None:
    """Opened again by its owner."""
    path = Path(settings.state_dir).parent / place
    path.chmod(0)
    assert "chmod " in one_that_works(settings, path)


def test_a_registry_of_a_newer_version(settings: config.Settings) -> None:
    """Moved aside it counts as missing, so that the next start holds all."""
    path = Path(settings.state_dir, "registry.db")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    assert "revision '9999'" in one_that_works(settings, path)
    assert Path(f"{path}.newer").exists()


def test_a_lock_with_another_name(settings: config.Settings) -> None:
    """A backup by hard links: it would be overwritten in both."""
    path = Path(settings.state_dir, "registry.db.lock")
    os.link(path, f"{path}.copy")
    assert "; do: rm " in one_that_works(settings, path)


def test_a_link_to_the_right_kind_need_not_be_moved(settings: config.Settings) -> None:
    """Configure the link's target instead."""
    for place, key in (("s t/registry.db", "registry.url"), ("r", "daemon.runtime_dir"), ("s t", "daemon.state_dir")):
        path = Path(settings.state_dir).parent / place
        real = path.rename(path.with_name(f"real{path.name}"))
        path.symlink_to(real)
        (said,) = problems(settings)
        assert f"; do: set {key} = " in said and str(real) in said
        path.unlink()
        real.rename(path)


def test_a_log_that_is_a_socket_is_a_warning(settings: config.Settings) -> None:
    """The daemon starts, and its lines go to stderr."""
    log = Path(settings.state_dir).parent / "d.log"
    bound(log)
    with Path(settings.file or "").open("a") as file:
        file.write(f'[log]\nfile = "{log}"\n')
    assert any("is a socket" in one for one in warnings(config.load(settings.file)))


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world()


def test_doctor_has_the_same_text_and_the_daemon_starts_after_its_command(world: World) -> None:
    """It does not blame the configuration, and names no other remedy for that path."""
    lock, registry = world.state / "registry.db.lock", world.state / "registry.db"
    lock.mkdir()
    fifo(registry)
    check = subprocess.run(
        [str(BIN / "agent-watchdogd"), "--check", "--config", str(world.config)],
        env=world.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert check.returncode == 78
    said = [line.removeprefix("agent-watchdogd: ") for line in check.stderr.splitlines()]
    doctor = world.cli("doctor", "--config", str(world.config), check=False)
    assert doctor.returncode == 1
    for what, _, command in (line.partition("; do: ") for line in said):
        assert f"fault  {what}\n       the daemon does not start with it\n       do: {command}, then " in doctor.stdout
        assert doctor.stdout.count(f"  {what.partition(':')[0]} ") == 0, "said once"
        subprocess.run(["sh", "-c", command], check=True)
    assert "correct the configuration" not in doctor.stdout and "chmod" not in doctor.stdout
    assert "remove what is in the way (below), then " in doctor.stdout
    world.start()
