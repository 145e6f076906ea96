"""The daemon's side of owners' helpers, with real ones: deadlines, replacement, other uids, a hook's tree."""

import asyncio
import gc
import os
import pwd
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path

import pytest

from tests.control.office import Recorder
from tests.owner.repositories import context
from tests.world import started_at
from watchdog.core import hooks
from watchdog.core.agent import Status
from watchdog.core.hooks import HookContext, HookOutcome, HookResult, HookSpec
from watchdog.errors import OwnerCallFailed
from watchdog.helpers import pool as daemons_side
from watchdog.helpers.pool import HelperPool
from watchdog.owner.helper import last_lines

ME = os.geteuid()
OTHER = 12345
needs_root = pytest.mark.skipif(ME != 0, reason="only root can act as another uid")

# The real helper with one call more, which does what no real call does: it opens whatever it is told.
WITH_OPEN = """
import os, resource, signal, sys, time
from watchdog.owner import helper
helper.CALLS["open"] = lambda path: os.close(os.open(path, os.O_RDONLY))
helper.CALLS["print"] = lambda: print("stray")
helper.CALLS["long"] = lambda: "x" * (2 << 20)
helper.IN_PLACE["garble"] = lambda: os.write(ends, b"not json\\n") and None
helper.IN_PLACE["flood"] = lambda: os.write(ends, b"x" * (3 << 20)) and None
helper.CALLS["sleep"] = lambda seconds: time.sleep(seconds)
helper.CALLS["exceed"] = lambda: os.kill(os.getpid(), signal.SIGXCPU)
def end_looks(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        for child in map(int, children.read().split()):
            if child != os.getpid():
                os.kill(child, signal.SIGKILL)
    time.sleep(20)
helper.CALLS["end_looks"] = end_looks
helper.CALLS["die"] = lambda: (sys.stderr.write("my last words"), sys.stderr.flush(), os._exit(1))
ends = os.dup(1)
sys.argv = ["helper", *sys.argv[1:]]
helper.main()
"""


@asynccontextmanager
async def owners(*argv: str, settings: hooks.CleanupSettings | None = None) -> AsyncIterator[HelperPool]:
    """Owners that are closed at the end."""
    made = HelperPool(argv or None, settings=settings)
    try:
        yield made
    finally:
        await made.close()


def opening() -> tuple[str, ...]:
    return (sys.executable, "-c", WITH_OPEN)


def run(story: Callable[[], Awaitable[None]]) -> None:
    """One story on a loop of its own."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


async def gone(pid: int) -> None:
    """Wait until a process is no more."""
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        await asyncio.sleep(0.02)


def test_one_helper_serves_all_calls_of_an_owner() -> None:
    """Started on demand, as that uid."""

    async def story() -> None:
        async with owners() as them:
            first, second = [await them.call(ME, "ping", {}, 20) for _ in range(2)]
            assert first == second
            assert first["uid"] == ME
        await gone(first["pid"])

    run(story)


@needs_root
def test_a_helper_of_another_uid_has_nothing_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uid, groups, environment, cwd, session: all that a hook inherits."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/x")
    monkeypatch.setenv("AGENT_WATCHDOG_ID", "x")
    monkeypatch.setenv("GIT_DIR", "/x")
    monkeypatch.setenv("WATCHDOG_USEC", "1")

    async def story() -> None:
        async with owners() as them:
            answer = await them.call(OTHER, "ping", {}, 20)
            assert answer["uid"] == OTHER
            pid = answer["pid"]
            status = Path(f"/proc/{pid}/status").read_text()
            assert f"Uid:\t{OTHER}\t{OTHER}\t{OTHER}\t{OTHER}" in status
            groups = next(line for line in status.splitlines() if line.startswith("Groups:"))
            assert "0" not in groups.split()[1:]
            assert "CapEff:\t0000000000000000" in status
            assert os.getsid(pid) == pid
            assert os.readlink(f"/proc/{pid}/cwd") == "/"
            names = {item.partition(b"=")[0] for item in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
            assert names - {b""} <= {b"PATH", b"HOME", b"USER", b"LOGNAME", b"LANG", b"LC_CTYPE"}

    run(story)


def test_an_idle_helper_ends_and_the_next_call_has_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not while somebody waits for it, and not its lone neighbours."""
    monkeypatch.setattr(daemons_side, "IDLE", 0.2)

    async def story() -> None:
        async with owners(*opening()) as them:
            first = await them.call(ME, "ping", {}, 20)
            await gone(first["pid"])
            second = await them.call(ME, "ping", {}, 20)
            assert second["pid"] != first["pid"]
            assert await them.call(ME, "sleep", {"seconds": 1.0}, 20) is None
            assert (await them.call(ME, "ping", {}, 20))["pid"] == second["pid"]

    run(story)


