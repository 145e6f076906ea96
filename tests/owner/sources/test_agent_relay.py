"""agent-relay's agents are read from its lists and their processes; one that ended goes from those who live."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.owner.sources.relay_home import PROJECT, RelayHome, printed
from tests.world import wait_for
from watchdog.core.source_entries import MOST_TOLD, Became, Entry, EntryEnd
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import agent_relay, files, kernel, relay_runs

ENDED = 1_900_000_060.0
KILLED = EntryEnd("killed", "stalled: silent for 2m05s", "agent-watchdog", ENDED, signal="SIGKILL")


@pytest.fixture
def home(tmp_path: Path) -> RelayHome:
    """One of 1.6."""
    return RelayHome(tmp_path)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """What a test starts ends with it, and what that has started."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        if process.stdin:
            process.stdin.close()
        for child in children(process.pid):
            with suppress(ProcessLookupError):  # it has ended with the one before
                os.kill(child, 9)
        process.kill()
        process.wait()


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def found(home: RelayHome) -> dict[str, Entry]:
    return {entry.name: entry for entry in agent_relay.discover(str(home.root))}


def alpha_with(home: RelayHome, wanted: Callable[[Entry], object], what: str) -> Entry:
    """As soon as its processes are there."""

    def look() -> Entry | None:
        entry = found(home)["Alpha"]
        return entry if wanted(entry) else None

    return wait_for(look, what)


def test_connected_and_registered_are_two_things(home: RelayHome) -> None:
    """Who was registered once has ended, as far as agent-relay knows; its own helpers are no agents."""
    home.connected("Alpha", "__spawner__", "Dashboard")
    home.registered("Alpha", "Old")
    entries = found(home)
    assert {name: (one.living, one.note) for name, one in entries.items()} == {
        "Alpha": (True, "connected"),
        "Old": (False, "registered, not connected"),
    }
    alpha = entries["Alpha"]
    assert (alpha.key, alpha.type, alpha.cwd, alpha.pid) == (f"{PROJECT}/Alpha", "claude", "/srv/w", None)
    assert (alpha.promise, alpha.beat) == (None, None)  # its files are written at a message, not by a clock


def test_wrapper_and_harness_are_one_agent(home: RelayHome, started: list[subprocess.Popen[bytes]]) -> None:
    """The wrapper by its identity, what it wraps beside it: the end of either is the agent's."""
    home.connected("Alpha")
    started.append(home.wrapper("Alpha"))
    started.append(home.wrapper("Beta"))  # of no list here
    pid = started[0].pid
    wait_for(lambda: children(pid) and kernel.process(pid), "the wrapper and what it wraps")
    alpha = found(home)["Alpha"]
    one = kernel.process(pid)
    assert one is not None
    assert (alpha.pid, alpha.ticks, alpha.boot_id, alpha.also) == (
        pid,
        one.ticks,
        kernel.this_boot(),
        (*children(pid),),
    )
    assert alpha.log == str(home.team / "worker-logs/Alpha.log")


def test_what_is_forked_and_not_executed_yet_is_no_wrapper(
    home: RelayHome, started: list[subprocess.Popen[bytes]]
) -> None:
    """Until it executes what it is to wrap, it has the wrapper's command line: it would be the agent, alone."""
    home.connected("Alpha")
    started.append(home.wrapper("Alpha", "(read -rt 60 <> <(:))"))
    pid = started[0].pid
    wait_for(lambda: children(pid), "it has forked")
    (forked,) = children(pid)
    started_as = Path(f"/proc/{forked}/cmdline").read_bytes()
    assert started_as == Path(f"/proc/{pid}/cmdline").read_bytes()
    alpha = found(home)["Alpha"]
    assert (alpha.pid, alpha.also) == (pid, (forked,))


