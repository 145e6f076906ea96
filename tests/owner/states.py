"""States that a worktree may be in when its agent ends, and what is to become of it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.owner.repositories import Repository, git


@dataclass(frozen=True)
class State:
    """`make` brings a clean worktree into it. `kept`: not moved by itself; `rescued`: with "rescue" it is."""

    make: Callable[[Path, Repository], None]
    kept: bool = True
    rescued: bool = True

    @property
    def name(self) -> str:
        """In words."""
        return self.make.__name__.replace("_", " ")

    @property
    def words(self) -> str:
        """What it is."""
        return (self.make.__doc__ or "").strip().rstrip(".")


def commit(path: Path, text: str = "two\n") -> None:
    """One commit more."""
    (path / "file").write_text(text)
    git(path, "commit", "-qam", "more")


def modified(path: Path, repository: Repository) -> None:
    """A tracked file was changed."""
    (path / "file").write_text("changed\n")


def same_size_and_time(path: Path, repository: Repository) -> None:
    """A tracked file was changed behind the back of its mtime and size."""
    file = path / "file"
    status = file.stat()
    file.write_text("ONE\n")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def untracked(path: Path, repository: Repository) -> None:
    """A file that git does not know."""
    (path / "notes").write_text("mine\n")


def staged(path: Path, repository: Repository) -> None:
    """Something is in the index only."""
    (path / "new").write_text("new\n")
    git(path, "add", "new")
    (path / "new").unlink()


def conflicted(path: Path, repository: Repository) -> None:
    """A merge stopped at a conflict."""
    commit(path, "ours\n")
    commit(repository.main, "theirs\n")
    subprocess.run(["git", "-C", str(path), "merge", "-q", "main"], capture_output=True, check=False)


def rebase_stopped(path: Path, repository: Repository) -> None:
    """A rebase stopped at a conflict."""
    commit(path, "ours\n")
    commit(repository.main, "theirs\n")
    subprocess.run(["git", "-C", str(path), "rebase", "-q", "main"], capture_output=True, check=False)


def bisecting(path: Path, repository: Repository) -> None:
    """A bisect runs."""
    git(path, "bisect", "start")


def detached(path: Path, repository: Repository) -> None:
    """HEAD is detached, here even at a commit that main holds."""
    git(path, "checkout", "-q", "--detach")


def unpushed(path: Path, repository: Repository) -> None:
    """A commit that only the branch holds."""
    commit(path)


def upstream_gone(path: Path, repository: Repository) -> None:
    """It was pushed once, but the remote branch is gone."""
    commit(path)
    git(path, "push", "-q", "-u", "origin", "wt")
    git(path, "push", "-q", "origin", ":wt")


def locked(path: Path, repository: Repository) -> None:
    """Somebody locked it."""
    git(repository.main, "worktree", "lock", "--reason", "on a stick", str(path))


def stashed(path: Path, repository: Repository) -> None:
    """A stash was made on the branch."""
    (path / "file").write_text("changed\n")
    git(path, "stash", "-q")


def assumed_unchanged(path: Path, repository: Repository) -> None:
    """The index was told not to look at a changed file."""
    git(path, "update-index", "--assume-unchanged", "file")
    (path / "file").write_text("changed\n")


def skipped(path: Path, repository: Repository) -> None:
    """The index was told that a file is not there, but it is."""
    git(path, "update-index", "--skip-worktree", "file")
    (path / "file").write_text("changed\n")


def nested(path: Path, repository: Repository) -> None:
    """A repository in an ignored directory."""
    (path / "ignored").mkdir()
    git(path / "ignored", "init", "-q", "inner")


def nested_bare(path: Path, repository: Repository) -> None:
    """A bare repository in an ignored directory."""
    (path / "ignored").mkdir()
    git(path / "ignored", "init", "-q", "--bare", "inner")


def nested_foreign(path: Path, repository: Repository) -> None:
    """A repository of another program in an ignored directory."""
    (path / "ignored" / "inner" / ".hg").mkdir(parents=True)


def submodule(path: Path, repository: Repository) -> None:
    """A submodule is checked out."""
    url = str(repository.origin)
    git(path, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub")
    git(path, "commit", "-qm", "submodule")
    git(path, "push", "-q", "origin", "wt")


def lock_file(path: Path, repository: Repository) -> None:
    """A git is at work in it, or died in it."""
    (repository.main / ".git" / "worktrees" / "wt" / "index.lock").touch()


def only_in_reflog(path: Path, repository: Repository) -> None:
    """A commit was made on a detached HEAD and left."""
    git(path, "checkout", "-q", "--detach")
    commit(path)
    git(path, "checkout", "-q", "wt")


def index_truncated(path: Path, repository: Repository) -> None:
    """The index cannot be read."""
    index = repository.main / ".git" / "worktrees" / "wt" / "index"
    index.write_bytes(index.read_bytes()[:20])


def pointer_broken(path: Path, repository: Repository) -> None:
    """Its .git points nowhere."""
    (path / ".git").write_text("gitdir: /nonexistent/worktrees/wt\n")


def copied(path: Path, repository: Repository) -> None:
    """It was copied: the entry points to another place."""
    moved = path.with_name("moved")
    shutil.copytree(path, moved, symlinks=True)
    shutil.rmtree(path)
    moved.rename(path)
    (repository.main / ".git" / "worktrees" / "wt" / "gitdir").write_text(str(repository.place / "elsewhere" / ".git"))
    (repository.place / "elsewhere").mkdir()
    (repository.place / "elsewhere" / ".git").write_text("gitdir: x\n")


def clean(path: Path, repository: Repository) -> None:
    """Nothing was done in it."""


def ignored_files(path: Path, repository: Repository) -> None:
    """Nothing but ignored files lies in it."""
    (path / "ignored" / "deep").mkdir(parents=True)
    (path / "ignored" / "deep" / "data.db").write_bytes(os.urandom(5000))
    (path / ".env").write_text("secret\n")


def pushed(path: Path, repository: Repository) -> None:
    """Its commits are on the remote."""
    commit(path)
    git(path, "push", "-q", "origin", "wt")


def three_kinds(path: Path, repository: Repository) -> None:
    """Case E1: a changed, a staged and an untracked file, and an ignored one."""
    (path / "file").write_text("changed\n")
    (path / "new").write_text("new\n")
    git(path, "add", "new")
    (path / "notes").write_text("mine\n")
    (path / ".env").write_text("secret\n")


def staged_and_changed_again(path: Path, repository: Repository) -> None:
    """HEAD, index and disk each hold another content of one file."""
    (path / "file").write_text("in the index\n")
    git(path, "add", "file")
    (path / "file").write_text("on disk\n")


def detached_commit(path: Path, repository: Repository) -> None:
    """Case E4: clean, but HEAD is detached at commits that nobody else has."""
    git(path, "checkout", "-q", "--detach")
    commit(path)
    commit(path, "three\n")


def squash_merged(path: Path, repository: Repository) -> None:
    """Case E11: main has its content, by another commit."""
    commit(path)
    git(repository.main, "merge", "-q", "--squash", "wt")
    git(repository.main, "commit", "-qm", "squashed")


def line_endings(path: Path, repository: Repository) -> None:
    """Git would change line endings on the way into a blob."""
    git(repository.main, "config", "core.autocrlf", "true")
    (path / ".gitattributes").write_text("*.txt text eol=crlf\n*.u16 working-tree-encoding=UTF-16\n*.id ident\n")
    (path / "mixed.txt").write_bytes(b"one\r\ntwo\nthree\r\n")
    (path / "wide.u16").write_bytes("wide\n".encode("utf-16"))
    (path / "some.id").write_text("$Id: not what git would write $\n")
    (path / "file").write_bytes(b"one\r\n")


def clean_filter(path: Path, repository: Repository) -> None:
    """A filter would put something else into a blob than lies on disk; another one fails."""
    git(repository.main, "config", "filter.upper.clean", "tr a-z A-Z")
    git(repository.main, "config", "filter.upper.smudge", "tr A-Z a-z")
    git(repository.main, "config", "filter.broken.clean", "false")
    git(repository.main, "config", "filter.broken.required", "true")
    (path / ".gitattributes").write_text("*.low filter=upper\n*.bad filter=broken\n")
    (path / "some.low").write_text("lower\n")
    (path / "some.bad").write_text("bad\n")


def filter_of_an_odd_name(path: Path, repository: Repository) -> None:
    """A filter, with a name that cuts a `-c` option short, hides a change."""
    git(repository.main, "config", "--add", "filter.a=b.clean", "echo one")
    (path / ".gitattributes").write_text("file filter=a=b\n")
    git(path, "add", ".gitattributes")
    git(path, "commit", "-qm", "attributes")
    git(path, "push", "-q", "origin", "HEAD")
    (path / "file").write_text("two\n")


def hooks_and_gpg_fail(path: Path, repository: Repository) -> None:
    """Every hook fails, and commits are to be signed by a gpg that is not there."""
    (path / "file").write_text("changed\n")
    hooks = repository.main / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "commit-msg", "reference-transaction", "post-index-change", "prepare-commit-msg"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch {repository.place}/hook-ran\nexit 1\n")
        (hooks / name).chmod(0o755)
    git(repository.main, "config", "core.fsmonitor", str(hooks / "pre-commit"))
    git(repository.main, "config", "commit.gpgSign", "true")
    git(repository.main, "config", "gpg.program", "/nonexistent")


def odd_names(path: Path, repository: Repository) -> None:
    """Names with newlines, quotes, backslashes, control characters, and bytes that are no UTF-8."""
    place = os.fsencode(path)
    names = [
        b"new\nline",
        b"tab\t",
        b'quo"te',
        b"back\\slash",
        b"-rf",
        b" space ",
        b"\xff\xfe",
        "\u00fc\u4e2d".encode(),
    ]
    names += [b"n" * 255, b"esc\x1b[2J", b"git~1", b"CON", b"File", b"'$(id)'"]
    os.mkdir(place + b"/dir\n\xfe")
    for number, name in enumerate(names):
        for parent in (b"", b"dir\n\xfe/"):
            with open(place + b"/" + parent + name, "wb") as file:
                file.write(b"%d in %s\n" % (number, parent))
    os.symlink(b"to\n\xff", place + b"/link\n\xff")
    git(path, "add", "--", "-rf")


def modes_and_links(path: Path, repository: Repository) -> None:
    """Modes, links, empty directories, a FIFO, a file where a directory was and the other way round."""
    for name in ("was-file", "was-dir/inner", "was-dir2/inner"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(f"{name}\n")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "more")
    (path / "was-file").unlink()
    (path / "was-file").mkdir()
    (path / "was-file" / "inner").write_text("inner\n")
    shutil.rmtree(path / "was-dir")
    (path / "was-dir").write_text("now a file\n")
    (path / "was-dir2").rename(path / "moved")
    (path / "was-dir2").symlink_to("moved")
    (path / "program").write_text("#!/bin/sh\n")
    (path / "program").chmod(0o755)
    (path / "private").write_text("private\n")
    (path / "private").chmod(0o600)
    (path / "read-only").write_text("read\n")
    (path / "read-only").chmod(0o444)
    (path / "file").chmod(0o755)
    (path / "dangling").symlink_to("/nonexistent")
    (path / "empty" / "er").mkdir(parents=True)
    (path / "closed").mkdir(mode=0o500)
    os.link(path / "private", path / "hard")
    os.mkfifo(path / "fifo")


def large_and_binary(path: Path, repository: Repository) -> None:
    """Large files, NULs, an empty one, and one that looks like a conflict."""
    (path / "large").write_bytes(os.urandom(3 << 20))
    (path / "zeros").write_bytes(bytes(1 << 20))
    (path / "empty").touch()
    (path / "file").write_text("<<<<<<< a\n=======\n>>>>>>> b\n")


def deleted(path: Path, repository: Repository) -> None:
    """A tracked file was deleted."""
    (path / "file").unlink()


def renamed(path: Path, repository: Repository) -> None:
    """A file was renamed in the index, and its directory with it."""
    (path / "dir").mkdir()
    git(path, "mv", "file", "dir/other")


def intent_to_add(path: Path, repository: Repository) -> None:
    """A file was announced to the index only."""
    (path / "new").write_text("new\n")
    git(path, "add", "-N", "new")


def cherry_pick_stopped(path: Path, repository: Repository) -> None:
    """A cherry-pick stopped at a conflict, the next of two still to come."""
    commit(path, "ours\n")
    commit(repository.main, "theirs\n")
    commit(repository.main, "theirs again\n")
    may_fail(path, "cherry-pick", "main~1", "main")


def revert_stopped(path: Path, repository: Repository) -> None:
    """A revert stopped at a conflict."""
    commit(path, "ours\n")
    commit(path, "ours again\n")
    may_fail(path, "revert", "--no-edit", "HEAD~1")


def am_stopped(path: Path, repository: Repository) -> None:
    """A series of patches stopped at one that does not fit."""
    commit(repository.main, "theirs\n")
    patch = git(repository.main, "format-patch", "-1", "--stdout")
    commit(path, "ours\n")
    (repository.place / "patch").write_text(patch)
    may_fail(path, "am", str(repository.place / "patch"))


def rebase_with_autostash(path: Path, repository: Repository) -> None:
    """A rebase stopped at a conflict, and holds changes that it stashed away."""
    (path / "other").write_text("other\n")
    git(path, "add", "other")
    git(path, "commit", "-qm", "other")
    commit(path, "ours\n")
    commit(repository.main, "theirs\n")
    (path / "other").write_text("only in the autostash\n")
    may_fail(path, "rebase", "--autostash", "main")


def conflict_resolved(path: Path, repository: Repository) -> None:
    """A merge with its conflict resolved and not committed: the index remembers the sides."""
    conflicted(path, repository)
    (path / "file").write_text("both\n")
    git(path, "add", "file")


def amended(path: Path, repository: Repository) -> None:
    """Commits were amended: the former ones are in HEAD's reflog alone, while the branch's was lost."""
    commit(path, "first try\n")
    git(path, "commit", "-q", "--amend", "-m", "second try")
    (repository.main / ".git" / "logs" / "refs" / "heads" / "wt").unlink()


def unborn(path: Path, repository: Repository) -> None:
    """A new branch without a commit."""
    git(path, "checkout", "-q", "--orphan", "fresh")
    (path / "new").write_text("new\n")
    git(path, "add", "new")


def refs_of_its_own(path: Path, repository: Repository) -> None:
    """A ref of the worktree alone holds a commit."""
    commit(path)
    git(path, "update-ref", "refs/worktree/mine", "HEAD")
    git(path, "reset", "-q", "--hard", "HEAD~1")


def sparse(path: Path, repository: Repository) -> None:
    """A sparse checkout with a change inside it."""
    for name in ("in", "out"):
        (path / name).mkdir()
        (path / name / "file").write_text(f"{name}\n")
    git(path, "add", "-A")
    git(path, "commit", "-qm", "two directories")
    git(path, "sparse-checkout", "set", "--no-cone", "/in/")
    (path / "in" / "file").write_text("changed\n")


def split_index(path: Path, repository: Repository) -> None:
    """The index is in two files."""
    (path / "new").write_text("new\n")
    git(path, "add", "new")
    git(path, "update-index", "--split-index")
    (path / "newer").write_text("newer\n")
    git(path, "add", "newer")


def notes_merging(path: Path, repository: Repository) -> None:
    """A merge of notes stopped at a conflict, which is resolved in git's own entry alone."""
    git(path, "notes", "add", "-m", "ours")
    git(path, "notes", "--ref=other", "add", "-m", "theirs")
    may_fail(path, "notes", "merge", "other")
    (unresolved,) = (repository.main / ".git" / "worktrees" / "wt" / "NOTES_MERGE_WORKTREE").iterdir()
    unresolved.write_text("resolved by hand\n")