def test_what_the_host_lacks_is_told_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first answer of a helper; words of a helper that are none of ours are left out."""
    lacking = '{"landlock": "the kernel has no Landlock", "more": "x"}'
    code = WITH_OPEN.replace("helper.main()", f"helper.confinement.lacking = lambda: {lacking}\nhelper.main()")
    log = Recorder()

    async def story() -> None:
        them = HelperPool((sys.executable, "-c", code), log=log)
        try:
            await them.call(ME, "ping", {}, 20)
            await them.call(ME, "ping", {}, 20)
            await them.call_in_fresh_helper(ME, "ping", {}, 20)
        finally:
            await them.close()

    run(story)
    assert log.events == [{"event": "helper.unconfined", "kind": "landlock", "why": "the kernel has no Landlock"}]


def test_a_call_that_ends_takes_nobody_with_it(tmp_path: Path) -> None:
    """Its memory or CPU time was used up: `lost` for it alone. So was a helper whose process for looks is ended."""

    async def story() -> None:
        async with owners(*opening()) as them:
            before = await them.call(ME, "ping", {}, 20)
            others = [them.call(ME, "sleep", {"seconds": 0.5}, 20), them.call(ME, "stamp", {"path": "/etc/passwd"}, 20)]
            waiting = asyncio.gather(*others)
            with pytest.raises(OwnerCallFailed, match="SIGXCPU") as failure:
                await them.call(ME, "exceed", {}, 20)
            assert failure.value.reason == "lost"
            await waiting
            assert await them.call(ME, "ping", {}, 20) == before
            with pytest.raises(OwnerCallFailed) as ended:
                await them.call(ME, "end_looks", {"pid": before["pid"]}, 20)
            assert ended.value.reason == "lost"
            assert (await them.call(ME, "stamp", {"path": "/etc/passwd"}, 20))["size"] > 0

    run(story)


@needs_root
def test_a_command_hook_is_not_confined_and_its_helper_is_hidden() -> None:
    """It is its owner's own program: the network, capabilities by set-uid programs, and what it runs are its affair."""
    script = "grep -E '^(Uid|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; stat -c %u /proc/$PPID/mem"

    async def story() -> None:
        async with owners() as them:
            result = await one_hook(them, context(owner_uid=OTHER), command=("sh", "-c", script))
            told = dict(line.split(":\t") for line in result.message.splitlines()[:-1])
            mine = dict(
                line.split(":\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\t" in line
            )
            assert told["Uid"].split() == [str(OTHER)] * 4
            assert {name: told[name] for name in ("CapBnd", "NoNewPrivs", "Seccomp")} == {
                name: mine[name] for name in ("CapBnd", "NoNewPrivs", "Seccomp")
            }
            assert result.message.splitlines()[-1] == "0", "what its helper has in /proc is root's"

    run(story)


@pytest.mark.skipif(ME == 0, reason="root may act as anybody")
def test_a_user_daemon_cannot_act_as_another_uid() -> None:
    """It does not even try."""

    async def story() -> None:
        async with owners() as them:
            with pytest.raises(OwnerCallFailed) as failure:
                await them.call(ME + 1, "ping", {}, 20)
            assert failure.value.reason == "not_permitted"

    run(story)


def test_a_beat_file_is_looked_at_and_never_opened(tmp_path: Path) -> None:
    """mtime, size and inode of a regular file; anything else, a FIFO first, is an error and hangs nobody."""
    (tmp_path / "beat").write_text("x")
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")

    async def story() -> None:
        async with owners() as them:
            first = await them.call(ME, "stamp", {"path": str(tmp_path / "beat")}, 20)
            assert first["mtime_ns"] == (tmp_path / "beat").stat().st_mtime_ns
            assert first["size"] == 1
            os.utime(tmp_path / "beat", ns=(1, first["mtime_ns"]))
            assert await them.call(ME, "stamp", {"path": str(tmp_path / "beat")}, 20) != first
            for name, reason in (("fifo", "not_regular"), ("none", "ENOENT"), ("loop", "ELOOP"), ("", "not_regular")):
                with pytest.raises(OwnerCallFailed) as failure:
                    await them.call(ME, "stamp", {"path": str(tmp_path / name)}, 20)
                assert failure.value.reason == reason

    run(story)


KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "hunter2\n" * 4000 + "-----END RSA PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("", []),
        ("one\n\n  \ntwo", ["one", "two"]),
        ("".join(f"{n}\n" for n in range(30)), [str(n) for n in range(20, 30)]),
        ("x" * 1000 + "\nlast\n", ["x" * 200, "last"]),
        ("token=hunter2 Bearer hunter2hunter2\n" * 2, ["token=*** Bearer ***"] * 2),
        ("TOKEN=" + "hunter2" * 4000, []),
        ("TOKEN=" + "hunter2" * 4000 + "\nlast", ["last"]),
        (f"{KEY}last\n", ["last"]),
        (b"\xff\x1b[2J\n", ["\ufffd\x1b[2J"]),
    ],
)
def test_the_end_of_a_log_is_told_without_secrets(tmp_path: Path, written: str | bytes, told: list[str]) -> None:
    """Also of one that begins before what is read; ten lines at most, cut."""
    (tmp_path / "log").write_bytes(written if isinstance(written, bytes) else written.encode())
    os.mkfifo(tmp_path / "fifo")
    assert last_lines(str(tmp_path / "log")) == told
    with pytest.raises(OwnerCallFailed, match="not a regular file"):
        last_lines(str(tmp_path / "fifo"))


