"""`doctor`: looks at the daemon and at this machine, says what is wrong and what to do. Works without a daemon."""

import argparse
import os
import platform
import re
import resource
import stat
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import packages_distributions
from pathlib import Path

from watchdog.cli.asking import Json, Verbs, add_verb, socket_of
from watchdog.cli.diagnosis import Seen, diagnose
from watchdog.cli.output import clean, say, say_json
from watchdog.control import client
from watchdog.errors import WatchdogError

_HELP = """\
What is wrong with the watchdog on this machine, what it means, and what to do. Looks at the daemon, its configuration
and unit, the sockets, what the kernel offers, limits, and how much trash lies about. Changes nothing.

Exit status: 0 no fault (warnings or nothing), 1 a fault.
"""
_UNIT = "agent-watchdog.service"
_MOST_FILES = 100_000  # of trash that are counted


def add_verbs(verbs: Verbs) -> None:
    """Add the parser of `doctor`."""
    parser = add_verb(verbs, "doctor", "what is wrong with this installation, and what to do", _HELP)
    parser.add_argument("--config", metavar="FILE", help="the daemon's file, where it is not the default one")
    parser.set_defaults(call=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """Look, judge, print."""
    seen = look(socket_of(arguments), arguments.config)
    findings = diagnose(seen)
    if arguments.json:
        keys = ("severity", "what", "meaning", "todo")
        say_json({"findings": [{key: getattr(finding, key) for key in keys} for finding in findings]})
    else:
        for finding in findings:
            say(f"{finding.severity.ljust(5)}  {clean(finding.what)}")
            say(f"       {clean(finding.meaning)}")
            say(f"       do: {clean(finding.todo)}")
        if not findings:
            say("nothing is wrong")
    return 1 if any(finding.severity == "fault" for finding in findings) else 0


def look(socket_path: str, config: str | None) -> Seen:
    """Everything that can be seen from here, each for itself: one look that fails hides no other."""
    seen = Seen(uid=os.geteuid(), socket=socket_path, interpreter=sys.executable)
    seen.distributions = sorted(set(packages_distributions().get("watchdog", [])))
    seen.interpreter_closed = _closed(sys.executable)
    _ask(seen)
    file = seen.status.get("config") if seen.status else None
    named = config or (file if isinstance(file, str) and file.startswith("/") else None)
    seen.config = _config_problems(named)
    _look_at_systemd(seen)
    _look_at_kernel(seen)
    _look_at_places(seen)
    seen.open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if seen.status is None else _limit_of(seen.status)
    seen.git = next((d for d in os.get_exec_path() if os.access(os.path.join(d, "git"), os.X_OK)), None)
    return seen


def _ask(seen: Seen) -> None:
    directory = os.path.dirname(seen.socket)
    if os.path.isdir(directory):
        seen.socket_problem = client.directory_problem(directory)
    own = [client.SYSTEM_SOCKET, *(f"{place}/control.sock" for place in client.user_directories())]
    seen.others = [path for path in own if path != seen.socket and isinstance(_status(path), dict)]
    answer = _status(seen.socket)
    if not isinstance(answer, dict):
        seen.silence = answer
        return
    seen.status = answer
    last = answer.get("last_sweep")
    if isinstance(last, str):
        seen.sweep_age = (datetime.now(UTC) - datetime.fromisoformat(last)).total_seconds()


def _status(path: str) -> Json | str:
    """The daemon's answer there, or why there is none."""
    try:
        code, answer = client.request("GET", "/v1/status", socket_path=path)
    except (WatchdogError, OSError) as error:
        return str(error)
    return answer if code == 200 else str(answer.get("message") or f"it answered {code}")


def _config_problems(named: str | None) -> list[str]:
    """What the daemon itself says of the file."""
    daemon = os.path.join(os.path.dirname(sys.executable), "agent-watchdogd")
    told = ["--config", named] if named else []
    done = _run(daemon, "--check", *told)
    if done is None:
        return [f"{daemon} cannot be run"]
    lines = done.stderr.splitlines()
    return [line.removeprefix("agent-watchdogd: ") for line in lines] if done.returncode else []


def _look_at_systemd(seen: Seen) -> None:
    if not os.path.isdir("/run/systemd/system"):  # sd_booted(3)
        return
    option = ["--user"] if seen.uid else []
    words = [_run("systemctl", *option, verb, _UNIT) for verb in ("is-enabled", "is-active")]
    if all(done is not None for done in words):
        enabled, active = (done.stdout.strip() if done else "" for done in words)
        seen.unit = enabled, active
    seen.bus = os.path.exists("/run/dbus/system_bus_socket")
    if seen.uid:
        done = _run("loginctl", "show-user", str(seen.uid), "--property=Linger", "--value")
        seen.linger = None if done is None else done.stdout.strip() == "yes"


def _look_at_kernel(seen: Seen) -> None:
    if found := re.match(r"(\d+)\.(\d+)", platform.release()):
        seen.kernel = int(found[1]), int(found[2])
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        seen.pidfd = False
    mounts = _read("/proc/mounts")
    if found := re.search(r"^\S+ /proc proc (\S+)", mounts, re.M):
        hidden = re.search(r"hidepid=(\w+)", found[1])
        seen.hidepid = hidden[1] if hidden else None
    seen.pressure = os.path.exists("/proc/pressure/cpu")
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        seen.cgroup = "v2"
    else:
        seen.cgroup = "none" if " cgroup" not in mounts else "hybrid" if " cgroup2 " in mounts else "v1"


def _look_at_places(seen: Seen) -> None:
    state = seen.status.get("state_dir") if seen.status else None
    if isinstance(state, str):
        try:
            seen.registry_bytes = os.stat(os.path.join(state, "registry.db")).st_size
        except OSError:
            seen.registry_bytes = None
    roots = seen.status.get("roots") if seen.status else None
    trash = [
        str(place)
        for root in (roots if isinstance(roots, list) else [])
        for place in Path(str(root)).glob(".agent-watchdog-trash-*")
    ]
    if trash:
        seen.trash, seen.trash_bytes = trash, sum(map(_bytes_below, trash))


def _bytes_below(top: str) -> int:
    """Bytes on disk, of as much as may be read, up to a bound."""
    total = count = 0
    for directory, _, names in os.walk(top):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:
                continue
        count += len(names)
        if count > _MOST_FILES:
            break
    return total


def _closed(path: str) -> str | None:
    """The first part of a path, links followed, that others may not pass or execute."""
    real = Path(os.path.realpath(path))
    for part in (*reversed(real.parents), real):
        try:
            if not part.stat().st_mode & stat.S_IXOTH:
                return str(part)
        except OSError:
            return str(part)
    return None


def _limit_of(status: Json) -> int | None:
    """The soft limit of descriptors of the daemon, where we may see it."""
    found = re.search(r"^Max open files\s+(\d+)", _read(f"/proc/{status.get('pid')}/limits"), re.M)
    return int(found[1]) if found else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def _run(*argv: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(argv, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