def test_create_agent_around_it_is_the_wrapper(home: RelayHome, started: list[subprocess.Popen[bytes]]) -> None:
    """Where a person started it; below the server, relay-pty itself is the outermost of the agent's own."""
    home.connected("Alpha")
    log = str(home.team / "worker-logs/Alpha.log")
    inner = f'exec -a relay-pty bash -c "sleep 60 & wait" --name Alpha --log-file {log} -- claude'
    node = subprocess.Popen(["node", "-c", f"({inner}) & wait", "create-agent", "-n", "Alpha"], executable="/bin/bash")
    started.append(node)
    alpha = alpha_with(home, lambda one: one.also[1:], "all three of it")
    (pty,) = children(node.pid)
    assert (alpha.pid, alpha.also) == (node.pid, (pty, *children(pty)))
    for pid in alpha.also:
        with suppress(ProcessLookupError):  # it has ended with the one before
            os.kill(pid, 9)


def test_a_wrapper_whose_harness_is_gone_is_said(home: RelayHome, started: list[subprocess.Popen[bytes]]) -> None:
    """It stands among the connected for ever, as far as agent-relay goes."""
    home.connected("Alpha")
    log = str(home.team / "worker-logs/Alpha.log")
    words = ["relay-pty", "-c", "read line", "--name", "Alpha", "--log-file", log]
    started.append(subprocess.Popen(words, executable="/bin/bash", stdin=subprocess.PIPE))
    alpha = alpha_with(home, lambda one: one.pid, "the wrapper")
    assert alpha.note == "connected; what its wrapper started is gone"