@pytest.mark.skipif(ME != 0, reason="needs root: to mount a file system that can be filled")
def test_a_file_on_a_full_disk_says_so(tmp_path: Path) -> None:
    """Case C7: what could not be written is no proof that nobody wrote."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(tmp_path)], check=True)
    try:
        (tmp_path / "beat").touch()

        async def story() -> None:
            async with owners() as them:
                assert (await them.call(ME, "stamp", {"path": str(tmp_path / "beat")}, 20))["unwritable"] == ""
                with suppress(OSError):
                    (tmp_path / "filler").write_bytes(b"x" * 100_000)
                told = await them.call(ME, "stamp", {"path": str(tmp_path / "beat")}, 20)
                assert told["unwritable"] == "its file system is full"

        run(story)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_bytes_moved_are_told_of_exactly_these_processes() -> None:
    """Pipes count too; who is gone, or whose number has passed on, is left out."""
    command = "import sys; sys.stdout.buffer.write(b'x' * 100_000); sys.stdout.flush(); sys.stdin.read()"
    process = subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert len(process.stdout.read(100_000)) == 100_000
        ticks = int(started_at(process.pid) or 0)

        async def story() -> None:
            async with owners() as them:
                asked = [[process.pid, ticks], [process.pid, ticks + 1], [2**22 - 1, 1]]
                moved = await them.call(ME, "moved", {"processes": asked}, 20)
                assert moved.keys() == {str(process.pid)}
                assert moved[str(process.pid)] >= 100_000

        run(story)
    finally:
        process.kill()
        process.communicate()


def test_a_call_that_hangs_in_a_fifo_changes_nothing_for_others(tmp_path: Path) -> None:
    """Case H1: it is late, its helper is ended and replaced; the same owner's other calls are answered meanwhile."""
    os.mkfifo(tmp_path / "fifo")

    async def story() -> None:
        async with owners(*opening()) as them:
            before = await them.call(ME, "ping", {}, 20)
            hanging = asyncio.create_task(them.call(ME, "open", {"path": str(tmp_path / "fifo")}, 1.0))
            uids = [ME, OTHER] if ME == 0 else [ME]
            while not hanging.done():
                for uid in uids:
                    began = time.monotonic()
                    await them.call(uid, "ping", {}, 20)
                    assert time.monotonic() - began < 15
            with pytest.raises(OwnerCallFailed) as failure:
                await hanging
            assert failure.value.reason == "late"
            assert f"about {tmp_path / 'fifo'}" in str(failure.value)
            after = await them.call(ME, "ping", {}, 20)
            assert after["pid"] != before["pid"]
            await gone(before["pid"])

    run(story)


