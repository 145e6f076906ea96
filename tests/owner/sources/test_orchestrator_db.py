"""An orchestrator's own SQLite file, in both layouts: read by what it has, and one end written as it would be there."""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.owner.repositories import context
from tests.owner.sources.orchestrator import DOCUMENTED, REAL, Orchestrator
from tests.world import wait_for
from watchdog.core.agent import Status
from watchdog.core.hooks import CleanupSettings, HookOutcome
from watchdog.core.source_entries import Became, Entry, EntryEnd
from watchdog.errors import OwnerCallFailed
from watchdog.owner.hooks.registry_entry import registry_entry
from watchdog.owner.sources import agent_status, files, orchestrator_db, sqlite_locks

KILLED = EntryEnd("killed", "silent for 2m05s", "daemon", 1_900_000_000.0, task_status="failed")
NOW = datetime(2030, 1, 2, 3, 4, 35, 2)


@pytest.fixture
def documented(tmp_path: Path) -> Orchestrator:
    """With two agents and their tasks."""
    made = Orchestrator(tmp_path / "data", DOCUMENTED)
    for number in (1, 2):
        made.insert(
            agent_id=f"code-developer-20300102-00{number}",
            agent_type="code-developer",
            status="running",
            task_id=f"TASK-{number}",
            pid=4200 + number,
            created_at="2025-01-02 03:04:05",
            last_heartbeat="2025-01-02 03:05:05",
        )
        made.insert("orchestrator_task", task_id=f"TASK-{number}", status="running", priority=1)
    return made


@pytest.fixture
def real(tmp_path: Path) -> Orchestrator:
    """With one agent, whose heartbeat is in a file of its own, and one that is a thread."""
    made = Orchestrator(tmp_path / "data", REAL)
    for pid, kind in ((4242, "architect"), (140_243_000_000_000, "code_developer")):
        made.insert(
            pid=pid,
            agent_type=kind,
            task_id=f"spec-{kind}",
            spawned_at="2025-01-02T03:04:05.000001",
            status="running",
            command="claude -p",
        )
    write_status(made, "architect", 4242)
    return made


def write_status(made: Orchestrator, kind: str, pid: int, **changes: Any) -> Path:
    """A status file as its agent writes it."""
    path = made.status / f"{kind}_status.json"
    told = {
        "agent_type": kind,
        "state": "working",
        "current_task": {"type": "spec", "started_at": "2025-01-02T03:04:05.000001"},
        "last_heartbeat": NOW.replace(year=2025).isoformat(),
        "next_check": "2025-01-02T04:04:35",
        "health": "healthy",
        "pid": pid,
        "metrics": {},
        "error": None,
    }
    path.write_text(json.dumps({**told, **changes}, indent=2))
    return path


def found(made: Orchestrator) -> dict[str, Entry]:
    return {entry.key: entry for entry in orchestrator_db.discover(str(made.path))}


def forget(made: Orchestrator, entry: Entry, end: EntryEnd = KILLED) -> Became:
    return orchestrator_db.forget(str(made.path), entry.key, entry.token, end).became


def changed(before: list[str], after: list[str]) -> list[str]:
    """The statements of a dump that differ, as they are now."""
    return sorted(set(after) - set(before))


def test_a_documented_row_is_told_with_its_beat_and_the_time_that_its_pid_stood_there(documented: Orchestrator) -> None:
    """UTC, whatever the machine's zone."""
    one = found(documented)["code-developer-20300102-001"]
    assert (one.name, one.type, one.task, one.pid) == (one.key, "code-developer", "TASK-1", 4201)
    assert (one.beat, one.promise, one.uid) == ("2025-01-02 03:05:05", 120, os.geteuid())
    assert one.since == datetime.fromisoformat("2025-01-02T03:04:06+00:00").timestamp()  # its second is cut off


def test_a_beat_changes_no_token_and_another_pid_does(documented: Orchestrator) -> None:
    """Compare-and-set goes by the run."""
    before = found(documented)["code-developer-20300102-001"]
    documented.sql("UPDATE agent_lifecycle SET last_heartbeat = 'now'")
    beaten = found(documented)[before.key]
    assert (beaten.token, beaten.beat) == (before.token, "now")
    documented.sql("UPDATE agent_lifecycle SET pid = 99 WHERE agent_id = ?", before.key)
    assert found(documented)[before.key].token != before.token
    unchanged = documented.dump()
    assert forget(documented, before) is Became.CHANGED
    assert documented.dump() == unchanged


