"""apra-fleet's long running tasks: a directory `task-<id>` each, below `~/.fleet-tasks`, kept by a bash wrapper.

- `task.pid` holds the wrapper's pid, from right after its start until its end. The pid has no identity: whose process
  it is, is told by when the file was written, or by the words of a process that runs this task's own `run.sh`.
- `status.json` is one line: taskId, status (running, retrying, completed, failed), started, updated, exitCode, retries.
- `activity` is touched every 300 s by a loop beside the command, also while the command hangs: a sign of life of the
  wrapper, no progress. What the command writes goes to `task.log`.

The wrapper is the agent's main process: it is ended before the command, which it would start again. Its death by a
signal leaves `running` (or `retrying`) and the pid file for ever, which `forget` puts right. The status `cancelled`
was asked for in the program's own tracker and is in no release (0.4.2): its readers show a status as it stands.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from signal import Signals

from watchdog.core.notify import printable
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import paths
from watchdog.owner.sources import files, kernel
from watchdog.owner.sources.base import MOST_ENTRIES, Became, End, Entry, Forgotten

RHYTHM = 660.0  # seconds without a touch of `activity` that are nothing unusual: twice its 300, and a minute
RUNNING, ENDED = ("running", "retrying"), ("completed", "failed", "cancelled")
TASK = re.compile(r"task-[a-z0-9]{4,20}")  # as the program itself checks it
MOST_BYTES = 65536  # of one file; those that were seen have 200


@dataclass(frozen=True, slots=True)
class Task:
    """One directory, as its files tell of it now."""

    task_id: str
    status: str
    started: str
    retries: int
    pid: int | None  # None: there is no pid file, or no pid in it
    written: float | None  # when the pid file was; epoch seconds
    uid: int

    @property
    def token(self) -> str:
        """Which run of it: when it began, and its pid file."""
        return f"{self.started} {self.pid} {self.written}"

    def is_run(self, token: str) -> bool:
        """Whether that token is of this run; its wrapper takes the pid file away before it writes its last status."""
        return self.token == token or (self.written is None and token.split(" ")[0] == self.started)


def discover(path: str) -> list[Entry]:
    """Every task that runs. Raises OSError, OwnerCallFailed; a directory that is not there holds none."""
    try:
        top = _opened(path)
    except FileNotFoundError:
        return []
    try:
        members = _members()
        names = [name for name in sorted(os.listdir(top)) if TASK.fullmatch(name)]
        entries = (entry for name in names if (entry := _entry(path, top, name, members)) is not None)
        return [entry for entry, _ in zip(entries, range(MOST_ENTRIES), strict=False)]
    finally:
        os.close(top)


def forget(path: str, key: str, token: str, end: End) -> Forgotten:
    """The task's last status, then its pid file away; the rest of the directory stays for the program's retention.

    Raises OSError, OwnerCallFailed: `alive` while the wrapper is there, `not_understood`.
    """
    if not TASK.fullmatch(key):
        raise OwnerCallFailed("not_understood", f"{key!r} names no task")
    try:
        top = _opened(path)
        try:
            with _directory(top, key) as place:
                return _close(place, key, token, end)
        finally:
            os.close(top)
    except FileNotFoundError:
        return Forgotten(Became.GONE, f"{key} is not there")


def _close(place: str, key: str, token: str, end: End) -> Forgotten:
    task = _read(place, key)
    if task.status in ENDED and task.written is None:
        return Forgotten(Became.GONE, f"{key} is {task.status} already")
    if not task.is_run(token):
        return Forgotten(Became.CHANGED, f"{key} is another run by now")
    if _lives(task):
        raise OwnerCallFailed("alive", f"the wrapper of {key} is there yet: pid {task.pid}")
    status = task.status
    if status in RUNNING:
        status = _status(end)
        values: dict[str, object] = {"status": status, "updated": _utc(end.ended_at), "exitCode": _exit_code(end)}
        files.change(f"{place}/status.json", lambda text: _with_values(text, values))
    files.remove(f"{place}/task.pid", stat.S_ISREG)
    return Forgotten(Became.DONE, f"{key} is {status}, and its pid file is gone")


def _with_values(text: str, values: dict[str, object]) -> str:
    for name, value in values.items():
        text = files.with_value(text, value, name)
    return text


def _status(end: End) -> str:
    if end.task_status == "cancelled" or end.status in ("stopped", "killed"):
        return "cancelled"
    return "completed" if end.status == "completed" else "failed"


def _exit_code(end: End) -> int | None:
    """As bash has it: 128 and the signal's number."""
    if end.exit_code is None and end.signal is not None and end.signal in Signals.__members__:
        return 128 + Signals[end.signal]
    return end.exit_code


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _lives(task: Task) -> bool:
    """Whether the wrapper may be there: a process of that pid which began before it was written down, or runs it."""
    if task.pid is None or task.written is None or (process := kernel.process(task.pid)) is None:
        return False
    return kernel.began(process.ticks) <= task.written + 1 or _runs(task, process)


