"""The command `agent-watchdogd`: options, environment, configuration, logs; then the daemon.

Tests: tests/e2e/test_reload.py, tests/service/test_daemonize.py, tests/attacks/test_stop.py.
"""

import argparse
import asyncio
import ctypes
import faulthandler
import gc
import importlib.metadata
import os
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

from watchdog.concurrency import threads
from watchdog.config import settings as config
from watchdog.config.paths import ensure_directories, squatted
from watchdog.errors import ConfigError, WatchdogError
from watchdog.host import fd_limit
from watchdog.host.instance_lock import PidFile
from watchdog.host.service_manager import ServiceManager
from watchdog.service import check, daemonize
from watchdog.telemetry import logger

M_ARENA_MAX = -8  # malloc.h
PATIENCE = 20.0  # seconds for reading the configuration and, with --check, checking the files it names
_LOOK = "the configuration"
T = TypeVar("T")
LAST_WORDS = 1.0  # seconds that a stopped reader of our output may delay us
EX_USAGE = 64  # not argparse's 2, which vendors' hook runners read as "block the agent"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(EX_USAGE)


def main(argv: list[str] | None = None) -> int:
    """Run the daemon, in the foreground unless told otherwise; returns the exit status (sysexits.h)."""
    daemonize.fill_standard_streams()
    parser = build()
    options = parser.parse_args(argv)
    if options.pidfile is not None and not options.daemonize:
        parser.error("--pidfile is for --daemonize")
    try:
        fd_limit.refuse_too_few()
        read = _reader(options)
        if options.check:
            return _answered(lambda: _check(read, ServiceManager(os.environ)))
        settings = _answered(read)
        with _no_certificates():
            from watchdog.service.main_loop import Daemon  # lazily: half a second that `--check` need not take

        async def live(settings: config.Settings, *parts: Any) -> int:
            return await Daemon(settings, read, *parts).run()

        run = partial(_run, live)
        if options.daemonize:
            return daemonize.run_detached(settings, options.pidfile, run)
        return run(settings, ServiceManager(os.environ))
    except WatchdogError as error:
        if not isinstance(error.__cause__, _Logged):
            for line in str(error).splitlines():
                print(f"agent-watchdogd: {line}", file=sys.stderr)
        if not options.check:
            _write_down(error)
        return error.exit_code


def _write_down(error: WatchdogError) -> None:
    """Write a start error that came before the log was set up to the log file of the settings, if that is safe.

    Otherwise the log is stderr, where the command has already printed it.
    """
    settings = error.rest if isinstance(error, ConfigError) else None
    if not isinstance(settings, config.Settings) or not settings.log.file or "log.file" in str(error):
        return
    with suppress(WatchdogError, OSError):
        sink = logger.set_up(settings.log.level, settings.log.format, settings.log.file)
        try:
            logger.get_logger().event("daemon.failed", error=str(error))
        finally:
            logger.finish(sink)


class _Logged(Exception):
    """The cause of an error that was already logged on the command's stream, so that it is not printed twice."""


@contextmanager
def _no_certificates() -> Iterator[None]:
    """For the import of aiohttp, which reads the host's certificates twice, for a client that we do not use."""
    setattr(ssl.SSLContext, "set_default_verify_paths", lambda _context: None)  # noqa: B010 - the base class has it
    try:
        yield
    finally:
        delattr(ssl.SSLContext, "set_default_verify_paths")


def _answered(look: Callable[[], T]) -> T:
    """The result or exception of `look`, or Unanswered, which names what hangs: a file, a directory, NSS."""
    try:
        return threads.call_now(_LOOK, look, PATIENCE)
    except threads.Unanswered:
        names = [what for what in threads.overdue() if what != _LOOK] or ["what the configuration leads to"]
        raise threads.Unanswered(f"no answer within {PATIENCE:g} s: {', '.join(names)}") from None


def leave(status: int) -> NoReturn:
    """Exit without Python's finalization, which joins threads and flushes pipes whose reader may have stopped."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(WatchdogError, OSError, ValueError):
            threads.call_now("standard output", stream.flush, LAST_WORDS)
    os._exit(status)


def build() -> argparse.ArgumentParser:
    """The parser of the daemon's options."""
    parser = _Parser(
        prog="agent-watchdogd",
        description="Watches AI coding agents, kills stalled ones with their whole process trees, and cleans up.",
        epilog="Exit status: 0 stopped on request, 64 usage, 70 its scheduler died, 75 already running, registry"
        " unavailable or too few descriptors, 78 configuration, or a directory that is not safe.",
    )
    parser.add_argument(
        "--version", action="version", version=f"agent-watchdogd {importlib.metadata.version('agent-watchdogd')}"
    )
    parser.add_argument("--config", metavar="FILE", help="the TOML file (default: $AGENT_WATCHDOG_CONFIG, /etc or XDG)")
    parser.add_argument("--check", action="store_true", help="report every fault of the configuration, and exit")
    parser.add_argument(
        "--observe", action="store_true", help="decide and log as usual, but send no signal and clean up nothing"
    )
    parser.add_argument(
        "--daemonize",
        action="store_true",
        help="run in the background, for hosts without systemd; returns when the daemon is ready, or with its error",
    )
    parser.add_argument(
        "--pidfile",
        metavar="FILE",
        help="with --daemonize: the file for its pid (default: agent-watchdog.pid beside the sockets)",
    )
    return parser


