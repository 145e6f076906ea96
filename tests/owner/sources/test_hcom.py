"""hcom's agents are read as hcom means them, and one of them ends as hcom itself would have written it."""

import json
import os
import shlex
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.owner.sources.hcom_home import BORN, PROCESS, HcomHome
from tests.world import wait_for
from watchdog.core.source_entries import MOST_TOLD, Became, Entry, EntryEnd
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import hcom, hcom_runs, kernel

KILLED = EntryEnd("killed", "stalled: silent for 2m05s", "agent-watchdog", BORN + 60, signal="SIGKILL")


@pytest.fixture(params=[18, 20])
def home(tmp_path: Path, request: pytest.FixtureRequest) -> HcomHome:
    """Both layouts."""
    return HcomHome(tmp_path, request.param)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """A process that hcom is said to have started."""
    child = subprocess.Popen(["sleep", "60"], env={"HCOM_PROCESS_ID": PROCESS, "TMUX": "/tmp/tmux-0/x,12,0"})
    wait_for(lambda: b"HCOM_PROCESS_ID" in Path(f"/proc/{child.pid}/environ").read_bytes(), "it is sleep itself")
    yield child
    child.kill()
    child.wait()


def only(home: HcomHome) -> Entry:
    (entry,) = hcom.discover(str(home.root))
    return entry


def ticks_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_an_agent_is_told_with_all_that_its_row_says(home: HcomHome) -> None:
    """Name as hcom shows it, identity as noted, conversation and how to take it up, and what its end leaves behind."""
    log = home.root / ".tmp/logs/background_1900000000_7.log"
    log.write_text("")
    mine = home.script("claude_mira_1_2.sh", PROCESS)
    home.script("claude_mira_1_3.sh", PROCESS.replace("1", "2"))
    home.add(
        "mira",
        PROCESS,
        tag="t1",
        pid=4243,
        session_id="s-1",
        background=1,
        background_log_file=str(log),
        transcript_path="/srv/t.jsonl",
        status="listening",
        last_stop=1_900_000_030,
        launch_context=json.dumps({"process_id": PROCESS, "pid_identity": f"linux:{kernel.this_boot()}:77"}),
    )

    entry = only(home)

    assert (entry.key, entry.name, entry.type, entry.cwd, entry.pid) == ("mira", "t1-mira", "claude", "/srv/w", 4243)
    assert entry.tags == ("t1",)
    assert (entry.ticks, entry.boot_id) == (77, kernel.this_boot())
    assert (entry.conversation, entry.resume) == ("s-1", f"HCOM_DIR={home.root} hcom r mira")
    assert (entry.state, entry.promise, entry.living, entry.remote) == ("idle", hcom.LISTENING, True, False)
    assert entry.stop is None  # it is headless
    assert entry.log == str(log)
    assert entry.temp == (str(mine),)  # the log stays: hcom's snapshot names it


def test_a_beat_is_a_beat_and_no_other_run(home: HcomHome) -> None:
    """What changes with each heartbeat is not in the token; another process is."""
    home.add("mira", pid=4243, status="listening", last_stop=1)
    before = only(home)
    home.database.execute("UPDATE instances SET last_stop = 2")
    beaten = only(home)
    home.database.execute("UPDATE instances SET pid = 4244")

    assert before.beat != beaten.beat
    assert before.token == beaten.token != only(home).token


@pytest.mark.parametrize(
    ("row", "state", "promise"),
    [
        ({"status": "blocked", "status_context": "approval", "status_time": 1}, "waiting", None),
        ({"status": "pending", "status_context": "new"}, None, None),
        ({"status": "active", "status_context": "deliver:x", "status_time": 1}, "working", hcom.WORKING),
        ({"status": "active", "status_context": "tool:Bash", "status_time": 1}, "working", hcom.IN_A_TOOL),
        ({"status": "listening"}, "idle", None),
        ({"status": "error", "status_time": 1}, None, None),
    ],
    ids=["blocked", "launching", "working", "tool", "listening-without-beat", "error"],
)
def test_silence_counts_where_hcom_itself_promises_beats(
    home: HcomHome, row: dict[str, Any], state: str | None, promise: float | None
) -> None:
    """Who waits for approval, is being launched, or never beat is never called silent."""
    home.add("mira", pid=4243, **row)
    assert (only(home).state, only(home).promise) == (state, promise)


