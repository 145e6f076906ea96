"""The job of a tmux-agent-orchestrate session: its record, its state and its list of events.

Next to the sessions' YAML: `jobs/<id>.json` (the record; `last_seq` numbers the events), locked by `jobs/.lock`, and
`delegate_job_logs/<id>/` with `events.ndjson` and `status.json`. An event is one line: schema_version, seq, job_id,
event, timestamp, detail. The program also sends them over MQTT; we do not.

Tests: tests/owner/sources/test_agent_sessions.py.
"""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import files

JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
SCHEMA = 1
WAIT = 2.0  # seconds to wait for the jobs' lock
_OPEN = ("pending", "running")


def tell(folder: str, job: str, event: str, detail: str, ended_at: float) -> str:
    """Write the events of a stop, `progress` and `completed` (or `error`), once. Returns a description.

    Raises OSError, OwnerCallFailed when the job's files are not understood.
    """
    if not JOB.fullmatch(job):
        raise OwnerCallFailed("not_understood", f"{job!r} names no job")
    record, logs = os.path.join(folder, "jobs", f"{job}.json"), os.path.join(folder, "delegate_job_logs", job)
    now = datetime.fromtimestamp(ended_at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    with locked(os.path.join(folder, "jobs", ".lock")):
        told, _ = files.read_json(record)
        if not isinstance(told, dict) or told.get("schema_version") != SCHEMA or type(told.get("last_seq")) is not int:
            raise OwnerCallFailed("not_understood", f"the record of job {job} is not understood")
        if told.get("status") not in _OPEN:
            return f"job {job} is {told.get('status')} already"
        seq: int = told["last_seq"]
        lines = [("progress", "terminating"), (event, detail)]
        events = [
            {"schema_version": SCHEMA, "seq": seq + 1 + number, "job_id": job, "event": what, "timestamp": now}
            | {"detail": words}
            for number, (what, words) in enumerate(lines)
        ]
        if os.path.isdir(logs):
            _append(os.path.join(logs, "events.ndjson"), seq, events)
            _set(os.path.join(logs, "status.json"), event, now, seq + 2)
        _set(record, event, now, seq + 2)  # last: until then it is open, and reported again after a crash
    return f"job {job} is {event}"


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold one of the program's lock files. Raises OSError, OwnerCallFailed `busy`."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + WAIT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise OwnerCallFailed("busy", f"another holds {path}") from None
                time.sleep(0.05)
        yield
    finally:
        os.close(fd)


def _append(path: str, seq: int, events: list[dict[str, object]]) -> None:
    """Append the lines that a killed try has not already written."""
    try:
        text, _ = files.read(path)
    except FileNotFoundError:
        text = ""
    there = set()
    for line in text.splitlines()[-4:]:
        try:
            there.add(json.loads(line).get("seq"))
        except (ValueError, AttributeError):
            continue
    lines = [json.dumps(one, ensure_ascii=False) for one in events if one["seq"] not in there]
    data = ("" if not text or text.endswith("\n") else "\n") + "".join(f"{line}\n" for line in lines)
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, data.encode())
        os.fsync(fd)
    finally:
        os.close(fd)


def _set(path: str, status: str, now: str, seq: int) -> None:
    """Set those of these members that the file has."""

    def edit(text: str) -> str:
        told = files.parsed(path, text)
        if not isinstance(told, dict):
            raise OwnerCallFailed("not_understood", f"{path} is not understood")
        for name, value in (("status", status), ("updated_at", now), ("last_seq", seq)):
            if name in told:
                text = files.with_value(text, value, name)
        return text

    files.change(path, edit)
