"""The guarded send hits exactly one process or nobody."""

import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import watchdog.processes
from tests.faults.private import inside
from tests.processes.conftest import HOST, Family, known, needs_root, pending, wait_readable
from watchdog.core.process import Identity
from watchdog.errors import SignalRefused
from watchdog.processes import identity as identities
from watchdog.processes import procfs, table
from watchdog.processes.signals import Guard, SendResult, ancestors, pid_max, send

GUARD = Guard(HOST)
CANARY = (
    "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); print('up'); sys.stdin.readline()"
)

pytestmark = pytest.mark.usefixtures("no_leak")


@pytest.fixture
def canaries(family: Family) -> Iterator[list[int]]:
    """Two processes that block TERM, so that one sent to them stays visible; none may be when the test ends."""
    children = [family.python(CANARY), family.python(CANARY, session=True)]
    for child in children:
        assert family.line(child) == "up"
    yield [child.pid for child in children]
    assert [pending(child.pid) for child in children] == [0, 0]
    assert not pending(os.getpid())


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that left this process through any primitive."""
    found: list[int] = []
    real = signal.pidfd_send_signal

    def record(fd: int, sig: int) -> None:
        found.append(sig)
        real(fd, sig)

    def forbid(*args: object) -> None:
        raise AssertionError(f"signalled by number: {args}")

    monkeypatch.setattr(signal, "pidfd_send_signal", record)
    monkeypatch.setattr(os, "kill", forbid)
    monkeypatch.setattr(os, "killpg", forbid)
    return found


@pytest.mark.usefixtures("inodes")
def test_a_verified_process_gets_the_signal(family: Family, sent: list[int]) -> None:
    """And the next one is answered with "gone"."""
    child = family.start("sleep", "300")
    identity = known(child.pid)
    pin = identities.pin(identity)
    assert pin is not None
    assert send(identity, signal.SIGTERM, GUARD, pin) is SendResult.SENT
    assert child.wait(60) == -signal.SIGTERM
    assert send(identity, signal.SIGKILL, GUARD, pin) is SendResult.GONE
    os.close(pin)
    assert sent == [signal.SIGTERM]


@pytest.mark.usefixtures("inodes")
@pytest.mark.parametrize("pid", [0, 1, -1, -2, 2**15 * 2**10, 2**31 - 1, 2**31, 2**63, True, False, 7.0, "7", None])
def test_a_hostile_number_is_refused(pid: object, canaries: list[int], sent: list[int]) -> None:
    """Rows of a registry may hold anything; 0, 1 and -1 would reach a group, init, or everybody."""
    identity = Identity(HOST, identities.boot_id(), pid, 1)  # type: ignore[arg-type] # what a bad row would give
    with pytest.raises(SignalRefused) as refusal:
        send(identity, signal.SIGTERM, GUARD)
    assert refusal.value.reason == "bad_pid"
    assert sent == []


def test_a_hostile_start_time_is_refused(canaries: list[int], sent: list[int]) -> None:
    """None, a text or True never compares equal by accident."""
    for ticks in (None, "1", True, 1.0):
        bad = dataclasses.replace(known(canaries[0]), start_ticks=ticks)  # type: ignore[arg-type] # a bad row
        with pytest.raises(SignalRefused, match="start ticks"):
            send(bad, signal.SIGTERM, GUARD)
    assert sent == []


@pytest.mark.parametrize("sig", [0, 15, True, "TERM", None])
def test_only_a_signal_is_sent(sig: object, canaries: list[int], sent: list[int]) -> None:
    """A bare number is refused: True is SIGHUP to the kernel."""
    with pytest.raises(SignalRefused) as refusal:
        send(known(canaries[0]), sig, GUARD)  # type: ignore[arg-type] # the point of the test
    assert refusal.value.reason == "bad_signal"
    assert sent == []


def test_the_daemon_and_its_ancestors_are_refused(canaries: list[int], sent: list[int]) -> None:
    """Itself, the process that started it, and all above."""
    with pytest.raises(SignalRefused) as refusal:
        send(known(os.getpid()), signal.SIGTERM, GUARD)
    assert refusal.value.reason == "self"
    assert os.getppid() in ancestors()
    for pid in sorted(ancestors() - {1}):
        with pytest.raises(SignalRefused) as refusal:
            send(known(pid), signal.SIGTERM, GUARD)
        assert refusal.value.reason == "ancestor"
    assert sent == []


def test_threads_of_the_kernel_are_refused(sent: list[int]) -> None:
    """kthreadd and its children; in a container they may be out of sight."""
    rows = table.scan(HOST, frozenset()).rows
    threads = [pid for pid, row in rows.items() if row.stat.kernel_thread]
    if not threads:
        pytest.skip("no thread of the kernel can be seen here")
    for pid in threads[:10]:
        with pytest.raises(SignalRefused) as refusal:
            send(known(pid), signal.SIGTERM, GUARD)
        assert refusal.value.reason == "kernel_thread"
    assert identities.is_kernel_thread(threads[0])
    assert sent == []


@pytest.mark.usefixtures("inodes")
def test_another_host_or_boot_is_refused_and_another_start_is_gone(canaries: list[int], sent: list[int]) -> None:
    """The number fits, the process does not."""
    identity = known(canaries[0])
    for other, reason in (
        (dataclasses.replace(identity, host="elsewhere"), "other_host"),
        (dataclasses.replace(identity, boot_id="another"), "other_boot"),
    ):
        with pytest.raises(SignalRefused) as refusal:
            send(other, signal.SIGTERM, GUARD)
        assert refusal.value.reason == reason
    for ticks in (identity.start_ticks + 1, identity.start_ticks - 1, 0, -1):
        other = dataclasses.replace(identity, start_ticks=ticks, pidfd_inode=None)
        assert send(other, signal.SIGTERM, GUARD) is SendResult.GONE
    assert sent == []


def test_another_inode_is_gone(canaries: list[int], sent: list[int]) -> None:
    """Same number, same tick, another process: only the pidfd's inode tells."""
    if not identities.pidfd_inodes_work():
        pytest.skip("this kernel has no pidfs (>= 6.9)")
    identity = known(canaries[0])
    other = dataclasses.replace(identity, pidfd_inode=(identity.pidfd_inode or 0) + 1)
    assert send(other, signal.SIGTERM, GUARD) is SendResult.GONE
    assert sent == []