def _runs(task: Task, process: kernel.Process) -> bool:
    """Whether it was started with this task's own script; a step of the clock cannot hide that."""
    return any(word.endswith(f"/{task.task_id}/run.sh") for word in process.words[:4])


def _opened(path: str) -> int:
    directory = os.open(path, paths.READ)
    if os.fstat(directory).st_uid != os.geteuid():
        os.close(directory)
        raise OwnerCallFailed("not_ours", f"{path} belongs to another uid")
    return directory


@contextmanager
def _directory(top: int, key: str) -> Iterator[str]:
    """The task's directory by a name that no exchange leads elsewhere.

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


def _read(place: str, key: str) -> Task:
    """What its files say. Raises OSError, OwnerCallFailed (`not_understood`: half written, or of another layout)."""
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
    return Task(key, str(status), printable(started), retries if type(retries) is int else 0, pid, written, uid)


def _entry(path: str, top: int, name: str, members: dict[str, str]) -> Entry | None:
    """None: it does not run, or its files are just changing, or not understood."""
    try:
        with _directory(top, name) as place:
            task = _read(place, name)
            beat = _touched(f"{place}/activity")
    except (OSError, OwnerCallFailed):
        return None
    if task.status not in RUNNING:
        return None
    process = None if task.pid is None else kernel.process(task.pid)
    ours = process is not None and _runs(task, process)
    cwd = _cwd(task) if ours or _lives(task) else None
    member = members.get(cwd or "")
    notes = [f"member {member}" if member else "", f"retry {task.retries}" if task.status == "retrying" else ""]
    return Entry(
        key=name,
        token=task.token,
        name=name,
        uid=task.uid,
        pid=task.pid,
        ticks=process.ticks if process is not None and ours else None,
        boot_id=kernel.this_boot() if ours else None,
        since=task.written,
        type="fleet-task",
        task=name,
        cwd=cwd,
        beat=beat,
        promise=RHYTHM,
        state="working",
        note=", ".join(note for note in notes if note),
        log=os.path.join(path, name, "task.log"),
    )


def _touched(path: str) -> str | None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return str(status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def _cwd(task: Task) -> str | None:
    """Where the wrapper works: the member's folder."""
    try:
        return os.readlink(f"/proc/{task.pid}/cwd")
    except OSError:
        return None


def _members() -> dict[str, str]:
    """Names of members by their folders, from the program's `registry.json`. Nothing else of that file is kept."""
    data = os.environ.get("APRA_FLEET_DATA_DIR") or os.path.expanduser("~/.apra-fleet/data")
    try:
        told, _ = files.read_json(os.path.join(data, "registry.json"))
    except (OSError, OwnerCallFailed):
        return {}
    agents = told.get("agents") if isinstance(told, dict) else None
    found = {}
    for agent in agents if isinstance(agents, list) else []:
        if isinstance(agent, dict) and agent.get("agentType", "local") == "local":
            folder, name = agent.get("workFolder"), agent.get("friendlyName")
            if isinstance(folder, str) and isinstance(name, str):
                found[folder.rstrip("/")] = printable(name)
    return found
