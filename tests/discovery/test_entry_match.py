"""An entry of a foreign registry is matched with the kernel: real processes, and possible entries about them."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.registration import RegistrationRequest
from watchdog.core.source_entries import Entry, EntryEnd, end_json, end_of, entry_json, entry_of
from watchdog.discovery import entry_match
from watchdog.discovery.entry_match import MatchResult
from watchdog.errors import BadRequest
from watchdog.processes.bounded import LookFailed
from watchdog.processes.identity import boot_id, read_identity

ME = os.geteuid()
FULL = Entry(
    key="k",
    token="t",
    name="n",
    uid=0,
    pid=7,
    also=(8, 9),
    living=False,
    promise=3,
    pane={"terminal": "tmux"},
    stop=("hcom", "stop", "n"),
    temp=("/tmp/x",),
)


@pytest.fixture
def child() -> Iterator[Entry]:
    """The entry of a running process: its pid alone."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield Entry(key="k", token="t", name="n", uid=ME, pid=process.pid)
        process.kill()


def standing(entry: Entry, uid: int = ME) -> MatchResult:
    seen = asyncio.run(entry_match.looks([entry], "host"))
    return entry_match.look(entry, seen, uid, Fleet(), Clock().now()).standing


def test_a_pid_alone_proves_nothing(child: Entry) -> None:
    """Its process is there, but may be another one."""
    assert standing(child) is MatchResult.UNPROVED
    assert standing(replace(child, pid=None)) is MatchResult.UNSEEN


def test_the_start_time_proves_which_process_it_is(child: Entry) -> None:
    """By ticks and boot, or by a time at which the registry had that pid already."""
    identity = read_identity(child.pid or 0, "host")
    assert identity is not None
    ticks = identity.start_ticks
    assert standing(replace(child, ticks=ticks)) is MatchResult.PROVED
    assert standing(replace(child, ticks=ticks, boot_id=boot_id())) is MatchResult.PROVED
    assert standing(replace(child, ticks=ticks, boot_id="another")) is MatchResult.GONE
    assert standing(replace(child, ticks=ticks + 1)) is MatchResult.GONE
    assert standing(replace(child, since=time.time())) is MatchResult.PROVED
    assert standing(replace(child, since=time.time() - 3600)) is MatchResult.GONE


def test_an_ambiguous_time_is_settled_by_a_heartbeat_that_shows_the_zone_not_by_a_second_read(child: Entry) -> None:
    """Case Q7: a row that existed at our first read, with a time that has two meanings."""
    assert child.pid is not None
    one, seen, now = read_identity(child.pid, "host"), asyncio.run(entry_match.looks([child], "host")), Clock().now()
    assert one is not None
    agent: Any = SimpleNamespace(identity=one, reg=SimpleNamespace(boot_id=one.boot_id))
    wall, zone = now.wall.timestamp(), 4 * 3600.0
    behind = replace(child, since=wall - zone, since_local=wall, started=wall - zone, started_local=wall)
    ahead = replace(child, since_ahead=wall + zone, started_ahead=wall + zone)
    for entry, by in ((behind, zone), (ahead, -zone)):
        assert standing(entry) is MatchResult.UNPROVED
        assert not entry_match.proves(entry, agent, one.boot_id, now, seen)
        assert entry_match.proves(entry, agent, one.boot_id, now, seen, entry_match.Arrival(zone=by))
        assert not entry_match.proves(entry, agent, "another boot", now, seen, entry_match.Arrival(zone=by))


@pytest.mark.parametrize("hours", [4, -13, -5.5])
def test_a_row_names_a_known_agent_by_the_zone_that_its_heartbeats_show(child: Entry, hours: float) -> None:
    """Case Q7, for an agent that `run` started: its row was never matched with it, so its beats did not count.

    And a row from a zone ahead, once its times were no longer in the future, named any process that had reused its pid.
    """
    assert child.pid is not None
    one, now = read_identity(child.pid, "host"), Clock().now()
    assert one is not None
    agent: Any = SimpleNamespace(identity=one, reg=SimpleNamespace(boot_id=one.boot_id))
    zone, wall = hours * 3600.0, now.wall.timestamp()
    row, of_before = (replace(child, since=when - zone) for when in (wall, wall - 60))
    assert entry_match.names(row, agent, one.boot_id, now, entry_match.Arrival(zone=zone))
    assert not entry_match.names(of_before, agent, one.boot_id, now, entry_match.Arrival(zone=zone))
    assert entry_match.names(row, agent, one.boot_id, now) is (hours < 0), "without a word of the zone"


