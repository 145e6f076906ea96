"""Runs git as the owner, with everything disabled that could run a program of the repository.

Agents that work in a repository can write its config. What could run a program there, and what disables it
(tests/attacks/test_git.py tries all of it at once against each command used here):

    hooks, core.hooksPath              core.hooksPath=/dev/null: also reference-transaction of update-ref and
                                       post-index-change of update-index
    hook.NAME.command (git 2.54)       listed, and hook.NAME.enabled=false
    core.fsmonitor, its daemon         core.fsmonitor=false
    filter.NAME.*                      listed, and emptied; attributes only choose among these
    nested repositories                never entered: --ignore-submodules=all, diff.ignoreSubmodules=all,
                                       submodule.recurse=false, status.submoduleSummary=false; a git that git starts
                                       there (2.39: `git status --porcelain=2`) would read filters from its
                                       own configuration, which our list does not include
    lazy fetch of a partial clone,     GIT_ALLOW_PROTOCOL=none, GIT_NO_LAZY_FETCH (2.44): no transport is started, so
    core.sshCommand, core.gitProxy,    none of these is either
    remote.NAME.*, ext::, credential
    helpers, core.askPass, bundle URIs
    gpg.program                        log.showSignature=false; nothing is signed: commits are written as objects
    core.pager, pager.*, core.editor,  --no-pager, GIT_PAGER; no command used here has an editor
    diff.external, textconv, merge.*,  no command used here makes a patch, merges, serves or receives
    uploadpack.packObjectsHook,
    core.alternateRefsCommand
    gc, maintenance                    gc.auto=0, maintenance.auto=false
    GIT_* of the environment           left out
    core.worktree, a .git file that    refused by `worktrees.find` and `git_locks.of_worktree`: git must call that very
    leads elsewhere                    directory its top, and the entry must point back
    commondir, .git or config that     refused here, before git reads it (`_refuse_foreign`): with include.path another
    another user owns or may write to  user could even answer each of our questions differently
    include.path, includeIf            read with the same settings as the rest
    alternates                         data only; each object that a rescue writes is read back and compared

Optional locks are off, so a check changes nothing. A git that fails or is late raises: no answer never means "clean".
This module must not pass --force.

Remaining risk: a living process of the same uid may add a filter between our listing and our use. It can run programs
as that uid anyway; a dead agent cannot.
"""

import grp
import hashlib
import os
import pwd
import re
import stat
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import IO

from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import confinement

OFF = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    # The index's cached stat data must not hide a change: compare ctime and all stat fields (git-config(1)).
    "core.trustctime=true",
    "core.checkStat=default",
    "core.ignoreStat=false",
    "core.pager=cat",
    "core.quotePath=false",
    "submodule.recurse=false",
    "diff.ignoreSubmodules=all",
    "status.submoduleSummary=false",
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "log.showSignature=false",
    # Names that another system would refuse are saved too; names that differ in case are different.
    "core.protectNTFS=false",
    "core.protectHFS=false",
    "core.ignoreCase=false",
    # Data must be on disk before anything is moved.
    "core.fsync=all",
    "core.fsyncMethod=fsync",
)
FILTER_OFF = {"clean": "", "smudge": "", "process": "", "required": "false"}
HOOK_OFF = {"enabled": "false"}
NAMED = r"^(filter|hook)\."  # sections whose subsections may name programs
ACL = "system.posix_acl_access"  # present if a file has an ACL besides its mode bits (acl(5))
POINTER_LIMIT = 4096  # bytes of a .git file or a commondir file
WRITER = "agent-watchdog"  # author of rescue commits: the owner may have no name configured
# Where git finds itself for subcommands (`worktree remove` runs `status`); often links to one file.
EXECUTABLES = tuple(f"{top}/{place}/git-core/git" for top in ("/usr", "/usr/local") for place in ("lib", "libexec"))
OUTPUT_LIMIT = 64 << 20  # bytes; about the status of a million files