def test_who_carries_the_process_id_is_the_agent(home: HcomHome, process: subprocess.Popen[bytes]) -> None:
    """hcom keeps an old identity beside a new pid: the marker that it gave to the process says more."""
    stale = json.dumps({"process_id": PROCESS, "pid_identity": f"linux:{kernel.this_boot()}:1"})
    home.add("mira", PROCESS, pid=process.pid, launch_context=stale)
    assert only(home).ticks == ticks_of(process.pid)
    assert only(home).boot_id == kernel.this_boot()


def test_without_an_identity_the_launch_tells_whose_the_pid_is(
    home: HcomHome, process: subprocess.Popen[bytes]
) -> None:
    """A process that began after the launch was written down is another's: that time is told, not a guess."""
    home.add("mira", PROCESS.replace("1", "2"), pid=process.pid)
    assert (only(home).ticks, only(home).since) == (None, BORN + hcom_runs.LAUNCH)
    home.launched(**{f"p{process.pid}": {"names": ["mira"], "launched_at": BORN + 2.5}})
    assert only(home).since == BORN + 2.5


def test_another_device_is_shown_and_left_alone(home: HcomHome) -> None:
    """Its pid is a number of that device."""
    home.add("luna:ABCD", origin_device_id="dev-1", pid=os.getpid())
    entry = only(home)
    assert entry.remote
    assert (entry.ticks, entry.since, entry.stop, entry.temp) == (None, None, None, ())
    with pytest.raises(OwnerCallFailed, match="another device"):
        hcom.forget(str(home.root), entry.key, entry.token, KILLED)
    assert home.told() == []


def test_an_interactive_one_is_stopped_by_hcom(home: HcomHome) -> None:
    """And its pane is the one that hcom noted."""
    context = json.dumps({"pane_id": "7", "terminal_preset": "kitty-tab", "kitty_listen_on": "unix:/tmp/k"})
    home.add("gura", pid=4243, launch_context=context)
    entry = only(home)
    assert entry.stop == ("env", f"HCOM_DIR={home.root}", "hcom", "stop", "gura")
    assert entry.pane == {"terminal": "kitty", "pane": "7", "server": "unix:/tmp/k"}


def test_the_tmux_server_of_a_pane_is_what_its_process_was_told(
    home: HcomHome, process: subprocess.Popen[bytes]
) -> None:
    """hcom notes the pane alone; there may be several servers."""
    context = json.dumps({"process_id": PROCESS, "pane_id": "%4", "terminal_preset_effective": "tmux-split"})
    home.add("gura", PROCESS, pid=process.pid, launch_context=context)
    assert only(home).pane == {"terminal": "tmux", "pane": "%4", "server": "/tmp/tmux-0/x"}


