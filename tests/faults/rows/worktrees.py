"""Every state of a worktree: left alone, or rescued with no byte lost, and brought back to the byte."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.faults.table import Row, Run
from tests.owner.repositories import Repository, context, git, hashes, own_config, state_of
from tests.owner.states import STATES, State, three_kinds
from watchdog.core import hooks
from watchdog.core.findings import KnownAgents
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.owner.finders import expired_trash
from watchdog.owner.git.restore import restore
from watchdog.owner.hooks.worktree import worktree

AGENT = "a" * 32
MOST_EFFECTS = 300  # more than one run of hook or restore has


@contextmanager
def repository() -> Iterator[Repository]:
    """A fresh one, below a short path, with git's config of nobody."""
    with tempfile.TemporaryDirectory(prefix="wd-") as place, pytest.MonkeyPatch.context() as patch:
        own_config(patch, Path(place))
        (Path(place) / "r").mkdir()
        try:
            yield Repository(Path(place) / "r")
        finally:
            for directory, _, _ in os.walk(place):
                os.chmod(directory, 0o700)


def hook(path: Path, dirty: str, agent_id: str = AGENT) -> HookResult:
    return worktree(context(agent_id=agent_id, worktree=str(path)), hooks.CleanupSettings(dirty_worktree=dirty))


def objects(main: Path) -> dict[str, str]:
    """What git still has after everything that nothing holds is thrown away: id -> type."""
    git(main, "-c", "core.hooksPath=/dev/null", "-c", "gc.reflogExpire=never", "gc", "-q", "--prune=now")
    lines = git(main, "cat-file", "--batch-all-objects", "--batch-check").splitlines()
    return {name: kind for name, kind, _ in (line.split() for line in lines)}


def without_trash(directory: str, _: list[str]) -> list[str]:
    return ["agent-watchdog"] if directory.endswith("/.git") else []


def contents(main: Path) -> set[str]:
    """SHA-256 of every blob that git has."""
    found = set()
    blobs = [name for name, kind in objects(main).items() if kind == "blob"]
    out = subprocess.run(
        ["git", "-C", str(main), "cat-file", "--batch"],
        input="\n".join(blobs).encode(),
        capture_output=True,
        check=True,
    ).stdout
    while out:
        head, _, rest = out.partition(b"\n")
        size = int(head.split()[2])
        found.add(hashlib.sha256(rest[:size]).hexdigest())
        out = rest[size + 1 :]
    return found