def test_a_real_row_takes_its_beat_and_state_from_the_file_of_its_agent(real: Orchestrator) -> None:
    """Naive local time there; and a thread's ident in the pid column is not a pid: it is shown, with the reason."""
    architect, thread = found(real)["1"], found(real)["2"]
    assert (architect.name, architect.pid, architect.state, architect.promise) == ("architect-1", 4242, "working", 120)
    assert architect.beat == "2025-01-02T03:04:35.000002"
    assert architect.since == datetime(2025, 1, 2, 3, 4, 5, 1).timestamp()
    assert (thread.pid, thread.promise, thread.beat) == (None, None, None)
    assert "140243000000000" in thread.note


def test_the_end_is_written_as_that_layout_writes_it_and_nowhere_else(documented: Orchestrator) -> None:
    """The agent's row and its task's, in one transaction; never the heartbeat; a second time there is nothing to do."""
    before, one = documented.dump(), found(documented)["code-developer-20300102-001"]
    assert forget(documented, one) is Became.DONE
    row, task = documented.agent(one.key), documented.task("TASK-1")
    assert (row["status"], row["completed_at"], row["exit_code"]) == ("killed", "2030-03-17 17:46:40", -9)
    assert row["error_message"] == "Agent killed: silent for 2m05s"
    assert row["last_heartbeat"] == "2025-01-02 03:05:05"
    assert (task["status"], task["error_message"]) == ("failed", "Agent killed: silent for 2m05s")
    after = documented.dump()
    assert len(changed(before, after)) == 2
    assert forget(documented, one) is Became.GONE
    assert documented.dump() == after


def test_the_end_of_a_real_row_is_local_time_and_its_status_file_says_stopped(real: Orchestrator) -> None:
    """All else of the file stays as its agent wrote it, to the byte."""
    path = real.status / "architect_status.json"
    text, one = path.read_text(), found(real)["1"]
    assert forget(real, one) is Became.DONE
    row = real.agent(1)
    local = datetime.fromtimestamp(KILLED.ended_at).isoformat()
    assert (row["status"], row["completed_at"], row["exit_code"]) == ("killed", local, -9)
    expected = text.replace('"working"', '"stopped"').replace('"healthy"', '"stopped"')
    assert path.read_text() == expected.replace('"error": null\n', f'"error": null,\n  "stopped_at": "{local}"\n')
    assert real.agent(2)["status"] == "running"
    ended = path.read_text()
    path.write_text(text)  # as after a SIGKILL between the two
    assert forget(real, one) is Became.GONE
    assert path.read_text() == ended


@pytest.mark.parametrize(
    ("end", "status", "task"),
    [
        (EntryEnd("killed", "x", "d", 1e9, task_status="ready_for_retry"), "killed", "ready_for_retry"),
        (EntryEnd("stopped", "x", "d", 1e9, task_status="cancelled"), "killed", "cancelled"),
        (EntryEnd("failed", "x", "d", 1e9, exit_code=3, task_status="failed"), "failed", "failed"),
        (EntryEnd("lost", "x", "d", 1e9), "failed", "running"),
        (EntryEnd("completed", "x", "d", 1e9, exit_code=0, task_status="completed"), "completed", "running"),
    ],
)
def test_each_end_has_its_words(documented: Orchestrator, end: EntryEnd, status: str, task: str) -> None:
    """A task is closed or handed on only where it was the end of its agent that ended it."""
    one = found(documented)["code-developer-20300102-001"]
    assert forget(documented, one, end) is Became.DONE
    assert documented.agent(one.key)["status"] == status
    assert documented.task("TASK-1")["status"] == task


def test_a_task_on_which_another_living_agent_works_stays(documented: Orchestrator) -> None:
    """As one that has ended already, and one that was given to somebody else."""
    documented.sql("UPDATE agent_lifecycle SET task_id = 'TASK-1'")
    first, second = found(documented).values()
    forget(documented, first)
    assert documented.task("TASK-1")["status"] == "running"
    documented.sql("UPDATE orchestrator_task SET assigned_agent = 'another' WHERE task_id = 'TASK-1'")
    forget(documented, second)
    assert documented.task("TASK-1")["status"] == "running"


def test_rows_that_are_none_are_passed_over_and_a_foreign_schema_is_left_alone(documented: Orchestrator) -> None:
    """SQLite holds any type in any column."""
    documented.sql("UPDATE agent_lifecycle SET pid = 'x', agent_type = x'00', created_at = 7, last_heartbeat = 1.5")
    for one in found(documented).values():
        assert (one.pid, one.type, one.since, one.beat) == (None, "", None, "1.5")
    documented.sql("ALTER TABLE agent_lifecycle RENAME COLUMN status TO state")
    before = documented.dump()
    with pytest.raises(OwnerCallFailed, match="no column status"):
        found(documented)
    with pytest.raises(OwnerCallFailed, match="no column status"):
        orchestrator_db.forget(str(documented.path), "code-developer-20300102-001", "4201 2025-01-02 03:04:05", KILLED)
    assert documented.dump() == before