def test_a_call_in_flight_survives_the_end_of_its_helper_by_anothers_lateness(tmp_path: Path) -> None:
    """It is asked again of the new one, within its own deadline."""
    os.mkfifo(tmp_path / "fifo")

    async def story() -> None:
        async with owners(*opening()) as them:
            path = {"path": str(tmp_path / "fifo")}
            longer = asyncio.create_task(them.call(ME, "open", path, 20))
            await them.call(ME, "ping", {}, 20)
            with pytest.raises(OwnerCallFailed, match="no answer"):
                await them.call(ME, "open", path, 0.3)
            await them.call(ME, "ping", {}, 20)
            # A reader is there again: the repeated call opens the FIFO as soon as a writer comes.
            while not longer.done():
                try:
                    os.close(os.open(path["path"], os.O_WRONLY | os.O_NONBLOCK))
                except OSError:
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0)
            await longer

    run(story)


@pytest.mark.parametrize(
    ("call", "reason"), [("die", "lost"), ("garble", "garbled"), ("flood", "garbled"), ("long", "too_long")]
)
def test_a_helper_that_misbehaves_is_replaced(call: str, reason: str) -> None:
    """Its death, words that are no answer, and a line without end."""

    async def story() -> None:
        async with owners(*opening()) as them:
            with pytest.raises(OwnerCallFailed) as failure:
                await them.call(ME, call, {}, 20)
            assert failure.value.reason == reason
            assert (await them.call(ME, "ping", {}, 20))["uid"] == ME

    run(story)


def test_nothing_is_kept_of_a_uid_whose_helper_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user has 65,536 uids: 32 MB of locks and sets that were never given back."""
    monkeypatch.setattr("watchdog.helpers.pool.IDLE", 0.01)

    async def story() -> None:
        async with owners() as them:
            await them.call(os.geteuid(), "ping", {}, 20)
            async with asyncio.timeout(20):
                while them._shared or them._ending:
                    await asyncio.sleep(0.01)
            gc.collect()
            assert not dict(them._starting)

    run(story)


def test_a_question_that_is_too_long_is_not_asked() -> None:
    """A helper ended at the middle of the line, with a traceback in place of an answer, and with it all other calls."""

    async def story() -> None:
        async with owners() as them:
            with pytest.raises(OwnerCallFailed, match="a question of") as refused:
                await them.call(os.geteuid(), "stamp", {"path": "/" + "x" * (1 << 20)}, 20)
            assert refused.value.reason == "too_long"
            assert await them.call(os.geteuid(), "ping", {}, 20)

    run(story)


def test_stray_output_is_no_answer() -> None:
    """What prints by accident goes nowhere."""

    async def story() -> None:
        async with owners(*opening()) as them:
            assert await them.call(ME, "print", {}, 20) is None

    run(story)


def test_an_interpreter_that_cannot_be_run_is_said() -> None:
    """Missing evidence with a reason, not a crash."""

    async def story() -> None:
        async with owners("/no/such/python") as them:
            with pytest.raises(OwnerCallFailed) as failure:
                await them.call(ME, "ping", {}, 20)
            assert failure.value.reason == "not_started"
        async with owners(sys.executable, "-c", "raise SystemExit('my last words')") as them:
            with pytest.raises(OwnerCallFailed) as lost:
                await them.call(ME, "ping", {}, 20)
            assert lost.value.reason == "lost"

    run(story)


def spec(**changes: object) -> HookSpec:
    """A hook that always applies."""
    return HookSpec(**{"name": "hook", "on": frozenset(Status), **changes})  # type: ignore[arg-type]


async def one_hook(them: HelperPool, about: HookContext, **changes: object) -> HookResult:
    return await them.run_hook(spec(**changes), about)


def test_a_hook_ends_with_its_helper_and_its_whole_tree(tmp_path: Path) -> None:
    """Nobody is left of a late hook, and the shared helper never heard of it."""
    note = tmp_path / "pids"
    script = (
        f"trap '' TERM; (setsid sh -c 'echo $$ >> {note}; exec sleep 600' &); echo $$ >> {note}; while :; do :; done"
    )

    async def story() -> None:
        async with owners() as them:
            limit = timedelta(seconds=1)
            about = context(worktree=str(tmp_path))
            result = await one_hook(them, about, command=("sh", "-c", script), timeout=limit)
            assert result.outcome is HookOutcome.TIMEOUT
            assert result.message.endswith(f"at work in {tmp_path}: does that hang? timeout 5 ls {tmp_path}")
            pids = [int(line) for line in note.read_text().split()]
            assert len(pids) == 2
            for pid in pids:
                assert not Path(f"/proc/{pid}").exists()

    run(story)


def test_closing_in_the_middle_of_a_hook_ends_its_tree(tmp_path: Path) -> None:
    """The daemon stops: the hook does not run on beside the next daemon's."""
    note = tmp_path / "pids"

    async def story() -> None:
        async with owners() as them:
            command = ("sh", "-c", f"(setsid sh -c 'echo $$ > {note}; exec sleep 600' &) ; sleep 600")
            running = asyncio.create_task(one_hook(them, context(), command=command))
            while not note.exists() or not note.read_text():
                await asyncio.sleep(0.02)
            await them.close()
            assert (await running).outcome is HookOutcome.FAILED
            await gone(int(note.read_text()))

    run(story)