@pytest.mark.parametrize("hours", [4, -13])
def test_the_age_of_a_heartbeat_depends_on_the_zone_of_its_row(child: Entry, hours: float) -> None:
    """Cases Q6 and Q7. In New York its first one counted as a former run's: no promise, and mute for ever.

    In Auckland a former run's counted: a promise that it had not begun to keep.
    """
    assert child.pid is not None
    one, now = read_identity(child.pid, "host"), Clock().now()
    agent: Any = SimpleNamespace(identity=one)
    zone, wall = hours * 3600.0, now.wall.timestamp()
    since, ahead = (wall - zone, None) if hours > 0 else (None, wall - zone)
    written = replace(child, since_local=wall, since=since, since_ahead=ahead)
    for entry, arrival in ((written, entry_match.Arrival()), (child, entry_match.Arrival(zone=zone))):
        fresh, old = (replace(entry, beat_at=when - zone) for when in (wall, wall - 60))
        assert not entry_match.before_its_process(fresh, agent, now, arrival)
        assert entry_match.before_its_process(old, agent, now, arrival)


def test_the_pid_of_a_thread_is_matched_by_the_zone_of_its_row_too() -> None:
    """Its row in New York was closed as one whose pid a later thread had."""
    code = "import threading, time; threading.Thread(target=lambda: (print(threading.get_native_id(), flush=True),"
    command = [sys.executable, "-c", f"{code} time.sleep(60))).start()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wall = time.time()
        number = int(process.stdout.readline())
        row = Entry(key="k", token="t", name="n", uid=ME, pid=number, since=wall - 4 * 3600, since_local=wall + 60)
        assert standing(row) is MatchResult.UNSEEN
        process.kill()


def test_the_id_of_a_thread_is_no_process_and_is_not_gone() -> None:
    """Some programs store a thread's own id; an id that a thread got later belonged to another process."""
    code = "import threading, time; threading.Thread(target=lambda: (print(threading.get_native_id(), flush=True),"
    command = [sys.executable, "-c", f"{code} time.sleep(60))).start()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        thread = Entry(key="k", token="t", name="n", uid=ME, pid=int(process.stdout.readline()))
        assert standing(thread) is standing(replace(thread, since=time.time())) is MatchResult.UNSEEN
        assert standing(replace(thread, since=time.time() - 3600)) is MatchResult.GONE
        process.kill()
    assert standing(thread) is MatchResult.GONE


def test_processes_that_cannot_be_agents_or_are_anothers_are_left_alone(child: Entry) -> None:
    """The daemon itself, its ancestors, and a file of another uid."""
    assert standing(replace(child, pid=os.getpid())) is MatchResult.OTHERS
    assert standing(replace(child, pid=os.getppid())) is MatchResult.OTHERS
    assert standing(replace(child, uid=ME + 1)) is MatchResult.OTHERS
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert standing(replace(child, pid=ended.pid)) is MatchResult.GONE


@pytest.mark.skipif(ME != 0, reason="only root sees another uid's process as one that could be taken")
def test_a_file_names_only_processes_of_its_owner(child: Entry) -> None:
    """Root's process in a user's file is not that user's."""
    assert standing(replace(child, uid=61001), 61001) is MatchResult.OTHERS


def test_only_the_first_further_processes_are_checked(child: Entry) -> None:
    """256 entries with 256 each would block the daemon for ten seconds per read."""
    many = replace(child, also=(child.pid or 0,) * 256)
    seen = asyncio.run(entry_match.looks([many], "host"))
    assert len(entry_match.further(many, seen, ME, Fleet())) == entry_match.MOST_FURTHER


def test_matching_an_entry_does_not_query_the_kernel_on_the_loop(child: Entry, patient: list[str]) -> None:
    """A process's owner can delay reads of its files: all are read before, where waiting is possible."""
    told = [replace(child, since=time.time()), child]

    async def story() -> list[MatchResult]:
        seen = await entry_match.looks(told, "host")
        doubles = await entry_match.doubles(told, seen, ME)
        asked = len(patient)
        now = Clock().now()
        came = entry_match.Arrival(now.boot - 60, now.boot)
        found = [
            entry_match.look(one, seen, ME, Fleet(), now, came, doubles.get(one.pid or 0)).standing for one in told
        ]
        assert len(patient) == asked
        return found

    assert asyncio.run(story()) == [MatchResult.PROVED, MatchResult.UNPROVED]
    assert set(patient) == {"identity.look_at", "inside.numbered_inside"}


def test_without_a_search_for_doubles_nothing_is_known(child: Entry) -> None:
    """A failed search is none: such an entry is not registered. One with a start time needs no search."""
    seen = asyncio.run(entry_match.looks([child], "host"))
    failed = LookFailed(0, "the reader does not answer")
    found = entry_match.look(child, seen, ME, Fleet(), Clock().now(), double=failed)
    assert (found.standing, found.taken) == (MatchResult.UNSEEN, None)
    assert asyncio.run(entry_match.doubles([replace(child, started=time.time())], seen, ME)) == {}
    assert asyncio.run(entry_match.doubles([child], seen, ME)) == {}


def test_a_double_in_a_container_makes_a_pid_useless(child: Entry) -> None:
    """Case Q4 without a start time: nothing says which of the two its registry means."""
    seen = asyncio.run(entry_match.looks([child], "host"))
    assert entry_match.look(child, seen, ME, Fleet(), Clock().now(), double=4711).standing is MatchResult.STRANGER


def test_an_entry_and_an_end_survive_json() -> None:
    """Including uid 0 and an end of its own."""
    assert entry_of(entry_json(FULL)) == FULL
    end = EntryEnd("killed", "why", "daemon", 5, signal="SIGKILL", resumable=False)
    assert end_of(end_json(end)) == end


@pytest.mark.parametrize(
    "fault",
    [
        {"uid": "0"},
        {"pid": True},
        {"pid": 1.5},
        {"name": ""},
        {"name": "x" * 5000},
        {"also": [1, "2"]},
        {"also": list(range(300))},
        {"pane": {"pane": 1}},
        {"stop": "hcom stop"},
        {"promise": "120"},
        {"promise": float("nan")},
        {"promise": 1e300},
        {"since": float("inf")},
        {"since": 10**400},
    ],
    ids=str,
)
def test_a_malformed_entry_is_refused(fault: dict[str, Any]) -> None:
    """Another uid's process wrote it."""
    with pytest.raises(ValueError, match=r"is not what it may be|has a key"):
        entry_of({**entry_json(FULL), **fault})


def test_an_entry_requests_all_readable_fields_then_fewer() -> None:
    """Its links to other agents are dropped first, its own name last. An invalid field is left out."""
    entry = replace(FULL, name="alpha", type="claude", tags=("a", "b"), task="T-1", parent="lead")
    entry = replace(entry, worktree="/srv/tree", log="relative")
    kept = entry_match.listed("hcom", "/p", entry, proved=True)
    full, least, other = entry_match.registration_requests("hcom", entry, kept)
    assert full == RegistrationRequest(
        "alpha",
        pid=7,
        type="claude",
        tags=("a", "b"),
        task="T-1",
        parent="lead",
        stall_after_seconds=3,
        worktree="/srv/tree",
        source="hcom",
        entry=kept,
    )
    assert least == replace(full, task=None, parent=None)
    assert other == replace(least, name="alpha-hcom-7")


@pytest.mark.parametrize(
    ("field", "value"), [("type", "two words"), ("tags", ("fine", "two words")), ("task", "x\n"), ("parent", "x" * 257)]
)
def test_an_invalid_field_does_not_keep_an_entry_from_being_watched(field: str, value: Any) -> None:
    entry = replace(FULL, name="alpha", **{field: value})
    kept = entry_match.listed("hcom", "/p", entry, proved=True)
    full = entry_match.registration_requests("hcom", entry, kept)[0]
    assert not getattr(full, field)
    assert full.name == "alpha"


def test_an_invalid_name_is_replaced_and_an_invalid_rhythm_is_an_error() -> None:
    """The error is shown with the entry, which is not watched."""
    kept = entry_match.listed("hcom", "/p", FULL, proved=True)
    assert entry_match.registration_requests("hcom", replace(FULL, name="all"), kept)[0].name == "all-hcom"
    with pytest.raises(BadRequest, match="stall_after_seconds: Input should be greater than 0"):
        entry_match.registration_requests("hcom", replace(FULL, promise=-1.0), kept)
