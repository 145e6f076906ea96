"""What a second daemon is told: where the first one is spoken to, as far as that can be known."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from watchdog import config, logs
from watchdog.errors import AlreadyRunning
from watchdog.lock import Locks, PidFile
from watchdog.places import ensure_directories


def test_a_lock_is_let_go_whoever_else_has_its_descriptor(tmp_path: Path) -> None:
    """A child that was forked, or what is left of a process of which a thread is stuck in the kernel."""
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


def test_the_first_ones_socket_is_named_where_it_is_known(tmp_path: Path) -> None:
    """The same runtime directory is the same socket; with the state directory alone in common it is another's."""
    file = tmp_path / "agent-watchdog.toml"
    file.touch()
    settings = replace(config.load(str(file)), runtime_dir=str(tmp_path / "run"), state_dir=str(tmp_path / "state"))
    other = replace(settings, runtime_dir=str(tmp_path / "other"))
    for each in (settings, other):
        ensure_directories(each.state_dir, each.runtime_dir)
    first = Locks(settings, logs.get_logger())

    with pytest.raises(AlreadyRunning, match=rf"pid {os.getpid()}\).*; its socket is {tmp_path}/run/control.sock; "):
        Locks(settings, logs.get_logger())
    with pytest.raises(AlreadyRunning, match=rf"{tmp_path}/state/.*right: a state_dir for each") as refused:
        Locks(other, logs.get_logger())
    assert f"{tmp_path}/other/control.sock" not in str(refused.value)

    first.close()
    Locks(other, logs.get_logger()).close()
