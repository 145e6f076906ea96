"""What could lead a removal astray, in a mount namespace of its own. usage: places WHAT TIMES [DIRECTORY]

/tmp and /var/tmp are file systems of this namespace, with canaries in and beside them.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import mmap
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.owner.repositories import Repository, context
from watchdog.core import hooks
from watchdog.core.findings import KnownAgents
from watchdog.core.hooks import HookOutcome, HookResult
from watchdog.owner import os_errors, paths, temp_dirs, trash
from watchdog.owner.finders.finders import FINDERS
from watchdog.owner.helper import built_in_hook

ROOT, HOME = Path("/tmp"), Path("/home/me")
AGENT = "a" * 32
EXCHANGE = 2  # RENAME_EXCHANGE, renameat2(2)

# What a row of an agent may name as its temp dir; every one is refused, or is not there.
HOSTILE = """
|.|..|...|/|//|///|/.|/..|/./|/tmp|/tmp/|/tmp//|//tmp|/tmp/.|/tmp/..|/tmp/./|/tmp/../tmp|/var/tmp|/var/tmp/|/var|/home
/home/|/home/me|/home/me/|/home/me/..|/home/me/work|~|~/work|~me/work|$HOME|${HOME}/work|work
/var/tmp/agents|/var/tmp/agents/|/var/tmp/agents-evil|/var/tmp/agents-evil/x|/var/tmp/agentsx
./work|../canary|../../canary|tmp/canary|/tmp/canary/..|/tmp/canary/../../home|/tmp/./canary|/tmp/canary/.|/tmp/link
/tmp/link/|/tmp/link/inside|/tmp/link/../canary|/tmp/loop|/tmp/loop/x|/tmp/file|/tmp/file/x|/tmp/fifo|/tmp/canary\\n
/tmp/can\\x00ary|/tmp/can\\tary|\\x00|/tmp/\\x1b[2J|/tmp/*|/tmp/canar?|/tmp/{canary,x}|/tmp/state|/tmp/holds|/tmp/foreign
/tmp/repo|/tmp/repo/sub|/tmp/repo/.git|/tmp/marked|/tmp/mount|/tmp/mount/inside|/tmp/has-mount|/proc|/proc/self/cwd
/proc/1/cwd/tmp/canary|/proc/self/root|/proc/self/fd/0|/dev|/dev/shm|/etc|/usr|/root|/sys
""".replace("\n", "|").strip("|")


def arrange() -> None:
    """Two roots and a home, each a file system of this namespace."""
    for place in ("/tmp", "/var/tmp", "/home"):
        subprocess.run(["mount", "-t", "tmpfs", "none", place], check=True)
    HOME.mkdir()
    os.environ["HOME"] = str(HOME)
    (HOME / ".gitconfig").write_text("[user]\n\tname = t\n\temail = t@example.org\n")


def remove(path: str, **settings: Any) -> HookResult:
    """The hook as the helper runs it."""
    return built_in_hook("temp_dir", context(temp_dir=path, agent_id=AGENT), hooks.CleanupSettings(**settings))


def seen(*places: Path) -> str:
    """All names, and all that is in files, as one digest."""
    digest = hashlib.sha256()
    for place in places:
        for path in [place, *sorted(place.rglob("*"))]:
            status = path.lstat()
            digest.update(repr((str(path), status.st_mode, status.st_uid, status.st_ino)).encode())
            if path.is_file() and not path.is_symlink():
                digest.update(path.read_bytes())
    return digest.hexdigest()


def hostile(times: int) -> dict[str, Any]:
    """Every hostile path, and nothing has changed after any of them."""
    for place in ("canary", "state/registry", "holds/deep", "foreign", "marked", "mount", "has-mount/m", "repo/sub"):
        (ROOT / place).mkdir(parents=True)
        (ROOT / place / "keep").write_text("keep")
    outside = HOME / "work"
    (outside / "inside").mkdir(parents=True)
    (outside / "keep").write_text("keep")
    for twin in ("agents", "agents-evil/x", "agentsx"):
        (Path("/var/tmp") / twin).mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(ROOT / "repo")], check=True)
    subprocess.run(["mount", "--bind", str(outside), str(ROOT / "mount")], check=True)
    subprocess.run(["mount", "--bind", str(ROOT / "canary"), str(ROOT / "has-mount" / "m")], check=True)
    (ROOT / "marked" / temp_dirs.MARK).write_text("b" * 32)
    (ROOT / "link").symlink_to(outside)
    (ROOT / "loop").symlink_to("loop")
    (ROOT / "file").write_text("keep")
    os.mkfifo(ROOT / "fifo")
    os.chown(ROOT / "foreign", 12345, 12345)
    os.chdir(ROOT / "canary")
    protected = (str(ROOT / "state" / "registry"), str(ROOT / "holds" / "deep"))
    everywhere = (ROOT, HOME, Path("/var/tmp"))
    before = seen(*everywhere)
    words = HOSTILE.split("|")
    taken = []
    for word in words:
        path = word.encode().decode("unicode_escape")
        result = remove(path, protected=protected, roots=("/tmp", "/var/tmp/agents"))
        if result.outcome not in (HookOutcome.KEPT, HookOutcome.NOTHING) or seen(*everywhere) != before:
            taken.append((word, result.outcome, result.message))
    return {"paths": len(words), "taken": taken}


def swaps(times: int) -> dict[str, Any]:
    """A thread exchanges a directory of the temp dir and a link to a canary all the time, by a descriptor that stays
    valid in the trash; a process does so with every name that a removal uses in the trash.
    """
    canary = ROOT / "canary"  # on the same file system: a rename out of it would work
    (canary / "deep").mkdir(parents=True)
    for number in range(50):
        (canary / f"{number}").write_text("keep")
        (canary / "deep" / f"{number}").write_text("keep")
    before, libc = seen(canary), ctypes.CDLL(None, use_errno=True)
    counts = memoryview(mmap.mmap(-1, 16)).cast("q")  # of the thread, of the process
    over, here = threading.Event(), [-1]

    def swap() -> None:
        while not over.is_set():
            if here[0] >= 0 and libc.renameat2(here[0], b"sub", here[0], b"link", EXCHANGE) == 0:
                counts[0] += 1

    def invade() -> None:
        names = [b"tree", *(b"d%d" % number for number in range(1, 200))]
        while True:
            try:
                fd = os.open(ROOT / trash.beside_name(str(ROOT)) / f"{AGENT}.temp", os.O_RDONLY)
            except OSError:
                continue
            with contextlib.suppress(OSError):
                os.symlink(canary, "link", dir_fd=fd)
            for name in names:  # there and back: each name is the link for a moment
                if libc.renameat2(fd, name, fd, b"link", EXCHANGE) == 0:
                    counts[1] += 1 + (libc.renameat2(fd, name, fd, b"link", EXCHANGE) == 0)
            os.close(fd)

    invader = multiprocessing.get_context("fork").Process(target=invade, daemon=True)
    invader.start()
    sys.setswitchinterval(1e-5)
    racer = threading.Thread(target=swap)
    racer.start()
    rounds, removed = 0, 0
    try:
        while sum(counts) < times or not all(counts):
            work = ROOT / f"work{rounds}"
            for number in range(150):
                (work / "sub" / f"d{number}" / "deep").mkdir(parents=True)
            (work / "link").symlink_to(canary)
            here[0] = os.open(work, os.O_RDONLY)
            removed += remove(str(work)).outcome is HookOutcome.DONE
            fd, here[0] = here[0], -1
            time.sleep(0.001)  # the thread has let go of it
            os.close(fd)
            rounds += 1
            assert seen(canary) == before, f"after {sum(counts)} swaps"
    finally:
        over.set()
        racer.join()
        invader.kill()
        invader.join()
    return {"swaps": sum(counts), "in the trash": counts[1], "rounds": rounds, "removed": removed}


def mounts(times: int) -> dict[str, Any]:
    """At the top and inside; and one that comes when it lies in the trash already. With openat2 and without it."""
    kinds = {
        "tmpfs": ["-t", "tmpfs", "none"],
        "bind of the same device": ["--bind", str(ROOT / "shared")],
    }
    (ROOT / "shared").mkdir()
    (ROOT / "shared" / "canary").write_text("canary")
    refused: dict[str, str] = {}
    real = paths._openat2
    for call in ("openat2", "older kernel"):
        if call == "older kernel":
            paths._openat2 = _absent
        for kind, argv in kinds.items():
            for where in ("", "deep/er", "trash"):
                path = ROOT / "work"
                target = path / where if where != "trash" else ROOT / "bin" / "c" / "tree" / "in"
                target.mkdir(parents=True)
                subprocess.run(["mount", *argv, str(target)], check=True)
                (target / "canary").write_text("canary")
                if where == "trash":
                    fd, freed = os.open(ROOT / "bin", os.O_PATH), trash.Freed()
                    assert not trash.remove_container(fd, "c", freed)
                    os.close(fd)
                    reason = str(freed.reason)
                else:
                    reason = str(remove(str(path)).details["refused"])
                refused[f"{call}, {kind}, {where or 'top'}"] = reason
                assert (target / "canary").read_text() == "canary"
                subprocess.run(["umount", str(target)], check=True)
                subprocess.run(["rm", "-rf", str(path), str(ROOT / "bin")], check=True)
    paths._openat2 = real
    return refused


def _absent(parent: int, name: str) -> int:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def many(times: int) -> dict[str, Any]:
    """So many files, in rounds; between two of them another agent's temp dir is removed."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "nr_inodes=0", "none", str(ROOT)], check=True)
    path = ROOT / "work"
    for number in range(10):
        (path / str(number)).mkdir(parents=True)
        fd = os.open(path / str(number), os.O_RDONLY)
        for name in range(times // 10):
            os.close(os.open(str(name), os.O_CREAT | os.O_WRONLY, dir_fd=fd))
        os.close(fd)
    temp_dirs.ROUND, temp_dirs.SECONDS = max(1, times // 5), 0.0
    known = KnownAgents(ended={AGENT: 1.0}, temp_dirs={AGENT: str(path)})
    finder, settings = FINDERS["temp_dir"], hooks.CleanupSettings()
    began = time.monotonic()
    results, longest = [remove(str(path))], time.monotonic() - began
    while found := list(finder.look(settings, known)):
        (ROOT / "other").mkdir()
        other = hooks.CleanupSettings()
        assert built_in_hook("temp_dir", context(temp_dir="/tmp/other", agent_id="b"), other).details["inodes"] == 1
        began = time.monotonic()
        results.append(finder.act(found[0], settings, known))
        longest = max(longest, time.monotonic() - began)
    assert {result.outcome for result in results} == {HookOutcome.DONE}, results
    assert list(ROOT.iterdir()) == []
    inodes = [int(str(result.details["inodes"])) for result in results]
    return {"rounds": len(results), "inodes": sum(inodes), "most": max(inodes), "longest": round(longest, 2)}


def disk_full(times: int) -> dict[str, Any]:
    """No room for the intent: the tree stays; with room again the same hook does it."""
    small = ROOT / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=400", "none", str(small)], check=True)
    repository = Repository(small)
    tree, temp = repository.worktree(), small / "temp"
    temp.mkdir()
    (temp / "file").write_text("x")
    full = small / "full"
    with full.open("wb", buffering=0) as file, _suppressed(errno.ENOSPC):
        while True:
            file.write(b"x" * 4096)
    number = 0
    with _suppressed(errno.ENOSPC):
        while True:
            os.mkdir(small / f"n{number}")
            number += 1
    hook, settings = context(worktree=str(tree), agent_id=AGENT), hooks.CleanupSettings(roots=(str(small),))
    before = seen(tree, temp)
    said = [built_in_hook("worktree", hook, settings) for _ in range(2)]
    said.append(remove(str(temp), roots=(str(small),)))
    assert seen(tree, temp) == before
    assert {result.outcome for result in said} == {HookOutcome.FAILED}, said
    full.unlink()
    for gone in range(number):
        os.rmdir(small / f"n{gone}")
    after = built_in_hook("worktree", hook, settings), remove(str(temp), roots=(str(small),))
    assert {result.outcome for result in after} == {HookOutcome.DONE}, after
    return {"reasons": sorted({str(result.details["reason"]) for result in said})}


def hindered(times: int) -> dict[str, Any]:
    """Read-only, immutable, append-only, busy: each by its name, the rest goes; when it is over, all of it."""
    reasons = {}
    for word, before, after in (
        ("read_only", ["mount", "-o", "remount,ro", str(ROOT)], ["mount", "-o", "remount,rw", str(ROOT)]),
        ("immutable", ["chattr", "+i", "/tmp/own/deep/file"], ["chattr", "-i"]),
        ("immutable", ["chattr", "+i", "/tmp/own/deep"], ["chattr", "-i"]),
        ("append_only", ["chattr", "+a", "/tmp/own/deep"], ["chattr", "-a"]),
    ):
        path = ROOT / "own"
        (path / "deep").mkdir(parents=True)
        (path / "deep" / "file").write_text("x")
        (path / "other").write_text("x")
        subprocess.run(before, check=True)
        results = [remove(str(path)), remove(str(path))]
        assert {result.outcome for result in results} == {HookOutcome.FAILED}, results
        reasons[" ".join(before[1:3])] = [str(result.details["reason"]) for result in results]
        assert reasons[" ".join(before[1:3])] == [word, word], results
        if word == "read_only":
            subprocess.run(after, check=True)
            assert (path / "other").exists()
        else:
            assert not list(ROOT.rglob("other"))
            for left in [*ROOT.rglob("deep"), *ROOT.rglob("d1"), *ROOT.rglob("file")]:
                subprocess.run([*after, str(left)], check=False, stderr=subprocess.DEVNULL)
        assert remove(str(path)).outcome is HookOutcome.DONE
        assert list(ROOT.iterdir()) == []
    place = ROOT / "bin" / "c"
    (place / "tree").mkdir(parents=True)
    (place / "tree" / "file").touch()
    (HOME / "file").write_text("keep")
    subprocess.run(["mount", "--bind", str(HOME / "file"), str(place / "tree" / "file")], check=True)
    fd, freed = os.open(ROOT / "bin", os.O_PATH), trash.Freed()
    assert not trash.remove_container(fd, "c", freed)
    assert (HOME / "file").read_text() == "keep"
    reasons["a file that is mounted"] = [str(freed.reason)]
    reasons["a quota"] = [os_errors.explain(OSError(errno.EDQUOT, "Disk quota exceeded"))[0]]  # no quota on tmpfs here
    return reasons


class _suppressed:
    """Lets one errno pass."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, OSError) and error.errno == self._number


WHAT = {f.__name__: f for f in (hostile, swaps, mounts, many, disk_full, hindered)}

if __name__ == "__main__":
    arrange()
    print(json.dumps(WHAT[sys.argv[1]](int(sys.argv[2]))))