def grafted(path: Path, repository: Repository) -> None:
    """A graft alone says that main holds its commit."""
    commit(path)
    commit(repository.main, "theirs\n")
    names = [git(place, "rev-parse", "HEAD").strip() for place in (repository.main, path)]
    (repository.main / ".git" / "info").mkdir(exist_ok=True)
    (repository.main / ".git" / "info" / "grafts").write_text(" ".join(names) + "\n")


def relative_pointer(path: Path, repository: Repository) -> None:
    """Its .git names the entry by a relative path (worktree.useRelativePaths)."""
    (path / ".git").write_text("gitdir: ../main/.git/worktrees/wt\n")
    (path / "file").write_text("changed\n")


def in_a_group(path: Path, repository: Repository) -> None:
    """A closed directory, whose files only the owner reads, in a repository that a group shares."""
    git(repository.main, "config", "core.sharedRepository", "group")
    (path / "deep").mkdir(mode=0o700)
    (path / "deep" / "file").write_text("deep\n")
    (path / "deep" / "file").chmod(0o400)


def may_fail(path: Path, *arguments: str) -> None:
    """Git, where it is meant to stop."""
    subprocess.run(["git", "-C", str(path), *arguments], capture_output=True, check=False)


def rows() -> list[State]:
    """All of them; those of `never` no rescue helps, those of `by_itself` need none."""
    by_itself = (clean, ignored_files, pushed)
    never = (
        locked, nested, nested_bare, nested_foreign, submodule, lock_file, index_truncated, pointer_broken, copied,
        notes_merging,
    )  # fmt: skip
    work = (
        modified, same_size_and_time, filter_of_an_odd_name, untracked, staged, conflicted, rebase_stopped,
        bisecting, detached, unpushed, upstream_gone, stashed, assumed_unchanged, skipped, only_in_reflog,
        three_kinds, staged_and_changed_again, detached_commit, squash_merged, line_endings, clean_filter,
        hooks_and_gpg_fail, odd_names, modes_and_links, large_and_binary, deleted, renamed, intent_to_add,
        cherry_pick_stopped, revert_stopped, am_stopped, rebase_with_autostash, conflict_resolved, amended,
        unborn, refs_of_its_own, sparse, split_index, in_a_group, grafted, relative_pointer,
    )  # fmt: skip
    states = [State(make, kept=False) for make in by_itself]
    return states + [State(make) for make in work] + [State(make, rescued=False) for make in never]


STATES = rows()
