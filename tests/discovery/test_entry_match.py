"""An entry of a foreign registry is measured by the kernel: real processes, and what may be told of them."""

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
    """What a registry tells of a process that runs: its pid alone."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield Entry(key="k", token="t", name="n", uid=ME, pid=process.pid)
        process.kill()


def standing(entry: Entry, uid: int = ME) -> MatchResult:
    seen = asyncio.run(entry_match.looks([entry], "host"))
    return entry_match.look(entry, seen, uid, Fleet(), Clock().now()).standing


def test_a_pid_alone_proves_nothing(child: Entry) -> None:
    """Its process is there, and may be another."""
    assert standing(child) is MatchResult.UNPROVED
    assert standing(replace(child, pid=None)) is MatchResult.UNSEEN


def test_the_start_proves_which_process_it_is(child: Entry) -> None:
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


def test_what_was_perhaps_is_proved_by_a_heartbeat_that_tells_the_zone_and_not_by_a_second_look(child: Entry) -> None:
    """Case Q7: a row that was there when we began to look, in words that may mean two times."""
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
def test_a_row_names_an_agent_that_is_known_already_by_the_zone_that_its_heartbeats_tell(
    child: Entry, hours: float
) -> None:
    """Case Q7, of an agent that `run` started: its row was never found to be its own, so its beats were not heard.

    And a row of a zone ahead, once its words do not lie ahead any more, named whoever had got its number since.
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
def test_a_heartbeat_is_as_old_as_the_zone_of_its_row_makes_it(child: Entry, hours: float) -> None:
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


def test_a_threads_number_counts_by_the_zone_of_its_row_too() -> None:
    """Its row in New York was closed as one whose number a thread had got later."""
    code = "import threading, time; threading.Thread(target=lambda: (print(threading.get_native_id(), flush=True),"
    command = [sys.executable, "-c", f"{code} time.sleep(60))).start()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        wall = time.time()
        number = int(process.stdout.readline())
        row = Entry(key="k", token="t", name="n", uid=ME, pid=number, since=wall - 4 * 3600, since_local=wall + 60)
        assert standing(row) is MatchResult.UNSEEN
        process.kill()


def test_the_number_of_a_thread_is_no_process_and_is_not_gone() -> None:
    """Some programs note a thread's own number; one that a thread got later was another's."""
    code = "import threading, time; threading.Thread(target=lambda: (print(threading.get_native_id(), flush=True),"
    command = [sys.executable, "-c", f"{code} time.sleep(60))).start()"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        thread = Entry(key="k", token="t", name="n", uid=ME, pid=int(process.stdout.readline()))
        assert standing(thread) is standing(replace(thread, since=time.time())) is MatchResult.UNSEEN
        assert standing(replace(thread, since=time.time() - 3600)) is MatchResult.GONE
        process.kill()
    assert standing(thread) is MatchResult.GONE


def test_what_is_never_an_agent_or_anothers_is_left_alone(child: Entry) -> None:
    """The daemon itself, what stands above it, and a file of another uid."""
    assert standing(replace(child, pid=os.getpid())) is MatchResult.OTHERS
    assert standing(replace(child, pid=os.getppid())) is MatchResult.OTHERS
    assert standing(replace(child, uid=ME + 1)) is MatchResult.OTHERS
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    assert standing(replace(child, pid=ended.pid)) is MatchResult.GONE


@pytest.mark.skipif(ME != 0, reason="only root sees another uid's process as one that could be taken")
def test_a_file_names_processes_of_its_owner_alone(child: Entry) -> None:
    """Root's process in a user's file is not his."""
    assert standing(replace(child, uid=61001), 61001) is MatchResult.OTHERS


def test_of_further_processes_the_first_are_asked_about(child: Entry) -> None:
    """256 entries with 256 each would keep the daemon from all else for ten seconds a look."""
    many = replace(child, also=(child.pid or 0,) * 256)
    seen = asyncio.run(entry_match.looks([many], "host"))
    assert len(entry_match.further(many, seen, ME, Fleet())) == entry_match.MOST_FURTHER


def test_a_look_at_an_entry_asks_the_kernel_nothing_while_the_loop_waits(child: Entry, patient: list[str]) -> None:
    """Its owner decides how long each file of a process takes to be read: all is read before, by whoever can wait."""
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


def test_where_nobody_could_look_for_a_double_nothing_is_known(child: Entry) -> None:
    """A failed look is none: such an entry is not taken in by it. One that tells when it began has none."""
    seen = asyncio.run(entry_match.looks([child], "host"))
    failed = LookFailed(0, "the reader does not answer")
    found = entry_match.look(child, seen, ME, Fleet(), Clock().now(), double=failed)
    assert (found.standing, found.taken) == (MatchResult.UNSEEN, None)
    assert asyncio.run(entry_match.doubles([replace(child, started=time.time())], seen, ME)) == {}
    assert asyncio.run(entry_match.doubles([child], seen, ME)) == {}


def test_a_double_in_a_container_makes_a_number_nobodys(child: Entry) -> None:
    """Case Q4 without a start: nothing tells which of the two its registry means."""
    seen = asyncio.run(entry_match.looks([child], "host"))
    assert entry_match.look(child, seen, ME, Fleet(), Clock().now(), double=4711).standing is MatchResult.STRANGER


def test_an_entry_and_an_end_survive_their_way_as_json() -> None:
    """Uid 0 and an end of its own are said, too."""
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
def test_what_is_no_entry_is_refused(fault: dict[str, Any]) -> None:
    """These are another uid's words."""
    with pytest.raises(ValueError, match=r"is not what it may be|has a key"):
        entry_of({**entry_json(FULL), **fault})


def test_an_entry_asks_for_all_that_can_be_read_then_for_less() -> None:
    """Its links to other agents go first, its own name last. A field that no agent may have is left out."""
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
def test_a_field_that_no_agent_may_have_keeps_no_entry_from_being_watched(field: str, value: Any) -> None:
    entry = replace(FULL, name="alpha", **{field: value})
    kept = entry_match.listed("hcom", "/p", entry, proved=True)
    full = entry_match.registration_requests("hcom", entry, kept)[0]
    assert not getattr(full, field)
    assert full.name == "alpha"


def test_a_name_that_no_agent_may_have_is_replaced_and_a_wrong_rhythm_is_an_error() -> None:
    """Its words are shown with the entry, which is not watched."""
    kept = entry_match.listed("hcom", "/p", FULL, proved=True)
    assert entry_match.registration_requests("hcom", replace(FULL, name="all"), kept)[0].name == "all-hcom"
    with pytest.raises(BadRequest, match="stall_after_seconds: Input should be greater than 0"):
        entry_match.registration_requests("hcom", replace(FULL, promise=-1.0), kept)