def test_a_time_that_lies_ahead_proves_nothing(documented: Orchestrator) -> None:
    """Its writer's clock or zone is another: such an agent is only told of."""
    documented.sql("UPDATE agent_lifecycle SET created_at = '2999-01-01T00:00:00'")
    assert {one.since for one in found(documented).values()} == {None}


@pytest.mark.parametrize(("ms", "when"), [(1, 1_735_787_046.0), (1000, 1_735_787_045.0), (1e-3, None)])
def test_numbers_are_times_and_beats_and_a_text_is_a_pid(tmp_path: Path, ms: float, when: float | None) -> None:
    """`UPDATE … SET last_heartbeat = unixepoch()`, or milliseconds, where a column has no type."""
    bare = "CREATE TABLE agent_lifecycle (agent_id, agent_type, status, pid, created_at, last_heartbeat)"
    made = Orchestrator(tmp_path / "data", bare)
    made.insert(agent_id="a", status="running", pid="4201", created_at=1_735_787_045 * ms, last_heartbeat=1_735_787_105)

    (before,) = orchestrator_db.discover(str(made.path))
    made.sql("UPDATE agent_lifecycle SET last_heartbeat = last_heartbeat + 0.5")
    (after,) = orchestrator_db.discover(str(made.path))

    assert (before.pid, before.since, before.promise) == (4201, when, orchestrator_db.AFTER)
    assert before.beat
    assert after.beat not in (None, before.beat)
    assert (after.token, after.pid) == (before.token, before.pid)
    assert orchestrator_db.forget(str(made.path), "a", after.token, KILLED).became is Became.DONE


def test_of_two_rows_of_one_id_each_is_closed_as_its_own(tmp_path: Path) -> None:
    """A restart that keeps the id leaves the former row `running`; without a key a row may stand there twice."""
    bare = "CREATE TABLE agent_lifecycle (agent_id, agent_type, status, pid, created_at, last_heartbeat)"
    made = Orchestrator(tmp_path / "data", bare)
    for pid in (4201, 4202, 4202):
        made.insert(agent_id="a", status="running", pid=pid, created_at="2025-01-02 03:04:05")
    newer, _, older = orchestrator_db.discover(str(made.path))

    assert orchestrator_db.forget(str(made.path), "a", older.token, KILLED).became is Became.DONE
    assert [row["status"] for row in made.sql("SELECT status FROM agent_lifecycle")] == ["killed", "running", "running"]
    became = [orchestrator_db.forget(str(made.path), "a", newer.token, KILLED).became for _ in range(3)]

    assert became == [Became.DONE, Became.DONE, Became.GONE]
    assert {row["status"] for row in made.sql("SELECT status FROM agent_lifecycle")} == {"killed"}


def test_a_status_file_without_a_row_is_an_agent_too(real: Orchestrator) -> None:
    """One that was started directly is in no table. A file that is half written is read at the next look."""
    write_status(real, "assistant", 77, state="idle")
    (real.status / "half_status.json").write_text('{"pid": 5, ')
    (real.status / "link_status.json").symlink_to(real.status / "half_status.json")
    one = found(real)["agent_status/assistant_status.json"]
    assert (one.name, one.pid, one.state, one.promise) == ("assistant-77", 77, "idle", 120)
    assert forget(real, one) is Became.DONE
    assert not found(real)[one.key].living
    assert forget(real, one) is Became.GONE
    write_status(real, "assistant", 78)
    assert forget(real, one) is Became.CHANGED
    with pytest.raises(OwnerCallFailed):
        agent_status.forget(str(real.status), "agent_status/../x_status.json", "1", KILLED)


