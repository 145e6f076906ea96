"""A repository in which everything that git may run is a canary: a program that leaves a file with its name."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.owner.repositories import Repository, git

HOOKS = (
    "applypatch-msg",
    "pre-applypatch",
    "post-applypatch",
    "pre-commit",
    "pre-merge-commit",
    "prepare-commit-msg",
    "commit-msg",
    "post-commit",
    "pre-rebase",
    "post-checkout",
    "post-merge",
    "pre-push",
    "pre-receive",
    "update",
    "proc-receive",
    "post-receive",
    "post-update",
    "reference-transaction",
    "push-to-checkout",
    "pre-auto-gc",
    "post-rewrite",
    "sendemail-validate",
    "fsmonitor-watchman",
    "post-index-change",
)
ENVIRONMENT = (
    "GIT_EXTERNAL_DIFF",
    "GIT_SSH",
    "GIT_SSH_COMMAND",
    "GIT_PAGER",
    "GIT_EDITOR",
    "GIT_SEQUENCE_EDITOR",
    "GIT_ASKPASS",
    "GIT_PROXY_COMMAND",
)


class Canaries:
    """Programs by name, and which of them have run."""

    def __init__(self, place: Path) -> None:
        self.dir = place
        self.programs, self._sung = place / "programs", place / "sung"
        self.programs.mkdir(parents=True)
        self._sung.mkdir()

    def program(self, name: str, then: str = "exit 1") -> str:
        """The path of a canary."""
        path = self.programs / name
        path.write_text(f"#!/bin/sh\n: > {self._sung}/{name}\n{then}\n")
        path.chmod(0o755)
        return str(path)

    def sung(self) -> set[str]:
        return set(os.listdir(self._sung))

    def forget(self) -> None:
        for name in self.sung():
            (self._sung / name).unlink()


def trap(where: Path, canaries: Canaries, name: str) -> None:
    """Every setting and hook of the repository at `where` (a checkout) that names a program.

    Its filter is called `name`: one that only a nested repository has is in no list of the outer one's.
    """

    def canary(kind: str) -> str:
        return canaries.program(f"{name}.{kind}")

    common = where / git(where, "rev-parse", "--git-common-dir").strip()
    hooks = canaries.dir / f"{name}.hooks"
    hooks.mkdir()
    for hook in HOOKS:
        for place in (hooks, common / "hooks"):
            place.mkdir(exist_ok=True)
            shutil.copy(canary(f"hook-{hook}"), place / hook)
    included = canaries.dir / f"{name}.included"
    included.write_text(
        f'[filter "included"]\n\tclean = {canary("filter-included")}\n[core]\n\tfsmonitor = {canary("fsmonitor")}\n'
    )
    settings = {
        "core.hooksPath": str(hooks),
        "core.fsmonitor": canary("fsmonitor"),
        "core.untrackedCache": "true",
        "core.pager": canary("pager"),
        "core.editor": canary("editor"),
        "core.askPass": canary("askpass"),
        "core.sshCommand": canary("ssh"),
        "core.gitProxy": canary("proxy"),
        "core.alternateRefsCommand": canary("alternates"),
        "core.attributesFile": str(canaries.dir / "attributes"),
        "hook.own.command": canary("hook-configured"),
        "hook.own.event": "reference-transaction",
        "hook.a=b.command": canary("hook-configured"),
        "hook.a=b.event": "post-index-change",
        f"filter.{name}.clean": canaries.program(f"{name}.filter-clean", "exec cat"),
        f"filter.{name}.smudge": canaries.program(f"{name}.filter-smudge", "exec cat"),
        f"filter.{name}.required": "true",
        "filter.long.process": canary("filter-process"),
        "diff.external": canary("diff-external"),
        "diff.own.textconv": canary("textconv"),
        "diff.own.command": canary("diff-command"),
        "diff.ignoreSubmodules": "none",
        "diff.submodule": "log",
        "merge.own.driver": canary("merge"),
        "gpg.program": canary("gpg"),
        "log.showSignature": "true",
        "commit.gpgSign": "true",
        "credential.helper": canary("credential"),
        "uploadpack.packObjectsHook": canary("pack-objects"),
        "trailer.own.command": canary("trailer"),
        "pager.status": canary("pager"),
        "pager.log": canary("pager"),
        "alias.status": f"!{canary('alias')}",
        "alias.worktree": f"!{canary('alias')}",
        "sequence.editor": canary("editor"),
        "status.submoduleSummary": "true",
        "submodule.recurse": "true",
        "fetch.recurseSubmodules": "true",
        "gc.auto": "1",
        "gc.recentObjectsHook": canary("gc"),
        f"includeIf.gitdir:{where}/.path": str(included),
        f"includeIf.gitdir:{common}/**.path": str(included),
        "include.path": str(included),
    }
    (canaries.dir / "attributes").write_text("* diff=own merge=own\n")
    (common / "info").mkdir(exist_ok=True)
    (common / "info" / "attributes").write_text(
        f"*.long filter=long\n*.included filter=included\nfile filter={name} diff=own merge=own\n"
    )
    for key, value in settings.items():
        subprocess.run(["git", "config", "--file", str(common / "config"), key, value], check=True)


def lazy(common: Path, canaries: Canaries) -> None:
    """A partial clone whose promisor's address is a program; an object of a branch's is missing."""
    program = canaries.program("transport")
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "evil",
        "remote.evil.promisor": "true",
        "remote.evil.partialCloneFilter": "blob:none",
        "remote.evil.url": f"ext::{program} %S",
        "remote.evil.uploadpack": program,
        "protocol.ext.allow": "always",
        "protocol.allow": "always",
    }.items():
        subprocess.run(["git", "config", "--file", str(common / "config"), key, value], check=True)


def inner(where: Path, canaries: Canaries, name: str) -> None:
    """A repository at `where` with one commit, a file whose stat differs from its index, and traps."""
    git(where.parent, "init", "-q", "-b", "main", str(where))
    (where / "file").write_text("one\n")
    git(where, "add", "-A")
    git(where, "commit", "-qm", "inner")
    trap(where, canaries, name)
    (where / "file").write_text("two\n")


class Trapped:
    """A main checkout and linked worktrees; all that any git here may run is a canary."""

    def __init__(self, place: Path) -> None:
        self.canaries = Canaries(place / "canaries")
        self.repository = Repository(place)

    def close(self) -> None:
        """Set the traps, when all worktrees are there."""
        main = self.repository.main
        trap(main, self.canaries, "outer")
        lazy(main / ".git", self.canaries)

    def worktree(self, name: str) -> Path:
        """A linked one with files of each filter, pushed, so that nothing but what a test adds keeps it."""
        path = self.repository.worktree(name)
        for file in ("a.long", "b.included"):
            (path / file).write_text("text\n")
        git(path, "add", "-A")
        git(path, "commit", "-qm", name)
        git(path, "push", "-q", "origin", name)
        for file in ("a.long", "b.included", "file"):
            os.utime(path / file)  # so that its content is looked at
        return path
