"""An owner's helper as a transient unit of systemd: how it is started, and how it is ended whole.

The daemon's own service may touch nothing but its directories, and its children inherit that; a unit of its own gets
none of it. `systemd-run --pipe` hands our pipes to the unit, so the helper speaks as a child would and sees when we are
gone; `--wait` lives as long as the unit does. Measured with systemd 252: 52 ms for a start.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchdog import children

SLICE = "agent-hooks.slice"
END_LIMIT = 5.0  # seconds that `systemctl kill` may take to be taken by systemd
AFTERWARDS = 15.0  # seconds beyond a lone helper's deadline until systemd ends its unit, whatever became of us
MANAGERS = ("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "NOTIFY_SOCKET", "SHELL", "MANAGERPID")
LIMITS = (
    "NoNewPrivileges=yes",
    "KillMode=control-group",  # what a hook leaves behind is ended with it
    "TimeoutStopSec=2",
    "OOMScoreAdjust=500",  # before an agent, and long before the daemon
    "TasksMax=512",
    "LimitCORE=0",
    "UMask=0077",
)


@dataclass(frozen=True, slots=True)
class Person:
    """Whom a unit runs as. Without an entry in passwd systemd knows no such user, and setpriv(1) changes the uid."""

    uid: int
    gid: int
    known: bool
    environment: Mapping[str, str]


def usable(managed: bool) -> bool:
    """Whether helpers are units here: root's daemon that a systemd started. `managed`: a service manager listens.

    /run/systemd/system: sd_booted(3). A user's daemon needs none, as its own service is not closed in.
    """
    return managed and os.geteuid() == 0 and os.path.isdir("/run/systemd/system")


def name_for(uid: int) -> str:
    """A name that no unit had before."""
    return f"agent-watchdog-helper-{uid}-{secrets.token_hex(6)}.service"


def start_argv(name: str, person: Person, command: Sequence[str], lifetime: float | None) -> list[str]:
    """The command that starts the unit and lives as long; `lifetime` in seconds, None: until its stdin ends."""
    properties = [*LIMITS, f"UnsetEnvironment={' '.join(MANAGERS)}"]
    if lifetime is not None:
        properties.append(f"RuntimeMaxSec={lifetime + AFTERWARDS:g}")
    become: list[str] = []
    if person.known:
        properties.append(f"User={person.uid}")
    else:
        ids = (f"--reuid={person.uid}", f"--regid={person.gid}", "--clear-groups", "--inh-caps=-all")
        become = ["setpriv", *ids, "--"]
    return [
        *("systemd-run", "--pipe", "--wait", "--collect", "--service-type=exec"),
        *(f"--unit={name}", f"--slice={SLICE}", f"--description=Helper of agent-watchdog for uid {person.uid}"),
        *(f"--property={line}" for line in properties),
        *(f"--setenv={key}={value}" for key, value in person.environment.items()),
        *("--", *become, *command),
    ]


async def end(name: str) -> None:
    """KILL for the whole unit. Raises nothing: at the worst it ends with its stdin, or at its RuntimeMaxSec."""
    null = asyncio.subprocess.DEVNULL
    with contextlib.suppress(OSError, TimeoutError):
        process = await children.start(
            "systemctl", "kill", "--signal=KILL", name, stdin=null, stdout=null, stderr=null, start_new_session=True
        )
        try:
            await asyncio.wait_for(process.wait(), END_LIMIT)
        except TimeoutError:
            process.kill()
