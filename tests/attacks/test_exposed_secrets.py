"""What a user may simply read (L2): `--check` and `doctor` warn of each.

At f87b3bd `--check` said "fine", and nothing else, for a world-readable configuration with a database password.
Siblings that were found: a group's reading, a backup and an environment file beside it, secrets in Environment= of a
drop-in and among the arguments of commands, a registry and a log that others may read.
"""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import BIN

pytestmark = pytest.mark.attacks

SECRET = "hunter2-in-the-clear"
URL = f'[registry]\nurl = "postgresql://wd:{SECRET}@db/wd"\n'


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that everybody may pass; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def check(place: Path, text: str, mode: int, gid: int | None = None) -> str:
    """What `--check` warns of; never the secret itself."""
    config = place / "agent-watchdog.toml"
    config.write_text(f'[daemon]\nstate_dir = "{place}/s"\nruntime_dir = "{place}/r"\n' + text)
    if gid is not None:
        os.chown(config, -1, gid)
    config.chmod(mode)
    command = [str(BIN / "agent-watchdogd"), "--check", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stderr + done.stdout
    return done.stderr


def test_a_password_that_everybody_may_read_is_warned_of(place: Path) -> None:
    assert f"every user (mode 0644) may read {place}/agent-watchdog.toml" in check(place, URL, 0o644)
    assert check(place, URL, 0o600) == ""
    assert check(place, "", 0o644) == ""
    place.chmod(0o700)
    assert check(place, URL, 0o644) == ""  # no other user else comes to it


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a group that it is not in")
def test_a_group_that_may_read_it_counts(place: Path) -> None:
    assert "group 61001 (mode 0640) may read" in check(place, URL, 0o640, gid=61001)
    assert check(place, URL, 0o640, gid=0) == ""


@pytest.mark.parametrize("name", ["agent-watchdog.toml.bak", "agent-watchdog.toml~", "database.env"])
def test_so_do_files_beside_it(place: Path, name: str) -> None:
    beside = place / name
    beside.write_text(f"PGPASSWORD={SECRET}\n")
    beside.chmod(0o644)
    assert f"every user (mode 0644) may read {beside}" in check(place, "", 0o600)
    beside.chmod(0o600)
    assert check(place, "", 0o600) == ""


def test_a_secret_among_arguments_is_seen_by_everybody(place: Path) -> None:
    """Whatever the mode of the file."""
    text = f"""[notify]\non = ["agent.ended"]\ncommand = ["/bin/echo", "--token={SECRET}"]\n"""
    text += f"""[kill]\nnudge_command = ["/bin/echo", "https://u:{SECRET}@host/"]\n"""
    text += (
        f"""[[hook]]\nname = "h"\non = ["killed"]\ncommand = ["/bin/echo", "-H", "Authorization: Bearer {SECRET}"]\n"""
    )
    said = check(place, text, 0o600)
    for key in ("notify.command", "kill.nudge_command", "hook 'h': command"):
        assert f"{key}: a secret is among its arguments" in said


def test_a_registry_and_logs_that_others_may_read(place: Path) -> None:
    for name in ("registry.db", "registry.db-wal", "w.log", "w.log.1"):
        (place / name).touch()
        (place / name).chmod(0o644)
    said = check(place, f'[registry]\nurl = "sqlite:///{place}/registry.db"\n[log]\nfile = "{place}/w.log"\n', 0o600)
    for name in ("registry.db", "registry.db-wal", "w.log", "w.log.1"):
        assert f"may read {place}/{name}, which holds notes" in said


def test_a_secret_in_the_environment_of_the_unit(tmp_path: Path) -> None:
    """A drop-in is for everybody to read, and `systemctl show` tells it."""
    (tmp_path / "a.conf").write_text(f"[Service]\nEnvironment=PGPASSWORD={SECRET}\n")
    (tmp_path / "b.conf").write_text("[Service]\nEnvironmentFile=/etc/agent-watchdog/secret.env\n")
    from watchdog.service import exposure  # here, as f87b3bd has none: the others can be played there

    (told,) = exposure._drop_ins(str(tmp_path))
    assert told.startswith(f"{tmp_path}/a.conf: a secret is in Environment=")
    assert SECRET not in told