def test_the_end_is_written_as_hcom_writes_it(home: HcomHome) -> None:
    """One event with the snapshot; row, bindings, endpoints and subscriptions go; nothing else changes."""
    home.add("mira", PROCESS, tag="t1", pid=4243, session_id="s-1", background=1)
    home.add("other", PROCESS.replace("1", "2"), pid=4244, session_id="s-2")
    for name, session in (("mira", "s-1"), ("other", "s-2")):
        home.database.execute("INSERT INTO session_bindings VALUES (?, ?, 1.5)", (session, name))
        home.database.execute("INSERT INTO notify_endpoints VALUES (?, 'pty', 4000, 1.5)", (name,))
        subscription = json.dumps({"caller": name, "id": f"sub-{name}"}, separators=(",", ":"))
        home.database.execute("INSERT INTO kv VALUES (?, ?)", (f"events_sub:sub-{name}", subscription))
    home.pid_file.write_text(
        '{"4244":{"tool":"claude","names":["other"],"launched_at":1900000000.50},'
        '"4243":{"tool":"claude","names":["mira"],"launched_at":1900000000.5}}'
    )
    home.pid_file.chmod(0o640)
    others = {table: home.rows(table)[1:] for table in ("instances", "session_bindings", "notify_endpoints", "kv")}
    entry = next(entry for entry in hcom.discover(str(home.root)) if entry.key == "mira")

    done = hcom.forget(str(home.root), entry.key, entry.token, KILLED)

    assert done.became is Became.DONE
    assert f"HCOM_DIR={home.root} hcom r mira" in done.message
    assert {table: home.rows(table) for table in others} == others
    assert [row[2] for row in home.rows("process_bindings")] == ["other"]
    ((name, data),) = home.told()
    snapshot = data.pop("snapshot")
    assert (name, data) == (
        "mira",
        {"action": "stopped", "by": "agent-watchdog", "reason": "killed", "detail": KILLED.reason},
    )
    assert snapshot.pop("subscriptions", None) in (None, [{"caller": "mira", "id": "sub-mira"}])
    assert snapshot == {
        "agent_id": None,
        "background": 1,
        "background_log_file": "",
        "created_at": BORN,
        "directory": "/srv/w",
        "hints": None,
        "last_event_id": 0,
        "last_seen": 0,
        "launch_args": "[]",
        "name": "mira",
        "name_announced": 0,
        "origin_device_id": None,
        "parent_name": None,
        "parent_session_id": None,
        "pid": 4243,
        "session_id": "s-1",
        "subagent_timeout": None,
        "tag": "t1",
        "tool": "claude",
        "transcript_path": "",
        "wait_timeout": 86400,
    }
    stamp = home.database.execute("SELECT timestamp FROM events").fetchone()[0]
    assert stamp == "2030-03-17T17:47:40.000000+00:00"
    assert home.database.execute("SELECT rowid FROM events_fts WHERE events_fts MATCH 'killed'").fetchall() == [(1,)]
    assert home.pid_file.read_text() == '{"4244":{"tool":"claude","names":["other"],"launched_at":1900000000.50}}'
    assert home.pid_file.stat().st_mode & 0o777 == 0o640

    again = hcom.forget(str(home.root), entry.key, entry.token, KILLED)
    assert again.became is Became.GONE
    assert len(home.told()) == 1


@pytest.mark.parametrize(
    ("status", "reason"),
    [("stopped", "external"), ("lost", "process_exit"), ("completed", "closed"), ("failed", "closed")],
)
def test_each_end_has_hcoms_own_word(home: HcomHome, status: str, reason: str) -> None:
    """And the exit code where it is known."""
    home.add("mira", pid=4243)
    hcom.forget(
        str(home.root), "mira", only(home).token, EntryEnd(status, "ended", "agent-watchdog", BORN, exit_code=3)
    )
    ((_, data),) = home.told()
    assert (data["reason"], data["exit_code"]) == (reason, 3)


def test_children_that_lived_within_it_end_first(home: HcomHome) -> None:
    """A sub-agent of the same process, and its own; one with a process of its own is judged by itself."""
    home.add("mira", pid=4243, session_id="s-1")
    home.add("sub", parent_session_id="s-1", parent_name="mira", agent_id="a-1")
    home.add("subsub", parent_name="sub", agent_id="a-2")
    home.add("apart", parent_name="mira", parent_session_id="s-1", pid=4244)
    entry = next(entry for entry in hcom.discover(str(home.root)) if entry.key == "mira")

    hcom.forget(str(home.root), "mira", entry.token, KILLED)

    assert [(name, data["reason"]) for name, data in home.told()] == [
        ("subsub", "parent_stopped"),
        ("sub", "parent_stopped"),
        ("mira", "killed"),
    ]
    assert [(row[0], row[2]) for row in home.rows("instances")] == [("apart", None)]


