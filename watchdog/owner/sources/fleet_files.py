"""Reads the files of one apra-fleet task, and checks whether its wrapper is alive. Read-only.

Tests: tests/owner/sources/test_fleet_tasks.py.
"""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from watchdog.core.sd_notify import printable
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import paths
from watchdog.owner.sources import files, kernel

RUNNING, ENDED = ("running", "retrying"), ("completed", "failed", "cancelled")
TASK = re.compile(r"task-[a-z0-9]{4,20}")  # the program's own pattern
MOST_BYTES = 65536  # per file; real ones have 200
Everybody = Callable[[], dict[int, kernel.Process]]  # returns this uid's processes, by a scan of /proc


@dataclass(frozen=True, slots=True)
class Task:
    """One task, as its files describe it."""

    task_id: str
    status: str
    started: str
    retries: int
    pid: int | None  # None: no pid file, or no pid in it
    written: float | None  # when the pid file was written; epoch seconds
    changed: float  # when the status was written
    updated: str  # the same according to the program (UTC)
    uid: int

    @property
    def token(self) -> str:
        """Identifies the run: its start, and its pid file."""
        return f"{self.started} {self.pid} {self.written}"

    def is_run(self, token: str) -> bool:
        """Whether the token means this run; the wrapper removes the pid file before it writes its last status."""
        return self.token == token or (self.written is None and token.split(" ")[0] == self.started)


def opened(path: str) -> int:
    """The directory of all tasks. Raises OSError; OwnerCallFailed for another uid's."""
    directory = os.open(path, paths.READ)
    if os.fstat(directory).st_uid != os.geteuid():
        os.close(directory)
        raise OwnerCallFailed("not_ours", f"{path} belongs to another uid")
    return directory


@contextmanager
def directory_of(top: int, key: str) -> Iterator[str]:
    """The task's directory, under a name that cannot be redirected.

    Raises FileNotFoundError; OwnerCallFailed for a link, a file, another uid's, or a mount.
    """
    try:
        directory = paths.step_inside(top, key)
    except PathRefused as refused:
        raise OwnerCallFailed(refused.reason, str(refused)) from None
    try:
        if os.fstat(directory).st_uid != os.geteuid():
            raise OwnerCallFailed("not_ours", f"{key} belongs to another uid")
        yield f"/proc/self/fd/{directory}"
    finally:
        os.close(directory)


def read_task(place: str, key: str) -> Task:
    """The task in these files. Raises OSError, OwnerCallFailed (`not_understood`: half-written, or another layout)."""
    text, like = files.read(f"{place}/status.json", MOST_BYTES)
    told = files.parsed(f"{key}/status.json", text)
    told = told if isinstance(told, dict) else {}
    status, started, retries = told.get("status"), told.get("started"), told.get("retries")
    if told.get("taskId") != key or status not in (*RUNNING, *ENDED) or not isinstance(started, str):
        raise OwnerCallFailed("not_understood", f"the status of {key} is not understood")
    if not {"updated", "exitCode"} <= told.keys():
        raise OwnerCallFailed("not_understood", f"the status of {key} is not understood")
    pid, written, uid = None, None, like.st_uid
    try:
        number, its = files.read(f"{place}/task.pid", 64)
        written, uid = its.st_mtime, its.st_uid
        pid = kernel.as_pid(int(number)) if re.fullmatch(r"[0-9]{1,10}\s*", number, re.ASCII) else None
    except FileNotFoundError:
        pass
    return Task(
        key,
        str(status),
        printable(started),
        retries if type(retries) is int else 0,
        pid,
        written,
        like.st_mtime,
        str(told["updated"]),
        uid,
    )


def lives(task: Task, everybody: Everybody = kernel.own_processes) -> bool:
    """Whether the wrapper may be alive: a process with that pid that began before it was written, or runs the script.

    Without a pid any process that runs this task's script counts.
    """
    if task.pid is None or task.written is None:
        return is_run(task.task_id, everybody)
    process = kernel.process(task.pid)
    if process is None:
        return False
    return kernel.began(process.ticks) <= task.written + 1 or runs(task.task_id, process)


def runs(key: str, process: kernel.Process) -> bool:
    """Whether it was started with this task's own script; that is independent of clock steps."""
    return any(word.endswith(f"/{key}/run.sh") for word in process.words[:4])


def is_run(key: str, everybody: Everybody = kernel.own_processes) -> bool:
    """Whether any process of this uid runs this task's script."""
    return any(runs(key, one) for one in everybody().values())
