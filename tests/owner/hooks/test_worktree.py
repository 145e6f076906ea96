"""The worktree hook on real repositories: what it moves, and everything that it leaves alone."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import pytest

from tests.owner.repositories import Repository, context, git, hashes
from tests.owner.states import STATES, State, commit
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.owner import paths, trash
from watchdog.owner.git import worktrees
from watchdog.owner.git.restore import restore
from watchdog.owner.hooks.worktree import worktree

AGENT = "a" * 32


def run(path: Path | str | None) -> HookResult:
    """The hook in this process."""
    return worktree(context(worktree=None if path is None else str(path)), hooks.CleanupSettings())


def test_a_clean_merged_tree_goes_to_the_trash_and_its_entry_alone_is_dropped(repository: Repository) -> None:
    """Invariant 8: rename, then one entry; the branch stays."""
    path, other = repository.worktree("wt"), repository.worktree("other")
    before = hashes(path)

    result = run(path)

    assert result.outcome is HookOutcome.DONE, result.message
    assert not path.exists()
    assert hashes(repository.trash / AGENT / "tree") == before
    assert repository.listed() == [str(repository.main), str(other)]
    assert "wt" in git(repository.main, "branch", "--list", "wt")
    assert not (repository.place / f".agent-watchdog-trash-{os.geteuid()}").exists()


@pytest.mark.parametrize("theirs", ["", "tmp"])
def test_a_tree_that_another_living_agent_has_is_kept(repository: Repository, theirs: str) -> None:
    """Agents share a worktree; it goes with the last of them. One above it, in the main checkout, is none."""
    path = repository.worktree("wt")
    about = context(worktree=str(path), in_use=((str(path / theirs), "beta (bb)"),))

    result = worktree(about, hooks.CleanupSettings())

    assert result.outcome is HookOutcome.KEPT
    assert "another living agent, beta (bb), works there" in result.message
    assert path.is_dir()
    about = context(worktree=str(path), in_use=((str(repository.place), "gamma (cc)"),))
    assert worktree(about, hooks.CleanupSettings()).outcome is HookOutcome.DONE


def test_the_trash_holds_what_a_restore_needs(repository: Repository) -> None:
    """The entry's copy and the manifest bring the tree back with git's own `repair`."""
    path = repository.worktree()
    (path / ".env").write_text("secret\n")
    assert run(path).outcome is HookOutcome.DONE

    place = repository.trash / AGENT
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest["path"] == str(path)
    assert manifest["branch"] == "refs/heads/wt"
    shutil.copytree(place / "entry", repository.main / ".git" / "worktrees" / manifest["entry"], symlinks=True)
    (place / "tree").rename(path)
    git(repository.main, "worktree", "repair", str(path))

    assert git(path, "status", "--porcelain") == ""
    assert (path / ".env").read_text() == "secret\n"
    assert git(path, "symbolic-ref", "HEAD").strip() == "refs/heads/wt"


def test_ignored_files_go_with_the_tree(repository: Repository) -> None:
    """A plain `git worktree remove` would delete them; here they lie in the trash."""
    path = repository.worktree()
    (path / "ignored").mkdir()
    (path / "ignored" / "data.db").write_text("rows\n")

    assert run(path).outcome is HookOutcome.DONE

    assert (repository.trash / AGENT / "tree" / "ignored" / "data.db").read_text() == "rows\n"


def test_a_pushed_branch_is_held_by_its_upstream(repository: Repository) -> None:
    """Commits that origin has are not lost with the tree."""
    path = repository.worktree()
    commit(path)
    git(path, "push", "-q", "origin", "wt")

    assert run(path).outcome is HookOutcome.DONE


def test_the_main_checkouts_clean_and_add_change_nothing_of_the_trash(repository: Repository) -> None:
    """The trash lies in the git dir, where neither `git clean -fdx` nor `git add -A` looks."""
    path = repository.worktree()
    assert run(path).outcome is HookOutcome.DONE
    before = hashes(repository.trash)

    git(repository.main, "clean", "-fdxq")
    git(repository.main, "add", "-A")

    assert hashes(repository.trash) == before
    assert git(repository.main, "status", "--porcelain") == ""


# The others, and what a rescue makes of all of them: tests/faults/rows/worktrees.py.
QUICK = [state for state in STATES if state.kept][:15] + [state for state in STATES if not state.rescued]


@pytest.mark.parametrize("state", QUICK, ids=lambda state: state.make.__name__)
def test_whatever_is_not_plainly_safe_stays_where_it_is(repository: Repository, state: State) -> None:
    """Invariant 8: dirty, unheld, locked, in progress, not understood: kept with the reason, every byte in place."""
    path = repository.worktree()
    state.make(path, repository)
    before, listed = hashes(path), repository.listed()

    result = run(path)

    assert result.outcome in (HookOutcome.KEPT, HookOutcome.FAILED), result.message
    assert len(result.message) > len(f"kept {path}: ")
    assert hashes(path) == before
    assert repository.listed() == listed
    assert not (repository.trash / AGENT).exists()


@pytest.mark.parametrize("which", ["main", "origin.git", "plain"])
def test_what_is_no_linked_worktree_is_never_touched(repository: Repository, which: str) -> None:
    """Not the main checkout, not a bare repository, not a plain directory, even inside a checkout."""
    path = repository.main / "plain" if which == "plain" else repository.place / which
    path.mkdir(exist_ok=True)
    before = hashes(path)

    assert run(path).outcome is HookOutcome.KEPT
    assert hashes(path) == before


def test_a_link_to_a_worktree_is_refused(repository: Repository) -> None:
    """Nothing is opened through a link."""
    path = repository.worktree()
    (repository.place / "link").symlink_to(path)

    result = run(repository.place / "link")

    assert result.outcome is HookOutcome.KEPT
    assert result.details["refused"] == "link"
    assert path.is_dir()


def test_a_tree_in_which_somebody_works_is_kept(repository: Repository) -> None:
    """A process's cwd below it is a user."""
    path = repository.worktree()
    with subprocess.Popen(["sleep", "600"], cwd=path) as somebody:
        try:
            result = run(path)
        finally:
            somebody.kill()

    assert result.outcome is HookOutcome.KEPT
    assert str(somebody.pid) in result.message


