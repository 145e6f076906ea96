"""apra-fleet's long running tasks: a directory `task-<id>` each, below `~/.fleet-tasks`, kept by a bash wrapper.

- `task.pid` has the wrapper's pid, from right after its start until its end. The pid has no identity: the process is
  identified by when the file was written, or by a command line that runs this task's own `run.sh`.
- `status.json` is one line: taskId, status (running, retrying, completed, failed), started, updated, exitCode, retries.
- If there is no pid a minute after its status was written, and no process runs its script, the launch has failed.
- `activity` is touched every 300 s by a loop next to the command, even while the command hangs: a sign of life of the
  wrapper, not progress. The command's output goes to `task.log`.

The wrapper is the agent's main process: it is killed before the command, which it would restart. Its death by a signal
leaves `running` (or `retrying`) and the pid file for ever; `forget` corrects that. The status `cancelled` was requested
in the program's own tracker and is in no release (0.4.2): its readers show any status as it is.
"""

import functools
import os
import stat
import time
from datetime import UTC, datetime
from signal import Signals

from watchdog.core.source_entries import MOST_TOLD, Became, Entry, EntryEnd, unread_entry
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import files, fleet_members, kernel
from watchdog.owner.sources.base import Forgotten
from watchdog.owner.sources.fleet_files import (
    ENDED,
    RUNNING,
    TASK,
    Everybody,
    Task,
    directory_of,
    lives,
    opened,
    read_task,
    runs,
)

RHYTHM = 660.0  # seconds without a touch of `activity` that are normal: twice its 300, and a minute
LAUNCH = 60.0  # seconds that a launch may take, by the program's own supervisor


def discover(path: str) -> list[Entry]:
    """All running tasks, and the members on other devices. Raises OSError, OwnerCallFailed.

    A missing directory has no tasks.
    """
    try:
        top = opened(path)
    except FileNotFoundError:
        return fleet_members.elsewhere()[:MOST_TOLD]
    try:
        members = fleet_members.folders()
        names = [name for name in sorted(os.listdir(top)) if TASK.fullmatch(name)]
        everybody = functools.cache(kernel.own_processes)  # once for all tasks without a pid
        entries = (one for name in names if (one := _entry(path, top, name, members, everybody)) is not None)
        found = [entry for entry, _ in zip(entries, range(MOST_TOLD), strict=False)]
        return [*found, *fleet_members.elsewhere()][:MOST_TOLD]
    finally:
        os.close(top)


def forget(path: str, key: str, token: str, end: EntryEnd) -> Forgotten:
    """Write the task's last status, then remove its pid file; the rest stays for the program's own retention.

    Raises OSError, OwnerCallFailed: `alive` while the wrapper exists, `not_understood`.
    """
    if not TASK.fullmatch(key):
        raise OwnerCallFailed("not_understood", f"{key!r} names no task")
    try:
        top = opened(path)
        try:
            with directory_of(top, key) as place:
                return _close(place, key, token, end)
        finally:
            os.close(top)
    except FileNotFoundError:
        return Forgotten(Became.GONE, f"{key} is not there")


def _close(place: str, key: str, token: str, end: EntryEnd) -> Forgotten:
    task = read_task(place, key)
    if task.status in ENDED and task.written is None:
        return Forgotten(Became.GONE, f"{key} is {task.status} already")
    if not task.is_run(token):
        return Forgotten(Became.CHANGED, f"{key} is another run by now")
    if lives(task):
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


def _status(end: EntryEnd) -> str:
    if end.task_status == "completed" or end.status == "completed":
        return "completed"
    return "cancelled" if end.task_status == "cancelled" or end.status in ("stopped", "killed") else "failed"


def _exit_code(end: EntryEnd) -> int | None:
    """As in bash: 128 plus the signal's number."""
    if end.exit_code is None and end.signal is not None and end.signal in Signals.__members__:
        return 128 + Signals[end.signal]
    return end.exit_code


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _entry(path: str, top: int, name: str, members: dict[str, str], everybody: Everybody) -> Entry | None:
    """The entry of a task; None: it does not run; `unread` while its files are being written or are invalid."""
    try:
        with directory_of(top, name) as place:
            task = read_task(place, name)
            beat = _touched(f"{place}/activity")
    except FileNotFoundError:
        return None
    except (OSError, OwnerCallFailed) as error:
        return unread_entry(name, str(error), os.geteuid())
    if task.status not in RUNNING:
        return None
    process = None if task.pid is None else kernel.process(task.pid)
    ours = process is not None and runs(name, process)
    failed = _failed_to_start(task, everybody)
    cwd = _cwd(task) if ours or lives(task, everybody) else None
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
        gone=failed,
        beat=None if failed else beat,
        promise=RHYTHM,
        state=None if failed else "working",
        note=", ".join(note for note in notes if note),
        log=os.path.join(path, name, "task.log"),
    )


def _failed_to_start(task: Task, everybody: Everybody) -> str:
    """Why it has no process, if there should be a pid and is none; else empty."""
    age = time.time() - max(task.changed, task.written or 0.0)
    if task.pid is not None or age < LAUNCH or lives(task, everybody):
        return ""
    return f"its launch failed: no pid was written down in {LAUNCH:.0f}s, and nothing runs its script"


def _touched(path: str) -> str | None:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return None
    return str(status.st_mtime_ns) if stat.S_ISREG(status.st_mode) else None


def _cwd(task: Task) -> str | None:
    """The wrapper's cwd, which is the member's folder."""
    return (kernel.link(task.pid, "cwd") or None) if task.pid is not None else None