def test_its_launch_scripts_go_and_no_others(home: HcomHome) -> None:
    """Only those in which its own process id stands; hcom leaves them for ever."""
    mine = home.script("claude_mira_1_2.sh", PROCESS)
    others = home.script("claude_mira_1_3.sh", PROCESS.replace("1", "2"))
    link = home.root / ".tmp/launch/claude_mira_1_4.sh"
    link.symlink_to(mine)
    home.add("mira", PROCESS, pid=4243)
    hcom.forget(str(home.root), "mira", only(home).token, KILLED)
    assert not mine.exists()
    assert others.exists()
    assert link.is_symlink()


def test_another_run_of_that_name_stays(home: HcomHome) -> None:
    """Between the look and the act it was taken up again."""
    home.add("mira", pid=4243)
    token = only(home).token
    home.database.execute("UPDATE instances SET created_at = created_at + 10, pid = 4244")
    before = home.rows("instances")

    assert hcom.forget(str(home.root), "mira", token, KILLED).became is Became.CHANGED
    assert home.rows("instances") == before
    assert home.told() == []


def test_a_fault_halfway_leaves_all_as_it_was(home: HcomHome) -> None:
    """Event and deletions are one transaction."""
    home.add("mira", PROCESS, pid=4243)
    home.database.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'the disk is full'); END"
    )
    with pytest.raises(OwnerCallFailed, match="the disk is full"):
        hcom.forget(str(home.root), "mira", only(home).token, KILLED)
    assert len(home.rows("instances")) == len(home.rows("process_bindings")) == 1


def test_a_layout_that_is_not_known_is_read_and_not_written(home: HcomHome) -> None:
    """A later version, or one without a table that we would have to keep in step."""
    home.add("mira", pid=4243)
    token = only(home).token
    home.database.execute("PRAGMA user_version = 21")
    assert only(home).name == "mira"
    with pytest.raises(OwnerCallFailed, match="left alone"):
        hcom.forget(str(home.root), "mira", token, KILLED)
    home.database.execute("PRAGMA user_version = 20")
    home.database.execute("DROP TABLE notify_endpoints")
    with pytest.raises(OwnerCallFailed, match="left alone"):
        hcom.forget(str(home.root), "mira", token, KILLED)
    assert len(home.rows("instances")) == 1


def test_a_database_that_was_replaced_is_read_anew(home: HcomHome, tmp_path: Path) -> None:
    """hcom archives one of an older version and begins another."""
    home.add("mira", pid=4243)
    assert only(home).name == "mira"
    home.database.close()
    for name in ("hcom.db", "hcom.db-wal", "hcom.db-shm"):
        (home.root / name).unlink(missing_ok=True)
    assert hcom.discover(str(home.root)) == []
    HcomHome(tmp_path).add("gura", pid=4244)
    assert only(home).name == "gura"


def test_a_leftover_process_is_shown_and_its_line_can_go(home: HcomHome, process: subprocess.Popen[bytes]) -> None:
    """hcom's orphans: stopped, yet running on. Their user may want that: no silence counts."""
    home.launched(
        p4243={"names": ["zara"], "launched_at": BORN, "tag": "t1", "session_id": "s-9"},
        **{f"p{process.pid}": {"names": ["mira"], "launched_at": BORN, "process_id": PROCESS}},
    )
    by_name = {entry.name: entry for entry in hcom.discover(str(home.root))}
    zara, mira = by_name["t1-zara"], by_name["mira"]
    assert (zara.name, zara.pid, zara.since, zara.promise, zara.conversation) == ("t1-zara", 4243, BORN, None, "s-9")
    assert (mira.pid, mira.ticks) == (process.pid, ticks_of(process.pid))

    assert hcom.forget(str(home.root), zara.key, "another", KILLED).became is Became.CHANGED
    assert hcom.forget(str(home.root), zara.key, zara.token, KILLED).became is Became.DONE
    assert hcom.forget(str(home.root), zara.key, zara.token, KILLED).became is Became.GONE
    assert list(json.loads(home.pid_file.read_text())) == [str(process.pid)]


