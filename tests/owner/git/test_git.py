"""What turns git's programs off, and what is known of a repository without asking git; attacks: tests/attacks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.owner.repositories import Repository, context, git
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import confinement
from watchdog.owner.git import worktrees
from watchdog.owner.git.git import Git, checkout_of, dirs_of
from watchdog.owner.hooks.worktree import worktree as hook


def test_every_filter_and_hook_of_the_configuration_is_off(repository: Repository) -> None:
    """By its own name, whatever is in that; also one that an include brings."""
    included = repository.place / "included"
    included.write_text('[filter "in"]\n\tclean = x\n[hook "in"]\n\tcommand = x\n')
    for key in ("filter.a=b.clean", "filter.c.d.process", "hook.e=f.command", "hook.g h.event"):
        git(repository.main, "config", key, "x")
    git(repository.main, "config", "include.path", str(included))
    asked = Git(str(repository.main), 20)
    for name in ("a=b", "c.d", "in"):
        for key, value in {"clean": "", "smudge": "", "process": "", "required": "false"}.items():
            assert asked.run("config", "--get", f"filter.{name}.{key}") == f"{value}\n"
    for name in ("e=f", "g h", "in"):
        assert asked.run("config", "--get", f"hook.{name}.enabled") == "false\n"


def test_a_git_that_is_late_names_where_it_was_asked(repository: Repository) -> None:
    """Case O36. A configuration that a FIFO continues is one that no git comes back from."""
    os.mkfifo(repository.place / "fifo")
    git(repository.main, "config", "include.path", str(repository.place / "fifo"))

    with pytest.raises(OwnerCallFailed, match=f"in '{repository.main}': does that hang"):
        Git(str(repository.main), 0.2)


ALIAS = """
import subprocess, sys
from watchdog.errors import OwnerCallFailed
from watchdog.owner import confinement
from watchdog.owner.git.git import Git
confinement.seal(confinement.NOTHING)
asked = Git(sys.argv[1], 20)
print(asked.run("--version").split()[:2])
try:
    print(asked.run("-c", "alias.x=!echo ran", "x"))
except OwnerCallFailed as error:
    print(error.reason)
print(subprocess.run(["echo", "free"], capture_output=True, text=True).stdout)
"""


@pytest.mark.skipif(confinement.landlock_abi() < 2, reason="this kernel has no Landlock")
def test_git_starts_no_other_program_and_its_caller_still_may(repository: Repository) -> None:
    """The fence is around the thread that starts git, not around the helper, which has others' programs to run."""
    argv = [sys.executable, "-c", ALIAS, str(repository.main)]
    ran = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[:3] == ["['git', 'version']", "git_failed", "free"]


def test_the_git_dirs_are_found_as_git_finds_them(repository: Repository) -> None:
    """Of a main checkout, a linked one, one with a relative pointer, and of a git dir itself."""
    tree, main = repository.worktree(), repository.main
    entry = main / ".git" / "worktrees" / "wt"
    assert dirs_of(str(main)) == (str(main / ".git"), str(main / ".git"))
    for place in (tree, entry):
        own, common = dirs_of(str(place))
        assert (os.path.realpath(own), os.path.realpath(common)) == (str(entry), str(main / ".git"))
    (tree / ".git").write_text("gitdir: ../main/.git/worktrees/wt\n")
    assert os.path.realpath(dirs_of(str(tree))[0]) == str(entry)
    assert checkout_of(str(entry)) == str(tree)
    assert checkout_of(str(main)) == str(main)


@pytest.mark.parametrize("words", ["", "x\n", "gitdir: \0\n"])
def test_what_is_no_pointer_of_gits_is_refused(repository: Repository, words: str) -> None:
    tree = repository.worktree()
    (tree / ".git").write_text(words)
    with pytest.raises(PathRefused) as caught:
        dirs_of(str(tree))
    assert caught.value.reason == "pointer"


def _linked(repository: Repository) -> Path:
    """A worktree with a gitlink that is committed and pushed, and whose directory is empty: it may go."""
    tree = repository.worktree()
    commit = git(repository.main, "rev-parse", "HEAD").strip()
    git(tree, "update-index", "--add", "--cacheinfo", f"160000,{commit},sub")
    (tree / "sub").mkdir()
    git(tree, "commit", "-qm", "a gitlink")
    git(tree, "push", "-q", "origin", "wt")
    return tree


def _put_away(tree: Path) -> tuple[HookOutcome, str]:
    result = hook(context(worktree=str(tree)), hooks.CleanupSettings())
    return result.outcome, result.message


def test_a_gitlink_without_a_checkout_keeps_no_worktree(repository: Repository) -> None:
    assert _put_away(_linked(repository))[0] is HookOutcome.DONE


def test_what_status_leaves_out_of_submodules_keeps_the_worktree(repository: Repository) -> None:
    """A staged commit of one, one that was added or taken out, and one whose directory is not a directory any more."""
    tree = _linked(repository)
    other = git(tree, "rev-parse", "HEAD").strip()
    git(tree, "update-index", "--cacheinfo", f"160000,{other},sub")
    assert "another commit of a submodule is staged" in _put_away(tree)[1]
    git(tree, "update-index", "--force-remove", "sub")
    assert "another commit of a submodule is staged" in _put_away(tree)[1]
    git(tree, "reset", "-q")
    git(tree, "update-index", "--add", "--cacheinfo", f"160000,{other},more")
    assert "another commit of a submodule is staged" in _put_away(tree)[1]
    git(tree, "reset", "-q")
    (tree / "sub").rmdir()
    assert "the directory of a submodule was deleted or replaced" in _put_away(tree)[1]
    (tree / "sub").write_text("a file\n")
    assert "the directory of a submodule was deleted or replaced" in _put_away(tree)[1]
    (tree / "sub").unlink()
    (tree / "sub").mkdir()
    assert _put_away(tree)[0] is HookOutcome.DONE


def test_an_index_of_another_repository_is_read_from_outside(repository: Repository) -> None:
    """Its entries, and nothing of its configuration, which here would be an error."""
    other = repository.place / "other"
    git(repository.place, "init", "-q", str(other))
    (other / "name").write_text("x\n")
    git(other, "add", "name")
    (other / ".git" / "config").write_text("[broken\n")
    asked = Git(str(repository.main), 20)
    found = worktrees.index(asked, str(other / ".git" / "index"))
    assert [stage.path for stage in found[0]] == ["name"]