@pytest.mark.usefixtures("inodes")
def test_spared_programs_and_other_agents_are_refused(canaries: list[int], sent: list[int]) -> None:
    """By the name that the kernel keeps (15 characters), and by (pid, start ticks)."""
    identity = known(canaries[0])
    fd = identities.pin(identity)
    assert fd is not None
    stat = identities.read_stat(identity.pid, fd)
    assert stat is not None
    for guard, reason in (
        (Guard(HOST, spare=frozenset({stat.name})), "spared"),
        (Guard(HOST, protected=frozenset({(identity.pid, identity.start_ticks)})), "other_agent"),
    ):
        with pytest.raises(SignalRefused) as refusal:
            send(identity, signal.SIGTERM, guard, fd)
        assert refusal.value.reason == reason
    os.close(fd)
    assert sent == []


@pytest.mark.usefixtures("inodes")
def test_an_agent_that_calls_itself_a_spared_program_is_none(family: Family, tmp_path: pathlib.Path) -> None:
    """A name is a process's own word, its program's file is not; whoever is not the main process is believed."""
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b'tmux: server', 0, 0, 0); print('up'); input()"
    shutil.copy("/bin/sleep", tmp_path / "tmux")
    agent, server = family.python(rename), family.start(str(tmp_path / "tmux"), "300")
    assert family.line(agent) == "up"
    spare = Guard(HOST, spare=frozenset({"tmux: server", "tmux"}))
    for process, main in ((agent, False), (server, True)):
        identity = known(process.pid)
        fd = identities.pin(identity)
        with pytest.raises(SignalRefused, match="spared"):
            send(identity, signal.SIGTERM, dataclasses.replace(spare, main=identity if main else None), fd)
        if process is agent:
            guard = dataclasses.replace(spare, main=identity)
            assert send(identity, signal.SIGTERM, guard, fd) is SendResult.SENT
            assert agent.wait(60) == -signal.SIGTERM
        assert fd is not None
        os.close(fd)


