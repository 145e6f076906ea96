"""Confines helpers, even compromised ones: tables, and one function per kernel mechanism.

    become    switch to another uid for good; the process is root's until then, so its owner can never trace it
    seal      not dumpable, no new privileges, only the named capabilities, no core
    limit     memory and CPU time of this process (setrlimit(2))
    filter_calls  seccomp(2): no tracing, mounting, namespaces, keys, BPF, io_uring, only AF_UNIX sockets; or no exec
    fence     landlock(7): which files and programs are allowed

Each holds for the calling process and its descendants and cannot be undone. `lacking` names mechanisms that the kernel
does not have; helpers work without them.

A landlocked process cannot read other processes' cwd, open files and memory (ptrace(2) access needs the same domain),
which the occupancy check needs: so hooks are not fenced, but parsers of foreign data and programs run by hooks are.
"""

import ctypes
import errno
import os
import resource
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

_libc = ctypes.CDLL(None, use_errno=True)

# <linux/prctl.h>
PR_SET_DUMPABLE = 4
PR_CAPBSET_DROP = 24
PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4

# <linux/capability.h>
CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER, CAP_SYS_PTRACE = 0, 1, 2, 3, 19
CAP_LAST = 63
CAPABILITY_VERSION = 0x20080522
NOTHING: frozenset[int] = frozenset()
# What uid 0's helper keeps; helpers of other uids have none. Root's agents run with all capabilities, and a process
# with fewer needs SYS_PTRACE to see their cwd, open files and environment (ptrace(2), access mode checking). The others
# are needed because root's agents work in homes of mode 0700, and what they unpack (tar, npm) keeps foreign owners, so
# a temp dir of root's cannot be emptied without them. uid 0 can read and change those files anyway.
ROOT_LOOKS = frozenset({CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE})
ROOT_WORKS = ROOT_LOOKS | {CAP_DAC_OVERRIDE, CAP_FOWNER, CAP_CHOWN}
ROOT_PARSES = frozenset({CAP_DAC_READ_SEARCH})

MEBIBYTE = 1 << 20
# Private writable memory per process (RLIMIT_DATA; since Linux 4.7 it counts mappings too). Not RLIMIT_AS: git maps
# packs of gigabytes to read them. Not RLIMIT_NPROC: it counts all processes of the uid, including the owner's own.
PARSER_BYTES = 512 * MEBIBYTE  # the longest parsed file has 4 MiB; ruamel.yaml needs 60 times that
PARSER_SECONDS = 30  # of CPU; the daemon waits 3 s for a call, or 60 s for one of `reap`
# `git status` with an index of a million files needs 0.5 to 0.75 GiB; hash-object and cat-file of a file of 420 MB need
# less than 0.25 (measured, git 2.39).
WORK_BYTES = 3 << 30
WORK_SECONDS = 3600  # of CPU; a hook's deadline comes long before

AF_UNIX = 1
EPERM, ENOSYS, EAFNOSUPPORT = errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT
CLONE_NEW = 0x7E020000  # all CLONE_NEW* flags of clone(2)


@dataclass(frozen=True, slots=True)
class Machine:
    """The system call numbers of one architecture (syscalls(2)); `audit` is its number in a filter."""

    audit: int
    foreign: int | None  # numbers from here on belong to another ABI (x32)
    socket: int
    clone: int
    clone3: int
    execute: tuple[int, ...]
    denied: dict[str, int]


