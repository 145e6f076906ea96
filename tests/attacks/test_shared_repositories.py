"""A repository that its owner shares with another user, and places that others may write to.

What another user may write in a repository, git reads with the rights of whoever asks: a helper, root's too. At
6db03c2 a member of the group had the owner's `restore` overwrite any file of the owner's, and git run a program of its
choice in a helper where the kernel has no Landlock; who put a twin of a worktree at its place in the right moment had
`git worktree remove` delete it by name, through whatever link lay on the way by then.
"""

import os
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.owner.repositories import Repository, context, git, own_config
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import confinement
from watchdog.owner.git import restore
from watchdog.owner.hooks.worktree import worktree as hook

pytestmark = pytest.mark.attacks
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user, a group")
MALLORY, GROUP = 12110, 12119
AGENT = "a" * 32
# Serves a configuration by a FIFO: nothing to whoever lists the filters, a filter to everybody else.
SERVE = """
import glob, os, sys
fifo, program = sys.argv[1:]
os.mkfifo(fifo)
os.chmod(fifo, 0o644)
print("ready", flush=True)
while True:
    with open(fifo, "w") as asked:
        listing = False
        for place in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                listing = listing or b"--get-" + b"regexp" in open(place, "rb").read()  # not in our own words
            except OSError:
                pass
        if not listing:
            asked.write(f'[filter "evil"]\\n\\tclean = {program}\\n')
"""


@pytest.fixture(autouse=True)
def _git_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    own_config(monkeypatch, tmp_path_factory.mktemp("config"))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    for above in (tmp_path, *tmp_path.parents):
        with suppress(PermissionError):
            above.chmod(above.stat().st_mode | 0o011)
    return Repository(tmp_path)


def share(top: Path, gid: int = GROUP) -> None:
    """As `git init --shared=group` and a umask of 002 leave it."""
    for directory, _, files in os.walk(top):
        os.chown(directory, -1, gid)
        os.chmod(directory, 0o2775)
        for name in files:
            path = Path(directory) / name
            os.chown(path, -1, gid)
            path.chmod(path.stat().st_mode | 0o060)


def put_away(path: Path) -> HookResult:
    return hook(context(worktree=str(path)), hooks.CleanupSettings())


def refusal(path: Path) -> str:
    """Why the worktree is kept."""
    result = put_away(path)
    assert path.is_dir()
    assert (result.outcome, result.details["refused"]) == (HookOutcome.KEPT, "not_yours"), result.message
    return result.message


@needs_root
def test_no_program_runs_that_another_member_of_the_group_names(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIFO that `include.path` names gives each git another answer, so that no list of ours is true."""
    monkeypatch.setattr(confinement, "landlock_abi", lambda: 0)
    path, home = repository.worktree(), repository.place / "mallory"
    (path / "file").write_text("two\n")  # of the same size: only its content tells
    home.mkdir()
    canary = home / "canary"
    canary.write_text(f"#!/bin/sh\ntouch {repository.place}/sung\ncat\n")
    canary.chmod(0o755)
    os.chown(home, MALLORY, MALLORY)
    (repository.main / ".git/info").mkdir(exist_ok=True)
    (repository.main / ".git/info/attributes").write_text("* filter=evil\n")
    share(repository.main / ".git")
    mallory: dict[str, Any] = {"user": MALLORY, "group": MALLORY, "extra_groups": [GROUP], "cwd": "/"}
    with subprocess.Popen(
        [sys.executable, "-I", "-c", SERVE, str(home / "config"), str(canary)], stdout=subprocess.PIPE, **mallory
    ) as serving:
        try:
            assert serving.stdout is not None and serving.stdout.readline() == b"ready\n"
            config = repository.main / ".git/config"
            add = f'printf "[include]\\n\\tpath = {home}/config\\n" >> {config}'
            subprocess.run(["sh", "-ec", add], check=True, **mallory)
            result = put_away(path)
        finally:
            serving.kill()
    assert not (repository.place / "sung").exists()
    assert result.details["refused"] == "not_yours"


@needs_root
@pytest.mark.parametrize("place", [".git", ".git/config", ".git/worktrees/wt", "acl"])
def test_a_repository_that_a_group_may_write_to_is_left_alone(repository: Repository, place: str) -> None:
    """Siblings: each place by which the configuration, or the entry, can be another's."""
    path, trashed = repository.worktree(), repository.worktree("trashed")
    assert put_away(trashed).outcome is HookOutcome.DONE
    shared = repository.main / (".git/config" if place == "acl" else place)
    if place == "acl":
        # acl(5) as the kernel keeps it: version, then tag, permissions and id of owner, user, group, mask, others
        entries = [(0x01, 6, -1), (0x02, 6, MALLORY), (0x04, 4, -1), (0x10, 6, -1), (0x20, 4, -1)]
        listed = b"".join(struct.pack("<HHi", *one) for one in entries)
        os.setxattr(shared, "system.posix_acl_access", struct.pack("<I", 2) + listed)
        assert "access control list" in refusal(path)
        return
    os.chown(shared, -1, GROUP)
    shared.chmod(0o2775 if shared.is_dir() else 0o664)
    assert f"group {GROUP} may write" in refusal(path)
    if place != ".git/worktrees/wt":
        with pytest.raises(OwnerCallFailed, match="may write"):
            restore.restore(AGENT, [str(repository.main)])


def test_a_group_of_the_users_own_is_no_other_user(repository: Repository) -> None:
    """A umask of 002, where each user has a group of its own (usergroups); root's is one."""
    if os.geteuid() != 0:
        pytest.skip("the group of root is known to be of root alone")
    path = repository.worktree()
    share(repository.main, 0)
    share(path, 0)
    git(path, "update-index", "-q", "--refresh")
    (path / "file").chmod(0o644)
    result = put_away(path)
    assert result.outcome is HookOutcome.DONE, result.message


@pytest.mark.parametrize("name", ["entry/gitdir", "entry/locked", "tree/.git", "entry/gitdir.new"])
def test_a_restore_writes_through_no_link_that_lies_in_the_trash(repository: Repository, name: str) -> None:
    """An entry in a shared repository may have had links in it when it was put there."""
    path = repository.worktree()
    assert put_away(path).outcome is HookOutcome.DONE
    victim, link = repository.place / "victim", repository.trash / AGENT / name
    victim.write_text("precious\n")
    link.unlink(missing_ok=True)
    link.symlink_to(victim)

    told = restore.restore(AGENT, [str(repository.main)])

    assert victim.read_text() == "precious\n"
    assert told["path"] == str(path)
    assert git(path, "status", "--porcelain") == ""
    assert repository.listed() == [str(repository.main), str(path)]


class Moments:
    """Calls `act` at one of the moments at which this process changes something on disk or starts a program.

    Those before `begun` are left out.
    """

    def __init__(self) -> None:
        self.at = -1
        self.seen = 0
        self.begun: Callable[[], bool] = bool
        self.act: Callable[[], None] | None = None
        sys.addaudithook(self._hear)  # for good: it is deaf without `act`

    def _hear(self, event: str, _: tuple[object, ...]) -> None:
        act = self.act
        if act is None or event not in ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "subprocess.Popen"):
            return
        if not self.begun():
            return
        self.seen += 1
        if self.seen == self.at:
            self.act = None
            act()
            self.act = act


