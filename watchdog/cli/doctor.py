"""`doctor`: inspects the daemon and this machine, reports problems and remedies. Works without a daemon."""

import argparse
import ctypes
import errno
import os
import platform
import re
import resource
import stat
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from watchdog.cli import trash_usage
from watchdog.cli.diagnosis import NOTIFY_FAILED, diagnose
from watchdog.cli.output import clean, entries, say, say_json
from watchdog.cli.seen import Seen, has_systemd, sweep_age
from watchdog.cli.verb import Json, Verbs, add_verb, socket_of
from watchdog.client import client, sockets
from watchdog.errors import WatchdogError

_HELP = """\
What is wrong with the watchdog on this machine, what it means, and what to do. Checks the daemon, its configuration and
unit, the sockets, who can change its directories, the features of the kernel, limits, and the size of the trash.
Changes nothing.

Exit status: 0 no fault (warnings or nothing), 1 a fault.
"""
LOOK = 10.0  # seconds for one check of a file, directory or server that may hang
CONTAINERS = ("docker", "podman", "nerdctl", "apptainer")
WAL_READ = range(123, 128)  # bytes of the `-shm` that readers lock (sqlite.org/walformat.html, 2.3.2)
CHECK = 30.0  # seconds for `agent-watchdogd --check`, which has a limit of 20 s itself
PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")  # as `command_hook` has it
_UNIT = "agent-watchdog.service"
_LOCK = "agent-watchdogd.lock"  # the name in `lock`


