"""Sessions of tmux-agent-orchestrate: files as it writes them, and real panes on a tmux server of their own."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.world import wait_for
from watchdog.core.source_entries import Became, Entry, EntryEnd, entry_json, entry_of
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import agent_sessions, files, kernel, yaml_rows

NAME = "p-app-creator-claude"
CONVERSATION = "11111111-2222-4333-8444-555555555555"
YAML = """\
# kept by the skills
agent_identities: {claude: {session_id: 11111111-2222-4333-8444-555555555555, project_cwd: /srv/p/app}}
tmux_sessions:
- name: p-old-creator-agy
  status: stopped   # by hand
  stopped_at: '2030-01-01T00:00:00Z'
  agy_conversation_id_own: "aa-bb"
  pane: {pid: 4243, cmd: agy, cwd: /srv/p/old}
- name: p-app-creator-claude
  status: running  # at work
  tmux_server: SERVER
  pane: {pid: PID, cmd: claude, cwd: /srv/p/app}
  claude_session_id_own: null
  start_command: claude
  mcp_attachments: []
  delegate_job_id: JOB

# the end
"""
LAYOUTS = ["rows", "document", "yaml"]


class Registry:
    """One registry in one of its three layouts."""

    def __init__(
        self,
        folder: Path,
        layout: str,
        server: str = "none",
        pid: int = 4000000,
        job: str = "null",
        conversation: str | None = None,
    ) -> None:
        folder.mkdir(parents=True)
        self.folder, self.layout = folder, layout
        self.yaml, self.db = folder / "agent-sessions.yaml", folder / "agent-sessions.db"
        self.before = YAML.replace("SERVER", server).replace("PID", str(pid)).replace("JOB", job)
        if conversation:
            self.before = self.before.replace("own: null", f"own: {conversation}")
        self.yaml.write_text(self.before)
        self.yaml.chmod(0o640)
        pane = {"pid": pid, "cmd": "claude", "cwd": "/srv/p/app"}
        rows: list[dict[str, Any]] = [
            {"name": "p-old-creator-agy", "status": "stopped", "stopped_at": "2030-01-01T00:00:00Z"},
            {
                "name": NAME,
                "status": "running",
                "tmux_server": server,
                "pane": pane,
                "claude_session_id_own": conversation,
            }
            | {"start_command": "claude", "mcp_attachments": [], "delegate_job_id": json.loads(job)},
        ]
        if layout == "yaml":
            return
        with sqlite3.connect(self.db) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("CREATE TABLE state (id INTEGER PRIMARY KEY, data TEXT)")
            document: dict[str, Any] = {"agent_identities": {"claude": {"weight": 1.50}}}
            if layout == "document":
                document["tmux_sessions"] = rows
            else:
                database.execute("CREATE TABLE sessions (name TEXT PRIMARY KEY, status TEXT, pane_cwd TEXT, data JSON)")
                values = [(row["name"], row["status"], "/srv", json.dumps(row)) for row in rows]
                database.executemany("INSERT INTO sessions VALUES (?, ?, ?, ?)", values)
            database.execute("INSERT INTO state VALUES (1, ?)", (json.dumps(document),))
        database.close()

    def content(self) -> list[Any]:
        """All that the database holds."""
        if self.layout == "yaml":
            return []
        database = sqlite3.connect(self.db)
        found = database.execute("SELECT data FROM state").fetchall()
        if self.layout == "rows":
            found += database.execute("SELECT * FROM sessions ORDER BY name DESC").fetchall()
        database.close()
        return found

    def stored(self, name: str = NAME) -> dict[str, Any]:
        """The row in the source of truth."""
        content = self.content()
        if self.layout == "document":
            rows = json.loads(content[0][0])["tmux_sessions"]
        elif self.layout == "rows":
            rows = [json.loads(row[3]) for row in content[1:]]
            assert [row[1] for row in content[1:]] == [row["status"] for row in rows]
        else:
            rows = agent_sessions._yaml().load(self.yaml.read_text())["tmux_sessions"]
        (found,) = (row for row in rows if row["name"] == name)
        assert isinstance(found, dict)
        return found

    def entries(self) -> dict[str, Entry]:
        found = agent_sessions.discover(str(self.yaml))
        return {one.key: entry_of(json.loads(json.dumps(entry_json(one)))) for one in found}

    def forget(self, end: EntryEnd, token: str | None = None) -> Became:
        token = self.entries()[NAME].token if token is None else token
        return agent_sessions.forget(str(self.yaml), NAME, token, end).became


def end(status: str = "stopped", **more: Any) -> EntryEnd:
    return EntryEnd(status, "api_error: it's over", "root", 1893553505.5, **more)


@pytest.fixture
def pane(tmp_path: Path) -> Iterator[tuple[str, int]]:
    """A session of that name on a server of its own: the server's name, the pane's process."""
    server = f"aw-test-{os.getpid()}-{tmp_path.name[-40:]}"  # the one before may be just ending
    tmux = ["tmux", "-f", "/dev/null", "-L", server]
    subprocess.run([*tmux, "new-session", "-d", "-s", NAME, "sleep", "300"], check=True)  # no shell: nobody has none
    try:
        ran = subprocess.run([*tmux, "list-panes", "-a", "-F", "#{pane_pid}"], check=True, capture_output=True)
        yield server, int(ran.stdout)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)
        Path(f"/tmp/tmux-{os.geteuid()}/{server}").unlink(missing_ok=True)  # tmux leaves it


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_row_means_the_process_of_its_pane(tmp_path: Path, layout: str, pane: tuple[str, int]) -> None:
    """Its own tmux server says so, and the process is told with what the kernel knows it by; it promises no beat."""
    made = Registry(tmp_path / ".mam", layout, *pane)

    entry = made.entries()[NAME]

    assert (entry.name, entry.pid, entry.type, entry.cwd) == (NAME, pane[1], "claude", "/srv/p/app")
    assert entry.ticks == int(Path(f"/proc/{pane[1]}/stat").read_text().rpartition(")")[2].split()[19])
    assert entry.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert entry.pane is not None and entry.pane["session"] == NAME and entry.pane["pane"] == "%0"
    assert os.path.basename(entry.pane["server"]) == pane[0]
    assert (entry.promise, entry.beat) == (None, None)
    assert agent_sessions.discover(str(tmp_path)) == agent_sessions.discover(str(made.yaml))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_that_have_ended_are_told_and_stay(tmp_path: Path, layout: str) -> None:
    """Stopped, terminated and archived rows are nobody's to write."""
    made = Registry(tmp_path / ".hermes", layout)
    token = made.entries()["p-old-creator-agy"].token
    assert not made.entries()["p-old-creator-agy"].living
    content = made.content()

    done = agent_sessions.forget(str(made.yaml), "p-old-creator-agy", token, end("lost"))

    assert (done.became, done.message) == (Became.GONE, "p-old-creator-agy is already stopped")
    assert (made.content(), made.yaml.read_text()) == (content, made.before)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("how", "wanted"),
    [
        (
            end(),
            {
                "status": "stopped",
                "resumable": True,
                "termination_mode": "graceful",
                "stop_reason": "api_error: it's over",
            },
        ),
        (end("killed"), {"status": "stopped", "resumable": True, "termination_mode": "graceful"}),
        (end("killed", resumable=False), {"status": "stopped", "resumable": True}),
        (end("lost"), {"status": "terminated", "resumable": False, "stop_reason": "(auto-detected)"}),
        (end("completed"), {"status": "terminated", "resumable": False, "stop_reason": "(auto-detected)"}),
    ],
    ids=["stopped", "killed", "no conversation", "lost", "completed"],
)
def test_each_end_has_its_fields_in_both_files(
    tmp_path: Path, layout: str, how: EntryEnd, wanted: dict[str, Any]
) -> None:
    """What the program's own stop, purge and monitor write; the conversation's place stays, null too."""
    made = Registry(tmp_path / ".mam", layout)

    assert made.forget(how) is Became.DONE

    stored, status = made.stored(), wanted["status"]
    view = next(r for r in agent_sessions._yaml().load(made.yaml.read_text())["tmux_sessions"] if r["name"] == NAME)
    assert view == stored
    assert {key: stored[key] for key in wanted} == wanted
    assert stored[f"{status}_at"] == "2030-01-02T03:05:05Z"
    assert stored[f"{status}_at_epoch"] == 1893553505
    assert stored["last_visible_status"] == status
    assert stored["last_visible_note"] == "ended by root: api_error: it's over"
    assert stored["claude_session_id_own"] is None and stored["pane"]["cmd"] == "claude"
    assert made.forget(how, "any") is Became.GONE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_purge_terminates_a_stopped_row_and_keeps_its_id(tmp_path: Path, layout: str) -> None:
    """And it is nothing that a second try of a stop does."""
    made = Registry(tmp_path / ".mam", layout, conversation=CONVERSATION)
    token = made.entries()[NAME].token
    assert made.entries()[NAME].resume == f"claude -r {CONVERSATION}"
    assert made.forget(end()) is Became.DONE
    assert made.forget(end(), token) is Became.GONE

    assert made.forget(end("killed", resumable=False), token) is Became.DONE

    stored = made.stored()
    assert (stored["status"], stored["resumable"], stored["termination_mode"]) == ("terminated", False, "purge")
    assert (stored["stopped_at_epoch"], stored["terminated_at_epoch"]) == (1893553505, 1893553505)
    assert stored["claude_session_id_own"] == CONVERSATION
    assert made.forget(end("killed", resumable=False), token) is Became.GONE


