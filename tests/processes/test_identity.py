"""Who a process is, and whether it is gone: only what is proved counts."""

import dataclasses
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import threading

import pytest

from tests.processes.conftest import HOST, Family, known, needs_root, until, wait_readable
from watchdog.core.ownership import Uids
from watchdog.core.process import Presence
from watchdog.errors import SignalRefused
from watchdog.processes import identity as identities
from watchdog.processes import pidfd_info, procfs
from watchdog.processes.signals import Guard, send

NO_PID = 2**22 + 7  # over the largest pid that any kernel gives out

ZOMBIE = """
import os, sys
pid = os.fork()
if pid == 0:
    os._exit(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
print(pid)
sys.stdin.read()
"""

DEAD_LEADER = """
import ctypes, os, platform, sys, threading
def work():
    print(os.getpid())
    sys.stdin.readline()
    os._exit(4)
threading.Thread(target=work).start()
number = {"x86_64": 60, "aarch64": 93}[platform.machine()]
ctypes.CDLL(None).syscall(number, 0)
"""

pytestmark = pytest.mark.usefixtures("no_leak")


def test_an_identity_names_one_process_for_this_boot(family: Family, inodes: bool) -> None:
    """Two looks at one process agree; two processes differ; the inode is there where the kernel has one."""
    one, two = family.start("sleep", "300"), family.start("sleep", "300")
    assert known(one.pid) == known(one.pid)
    assert not known(one.pid).same_process(known(two.pid))
    assert (known(one.pid).pidfd_inode is not None) == inodes
    assert known(one.pid).boot_id == identities.boot_id() != ""


@pytest.mark.usefixtures("inodes")
@pytest.mark.parametrize("pid", [NO_PID, 0, -1, 2**31 - 1, 2**31, 2**70])
def test_a_number_without_a_process_is_provably_none(pid: int) -> None:
    """Also numbers that no pid can be."""
    assert identities.read_identity(pid, HOST) is None
    assert identities.open_pidfd(pid) is None


@pytest.mark.usefixtures("inodes")
def test_a_thread_is_no_process() -> None:
    """/proc answers for a thread's number as if it were a process; pidfd_open does not."""
    go, stop = threading.Event(), threading.Event()

    def work() -> None:
        go.set()
        stop.wait()

    thread = threading.Thread(target=work)
    thread.start()
    go.wait()
    assert thread.native_id is not None
    try:
        assert os.path.exists(f"/proc/{thread.native_id}/stat")
        assert identities.read_identity(thread.native_id, HOST) is None
    finally:
        stop.set()
        thread.join()


@pytest.mark.usefixtures("inodes")
def test_a_living_process_is_alive_with_and_without_a_pidfd(family: Family) -> None:
    """ALIVE by the held pidfd, and by a fresh one; stopped is alive."""
    child = family.start("sleep", "300")
    identity = known(child.pid)
    fd = identities.pin(identity)
    assert fd is not None
    assert identities.presence(identity, fd) is identities.presence(identity, None) is Presence.ALIVE
    child.send_signal(signal.SIGSTOP)
    until(lambda: identities.read_stat(child.pid, fd).state == "T", "stopped")  # type: ignore[union-attr] # it is there
    assert identities.presence(identity, fd) is Presence.ALIVE
    os.close(fd)


@pytest.mark.usefixtures("inodes")
def test_a_reaped_process_is_absent(family: Family) -> None:
    """Killed and waited for: absent by the old pidfd, and by number."""
    child = family.start("sleep", "300")
    identity = known(child.pid)
    fd = identities.pin(identity)
    child.kill()
    child.wait()
    assert identities.presence(identity, fd) is identities.presence(identity, None) is Presence.ABSENT
    assert identities.pin(identity) is None
    assert fd is not None
    os.close(fd)


@pytest.mark.usefixtures("inodes")
def test_a_zombie_that_nobody_reaps_is_absent(family: Family) -> None:
    """Its parent never waits; signal 0 still "reaches" it; it is dead all the same."""
    parent = family.python(ZOMBIE)
    pid = family.track(int(family.line(parent)))
    identity = known(pid)
    fd = identities.pin(identity)
    assert fd is not None
    wait_readable(fd)
    os.kill(pid, 0)
    assert identities.presence(identity, fd) is identities.presence(identity, None) is Presence.ABSENT
    os.close(fd)


@pytest.mark.usefixtures("inodes")
def test_a_dead_leader_with_a_living_thread_is_alive(family: Family) -> None:
    """/proc says Z for the whole process while one of its threads works on; then the thread ends too."""
    child = family.python(DEAD_LEADER)
    identity = known(int(family.line(child)))
    fd = identities.pin(identity)
    assert fd is not None
    until(lambda: identities.read_stat(child.pid, fd).state == "Z", "leader ended")  # type: ignore[union-attr] # there
    stat = identities.read_stat(child.pid, fd)
    assert stat is not None and not stat.dead
    assert identities.presence(identity, fd) is identities.presence(identity, None) is Presence.ALIVE
    assert child.stdin is not None
    child.stdin.close()
    wait_readable(fd)
    assert identities.presence(identity, fd) is Presence.ABSENT
    os.close(fd)