_NEWER = {  # the same on every architecture
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
}
_X86_64 = {
    "ptrace": 101,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "kcmp": 312,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "chroot": 161,
    "bpf": 321,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "unshare": 272,
    "setns": 308,
    "init_module": 175,
    "delete_module": 176,
    "finit_module": 313,
    "kexec_load": 246,
    "kexec_file_load": 320,
    "reboot": 169,
    "swapon": 167,
    "swapoff": 168,
    "acct": 163,
    "settimeofday": 164,
    "clock_settime": 227,
    "adjtimex": 159,
    "clock_adjtime": 305,
    "sethostname": 170,
    "setdomainname": 171,
    "iopl": 172,
    "ioperm": 173,
    "modify_ldt": 154,
    "quotactl": 179,
    "open_by_handle_at": 304,
    "fanotify_init": 300,
    "syslog": 103,
    "personality": 135,
    "vhangup": 153,
    "lookup_dcookie": 212,
    "move_pages": 279,
    "migrate_pages": 256,
}
_AARCH64 = {
    "ptrace": 117,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "kcmp": 272,
    "mount": 40,
    "umount2": 39,
    "pivot_root": 41,
    "chroot": 51,
    "bpf": 280,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "perf_event_open": 241,
    "userfaultfd": 282,
    "unshare": 97,
    "setns": 268,
    "init_module": 105,
    "delete_module": 106,
    "finit_module": 273,
    "kexec_load": 104,
    "kexec_file_load": 294,
    "reboot": 142,
    "swapon": 224,
    "swapoff": 225,
    "acct": 89,
    "settimeofday": 170,
    "clock_settime": 112,
    "adjtimex": 171,
    "clock_adjtime": 266,
    "sethostname": 161,
    "setdomainname": 162,
    "quotactl": 60,
    "open_by_handle_at": 265,
    "fanotify_init": 262,
    "syslog": 116,
    "personality": 92,
    "vhangup": 58,
    "lookup_dcookie": 18,
    "move_pages": 239,
    "migrate_pages": 238,
}
MACHINES = {
    "x86_64": Machine(0xC000003E, 0x40000000, 41, 56, 435, (59, 322), _X86_64 | _NEWER),
    "aarch64": Machine(0xC00000B7, None, 198, 220, 435, (221, 281), _AARCH64 | _NEWER),
}
SECCOMP_MODE_FILTER = 2

# landlock(7): rights by the ABI that introduced them.
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR, TRUNCATE, REFER = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 13
_RIGHTS = {1: (1 << 13) - 1, 2: REFER, 3: TRUNCATE}
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
READ = READ_FILE | READ_DIR
REMOVE = 1 << 4 | 1 << 5
ALL_TCP = 3  # bind, connect: ABI 4
SCOPED = 3  # abstract sockets and signals outside: ABI 6
LEAST_ABI = 2  # ABI 1 can only forbid all renames between directories
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same number on every architecture
_PATH_BENEATH = 1
# What an interpreter reads besides its own directories: libraries, time zones, user names, kernel tables.
SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/etc", "/proc", "/nix/store", "/gnu/store")
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-x86_64.so.1")


def become(uid: int, gid: int, groups: Sequence[int], *, bounded: bool = True) -> None:
    """Switch to that user for good; `bounded`: also drop all capabilities from the bounding set. Raises OSError.

    A process that is started as root and switched here can never be traced by its owner: setuid(2) leaves it not
    dumpable. One that is executed as that uid is traceable until it forbids that: 0.1 s of an interpreter's start.
    """
    _prctl(PR_SET_DUMPABLE, 0)
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    if bounded:
        drop_capabilities(NOTHING, only_bounding=True)  # while it is still permitted
    os.setresuid(uid, uid, uid)
    _prctl(PR_SET_DUMPABLE, 0)


def hide() -> None:
    """Forbid other processes of the uid to trace this one, read its memory or take its descriptors (prctl(2)). No core.

    Holds until the next execve(2).
    """
    _prctl(PR_SET_DUMPABLE, 0)


