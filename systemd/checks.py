"""Checks by `make install` before it changes or stops anything: free space, daemons that run the old version, and
whether the new daemon would start with the existing configuration.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from environments import users_of
from places import Refused, Target

# An environment with all extras takes about 130 MB, and pip needs 90 more (measured on Debian 12, Python 3.11).
ENVIRONMENT = 150 << 20
SCRATCH = 100 << 20
CHECK = 30.0  # seconds for `agent-watchdogd --check`, which has 20 of its own
# Variables that systemd sets for the service only: the check must not notify systemd, nor take over its sockets.
_NOT_PASSED_ON = ("NOTIFY_SOCKET", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "INVOCATION_ID")


def room(target: Target) -> None:
    """Raises Refused if the new environment or its build would fill a disk, on which the old one may be, too."""
    wanted: dict[int, tuple[Path, int]] = {}
    for place, size in ((target.path(target.layout.base), ENVIRONMENT), (Path(tempfile.gettempdir()), SCRATCH)):
        there = next(path for path in (place, *place.parents) if path.exists())
        device = there.stat().st_dev
        wanted[device] = there, size + wanted.get(device, (there, 0))[1]
    for there, size in wanted.values():
        free = shutil.disk_usage(there).free
        if free < size:
            raise Refused(
                f"{free >> 20} MB are free on the disk of {there}, {size >> 20} MB are needed; nothing was changed;"
                " free some space, or set TMPDIR= to another disk"
            )


def tell_who_runs(target: Target, service: int) -> None:
    """Print the daemons of an old environment other than the `service` (a pid): installing restarts none of them."""
    for environment in target.path(target.layout.base).glob("env-*"):
        for user in users_of(target, f"{target.layout.base}/{environment.name}"):
            if user.is_daemon and user.pid != service:
                print(
                    f"process {user.pid} of uid {user.uid} is a daemon of {environment.name} and not the service: it"
                    f" goes on with that version until you restart it (kill {user.pid}, then start it again)"
                )


def would_start(target: Target, environment: str, service: int, *, runs: bool) -> None:
    """Let the new daemon check the configuration of the running one (`service`: its pid, or 0).

    An error raises Refused if the service `runs`, as a restart would leave no daemon; else it is only printed.
    """
    words, environ = _started_with(service)
    config = target.path(target.layout.config)
    if not words and not config.exists():
        return
    program = target.path(f"{environment}/bin/agent-watchdogd")
    try:
        done = subprocess.run(
            [program, *(words or ["--config", str(config)]), "--check"],
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Refused(f"{program} --check gave no answer within {CHECK:g} s; nothing was changed") from None
    if done.returncode == 0:
        return
    said = done.stderr.strip() or done.stdout.strip() or f"exit status {done.returncode}"
    if runs:
        raise Refused(
            f"the new daemon would not start, so nothing was changed and the one that runs goes on:\n{said}\n"
            "correct that, then: make install"
        )
    print(f"the daemon will not start with this configuration:\n{said}")


def _started_with(pid: int) -> tuple[list[str], dict[str, str]]:
    """A daemon's arguments and environment; no arguments and our own environment if they cannot be read."""
    own = {key: value for key, value in os.environ.items() if key not in _NOT_PASSED_ON}
    if not pid:
        return [], own
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="surrogateescape").split("\0")[:-1]
        raw = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="surrogateescape")
    except OSError:
        return [], own
    environ = dict(item.split("=", 1) for item in raw.split("\0") if "=" in item)
    script = next((number for number, word in enumerate(words) if word.endswith("/agent-watchdogd")), None)
    if script is None:
        return [], own
    kept = {key: value for key, value in environ.items() if key not in _NOT_PASSED_ON}
    return words[script + 1 :] or ["--check"], kept
