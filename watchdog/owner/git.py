"""Git's plumbing, run as the owner with everything off that could run a program of the repository.

Hooks, fsmonitor, filters, external diffs, all transports, pagers and prompts are off: a repository's config is
written by whoever works in it. Optional locks are off, so a look changes nothing. A git that fails or is late raises:
no answer never means "clean". This module must not pass --force.
"""

import hashlib
import os
import re
import stat
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from watchdog.errors import OwnerCallFailed
from watchdog.owner import confinement

OFF = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.untrackedCache=false",
    # What the index believes of a file must not hide a change: compare ctime and all stat fields (git-config(1)).
    "core.trustctime=true",
    "core.checkStat=default",
    "core.ignoreStat=false",
    "core.pager=cat",
    "core.quotePath=false",
    "submodule.recurse=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "log.showSignature=false",
    # A name that another system would refuse is saved all the same; two that differ in case are two.
    "core.protectNTFS=false",
    "core.protectHFS=false",
    "core.ignoreCase=false",
    # What is written is on the disk before anything is moved.
    "core.fsync=all",
    "core.fsyncMethod=fsync",
)
FILTER_OFF = {"clean": "", "smudge": "", "process": "", "required": "false"}
WRITER = "agent-watchdog"  # author of what a rescue commits: the owner may have no name configured
# Where git finds itself for a part of what it does (`worktree remove` runs `status`); often links to one file.
EXECUTABLES = tuple(f"{top}/{place}/git-core/git" for top in ("/usr", "/usr/local") for place in ("lib", "libexec"))
OUTPUT_LIMIT = 64 << 20  # bytes; a status of a million files is about that long


def environment() -> dict[str, str]:
    """Our environment without GIT_*, which could name another repository, and with prompts and locks off."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0",
        # A partial clone fetches what it misses, by programs that its config names: no transport at all (git(1)).
        "GIT_ALLOW_PROTOCOL": "none",
        "GIT_NO_LAZY_FETCH": "1",
        # Commits have the parents that stand in them: what only a graft or a replacement holds goes with that.
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_GRAFT_FILE": os.devnull,
        "GIT_PAGER": "cat",
        "LC_ALL": "C",
    }


class Git:
    """Git in one directory, all of its runs together within `seconds`."""

    def __init__(self, directory: str, seconds: float, *, git_dir: str | None = None) -> None:
        self._where = ["-C", directory] + ([f"--git-dir={git_dir}"] if git_dir else [])
        self._until = time.monotonic() + seconds
        self._environment = environment()
        # Only this directory is asked about: with a broken .git file git would go up and answer for the one above.
        self._environment["GIT_CEILING_DIRECTORIES"] = os.path.dirname(os.path.realpath(directory))
        self._umask = -1
        self._off = [item for setting in OFF for item in ("-c", setting)]
        self._environment |= self._filters_off()

    def _filters_off(self) -> dict[str, str]:
        """Empty every configured filter driver: raw content that equals the blob is safe to call clean."""
        listed = self.run("config", "--null", "--name-only", "--get-regexp", r"^filter\.", good=(0, 1))
        drivers = {match[1] for key in listed.split("\0") if (match := re.fullmatch(r"filter\.(.+)\.[^.]+", key, re.S))}
        # By variables: `-c` takes what is before the first "=" for the key, and a driver's name may hold one (git(1)).
        off = {"GIT_CONFIG_COUNT": str(len(FILTER_OFF) * len(drivers))}
        pairs = ((f"filter.{driver}.{key}", value) for driver in sorted(drivers) for key, value in FILTER_OFF.items())
        for number, (key, value) in enumerate(pairs):
            off |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        return off

    def write_like(self, directory: str) -> None:
        """From now on what git makes is as open to group and others as `directory` is; a helper's umask is 077."""
        self._umask = ~stat.S_IMODE(os.stat(directory).st_mode) & 0o077

    def run(self, *arguments: str, good: tuple[int, ...] = (0,), stdin: str = "", index: str | None = None) -> str:
        """What git prints; `index`: with that index file instead of the worktree's own.

        Raises OwnerCallFailed: `git_failed` for another exit status, `git_late`, `git_missing`.
        """
        more = {} if index is None else {"GIT_INDEX_FILE": index}
        ran = self._run(arguments, stdout=subprocess.PIPE, given=os.fsencode(stdin), more=more)
        if ran.returncode not in good or len(ran.stdout) > OUTPUT_LIMIT:
            words = ran.stderr.decode("utf-8", "replace").strip()[-500:]
            raise OwnerCallFailed("git_failed", f"git {arguments[0]} ended with {ran.returncode}: {words}")
        return os.fsdecode(ran.stdout)

    def digests(self, objects: Sequence[str]) -> dict[str, bytes]:
        """SHA-256 of each object's content as git reads it back. Raises as `run`, also for one that is not there."""
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
            raise OwnerCallFailed("git_failed", "git cat-file did not give every object back")
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
        try:
            return subprocess.run(
                argv,
                input=given,
                stdout=stdout,
                stderr=subprocess.PIPE,
                env=self._environment | more,
                timeout=max(0.1, self._until - time.monotonic()),
                check=False,
                umask=self._umask,
                preexec_fn=confinement.only_runs("git", *EXECUTABLES),
            )
        except subprocess.TimeoutExpired:
            raise OwnerCallFailed("git_late", f"git {arguments[0]} did not answer in time") from None
        except OSError as error:
            raise OwnerCallFailed("git_missing", f"git cannot be run: {error.strerror}") from error


def _digest(answers: IO[bytes], size: int) -> bytes:
    digest = hashlib.sha256()
    while size > 0 and (data := answers.read(min(size, 1 << 20))):
        digest.update(data)
        size -= len(data)
    return digest.digest()