@pytest.mark.parametrize("layout", LAYOUTS)
def test_nothing_outside_of_the_row_changes(tmp_path: Path, layout: str) -> None:
    """Comments, quotes, order and the other rows stay byte for byte; the former view is kept as `.bak`."""
    made = Registry(tmp_path / ".mam", layout)
    before = made.content()

    made.forget(end())

    head, _, tail = made.before.partition("  status: running  # at work\n")
    text = made.yaml.read_text()
    assert text.startswith(head + "  status: stopped  # at work\n") and text.endswith(tail)
    added = text[len(head) : -len(tail)].splitlines()[1:]
    assert len(added) == 7 and all(line.startswith("  ") and ": " in line for line in added)
    assert made.yaml.stat().st_mode & 0o777 == 0o640
    assert (made.folder / "agent-sessions.yaml.bak").read_text() == made.before
    after = made.content()
    if layout == "rows":
        assert after[:2] == before[:2]
        assert after[2][:1] + after[2][2:3] == before[2][:1] + before[2][2:3]
        assert after[2][3].startswith(before[2][3][:-1].replace('"running"', '"stopped"'))
    elif layout == "document":
        kept = before[0][0].replace('"status": "running"', '"status": "stopped"')
        assert after[0][0].startswith(kept[: kept.index('"delegate_job_id": null') + 20])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_resumed_row_stays_and_so_does_one_whose_pane_lives(
    tmp_path: Path, layout: str, pane: tuple[str, int]
) -> None:
    """Compare before write; and what tmux still shows has not ended, whoever says so."""
    made = Registry(tmp_path / ".mam", layout, *pane)
    content = made.content()

    with pytest.raises(OwnerCallFailed, match="living pane"):
        made.forget(end())
    assert made.forget(end(), "other 1 None None None None") is Became.CHANGED
    assert (made.content(), made.yaml.read_text()) == (content, made.before)