def test_a_bystander_that_was_moved_away_keeps_its_entry(repository: Repository) -> None:
    """Case E9: a bare prune would take the other's index; only our entry goes."""
    path, other = repository.worktree("wt"), repository.worktree("other")
    (other / "new").write_text("new\n")
    git(other, "add", "new")
    other.rename(repository.place / "away")

    assert run(path).outcome is HookOutcome.DONE

    (repository.place / "away").rename(other)
    assert git(other, "status", "--porcelain") == "A  new\n"


def test_no_program_of_the_repository_runs(repository: Repository) -> None:
    """Hooks, fsmonitor and filters are config that whoever works there writes."""
    path = repository.worktree()
    canary = repository.place / "canary"
    script = repository.place / "script"
    script.write_text(f"#!/bin/sh\ntouch {canary}\ncat\n")
    script.chmod(0o755)
    shutil.copy(script, repository.main / ".git" / "hooks" / "post-index-change")
    git(repository.main, "config", "filter.evil.clean", str(script))
    git(repository.main, "config", "filter.evil.smudge", str(script))
    (repository.main / ".git" / "info").mkdir(exist_ok=True)
    (repository.main / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    git(repository.main, "config", "core.fsmonitor", str(script))
    os.utime(path / "file")
    canary.unlink(missing_ok=True)

    assert run(path).outcome is HookOutcome.DONE
    assert not canary.exists()


def test_without_git_it_is_kept(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case E2: an inspection that failed is not "clean"."""
    path = repository.worktree()
    monkeypatch.setenv("PATH", "/nonexistent")

    result = run(path)

    assert result.outcome is HookOutcome.FAILED
    assert result.details["reason"] == "git_missing"
    assert path.is_dir()


def test_git_that_says_nothing_is_not_a_worktree_that_is_not_there(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Q10: exit status 0 and no word is no answer."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    path = repository.worktree()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")

    result = run(path)

    assert result.outcome is HookOutcome.FAILED
    assert result.details["reason"] == "not_understood"
    assert path.is_dir()


def test_git_that_fails_at_any_question_keeps_the_tree(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case E2, one question after the other: `git` fails the n-th time until it is never asked so often."""
    real = shutil.which("git")
    fake = tmp_path / "bin"
    fake.mkdir()
    counter = tmp_path / "counter"
    (fake / "git").write_text(
        f'#!/bin/sh\necho >> {counter}\n[ "$(wc -l < {counter})" = "$FAIL_AT" ] && exit 1\nexec {real} "$@"\n'
    )
    (fake / "git").chmod(0o755)
    path = repository.worktree()
    before, asked = hashes(path), 0
    monkeypatch.setenv("PATH", f"{fake}:{os.environ['PATH']}")
    for asked in range(1, 40):
        counter.write_text("")
        monkeypatch.setenv("FAIL_AT", str(asked))
        result = run(path)
        if result.outcome is HookOutcome.DONE and len(counter.read_text()) < asked:
            break
        # Exit status 1 of `git config` says that nothing is configured.
        if result.outcome is HookOutcome.DONE:
            monkeypatch.setenv("FAIL_AT", "0")
            shutil.rmtree(repository.trash)
            git(repository.main, "branch", "-D", "wt")
            path = repository.worktree()
            continue
        assert result.outcome is HookOutcome.FAILED, result.message
        assert hashes(path) == before
        assert str(path) in repository.listed()
    assert asked > 8


def test_nothing_registered_and_nothing_there_is_nothing_to_do(repository: Repository) -> None:
    """A second run, and an agent without a worktree."""
    path = repository.worktree()
    assert run(path).outcome is HookOutcome.DONE

    assert run(path).outcome is HookOutcome.NOTHING
    assert run(None).outcome is HookOutcome.NOTHING
    assert run(repository.place / "no" / "such").outcome is HookOutcome.NOTHING


KILLED_AT = """
import os, signal, sys
from tests.owner.repositories import context
from watchdog.core import hooks
from watchdog.owner.hooks.worktree import worktree
from watchdog.owner.git.restore import restore
left = int(sys.argv[2])
def audit(event, args):
    global left
    writing = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_CREAT)
    if writing or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "subprocess.Popen", "os.symlink"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(audit)
print(worktree(context(worktree=sys.argv[1]), hooks.CleanupSettings()).message)
"""


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_killed_before_any_effect_the_next_run_finishes(repository: Repository) -> None:
    """Invariant 7: SIGKILL before each rename, mkdir, unlink and git run; then one more run ends the story."""
    for step in range(100):
        name = f"wt{step}"
        path = repository.worktree(name)
        before = hashes(path)
        killed = subprocess.run([sys.executable, "-c", KILLED_AT, str(path), str(step)], capture_output=True, text=True)
        if killed.returncode == 0:
            break
        assert killed.returncode == -signal.SIGKILL, killed.stderr

        again = run(path)

        assert again.outcome in (HookOutcome.DONE, HookOutcome.NOTHING), again.message
        assert not path.exists()
        assert str(path) not in repository.listed()
        assert not (repository.main / ".git" / "worktrees").exists()  # as git leaves it with the last one
        assert hashes(repository.trash / AGENT / "tree") == before
        assert not (repository.place / f".agent-watchdog-trash-{os.geteuid()}" / f"{AGENT}.worktree.json").exists()
        shutil.rmtree(repository.trash)
    assert step > 15


def test_a_lock_whose_maker_has_ended_keeps_nothing(repository: Repository) -> None:
    """Case P10. One that a living process has made, also meanwhile, holds."""
    path, other = repository.worktree(), repository.worktree("other")
    with subprocess.Popen(["true"]) as maker:
        maker.wait()
    git(repository.main, "worktree", "lock", "--reason", f"claude agent x (pid {os.getpid()})", str(path))
    assert run(path).outcome is HookOutcome.KEPT
    git(repository.main, "worktree", "unlock", str(path))
    for place in (path, other):
        git(repository.main, "worktree", "lock", "--reason", f"claude agent x (pid {maker.pid})", str(place))

    result = run(path)

    assert result.outcome is HookOutcome.DONE, result.message
    assert f"process {maker.pid}, which made its lock, has ended" in result.message
    assert repository.listed() == [str(repository.main), str(other)]
    restore(AGENT, [str(repository.main / ".git")])
    assert (
        "locked" not in git(repository.main, "worktree", "list", "--porcelain").partition(str(path))[2].split("\n\n")[0]
    )


def test_a_lock_that_comes_in_between_brings_the_tree_back(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git refuses to drop a locked entry; then the tree lies where it lay."""
    path = repository.worktree()
    before = hashes(path)
    look = worktrees.reasons_to_keep

    def look_then_lock(*arguments: object) -> worktrees.Reasons:
        found = look(*arguments)  # type: ignore[arg-type]
        git(repository.main, "worktree", "lock", str(path))
        return found

    monkeypatch.setattr(worktrees, "reasons_to_keep", look_then_lock)

    result = run(path)

    assert result.outcome is HookOutcome.FAILED
    assert hashes(path) == before
    assert str(path) in repository.listed()
    assert not (repository.trash / AGENT).exists()


def test_an_open_socket_in_the_tree_keeps_it(repository: Repository) -> None:
    """A server that others reach by that name."""
    path = repository.worktree()
    (path / "ignored").mkdir()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path / "ignored" / "s"))
        result = run(path)

    assert result.outcome is HookOutcome.KEPT
    assert "socket" in result.message


def test_an_entry_that_a_killed_git_left_half_deleted_is_finished(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Git no longer lists it (somebody's `worktree remove`, or one of ours of a former version); the rest goes, too."""
    path, other = repository.worktree("wt"), repository.worktree("other")
    module = sys.modules[worktree.__module__]
    real = vars(module)["_drop_entry"]

    def half(*given: object) -> None:
        (repository.main / ".git" / "worktrees" / "wt" / "gitdir").unlink()
        real(*given)

    monkeypatch.setattr(module, "_drop_entry", half)

    assert run(path).outcome is HookOutcome.DONE
    assert repository.listed() == [str(repository.main), str(other)]
    assert (repository.trash / AGENT / "entry" / "gitdir").exists()


@pytest.mark.parametrize("meanwhile", ["nothing", "pruned", "reused"])
@pytest.mark.parametrize("dirty", ["keep", "rescue"])
def test_killed_before_a_changed_tree_went_back_the_next_run_looks_at_it_anew(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, dirty: Literal["keep", "rescue"], meanwhile: str
) -> None:
    """What was written while the tree was moved is in no rescue yet: it must not leave with the trash."""
    path = repository.worktree("wt")
    settings = hooks.CleanupSettings(dirty_worktree=dirty)
    if dirty == "rescue":
        (path / "before").write_text("rescued by the first run\n")

    def write_and_die(*_: object) -> None:
        (repository.trash / AGENT / "tree" / "late").write_text("of the last moment\n")
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(sys.modules[worktree.__module__], "_changed", write_and_die)
        worktree(context(worktree=str(path)), settings)
    assert not path.exists()
    others = [] if meanwhile == "nothing" else pruned(repository, reused=meanwhile == "reused")

    result = worktree(context(worktree=str(path)), settings)

    if dirty == "keep":
        assert result.outcome is HookOutcome.KEPT, result.message
        assert (path / "late").read_text() == "of the last moment\n"
        assert git(path, "status", "--porcelain") == "?? late\n"
    else:
        assert result.outcome is HookOutcome.DONE, result.message
        saved = git(repository.main, "show", f"refs/agent-watchdog/rescue/{AGENT}/files:late")
        assert saved == "of the last moment\n"
    assert set(others) <= set(repository.listed())


def test_a_changed_tree_whose_branch_is_taken_meanwhile_comes_back_beside_its_place(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that is said: nobody would look for it there."""
    path = repository.worktree("wt")

    def write_and_die(*_: object) -> None:
        (repository.trash / AGENT / "tree" / "late").write_text("of the last moment\n")
        raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(sys.modules[worktree.__module__], "_changed", write_and_die)
        run(path)
    git(repository.main, "worktree", "prune")
    git(repository.main, "worktree", "add", "-q", str(repository.place / "elsewhere" / "wt"), "wt")

    result = run(path)

    beside = repository.place / "wt.restored"
    assert (beside / "late").read_text() == "of the last moment\n"
    assert result.outcome is HookOutcome.KEPT and str(beside) in result.message, result.message
    assert not (repository.place / f".agent-watchdog-trash-{os.geteuid()}").exists()


def pruned(repository: Repository, *, reused: bool) -> list[str]:
    """The entry of a tree in the trash is gone; with `reused` its name is another worktree's now. Returns that one."""
    git(repository.main, "worktree", "prune")
    assert repository.listed() == [str(repository.main)]
    if not reused:
        return []
    other = repository.worktree("elsewhere/wt", "-b", "other")
    assert git(other, "rev-parse", "--absolute-git-dir").endswith("/worktrees/wt\n")
    return [str(other)]


@pytest.mark.parametrize("reused", [False, True])
def test_killed_before_its_entry_was_dropped_and_another_took_its_name(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, reused: bool
) -> None:
    """What is in the trash was compared and stays there; the other worktree is not touched."""
    path = repository.worktree("wt")
    (path / "staged").write_text("staged\n")
    git(path, "add", "staged")
    settings = hooks.CleanupSettings(dirty_worktree="rescue")
    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(sys.modules[worktree.__module__], "_finish", lambda *_: sys.exit())
        worktree(context(worktree=str(path)), settings)
    others = pruned(repository, reused=reused)

    result = worktree(context(worktree=str(path)), settings)

    assert result.outcome is HookOutcome.DONE, result.message
    assert repository.listed() == [str(repository.main), *others]
    assert git(repository.main, "show", f"refs/agent-watchdog/rescue/{AGENT}/index:staged") == "staged\n"
    restore(AGENT, [str(repository.main)])
    assert git(path, "status", "--porcelain") == "A  staged\n"


def test_a_clean_tree_that_changes_while_it_is_moved_stays(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process that is gone again before anybody could see it in the tree."""
    path = repository.worktree("wt")
    take = trash.take

    def write_then_take(*arguments: Any) -> str | None:
        (path / "late").write_text("of the last moment\n")
        return take(*arguments)

    monkeypatch.setattr(trash, "take", write_then_take)

    result = run(path)

    assert result.outcome is HookOutcome.FAILED, result.message
    assert "changed while it was moved" in result.message
    assert (path / "late").read_text() == "of the last moment\n"


def test_a_tree_of_any_depth_is_looked_at(repository: Repository) -> None:
    """Before Python 3.12 os.walk recurses: 1,000 directories were too many. A link to itself is none."""
    path = repository.worktree("wt")
    (repository.main / ".git" / "info" / "exclude").write_text("/deep\n/loop\n")
    (path / "loop").symlink_to("loop")
    os.makedirs(path / "deep")
    place = str(path / "deep")
    try:
        for _ in range(1100):
            place += "/d"
            os.mkdir(place)

        result = run(path)

        assert result.outcome is HookOutcome.DONE, result.message
        trash.remove_container(paths.open_directory(str(repository.trash)), AGENT, trash.Freed())
    finally:  # pytest's own removal recurses
        subprocess.run(["rm", "-rf", str(path), str(repository.trash)], check=True)


def sitting(path: Path) -> subprocess.Popen[bytes]:
    """A process that has its cwd in a tree and does nothing."""
    return subprocess.Popen(["sleep", "1000"], cwd=path)


def left(process: subprocess.Popen[bytes]) -> None:
    """It goes."""
    process.kill()
    process.wait()


def again(path: Path, former: HookResult, mode: str = "keep") -> HookResult:
    """The hook as the reaper has it run once more."""
    seen = str(former.details["seen"])
    return worktree(context(worktree=str(path), seen=seen), hooks.CleanupSettings(dirty_worktree=mode))


def test_what_only_its_use_kept_goes_when_nobody_sits_in_it_and_nothing_was_changed(repository: Repository) -> None:
    """Each try makes all checks anew, and tells the state that it was in at first."""
    path = repository.worktree()
    before = hashes(path)
    somebody = sitting(path)
    first = run(path)
    second = again(path, first)
    left(somebody)

    assert (first.outcome, first.details["in_use"]) == (HookOutcome.KEPT, True)
    assert (second.outcome, second.details["seen"]) == (HookOutcome.KEPT, first.details["seen"])
    assert again(path, second).outcome is HookOutcome.DONE
    assert hashes(repository.trash / AGENT / "tree") == before


def write_ignored(path: Path) -> None:
    (path / ".env").write_text("mine\n")


def rewrite_in_place(path: Path) -> None:
    """The same bytes and the same mtime: work that was undone is work."""
    about = (path / "file").stat()
    (path / "file").write_bytes((path / "file").read_bytes())
    os.utime(path / "file", ns=(about.st_atime_ns, about.st_mtime_ns))


def make_and_unmake(path: Path) -> None:
    (path / "note").write_text("mine\n")
    (path / "note").unlink()


def commit_and_push(path: Path) -> None:
    commit(path)
    git(path, "push", "-q", "origin", "wt")


def switch(path: Path) -> None:
    git(path, "switch", "-qc", "other")


@pytest.mark.parametrize("use", [write_ignored, rewrite_in_place, make_and_unmake, commit_and_push, switch])
@pytest.mark.parametrize("mode", ["keep", "rescue"])
def test_who_used_it_has_it(repository: Repository, use: Any, mode: str) -> None:
    """Clean, pushed, free again: it was worked in meanwhile, so it stays, and is not looked at any more."""
    path = repository.worktree()
    somebody = sitting(path)
    former = run(path)
    use(path)
    left(somebody)

    result = again(path, former, mode)

    assert (result.outcome, result.details) == (HookOutcome.KEPT, {})
    assert "it was in use, and was changed since" in result.message
    assert path.is_dir()


MAPPER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
mapped[0] = ord("O")
print("mapped", flush=True)
sys.stdin.readline()
mapped[0] = ord("o")
mapped.close()
print("written", flush=True)
sys.stdin.readline()
"""


def test_who_can_write_by_a_mapping_has_it(repository: Repository) -> None:
    """mmap(2): a write to a page that is written to already changes no time of its file, so nobody could tell."""
    path = repository.worktree()
    (path / ".env").write_text("mine\n")
    argv = [sys.executable, "-c", MAPPER, str(path / ".env")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as somebody:
        assert somebody.stdin and somebody.stdout
        assert somebody.stdout.readline() == "mapped\n"
        first = run(path)
        somebody.stdin.write("\n")
        somebody.stdin.flush()
        assert somebody.stdout.readline() == "written\n"

    assert (first.outcome, "in_use" in first.details) == (HookOutcome.KEPT, False), first.message


LATER = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
    mapped[0]
    mapped[0] = ord("M")
"""


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="needs root: a tmpfs that it may write to")
def test_where_no_time_tells_of_a_write_its_content_does() -> None:
    """On tmpfs one that maps a file, reads a page and writes to it changes no time; else it goes as anywhere."""
    with tempfile.TemporaryDirectory(prefix="aw-t", dir="/dev/shm") as place:
        repository = Repository(Path(place))
        former = []
        for name in ("written", "left"):
            path = repository.worktree(name)
            (path / ".env").write_text("mine\n")
            somebody = sitting(path)
            former.append(run(path))
            left(somebody)
        subprocess.run([sys.executable, "-c", LATER, str(repository.place / "written" / ".env")], check=True)

        told = [again(repository.place / name, one) for name, one in zip(("written", "left"), former, strict=True)]

        assert [one.outcome for one in told] == [HookOutcome.KEPT, HookOutcome.DONE], told


def test_a_fifo_in_gits_entry_holds_nobody(repository: Repository) -> None:
    """Only its owner makes one there; it is looked at, never opened."""
    path = repository.worktree()
    os.mkfifo(repository.main / ".git" / "worktrees" / "wt" / "pipe")
    somebody = sitting(path)
    try:
        first, second = run(path), again(path, run(path))
    finally:
        left(somebody)

    assert [one.details["in_use"] for one in (first, second)] == [True, True]


def test_a_reason_that_does_not_pass_by_itself_is_none_to_look_again(repository: Repository) -> None:
    """Dirty and not rescued, locked, another living agent's: it is left to a person, or to that agent's end."""
    path = repository.worktree()
    somebody = sitting(path)
    theirs = worktree(context(worktree=str(path), in_use=((str(path), "beta (bb)"),)), hooks.CleanupSettings())
    (path / "new").write_text("mine\n")
    dirty, saved = run(path), worktree(context(worktree=str(path)), hooks.CleanupSettings(dirty_worktree="rescue"))
    (path / "new").unlink()
    git(path, "worktree", "lock", str(path))
    locked = run(path)
    left(somebody)

    assert [one.outcome for one in (theirs, dirty, saved, locked)] == [HookOutcome.KEPT] * 4
    assert ["in_use" in one.details for one in (theirs, dirty, saved, locked)] == [False, False, True, False]
