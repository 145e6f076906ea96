"""Registrations are backed up, and a backup counts for no more than it says."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from tests.control.office import Recorder as Kept
from tests.registry.test_registration_codec import SIMPLE
from watchdog.agents.agent import Agent
from watchdog.agents.registration_backup import RegistrationBackup
from watchdog.clock import Clock
from watchdog.core.agent import Policy, Status


def test_backups_are_kept_for_agents_that_no_other_program_reports(tmp_path: Path) -> None:
    """`run`, hooks and foreign registries report theirs again; a broken backup affects no other."""
    copies, told = RegistrationBackup(str(tmp_path), Clock(), log := Kept()), tmp_path / "agents"
    assert copies.read() == []
    for agent_id, source in (("a" * 32, "register"), ("b" * 32, "run"), ("c" * 32, "hook")):
        copies.keep(Agent(replace(SIMPLE, agent_id=agent_id, source=source), Policy(), Status.RUNNING))
    assert [row.agent_id for row in copies.read()] == ["a" * 32]
    assert {path.stat().st_mode & 0o777 for path in told.iterdir()} == {0o600}
    written = (told / ("a" * 32)).stat().st_ino
    same = Agent(replace(SIMPLE, agent_id="a" * 32), Policy(), Status.RUNNING)
    for keeper in (copies, later := RegistrationBackup(str(tmp_path), Clock(), log)):
        later.read()
        keeper.keep(same)
        assert keeper.settled()
    assert (told / ("a" * 32)).stat().st_ino == written, "the same is not written again, nor by the next daemon"
    same.reg = replace(same.reg, worktree="/w")
    copies.keep(same)
    assert copies.settled()
    assert (told / ("a" * 32)).stat().st_ino != written

    (told / "junk").write_bytes(b"\xff")
    (told / "e.new").touch()
    (told / "d").write_text((told / ("a" * 32)).read_text())
    assert [row.agent_id for row in copies.read()] == ["a" * 32]
    assert [event["event"] for event in log.events] == ["row.quarantined"] * 2
    copies.drop("a" * 32)
    copies.drop("none")
    assert copies.read() == []


def test_a_backup_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The registration continues: its row is what counts."""
    (tmp_path / "agents").symlink_to("/tmp")
    copies = RegistrationBackup(str(tmp_path), Clock(), log := Kept())
    copies.keep(Agent(SIMPLE, Policy(), Status.RUNNING))
    assert copies.settled()
    assert [event["event"] for event in log.events] == ["agent.not_copied"]


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: Path(path).write_text("words"), lambda path: None])
def test_no_start_fails_or_hangs_because_of_foreign_files_in_the_backups_place(tmp_path: Path, make: object) -> None:
    """In place of the directory, or of a backup; a FIFO would wait for a writer. It is reported."""
    assert callable(make)
    for place in ("a/agents", f"b/agents/{'c' * 32}"):
        (tmp_path / place).parent.mkdir(parents=True)
        make(tmp_path / place)
        copies = RegistrationBackup(str(tmp_path / place[0]), Clock(), log := Kept())
        assert copies.read() == []
        said = [one["event"] for one in log.events]
        assert said == ["row.quarantined"] * (tmp_path / place).exists()