def test_what_the_registry_and_tmux_say_differently_is_told(tmp_path: Path, pane: tuple[str, int]) -> None:
    """A session that no row has, one that a row has ended, one with another process; the rows stay as they are."""
    server, pid = pane
    for name in ("p-app-creator-agy", "p-old-creator-agy", "q-other-creator-agy", "p-app"):
        subprocess.run(["tmux", "-L", server, "new-session", "-d", "-s", name, "sleep", "300"], check=True)
    made = Registry(tmp_path / ".mam", "rows", server, pid)

    told = {key: one.drift.partition(", and ") for key, one in made.entries().items() if one.drift}
    lives = f"its tmux session lives on the server {server}"
    assert told == {
        "drift p-app-creator-agy": (lives, ", and ", "the registry has no such session"),
        "drift p-old-creator-agy": (lives, ", and ", "the registry says that it is stopped"),
    }
    assert made.entries()[NAME].ticks is not None

    gone = subprocess.Popen(["true"])
    gone.wait()
    other = Registry(tmp_path / "other", "rows", server, gone.pid)
    said = f"its row says pid {gone.pid}, and its tmux session lives with {pid}"
    assert other.entries()[f"drift {NAME}"].drift == said
    assert NAME not in other.entries()
    assert other.yaml.read_text() == other.before


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_conversation_that_its_row_does_not_have_is_told_and_written_at_its_end(
    tmp_path: Path, layout: str, pane: tuple[str, int]
) -> None:
    """As Claude Code's own list has it of that very process; of another one with the number it says nothing."""
    server, _ = pane
    listed = tmp_path / "claude/sessions"
    listed.mkdir(parents=True)
    command = ["env", f"CLAUDE_CONFIG_DIR={listed.parent}", "sleep", "300"]
    subprocess.run(["tmux", "-L", server, "respawn-pane", "-k", "-t", NAME, *command], check=True)
    ran = subprocess.run(
        ["tmux", "-L", server, "list-panes", "-a", "-F", "#{pane_pid}"], check=True, capture_output=True
    )
    pid = int(ran.stdout)
    wait_for(lambda: kernel.environ(pid).get("CLAUDE_CONFIG_DIR"), "it runs")
    made = Registry(tmp_path / ".mam", layout, server, pid)
    ticks = made.entries()[NAME].ticks or 0
    for start, found in ((ticks + 1, None), (ticks, CONVERSATION)):
        (listed / f"{pid}.json").write_text(json.dumps({"pid": pid, "procStart": start, "sessionId": CONVERSATION}))
        assert made.entries()[NAME].conversation == found
    assert made.entries()[NAME].note == f"its row has no conversation yet: {CONVERSATION}"
    token = made.entries()[NAME].token

    subprocess.run(["tmux", "-L", server, "kill-server"], check=True)
    wait_for(lambda: kernel.process(pid) is None, "it ends")
    assert made.forget(end(conversation=CONVERSATION), token) is Became.DONE
    assert made.stored()["claude_session_id_own"] == CONVERSATION