def add_verbs(verbs: Verbs) -> None:
    """Add the parser of `doctor`."""
    parser = add_verb(verbs, "doctor", "what is wrong with this installation, and what to do", _HELP)
    parser.add_argument("--config", metavar="FILE", help="the daemon's file, where it is not the default one")
    parser.set_defaults(call=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Inspect, diagnose, print."""
    seen = look(socket_of(arguments), arguments.config)
    findings = diagnose(seen)
    if arguments.json:
        keys = ("severity", "what", "meaning", "todo")
        kernel = {"release": platform.release(), **seen.features}
        told = [{key: getattr(finding, key) for key in keys} for finding in findings]
        say_json({"findings": told, "kernel": kernel, "own_cgroup": seen.own_cgroup})
    else:
        for finding in findings:
            say(f"{finding.severity.ljust(5)}  {clean(finding.what)}")
            say(f"       {clean(finding.meaning)}")
            say(f"       do: {clean(finding.todo)}")
        if not findings:
            say("nothing is wrong")
    return 1 if any(finding.severity == "fault" for finding in findings) else 0


def look(socket_path: str, config: str | None) -> Seen:
    """Collect everything, each check on its own: one that fails hides no other."""
    from importlib.metadata import packages_distributions  # lazily: it was a third of the imports of each other verb

    seen = Seen(uid=os.geteuid(), socket=socket_path, interpreter=sys.executable)
    seen.config_file = config and os.path.abspath(config)
    seen.distributions = sorted(set(packages_distributions().get("watchdog", [])))
    _within(seen, sys.executable, lambda: setattr(seen, "interpreter_closed", _closed(sys.executable)))
    _within(seen, f"the daemon at {socket_path}, or its directory", lambda: _ask(seen), 2 * LOOK)
    file = seen.status.get("config") if seen.status else None
    running = file if isinstance(file, str) and file.startswith("/") else None
    seen.systemd = has_systemd(seen.status.get("uid", seen.uid) if seen.status else seen.uid)
    _within(seen, "agent-watchdogd --check", lambda: _check_config(seen, config, running), CHECK + LOOK)
    _within(seen, "the configuration", lambda: _look_at_pager(seen, running))
    _within(seen, "systemctl", lambda: _look_at_systemd(seen), 2 * LOOK)
    _look_at_kernel(seen)
    _look_at_places(seen, config)
    seen.open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if seen.status is None else _limit_of(seen.status)
    seen.containers = [name for name in CONTAINERS if _on_path(name)]
    seen.git = _on_path("git")
    return seen


def _on_path(program: str) -> str | None:
    """The directory on PATH that contains it."""
    return next((place for place in os.get_exec_path() if os.access(os.path.join(place, program), os.X_OK)), None)


def _within(seen: Seen, what: str, look: Callable[[], object], seconds: float = LOOK) -> None:
    """Run one check in a thread of its own, which is abandoned if it hangs. Its exception is raised here."""
    from concurrent.futures import Future  # lazily: as above, it brings `logging`

    done: Future[object] = Future()

    def work() -> None:
        try:
            done.set_result(look())
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            done.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    try:
        done.result(seconds)
    except TimeoutError:
        seen.unanswered.append(what)


def _ask(seen: Seen) -> None:
    directory = os.path.dirname(seen.socket)
    if os.path.isdir(directory):
        seen.socket_problem = sockets.directory_problem(directory)
    usual = [sockets.SYSTEM_SOCKET, *sockets.own_sockets()]
    found = {path: _status(path) for path in usual if path != seen.socket}
    others = {path: answer for path, answer in found.items() if isinstance(answer, dict)}
    seen.others = [*others]
    answer = _status(seen.socket)
    if not isinstance(answer, dict):
        seen.silence = answer
        return
    seen.status = answer
    left = {
        path: [str(one.get("name")) for one in entries(other.get("elsewhere")) if one.get("socket") == seen.socket]
        for path, other in others.items()
    }
    seen.left_to_us = {path: names for path, names in left.items() if names}
    if seen.uid == 0 and (daemons := _user_daemons(_read("/proc/net/unix"))):
        _, listed = client.request("GET", "/v1/agents", socket_path=seen.socket)
        owners = Counter(one.get("owner_uid") for one in entries(listed.get("agents")))
        seen.user_daemons = [(uid, path, owners[uid]) for uid, path in daemons if owners[uid]]
    seen.sweep_age = sweep_age(answer, datetime.now(UTC))


def _user_daemons(sockets: str) -> list[tuple[int, str]]:
    """Other users' daemons, as uid and socket, from /proc/net/unix (proc(5)): root connects to no path of a user's.

    A line: number, references, protocol, flags (__SO_ACCEPTCON: it listens), type, state, inode, path.
    """
    path = r"(/(?:run/user/|tmp/agent-watchdog-)(\d+)(?:/agent-watchdog)?/control\.sock)"
    found = re.findall(rf"^\S+ \S+ \S+ 00010000 \S+ \S+ +\d+ {path}$", sockets, re.M)
    return sorted({(int(uid), path) for path, uid in found if int(uid) != 0})


def _status(path: str) -> Json | str:
    """The daemon's answer at that socket, or why there is none."""
    try:
        code, answer = client.request("GET", "/v1/status", socket_path=path)
    except (WatchdogError, OSError) as error:
        return str(error)
    return answer if code == 200 else str(answer.get("message") or f"it answered {code}")


def _check_config(seen: Seen, named: str | None, running: str | None) -> None:
    """Have the daemon itself check the file. We may not even be allowed to read another uid's file."""
    if seen.status is not None and named is None and seen.status.get("uid") not in (None, seen.uid):
        return  # reported as the result of its last reload
    daemon = os.path.join(os.path.dirname(sys.executable), "agent-watchdogd")
    file = named or running
    argv = [daemon, "--check", *(["--config", file] if file else [])]
    try:
        done = _ran(argv)
    except subprocess.TimeoutExpired:
        seen.config_unknown = f"{daemon} --check gave no answer within {CHECK:g} s"
        return
    except OSError as error:
        seen.config_unknown = f"{daemon} cannot be run: {error.strerror}"
        return
    mark = "warning: "
    lines = [line.removeprefix("agent-watchdogd: ") for line in done.stderr.splitlines()]
    seen.config_warnings = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    seen.config = [line for line in lines if not line.startswith(mark)] if done.returncode else []
    if done.returncode and not seen.config:
        seen.config_unknown = f"{daemon} --check ended with status {done.returncode} and said nothing"


def _look_at_pager(seen: Seen, file: str | None) -> None:
    """The command of [notify] that fails, and what its environment takes from the daemon's (`owner.command_hook`)."""
    status = seen.status or {}
    if file is None or not any(one.get("event") == NOTIFY_FAILED for one in entries(status.get("troubles"))):
        return
    command = _section_of(file, "notify").get("command")
    pairs = (pair.partition("=") for pair in _read(f"/proc/{status.get('pid')}/environ").split("\0"))
    passed = [f"{name}={value}" for name, _, value in pairs if name in PASSED]
    if isinstance(command, list):
        seen.pager = ["env", "-i", *passed, *map(str, command)]


def _look_at_systemd(seen: Seen) -> None:
    if not os.path.isdir("/run/systemd/system"):  # sd_booted(3)
        return
    option = ["--user"] if seen.uid else []
    words = [_run("systemctl", *option, verb, _UNIT) for verb in ("is-enabled", "is-active")]
    if all(done is not None for done in words):
        enabled, active = (done.stdout.strip() if done else "" for done in words)
        seen.unit = enabled, active
    if seen.status is None:
        done = _run("journalctl", *option, "--quiet", "--output=cat", "--lines=60", f"--unit={_UNIT}")
        seen.last_words = _last_words(done.stdout if done else "")
    seen.bus = os.path.exists("/run/dbus/system_bus_socket")
    if seen.uid:
        done = _run("loginctl", "show-user", str(seen.uid), "--property=Linger", "--value")
        seen.linger = None if done is None else done.stdout.strip() == "yes"


def _last_words(journal: str) -> str | None:
    """Why the daemon exited on its own: the first of the last faults that it printed, unless it has started since."""
    said, former = None, ""
    for line in journal.splitlines():
        if _is_fault(line):
            said = said if _is_fault(former) else line.removeprefix("agent-watchdogd: ")
        elif "daemon.ready" in line:
            said = None
        former = line
    return said


def _is_fault(line: str) -> bool:
    return line.startswith("agent-watchdogd: ") and not line.startswith("agent-watchdogd: warning: ")


def _look_at_kernel(seen: Seen) -> None:
    if found := re.match(r"(\d+)\.(\d+)", platform.release()):
        seen.kernel = int(found[1]), int(found[2])
    seen.features = {
        "pidfd_open": _works(lambda: os.close(os.pidfd_open(os.getpid()))),
        "pidfd_send_signal": _called(424, -1, 0, 0, 0),  # no valid descriptor, so no process is signalled
        "mount_id": _works(_mount_id),
        "openat2": _called(437, -1, 0, 0, 0),  # temp dirs can be removed without it; only shown by --json
        "landlock": _landlock_abi() >= 2,
        "seccomp": os.path.exists("/proc/sys/kernel/seccomp") and platform.machine() in ("x86_64", "aarch64"),
    }
    mounts = _read("/proc/mounts")
    if found := re.search(r"^\S+ /proc proc (\S+)", mounts, re.M):
        hidden = re.search(r"hidepid=(\w+)", found[1])
        seen.hidepid = hidden[1] if hidden else None
    seen.pressure = os.path.exists("/proc/pressure/cpu")
    told = seen.status.get("own_cgroup") if seen.status else None
    seen.own_cgroup = told if isinstance(told, str) else None if " cgroup2 " in mounts else "none: no cgroup v2 here"


def _works(attempt: Callable[[], object]) -> bool:
    """Whether the call works: an old kernel returns ENOSYS, a seccomp profile may return EPERM."""
    try:
        attempt()
    except OSError:
        return False
    return True


def _mount_id() -> None:
    """Read a mount id as `owner.file_identity` does."""
    descriptor = os.open("/", os.O_PATH | os.O_CLOEXEC)
    try:
        if "mnt_id:" not in _read(f"/proc/self/fdinfo/{descriptor}"):
            raise OSError(errno.ENOSYS, "no mnt_id")
    finally:
        os.close(descriptor)


def _landlock_abi() -> int:
    """The version from landlock_create_ruleset(2), as in `owner.confinement`."""
    return int(ctypes.CDLL(None, use_errno=True).syscall(444, None, ctypes.c_size_t(0), 1))


def _called(number: int, *arguments: int) -> bool:
    """Whether the system call exists: called with invalid arguments, so that it does nothing (EBADF, EINVAL)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(number, *arguments)
    return ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM)


def _look_at_places(seen: Seen, config: str | None) -> None:
    state = seen.status.get("state_dir") if seen.status else None
    told = [state] if isinstance(state, str) else []
    if not told:
        _within(seen, "the configuration", lambda: told.append(_state_of(config)))
    state = told[0] if told else _default_state()
    runtime = os.path.dirname(seen.socket)
    registry = os.path.join(state, "registry.db")
    if seen.status is None:
        for lock in (f"{runtime}/{_LOCK}", f"{state}/{_LOCK}"):
            _within(seen, lock, partial(_look_at_lock, seen, lock))
    for path in (state, registry, runtime, os.path.join(runtime, "notify")):
        _within(seen, path, partial(_look_at_place, seen, path))
    seen.private = state, registry
    seen.registry_bytes = seen.places[registry].st_size if registry in seen.places else None
    _within(seen, f"{registry}-wal", partial(_look_at_wal, seen, registry))
    _within(seen, "a directory of trash", lambda: _look_at_trash(seen), CHECK)


def _look_at_place(seen: Seen, path: str) -> None:
    with suppress(OSError):
        seen.places[path] = os.lstat(path)


def _look_at_lock(seen: Seen, path: str) -> None:
    """The pid that holds a daemon's lock: it is alive, even without a socket. Format of /proc/locks: `_look_at_wal`."""
    with suppress(OSError):
        inode = str(os.lstat(path).st_ino)
        with open("/proc/locks") as locks:
            held = [line.split() for line in locks if " FLOCK " in line and "->" not in line]
        if any(one[5].rpartition(":")[2] == inode for one in held):
            said = _read(path).strip()
            seen.living = int(said) if said.isdecimal() else seen.living
            state = _read(f"/proc/{seen.living}/stat").rpartition(") ")[2][:1]
            seen.halted = state in ("T", "t")


def _look_at_wal(seen: Seen, registry: str) -> None:
    """The WAL's size and readers: each holds a lock on a byte of the `-shm` (sqlite.org/walformat.html).

    F_GETLK reports only one holder, which may be the daemon. A line of /proc/locks (proc(5)): number, kind, class,
    access, pid, device and inode, first and last byte.
    """
    with suppress(OSError):
        seen.wal_bytes = os.lstat(f"{registry}-wal").st_size
        inode = str(os.lstat(f"{registry}-shm").st_ino)
        with open("/proc/locks") as locks:
            held = [line.split() for line in locks if " POSIX " in line and "->" not in line]
        of_it = [line for line in held if line[5].rpartition(":")[2] == inode and line[6].isdigit()]
        ours = seen.status.get("pid") if seen.status else None
        seen.wal_readers = sorted({int(line[4]) for line in of_it if int(line[6]) in WAL_READ} - {ours})


def _look_at_trash(seen: Seen) -> None:
    seen.trash = trash_usage.find(seen.socket, seen.status.get("roots") if seen.status else None)
    seen.trash_bytes = sum(map(trash_usage.bytes_below, seen.trash))


def _state_of(config: str | None) -> str:
    """The state directory in the file, if no daemon answers; problems of the file are reported by --check."""
    path = config or os.environ.get("AGENT_WATCHDOG_CONFIG") or _default_config()
    state = _section_of(path, "daemon").get("state_dir")
    return state if isinstance(state, str) and state.startswith("/") else _default_state()


def _section_of(path: str, name: str) -> Json:
    """A section of a configuration file; empty where it cannot be read, or has none."""
    import tomllib  # lazily: as above

    try:
        with open(path, "rb") as file:
            section = tomllib.load(file).get(name)
    except (OSError, ValueError):
        return {}
    return section if isinstance(section, dict) else {}


def _default_config() -> str:
    """The default path, as in `places`."""
    if os.geteuid() == 0:
        return "/etc/agent-watchdog/agent-watchdog.toml"
    named = os.environ.get("XDG_CONFIG_HOME", "")
    base = named if named.startswith("/") else os.path.expanduser("~/.config")
    return f"{base}/agent-watchdog/agent-watchdog.toml"


def _default_state() -> str:
    """Where our own daemon would have its registry (`places`)."""
    if os.geteuid() == 0:
        return "/var/lib/agent-watchdog"
    named = os.environ.get("XDG_STATE_HOME", "")
    return os.path.join(named if named.startswith("/") else os.path.expanduser("~/.local/state"), "agent-watchdog")


def _closed(path: str) -> str | None:
    """The first component of a path, following links, that others may not traverse or execute."""
    real = Path(os.path.realpath(path))
    for part in (*reversed(real.parents), real):
        try:
            if not part.stat().st_mode & stat.S_IXOTH:
                return str(part)
        except OSError:
            return str(part)
    return None


def _limit_of(status: Json) -> int | None:
    """The daemon's soft limit of descriptors, if visible."""
    found = re.search(r"^Max open files\s+(\d+)", _read(f"/proc/{status.get('pid')}/limits"), re.M)
    return int(found[1]) if found else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _run(*argv: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return _ran(argv)
    except (OSError, subprocess.TimeoutExpired):
        return None


def _ran(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, capture_output=True, text=True, timeout=CHECK, stdin=subprocess.DEVNULL, check=False)