@pytest.mark.parametrize("damage", ["half", "empty", "list", "no text", "a link"])
def test_who_beats_in_a_file_that_cannot_be_read_is_neither_gone_nor_silent(real: Orchestrator, damage: str) -> None:
    """Case P2: the status file of a living agent is damaged, or just being written; also of one that has no row."""
    written = {"half": '{"pid": 4242, "last_hea', "empty": "", "list": "[1, 2, 3]", "no text": "\udcff", "a link": ""}
    for kind in ("architect", "assistant"):
        path = write_status(real, kind, 4242 if kind == "architect" else 77)
        path.write_bytes(written[damage].encode(errors="surrogateescape"))
        if damage == "a link":  # to a file of this very test: whatever follows it does no harm
            path.rename(real.path.with_name(f"{kind}.away"))
            path.symlink_to(real.path.with_name(f"{kind}.away"))
    entries = found(real)
    assert {key for key, one in entries.items() if one.unread} == {
        "agent_status/architect_status.json",
        "agent_status/assistant_status.json",
    }
    assert entries["1"].unheard and not entries["1"].unread
    for kind, pid in (("assistant", 77), ("architect", 4242)):
        (real.status / f"{kind}_status.json").unlink()
        write_status(real, kind, pid)
    assert not any(one.unread or one.unheard for one in found(real).values())


def test_a_folder_of_status_files_that_is_closed_hides_nobody(real: Orchestrator) -> None:
    """Case P2: no file in it is gone. Modes do not bind root, so it is a link that leads round."""
    for path in real.status.iterdir():
        path.unlink()
    real.status.rmdir()
    real.status.symlink_to(real.status)
    entries = found(real)
    assert "symbolic links" in entries["agent_status/"].unread
    assert entries["1"].unheard


@pytest.fixture(params=[False, True], ids=["rollback journal", "WAL"])
def locked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Orchestrator, int]]:
    """A database whose one writer stopped between its UPDATE and its COMMIT."""
    made = Orchestrator(tmp_path / "data", DOCUMENTED, wal=request.param)
    script = Path(__file__).parents[2] / "scripted_agents" / "orchestrated.py"
    command = [sys.executable, str(script), str(made.path), "a", "wait", "beats=0", "stop=inside"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as writer:
        try:
            for agent_id, pid in (("a", writer.pid), ("b", 4242)):
                made.insert(agent_id=agent_id, status="running", pid=pid, created_at=..., last_heartbeat="first")
            print(file=writer.stdin, flush=True)
            wait_for(lambda: Path(f"/proc/{writer.pid}/stat").read_text().split()[2] == "T", "it stopped")
            yield made, writer.pid
        finally:
            writer.kill()


def test_who_cannot_beat_for_anothers_lock_is_told_so_and_who_holds_it_is_not(
    locked: tuple[Orchestrator, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else all that stand in that file would fall silent with it, and be ended for it."""
    made, holder = locked
    monkeypatch.setattr(files, "WRITE_WAIT", 0.1)
    mine, other = found(made)["a"], found(made)["b"]
    assert (mine.beat, mine.unheard) == ("first", "")
    assert other.unheard == f"process {holder} holds the lock of its registry"
    with pytest.raises(OwnerCallFailed) as refused:
        orchestrator_db.forget(str(made.path), other.key, other.token, KILLED)
    assert refused.value.reason == "busy"
    os.kill(holder, 9)
    wait_for(lambda: sqlite_locks.holder(str(made.path)) is None, "the lock is free")
    assert forget(made, mine) is Became.DONE
    assert made.agent("a")["last_heartbeat"] == "first"


def test_who_keeps_everybody_from_reading_is_named(documented: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """A COMMIT that stands still: who is to be looked at, is told with it."""
    monkeypatch.setattr(files, "READ_WAIT", 0.1)
    lock = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('BEGIN EXCLUSIVE'); print(flush=True)"
    command = [sys.executable, "-c", f"{lock}; input()", str(documented.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        with pytest.raises(OwnerCallFailed, match=f"locked: process {writer.pid} holds the lock"):
            found(documented)


def test_the_hook_closes_each_entry_once(documented: Orchestrator) -> None:
    """Run twice it finds nothing to do; an entry that is another run's by now is kept; one kind has none to close."""
    one = found(documented)["code-developer-20300102-001"]
    place = {"kind": "orchestrator_db", "path": str(documented.path), "key": one.key, "token": one.token}
    told = context(
        outcome=Status.KILLED,
        registry_entry=(place, {**place, "kind": "claude"}),
        why="silent for 2m05s",
        ended_at=1.9e9,
        task_status="failed",
    )
    assert registry_entry(told, CleanupSettings()).outcome is HookOutcome.DONE
    assert documented.agent(one.key)["error_message"] == "Agent killed: silent for 2m05s"
    assert registry_entry(told, CleanupSettings()).outcome is HookOutcome.NOTHING
    assert registry_entry(context(), CleanupSettings()).outcome is HookOutcome.NOTHING
    two = found(documented)["code-developer-20300102-002"]
    other = context(registry_entry=({**place, "key": two.key, "token": "another run"},))
    assert registry_entry(other, CleanupSettings()).outcome is HookOutcome.KEPT
    assert documented.agent(two.key)["status"] == "running"
    os.rename(documented.path, documented.path.with_name("away"))
    os.mkfifo(documented.path)
    assert registry_entry(other, CleanupSettings()).outcome is HookOutcome.FAILED


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine whose summer ends."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2025-10-26T01:30:00.5", 1761435000.5),
        ("2025-10-26T02:30:00.5", math.inf),
        ("2025-10-26T03:30:00.5", 1761445800.5),
        ("2025-10-26T02:30:00.5+01:00", 1761442200.5),
        ("2025-10-26 02:30:00.5", 1761445800.5),
        ("2025-03-30T02:30:00.5", math.inf),
    ],
)
def test_an_hour_that_comes_twice_proves_nothing(text: str, seconds: float) -> None:
    """Taken for the first, the agents of the second would be closed as another process's; for the last, others' ended.

    Nor does one that never comes.
    """
    assert agent_status.epoch(text, None) == seconds


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("zone", "seconds"),
    [("America/New_York", 1754287445.5), (":UTC", 1754273045.5), ("Atlantis/None", math.inf), ("", 1754265845.5)],
)
def test_local_time_is_that_of_the_agent(zone: str, seconds: float) -> None:
    """Its TZ may be another than the machine's."""
    with subprocess.Popen(["sleep", "60"], env={"TZ": zone} if zone else {}) as process:
        wait_for(lambda: "sleep" in Path(f"/proc/{process.pid}/comm").read_text(), "it runs")
        assert agent_status.epoch("2025-08-04T02:04:05.5", process.pid) == seconds
        process.kill()