def test_without_inodes_a_process_that_nobody_holds_is_refused(canaries: list[int], sent: list[int]) -> None:
    """Number and tick fit, and another may have started in that tick; a pidfd of somebody else proves nothing."""
    identities.use_pidfd_inodes(False)
    try:
        identity, other = known(canaries[0]), identities.open_pidfd(canaries[1])
        assert other is not None
        for pidfd in (None, other):
            with pytest.raises(SignalRefused) as refusal:
                send(identity, signal.SIGTERM, GUARD, pidfd)
            assert refusal.value.reason == "unpinned"
        os.close(other)
    finally:
        identities.use_pidfd_inodes(None)
    assert sent == []


def test_a_process_that_cannot_be_verified_is_refused(
    canaries: list[int], sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed look is neither "gone" nor a licence."""
    identity = known(canaries[0])
    real = procfs.read

    def hide(path: str, *, dir_fd: int | None = None, limit: int = 1 << 20) -> bytes:
        if path == f"/proc/{identity.pid}/stat":
            raise PermissionError(1, "hidden")
        return real(path, dir_fd=dir_fd, limit=limit)

    monkeypatch.setattr(procfs, "read", hide)
    with pytest.raises(SignalRefused) as refusal:
        send(identity, signal.SIGTERM, GUARD)
    assert refusal.value.reason == "look_failed"
    assert sent == []


def test_a_zombie_is_gone(family: Family, sent: list[int]) -> None:
    """The kernel would take the signal and say that all is well."""
    parent = family.python("import os, sys\np = os.fork()\np or os._exit(0)\nprint(p)\nsys.stdin.read()")
    identity = known(family.track(int(family.line(parent))))
    fd = identities.pin(identity)
    assert fd is not None
    wait_readable(fd)
    os.close(fd)
    assert send(identity, signal.SIGKILL, GUARD) is SendResult.GONE
    assert sent == []


@needs_root
def test_a_process_of_somebody_else_is_not_permitted(canaries: list[int]) -> None:
    """The kernel's EPERM is a result, not an error and not "gone"."""
    identity = known(canaries[0])
    code = f"""
import os, signal
from watchdog.core.process import Identity
from watchdog.processes.signals import Guard, send
target = Identity({HOST!r}, {identity.boot_id!r}, {identity.pid}, {identity.start_ticks})
pidfd = os.pidfd_open(target.pid)
print(send(target, signal.SIGTERM, Guard({HOST!r}), pidfd))
"""
    argv = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c", code]
    found = subprocess.run(argv, capture_output=True, text=True)
    if "ermission denied" in found.stderr:
        pytest.skip("nobody cannot execute this interpreter")
    assert found.stdout.strip() == "not_permitted", found.stderr


@needs_root
@pytest.mark.parametrize(("mode", "refused"), [("pidfs", False), ("bare", True), ("registered", False)])
def test_forced_reuses_of_a_pid_hit_nobody(mode: str, refused: bool) -> None:
    """The next process gets the same number at once, most in the same tick; 10,000 of each: `make faults`."""
    if mode == "pidfs" and not identities.pidfd_inodes_work():
        pytest.skip("this kernel has no pidfs (>= 6.9)")
    found = inside("reuse", 50, mode)
    assert (found["reused"], found["wrong"], found["pinned"]) == (50, 0, 0)
    assert (found["gone"], found["unpinned"]) == (50 - found["same_tick"], found["same_tick"]) if refused else (50, 0)


def test_nothing_else_here_can_signal() -> None:
    """One file calls the kernel's primitive, by pidfd only; `reader` kills its own child, which it has not reaped."""
    package = pathlib.Path(watchdog.processes.__file__).parent
    primitive = re.compile(r"\bos\.killpg?\b|pidfd_send_signal\(|\.send_signal\(|\.terminate\(|\.kill\(|/cgroup\.kill")
    found = {file.name: primitive.findall(file.read_text()) for file in package.glob("*.py")}
    assert {name: hits for name, hits in found.items() if hits} == {
        "signals.py": ["pidfd_send_signal(", "/cgroup.kill"],
        "reader.py": [".kill("],
    }


def test_the_largest_pid_is_the_kernels() -> None:
    """As /proc/sys/kernel/pid_max says."""
    assert pid_max() == int(pathlib.Path("/proc/sys/kernel/pid_max").read_text())
