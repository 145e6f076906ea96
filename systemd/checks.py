"""What `make install` looks at before it changes or stops anything: room, who runs the former version, and whether the
daemon would start with the configuration that is there.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from environments import users_of
from places import Refused, Target

# An environment with all extras has about 130 MB, what pip needs beside it 90 (measured on Debian 12, Python 3.11).
ENVIRONMENT = 150 << 20
SCRATCH = 100 << 20
CHECK = 30.0  # seconds for `agent-watchdogd --check`, which has 20 of its own
# What systemd tells a service alone: the check must not speak to it, nor take over its sockets.
_NOT_PASSED_ON = ("NOTIFY_SOCKET", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "INVOCATION_ID")


def room(target: Target) -> None:
    """Raises Refused where the new environment, or what builds it, would fill a disk: the former one may be on it."""
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
    """Name daemons of a former environment that are not the `service` (its pid): this restarts none of them."""
    for environment in target.path(target.layout.base).glob("env-*"):
        for user in users_of(target, f"{target.layout.base}/{environment.name}"):
            if user.is_daemon and user.pid != service:
                print(
                    f"process {user.pid} of uid {user.uid} is a daemon of {environment.name} and not the service: it"
                    f" goes on with that version until you restart it (kill {user.pid}, then start it again)"
                )


def would_start(target: Target, environment: str, service: int, *, runs: bool) -> None:
    """Have the new daemon check the configuration that the one which runs was started with (`service`: its pid, or 0).

    Raises Refused where that `runs`, as a restart would leave no daemon; else it is only told.
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
    """The arguments and the environment that a daemon was started with; nothing and our own where none is seen."""
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
