"""The trash is emptied after its time, only of what is held elsewhere, a round at a time."""

import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from watchdog.core import hooks
from watchdog.core.findings import Finding, KnownAgents
from watchdog.core.hooks import HookOutcome
from watchdog.errors import OwnerCallFailed
from watchdog.owner import paths
from watchdog.owner.finders import expired_trash
from watchdog.owner.git import worktree_trash
from watchdog.owner.git.restore import restorable, restore
from watchdog.owner.hooks.worktree import worktree

AGENT = "a" * 32
SETTINGS = hooks.CleanupSettings(dirty_worktree="rescue", trash_retention_hours=72)


@pytest.fixture
def container(repository: Repository) -> Path:
    """A rescued worktree in the trash."""
    path = repository.worktree()
    (path / "file").write_text("changed\n")
    (path / "ignored").mkdir()
    (path / "ignored" / "closed").mkdir(mode=0o500)
    assert worktree(context(worktree=str(path)), SETTINGS).outcome is HookOutcome.DONE
    return repository.trash / AGENT


def aged(container: Path, hours: float) -> None:
    """It has lain there for so long."""
    at = time.time() - hours * 3600
    manifest = json.loads((container / "manifest.json").read_text())
    manifest["trashed_at"] = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(at))
    (container / "manifest.json").write_text(json.dumps(manifest))
    os.utime(container, (at, at))


def known(repository: Repository, **changes: object) -> KnownAgents:
    return KnownAgents(**{"commons": (str(repository.main / ".git"),), "ended": {AGENT: 1e6}, **changes})  # type: ignore[arg-type]


def look(repository: Repository, settings: hooks.CleanupSettings = SETTINGS, **changes: object) -> list[Finding]:
    return list(expired_trash.look(settings, known(repository, **changes)))


def test_it_goes_after_its_time_and_its_refs_stay(repository: Repository, container: Path) -> None:
    """Not a minute before; then tree and entry go, and `restore` names the refs."""
    aged(container, 71.9)
    assert look(repository) == []
    aged(container, 72.1)
    assert look(repository, living=frozenset({AGENT})) == []
    (finding,) = look(repository)
    assert finding.action == "remove"

    result = expired_trash.act(finding, SETTINGS, known(repository))

    assert result.outcome is HookOutcome.DONE, result.message
    assert list(repository.trash.iterdir()) == []
    assert git(repository.main, "show", f"refs/agent-watchdog/rescue/{AGENT}/files:file") == "changed\n"
    found = restorable([str(repository.main)])["found"]
    assert isinstance(found, list)
    assert [one["restorable"] for one in found] == [False]
    with pytest.raises(OwnerCallFailed, match=r"worktree add PATH refs/agent-watchdog/rescue/a*/files"):
        restore(AGENT, [str(repository.main)])


def test_what_somebody_uses_in_the_trash_stays(repository: Repository, container: Path) -> None:
    """A shell that looks at what lies there."""
    aged(container, 72.1)
    (finding,) = look(repository)
    script = "cd tree && echo ready && exec cat"
    with subprocess.Popen(
        ["sh", "-c", script], cwd=container, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdout is not None and shell.stdout.readline() == "ready\n"
        result = expired_trash.act(finding, SETTINGS, known(repository))
        assert shell.stdin is not None
        shell.stdin.close()
    assert result.outcome is HookOutcome.KEPT
    assert f"in use: process {shell.pid} has its cwd at {container}/tree" in result.message
    assert expired_trash.act(finding, SETTINGS, known(repository)).outcome is HookOutcome.DONE


def test_what_a_set_clock_made_old_is_not_due(repository: Repository, container: Path) -> None:
    """Case Q5: the clock was set four days forward. It goes when it has truly lain there for so long."""
    stepped = replace(SETTINGS, stepped_seconds=4 * 86_400)
    aged(container, 4 * 24 + 1)
    assert look(repository, stepped) == []
    aged(container, 7 * 24 + 1)
    (finding,) = look(repository, stepped)
    assert finding.action == "remove"


def test_without_its_refs_it_may_be_the_only_copy(repository: Repository, container: Path) -> None:
    """A mirror's `fetch --prune` deletes refs that its remote does not have."""
    aged(container, 100)
    git(repository.main, "update-ref", "-d", f"refs/agent-watchdog/rescue/{AGENT}/files")

    (finding,) = look(repository)

    assert finding.action == "keep"
    assert "the only copy" in finding.why
    asked = Finding(finding.kind, finding.path, AGENT, "", "remove")
    assert expired_trash.act(asked, SETTINGS, known(repository)).outcome is HookOutcome.KEPT
    assert (container / "tree" / "file").exists()


def test_anothers_trash_has_the_time_that_it_was_given(repository: Repository, container: Path) -> None:
    """An id that we know nothing of: a daemon before us, or beside us, put it there."""
    aged(container, 2)
    hasty = hooks.CleanupSettings(trash_retention_hours=1)

    assert look(repository, hasty, ended={}) == []
    assert [one.action for one in look(repository, hasty)] == ["remove"]


def test_any_number_of_one_agents_are_being_deleted(repository: Repository, container: Path) -> None:
    """A restore that is killed while it deletes leaves one each time: the name for the next one must not grow."""
    trash_bin = paths.open_directory(str(repository.trash))
    for _ in range(300):
        (container / "more").mkdir(parents=True, mode=0o700, exist_ok=True)
        worktree_trash.give_up(trash_bin, AGENT)
    os.close(trash_bin)

    found = look(repository)

    assert {(one.agent_id, one.action) for one in found} == {(AGENT, "remove")}
    assert len(found) == 300
    assert expired_trash.act(found[-1], SETTINGS, known(repository)).outcome is HookOutcome.DONE
    assert len(list(repository.trash.iterdir())) == 299


def test_it_is_deleted_in_rounds_and_not_restored_meanwhile(
    repository: Repository, container: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a tree is no worktree."""
    aged(container, 100)
    monkeypatch.setattr(expired_trash, "ROUND", 2)
    (finding,) = look(repository)

    rounds = [expired_trash.act(finding, SETTINGS, known(repository))]
    assert restorable([str(repository.main)])["problems"] == []
    with pytest.raises(OwnerCallFailed, match="was emptied"):
        restore(AGENT, [str(repository.main)])
    while rounds[-1].details.get("more"):
        rounds.append(expired_trash.act(look(repository)[0], SETTINGS, known(repository)))

    assert len(rounds) > 3
    assert list(repository.trash.iterdir()) == []


def test_one_trash_that_cannot_be_looked_at_hides_no_other(repository: Repository, container: Path) -> None:
    """It is told, and the next one is emptied."""
    aged(container, 100)
    other = repository.place / "other" / "agent-watchdog"
    other.mkdir(parents=True)
    other.chmod(0o777)

    found = look(repository, commons=(str(other.parent), str(repository.main / ".git")))

    assert [one.action for one in found] == ["keep", "remove"]
    assert "others may enter it" in found[0].why


def test_what_is_not_understood_stays(repository: Repository, container: Path) -> None:
    """No record, a path that is no trash, a repository that nobody named."""
    (container / "manifest.json").unlink()
    os.utime(container, (0, 0))
    assert [one.action for one in look(repository)] == ["keep"]
    asked = Finding(expired_trash.KIND, str(container), AGENT, "", "remove")
    assert expired_trash.act(asked, SETTINGS, known(repository, commons=())).outcome is HookOutcome.KEPT
    assert (container / "tree").is_dir()
