"""What `doctor` inspects, as values: collected in `doctor`, interpreted in `diagnosis`."""

import os
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

Json = dict[str, object]


@dataclass(slots=True)
class Seen:
    """The collected values; None: could not be determined, which by itself is not a finding."""

    uid: int = 0
    distributions: list[str] = field(default_factory=list)  # distributions that provide the package `watchdog` here
    interpreter: str = ""
    interpreter_closed: str | None = None  # the first component of its path that other uids cannot traverse
    socket: str = ""
    socket_problem: str | None = None  # why its directory cannot be trusted
    status: Json | None = None  # the daemon's own answer
    silence: str | None = None  # why the daemon gave no answer
    living: int | None = None  # pid of a daemon that gives no answer but holds its lock
    halted: bool = False  # whether it is stopped (proc_pid_stat(5): T or t)
    last_words: str | None = None  # without a daemon: why the service exited, from its journal
    others: list[str] = field(default_factory=list)  # other control sockets with a daemon
    left_to_us: dict[str, list[str]] = field(default_factory=dict)  # by socket: agents that other daemons leave to ours
    user_daemons: list[tuple[int, str, int]] = field(default_factory=list)  # for root: uid, socket, its agents here
    config_file: str | None = None  # the file that was named on the command line
    config: list[str] = field(default_factory=list)  # problems of the file according to `agent-watchdogd --check`
    pager: list[str] = field(default_factory=list)  # the words that run [notify]'s command by hand, where it fails
    config_warnings: list[str] = field(default_factory=list)
    config_unknown: str | None = None  # why that check gave no result
    unanswered: list[str] = field(default_factory=list)  # checks of ours that hang
    sweep_age: float | None = None  # seconds since the last sweep
    systemd: bool = True  # it runs here, and manages the services of the daemon's user: remedies name what can be typed
    unit: tuple[str, str] | None = None  # is-enabled, is-active; None: no systemd here
    bus: bool | None = None  # the system bus answers; None: no systemd
    linger: bool | None = None  # for a normal user with systemd
    hidepid: str | None = None  # the option of /proc's mount
    pressure: bool = True  # /proc/pressure is there
    own_cgroup: str | None = None  # the cgroup of agents of `run`: "scope", "leaf", or "none: " and why
    kernel: tuple[int, int] = (99, 0)
    features: dict[str, bool] = field(default_factory=dict)  # kernel features by name: whether they work here
    places: dict[str, os.stat_result] = field(default_factory=dict)  # the daemon's directories and its registry
    private: tuple[str, ...] = ()  # those of the places that must be closed to other users
    open_files: int | None = None  # the daemon's soft limit, else ours
    git: str | None = "git"  # the program's directory
    containers: list[str] = field(default_factory=list)  # container programs found
    registry_bytes: int | None = None
    wal_bytes: int | None = None  # of the registry's write-ahead log
    wal_readers: list[int] = field(default_factory=list)  # processes other than the daemon that hold a read lock
    trash_bytes: int | None = None
    trash: list[str] = field(default_factory=list)


def sweep_age(status: Json, now: datetime) -> float | None:
    """Seconds since the daemon's last completed sweep, as reported; None: it has completed none."""
    with suppress(ValueError):
        if isinstance(last := status.get("last_sweep"), str):
            return (now - datetime.fromisoformat(last)).total_seconds()
    return None


def has_systemd(uid: object) -> bool:
    """Whether `systemctl` (of a user but root: `--user`) works here for that user: sd_booted(3), and its manager."""
    return os.path.isdir("/run/systemd/system") and (uid == 0 or os.path.isdir(f"/run/user/{uid}/systemd"))
