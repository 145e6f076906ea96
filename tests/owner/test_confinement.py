"""What a helper gives up: the tables by a small interpreter of the filter, and each mechanism in a real process."""

import errno
import itertools
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog.owner import confinement

ALLOWED = 0x7FFF0000
HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+)\s+(\d+)"),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
}
here = pytest.mark.skipif(os.uname().machine not in confinement.MACHINES, reason="this kernel's machine has no table")
fenced = pytest.mark.skipif(confinement.landlock_abi() < 2, reason="this kernel has no Landlock")


def verdict(code: bytes, audit: int, number: int, argument: int = 0) -> int:
    """What the filter says of a call: 0 allowed, else the errno. Classic BPF, as far as it is used."""
    data = struct.pack("IIQQ", number, audit, 0, argument)
    at, accumulator = 0, 0
    while True:
        operation, yes, no, value = struct.unpack_from("HBBI", code, 8 * at)
        at += 1
        match operation:
            case 0x20:
                accumulator = struct.unpack_from("I", data, value)[0]
            case 0x15:
                at += yes if accumulator == value else no
            case 0x35:
                at += yes if accumulator >= value else no
            case 0x45:
                at += yes if accumulator & value else no
            case 0x06:
                return 0 if value == ALLOWED else value & 0xFFFF
            case _:
                raise AssertionError(hex(operation))


@pytest.mark.parametrize("name", confinement.MACHINES)
@pytest.mark.parametrize(("execute", "sockets"), [*itertools.product([True, False], repeat=2)])
def test_the_filter_refuses_exactly_what_its_table_says(name: str, execute: bool, sockets: bool) -> None:
    """Every number up to 512, with arguments that matter."""
    machine = confinement.MACHINES[name]
    # Offset 16 of the data is the first argument: struct seccomp_data has number, architecture, address, arguments.
    code = confinement.program(machine, execute=execute, sockets=sockets)

    refused = {number for number in range(512) if verdict(code, machine.audit, number, 1)}

    expected = {*machine.denied.values(), machine.clone3} | (set() if execute else set(machine.execute))
    assert refused == expected | (set() if sockets else {machine.socket})
    assert verdict(code, machine.audit, machine.clone3) == errno.ENOSYS
    assert verdict(code, machine.audit, machine.clone, 0x3D0F00) == 0, "a thread"
    for flag in (0x20000, 0x10000000, 0x40000000):
        assert verdict(code, machine.audit, machine.clone, 0x11 | flag) == errno.EPERM
    for family in (2, 10, 16, 17, 40):
        assert verdict(code, machine.audit, machine.socket, family) in (errno.EAFNOSUPPORT, errno.EPERM)
    assert verdict(code, 0x40000003, 20) == errno.EPERM, "32 bits"
    if machine.foreign:
        assert verdict(code, machine.audit, machine.foreign | 1) == errno.EPERM


@pytest.mark.parametrize("name", confinement.MACHINES)
def test_the_numbers_are_those_of_the_kernels_headers(name: str) -> None:
    """Where the headers are installed and know a call; each number stands once."""
    machine = confinement.MACHINES[name]
    path, pattern = HEADERS[name]
    numbers = list(machine.denied.values())
    assert len(set(numbers)) == len(numbers)
    told = dict(re.findall(pattern, path.read_text())) if path.exists() else {}
    for call, number in {**machine.denied, "socket": machine.socket, "clone": machine.clone}.items():
        assert int(told.get(call, number)) == number, call


def in_a_process(code: str, *arguments: str, **options: object) -> list[str]:
    """The lines that the code prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"from watchdog.owner import confinement\n{code}", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout).splitlines()


def test_a_sealed_process_has_nothing_left() -> None:
    """By what the kernel says of it."""
    code = """
confinement.seal(confinement.NOTHING)
print(open("/proc/self/status").read())
import ctypes, resource
print(f"Dumpable:\\t{ctypes.CDLL(None).prctl(3, 0, 0, 0, 0)}\\nCore:\\t{resource.getrlimit(resource.RLIMIT_CORE)}")
"""
    status = dict(line.split(":\t", 1) for line in in_a_process(code) if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert os.geteuid() != 0 or status["CapBnd"] == "0" * 16
    assert (status["NoNewPrivs"], status["Dumpable"], status["Core"]) == ("1", "0", "(0, 0)")


def test_a_hidden_process_still_reads_its_own_proc() -> None:
    """Its entries there are root's; it is let through to its own all the same (descriptors, mounts, children)."""
    code = """
import os
confinement.hide()
fd = os.open("/tmp", os.O_PATH)
print(os.readlink(f"/proc/self/fd/{fd}"), os.path.isdir(f"/proc/self/fd/{fd}/."))
for name in (f"fdinfo/{fd}", "mountinfo", f"task/{os.getpid()}/children", "maps", "status"):
    open(f"/proc/self/{name}").read()
print(len(os.listdir("/proc/self/fd")) > 2)
"""
    options = {"user": 12345, "group": 12345, "extra_groups": []} if os.geteuid() == 0 else {}
    assert in_a_process(code, **options) == ["/tmp True", "True"]