def seal(keep: frozenset[int]) -> None:
    """Hide, gain no privileges from set-uid programs, and keep only the capabilities in `keep`. Raises OSError."""
    hide()
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    drop_capabilities(keep)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def drop_capabilities(keep: frozenset[int], *, only_bounding: bool = False) -> None:
    """Keep at most those in `keep` in each set; the bounding set changes only if permitted (CAP_SETPCAP)."""
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    for number in set(range(CAP_LAST)) - keep:
        _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
    if only_bounding:
        return
    header = struct.pack("Ii", CAPABILITY_VERSION, 0)
    sets = ctypes.create_string_buffer(24)
    if _libc.capget(header, sets):
        raise OSError(ctypes.get_errno(), "capget")
    kept = sum(1 << number for number in keep)
    effective, permitted, _, *high = struct.unpack("6I", sets.raw)
    mine = struct.pack("6I", effective & kept & 0xFFFFFFFF, permitted & kept & 0xFFFFFFFF, 0, 0, 0, 0)
    if (effective, permitted, *high) != (0, 0, 0, 0, 0) and _libc.capset(header, mine):
        raise OSError(ctypes.get_errno(), "capset")


def limit(memory: int, cpu_seconds: int) -> None:
    """Limit memory (beyond: MemoryError) and CPU time (beyond: SIGXCPU). Never raises existing limits.

    An owner may lower the limits of a helper of theirs (prlimit(2)), which harms only that helper.
    """
    for kind, wanted in ((resource.RLIMIT_DATA, memory), (resource.RLIMIT_CPU, cpu_seconds)):
        _, hard = resource.getrlimit(kind)
        value = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(kind, (value, value))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def program(machine: Machine, *, execute: bool, sockets: bool) -> bytes:
    """The filter in BPF: each instruction has a code, jumps if true and if false, and a constant (<linux/filter.h>)."""
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse = 0x7FFF0000, 0x00050000
    code: list[tuple[int, int, int, int]] = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, machine.audit),
        (give, 0, 0, refuse | EPERM),
        (load, 0, 0, 0),  # the number of the call
    ]
    if machine.foreign is not None:
        code += [(at_least, 0, 1, machine.foreign), (give, 0, 0, refuse | EPERM)]
    denied = [*machine.denied.values(), *(() if execute else machine.execute)]
    for number in denied if sockets else [*denied, machine.socket]:
        code += [(equal, 0, 1, number), (give, 0, 0, refuse | EPERM)]
    # clone3's flags are in memory, which a filter cannot read; without clone3 libc uses clone (pthread_create(3)).
    code += [(equal, 0, 1, machine.clone3), (give, 0, 0, refuse | ENOSYS)]
    code += [(equal, 0, 4, machine.clone), (load, 0, 0, 16), (any_bit, 0, 1, CLONE_NEW), (give, 0, 0, refuse | EPERM)]
    code += [(give, 0, 0, allow)]
    code += [(equal, 0, 3, machine.socket), (load, 0, 0, 16), (equal, 1, 0, AF_UNIX)]
    code += [(give, 0, 0, refuse | EAFNOSUPPORT), (give, 0, 0, allow)]
    return b"".join(struct.pack("HBBI", *line) for line in code)


def filter_calls(*, execute: bool = True, sockets: bool = True) -> bool:
    """Refuse (EPERM) calls that no helper needs; without `execute` also execve, without `sockets` all sockets.

    The process must be sealed and have one thread. False if the kernel or this architecture has no such filter.
    """
    machine = MACHINES.get(os.uname().machine)
    if machine is None or sys.maxsize < 1 << 32:
        return False
    code = program(machine, execute=execute, sockets=sockets)
    instructions = ctypes.create_string_buffer(code, len(code))
    filled = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(instructions))
    return bool(_libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filled, 0, 0) == 0)


@cache
def landlock_abi() -> int:
    """The kernel's Landlock version; 0: none, or a container's filter hides it."""
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), 1)))


def rights(abi: int) -> int:
    """All rights on files that this version knows, except ioctl on devices."""
    return sum(bits for since, bits in _RIGHTS.items() if since <= abi)


