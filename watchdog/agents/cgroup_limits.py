"""What root has laid on the units that a process is in, and what a cgroup of its own elsewhere would lift.

Whoever may start an agent has itself moved by us: out of a service whose memory, processors, network or devices root
has limited, which nobody else would do for it. So that is looked for first, and an agent that it holds goes without.
"""

import re
from collections.abc import Iterator

from watchdog.host import children
from watchdog.processes import cgroups

ANSWER = 5.0  # seconds; `systemctl show` takes 10 ms
# systemd.resource-control(5): each property, and the value that limits nothing. One that a version does not know is not
# told by it.
NOTHING = {
    **dict.fromkeys(("MemoryMax", "MemoryHigh", "MemorySwapMax", "MemoryZSwapMax", "CPUQuotaPerSecUSec"), "infinity"),
    **dict.fromkeys(("AllowedCPUs", "AllowedMemoryNodes", "IPAddressAllow", "IPAddressDeny", "SocketBindAllow"), ""),
    **dict.fromkeys(("SocketBindDeny", "IPIngressFilterPath", "IPEgressFilterPath"), ""),
    **dict.fromkeys(("IOReadBandwidthMax", "IOWriteBandwidthMax", "IOReadIOPSMax", "IOWriteIOPSMax"), ""),
    **dict.fromkeys(("BPFProgram", "DeviceAllow"), ""),
    "RestrictNetworkInterfaces": "~",  # none is denied; systemd 252 says so of every unit
    "DevicePolicy": "auto",
}
# The same of cgroup v2 (Documentation/admin-guide/cgroup-v2.rst); an empty file limits nothing.
FILES = {
    **dict.fromkeys(("memory.max", "memory.high", "memory.swap.max", "pids.max", "cpu.max"), "max"),
    **dict.fromkeys(("io.max", "cpuset.cpus", "cpuset.mems"), ""),
}
_UNIT = re.compile(r"[\w:.\\@-]+\.(?:service|scope|slice)")


def units_of(path: str, uid: int) -> list[str]:
    """The units above a process in that cgroup, but for those of its user's slice, and what its user manager made."""
    found = []
    for name in path.split("/"):
        if name.startswith("user@"):
            break
        if _UNIT.fullmatch(name) and name not in ("user.slice", f"user-{uid}.slice"):
            found.append(name)
    return found


async def of_units(path: str, uid: int) -> str | None:
    """What systemd says that leaving that cgroup would lift, in words; None: nothing. Raises OSError."""
    units = units_of(path, uid)
    if not units:
        return None
    # Of each service the number of tasks is limited, by a default; the user's slice has a limit as well.
    usual = dict(_properties(await _asked("--property=DefaultTasksMax"))).get("DefaultTasksMax", "infinity")
    text = await _asked(f"--property=Id,TasksMax,{','.join(NOTHING)}", "--", *units)
    for block in text.split("\n\n"):
        told = dict(_properties(block))
        for name, value in told.items():
            if value not in ("", NOTHING.get(name, value)) or (name == "TasksMax" and _less(value, usual)):
                return f"it would leave the limits of {told.get('Id', 'its unit')} ({name})"
    return None


def of_cgroups(path: str) -> str | None:
    """The same where cgroups are ours to make: what is written there. Raises OSError."""
    while path not in ("", "/"):
        for name, nothing in FILES.items():
            value = cgroups.value_of(path, name)
            if value and value.split()[0] != nothing:
                return f"it would leave the limits of {path} ({name})"
        path = path.rpartition("/")[0]
    return None


def _less(value: str, usual: str) -> bool:
    return value.isdigit() and usual.isdigit() and int(value) < int(usual)


def _properties(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals:
            yield name, value


async def _asked(*words: str) -> str:
    status, text = await children.finished("systemctl", "show", "--no-pager", *words, seconds=ANSWER)
    if status:
        raise OSError(f"systemctl show: exit {status}")
    return text.decode("utf-8", "replace")
