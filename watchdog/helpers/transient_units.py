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

from watchdog.host import children

SLICE = "agent-hooks.slice"
END_LIMIT = 5.0  # seconds that `systemctl kill` may take to be taken by systemd
AFTERWARDS = 15.0  # seconds beyond a lone helper's deadline until systemd ends its unit, whatever became of us
MANAGERS = ("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "NOTIFY_SOCKET", "SHELL", "MANAGERPID")
# For each helper, the operator's and owners' own commands too. A command may reach the network and run what it likes:
# it is theirs, and its deadline ends it whole.
LIMITS = (
    "NoNewPrivileges=yes",
    "KillMode=control-group",  # what a hook leaves behind is ended with it
    "TimeoutStopSec=2",
    "OOMScoreAdjust=500",  # before an agent, and long before the daemon
    "TasksMax=512",
    "LimitCORE=0",
    "UMask=0077",
)
# For helpers that do our own work. None of these makes a mount namespace. With ProtectSystem=strict and ReadWritePaths=
# each registered place is a mount of its own: the rename of a tree into its trash fails (EBUSY for a mount point, EXDEV
# between two), and a place "is a mount point" and refused. Landlock confines the parsers instead.
CONFINED = (
    "CPUQuota=200%",
    "IPAddressDeny=any",
    "KeyringMode=private",
    "LockPersonality=yes",
    "RestrictAddressFamilies=AF_UNIX",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service @sandbox",
    "SystemCallFilter=~@clock @debug @keyring @module @mount @obsolete @raw-io @reboot @swap",
    "SystemCallErrorNumber=EPERM",
)
# The shared helper's parsers have 512 MiB each, a git at work on a million files 0.75 (`owner.confinement`). Cached
# files count as well, and are given back under pressure.
MEMORY = {False: "1G", True: "4G"}
# Beside what it changes its uid by, which goes with that. Root's own helper: `owner.confinement.ROOT_WORKS`.
BECOMES = "CAP_SETUID CAP_SETGID CAP_SETPCAP"
ROOTS = {False: "CAP_DAC_READ_SEARCH CAP_SYS_PTRACE", True: ""}
ROOTS[True] = f"{ROOTS[False]} CAP_DAC_OVERRIDE CAP_FOWNER CAP_CHOWN"


@dataclass(frozen=True, slots=True)
class Account:
    """Whom a helper works as; `known`: there is an entry in passwd."""

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


def start_argv(name: str, person: Account, command: Sequence[str], lifetime: float | None) -> list[str]:
    """The command that starts the unit and lives as long; `lifetime` in seconds, None: until its stdin ends.

    The unit starts as root and `command` changes its uid itself: with User= that user could trace it while its
    interpreter starts. It needs no entry in passwd.
    """
    properties = [*LIMITS, f"UnsetEnvironment={' '.join(MANAGERS)}"]
    if "--command" not in command:
        alone = lifetime is not None
        capabilities = BECOMES if person.uid else ROOTS[alone]
        properties += [*CONFINED, f"MemoryMax={MEMORY[alone]}", f"CapabilityBoundingSet={capabilities}"]
    if lifetime is not None:
        properties.append(f"RuntimeMaxSec={lifetime + AFTERWARDS:g}")
    return [
        *("systemd-run", "--pipe", "--wait", "--collect", "--service-type=exec"),
        *(f"--unit={name}", f"--slice={SLICE}", f"--description=Helper of agent-watchdog for uid {person.uid}"),
        *(f"--property={line}" for line in properties),
        *(f"--setenv={key}={value}" for key, value in person.environment.items()),
        *("--", *command),
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