def test_a_process_that_was_never_in_that_server_has_the_number_by_chance(tmp_path: Path) -> None:
    """The entry's time is before any process: the daemon takes it for a ghost, and nobody is signalled."""
    innocent = subprocess.Popen(["sleep", "60"], env={"A": "b"})
    try:
        entry = Registry(tmp_path / ".mam", "rows", f"aw-none-{os.getpid()}", innocent.pid).entries()[NAME]
        assert (entry.pid, entry.since, entry.ticks) == (innocent.pid, 0.0, None)
    finally:
        innocent.kill()
        innocent.wait()


@pytest.mark.parametrize("layout", ["rows", "document"])
def test_both_files_or_neither(tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A YAML without the row, a write that fails, and another's lock leave both as they were."""
    made = Registry(tmp_path / ".mam", layout)
    content, token = made.content(), made.entries()[NAME].token
    made.yaml.write_text(made.before.replace(NAME, "p-renamed"))
    with pytest.raises(OwnerCallFailed, match="no row of its own"):
        made.forget(end(), token)
    assert made.content() == content

    made.yaml.write_text(made.before)
    with monkeypatch.context() as broken:
        broken.setattr(files, "replaced", lambda *_: False)
        with pytest.raises(OwnerCallFailed, match="by another"):
            made.forget(end(), token)
    assert (made.content(), made.yaml.read_text()) == (content, made.before)

    monkeypatch.setattr(files, "WRITE_WAIT", 0.1)
    other = sqlite3.connect(made.db, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(OwnerCallFailed) as busy:
        made.forget(end(), token)
    other.close()
    assert (busy.value.reason, made.yaml.read_text()) == ("busy", made.before)


@pytest.mark.parametrize("how", ["stopped", "lost"])
def test_its_job_is_told_once(tmp_path: Path, how: str) -> None:
    """Two events with the next numbers, the state and the record; all else stays, and a second end adds nothing."""
    made = Registry(tmp_path / ".mam", "rows", job='"abc12345"')
    record, logs = made.folder / "jobs" / "abc12345.json", made.folder / "delegate_job_logs" / "abc12345"
    record.parent.mkdir()
    logs.mkdir(parents=True)
    job = {
        "schema_version": 1,
        "job_id": "abc12345",
        "status": "running",
        "updated_at": "x",
        "prompt": "p",
        "last_seq": 3,
    }
    record.write_text(json.dumps(job, indent=2))
    record.chmod(0o600)
    (logs / "status.json").write_text('{"status": "running", "job_id": "abc12345"}')
    first = '{"seq": 3, "event": "progress"}\n'
    (logs / "events.ndjson").write_text(first)

    assert made.forget(end(how)) is Became.DONE

    last = "completed" if how == "stopped" else "error"
    text = (logs / "events.ndjson").read_text()
    events = [json.loads(line) for line in text.removeprefix(first).splitlines()]
    assert text.startswith(first)
    assert [(one["seq"], one["event"]) for one in events] == [(4, "progress"), (5, last)]
    assert events[0]["detail"] == "terminating"
    assert events[0].keys() == {"schema_version", "seq", "job_id", "event", "timestamp", "detail"}
    assert json.loads((logs / "status.json").read_text()) == {"status": last, "job_id": "abc12345"}
    assert json.loads(record.read_text()) == {
        **job,
        "status": last,
        "updated_at": "2030-01-02T03:05:05Z",
        "last_seq": 5,
    }
    assert record.stat().st_mode & 0o777 == 0o600
    made.yaml.unlink()
    made.db.unlink()
    again = Registry(tmp_path / "again", "yaml", job='"abc12345"')
    (tmp_path / "again" / "jobs").symlink_to(record.parent)
    (tmp_path / "again" / "delegate_job_logs").symlink_to(logs.parent)
    assert again.forget(end(how)) is Became.DONE
    assert (logs / "events.ndjson").read_text() == text


def test_a_layout_that_is_not_understood_is_left_alone(tmp_path: Path) -> None:
    """Another schema, no YAML, a row that is no row; a registry that is not there holds no session."""
    assert agent_sessions.discover(str(tmp_path / "none")) == []
    for number, text in enumerate(("tmux_sessions: {a: b}", "- a\n- b", "a: [", "tmux_sessions:\n- 1\n- {name: 3}\n")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        try:
            assert agent_sessions.discover(str(path)) == []
        except OwnerCallFailed as error:
            assert error.reason == "not_understood"
    made = Registry(tmp_path / ".mam", "rows")
    with sqlite3.connect(made.db) as database:
        database.execute("ALTER TABLE sessions RENAME COLUMN data TO content")
        database.execute("ALTER TABLE state RENAME COLUMN data TO content")
    database.close()
    for act in (made.entries, lambda: made.forget(end(), "x")):
        with pytest.raises(OwnerCallFailed, match="not understood"):
            act()
    assert made.yaml.read_text() == made.before


@pytest.mark.parametrize("place", ["middle", "last"])
@pytest.mark.parametrize("new_line", ["\n", "\r\n"])
def test_a_member_without_a_value_gets_one_and_lines_end_as_the_others_do(place: str, new_line: str) -> None:
    """A null may be written as nothing at all; for the parser it stands where the next member begins."""
    after = "  pane: {pid: 7}\n" if place == "middle" else ""
    text = f"tmux_sessions:\n- name: {NAME}\n  status: running\n  stop_reason :\n{after}"

    new = yaml_rows.with_members(
        text.replace("\n", new_line),
        "tmux_sessions",
        NAME,
        {"status": "stopped", "stop_reason": "a: b", "resumable": True},
    )

    wanted = text.replace("running\n", "stopped\n  resumable: true\n").replace("reason :", "reason : 'a: b'")
    assert new == wanted.replace("\n", new_line)


def test_two_sessions_of_one_name_are_left_alone_and_told(tmp_path: Path) -> None:
    """Nobody can say which of them has ended."""
    made = Registry(tmp_path / ".mam", "yaml")
    text = made.before.replace("p-old-creator-agy", NAME)
    made.yaml.write_text(text)
    with pytest.raises(OwnerCallFailed, match="2 sessions"):
        made.forget(end(), "any")
    assert made.yaml.read_text() == text


def test_without_ruamel_the_source_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The helper serves all else."""
    made = Registry(tmp_path / ".mam", "yaml")
    monkeypatch.delattr("watchdog.owner.sources.yaml_rows", raising=False)
    monkeypatch.setitem(sys.modules, "watchdog.owner.sources.yaml_rows", None)  # as if its import failed
    with pytest.raises(OwnerCallFailed, match=r"ruamel\.yaml is missing"):
        made.entries()


def test_a_row_that_is_no_json_hides_no_other(tmp_path: Path) -> None:
    """Nor keeps its end from being written."""
    made = Registry(tmp_path / ".mam", "rows")
    with sqlite3.connect(made.db) as database:
        database.execute("INSERT INTO sessions VALUES ('half', 'running', '/srv', '{\"name\": ')")
    database.close()
    assert NAME in made.entries()
    assert made.forget(end()) is Became.DONE


def test_a_view_that_did_not_change_is_not_read_through_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of 200 sessions takes 0.8 s of a core."""
    made = Registry(tmp_path / ".mam", "yaml")
    first = made.entries()
    monkeypatch.setattr(yaml_rows, "load", lambda _: pytest.fail("read again"))
    assert made.entries() == first
    monkeypatch.undo()
    assert made.forget(end()) is Became.DONE
    assert not made.entries()[NAME].living