def test_another_directorys_agent_of_that_name_is_not_this_one(
    home: RelayHome, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """Names are unique within a project only."""
    (tmp_path / "b").mkdir()
    other = RelayHome(tmp_path / "b")
    home.connected("Alpha")
    other.connected("Alpha")
    started.append(other.wrapper("Alpha"))
    wait_for(lambda: found(other)["Alpha"].pid, "the other's wrapper")
    assert found(home)["Alpha"].pid is None


def test_a_worker_is_told_with_the_time_of_its_start(home: RelayHome) -> None:
    """Its pid may be another's by now: it has no identity but that time (milliseconds)."""
    home.workers({"name": "W", "pid": 4243, "spawnedAt": 1_900_000_000_500, "logFile": "/srv/l"})
    worker = found(home)["W"]
    assert (worker.pid, worker.since, worker.ticks, worker.log) == (4243, 1_900_000_000.5, None, "/srv/l")


def test_who_is_connected_to_a_server_that_is_gone_has_gone_with_it(home: RelayHome) -> None:
    """Nobody rewrites that list any more; while the server runs it is the server's word."""
    home.connected("Alpha")
    child = subprocess.Popen(["true"])
    child.wait()
    (home.data / "relay.sock.pid").write_text(f"{child.pid}\n")
    alpha = found(home)["Alpha"]
    assert (alpha.pid, alpha.since) == (child.pid, (home.data / "relay.sock.pid").stat().st_mtime)
    (home.data / "relay.sock.pid").write_text(f"{os.getpid()}\n")
    assert found(home)["Alpha"].pid is None


def test_the_end_takes_it_from_those_who_live(home: RelayHome) -> None:
    """List by list, all else byte for byte; that it was registered stays known; its messages stay."""
    connected = home.connected("Alpha", "Beta")
    registered = home.registered("Alpha", "Beta")
    workers = home.workers({"name": "Beta", "pid": 9}, {"name": "Alpha", "pid": 4243})
    connected.chmod(0o640)
    for name in ("Alpha", "Beta"):
        home.session(name)
        home.database.execute("INSERT INTO presence VALUES (?, 'online', NULL, 1, NULL)", (name,))
    home.database.execute("INSERT INTO messages VALUES ('m1', 1, 'Alpha', 'Beta', 'message', 'hi', 'unread')")
    before = registered.read_text(), home.rows("messages")
    alpha = found(home)["Alpha"]

    done = agent_relay.forget(str(home.root), alpha.key, alpha.token, KILLED)

    assert done.became is Became.DONE
    assert "connected agents" in done.message
    data = json.loads(connected.read_text())
    assert data["agents"] == ["Beta"]
    assert abs(data["updatedAt"] / 1000 - time.time()) < 60
    assert connected.read_text() == printed({"agents": ["Beta"], "users": ["me"], "updatedAt": data["updatedAt"]})
    assert connected.stat().st_mode & 0o777 == 0o640
    assert workers.read_text() == printed({"workers": [{"cli": "claude", "task": "x", "name": "Beta", "pid": 9}]})
    assert (registered.read_text(), home.rows("messages")) == before
    assert home.database.execute("SELECT agent_name, ended_at, closed_by FROM sessions ORDER BY 1").fetchall() == [
        ("Alpha", int(ENDED * 1000), "error"),
        ("Beta", None, None),
    ]
    assert [row[:2] for row in home.rows("presence")] == [("Alpha", "offline"), ("Beta", "online")]
    assert not found(home)["Alpha"].living


def test_its_messages_go_where_that_is_asked_for(home: RelayHome) -> None:
    """And then nothing tells of it any more; others' stay."""
    home.connected()
    home.registered("Alpha", "Beta")
    for name in ("Alpha", "Beta"):
        home.session(name)
    home.database.execute(
        "INSERT INTO messages VALUES ('1', 1, 'Alpha', 'Beta', 'message', 'a', 'read'),"
        " ('2', 1, 'Beta', 'Alpha', 'message', 'b', 'read'), ('3', 1, 'Beta', '*', 'message', 'c', 'read')"
    )
    alpha = found(home)["Alpha"]
    end = EntryEnd("stopped", "removed", "root", ENDED, with_messages=True)

    done = agent_relay.forget(str(home.root), alpha.key, alpha.token, end)

    assert "messages (2)" in done.message
    assert [row[0] for row in home.rows("messages")] == ["3"]
    assert [row[1] for row in home.rows("sessions")] == ["Beta"]
    assert list(found(home)) == ["Beta"]
    assert agent_relay.forget(str(home.root), alpha.key, alpha.token, end).became is Became.GONE


def test_another_run_of_that_name_stays(home: RelayHome) -> None:
    """It has connected anew: another session, another run."""
    connected = home.connected("Alpha")
    home.session("Alpha")
    alpha = found(home)["Alpha"]
    home.session("Alpha", 2)
    before = connected.read_text()
    assert agent_relay.forget(str(home.root), alpha.key, alpha.token, KILLED).became is Became.CHANGED
    assert connected.read_text() == before
    assert [row[6] for row in home.rows("sessions")] == [None, None]


def test_another_run_that_is_only_connected_yet_stays(home: RelayHome, started: list[subprocess.Popen[bytes]]) -> None:
    """Without a session, and spawned by nobody, it looks like what a fault has left of the former one; but it runs."""
    connected = home.connected("Alpha")
    home.workers({"name": "Alpha", "pid": 4000000, "spawnedAt": 1_900_000_000_000})
    alpha = found(home)["Alpha"]
    home.workers()
    started.append(home.wrapper("Alpha"))
    wait_for(lambda: found(home)["Alpha"].also, "the wrapper and what it wraps")
    before = connected.read_text()
    assert agent_relay.forget(str(home.root), alpha.key, alpha.token, KILLED).became is Became.CHANGED
    assert connected.read_text() == before


def test_a_store_of_another_layout_is_left_alone(home: RelayHome) -> None:
    """What is not as we know it is not written; the lists are put in order all the same."""
    connected = home.connected("Alpha")
    home.database.executescript("DROP TABLE presence; ALTER TABLE sessions RENAME COLUMN closed_by TO ended_by")
    home.session("Alpha")
    before = home.rows("sessions")
    alpha = found(home)["Alpha"]
    assert agent_relay.forget(str(home.root), alpha.key, alpha.token, KILLED).became is Became.DONE
    assert home.rows("sessions") == before
    assert json.loads(connected.read_text())["agents"] == []


def test_a_brokers_state_is_kept_in_order(tmp_path: Path) -> None:
    """Version 9: one file by name, pids and seconds; its key in `connection.json` is never read."""
    data = tmp_path / ".agentworkforce/relay"
    data.mkdir(parents=True)
    state = data / "state-main.json"
    kept = {"runtime": "pty", "parent": None, "channels": ["general"], "started_at": 1_900_000_000}
    state.write_text(printed({"agents": {"A": {**kept, "pid": 4243}, "B": {**kept, "pid": 4244}}}))
    os.mkfifo(data / "connection.json")  # reading it would hold us
    alpha, _ = agent_relay.discover(str(data))
    assert (alpha.key, alpha.pid, alpha.since) == ("A", 4243, 1_900_000_000.0)
    assert agent_relay.forget(str(data), "A", alpha.token, KILLED).became is Became.DONE
    assert state.read_text() == printed({"agents": {"B": {**kept, "pid": 4244}}})


def test_a_socket_and_the_link_of_an_outbox_are_left_by_it(
    home: RelayHome, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """The link itself, never what it leads to; a directory with mail in it is not a file of ours to take."""
    home.connected("Alpha", "Beta")
    (tmp_path / "real").mkdir()
    (tmp_path / "out").symlink_to("real")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "a.sock"))
        for name, box in (("Alpha", "out"), ("Beta", "real")):
            words = ["--socket", str(tmp_path / "a.sock"), "--outbox", str(tmp_path / box)]
            started.append(home.wrapper(name, "sleep 60", *words))
        wait_for(lambda: all(one.pid for one in found(home).values()), "both wrappers")
        entries = found(home)
    assert entries["Alpha"].temp == (str(tmp_path / "a.sock"), str(tmp_path / "out"))
    assert entries["Beta"].temp == (str(tmp_path / "a.sock"),)


