"""The message for a second daemon: where the first one can be reached, as far as that is known."""

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from watchdog.config import settings as config
from watchdog.config.paths import ensure_directories
from watchdog.errors import AlreadyRunning, ConfigError
from watchdog.host.instance_lock import InstanceLocks, PidFile, user_of_registry
from watchdog.telemetry import logger


def test_a_lock_is_released_whoever_else_has_its_descriptor(tmp_path: Path) -> None:
    """A forked child, or the rest of a process with a thread stuck in the kernel."""
    path = str(tmp_path / "lock")
    first = PidFile(path)
    copy = os.dup(first.fileno())  # shares the lock, as after fork(2)
    first.close()
    with pytest.raises(AlreadyRunning):
        PidFile(path)
    second = PidFile.__new__(PidFile)
    second._descriptor = copy
    second.release()
    PidFile(path).close()
    os.close(copy)


def test_the_first_ones_socket_is_named_if_known(tmp_path: Path) -> None:
    """The same runtime directory means the same socket; the same state directory alone does not."""
    file = tmp_path / "agent-watchdog.toml"
    file.touch()
    settings = replace(config.load(str(file)), runtime_dir=str(tmp_path / "run"), state_dir=str(tmp_path / "state"))
    settings = replace(settings, registry_url=f"sqlite:///{tmp_path}/registry.db")
    other = replace(settings, runtime_dir=str(tmp_path / "other"), registry_url=f"sqlite:///{tmp_path}/other.db")
    for each in (settings, other):
        ensure_directories(each.state_dir, each.runtime_dir)
    first = InstanceLocks(settings, logger.get_logger())

    with pytest.raises(AlreadyRunning, match=rf"pid {os.getpid()}\).*; its socket is {tmp_path}/run/control.sock; "):
        InstanceLocks(settings, logger.get_logger())
    with pytest.raises(AlreadyRunning, match=rf"{tmp_path}/state/.*give each daemon its own state_dir") as refused:
        InstanceLocks(other, logger.get_logger())
    assert f"{tmp_path}/other/control.sock" not in str(refused.value)

    first.close()
    InstanceLocks(other, logger.get_logger()).close()


USES = """
import sys
from watchdog.registry.registry import Registry
registry = Registry(sys.argv[1])
registry.open()
print("open", flush=True)
sys.stdin.read()
"""


def test_a_registry_that_is_in_use_by_another_name_is_refused(tmp_path: Path) -> None:
    """P5: a hard link has its own lock and WAL. If no process has it open, as with a backup, it is no obstacle."""
    places = [tmp_path / "one", tmp_path / "two"]
    each = []
    for place in places:
        (file := tmp_path / f"{place.name}.toml").touch()
        settings = replace(config.load(str(file)), runtime_dir=f"{place}/run", state_dir=str(place))
        each.append(replace(settings, registry_url=f"sqlite:///{place}/registry.db"))
        ensure_directories(str(place), f"{place}/run")
    argv = [sys.executable, "-c", USES, each[0].registry_url]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"open\n"
        os.link(places[0] / "registry.db", places[1] / "registry.db")
        with pytest.raises(AlreadyRunning, match=rf"pid {first.pid}\): .*two/registry.db is in use under another name"):
            InstanceLocks(each[1], logger.get_logger())
        assert user_of_registry(each[1]) == str(first.pid)
        first.kill()
    InstanceLocks(each[1], logger.get_logger()).close()
    assert user_of_registry(each[1]) is None


@pytest.mark.parametrize("name", ["agent-watchdogd.lock", "registry.db.lock", "agent-watchdog.pid"])
@pytest.mark.parametrize("left", [bytes(4), b"pid 17", b"half a wo", b"\xff\xfe", b"4711 was here\n" * 500])
def test_the_content_of_a_lock_file_prevents_no_start(tmp_path: Path, name: str, left: bytes) -> None:
    """A power cut leaves zero bytes there; the lock decides, and the text is for people."""
    path = tmp_path / name
    path.write_bytes(left)
    first = PidFile(str(path))
    with pytest.raises(AlreadyRunning, match=r"already running \(pid not told yet\)"):
        PidFile(str(path))
    first.write(os.getpid())
    assert path.read_text() == f"{os.getpid()}\n"
    first.close()


def test_a_file_with_another_name_is_used_only_if_it_contains_a_pid(tmp_path: Path) -> None:
    """`--pidfile thesis` is a typing error; `--pidfile daemon`, left by a crash, is not."""
    path = tmp_path / "thesis"
    path.write_text("my thesis\n")
    with pytest.raises(ConfigError, match="something else than a pid file"):
        PidFile(str(path))
    assert path.read_text() == "my thesis\n"
    for left in (b"4711\n", b"", bytes(5)):
        path.write_bytes(left)
        PidFile(str(path)).close()


def test_a_lock_beside_a_registry_that_never_existed_is_no_trace_of_one() -> None:
    """A first start that fails leaves none; once the registry exists, the lock stays, and the next start sees it."""
    with tempfile.TemporaryDirectory() as directory:
        file, state = Path(directory, "config.toml"), Path(directory, "s")
        file.write_text(f'[daemon]\nstate_dir = "{state}"\nruntime_dir = "{directory}/r"\n')
        settings = config.load(str(file))
        ensure_directories(settings.state_dir, settings.runtime_dir)
        for begun in (False, True, True):
            locks = InstanceLocks(settings, logger.get_logger())
            assert locks.had_registry == (state / "registry.db").exists()
            if begun:
                (state / "registry.db").touch()
            locks.close()
            assert (state / "registry.db.lock").exists() == begun
