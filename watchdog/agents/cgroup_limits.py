"""Limits that root set on the units of a process, and that moving it to a cgroup of its own would lift.

Anyone who may start an agent can have the daemon move it: also out of a service whose memory, CPU, network or devices
root has limited, which no other program would do for that user. So look for limits first; a limited agent stays put.
"""

import re
from collections.abc import Iterator

from watchdog.host import children
from watchdog.processes import cgroups

ANSWER = 5.0  # seconds; `systemctl show` takes 10 ms
# systemd.resource-control(5): each property, with the value that means no limit. `systemctl show` leaves out properties
# that its version does not know.
NOTHING = {
    **dict.fromkeys(("MemoryMax", "MemoryHigh", "MemorySwapMax", "MemoryZSwapMax", "CPUQuotaPerSecUSec"), "infinity"),
    **dict.fromkeys(("AllowedCPUs", "AllowedMemoryNodes", "IPAddressAllow", "IPAddressDeny", "SocketBindAllow"), ""),
    **dict.fromkeys(("SocketBindDeny", "IPIngressFilterPath", "IPEgressFilterPath"), ""),
    **dict.fromkeys(("IOReadBandwidthMax", "IOWriteBandwidthMax", "IOReadIOPSMax", "IOWriteIOPSMax"), ""),
    **dict.fromkeys(("BPFProgram", "DeviceAllow"), ""),
    "RestrictNetworkInterfaces": "~",  # none is denied; systemd 252 prints it for every unit
    "DevicePolicy": "auto",
}
# The same for files of cgroup v2 (Documentation/admin-guide/cgroup-v2.rst); an empty file means no limit.
FILES = {
    **dict.fromkeys(("memory.max", "memory.high", "memory.swap.max", "pids.max", "cpu.max"), "max"),
    **dict.fromkeys(("io.max", "cpuset.cpus", "cpuset.mems"), ""),
}
_UNIT = re.compile(r"[\w:.\\@-]+\.(?:service|scope|slice)")


def units_of(path: str, uid: int) -> list[str]:
    """The units above a process in that cgroup, except those of its user's slice and below its user manager."""
    found = []
    for name in path.split("/"):
        if name.startswith("user@"):
            break
        if _UNIT.fullmatch(name) and name not in ("user.slice", f"user-{uid}.slice"):
            found.append(name)
    return found


async def of_units(path: str, uid: int) -> str | None:
    """What systemd says about limits that leaving this cgroup would lift, as text; None: none. Raises OSError."""
    units = units_of(path, uid)
    if not units:
        return None
    # Each service has a default limit on the number of tasks; the user's slice has one as well.
    usual = dict(_properties(await _asked("--property=DefaultTasksMax"))).get("DefaultTasksMax", "infinity")
    text = await _asked(f"--property=Id,TasksMax,{','.join(NOTHING)}", "--", *units)
    for block in text.split("\n\n"):
        told = dict(_properties(block))
        for name, value in told.items():
            if value not in ("", NOTHING.get(name, value)) or (name == "TasksMax" and _less(value, usual)):
                return f"it would leave the limits of {told.get('Id', 'its unit')} ({name})"
    return None


def of_cgroups(path: str) -> str | None:
    """The same by the files of cgroup v2, where the daemon itself makes cgroups. Raises OSError."""
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