def test_who_started_the_one_that_holds_the_lock_is_hindered_by_it(documented: Orchestrator) -> None:
    """An orchestrator that is an agent itself cannot beat, either. A child that is no agent does it for its agent."""
    lock = "import sqlite3, sys; input(); d = sqlite3.connect(sys.argv[1], isolation_level=None)"
    command = [sys.executable, "-c", f"{lock}; d.execute('BEGIN IMMEDIATE'); print(flush=True); input()"]
    pipe = subprocess.PIPE
    for of_an_agent in (True, False):
        with subprocess.Popen([*command, str(documented.path)], stdin=pipe, stdout=pipe, text=True) as child:
            assert child.stdin is not None and child.stdout is not None
            pids = {"above": os.getpid(), "child": child.pid if of_an_agent else 4242}
            for agent_id, pid in pids.items():
                documented.sql("DELETE FROM agent_lifecycle WHERE agent_id = ?", agent_id)
                documented.insert(agent_id=agent_id, status="running", pid=pid, created_at=..., last_heartbeat="b")
            print(file=child.stdin, flush=True)
            child.stdout.readline()
            hindered = {key for key, one in found(documented).items() if one.unheard}
            child.kill()
        assert hindered & pids.keys() == ({"above"} if of_an_agent else {"child"})


def test_a_heartbeat_tells_when_it_was_and_bytes_are_one_too(documented: Orchestrator) -> None:
    """Cases Q6 and Q7: an old one is known as such; what is stored as a BLOB is a promise like any."""
    one = found(documented)["code-developer-20300102-001"]
    assert one.beat_at == datetime.fromisoformat("2025-01-02T03:05:06+00:00").timestamp()
    documented.sql("UPDATE agent_lifecycle SET last_heartbeat = ?", b"\x00\x01")
    blob = found(documented)["code-developer-20300102-001"]
    assert (blob.beat, blob.beat_at, blob.promise) == ("0001", None, 120)


def test_words_without_a_zone_are_told_in_both(documented: Orchestrator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case Q7: with a space they are UTC by CURRENT_TIMESTAMP, and local by `str(datetime.now())`."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    documented.sql("UPDATE agent_lifecycle SET started_at = '2025-01-02 03:04:05'")
    try:
        one = found(documented)["code-developer-20300102-001"]
    finally:
        monkeypatch.undo()
        time.tzset()
    assert one.since is not None and one.started == one.since
    assert one.since_local == one.started_local == one.since + 5 * 3600


def test_a_time_that_lies_ahead_is_told_as_such(documented: Orchestrator) -> None:
    """Case Q7: of another zone, as the heartbeats will tell."""
    ahead = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=13)
    documented.sql("UPDATE agent_lifecycle SET started_at = ?", f"{ahead:%F %T}")
    one = found(documented)["code-developer-20300102-001"]
    assert one.since is one.started is None
    assert one.since_ahead == one.started_ahead == ahead.timestamp() + 1  # seconds are cut off: it was up to one later