@pytest.mark.parametrize("pid", [2**40, 139_872_345_678_912, 0, -1, 1], ids=str)
def test_what_is_no_pid_is_none(home: HcomHome, pid: int) -> None:
    """A number that no process can have, or that nobody may signal."""
    home.add("mira", pid=pid)
    assert only(home).pid is None


def test_what_is_no_registry_of_ours_is_refused(home: HcomHome, tmp_path: Path) -> None:
    """A link, a file that is no database. A pid file that is half written hides no row; what only it has is unread."""
    home.pid_file.write_text('{"4243":{"tool":"cl')
    home.add("mira", pid=4243)
    left, one = hcom.discover(str(home.root))
    assert (left.key, "no whole JSON" in left.unread, one.name) == ("pid:", True, "mira")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/hcom.db").symlink_to(home.path)
    with pytest.raises(OwnerCallFailed, match="not a regular file"):
        hcom.discover(str(tmp_path / "b"))
    (tmp_path / "c").mkdir()
    (tmp_path / "c/hcom.db").write_text("this is no database, however long it may be\n" * 200)
    with pytest.raises(OwnerCallFailed, match="not a database"):
        hcom.discover(str(tmp_path / "c"))


def test_a_lock_of_hcoms_is_waited_for_and_then_told(home: HcomHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that never ends must not hold the helper."""
    home.add("mira", pid=4243)
    token = only(home).token
    monkeypatch.setattr("watchdog.owner.sources.files.WRITE_WAIT", 0.05)
    other = sqlite3.connect(home.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.monotonic()
    with pytest.raises(OwnerCallFailed) as caught:
        hcom.forget(str(home.root), "mira", token, KILLED)
    assert caught.value.reason == "busy"
    assert time.monotonic() - began < 60
    assert only(home).name == "mira"
    other.close()


def test_a_broken_line_of_the_pid_file_hides_nobody(home: HcomHome) -> None:
    """Numbers that are no times, and keys that are no numbers that any process has."""
    home.add("luna", PROCESS, pid=4000000)
    lines: dict[str, dict[str, Any]] = {
        "p4000000": {"names": ["luna"], "launched_at": 10**400},
        "9" * 5000: {"names": ["x"]},
    }
    home.launched(**lines)
    assert only(home).key == "luna"


def test_the_living_come_before_those_who_have_ended(home: HcomHome) -> None:
    """As many as one look tells may lie there since long."""
    for number in range(MOST_TOLD):
        home.add(f"old{number}", status="inactive", status_context="exit:0", created_at=BORN - 1000)
    home.add("luna", PROCESS, pid=4000000)
    found = hcom.discover(str(home.root))
    assert len(found) == MOST_TOLD and found[0].key == "luna"


def test_a_subscription_that_is_no_json_keeps_no_end_from_being_written(home: HcomHome) -> None:
    """It is nobody's, and stays."""
    home.add("luna", PROCESS, pid=4000000)
    home.database.execute("INSERT INTO kv VALUES ('events_sub:1', '{half')")
    assert hcom.forget(str(home.root), "luna", only(home).token, KILLED).became is Became.DONE
    assert home.rows("kv") == [("events_sub:1", "{half")]


def test_the_command_to_resume_is_one_that_can_be_typed(tmp_path: Path) -> None:
    """A row's name may hold what a shell would run; a directory's may have a space."""
    home = HcomHome(tmp_path / "a b")
    home.add("x; id", PROCESS, pid=4000000)
    assert shlex.split(only(home).resume or "") == [f"HCOM_DIR={home.root}", "hcom", "r", "x; id"]