def test_a_dead_socket_of_the_ended_goes_a_living_one_stays(home: RelayHome) -> None:
    """In /tmp by its name, as 1.x has it: SIGKILL leaves it there; another project's agent may have it by now."""
    name = f"T{os.getpid()}"
    path = Path(f"/tmp/relay-pty-{name}.sock")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        home.connected(name)
        entry = found(home)[name]
        assert entry.temp == (str(path),)
        assert agent_relay.forget(str(home.root), entry.key, entry.token, KILLED).became is Became.DONE
        assert path.is_socket()
    home.connected(name)
    assert str(path) in agent_relay.forget(str(home.root), entry.key, entry.token, KILLED).message
    assert not path.exists()


def test_the_socket_that_it_was_given_goes_with_it(
    home: RelayHome, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    """Where 2.x has it, told by its command line while it lived; what is no socket or link stays whoever names it."""
    home.connected("Alpha")
    path, box, work = tmp_path / "a.sock", tmp_path / "out", tmp_path / "work"
    work.mkdir()
    (work / "mail").write_text("kept")
    box.symlink_to(work)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    wrapper = home.wrapper("Alpha", "sleep 60", "--socket", str(path), "--outbox", str(box))
    started.append(wrapper)
    wait_for(lambda: found(home)["Alpha"].also, "the wrapper and what it wraps")
    entry = found(home)["Alpha"]
    had = replace(KILLED, temp=(*entry.temp, str(work / "mail"), str(tmp_path / "none")))
    assert entry.temp == (str(path), str(box))
    for pid in (wrapper.pid, *entry.also):
        with suppress(ProcessLookupError):  # it has ended with the one before
            os.kill(pid, 9)
    wait_for(lambda: kernel.process(wrapper.pid) is None, "it ends")

    done = agent_relay.forget(str(home.root), entry.key, entry.token, had)

    assert done.message.endswith(f"; removed {path}; removed {box}")
    assert not path.exists() and not box.is_symlink()
    assert (work / "mail").read_text() == "kept"


def test_a_list_that_is_being_written_is_read_at_the_next_look(home: RelayHome) -> None:
    """`workers.json` is written in place; a project that cannot be read does not hide another, and says so itself."""
    home.connected("Alpha")
    (home.team / "workers.json").write_text('{"workers": [')
    with pytest.raises(OwnerCallFailed, match="no whole JSON"):
        agent_relay.discover(str(home.root))
    other = home.root / "0123456789ab" / "team"
    other.mkdir(parents=True)
    (other / "connected-agents.json").write_text(printed({"agents": ["Beta"]}))
    listed = {one.key: one for one in agent_relay.discover(str(home.root))}
    assert listed.keys() == {f"{os.path.basename(home.data)}/", "0123456789ab/Beta"}
    assert "no whole JSON" in listed[f"{os.path.basename(home.data)}/"].unread


def test_a_directory_that_is_not_there_holds_nobody(tmp_path: Path) -> None:
    """agent-relay was never used."""
    assert agent_relay.discover(str(tmp_path / "none")) == []
    assert agent_relay.forget(str(tmp_path / "none"), "Alpha", "-", KILLED).became is Became.GONE


def test_who_is_only_registered_leaves_the_others_their_place(home: RelayHome) -> None:
    """Also of another project; and a time that is none is no reason to tell of nobody."""
    home.registered(*(f"R{number}" for number in range(MOST_TOLD)))
    other = home.root / "f00000000000" / "team"
    other.mkdir(parents=True)
    (other / "workers.json").write_text(printed({"workers": [{"name": "Beta", "pid": 4000000, "spawnedAt": 10**400}]}))
    entries = agent_relay.discover(str(home.root))
    assert len(entries) == MOST_TOLD
    assert (entries[0].name, entries[0].since) == ("Beta", None)


def test_a_long_history_is_not_looked_at_one_by_one(home: RelayHome, monkeypatch: pytest.MonkeyPatch) -> None:
    """30,000 who were registered once took 5 s, and a look has 3."""
    home.registered(*(f"R{number}" for number in range(3 * MOST_TOLD)))
    home.connected(f"R{3 * MOST_TOLD - 1}")
    asked: list[str] = []

    def left_by(name: str) -> tuple[str, ...]:
        asked.append(name)
        return ()

    monkeypatch.setattr(relay_runs, "left_by", left_by)

    found = agent_relay.discover(str(home.data))

    assert len(asked) <= len(found) == MOST_TOLD
    assert [one.name for one in found if one.living] == [f"R{3 * MOST_TOLD - 1}"]


@pytest.mark.parametrize("with_messages", [False, True])
@pytest.mark.parametrize("step", ["database", agent_relay.CONNECTED, agent_relay.WORKERS])
def test_an_end_that_a_fault_stopped_is_done_again(
    home: RelayHome, monkeypatch: pytest.MonkeyPatch, step: str, with_messages: bool
) -> None:
    """Its session does not stay open because its lists were put right first, nor the other way round."""
    home.connected("Alpha")
    home.registered("Alpha")
    home.workers({"name": "Alpha", "pid": 4000000, "spawnedAt": 1_900_000_000_000})
    home.session("Alpha")
    entry = found(home)["Alpha"]
    end = replace(KILLED, with_messages=with_messages)
    with monkeypatch.context() as broken:
        fault = OSError(28, "no space")

        def fails(path: str, edit: files.Edit, change: Any = files.change) -> bool:
            if path.endswith(step):
                raise fault
            return bool(change(path, edit))

        broken.setattr(files, "change", fails)
        if step == "database":
            broken.setattr(agent_relay, "_close", lambda *_: (_ for _ in ()).throw(fault))
        with pytest.raises(OSError, match="no space"):
            agent_relay.forget(str(home.root), entry.key, entry.token, end)
    assert agent_relay.forget(str(home.root), entry.key, entry.token, end).became is Became.DONE
    assert ("Alpha" in found(home)) is not with_messages
    assert with_messages or not found(home)["Alpha"].living
    assert [row[6] is not None for row in home.rows("sessions")] == [True] * (not with_messages)
