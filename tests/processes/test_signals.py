"""The guarded send hits exactly one process or nobody."""

import dataclasses
import os
import pathlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

import watchdog.processes
from tests.processes.conftest import HOST, Family, known, needs_root, pending, wait_readable
from watchdog.core.model import Identity
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
    assert send(identity, signal.SIGTERM, GUARD) is SendResult.SENT
    assert child.wait(20) == -signal.SIGTERM
    assert send(identity, signal.SIGKILL, GUARD) is SendResult.GONE
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
    os.close(fd)
    assert stat is not None
    for guard, reason in (
        (Guard(HOST, spare=frozenset({stat.name})), "spared"),
        (Guard(HOST, protected=frozenset({(identity.pid, identity.start_ticks)})), "other_agent"),
    ):
        with pytest.raises(SignalRefused) as refusal:
            send(identity, signal.SIGTERM, guard)
        assert refusal.value.reason == reason
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
import signal
from watchdog.core.model import Identity
from watchdog.processes.signals import Guard, send
target = Identity({HOST!r}, {identity.boot_id!r}, {identity.pid}, {identity.start_ticks})
print(send(target, signal.SIGTERM, Guard({HOST!r})))
"""
    argv = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", sys.executable, "-c", code]
    found = subprocess.run(argv, capture_output=True, text=True)
    if "ermission denied" in found.stderr:
        pytest.skip("nobody cannot execute this interpreter")
    assert found.stdout.strip() == "not_permitted", found.stderr


REUSE = """
import os, signal, sys
from watchdog.processes import identity as i
from watchdog.processes.signals import Guard, SendResult, send
rounds, guard = int(sys.argv[1]), Guard("h")
if sys.argv[2] == "no-pidfs":
    i.use_pidfd_inodes(False)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # inherited: a signal that went wrong stays pending
def spawn():
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(w)
        os.read(r, 1)
        os._exit(0)
    os.close(r)
    return pid, w
def end(pid, w):
    os.close(w)
    os.waitpid(pid, 0)
reused = same_tick = wrong = gone = 0
while reused < rounds:
    pid, w = spawn()
    old = i.read_identity(pid, "h")
    end(pid, w)
    with open("/proc/sys/kernel/ns_last_pid", "w") as last:
        last.write(str(pid - 1))
    impostor, w = spawn()
    if impostor == pid:
        reused += 1
        tick = i.read_identity(pid, "h").start_ticks == old.start_ticks
        same_tick += tick
        gone += send(old, signal.SIGTERM, guard) is SendResult.GONE
        with open(f"/proc/{pid}/status") as status:
            pending = any(int(line.split()[1], 16) for line in status if line.startswith(("SigPnd", "ShdPnd")))
        # Without inodes the same tick is all there is: such a hit is the kernel's limit, not ours.
        wrong += pending and (sys.argv[2] == "pidfs" or not tick)
    end(impostor, w)
print(reused, gone, wrong, same_tick)
"""


def reuse(rounds: int, mode: str) -> tuple[int, int, int, int]:
    """(reuses, answered "gone", impostors hit, of the same tick) in a pid namespace of our own."""
    found = subprocess.run(
        ["unshare", "-p", "-f", "--mount-proc", sys.executable, "-c", REUSE, str(rounds), mode],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    reused, gone, wrong, same_tick = (int(word) for word in found.stdout.split())
    return reused, gone, wrong, same_tick


@needs_root
def test_200_forced_reuses_of_a_pid_hit_nobody() -> None:
    """The next process gets the same number at once; about half even start in the same tick."""
    if not identities.pidfd_inodes_work():
        pytest.skip("this kernel has no pidfs (>= 6.9)")
    reused, gone, wrong, _ = reuse(200, "pidfs")
    assert (reused, gone, wrong) == (200, 200, 0)


@needs_root
def test_without_inodes_forced_reuses_of_another_tick_hit_nobody() -> None:
    """Before kernel 6.9 (pid, start ticks) is the whole identity: right whenever the tick differs."""
    reused, gone, wrong, same_tick = reuse(50, "no-pidfs")
    assert (reused, gone, wrong) == (50, 50 - same_tick, 0)


@needs_root
@pytest.mark.faults
@pytest.mark.timeout(600)
def test_10000_forced_reuses_of_a_pid_hit_nobody() -> None:
    """The same, long."""
    assert reuse(10_000, "pidfs")[:3] == (10_000, 10_000, 0)


def test_nothing_else_here_can_signal() -> None:
    """One file calls the kernel's primitive, and by pidfd only."""
    package = pathlib.Path(watchdog.processes.__file__).parent
    primitive = re.compile(r"\bos\.killpg?\b|pidfd_send_signal\(|\.send_signal\(|\.terminate\(|\.kill\(")
    found = {file.name: primitive.findall(file.read_text()) for file in package.glob("*.py")}
    assert {name: hits for name, hits in found.items() if hits} == {"signals.py": ["pidfd_send_signal("]}


def test_the_largest_pid_is_the_kernels() -> None:
    """As /proc/sys/kernel/pid_max says."""
    assert pid_max() == int(pathlib.Path("/proc/sys/kernel/pid_max").read_text())
