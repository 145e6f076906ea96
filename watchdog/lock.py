"""One daemon per runtime directory and per state directory; and how the one that runs is talked to."""

import fcntl
import os
import shlex
import sys
from contextlib import AsyncExitStack
from datetime import timedelta

from watchdog.config import Settings
from watchdog.errors import AlreadyRunning
from watchdog.places import places_for


def take_lock(settings: Settings, held: AsyncExitStack) -> None:
    """Hold both directories until `held` ends, by flock(2): it vanishes with the process. Raises AlreadyRunning."""
    for directory in dict.fromkeys((settings.runtime_dir, settings.state_dir)):
        path = os.path.join(directory, "agent-watchdogd.lock")
        file = held.enter_context(open(path, "a+", encoding="ascii"))  # noqa: SIM115 - `held` closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            who = file.read().strip() or "of unknown pid"
            raise AlreadyRunning(
                f"agent-watchdogd {who} runs here already (it holds {file.name});"
                f" talk to it: {client_path()} status{socket_option(settings)}"
            ) from None
        file.truncate(0)
        file.write(f"pid {os.getpid()}\n")
        file.flush()


def client_path() -> str:
    """The client beside this daemon, ready for a shell."""
    return shlex.quote(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "agent-watchdog"))


def socket_option(settings: Settings) -> str:
    """` --socket PATH` where the client would not find this daemon by itself."""
    default = places_for(os.geteuid(), os.environ).runtime_dir
    return "" if settings.runtime_dir == default else f" --socket {shlex.quote(settings.runtime_dir)}/control.sock"


def invitation(settings: Settings) -> str:
    """The line to paste into a second terminal, with full path."""
    option, mode = socket_option(settings), " (it only observes)" if settings.observe else ""
    every = settings.interval / timedelta(seconds=1)
    return (
        f"agent-watchdogd watches{mode}, every {every:g} s. In another terminal:\n"
        f"  {client_path()} run{option} --name alpha --stall-after 120s -- ./agent.sh\n"
        f"  {client_path()} list{option}"
    )
