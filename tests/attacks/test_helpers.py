"""A user against the helpers that run as them: rows M4 and H3b of config/doc/security.md, and their siblings.

Seen on commit f87b3bd: PTRACE_SEIZE of the helper, process_vm_readv of it and opening its /proc/PID/mem for writing all
worked for its owner, at rest and while it started; a parser could run programs, reach the network, read and write every
file of its owner, and use 4 GiB; a helper of 14 MB stayed for each of 20 uids.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.owner.repositories import context
from tests.world import alive, wait_for
from watchdog.core.agent import Status
from watchdog.core.hooks import HookOutcome, HookSpec
from watchdog.errors import OwnerCallFailed
from watchdog.helpers import pool as daemons_side
from watchdog.helpers.pool import HelperPool

pytestmark = [pytest.mark.attacks, pytest.mark.skipif(os.geteuid() != 0, reason="needs root: helpers of other uids")]
USER = 12345
NOBODY = 65534  # the group of a uid that has no entry in passwd: who traces must have the same

# As the user: try all that reaches into a process of one's own uid, on each process that looks like a helper of ours,
# until stdin ends; then print what worked.
ATTACK = """
import ctypes, os, select, sys
libc = ctypes.CDLL(None, use_errno=True)
tried, worked = set(), set()

def reach(pid):
    if libc.ptrace(0x4206, pid, 0, 0) == 0:  # PTRACE_SEIZE
        worked.add("seize")
    buffer = ctypes.create_string_buffer(8)
    with open(f"/proc/{pid}/maps") as lines:
        at = int(next(iter(lines)).split("-")[0], 16)
    worked.add("maps")
    try:
        os.close(os.open(f"/proc/{pid}/mem", os.O_RDWR))
        worked.add("mem")
    except OSError:
        pass
    class Vec(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))
    mine, its = Vec(ctypes.addressof(buffer), 8), Vec(at, 8)
    if libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0) == 8:
        worked.add("readv")
    for fd in (0, 1):
        os.close(os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_NONBLOCK))
        worked.add("pipe")

print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if b"watchdog.owner.helper" not in file.read():
                    continue
            tried.add(int(name))
            reach(int(name))
        except (OSError, StopIteration):
            continue
print(len(tried), *sorted(worked), flush=True)
"""

# The real helper whose source `claude` was taken over by what it parses: it does as the path says.
TAKEN_OVER = """
import ctypes, os, socket, sys
from dataclasses import replace
from watchdog.owner import helper, sources
from watchdog.core.source_entries import Entry

def told(word):
    return [Entry(key="k", token="t", name=word, uid=os.geteuid())]

def discover(path):
    what = os.path.basename(path)
    if what == "exec":
        os.execv("/bin/true", ["true"])
    if what == "fork-exec":
        import subprocess
        subprocess.run(["/bin/true"], check=True)
    if what == "tcp":
        socket.create_connection(("127.0.0.1", 9))
    if what == "udp":
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if what == "netlink":
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    if what == "home":
        return told(open("/SECRET").read())
    if what == "write":
        open("/SECRET-written", "w").close()
    if what == "environ":
        return told(open(f"/proc/{os.getppid()}/environ").read(10))
    if what == "ptrace":
        if ctypes.CDLL(None, use_errno=True).ptrace(0x4206, os.getppid(), 0, 0):
            raise OSError(1, "no")
    if what == "namespace":
        if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
            raise OSError(1, "no")
    if what == "memory":
        grown = [b"x" * (1 << 20) for _ in range(1024)]
    if what == "cpu":
        while True:
            pass
    return told("worked")