def environment() -> dict[str, str]:
    """Our environment without GIT_* variables, which could name another repository, and with prompts and locks off."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        # A partial clone fetches missing objects by programs in its config: so no transport at all (git(1)).
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        # Commits have only the parents recorded in them: what only a graft or a replacement holds is not held.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": os.devnull,
        "GIT_PAGER": "cat",
        "LC_ALL": "C",
    }


class Git:
    """Git in one directory; all its runs together take at most `seconds`.

    The constructor raises as `run`, and PathRefused (`not_yours`) for a repository that another user can configure.
    """

    def __init__(self, directory: str, seconds: float, *, git_dir: str | None = None) -> None:
        _refuse_foreign(git_dir or directory)
        self._directory = directory
        self._where = ["-C", directory] + ([f"--git-dir={git_dir}"] if git_dir else [])
        self._until = time.monotonic() + seconds
        self._environment = environment()
        # With a broken .git file git would otherwise go up and answer for the repository above.
        self._environment["GIT_CEILING_DIRECTORIES"] = os.path.dirname(os.path.realpath(directory))
        self._umask = -1
        self._off = [item for setting in OFF for item in ("-c", setting)]
        self._fence = confinement.only_runs("git", *EXECUTABLES)
        self._environment |= self._named_off()

    def _named_off(self) -> dict[str, str]:
        """Variables that empty all configured filter drivers (raw content that equals the blob is safely clean) and
        disable all configured hooks.
        """
        listed = self.run("config", "--null", "--name-only", "--get-regexp", NAMED, good=(0, 1))
        keys = (re.fullmatch(r"(filter|hook)\.(.+)\.[^.]+", key, re.S) for key in listed.split("\0"))
        named = sorted({(match[1], match[2]) for match in keys if match})
        pairs = [
            (f"{section}.{name}.{key}", value)
            for section, name in named
            for key, value in (FILTER_OFF if section == "filter" else HOOK_OFF).items()
        ]
        # By variables: `-c` splits at the first "=", which a driver's name may contain (git(1)).
        off = {"GIT_CONFIG_COUNT": str(len(pairs))}
        for number, (key, value) in enumerate(pairs):
            off |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return off

    def write_like(self, directory: str) -> None:
        """From now on git's files get the group and other permissions of `directory`; a helper's umask is 077."""
        self._umask = ~stat.S_IMODE(os.stat(directory).st_mode) & 0o077

    def run(self, *arguments: str, good: tuple[int, ...] = (0,), stdin: str = "", index: str | None = None) -> str:
        """Run git and return its output; `index`: use that index file instead of the worktree's own.

        Raises OwnerCallFailed: `git_failed` for another exit status, `git_late`, `git_missing`.
        """
        more = {} if index is None else {"GIT_INDEX_FILE": index}
        ran = self._run(arguments, stdout=subprocess.PIPE, given=os.fsencode(stdin), more=more)
        if ran.returncode not in good or len(ran.stdout) > OUTPUT_LIMIT:
            words = ran.stderr.decode("utf-8", "replace").strip()[-500:]
            raise OwnerCallFailed("git_failed", f"git {arguments[0]} ended with {ran.returncode}: {words}")
        return os.fsdecode(ran.stdout)

    def digests(self, objects: Sequence[str]) -> dict[str, bytes]:
        """SHA-256 of each object's content as git reads it back. Raises as `run`, also for a missing object."""
        found: dict[str, bytes] = {}
        asked = "".join(f"{name}\n" for name in objects).encode()
        reader, writer = os.pipe()
        with ThreadPoolExecutor(1) as pool, open(reader, "rb") as answers:
            ran = pool.submit(self._into, writer, ("cat-file", "--batch", "--buffer"), asked)
            for name in objects:
                words = answers.readline().split()
                if len(words) != 3:
                    break
                found[name] = _digest(answers, int(words[2]))
                answers.read(1)
        if len(found) < len(set(objects)) or ran.result().returncode:
            raise OwnerCallFailed("git_failed", "git cat-file did not return every object")
        return found

    def _into(self, writer: int, arguments: Sequence[str], given: bytes) -> subprocess.CompletedProcess[bytes]:
        try:
            return self._run(arguments, stdout=writer, given=given, more={})
        finally:
            os.close(writer)

    def _run(
        self, arguments: Sequence[str], *, stdout: int, given: bytes, more: dict[str, str]
    ) -> subprocess.CompletedProcess[bytes]:
        argv = ["git", "--no-pager", *self._where, *self._off, *arguments]

        def fenced() -> subprocess.CompletedProcess[bytes]:
            self._fence()
            return subprocess.run(
                argv,
                input=given,
                stdout=stdout,
                stderr=subprocess.PIPE,
                env=self._environment | more,
                timeout=max(0.1, self._until - time.monotonic()),
                check=False,
                umask=self._umask,
            )

        # Landlock applies to the calling thread and what it starts (landlock(7)). Applying it between fork(2) and
        # execve(2) would cost a copy of the interpreter per git, which vfork(2) avoids.
        try:
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(fenced).result()
        except subprocess.TimeoutExpired:
            where = f"in {self._directory!a}: does that hang?"
            raise OwnerCallFailed("git_late", f"git {arguments[0]} did not answer in time {where}") from None
        except OSError as error:
            raise OwnerCallFailed("git_missing", f"git cannot be run: {error.strerror}") from error