def test_a_kernel_that_calls_a_dead_leader_ended_is_not_believed(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were poll to say "readable" too early, the living thread in /proc still holds the verdict."""

    class Early:
        def register(self, fd: int, events: int) -> None: ...
        def poll(self, timeout: float) -> list[tuple[int, int]]:
            return [(0, select.POLLIN)]

    child = family.python(DEAD_LEADER)
    identity = known(int(family.line(child)))
    monkeypatch.setattr(select, "poll", Early)
    assert identities.presence(identity, None) is Presence.ALIVE


@pytest.mark.usefixtures("inodes")
def test_another_process_of_the_same_number_is_not_it(family: Family) -> None:
    """One tick of difference, or another boot, and the registered process is gone."""
    identity = known(family.start("sleep", "300").pid)
    for other in (
        dataclasses.replace(identity, start_ticks=identity.start_ticks + 1, pidfd_inode=None),
        dataclasses.replace(identity, boot_id="00000000-0000-0000-0000-000000000000"),
    ):
        assert identities.pin(other) is None
        assert identities.presence(other, None) is Presence.ABSENT
        assert identities.complete(other) is None


def test_the_inode_tells_what_ticks_cannot(family: Family, inodes: bool) -> None:
    """Same number and same tick, another inode: another process, where the kernel gives inodes."""
    identity = known(family.start("sleep", "300").pid)
    impostor = dataclasses.replace(identity, pidfd_inode=(identity.pidfd_inode or 1) + 1)
    assert identities.presence(impostor, None) is (Presence.ABSENT if inodes else Presence.ALIVE)
    assert identities.complete(dataclasses.replace(identity, pidfd_inode=None)) == identity


def test_a_look_that_contradicts_itself_is_signalled_nothing(family: Family) -> None:
    """Our inode with other ticks (as seen from another time namespace): it is that process, which nothing is sent."""
    if not identities.pidfd_inodes_work():
        pytest.skip("this kernel has no pidfs (>= 6.9)")
    identity = known(family.start("sleep", "300").pid)
    shifted = dataclasses.replace(identity, start_ticks=identity.start_ticks + 100_000)
    assert identities.presence(shifted, None) is Presence.ALIVE
    with pytest.raises(SignalRefused) as refusal:
        send(shifted, signal.SIGTERM, Guard(HOST))
    assert refusal.value.reason == "look_failed"


def test_another_host_is_unknown(family: Family) -> None:
    """Its boot id is not ours, and that proves nothing."""
    identity = dataclasses.replace(known(family.start("sleep", "300").pid), host="elsewhere", boot_id="other")
    assert identities.presence(identity, None, host=HOST) is Presence.UNKNOWN


@pytest.mark.usefixtures("inodes")
@pytest.mark.parametrize("number", [errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ENOSYS, errno.ENOMEM, errno.ENODEV])
def test_a_pidfd_that_cannot_be_had_is_a_failed_look(
    number: int, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never "gone"."""
    identity = known(family.start("sleep", "300").pid)
    identities.pidfd_inodes_work()

    def refuse(pid: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert identities.presence(identity, None) is Presence.UNKNOWN
    with pytest.raises(identities.LookFailed):
        identities.read_identity(identity.pid, HOST)


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES, errno.EPERM, errno.EMFILE])
def test_a_process_that_proc_hides_is_known_by_a_held_pidfd_or_by_its_inode_alone(
    number: int, inodes: bool, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hidepid=2 answers ENOENT for a process that lives; pidfd_open knows better. Without either it is unknown."""
    identity = known(family.start("sleep", "300").pid)
    fd = identities.pin(identity)
    real = procfs.read

    def hide(path: str, *, dir_fd: int | None = None, limit: int = 1 << 20) -> bytes:
        if path.startswith(f"/proc/{identity.pid}/"):
            raise OSError(number, os.strerror(number))
        return real(path, dir_fd=dir_fd, limit=limit)

    monkeypatch.setattr(procfs, "read", hide)
    assert identities.presence(identity, None) is (Presence.ALIVE if inodes else Presence.UNKNOWN)
    assert identities.presence(identity, fd) is Presence.ALIVE
    assert identities.presence(dataclasses.replace(identity, pidfd_inode=None), None) is Presence.UNKNOWN
    other = dataclasses.replace(identity, pidfd_inode=(identity.pidfd_inode or 0) + 1)
    assert identities.presence(other, None) is (Presence.ABSENT if inodes else Presence.UNKNOWN)
    assert fd is not None
    with pytest.raises(identities.LookFailed):
        identities.is_kernel_thread(identity.pid)
    monkeypatch.setattr(pidfd_info, "_GET_INFO", 0xC0400000)  # as before kernel 6.13
    with pytest.raises(identities.LookFailed):
        identities.uids(fd)
    os.close(fd)


@needs_root
def test_under_hidepid_a_living_process_is_never_absent(family: Family) -> None:
    """A real /proc mounted with hidepid=2, looked at as nobody."""
    target = family.start("sleep", "300")
    code = f"""
import dataclasses
from watchdog.core.process import Identity
from watchdog.processes import identity as i
known = Identity("h", i.boot_id(), {target.pid}, {known(target.pid).start_ticks})
import os
assert not os.path.exists("/proc/{target.pid}")
print(i.presence(known, None))
try:
    i.read_identity({target.pid}, "h")
except i.LookFailed:
    print("failed")
print(i.presence(dataclasses.replace(known, pid={NO_PID}), None))
"""
    script = 'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid 65534 --regid 65534 --clear-groups "$@"'
    found = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", code], capture_output=True, text=True
    )
    if found.returncode != 0 and "ermission denied" in found.stderr:
        pytest.skip("nobody cannot execute this interpreter")
    assert found.stdout.split() == ["unknown", "failed", "absent"], found.stderr


def test_facts_of_a_process_are_the_kernels(family: Family) -> None:
    """The pid namespace of a child is ours; it is no kernel thread; one that is gone raises."""
    child = family.start("sleep", "300")
    assert identities.pid_namespace(child.pid) == os.stat("/proc/self/ns/pid").st_ino
    assert not identities.is_kernel_thread(child.pid)
    for look in (identities.pid_namespace, identities.is_kernel_thread):
        with pytest.raises(ProcessLookupError):
            look(NO_PID)


def test_the_host_has_the_name_it_was_given() -> None:
    """Else machine-id, else the hostname; never empty."""
    assert identities.this_host("build-7") == "build-7"
    assert identities.this_host(None) == identities.this_host("") != ""
    if not os.path.exists("/etc/machine-id"):
        assert identities.this_host(None) == socket.gethostname()


def test_a_name_with_parentheses_and_spaces_does_not_shift_the_fields() -> None:
    """comm is free text; the last parenthesis ends it. A cut line is an error, not a guess."""
    line = b"7 (a) Z 1 (b) S 5 6 7 0 -1 4194304 1 0 0 0 11 22 0 0 20 0 3 0 4711 8192 9 0"
    stat = procfs.parse_stat(line)
    assert (stat.name, stat.state, stat.parent_pid, stat.group, stat.session) == ("a) Z 1 (b", "S", 5, 6, 7)
    assert (stat.cpu_ticks, stat.threads, stat.start_ticks, stat.rss_pages) == (33, 3, 4711, 9)
    assert not stat.exiting and procfs.parse_stat(line.replace(b"4194304", b"4194308")).exiting
    with pytest.raises(ValueError, match="fields"):
        procfs.parse_stat(b"7 (a) S 5 6")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (b"0::/user.slice/a.scope\n", "/user.slice/a.scope"),
        (b"1:name=systemd:/x\n0::/\n", "/x"),
        (b"4:memory:/m\n1:name=systemd:/x\n0::/y\n", "/y"),
        (b"0::/\n", "/"),
        (b"4:memory:/m\n", None),
    ],
)
def test_a_cgroup_path_comes_from_v2_or_systemds_own_hierarchy(text: bytes, path: str | None) -> None:
    """Hybrid machines keep the path of a service in name=systemd."""
    assert procfs.cgroup_path(text) == path


@needs_root
@pytest.mark.parametrize("by_ioctl", [True, False], ids=["PIDFD_GET_INFO", "/proc"])
def test_uids_are_those_of_the_process_behind_a_pidfd(
    family: Family, monkeypatch: pytest.MonkeyPatch, by_ioctl: bool
) -> None:
    """All four, of a zombie too; none once it is reaped. Before kernel 6.13 by /proc/PID/status."""
    if not by_ioctl:
        monkeypatch.setattr(pidfd_info, "_GET_INFO", 0xC0400000)
    child = family.python("import os; os.setresuid(1001, 0, 1002); print(1); input(); os.setresuid(3, 3, 3)")
    family.line(child)
    fd = identities.pin(known(child.pid))
    assert fd is not None
    assert identities.uids(fd) == Uids(1001, 0, 1002, 0)
    assert child.stdin is not None
    child.stdin.write(b"\n")
    child.stdin.flush()
    wait_readable(fd)
    assert identities.uids(fd) == Uids(3, 3, 3, 3)
    child.wait(20)
    assert identities.uids(fd) is None
    os.close(fd)