moments = Moments()


def at_each_moment(
    prepare: Callable[[int], tuple[Path, Callable[[], object], Callable[[], None], Callable[[], None]]], *, there: bool
) -> int:
    """Do the same work again and again, disturbed at its first, second, ... moment, until it has none left.

    `prepare(number)` gives a path, the work, what disturbs it, and what must hold afterwards. Moments count from that
    on at which the path is there, or is not.
    """
    number = 0
    while True:
        number += 1
        path, work, disturb, check = prepare(number)
        moments.at, moments.seen, moments.begun = number, 0, lambda path=path: path.exists() is there  # type: ignore[misc]
        moments.act = disturb
        try:
            with suppress(OSError, PathRefused, OwnerCallFailed):
                work()
        finally:
            moments.act = None
        check()
        if moments.seen < number:
            return number - 1


def test_whenever_a_twin_is_put_at_its_place_it_stays_as_it_is(repository: Repository) -> None:
    """Where others may write (/tmp), a place is free as soon as the worktree has gone to the trash."""

    def prepare(number: int) -> tuple[Path, Callable[[], object], Callable[[], None], Callable[[], None]]:
        name = f"wt{number}"
        path, twin = repository.worktree(name), repository.place / f"twin{number}"
        subprocess.run(["cp", "-a", str(path), str(twin)], check=True)
        agent = f"{number:032}"

        def put() -> None:
            twin.rename(path)

        def check() -> None:
            assert (twin if twin.exists() else path).joinpath("file").read_text() == "one\n", number
            assert twin.exists() or (repository.trash / agent / "tree/file").exists() or (path / "file").exists()

        return path, lambda: hook(context(worktree=str(path), agent_id=agent), hooks.CleanupSettings()), put, check

    assert at_each_moment(prepare, there=False) > 3


def test_whatever_is_put_at_its_place_a_restore_writes_nothing_there(repository: Repository) -> None:
    """Sibling: `git worktree repair` wrote to the file that a `.git` at that path led to."""

    def prepare(number: int) -> tuple[Path, Callable[[], object], Callable[[], None], Callable[[], None]]:
        path, agent = repository.worktree(f"wt{number}"), f"{number:032}"
        hook(context(worktree=str(path), agent_id=agent), hooks.CleanupSettings())
        other, fake = repository.place / f"other{number}", repository.place / f"fake{number}"
        victim = repository.place / f"victim{number}"
        victim.write_text("precious\n")
        other.mkdir()
        git(repository.place, "init", "-q", "--bare", str(fake))
        (fake / "gitdir").symlink_to(victim)
        (other / ".git").write_text(f"gitdir: {fake}\n")

        def put() -> None:
            path.rename(repository.place / f"away{number}")
            other.rename(path)

        def check() -> None:
            assert victim.read_text() == "precious\n", number

        return path, lambda: restore.restore(agent, [str(repository.main)]), put, check

    assert at_each_moment(prepare, there=True) > 3


def test_a_worktree_that_is_locked_at_the_last_moment_comes_back(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `git worktree remove` would refuse."""
    path = repository.worktree()
    entry = repository.main / ".git/worktrees/wt"
    renamed = os.rename

    def renaming(source: object, target: object, **more: Any) -> None:
        if source == str(entry):
            (entry / "locked").write_text("mine\n")
        renamed(source, target, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "rename", renaming)
    result = put_away(path)
    assert result.outcome is HookOutcome.FAILED, result.message
    assert (path / "file").read_text() == "one\n"
    assert (entry / "locked").read_text() == "mine\n"
    assert not (repository.trash / AGENT).exists()