def dirs_of(place: str) -> tuple[str, str]:
    """The git dir of a checkout (or `place`, if it is one itself) and the common dir, by git's pointer files.

    Git is not run. Raises OSError; PathRefused (`pointer`) for a pointer that git would not write.
    """
    own = os.path.join(place, ".git")
    if not os.path.lexists(own):
        own = place
    elif not os.path.isdir(own):
        own = os.path.join(place, _pointed(own, "gitdir: "))
    try:
        common = os.path.join(own, _pointed(os.path.join(own, "commondir"), ""))
    except FileNotFoundError:
        common = own
    return own, common


def checkout_of(entry: str) -> str:
    """The linked worktree that an entry `<common>/worktrees/NAME` points to; the entry itself if it points nowhere."""
    try:
        return os.path.dirname(os.path.join(entry, _pointed(os.path.join(entry, "gitdir"), "")))
    except (OSError, PathRefused):
        return entry


def _pointed(file: str, before: str) -> str:
    fd = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as opened:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise PathRefused("pointer", f"{file} is not a regular file")
        words = os.fsdecode(opened.read(POINTER_LIMIT)).rstrip("\n")
    if not words.startswith(before) or "\0" in words:
        raise PathRefused("pointer", f"{file} is no pointer of git's")
    return words.removeprefix(before)


def _refuse_foreign(place: str) -> None:
    """Raise PathRefused (`not_yours`) if another user could choose the configuration that git reads.

    Git itself checks the owner of the entry, but not of the common dir that it names (2.39.5, setup.c), and nothing
    with `--git-dir`.
    """
    try:
        own, common = dirs_of(place)
    except (OSError, PathRefused):
        return  # git itself reports what is wrong, and reads no configuration there
    files = [os.path.join(own, "config.worktree"), os.path.join(common, "config")]
    for path in [os.path.join(place, ".git"), own, common, *files]:
        try:
            status = os.stat(path)
        except OSError:
            continue
        if status.st_uid != os.geteuid():
            raise PathRefused("not_yours", f"{path} of its repository belongs to uid {status.st_uid}")
        if writers := _other_writers(path, status):
            raise PathRefused("not_yours", f"{writers} may write to {path} of its repository")


def _other_writers(path: str, status: os.stat_result) -> str | None:
    """Describe users other than its owner that may write to it. With an ACL the group bits are its mask (acl(5))."""
    if status.st_mode & stat.S_IWOTH:
        return "any user"
    if not status.st_mode & stat.S_IWGRP:
        return None
    with suppress(OSError):  # a file system without ACLs
        if ACL in os.listxattr(path):
            return "others, by its access control list,"
    return None if _is_private(status.st_gid) else f"group {status.st_gid}"


def _is_private(gid: int) -> bool:
    """Whether it is this user's private group: of the same name and without other members (usergroups,
    pam_umask(8)).
    """
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return group.gr_gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _digest(answers: IO[bytes], size: int) -> bytes:
    digest = hashlib.sha256()
    while size > 0 and (data := answers.read(min(size, 1 << 20))):
        digest.update(data)
        size -= len(data)
    return digest.digest()
