"""What git ignores is work, unless it can be made again; nothing of it is deleted after a while."""

import json
import os
import time
from pathlib import Path

import pytest

from tests.owner.finders.test_expired_trash import AGENT, aged, known, look
from tests.owner.repositories import Repository, context, git
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome
from watchdog.owner.finders import expired_trash
from watchdog.owner.git import ignored_files
from watchdog.owner.git.restore import restorable, restore
from watchdog.owner.hooks.worktree import worktree

PAGE = Path(__file__).parents[3] / "config/doc/cleanup.md"
IGNORED = ".env\n*.sqlite\nnode_modules/\n.venv/\nenv/\ntarget/\nbuild/\ncaches/\n*.log\nempty\nlink\n"


def write(top: Path, name: str, text: str = "x\n") -> None:
    path = top / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def listed(repository: Repository) -> list[dict[str, object]]:
    """What `restore` names, as the daemon asks: by the common dir that it remembers."""
    found = restorable([str(repository.main / ".git")])["found"]
    assert isinstance(found, list)
    return found


@pytest.fixture
def path(repository: Repository) -> Path:
    """A clean worktree with work that git ignores, and much that can be made again."""
    (repository.main / ".gitignore").write_text(IGNORED)
    git(repository.main, "add", "-A")
    git(repository.main, "commit", "-qm", "ignore")
    tree = repository.worktree()
    write(tree, ".env", "secret\n")
    write(tree, "sub/data.sqlite", "rows\n")
    write(tree, "node_modules/a/b.js")
    write(tree, "sub/node_modules/c.js")
    write(tree, ".venv/pyvenv.cfg")
    write(tree, ".venv/bin/python")
    write(tree, "caches/CACHEDIR.TAG", ignored_files.SIGNATURE.decode())
    write(tree, "caches/big")
    write(tree, "empty", "")
    (tree / "link").symlink_to("/etc/hosts")
    return tree


def test_work_is_told_from_what_can_be_made_again(path: Path) -> None:
    """By its name, by what lies in it or beside it, or since it says so."""
    write(path, "env/mine.txt")  # no environment of Python's
    write(path, "build/report.txt")  # nothing here builds
    found = ignored_files.look(str(path), {".gitignore", "file"}, None)
    assert found.work == [".env", "build/report.txt", "env/mine.txt", "sub/data.sqlite"]
    assert sorted(found.rebuildable) == [".venv", "caches", "node_modules", "sub/node_modules"]
    write(path, "Makefile")
    assert "build" in ignored_files.look(str(path), {".gitignore", "file", "Makefile"}, None).rebuildable
    tracked = {".gitignore", "file", "Makefile", "build/kept"}  # a directory that git has a part of is no output
    assert "build/report.txt" in ignored_files.look(str(path), tracked, None).work


def test_a_copy_of_the_main_checkouts_is_none(repository: Repository, path: Path) -> None:
    """Set-up scripts copy `.env` into each worktree; a link to it, or another content, is no copy."""
    write(repository.main, ".env", "secret\n")
    (repository.main / "sub").mkdir()
    os.link(path / "sub" / "data.sqlite", repository.main / "sub" / "data.sqlite")
    found = ignored_files.look(str(path), {".gitignore", "file"}, str(repository.main))
    assert (found.copies, found.work) == ([".env"], ["sub/data.sqlite"])


@pytest.mark.parametrize("dirty", ["keep", "rescue"])
def test_it_is_kept_without_limit_and_named(repository: Repository, path: Path, dirty: str) -> None:
    """Case P8: after the retention what can be made again has gone, and all else comes back."""
    if dirty == "rescue":
        write(path, "file", "changed\n")
    settings = hooks.CleanupSettings(dirty_worktree=dirty)

    result = worktree(context(worktree=str(path)), settings)

    assert result.outcome is HookOutcome.DONE, result.message
    assert "without limit" in result.message and "'.env', 'sub/data.sqlite'" in result.message
    found = restorable([str(repository.main)])["found"]
    assert isinstance(found, list)
    assert [one["ignored"] for one in found] == [[".env", "sub/data.sqlite"]]
    container = repository.trash / AGENT
    aged(container, 100)
    (finding,) = look(repository, settings)
    assert finding.action == "remove" and "'.env'" in finding.why
    assert expired_trash.act(finding, settings, known(repository)).outcome is HookOutcome.DONE
    assert sorted(one.name for one in (container / "tree").iterdir()) == sorted(
        [".env", ".git", ".gitignore", "empty", "file", "link", "sub"]
    )
    (finding,) = look(repository, settings)
    assert finding.action == "keep"
    assert "kept without limit: it holds '.env', 'sub/data.sqlite'" in finding.why
    told = restore(AGENT, [str(repository.main)])["message"]
    assert "with '.env', 'sub/data.sqlite'" in str(told)
    assert ((path / ".env").read_text(), (path / "sub" / "data.sqlite").read_text()) == ("secret\n", "rows\n")
    assert git(path, "status", "--porcelain") == ("" if dirty == "keep" else " M file\n")


