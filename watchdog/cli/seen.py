"""What `doctor` looks at, as values: the looks are in `doctor`, what they mean in `diagnosis`."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

Json = dict[str, object]


@dataclass(slots=True)
class Seen:
    """What was looked at; None: could not be seen, which is no finding by itself."""

    uid: int = 0
    distributions: list[str] = field(default_factory=list)  # that own the package `watchdog` here
    interpreter: str = ""
    interpreter_closed: str | None = None  # the first part of its path that other uids cannot pass
    socket: str = ""
    socket_problem: str | None = None  # why its directory cannot be trusted
    status: Json | None = None  # the daemon's own answer
    silence: str | None = None  # why there is none
    living: int | None = None  # of a daemon that gives no answer: its pid, as a lock of its own is held
    halted: bool = False  # and it is stopped (proc_pid_stat(5): T or t)
    last_words: str | None = None  # why the service ended, as its journal has it; where there is no daemon
    others: list[str] = field(default_factory=list)  # further control sockets that a daemon answers on
    left_to_us: dict[str, list[str]] = field(default_factory=dict)  # by their sockets: agents that are ours, they say
    user_daemons: list[tuple[int, str, int]] = field(default_factory=list)  # for root: uid, socket, its agents here
    config_file: str | None = None  # the file that was named on the command line
    config: list[str] = field(default_factory=list)  # problems of the file, as `agent-watchdogd --check` tells them
    pager: list[str] = field(default_factory=list)  # the words that run [notify]'s command by hand, where it fails
    config_warnings: list[str] = field(default_factory=list)
    config_unknown: str | None = None  # why that gave no result
    unanswered: list[str] = field(default_factory=list)  # looks of our own that did not come back
    sweep_age: float | None = None  # seconds since the last sweep
    systemd: bool = True  # it runs here, and manages the services of the daemon's user: remedies name what can be typed
    unit: tuple[str, str] | None = None  # is-enabled, is-active; None: no systemd here
    bus: bool | None = None  # the system bus answers; None: no systemd
    linger: bool | None = None  # of a normal user with a systemd
    hidepid: str | None = None  # the option of /proc's mount
    pressure: bool = True  # /proc/pressure is there
    own_cgroup: str | None = None  # what agents of `run` get: "scope", "leaf", or "none: " and why
    kernel: tuple[int, int] = (99, 0)
    features: dict[str, bool] = field(default_factory=dict)  # of the kernel, by name, whether they work here
    places: dict[str, os.stat_result] = field(default_factory=dict)  # the daemon's directories and its registry
    private: tuple[str, ...] = ()  # of these, what other users may not look into
    open_files: int | None = None  # soft limit of the daemon, else ours
    git: str | None = "git"  # where the program is
    containers: list[str] = field(default_factory=list)  # programs that run some
    registry_bytes: int | None = None
    wal_bytes: int | None = None  # of the registry's write-ahead log
    wal_readers: list[int] = field(default_factory=list)  # other processes than the daemon that hold a part of it
    trash_bytes: int | None = None
    trash: list[str] = field(default_factory=list)


def sweep_age(status: Json, now: datetime) -> float | None:
    """Seconds since the daemon's last sweep, as it says; None: it has ended none yet."""
    with suppress(ValueError):
        if isinstance(last := status.get("last_sweep"), str):
            return (now - datetime.fromisoformat(last)).total_seconds()
    return None


def has_systemd(uid: object) -> bool:
    """Whether `systemctl` (of a user but root: `--user`) works here for that user: sd_booted(3), and its manager."""
    return os.path.isdir("/run/systemd/system") and (uid == 0 or os.path.isdir(f"/run/user/{uid}/systemd"))