@here
def test_the_filter_holds_for_the_process_and_its_children() -> None:
    """Threads and forks go on; sockets but unix ones, tracing and namespaces do not; with no exec nothing is run."""
    code = """
import ctypes, errno, os, socket, subprocess, threading
confinement.seal(confinement.NOTHING)
assert confinement.filter_calls()
libc = ctypes.CDLL(None, use_errno=True)
thread = threading.Thread(target=print, args=["thread"])
thread.start(); thread.join()
def tried(work):
    try:
        work(); return "worked"
    except OSError as error:
        return errno.errorcode[error.errno]
def libcs(name, *args):
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
print(tried(lambda: socket.socket(socket.AF_INET)), tried(lambda: socket.socket(socket.AF_UNIX)))
print(tried(lambda: libcs("ptrace", 0x4206, os.getppid(), 0, 0)), tried(lambda: libcs("unshare", 0x10000000)))
print(tried(lambda: libcs("mount", b"none", b"/mnt", b"tmpfs", 0, None)), tried(lambda: os.pidfd_open(os.getpid())))
print(tried(lambda: subprocess.run(["true"], check=True)))
assert confinement.filter_calls(execute=False, sockets=False)
print(tried(lambda: subprocess.run(["true"])), tried(lambda: socket.socket(socket.AF_UNIX)))
"""
    assert in_a_process(code) == [
        "thread",
        "EAFNOSUPPORT worked",
        "EPERM EPERM",
        "EPERM worked",
        "worked",
        "EPERM EPERM",
    ]


@fenced
def test_a_parser_sees_its_places_alone(tmp_path: Path) -> None:
    """Reads and writes there, also a rename from one directory of it into another; removes where it may; no more."""
    for name in ("own/sub", "read", "removed", "foreign"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("x")
    code = """
import errno, os, sys
top = sys.argv[1]
rules = confinement.parser_rules([top + "/own", top + "/missing"], [top + "/read"], [top + "/removed"])
confinement.seal(confinement.NOTHING)
assert confinement.fence(rules)
def tried(work):
    try:
        work(); return "worked"
    except OSError as error:
        return errno.errorcode[error.errno]
os.rename(top + "/own/sub/file", top + "/own/moved")
open(top + "/own/new", "w").close()
import zoneinfo, sqlite3
print(tried(lambda: open(top + "/read/file").read()), tried(lambda: open(top + "/read/file", "w")))
print(tried(lambda: open(top + "/removed/file").read()), tried(lambda: os.remove(top + "/removed/file")))
print(tried(lambda: open(top + "/foreign/file")), tried(lambda: os.listdir(top + "/foreign")))
print(tried(lambda: os.remove(top + "/foreign/file")), tried(lambda: os.mkdir(top + "/foreign/new")))
print(tried(lambda: os.rename(top + "/own/moved", top + "/foreign/moved")))
"""
    assert in_a_process(code, str(tmp_path)) == [
        "worked EACCES",
        "EACCES worked",
        "EACCES EACCES",
        "EACCES EACCES",
        "EACCES",
    ]


@fenced
def test_only_the_named_program_runs(tmp_path: Path) -> None:
    """A script with its interpreter, too; whatever it starts is refused."""
    script = tmp_path / "script"
    script.write_text("#!/usr/bin/env sh\ntrue && id\necho $?\n")
    script.chmod(0o755)
    code = """
import subprocess, sys
confinement.seal(confinement.NOTHING)
def said(argv, *allowed):
    try:
        fence = confinement.only_runs(*allowed)
        return subprocess.run(argv, preexec_fn=fence, capture_output=True, text=True).stdout.split()
    except PermissionError:
        return "refused"
print(said(["git", "--version"], "git")[:2], said(["id"], "git"))
print(said([sys.argv[1]], sys.argv[1]))
print(said(["git", "-c", "alias.x=!echo ran", "x"], "git"))
print(said(["git", "-c", "alias.x=!echo ran", "x"], "git", "sh"))
"""
    assert in_a_process(code, str(script)) == ["['git', 'version'] refused", "['126']", "[]", "['ran']"]


def test_limits_are_never_raised() -> None:
    """And what needs more memory fails by itself."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_CPU, (7, 7))
confinement.limit(256 << 20, 30)
print(resource.getrlimit(resource.RLIMIT_CPU))
try:
    bytearray(300 << 20)
except MemoryError:
    print("no more")
print(len(bytearray(100 << 20)))
"""
    assert in_a_process(code) == ["(7, 7)", "no more", str(100 << 20)]


def test_what_a_host_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with words; nothing is refused for it."""
    monkeypatch.setattr(confinement, "landlock_abi", lambda: 1)
    monkeypatch.setattr(confinement, "MACHINES", {})

    assert set(confinement.lacking()) == {"seccomp", "landlock"}
    assert confinement.filter_calls() is False
    assert confinement.fence([("/", confinement.READ)]) is False


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a process with all capabilities")
def test_what_roots_helper_keeps_is_what_it_needs_to_see_an_occupant(tmp_path: Path) -> None:
    """A process of root's with all capabilities has its cwd there: with none the directory seems free."""
    (tmp_path / "place").mkdir()
    code = """
import sys
from watchdog.owner import occupancy
confinement.seal(getattr(confinement, sys.argv[2]))
confinement.filter_calls()
print((occupancy.occupant(sys.argv[1]) or "nobody").split(" at ")[0])
"""
    with subprocess.Popen(["sleep", "60"], cwd=tmp_path / "place") as process:
        try:
            seen = [
                in_a_process(code, str(tmp_path / "place"), name) for name in ("ROOT_LOOKS", "ROOT_WORKS", "NOTHING")
            ]
        finally:
            process.kill()
    assert seen == [[f"process {process.pid} has its cwd"]] * 2 + [["nobody"]]