def test_what_can_be_made_again_goes_in_rounds(
    repository: Repository, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the time that it has lain there does not begin anew with each."""
    settings = hooks.CleanupSettings()
    assert worktree(context(worktree=str(path)), settings).outcome is HookOutcome.DONE
    aged(repository.trash / AGENT, 100)
    monkeypatch.setattr(expired_trash, "ROUND", 2)
    rounds = 0
    while (finding := look(repository, settings)[0]).action == "remove":
        assert expired_trash.act(finding, settings, known(repository)).outcome is HookOutcome.DONE
        rounds += 1
    assert rounds > 2
    assert not (repository.trash / AGENT / expired_trash.REBUILDABLE).exists()


def test_a_copy_whose_original_has_changed_since_is_work(repository: Repository, path: Path) -> None:
    """The main checkout's was edited, or deleted, while the tree lay in the trash."""
    write(repository.main, ".env", "secret\n")
    write(repository.main, "sub/data.sqlite", "rows\n")
    assert "without limit" not in worktree(context(worktree=str(path)), hooks.CleanupSettings()).message
    aged(repository.trash / AGENT, 100)
    settings = hooks.CleanupSettings()
    assert [(one.action, "holds" in one.why) for one in look(repository, settings)] == [("remove", False)]
    write(repository.main, ".env", "new\n")
    (finding,) = look(repository, settings)
    assert "it holds '.env'" in finding.why
    assert [(one["agent_id"], one["ignored"], one["ignored_count"]) for one in listed(repository)] == [
        (AGENT, [".env"], 1)
    ]


@pytest.mark.parametrize("broken", ["manifest.json", "config", "refs"])
def test_all_that_is_named_as_kept_is_listed(repository: Repository, path: Path, broken: str) -> None:
    """Without a record of it; in a repository that git refuses; with a rescue ref away."""
    write(path, "file", "changed\n")
    settings = hooks.CleanupSettings(dirty_worktree="rescue")
    assert worktree(context(worktree=str(path)), settings).outcome is HookOutcome.DONE
    common = repository.main / ".git"
    if broken == "config":
        (common / "config").write_text("[broken\n")
    elif broken == "refs":
        git(repository.main, "update-ref", "-d", f"refs/agent-watchdog/rescue/{AGENT}/files")
    else:
        (repository.trash / AGENT / broken).write_text("{")
    aged_at = time.time() - 100 * 3600
    os.utime(repository.trash / AGENT, (aged_at, aged_at))
    if broken != "manifest.json":
        aged(repository.trash / AGENT, 100)
    findings = look(repository, settings)
    assert findings and {one.action for one in findings} == {"keep"}
    assert [one["agent_id"] for one in listed(repository) if one["restorable"] or "refs" not in one] == [AGENT]


def test_what_an_older_version_put_there_is_looked_at_now(repository: Repository, path: Path) -> None:
    """Its record says nothing of ignored files; with nothing but what can be made again it goes."""
    settings = hooks.CleanupSettings()
    assert worktree(context(worktree=str(path)), settings).outcome is HookOutcome.DONE
    record = repository.trash / AGENT / "manifest.json"
    old = json.loads(record.read_text())
    for key in ("ignored", "copies", "rebuildable"):
        del old[key]
    record.write_text(json.dumps(old))
    aged(repository.trash / AGENT, 100)
    (finding,) = look(repository, settings)
    assert "'.env', 'sub/data.sqlite'" in finding.why
    assert [one["ignored"] for one in listed(repository)] == [[".env", "sub/data.sqlite"]]
    (repository.trash / AGENT / "tree" / ".env").unlink()
    (repository.trash / AGENT / "tree" / "sub" / "data.sqlite").unlink()
    aged(repository.trash / AGENT, 100)
    (finding,) = look(repository, settings)
    assert finding.action == "remove" and "holds" not in finding.why


def test_an_operator_adds_names(repository: Repository, path: Path) -> None:
    """`cleanup.rebuildable`."""
    write(path, "run.log")
    (path / ".env").unlink()
    settings = hooks.CleanupSettings(rebuildable=("*.log", "*.sqlite"))
    result = worktree(context(worktree=str(path)), settings)
    assert result.outcome is HookOutcome.DONE and "without limit" not in result.message


def test_a_record_has_room_for_so_much() -> None:
    """A copy that it does not hold counts as work."""
    many = [f"{number:0200}" for number in range(100)]
    bounded = ignored_files.Ignored([], many, many).bounded()
    assert len(bounded.copies) < 100
    assert len(bounded.copies) + len(bounded.work) == 100
    assert len(json.dumps(bounded.rebuildable)) <= ignored_files.ROOM


def test_the_table_stands_in_the_document() -> None:
    """All of it, so that no one has to read the code to know what is deleted after a while."""
    text = PAGE.read_text()
    assert [name for name in (*ignored_files.DIRECTORIES, *ignored_files.FILES) if f"`{name}`" not in text] == []
