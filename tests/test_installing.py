"""What `make install` looks at before it changes or stops anything (systemd/checks.py), with a daemon that runs."""

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import BIN, World, make_world

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "systemd"))
import install  # noqa: E402
from checks import room, tell_who_runs, would_start  # noqa: E402
from install import Manager, say_what_next, uninstall  # noqa: E402
from places import UNIT, Refused, Target, own_layout  # noqa: E402


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world()


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(own_layout(str(tmp_path)), "")


def test_a_broken_configuration_is_found_before_the_running_daemon_is_stopped(
    world: World, target: Target, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the new daemon, with the arguments of the one that runs; where none runs it is told, and stops nothing."""
    world.start()
    assert world.daemon is not None
    would_start(target, str(BIN.parent), world.daemon.pid, runs=True)  # its own lock is no obstacle

    world.config.write_text("[kil]\n")
    with pytest.raises(Refused, match=r"nothing was changed[\s\S]*kil: unknown key") as refused:
        would_start(target, str(BIN.parent), world.daemon.pid, runs=True)
    assert str(world.config) in str(refused.value)
    assert world.daemon.poll() is None

    config = Path(target.layout.config)
    config.parent.mkdir(parents=True)
    config.write_text("[kil]\n")
    would_start(target, str(BIN.parent), 0, runs=False)
    assert "will not start with this configuration" in capsys.readouterr().out


@pytest.mark.parametrize("on_path", [True, False])
def test_what_starts_it_without_systemd_works_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], on_path: bool
) -> None:
    """O18: also where the programs are not on the PATH, and below a directory with a space in its name."""
    home = tmp_path / "at home"
    target = Target(own_layout(str(home)), "")
    monkeypatch.setenv("PATH", target.layout.binaries if on_path else "/nowhere")
    program = Path(target.layout.binaries) / "agent-watchdogd"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "started $*"\n')
    program.chmod(0o755)

    say_what_next(target, Manager(target), new_here=True)

    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("no systemd here: ")]
    pasted = ["/bin/sh", "-c", line.partition(": ")[2]]
    assert subprocess.run(pasted, capture_output=True, text=True, check=False).stdout == "started --daemonize\n"


@pytest.mark.parametrize("systemd", [True, False])
def test_lingering_is_advised_only_where_there_is_systemd(
    target: Target, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], systemd: bool
) -> None:
    """Without it there is no loginctl, and nothing that could linger. The user's own manager may not run now."""
    manager = Manager(target)
    manager.present = False
    monkeypatch.setattr(install, "booted", lambda: systemd)
    monkeypatch.setattr(Manager, "running", lambda _: False)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)

    say_what_next(target, manager, new_here=True)

    assert ("loginctl enable-linger" in capsys.readouterr().out) == systemd


def test_a_full_disk_is_found_before_anything_is_built(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk of a test's is as full as that: what the kernel would say stands here."""
    room(target)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 40, 0, 80 << 20))
    with pytest.raises(Refused, match=r"80 MB are free on the disk of .*nothing was changed"):
        room(target)


def test_a_daemon_that_is_not_the_service_is_named(target: Target, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not restarted by an upgrade, and nobody would notice."""
    place = Path(target.layout.base) / "env-1" / "bin"
    place.mkdir(parents=True)
    shutil.copy("/bin/sh", place / "python")
    (place / "agent-watchdogd").write_text("echo ready; read line\n")
    daemon = subprocess.Popen(
        [place / "python", place / "agent-watchdogd"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert daemon.stdout is not None and daemon.stdout.readline() == "ready\n"
        tell_who_runs(target, daemon.pid)
        assert capsys.readouterr().out == ""
        tell_who_runs(target, 0)
        assert (
            f"process {daemon.pid} of uid {os.getuid()} is a daemon of env-1 and not the service"
            in capsys.readouterr().out
        )
    finally:
        daemon.communicate("\n", timeout=60)


def test_a_python_that_is_too_old_is_refused_in_one_line(tmp_path: Path) -> None:
    """Given by hand; whatever the installer would import from it."""
    done = subprocess.run(
        ["make", "-C", ROOT, "install", f"DESTDIR={tmp_path}/new", "PYTHON=/bin/false"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"EXTRAS": ""},
    )
    assert done.returncode != 0
    assert "PYTHON=/bin/false: no Python >= 3.11" in done.stderr
    assert not (tmp_path / "new").exists()


def test_what_enabled_it_goes_with_it_where_no_manager_can_be_told(tmp_path: Path) -> None:
    """Else `systemctl --user` complains of a unit without a file, for ever; another's links stay."""
    target = Target(own_layout("/home/one"), str(tmp_path))  # staged: no manager is asked, nothing of ours is stopped
    (unit,) = (name for name in target.layout.files if name.endswith(f"/{UNIT}"))
    target.put(unit, b"[Service]\n")
    target.manifest["files"] = {unit: target.sum_of(unit)}
    target.save()
    directory = target.path(unit).parent
    alone, beside = directory / "default.target.wants", directory / "timers.target.wants"
    for wants in (alone, beside):
        wants.mkdir()
        (wants / UNIT).symlink_to(target.path(unit))
    (beside / "other.service").symlink_to("/nowhere")

    uninstall(target)

    assert not target.path(unit).exists()
    assert not alone.exists()
    assert [path.name for path in beside.iterdir()] == ["other.service"]
