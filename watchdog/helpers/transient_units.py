"""An owner's helper as a transient systemd unit: how to start it, and how to kill all of it.

The daemon's own service may write to nothing but its directories, and its children inherit that; a separate unit does
not. `systemd-run --pipe` passes our pipes to the unit, so the helper talks to us like a child and notices when we exit;
with `--wait`, `systemd-run` lives as long as the unit. Measured with systemd 252: a start takes 52 ms.
"""

import asyncio
import contextlib
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from watchdog.host import children

SLICE = "agent-hooks.slice"
END_LIMIT = 5.0  # seconds for systemd to accept a `systemctl kill`
AFTERWARDS = 15.0  # seconds after a single-call helper's deadline at which systemd ends its unit, even without us
MANAGERS = ("INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "NOTIFY_SOCKET", "SHELL", "MANAGERPID")
# For all helpers, including those that run commands of the operator or of owners. A command may use the network and
# start processes: it is their own, and its deadline kills all of it.
LIMITS = (
    "NoNewPrivileges=yes",
    "KillMode=control-group",  # kills the processes that a hook leaves behind
    "TimeoutStopSec=2",
    "OOMScoreAdjust=500",  # killed before an agent, and long before the daemon
    "TasksMax=512",
    "LimitCORE=0",
    "UMask=0077",
)
# For helpers that run our own code. None of these options creates a mount namespace: with ProtectSystem=strict and
# ReadWritePaths= each registered place would be a mount of its own, so that renaming a tree into its trash fails (EBUSY
# for a mount point, EXDEV between two), and a place is refused as a mount point. Landlock confines the parsers instead.
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
# The shared helper's parsers have 512 MiB each; git needs 0.75 GiB for a million files (`owner.confinement`). The page
# cache counts as well, but is reclaimed under pressure.
MEMORY = {False: "1G", True: "4G"}
# The capabilities to change its uid, which it then loses. For root's own helper: `owner.confinement.ROOT_WORKS`.
BECOMES = "CAP_SETUID CAP_SETGID CAP_SETPCAP"
ROOTS = {False: "CAP_DAC_READ_SEARCH CAP_SYS_PTRACE", True: ""}
ROOTS[True] = f"{ROOTS[False]} CAP_DAC_OVERRIDE CAP_FOWNER CAP_CHOWN"


@dataclass(frozen=True, slots=True)
class Account:
    """The account that a helper runs as; `known`: it has an entry in passwd."""

    uid: int
    gid: int
    known: bool
    environment: Mapping[str, str]


def usable(managed: bool) -> bool:
    """Whether helpers are units: only for root's daemon under systemd. `managed`: a service manager supervises us.

    /run/systemd/system: sd_booted(3). A user's daemon needs no units, as its own service is not sandboxed.
    """
    return managed and os.geteuid() == 0 and os.path.isdir("/run/systemd/system")


def name_for(uid: int) -> str:
    """A unique unit name."""
    return f"agent-watchdog-helper-{uid}-{secrets.token_hex(6)}.service"


def start_argv(name: str, person: Account, command: Sequence[str], lifetime: float | None) -> list[str]:
    """The command that starts the unit and waits for it; `lifetime` in seconds, None: until its stdin is closed.

    The unit starts as root, and `command` changes its own uid: with User=, that user could trace it while its
    interpreter starts. The uid needs no entry in passwd.
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
    """Send KILL to the whole unit. Never raises: the unit also ends with its stdin, or at its RuntimeMaxSec."""
    null = asyncio.subprocess.DEVNULL
    with contextlib.suppress(OSError, TimeoutError):
        process = await children.start(
            "systemctl", "kill", "--signal=KILL", name, stdin=null, stdout=null, stderr=null, start_new_session=True
        )
        try:
            await asyncio.wait_for(process.wait(), END_LIMIT)
        except TimeoutError:
            process.kill()
