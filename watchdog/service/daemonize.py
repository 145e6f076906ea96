"""`--daemonize`, for hosts without a service manager: detach, and report the start to the parent process.

Order matters. The pid file is locked *before* the fork: a second start is refused in its own terminal. All other
descriptors are opened *after* it: python-daemon closes open ones, and the next ones get the same numbers (a log opened
before would then be written into another file, such as a database).
"""

import contextlib
import dataclasses
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import daemon

from watchdog.clock import Clock
from watchdog.config.paths import ensure_directories, ensure_directory, places_for
from watchdog.config.settings import Settings
from watchdog.errors import ConfigError, WatchdogError
from watchdog.host.instance_lock import PidFile
from watchdog.host.service_manager import ServiceManager

_clock = Clock()
EX_SOFTWARE = 70  # sysexits.h
EX_TEMPFAIL = 75  # the same
PATIENCE = 90.0  # seconds that the parent process waits for a daemon to be ready: TimeoutStartSec in the unit
_SYSTEM_LOGS = "/var/log/agent-watchdog"  # FHS 3.0, section 5.10; config/logrotate.d looks there
_MANAGERS_OWN = ("LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID", "WATCHDOG_USEC", "WATCHDOG_PID")

Live = Callable[[Settings, ServiceManager, PidFile], int]


def run_detached(settings: Settings, pid_file: str | None, live: Live) -> int:
    """Fork, call `live` in the background, and return its result; in the parent process: 0 once it is ready.

    The settings have a log file (`with_log_file`). If the daemon fails, the parent returns its exit status. Raises
    AlreadyRunning, ConfigError and UnsafeDirectory before anything is forked.
    """
    _refuse_manager(os.environ)
    for key in _MANAGERS_OWN:  # they were meant for the parent, and their descriptors are closed below
        os.environ.pop(key, None)
    os.umask(0o077)
    ensure_directories(settings.state_dir, settings.runtime_dir)
    sys.argv[0] = os.path.abspath(sys.argv[0])
    pid = PidFile(os.path.abspath(pid_file or os.path.join(settings.runtime_dir, "agent-watchdog.pid")))
    hear, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hear)
        return _live_detached(settings, pid, _Starter(tell), live)
    os.close(tell)
    pid.close()
    os.waitpid(child, 0)  # it forks again at once (credentials(7): a daemon is no session leader) and exits
    return _await(hear, settings.log.file, pid.path)


class _Starter(ServiceManager):
    """The parent process, to which the daemon reports READY=1 instead of a service manager."""

    def __init__(self, pipe: int) -> None:
        super().__init__({})
        self._pipe: int | None = pipe

    def fileno(self) -> int | None:
        """The pipe to the parent; None once the report was sent."""
        return self._pipe

    def ready(self, status: str) -> None:
        """Report it; other states are ignored."""
        self.report({"pid": os.getpid()})

    def report(self, word: Mapping[str, object]) -> None:
        """Send the only report that the parent waits for; it may have been interrupted and be gone."""
        if self._pipe is not None:
            with contextlib.suppress(OSError):
                os.write(self._pipe, json.dumps(word).encode())
            os.close(self._pipe)
            self._pipe = None


def _live_detached(settings: Settings, pid: PidFile, starter: _Starter, live: Live) -> int:
    """The daemon's process, from the first fork to its end."""
    code = EX_SOFTWARE
    try:
        # Uncaught errors, and faulthandler's stacks, go to the log too: there is no terminal to show them.
        with open(settings.log.file, "ab", buffering=0, opener=_open_log) as last_words:
            daemon.DaemonContext(
                detach_process=True,  # its guess would be "no" below an init
                umask=0o077,  # its own default is 0: world-writable files
                signal_map={},  # its own would raise SystemExit anywhere
                files_preserve=[pid.fileno(), starter.fileno()],
                stderr=last_words,
            ).open()
        pid.write(os.getpid())
        code = live(settings, starter, pid)
    except WatchdogError as error:
        code = error.exit_code
        starter.report({"error": str(error), "code": code})
    except OSError as error:
        starter.report({"error": f"cannot go to the background: {error}", "code": code})
        traceback.print_exc()
    except Exception as error:
        starter.report({"error": f"{type(error).__name__}: {error} (its log has the rest)", "code": code})
        raise
    finally:
        pid.remove()
    return code


def _await(pipe: int, log_file: str, pid_file: str) -> int:
    """The output and exit status of the parent: 75 if the daemon is neither ready nor ended in time."""
    said = _read_until_closed(pipe, PATIENCE)
    if said is None:
        late = f"not ready within {PATIENCE:g} s; it goes on trying: see {log_file}, and its pid in {pid_file}"
        print(f"agent-watchdogd: {late}", file=sys.stderr)
        return EX_TEMPFAIL
    lost = {"error": f"ended before it was ready; see {log_file}", "code": EX_SOFTWARE}
    word: dict[str, Any] = json.loads(said) if said else lost
    if "error" in word:
        print(f"agent-watchdogd: {word['error']}", file=sys.stderr)
        return int(word["code"])
    print(f"agent-watchdogd watches in the background (pid {word['pid']}, in {pid_file}); its log: {log_file}")
    return 0


def _read_until_closed(pipe: int, seconds: float) -> bytes | None:
    """All data until the other end of the pipe is closed; None: it was not closed in time."""
    poll, said, deadline = select.poll(), b"", _clock.mono() + seconds
    poll.register(pipe, select.POLLIN)
    while poll.poll(max(0.0, deadline - _clock.mono()) * 1000):
        if not (more := os.read(pipe, 65_536)):
            return said
        said += more
    return None


def with_log_file(settings: Settings) -> Settings:
    """The same settings with `[log] file`, or with our default: there is neither terminal nor journal.

    Makes its directory.
    """
    if settings.log.file:
        return settings
    directory = settings.state_dir
    if os.geteuid() == 0 and directory == places_for(0, {}).state_dir:
        directory = _SYSTEM_LOGS
        ensure_directory(directory, 0o750)
    log = settings.log.model_copy(update={"file": os.path.join(directory, "agent-watchdogd.log")})
    return dataclasses.replace(settings, config=settings.config.model_copy(update={"log": log}))


def _open_log(path: str, flags: int) -> int:
    try:  # O_NONBLOCK: a FIFO without a reader is an error, not a wait
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
    except OSError as error:
        raise ConfigError([f"log.file: {path}: {error.strerror}; use a file that it may write"]) from None


def _refuse_manager(environ: Mapping[str, str]) -> None:
    """Raise ConfigError if a service manager started us: it follows the process that it started."""
    waits = "NOTIFY_SOCKET" in environ
    # $INVOCATION_ID alone proves nothing: a terminal that systemd started passes it on to every shell.
    unit = "INVOCATION_ID" in environ and environ.get("SYSTEMD_EXEC_PID") == str(os.getpid())
    if waits or unit:
        why = (
            "$NOTIFY_SOCKET is set, so a service manager waits for READY=1" if waits else "systemd started this process"
        )
        raise ConfigError(
            [f"--daemonize: {why}; use Type=notify in the unit without --daemonize: the daemon stays in the foreground"]
        )


def fill_standard_streams() -> None:
    """Open /dev/null for closed standard streams (`<&-`, `2>&-`): the next file would become descriptor 0 or 2.

    A registry would then get what libraries write to stderr; and Python has no sys.stderr, which faulthandler needs.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, so this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115 - kept open