def fence(allowed: Iterable[tuple[str, int]], *, handled: int | None = None, network: bool = False) -> bool:
    """Of the `handled` rights (None: all) allow only those in `allowed`, for each path and everything below it.

    Without `network` also forbid TCP, and signals and abstract sockets to processes outside, if the kernel can. Missing
    paths are skipped. The process must be sealed. False if there is no usable Landlock.
    """
    abi = landlock_abi()
    if abi < LEAST_ABI:
        return False
    known = rights(abi)
    wanted = known if handled is None else handled & known
    tcp, scoped = (0 if network or abi < 4 else ALL_TCP), (0 if network or abi < 6 else SCOPED)
    attributes = struct.pack("QQQ", wanted, tcp, scoped)[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    ruleset = int(_libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    if ruleset < 0:
        return False
    try:
        for path, granted in allowed:
            _allow(ruleset, path, granted & wanted)
        return bool(_libc.syscall(_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, granted: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        of_this = granted if os.path.isdir(f"/proc/self/fd/{fd}") else granted & OF_A_FILE
        if of_this:
            _libc.syscall(_ADD, ruleset, _PATH_BENEATH, struct.pack("=Qi", of_this, fd), 0)
    finally:
        os.close(fd)


def parser_rules(
    places: Iterable[str], reads: Iterable[str] = (), removed: Iterable[str] = ()
) -> Iterator[tuple[str, int]]:
    """Rules for a process that reads and writes only in `places`, reads in `reads`, removes in `removed`, runs
    nothing.
    """
    abi = landlock_abi()
    own = (sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.dirname(os.path.dirname(os.path.dirname(__file__))))
    for path in dict.fromkeys((*SYSTEM, *own, *(entry for entry in sys.path if entry), *reads)):
        yield path, READ
    for path in DEVICES:
        yield path, READ_FILE | WRITE_FILE
    for path in removed:
        yield path, REMOVE
    for path in places:
        yield path, rights(abi) & ~EXECUTE


def only_runs(name: str, *others: str) -> Callable[[], object]:
    """A function for a child between fork(2) and execve(2), or for a thread before it starts one, that allows only that
    program (or the others).

    That includes a script's interpreter and the dynamic loader. The loader can be made to run another file as a
    program; that still has no network, no privileges and no way to trace (`filter_calls`).
    """
    allowed = [(path, EXECUTE) for one in (name, *others) for path in _files_of(one)]
    return partial(fence, [("/", REFER), *allowed], handled=EXECUTE | REFER, network=True)


def _files_of(name: str, depth: int = 0) -> Iterator[str]:
    """The files that the kernel opens to execute a program: itself, the interpreters in its first line, the loaders.

    Includes each file of that name on PATH: the first may be a script that runs the second.
    """
    yield from _LOADERS
    for path in _found(name):
        yield path
        for word in _interpreters(path) if depth < 3 else ():
            yield from _files_of(word, depth + 1)


def _interpreters(path: str) -> list[str]:
    try:
        with open(path, "rb") as file:
            first = file.read(256)
    except OSError:
        return []
    words = [os.fsdecode(word) for word in first[2:].split(b"\n", 1)[0].split()] if first[:2] == b"#!" else []
    return words[:2] if words and os.path.basename(words[0]) == "env" else words[:1]


def _found(name: str) -> list[str]:
    """The executables that execvp(3) would try for that program."""
    tried = [name] if "/" in name else [os.path.join(place, name) for place in os.get_exec_path()]
    return [path for path in tried if os.access(path, os.X_OK) and os.path.isfile(path)]


def lacking() -> dict[str, str]:
    """The mechanisms that the kernel lacks, each with an explanation. Checked without applying them."""
    found = {}
    if os.uname().machine not in MACHINES:
        found["seccomp"] = f"there is no table of system calls for {os.uname().machine}"
    elif not os.path.exists("/proc/sys/kernel/seccomp") and "Seccomp:" not in _own_status():
        found["seccomp"] = "the kernel has no seccomp filters"
    if (abi := landlock_abi()) < LEAST_ABI:
        found["landlock"] = f"the kernel has Landlock ABI {abi}" if abi else "the kernel has no Landlock"
    return found


def _own_status() -> str:
    with open("/proc/self/status", encoding="utf-8", errors="replace") as lines:
        return lines.read()


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option})")