sources.SOURCES["claude"] = replace(sources.SOURCES["claude"], discover=discover)
sys.argv = ["helper", *sys.argv[1:]]
helper.main()
"""


@asynccontextmanager
async def serving(*argv: str) -> AsyncIterator[HelperPool]:
    made = HelperPool(argv or None)
    try:
        yield made
    finally:
        await made.close()


@contextmanager
def attacker(result: list[str]) -> Iterator[None]:
    """The user's process, at work while this is entered; `result`: what worked."""
    with subprocess.Popen(
        [sys.executable, "-c", ATTACK],
        user=USER,
        group=NOBODY,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield
        finally:
            process.stdin.close()
            result += process.stdout.readline().split()


def run(story: Any) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(120):
            await story()

    asyncio.run(bounded())


def test_no_helper_can_be_traced_by_its_owner_at_any_moment(tmp_path: Path) -> None:
    """M4, and a sibling: the moments between its start and its first instruction of ours.

    At f87b3bd: seize, maps, mem, readv. With PR_SET_DUMPABLE as the helper's first act alone the attacker is attached
    while it starts, and a call is never answered.
    """
    result: list[str] = []
    (tmp_path / "file").touch()

    async def story() -> None:
        for _ in range(5):  # shared helpers with a child for looks and one that parses, and lone ones
            async with serving() as them:
                await them.call(USER, "stamp", {"path": "/etc/passwd"}, 30)
                await them.call(USER, "source_discover", {"kind": "claude", "path": "/nowhere"}, 30)
                await them.call_in_fresh_helper(USER, "ping", {}, 30)

    with attacker(result):
        run(story)
    tried, *worked = result
    assert int(tried) >= 10, "it has seen the helpers"
    assert worked == []


def test_a_helper_that_its_owner_stops_is_late_and_replaced() -> None:
    """Signals of its own uid reach it: they cost its owner alone."""

    async def story() -> None:
        async with serving() as them:
            first = (await them.call(USER, "ping", {}, 30))["pid"]
            subprocess.run(["kill", "-STOP", str(first)], user=USER, check=True)
            with pytest.raises(OwnerCallFailed, match="no answer"):
                await them.call(USER, "ping", {}, 0.5)
            assert (await them.call(USER, "ping", {}, 30))["pid"] != first
            assert (await them.call(0, "ping", {}, 30))["uid"] == 0
        wait_for(lambda: not alive(first), "the end of the stopped helper")

    run(story)


def test_a_helper_whose_limits_its_owner_lowers_is_replaced() -> None:
    """A sibling: prlimit(2) asks for the same ids, not whether a process may be traced. It costs its owner a call."""

    async def story() -> None:
        async with serving() as them:
            first = (await them.call(USER, "ping", {}, 30))["pid"]
            lowered = ["prlimit", f"--pid={first}", "--nofile=0:0"]
            subprocess.run(lowered, user=USER, group=NOBODY, extra_groups=[], check=True)
            asked = {"kind": "claude", "path": "/nowhere"}
            with pytest.raises(OwnerCallFailed) as failure:
                await them.call(USER, "source_discover", asked, 30)
            assert failure.value.reason == "lost"
            assert await them.call(USER, "source_discover", asked, 30) == []
            assert (await them.call(0, "ping", {}, 30))["uid"] == 0

    run(story)


def test_nothing_of_the_owners_is_loaded_into_a_helper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """LD_PRELOAD, PYTHON*, a .pth file in the home: none is read, also while the helper is root's still."""
    packages = tmp_path / f".local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    ran = tmp_path / "ran"
    (packages / "evil.pth").write_text(f"import os; open({str(ran)!r}, 'a').close()\n")
    for name in ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "LD_PRELOAD", "LD_LIBRARY_PATH", "GIT_SSH", "BASH_ENV"):
        monkeypatch.setenv(name, str(packages))
    monkeypatch.setenv("HOME", str(tmp_path))

    async def story() -> None:
        async with serving() as them:
            for uid in (USER, 0):
                pid = (await them.call(uid, "ping", {}, 30))["pid"]
                names = {one.partition(b"=")[0] for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")}
                assert names - {b""} <= {b"PATH", b"HOME", b"USER", b"LOGNAME", b"LANG", b"LC_CTYPE"}

    run(story)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ("exec", "EPERM"),
        ("fork-exec", "EPERM"),
        ("tcp", "EAFNOSUPPORT"),
        ("udp", "EAFNOSUPPORT"),
        ("netlink", "EAFNOSUPPORT"),
        ("home", "EACCES"),
        ("write", "EACCES"),
        ("environ", "EACCES"),
        ("ptrace", "EPERM"),
        ("namespace", "EPERM"),
        ("memory", "out_of_memory"),
    ],
)
@pytest.mark.parametrize("uid", [USER, 0])
def test_a_parser_that_was_taken_over_can_do_little(uid: int, what: str, reason: str) -> None:
    """No program, no network, no file but its registry's, no look at another process; its memory ends that call alone.

    At f87b3bd each of them worked.
    """
    secret = Path(f"/tmp/agent-watchdog-secret-{os.getpid()}")  # pytest's own directories are closed to other uids
    secret.write_text("secret")
    secret.chmod(0o644)

    async def story() -> None:
        async with serving(sys.executable, "-c", TAKEN_OVER.replace("/SECRET", str(secret))) as them:
            before = await them.call(uid, "ping", {}, 30)
            asked = {"kind": "claude", "path": f"/nowhere/{what}"}
            with pytest.raises(OwnerCallFailed) as failure:
                await them.call(uid, "source_discover", asked, 60)
            assert failure.value.reason == reason, failure.value
            asked = {"kind": "claude", "path": "/nowhere/nothing"}
            assert (await them.call(uid, "source_discover", asked, 60))[0]["name"] == "worked"
            assert await them.call(uid, "ping", {}, 30) == before

    try:
        run(story)
        assert not Path(f"{secret}-written").exists()
    finally:
        secret.unlink()