def test_when_the_daemon_is_killed_its_hooks_end(tmp_path: Path) -> None:
    """SIGKILL leaves no word to anybody; the pipe's end says it."""
    note = tmp_path / "pids"
    script = f"""
import asyncio
from tests.helpers.test_pool import one_hook, context
from watchdog.helpers.pool import HelperPool
command = ("sh", "-c", "(setsid sh -c 'echo $$ > {note}; exec sleep 600' &) ; sleep 600")
asyncio.run(one_hook(HelperPool(), context(), command=command))
"""

    async def story() -> None:
        daemon = await asyncio.create_subprocess_exec(sys.executable, "-c", script)
        while not note.exists() or not note.read_text():
            await asyncio.sleep(0.02)
        daemon.send_signal(signal.SIGKILL)
        await daemon.wait()
        await gone(int(note.read_text()))

    run(story)


def test_hooks_leave_no_descriptor_behind() -> None:
    """Case H16: also where a grandchild keeps the pipe."""

    async def story() -> None:
        async with owners() as them:
            for _ in range(3):
                await one_hook(them, context(), command=("sh", "-c", "sleep 600 & echo done"))
            before = len(os.listdir("/proc/self/fd"))
            for _ in range(10):
                result = await one_hook(them, context(), command=("sh", "-c", "sleep 600 & echo done"))
                assert result.message == "done"
            await asyncio.sleep(0.1)
            assert len(os.listdir("/proc/self/fd")) <= before

    run(story)


def test_an_unknown_built_in_hook_is_failed() -> None:
    """With the names that there are."""

    async def story() -> None:
        async with owners() as them:
            result = await one_hook(them, context(), run="nonsense")
            assert result.outcome is HookOutcome.FAILED
            assert "temp_dir" in result.message

    run(story)


@needs_root
def test_root_puts_away_a_users_worktree_as_that_user(tmp_path: Path) -> None:
    """Case E16: no root-owned object in .git, no config changed, the user can commit afterwards."""
    place = Path(f"/tmp/agent-watchdog-test-{os.getpid()}")  # pytest's own directories are closed to other uids
    place.mkdir()
    place.chmod(0o755)
    os.chown(place, OTHER, OTHER)
    user = {"user": OTHER, "group": OTHER, "extra_groups": []}

    async def story() -> None:
        script = (
            "export HOME=. && git init -q -b main main && cd main"
            " && git config user.email t@e && git config user.name t"
            " && git commit -q --allow-empty -m first && git worktree add -q -b wt ../wt && mkdir ../temp"
            " && git worktree add -q -b dirty ../dirty && echo mine >../dirty/notes && git -C ../dirty add -N notes"
        )
        made = await asyncio.create_subprocess_exec("sh", "-c", script, cwd=place, **user)  # type: ignore[arg-type]
        assert await made.wait() == 0
        program = place / "main" / ".git" / "hooks" / "reference-transaction"
        program.write_text(f"#!/bin/sh\nid -u >>{place}/ran\n")
        program.chmod(0o755)
        os.chown(program, OTHER, OTHER)
        with (place / "main" / ".git" / "config").open("a") as file:
            file.write(f"[core]\n\tfsmonitor = {program}\n")
        config = (place / "main" / ".git" / "config").read_bytes()
        about = context(owner_uid=OTHER, worktree=str(place / "wt"), temp_dir=str(place / "temp"))
        dirty = context(owner_uid=OTHER, agent_id="b" * 32, worktree=str(place / "dirty"))
        async with owners(settings=hooks.CleanupSettings(dirty_worktree="rescue")) as them:
            moved = await one_hook(them, about, run="worktree")
            removed = await one_hook(them, about, run="temp_dir")
            rescued = await one_hook(them, dirty, run="worktree")
            asked = {"wanted": "b" * 32, "places": [str(place / "main")]}
            told = await them.call_in_fresh_helper(OTHER, "restore", asked, 60)
        assert moved.outcome is HookOutcome.DONE, moved.message
        assert rescued.details["refs"], rescued.message
        assert told["path"] == str(place / "dirty")
        assert (place / "dirty" / "notes").read_text() == "mine\n"
        assert not (place / "ran").exists(), "a program of the repository ran"
        assert removed.outcome is HookOutcome.DONE, removed.message
        assert (place / "main" / ".git" / "config").read_bytes() == config
        assert {found.lstat().st_uid for found in place.rglob("*")} == {OTHER}
        kept = place / "main" / ".git" / "agent-watchdog" / "trash" / ("a" * 32)
        assert stat.S_IMODE(kept.stat().st_mode) == 0o700
        again = "cd main && HOME=. git commit -q --allow-empty -m second"
        commit = await asyncio.create_subprocess_exec("sh", "-c", again, cwd=place, **user)  # type: ignore[arg-type]
        assert await commit.wait() == 0

    try:
        run(story)
    finally:
        shutil.rmtree(place)