def survived(state: State, run: Run) -> None:
    """Kept where it is to be kept; else all is found again: in refs alone, in the trash, and after a restore."""
    with repository() as there:
        path = there.worktree()
        state.make(path, there)
        before, listed = hashes(path), there.listed()
        config = (there.main / ".git" / "config").read_bytes()
        left = hook(path, "keep") if state.kept else None
        if left is not None:
            assert left.outcome in (HookOutcome.KEPT, HookOutcome.FAILED), left.message
            assert (hashes(path), there.listed()) == (before, listed)
        if not state.rescued:
            left = hook(path, "rescue")
            assert left.outcome in (HookOutcome.KEPT, HookOutcome.FAILED), left.message
            assert (hashes(path), there.listed()) == (before, listed)
            assert not git(there.main, "for-each-ref", "refs/agent-watchdog")
            run.note("kept: " + left.message.partition(": ")[2][:60])
            return
        whole = state_of(path)
        ignored = git(path, "ls-files", "-z", "--others", "--ignored", "--exclude-standard").split("\0")
        twin = there.place / "twin"  # of the main checkout, for what must not touch it
        shutil.copytree(there.main, twin, symlinks=True)
        held = objects(twin)
        shutil.rmtree(twin)

        (there.place / "hook-ran").unlink(missing_ok=True)  # git of the test itself runs what it is told to
        moved = hook(path, "rescue")

        assert moved.outcome is HookOutcome.DONE, moved.message
        assert not (there.place / "hook-ran").exists(), "a hook of the repository ran"
        assert not path.exists()
        assert (there.main / ".git" / "config").read_bytes() == config
        assert hashes(there.trash / AGENT / "tree") == before
        git(there.main, "-c", "core.fsmonitor=false", "clean", "-fdxq")
        git(there.main, "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "add", "-A")
        assert hashes(there.trash / AGENT / "tree") == before, "clean and add in the main checkout"

        shutil.copytree(there.main, twin, symlinks=True, ignore=without_trash)
        missing = {name: kind for name, kind in held.items() if name not in objects(twin)}
        assert not missing, f"without the trash these are lost: {missing}"
        saved = contents(twin)
        for name, content in before.items():
            if name not in ignored and name != ".git":
                assert hashlib.sha256(content).hexdigest() in saved, f"{name} is in the trash alone"

        restore(AGENT, [str(there.main)])

        assert state_of(path) == whole
        run.note(f"{len(before)} files, {len(held)} objects")


KILLED_AT = """
import os, signal, sys
from tests.faults.rows.worktrees import AGENT, context, hooks, restore, worktree
left = int(sys.argv[2])
def audit(event, args):
    global left
    writing = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_CREAT)
    if writing or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "subprocess.Popen", "os.symlink"):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
settings = hooks.CleanupSettings(dirty_worktree="rescue", merged_branch="delete")
if sys.argv[3] == "hook":
    about = context(worktree=sys.argv[1])
    sys.addaudithook(audit)
    print(worktree(about, settings).message)
else:
    sys.addaudithook(audit)
    print(restore(AGENT, [sys.argv[1]]))
"""


def emptied(there: Repository) -> None:
    """As the reaper does: what a killed run had begun to delete goes, and nothing is left in the trash."""
    known = KnownAgents(commons=(str(there.main / ".git"),))
    for finding in expired_trash.look(hooks.CleanupSettings(), known):
        result = expired_trash.act(finding, hooks.CleanupSettings(), known)
        assert (result.outcome, result.details["more"]) == (HookOutcome.DONE, False), result.message
    assert not list(there.trash.glob("*"))


def killed_in(what: str, run: Run) -> None:
    """SIGKILL before each effect in turn (one after the other for `FULL=1`, else a few by chance); then once more."""
    steps = []
    with repository() as there:
        path = there.worktree("wt")
        three_kinds(path, there)
        before = state_of(path)
        every = range(MOST_EFFECTS)
        for step in every if run.times == MOST_EFFECTS else run.random.sample(range(110), run.times):
            if what == "restore":
                assert hook(path, "rescue").outcome is HookOutcome.DONE
            where = str(path if what == "hook" else there.main)
            argv = [sys.executable, "-c", KILLED_AT, where, str(step), what]
            killed = subprocess.run(argv, capture_output=True, text=True)
            assert killed.returncode in (0, -signal.SIGKILL), killed.stderr
            if what == "hook":
                again = hook(path, "rescue")
                assert again.outcome in (HookOutcome.DONE, HookOutcome.NOTHING), again.message
                assert str(path) not in there.listed()
            if (there.trash / AGENT).exists():
                restore(AGENT, [str(there.main)])
            assert state_of(path) == before, f"killed before effect {step} of the {what}"
            emptied(there)
            assert not (there.place / f".agent-watchdog-trash-{os.geteuid()}").exists()
            assert len(there.listed()) == 2
            if killed.returncode == 0:
                break
            steps.append(step)
    run.note(f"{len(steps)} effects of the {what}")


def neighbours(run: Run) -> None:
    """Many worktrees of one repository, one of them moved away just now; two agents end in it at the same time."""
    count = run.times
    with repository() as there:
        first, second = there.worktree("first"), there.worktree("second")
        for path in (first, second):
            three_kinds(path, there)
        for number in range(count):
            git(
                there.main,
                "worktree",
                "add",
                "-q",
                "--no-checkout",
                "-b",
                f"b{number}",
                str(there.place / f"t{number}"),
            )
        (there.place / "t0").rename(there.place / "away")
        entries = there.main / ".git" / "worktrees"
        refs = git(there.main, "for-each-ref", "refs/heads", "refs/tags", "refs/remotes")
        before = {name: content for name, content in hashes(entries).items() if name.startswith("t")}
        trees = {str(path): hashes(path) for path in there.place.glob("t[0-9]*")}
        began = time.monotonic()

        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(hook, (first, second), ("rescue",) * 2, ("a" * 32, "b" * 32)))

        took = time.monotonic() - began
        assert [one.outcome for one in both] == [HookOutcome.DONE] * 2, [one.message for one in both]
        assert {name: content for name, content in hashes(entries).items() if name.startswith("t")} == before
        assert {str(path): hashes(path) for path in there.place.glob("t[0-9]*")} == trees
        assert git(there.main, "for-each-ref", "refs/heads", "refs/tags", "refs/remotes") == refs
        assert len(there.listed()) == count + 1
        for agent_id in ("b" * 32, "a" * 32):
            restore(agent_id, [str(there.main)])
        assert len(there.listed()) == count + 3
        run.note(f"{count} worktrees, both in {took:.1f} s")


ROWS = [
    Row(
        f"worktree: SIGKILL in its {what}",
        "SIGKILL before one effect after the other (file, rename, git), and once more",
        "the same place, to the byte",
        partial(killed_in, what),
        runs=MOST_EFFECTS,
        least=3,
        share=100,
        limit=900,
    )
    for what in ("hook", "restore")
]
ROWS.append(
    Row(
        "worktree: two of many end at once",
        "two agents' worktrees among a thousand of one repository, one of which is moved away just now",
        "both rescued; entries, refs and files of all others unchanged",
        neighbours,
        runs=1000,
        share=40,
        limit=600,
    )
)
ROWS += [
    Row(
        f"worktree: {state.name}",
        state.words,
        ("kept, then rescued and restored" if state.kept else "moved and restored") if state.rescued else "kept",
        partial(survived, state),
        alike=True,
    )
    for state in STATES
]