def test_a_parser_that_never_ends_holds_up_nobody() -> None:
    """An infinite view: its call is late; the others of that owner are answered meanwhile, and after it."""

    async def story() -> None:
        async with serving(sys.executable, "-c", TAKEN_OVER) as them:
            await them.call(USER, "ping", {}, 30)
            asked = {"kind": "claude", "path": "/nowhere/cpu"}
            endless = asyncio.create_task(them.call(USER, "source_discover", asked, 2.0))
            answered = 0
            while not endless.done():
                await them.call(USER, "stamp", {"path": "/etc/passwd"}, 30)
                await them.call(0, "ping", {}, 30)
                answered += 1
            with pytest.raises(OwnerCallFailed) as failure:
                await endless
            assert failure.value.reason == "late"
            assert answered >= 3

    run(story)


def helpers() -> dict[int, int]:
    """Living helpers of this process by pid, and what memory each has for itself alone (bytes)."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            children = (task / "children").read_text().split()
        except FileNotFoundError:  # a thread that has ended
            continue
        for word in children:
            try:
                if b"watchdog.owner.helper" in Path(f"/proc/{word}/cmdline").read_bytes() and alive(int(word)):
                    rollup = Path(f"/proc/{word}/smaps_rollup").read_text()
                    found[int(word)] = int(rollup.partition("\nPss:")[2].split()[0]) * 1024
            except (OSError, IndexError):
                continue
    return found


def test_helpers_of_twenty_uids_end_when_they_are_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """H3b: at f87b3bd all 20 stayed until the daemon's end. With the children that look and parse for each."""
    monkeypatch.setattr(daemons_side, "IDLE", 1.0, raising=False)  # there was no such thing

    async def story() -> None:
        async with serving() as them:
            for uid in range(100_000, 100_020):
                assert (await them.call(uid, "ping", {}, 30))["uid"] == uid
            for uid in range(100_000, 100_003):
                await them.call(uid, "stamp", {"path": "/etc/passwd"}, 30)
                await them.call(uid, "source_discover", {"kind": "claude", "path": "/nowhere"}, 30)
            await gone(range(100_000, 100_020))
            assert (await them.call(100_000, "ping", {}, 30))["uid"] == 100_000

    run(story)


async def gone(uids: range) -> None:
    """Wait until no process of these uids is left."""
    until = time.monotonic() + 30
    while (left := of_uids(uids)) and time.monotonic() < until:
        await asyncio.sleep(0.05)
    assert left == []


def of_uids(uids: range) -> list[int]:
    found = []
    for word in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if Path(f"/proc/{word}").stat().st_uid in uids and alive(int(word)):
                found.append(int(word))
    return found


def test_an_idle_helper_that_its_owner_has_stopped_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """H3b, a sibling: with the processes that parse and look for it. At f87b3bd it stayed as any other did."""
    monkeypatch.setattr(daemons_side, "IDLE", 1.0, raising=False)
    uids = range(100_030, 100_031)

    async def story() -> None:
        async with serving() as them:
            await them.call(uids[0], "stamp", {"path": "/etc/passwd"}, 30)
            await them.call(uids[0], "source_discover", {"kind": "claude", "path": "/nowhere"}, 30)
            there = of_uids(uids)
            assert there
            subprocess.run(["kill", "-STOP", *map(str, there)], user=uids[0], group=NOBODY, extra_groups=[], check=True)
            await gone(uids)
            assert (await them.call(uids[0], "ping", {}, 30))["uid"] == uids[0]
            assert (await them.call(0, "ping", {}, 30))["uid"] == 0

    run(story)


