"""apra-fleet's tasks: a real wrapper of its shape, its directory, and what is written when it has ended."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import wait_for
from watchdog.core.source_entries import Became, Entry, EntryEnd, entry_json, entry_of
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import fleet_tasks, kernel

KEY = f"task-{os.getpid():x}zz"  # of one process that runs tests: another's wrapper would be this task's
LINE = (
    f'{{"taskId":"{KEY}","status":"running","started":"2030-01-02T03:04:05Z",'
    '"updated":"2030-01-02T03:04:05Z","exitCode":null,"retries":0}\n'
)
# A wrapper as the program makes one: it writes its status and pid, has a loop beside it that touches `activity`, and
# starts its command again when that fails.
WRAPPER = """
cd "${0%/*}"
printf '%s' "$1" > status.json
echo $$ > task.pid
( while kill -0 $$ 2>/dev/null; do touch activity; sleep 0.2; done ) &
tries=0
until bash -c "$2" >> task.log 2>&1; do
  tries=$((tries + 1)); [ $tries -gt 3 ] && break
  echo "[fleet-task] retry $tries/3" >> task.log
done
"""


def killed(status: str = "killed", **more: object) -> EntryEnd:
    return EntryEnd(status, "stalled: silent for 12m", "daemon", 1893553505.0, **more)  # type: ignore[arg-type]


class Tasks:
    """The directory of all tasks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.started: list[subprocess.Popen[bytes]] = []
        path.mkdir()

    def wrote(self, key: str = KEY, line: str = LINE, pid: str | None = None) -> Path:
        """One as its files say, without a process."""
        place = self.path / key
        place.mkdir()
        (place / "status.json").write_text(line)
        if pid is not None:
            (place / "task.pid").write_text(pid + "\n")
        return place

    def start(self, command: str) -> Path:
        """A real wrapper with that command."""
        place = self.path / KEY
        place.mkdir()
        (place / "run.sh").write_text(WRAPPER)
        self.started.append(
            subprocess.Popen(["bash", str(place / "run.sh"), LINE, command], cwd=place, start_new_session=True)
        )
        wait_for(lambda: (place / "activity").exists(), "it touches its file")
        return place

    def one(self) -> Entry:
        """The only entry, as the daemon gets it."""
        (entry,) = fleet_tasks.discover(str(self.path))
        return entry_of(json.loads(json.dumps(entry_json(entry))))

    def forget(self, token: str, end: EntryEnd, key: str = KEY) -> Became:
        return fleet_tasks.forget(str(self.path), key, token, end).became


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    made = Tasks(tmp_path / ".fleet-tasks")
    yield made
    for process in made.started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_wrapper_is_an_agent_with_its_rhythm(tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its pid is whose the kernel says, its beat the touch of `activity`, its name that of the task."""
    monkeypatch.setenv("APRA_FLEET_DATA_DIR", str(tmp_path))
    member = {
        "friendlyName": "ada",
        "workFolder": str(tasks.path / KEY),
        "agentType": "local",
        "encryptedPassword": "s3",
    }
    (tmp_path / "registry.json").write_text(json.dumps({"version": "1.0", "agents": [member]}))
    place = tasks.start("sleep 60")

    entry = tasks.one()

    assert (entry.key, entry.name, entry.task, entry.type) == (KEY, KEY, KEY, "fleet-task")
    assert (entry.pid, entry.uid, entry.promise) == (tasks.started[0].pid, os.geteuid(), 660.0)
    assert entry.ticks == int(Path(f"/proc/{entry.pid}/stat").read_text().rpartition(")")[2].split()[19])
    assert entry.log == str(place / "task.log")
    assert entry.cwd == str(place)
    assert entry.note == "member ada"
    assert "s3" not in json.dumps(entry_json(entry))
    wait_for(lambda: tasks.one().beat != entry.beat, "a further touch is a further beat")
    assert tasks.one().token == entry.token


def test_a_killed_wrapper_is_cancelled_and_nothing_else_changes(tasks: Tasks) -> None:
    """The status, `updated` and the exit code are written; all other bytes stay, and the pid file goes."""
    place = tasks.start("sleep 60")
    token, log = tasks.one().token, (place / "task.log").read_bytes()
    (place / "status.json").chmod(0o640)
    with pytest.raises(OwnerCallFailed, match="there yet"):
        tasks.forget(token, killed())
    assert (place / "status.json").read_text() == LINE
    os.killpg(tasks.started[0].pid, signal.SIGKILL)
    tasks.started[0].wait()

    became = tasks.forget(token, killed(signal="SIGKILL"))

    assert became is Became.DONE
    assert (place / "status.json").read_text() == (
        f'{{"taskId":"{KEY}","status":"cancelled","started":"2030-01-02T03:04:05Z",'
        '"updated":"2030-01-02T03:05:05Z","exitCode":137,"retries":0}\n'
    )
    assert (place / "status.json").stat().st_mode & 0o777 == 0o640
    assert not (place / "task.pid").exists()
    assert (place / "task.log").read_bytes() == log
    assert {file.name for file in place.iterdir()} == {"status.json", "activity", "task.log", "run.sh"}
    assert tasks.forget(token, killed()) is Became.GONE
    assert fleet_tasks.discover(str(tasks.path)) == []


@pytest.mark.parametrize(
    ("end", "status", "code"),
    [
        (killed("stopped", exit_code=0), "cancelled", 0),
        (killed("failed", exit_code=3), "failed", 3),
        (killed("failed", exit_code=3, task_status="cancelled"), "cancelled", 3),
        (killed("lost"), "failed", None),
        (killed("completed", exit_code=0), "completed", 0),
    ],
)
def test_the_status_says_how_it_ended(tasks: Tasks, end: EntryEnd, status: str, code: int | None) -> None:
    """Cancelled is who was stopped or killed, failed who ended or was lost."""
    place = tasks.wrote(pid="4194304")
    entry = tasks.one()

    assert tasks.forget(entry.token, end) is Became.DONE

    told = json.loads((place / "status.json").read_text())
    assert (told["status"], told["exitCode"]) == (status, code)


def test_a_pid_that_another_has_by_now_closes_the_task_and_harms_nobody(tasks: Tasks) -> None:
    """The file tells when the pid was written down; a process that began later is another's."""
    innocent = subprocess.Popen(["sleep", "60"])
    try:
        place = tasks.wrote(pid=str(innocent.pid))
        os.utime(place / "task.pid", (1893550000 - 2**30, 1893550000 - 2**30))
        entry = tasks.one()

        assert entry.since == 1893550000 - 2**30
        assert entry.ticks is None
        assert tasks.forget(entry.token, killed("lost")) is Became.DONE
        assert innocent.poll() is None
    finally:
        innocent.kill()
        innocent.wait()


def test_a_launch_that_failed_is_closed_after_its_minute(tasks: Tasks) -> None:
    """No pid was written down and nothing runs its script; before that, or with the script running, it may come yet."""
    place = tasks.wrote()
    assert tasks.one().gone == ""
    os.utime(place / "status.json", (time.time() - 61, time.time() - 61))
    entry = tasks.one()
    assert "launch failed" in entry.gone
    assert (entry.pid, entry.beat) == (None, None)

    (place / "run.sh").write_text("read a_line; :")  # one process: a child of it might be dying yet when it is gone
    with subprocess.Popen(["bash", str(place / "run.sh")], stdin=subprocess.PIPE) as script:
        wait_for(lambda: tasks.one().gone == "", "its script runs")
        with pytest.raises(OwnerCallFailed, match="there yet"):
            tasks.forget(entry.token, killed("lost"))
        script.kill()

    assert tasks.forget(entry.token, killed("lost")) is Became.DONE
    assert json.loads((place / "status.json").read_text())["status"] == "failed"


def test_members_of_other_devices_are_shown_and_no_secret_of_theirs(
    tasks: Tasks, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Never judged, never ended: there is no process of theirs here."""
    monkeypatch.setenv("APRA_FLEET_DATA_DIR", str(tmp_path))
    here = {"id": "m-1", "friendlyName": "ada", "agentType": "local", "workFolder": "/srv/a"}
    there = {
        **here,
        "id": "m-2",
        "friendlyName": "bob",
        "agentType": "remote",
        "host": "far",
        "encryptedPassword": "s3",
    }
    (tmp_path / "registry.json").write_text(json.dumps({"version": "1.0", "agents": [here, there, {"id": 3}, None]}))

    entry = tasks.one()

    assert (entry.name, entry.remote, entry.pid, entry.note) == ("bob", True, None, "member on far (remote)")
    assert "s3" not in json.dumps(entry_json(entry))
    with pytest.raises(OwnerCallFailed):
        tasks.forget(entry.token, killed(), entry.key)


def test_another_run_and_what_ended_by_itself_stay_as_they_are(tasks: Tasks) -> None:
    """Compare before write: a wrapper that was started anew, and one that wrote its own last status."""
    place = tasks.wrote(pid="4194304")
    token = tasks.one().token
    again = LINE.replace("03:04:05Z", "03:09:09Z")
    (place / "status.json").write_text(again)
    assert tasks.forget(token, killed()) is Became.CHANGED
    assert (place / "status.json").read_text() == again

    (place / "task.pid").unlink()
    (place / "status.json").write_text(LINE.replace("running", "completed"))
    assert tasks.forget(token, killed()) is Became.GONE

    (place / "status.json").write_text(LINE)  # ended between its last two steps
    assert tasks.forget(token, killed("failed")) is Became.DONE


@pytest.mark.parametrize(
    "line",
    ["", "[]", LINE[:40], LINE.replace("running", "paused"), LINE.replace(KEY, "task-else"), '{"status":"running"}'],
    ids=["empty", "list", "half", "unknown status", "another task's", "short"],
)
def test_what_is_not_understood_is_told_as_that_and_left(tasks: Tasks, line: str) -> None:
    """A half written status, another layout, another task's: whoever runs there is not gone."""
    place = tasks.wrote(line=line, pid="4194304")
    tasks.wrote("task-good", LINE.replace(KEY, "task-good"), "4194304")

    told = {entry.key: bool(entry.unread) for entry in fleet_tasks.discover(str(tasks.path))}
    assert told == {KEY: True, "task-good": False}
    with pytest.raises(OwnerCallFailed):
        tasks.forget("x", killed())
    assert (place / "status.json").read_text() == line


def test_no_link_is_followed(tasks: Tasks, tmp_path: Path) -> None:
    """Neither for a task's directory, nor for one of its files; a FIFO holds nobody."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "status.json").write_text(LINE)
    (tasks.path / KEY).symlink_to(elsewhere)
    linked = tasks.wrote("task-link", LINE.replace(KEY, "task-link"))
    (linked / "task.pid").symlink_to(elsewhere / "status.json")
    os.mkfifo(tasks.wrote("task-fifo", LINE.replace(KEY, "task-fifo")) / "task.pid")

    told = fleet_tasks.discover(str(tasks.path))
    assert {entry.key for entry in told} == {KEY, "task-link", "task-fifo"}
    assert all(entry.unread and entry.pid is None for entry in told)
    for key in (KEY, "task-link", "task-fifo", "../x"):
        with pytest.raises((OwnerCallFailed, OSError)):
            tasks.forget("x", killed(), key)
    assert (elsewhere / "status.json").read_text() == LINE


def test_no_directory_holds_no_task(tmp_path: Path) -> None:
    """The program may come later."""
    assert fleet_tasks.discover(str(tmp_path / "none")) == []
    assert fleet_tasks.forget(str(tmp_path / "none"), KEY, "x", killed()).became is Became.GONE


def test_all_tasks_without_a_pid_cost_one_scan(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 failed launches took 6.5 s, and the look at them has three."""
    for number in range(3):
        key = f"task-fail{number}"
        place = tasks.wrote(key, LINE.replace(KEY, key))
        os.utime(place / "status.json", (1, 1))
    scans = list[int]()

    def scan() -> dict[int, kernel.Process]:
        scans.append(1)
        return {}

    monkeypatch.setattr(kernel, "own_processes", scan)
    assert [bool(one.gone) for one in fleet_tasks.discover(str(tasks.path))] == [True] * 3
    assert len(scans) == 1