@needs_root
def test_root_acting_as_a_user_cannot_touch_another_users(tmp_path: Path) -> None:
    """Registered by 12345, owned by root: refused by the kernel and by the hook."""
    place = Path(f"/tmp/agent-watchdog-test-roots-{os.getpid()}")
    (place / "inner").mkdir(parents=True)
    place.chmod(0o755)

    async def story() -> None:
        async with owners() as them:
            result = await one_hook(them, context(owner_uid=OTHER, temp_dir=str(place / "inner")), run="temp_dir")
        assert result.outcome is HookOutcome.KEPT
        assert result.details["refused"] == "not_yours"

    try:
        run(story)
        assert (place / "inner").is_dir()
    finally:
        (place / "inner").rmdir()
        place.rmdir()


@needs_root
def test_a_directory_server_that_is_away_delays_that_owner_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NSS that hangs for one uid: his calls are late, others and the loop's threads go on, and one thread waits."""
    hangs, asked = threading.Event(), list[int]()
    known = pwd.getpwuid

    def getpwuid(uid: int) -> pwd.struct_passwd:
        asked.append(uid)
        if uid == OTHER:
            hangs.wait(60)
        return known(uid)

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)

    async def story() -> None:
        async with owners() as made:
            calls = [
                made.call(OTHER, "ping", {}, 0.3),
                *(made.call_in_fresh_helper(OTHER, "ping", {}, 0.3) for _ in range(40)),
            ]
            late = asyncio.gather(*calls, return_exceptions=True)
            assert (await made.call(ME, "ping", {}, 20))["uid"] == ME
            assert await asyncio.to_thread(lambda: 7) == 7
            assert {error.reason for error in await late if isinstance(error, OwnerCallFailed)} == {"late"}
            assert asked.count(OTHER) == 1
            assert not hangs.is_set()
            hangs.set()

    run(story)


def test_hooks_leave_descriptors_to_everything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 60 agents that end together with 256 descriptors 16 have their hooks run at once, of one owner 8."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    running, most, everybody = Counter[int](), Counter[int](), -1

    async def story() -> None:
        async with owners() as made:

            async def alone(uid: int, *_: object) -> object:
                running[uid] += 1
                most[uid] = max(most[uid], running[uid])
                most[everybody] = max(most[everybody], running.total())
                for _turn in range(5):
                    await asyncio.sleep(0)
                running[uid] -= 1
                return hooks.result_json(HookResult(HookOutcome.DONE, "done"))

            monkeypatch.setattr(made, "call_in_fresh_helper", alone)
            spec = HookSpec("note", frozenset(Status), command=("true",))
            ends = [made.run_hook(spec, context(owner_uid=n % 3 + 1)) for n in range(60)]
            assert {result.outcome for result in await asyncio.gather(*ends)} == {HookOutcome.DONE}

    run(story)
    assert 9 <= most[everybody] <= 12, "the other four are for our own uid, and some for whoever comes next"
    assert max(most[uid] for uid in (1, 2, 3)) <= 6