def test_helpers_of_one_call_each_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """H3b, a sibling: one uid after the other asks once, as a user with 65,536 of them can. Only so many stay so long.

    At f87b3bd there were as many as had ever asked. What is kept of each uid goes with its helper.
    """
    monkeypatch.setattr(daemons_side, "MOST", 8, raising=False)
    monkeypatch.setattr(daemons_side, "IDLE", 1.0, raising=False)
    uids = range(100_040, 100_070)

    async def story() -> None:
        async with serving() as them:
            most = 0
            for uid in uids:
                assert (await them.call(uid, "ping", {}, 30))["uid"] == uid
                most = max(most, len(of_uids(uids)))
            assert most <= 8
            await gone(uids)
            while {name for name, value in vars(them).items() if value and isinstance(value, dict)}:
                await asyncio.sleep(0.05)  # each burial has its turn of the loop after its process is gone

    run(story)


def test_a_crowd_of_uids_gets_only_so_many_helpers_and_roots_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """H3, H3b: the oldest idle helper makes room; hooks that run wait for places, and root does not wait for them.

    At f87b3bd there were 20.
    """
    monkeypatch.setattr(daemons_side, "MOST", 8, raising=False)
    most = 0

    async def story() -> None:
        nonlocal most
        async with serving() as them:
            for uid in range(100_000, 100_020):
                assert (await them.call(uid, "ping", {}, 30))["uid"] == uid
                most = max(most, len(helpers()))
            # As many lone ones as they may have, each asleep: a stopped helper answers nobody.
            crowd = [
                asyncio.create_task(them.call_in_fresh_helper(uid, "ping", {}, 30)) for uid in range(100_000, 100_020)
            ]
            began = time.monotonic()
            assert (await them.call(0, "ping", {}, 30))["uid"] == 0
            assert (await them.call_in_fresh_helper(0, "ping", {}, 30))["uid"] == 0
            assert time.monotonic() - began < 25
            answers = await asyncio.gather(*crowd)
            assert {answer["uid"] for answer in answers} == set(range(100_000, 100_020))

    run(story)
    assert most <= 8


def test_helpers_that_hang_take_no_place_of_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """All places but those kept for root are held by stopped helpers: a call of root's is answered at once.

    It cannot be played at f87b3bd: helpers had no number of places there, so that none could be taken (H3b). Hooks had,
    and what hung took all of them: `control/test_admission.py::test_hooks_that_hang_take_no_place_of_roots`.
    """
    monkeypatch.setattr(daemons_side, "MOST", 8)

    async def story() -> None:
        async with serving() as them:
            for uid in range(100_000, 100_006):
                pid = (await them.call(uid, "ping", {}, 30))["pid"]
                os.kill(pid, signal.SIGSTOP)
            stuck = [asyncio.create_task(them.call(uid, "ping", {}, 20)) for uid in range(100_000, 100_006)]
            await asyncio.sleep(0)  # they ask: none is idle any more
            with pytest.raises(OwnerCallFailed) as failure:
                await them.call(100_006, "ping", {}, 0.5)
            assert failure.value.reason == "late"
            assert (await them.call(0, "ping", {}, 15))["uid"] == 0
            for task in stuck:
                task.cancel()
            await asyncio.gather(*stuck, return_exceptions=True)

    run(story)


def test_two_users_whose_hooks_hang_take_no_place_of_others_hooks() -> None:
    """A helper that its owner stops holds its hook's place until the deadline; here their hooks sleep, which is alike.

    Seen at bc51ea4: half of 32 places for each user, so two users had them all: root's order to end an agent of its
    own, which has a temp dir, was answered after 66 s.
    """

    async def story() -> None:
        async with serving() as them:
            slow = HookSpec("slow", frozenset(Status), command=("sleep", "100"), timeout=timedelta(seconds=100))
            quick = HookSpec("quick", frozenset(Status), command=("true",), timeout=timedelta(seconds=20))
            theirs = [
                asyncio.create_task(them.run_hook(slow, context(owner_uid=uid)))
                for uid in (USER, USER + 1)
                for _ in range(20)
            ]
            await asyncio.to_thread(wait_for, lambda: len(sleeping()) >= 12, "their hooks run")
            for uid in (0, USER + 2):
                async with asyncio.timeout(20):
                    assert (await them.run_hook(quick, context(owner_uid=uid))).outcome is HookOutcome.DONE
            for one in theirs:
                one.cancel()
            await asyncio.gather(*theirs, return_exceptions=True)

    run(story)


def sleeping() -> list[int]:
    """Hooks of theirs."""
    found = subprocess.run(["pgrep", "-U", f"{USER},{USER + 1}", "-x", "sleep"], capture_output=True, check=False)
    return [int(word) for word in found.stdout.split()]