def _check(read: Callable[[], config.Settings], supervisor: ServiceManager) -> int:
    """`--check`, usable as ExecStartPre=: check the file and what it refers to."""
    problems: list[str] = []
    settings: object
    try:
        settings = read()
    except ConfigError as error:
        problems, settings = list(error.problems), error.rest  # the rest of it is checked all the same
    refusals: list[Callable[[], None]] = [_refuse_name_clash]
    if isinstance(settings, config.Settings):
        refusals.append(partial(supervisor.refuse_interval, settings.interval))
        told = check.about(problems)
        for words in check.warnings(settings):
            if check.about([words]).isdisjoint(told):
                print(f"agent-watchdogd: warning: {words}", file=sys.stderr)
        problems += [words for words in check.problems(settings) if check.about([words]).isdisjoint(told)]
    for refuse in refusals:
        try:
            refuse()
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    assert isinstance(settings, config.Settings)
    print(f"{check.where(settings)}: fine")
    return 0


def _reader(options: argparse.Namespace) -> Callable[[], config.Settings]:
    """Reads the file, now and at each reload, and overlays the options of the command line."""
    named = options.config or os.environ.get("AGENT_WATCHDOG_CONFIG")
    path = os.path.abspath(named) if named else None  # in the background the working directory is another

    said = False

    def read() -> config.Settings:
        nonlocal path, said
        if path is not None and not named and not os.path.lexists(path):
            raise ConfigError([f"{path}: is gone; put it back, or restart for all defaults"])
        settings = config.load(path)
        if said and not settings.config.model_fields_set:
            reason = "has become empty, like a file that is being written"
            raise ConfigError([f"{settings.file}: {reason}; set at least one key, or restart for all defaults"])
        said = bool(settings.config.model_fields_set)
        # after the first read, a default file that is missing at a reload does not mean "all defaults"
        path = settings.file or path
        if options.observe:
            settings = settings.observing()
        return daemonize.with_log_file(settings) if options.daemonize else settings

    return read


def _run(
    live: Callable[..., Coroutine[Any, Any, int]],
    settings: config.Settings,
    supervisor: ServiceManager,
    pid_file: PidFile | None = None,
) -> int:
    _refuse_name_clash()
    supervisor.refuse_interval(settings.interval)
    os.umask(0o077)
    _share_one_heap()
    ensure_directories(settings.state_dir, settings.runtime_dir)
    sink = logger.set_up(settings.log.level, settings.log.format, settings.log.file)
    faulthandler.enable()  # SIGABRT of systemd's watchdog leaves a traceback
    log = logger.get_logger()
    log.event("daemon.starting", pid=os.getpid(), config=settings.file or "defaults")
    if (taken := squatted(settings.runtime_dir)) is not None:
        log.event("daemon.runtime_dir_taken", path=settings.runtime_dir, why=taken)
    gc.freeze()  # see `bootstrap`
    gc.enable()
    try:
        return asyncio.run(live(settings, supervisor, log, sink, pid_file))
    except WatchdogError as error:
        log.event("daemon.failed", error=str(error))
        if settings.log.file and sink.health().error is None:
            raise
        raise error from _Logged()
    except Exception as error:  # noqa: BLE001 - an error of ours is logged, too, where Python would only print it
        log.event("daemon.failed", error=repr(error), exc_info=error)
        return 1
    finally:
        logger.finish(sink)


def _share_one_heap() -> None:
    """One malloc arena for all threads (mallopt(3)): glibc's eight per core kept 5 MB of freed blocks after 400 agents.

    The threads run Python, of which one at a time allocates anyway.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # musl has no arenas
        mallopt(M_ARENA_MAX, 1)


def _refuse_name_clash() -> None:
    """PyPI's `watchdog` overwrites our package silently when both are installed in one environment.

    Checked by that name: asking each distribution for its files, as `doctor` does, takes 30 ms and 1.4 MB.
    """
    with suppress(importlib.metadata.PackageNotFoundError):
        found = importlib.metadata.distribution("watchdog")
        other = f"{found.name} {found.version} too, which owns the same package"
        raise ConfigError([f"this environment holds {other}; use a separate one"])
