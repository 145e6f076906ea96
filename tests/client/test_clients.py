"""The clients to copy, each with a real daemon: what they do, what they raise, and that they outlive the daemon.

One story is played with both. What they say of the daemon (routes, keys, errors) is held to the daemon's own words.
"""

import ast
import math
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import watchdog.errors
from tests.client.clients import (
    NAMES,
    NODE,
    PLACE,
    PYTHON,
    ROOT,
    TYPES,
    Client,
    NodeClient,
    Refused,
    camel,
    client,
    running,
)
from tests.client.test_client import answering
from tests.owner.sources.relay_home import RelayHome
from tests.world import PATIENCE, World, make_world, wait_for
from watchdog.client import sockets
from watchdog.control import schemas
from watchdog.control.server import ROUTES
from watchdog.core import names
from watchdog.core.beat import KEYS
from watchdog.core.registration import CHECKS
from watchdog.core.sd_notify import MAX_BYTES, STATES

sys.path.insert(0, str(ROOT / "systemd"))
from places import own_layout

DOCUMENT = ROOT / "config/doc/clients.md"


@pytest.fixture
def world(nursery: None) -> Iterator[World]:
    yield from make_world()


@pytest.fixture(params=NAMES)
def ours(request: pytest.FixtureRequest, world: World) -> Iterator[Client]:
    """Each client, in the environment of the world's agents."""
    with running(request.param, world.environ) as found:
        yield found


@contextmanager
def refused(code: str, name: str, status: int | None = None) -> Iterator[None]:
    """What is done raises that error, by class, key and status."""
    with pytest.raises(Refused) as caught:
        yield
    assert (caught.value.name, caught.value.code) == (name, code), caught.value
    assert status is None or caught.value.status == status


def started(ours: Client, world: World, name: str, *command: str, **options: Any) -> tuple[str, int]:
    """Id and pid of an agent that is registered and started through the client, as an orchestrator does it."""
    made = ours.call("register", name, **options)
    process = world.spawn(*(command or ("sleep", "600")), **made["env"])
    assert ours.call("set_pid", made["agent_id"], process.pid)["status"] == "running"
    return made["agent_id"], process.pid


def test_an_agent_is_registered_beats_is_listed_killed_and_explained(world: World, ours: Client) -> None:
    """The whole story, with words of any language."""
    world.start()
    agent_id, pid = started(ours, world, "alpha", tags=["crew"], stall_after_seconds=120)
    started(ours, world, "beta")

    assert ours.call("beat", agent_id, state="working", note="Größe ✓ 測試 🐕", progress=3) is None
    listed = {one["name"]: one for one in ours.call("list_connected_agents")}
    assert listed.keys() == {"alpha", "beta"}
    assert (listed["alpha"]["pid"], listed["alpha"]["note"]) == (pid, "Größe ✓ 測試 🐕")
    assert [one["name"] for one in ours.call("list_connected_agents", tag="crew")] == ["alpha"]

    dry = ours.call("kill", "alpha", dry_run=True)
    assert (dry["action"], dry["pid"]) == ("would_end", pid)
    killed = ours.call("kill", "alpha", reason="enough")
    assert (killed["success"], killed["message"]) == (True, "Agent terminated gracefully")
    assert [one["name"] for one in ours.call("list_connected_agents")] == ["beta"]
    assert {one["name"]: one["status"] for one in ours.call("list_agents")} == {"alpha": "killed", "beta": "running"}

    story = ours.call("why", agent_id)
    assert story["agent"]["note"] == "Größe ✓ 測試 🐕"
    assert "agent.ended" in [event["event"] for event in story["events"]]
    assert [one["event"] for one in story["events"]] == [one["event"] for one in ours.call("events", agent=agent_id)]
    again = ours.call("kill", ["alpha", "beta"])
    assert (again["success"], [one["action"] for one in again["results"]]) == (True, ["none", "graceful_kill"])
    assert ours.call("status")["agents"] == 0


def test_a_kill_has_its_grace_its_force_and_its_cleanup(world: World, ours: Client) -> None:
    """What ignores TERM has so long; `force` gives it nothing; `cleanup` is done unless it is switched off."""
    world.start()
    kept, removed = world.temporary / "kept", world.temporary / "removed"
    for name, place in (("alpha", kept), ("beta", removed)):
        place.mkdir()
        started(ours, world, name, "sh", "-c", "trap '' TERM; while :; do sleep 1; done", temp_dir=str(place))

    slow = ours.call("kill", "alpha", grace_seconds=0.5, cleanup=False)
    assert (slow["success"], slow["killed_gracefully"], slow["grace_period_seconds"]) == (True, False, 0.5)
    fast = ours.call("kill", ["beta"], force=True)
    assert (fast["action"], fast["kill_signal"]) == ("force_kill", "SIGKILL")
    assert (kept.exists(), removed.exists()) == (True, False)


def test_a_stop_is_asked_for_by_the_answer_to_a_beat(world: World, ours: Client) -> None:
    """The agent learns why, and how long it has."""
    world.start()
    agent_id, pid = started(ours, world, "alpha", stall_after_seconds=600)
    assert ours.call("beat", agent_id) is None
    assert ours.call("stop", "alpha", wait=False, reason="lunch")["success"]

    asked = wait_for(lambda: ours.call("beat", agent_id), "it is asked")
    assert asked["reason"].startswith("lunch") and asked["deadline_seconds"] > 0
    os.kill(pid, signal.SIGTERM)
    assert world.wait_status("alpha", "stopped")


def test_a_hold_protects_and_is_lifted(world: World, ours: Client) -> None:
    """No list of none stands for all."""
    world.start()
    started(ours, world, "alpha")

    assert ours.call("hold", "alpha", reason="mine", for_seconds=600)["success"]
    with refused("held", "Held", 409):
        ours.call("kill", "alpha")
    for method in ("hold", "unhold"):
        with refused("bad_request", "BadRequest"):
            ours.call(method, [])
    assert ours.call("unhold", ["alpha"])["success"]
    assert ours.call("kill", "alpha")["success"]


def test_each_refusal_is_an_error_of_its_own(world: World, ours: Client) -> None:
    """With the daemon's key, its status and its words."""
    world.start()
    started(ours, world, "alpha")

    for name in ("gamma", "Größe", "a/b?c=d", "%2e", "x" * 300):
        with refused("agent_not_found", "AgentNotFound", 404):
            ours.call("why", name)
    with refused("process_not_found", "ProcessNotFound", 404):
        ours.call("kill", str(os.getpid()))
    with refused("conflict", "Conflict", 409):
        ours.call("register", "alpha")
    with refused("conflict", "Conflict", 409):
        ours.call("remove_agent", "alpha")
    with refused("bad_request", "BadRequest", 400):
        ours.call("register", "Größe")
    with refused("bad_request", "BadRequest", 400):
        ours.call("register", "delta", no_such_key=1)
    with refused("not_found", "BadRequest", 404):
        ours.call("request", "GET", "/v1/no_such_route", None)
    for method, *words in (("why", ""), ("remove_agent", "all"), ("remove_agent", "tag:crew"), ("beat",)):
        with refused("bad_request", "BadRequest", 0):  # by the client itself
            ours.call(method, *words)
    assert ours.call("register", "omega", replace=True)["name"] == "omega"


def test_a_dead_agent_is_removed_and_its_messages_only_if_asked_for(world: World, ours: Client) -> None:
    """By the names that users of agent-relay know."""
    home = RelayHome(world.dir)
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "agent_relay"\npath = "{home.root}"\n')
    process = home.wrapper("mira")
    world.started.append(process)
    home.workers({"name": "mira", "spawnedAt": 1_900_000_000_000, "pid": process.pid})
    home.connected("mira", "nora")
    home.registered("mira", "nora")
    home.session("mira")
    for number, (sender, to) in enumerate((("mira", "me"), ("me", "mira"), ("nora", "me"))):
        words = (f"m{number}", number, sender, to, "message", "hello")
        home.database.execute(
            "INSERT INTO messages (id, ts, sender, recipient, kind, body) VALUES (?,?,?,?,?,?)", words
        )
    world.start()
    try:
        wait_for(lambda: "mira" in {one["name"] for one in ours.call("list_connected_agents")}, "it is watched")
        with refused("conflict", "Conflict", 409):
            ours.call("remove_agent", "mira", remove_messages=True)
        assert ours.call("kill", "mira")["success"]

        assert ours.call("remove_agent", "mira")["success"]
        assert len(home.rows("messages")) == 3
        removed = ours.call("remove_agent", "mira", remove_messages=True)
        assert "messages (2)" in removed["message"], removed
        assert [row[2] for row in home.rows("messages")] == ["nora"]
    finally:
        home.database.close()


def test_a_registered_agent_that_never_started_is_removed(world: World, ours: Client) -> None:
    """Its row is closed; a second time there is nothing to do."""
    world.start()
    ours.call("register", "alpha", queued=True)

    assert ours.call("remove_agent", "alpha", dry_run=True)["action"] == "would_remove"
    assert ours.call("remove_agent", "alpha", reason="not needed")["action"] == "removed"
    assert ours.call("remove_agent", "alpha")["action"] == "none"
    assert ours.call("list_connected_agents") == []


# -- following


def collected(stream: Any, until: int) -> list[int]:
    """The ids of the events that a follower is given, up to that one."""
    found: list[int] = []
    while not found or found[-1] < until:
        event = stream.next(PATIENCE)
        assert event is not None, f"nothing came after {found[-1:]}"
        found.append(event["id"])
    return found


def ids(world: World, after: int = 0) -> list[int]:
    return [event["id"] for event in client.Watchdog(world.socket).events(after=after)]


def test_a_follower_outlives_the_daemon_and_loses_and_doubles_nothing(world: World, ours: Client) -> None:
    """Killed, stopped, away for a while: it goes on after the last id."""
    world.start()
    before = ours.descriptors()
    stream = ours.follow()
    found: list[int] = []
    for round_ in range(6):
        for number in range(5):
            world.ask("POST", "/v1/agents", {"name": f"a{round_}-{number}", "queued": True})
        if round_ % 3 == 0:
            found += collected(stream, ids(world)[-1])  # else it may be in the middle of them
        if round_ % 2:
            world.crash()
        else:
            assert world.stop() == 0
        world.start()
    found += collected(stream, ids(world)[-1])
    stream.close()

    assert found == ids(world)
    assert len(found) >= 30
    wait_for(lambda: ours.descriptors() <= before, "its connection is closed")
    later = ours.follow(after=found[9])
    assert collected(later, found[-1]) == found[10:]
    later.close()


def test_a_follower_waits_for_an_agent_alone_and_is_woken_when_it_is_left(world: World, ours: Client) -> None:
    """Nothing of others; no event for a second is no end of the stream."""
    world.start()
    agent_id, _ = started(ours, world, "alpha")
    stream = ours.follow(agent=agent_id)
    while (event := stream.next(PATIENCE)) and event["to_status"] != "running":
        assert event["agent_id"] == agent_id
    assert event is not None
    started(ours, world, "beta")
    before = [one["id"] for one in ours.call("events", agent=agent_id)]
    while event["id"] < before[-1]:
        event = stream.next(PATIENCE)
        assert event is not None
    while (event := stream.next(0.3)) is not None:  # none for a while, and then it goes on
        assert event["agent_id"] == agent_id

    ours.call("kill", "alpha")
    while event is None or event["event"] != "agent.ended":
        event = stream.next(PATIENCE)
        assert event is not None and event["agent_id"] == agent_id
    assert event["to_status"] == "killed"
    stream.close()


def test_who_follows_says_for_how_long_the_daemon_may_be_away(world: World, ours: Client) -> None:
    """At first it has to be there at all."""
    with refused("unreachable", "Unreachable"):
        ours.follow(away_seconds=60).next(PATIENCE)
    world.start()
    ours.call("register", "alpha", queued=True)
    stream = ours.follow(away_seconds=0.3)
    assert stream.next(PATIENCE) is not None
    assert world.stop() == 0
    with refused("unreachable", "Unreachable"):
        while stream.next(PATIENCE):
            pass
    stream.close()


def test_leaving_a_follower_wakes_the_thread_that_waits_for_it(world: World) -> None:
    """`close` of Python's, from another thread, while the daemon is there and while it is away; no descriptor stays."""
    world.start()
    ours = client.Watchdog(world.socket)
    before = len(os.listdir("/proc/self/fd"))
    for away in (False, True):
        stream = ours.follow_events()
        while stream.next(0.3) is not None:
            pass
        found: list[Any] = [0]
        waiter = threading.Thread(target=lambda stream=stream, found=found: found.append(stream.next()))
        waiter.start()
        if away:
            assert world.stop() == 0
        stream.close()
        waiter.join(PATIENCE)
        assert (found, stream.closed, waiter.is_alive()) == ([0, None], True, False)
        assert list(stream) == []
        assert len(os.listdir("/proc/self/fd")) <= before


def test_a_loop_over_events_that_is_left_closes_its_connection(world: World) -> None:
    """In Python by `with`; so does a history that is read in part."""
    world.start()
    world.ask("POST", "/v1/agents", {"name": "alpha", "queued": True})
    ours = client.Watchdog(world.socket)
    before = len(os.listdir("/proc/self/fd"))
    with ours.follow_events() as stream:
        for event in stream:
            assert event["id"] == stream.last_id
            break
    history = ours.events()
    next(history)
    history.close()
    assert len(os.listdir("/proc/self/fd")) == before


# -- a daemon that is slow, away, hung or has much to say


def test_a_long_history_comes_whole(world: World, ours: Client) -> None:
    """Sixty thousand events, some 15 MB, in the right order."""
    world.start()
    world.ask("POST", "/v1/agents", {"name": "alpha", "queued": True})
    columns = [row[1] for row in world.sql("PRAGMA table_info(lifecycle_event)") if row[1] != "id"]
    listed = ", ".join(f'"{column}"' for column in columns)
    world.sql(
        f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60000) "
        f"INSERT INTO lifecycle_event ({listed}) SELECT {listed} FROM n, "
        f"(SELECT * FROM lifecycle_event WHERE agent_id IS NOT NULL LIMIT 1)"
    )
    found = [event["id"] for event in ours.call("events")]
    assert len(found) > 60_000
    assert found == sorted(set(found))


def test_a_hung_daemon_costs_no_more_than_the_timeout(world: World, ours: Client) -> None:
    """What it does when it goes on is done."""
    world.start()
    assert world.daemon is not None
    os.kill(world.daemon.pid, signal.SIGSTOP)
    try:
        with refused("timeout", "TimedOut"):
            ours.call("register", "alpha", queued=True, timeout=0.3)
        with refused("timeout", "TimedOut"):
            ours.call("events", timeout=0.3)
    finally:
        os.kill(world.daemon.pid, signal.SIGCONT)
    assert ours.call("status")["pid"] == world.daemon.pid


def test_a_deadline_may_be_none_and_a_body_that_is_no_json_is_refused(world: World, ours: Client) -> None:
    """They raised OverflowError, struct.error (Python) and Unreachable (Node), which a caller does not expect."""
    world.start()
    assert ours.call("status", timeout=10.0**12)["version"]
    assert ours.call("kill", [str(os.getpid()), "b"], grace_seconds=86_400.0)["success"] is False
    for grace in (10.0**300, 10.0**18):
        with refused("bad_request", "BadRequest", 400):
            ours.call("kill", "alpha", grace_seconds=grace)
    with refused("bad_request", "BadRequest", 0):
        ours.call("beat", "")  # of no agent: not of this one


def test_python_takes_infinity_for_no_deadline(world: World) -> None:
    """JSON has no infinity, so it is tried with Python alone; as a value in a body it is refused."""
    world.start()
    with running("python", world.environ) as ours:
        assert ours.call("status", timeout=math.inf)["version"]
        with refused("bad_request", "BadRequest", 0):
            ours.call("kill", "alpha", grace_seconds=math.inf)


def test_without_a_daemon_it_says_so_and_finds_the_next_one(world: World, ours: Client) -> None:
    """Each call looks again."""
    with refused("unreachable", "Unreachable", 0):
        ours.call("status")
    world.start()
    assert ours.call("status")["version"]
    world.crash()
    with refused("unreachable", "Unreachable", 0):
        ours.call("status")


def test_a_socket_that_another_user_could_exchange_is_not_used(world: World, ours: Client) -> None:
    """Nothing is sent."""
    world.start()
    world.runtime.chmod(0o777)
    with refused("untrusted", "Untrusted", 0):
        ours.call("status")
    world.runtime.chmod(0o700)
    assert ours.call("status")["version"]


def test_node_gives_a_call_up_when_its_signal_says_so(world: World) -> None:
    """A kill that is waited for, a follower, and each leaves nothing open; the kill goes on."""
    with running("node", world.environ) as ours:
        assert isinstance(ours, NodeClient)
        world.start()
        started(ours, world, "alpha", "sh", "-c", "trap '' TERM; while :; do sleep 1; done")
        number = ours.begin("kill", "alpha", aborts=True)
        world.wait_event("kill.requested", name="alpha")
        ours.tell({"cancel": number})
        with pytest.raises(Refused) as caught:
            ours.result(number)
        assert caught.value.name == "AbortError"
        stream = ours.follow()
        assert stream.next(PATIENCE) is not None
        stream.close()
        with pytest.raises(Refused) as caught:
            while stream.next(PATIENCE):
                pass
        assert caught.value.name == "AbortError"
        left = ours.follow(leave=1)
        assert left.next(PATIENCE) is not None
        assert left.next(PATIENCE) is None  # its loop has ended
        world.wait_status("alpha", "killed")


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (b"SSH-2.0-x\r\n\r\n",),
        (HEAD,),
        (HEAD + b"Content-Length: 10\r\n\r\n{}",),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}",),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n{}",),
        (HEAD + b"Content-Length: -5\r\n\r\n{}",),
        (HEAD + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n{}",),
        (b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n{}",),
        (b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",),
    ],
    ids=[
        *("none", "ssh", "half a head", "half a body", "half a chunk", "no chunk"),
        *("a length below 0", "a length of 5000 digits", "no status", "another protocol"),
    ],
)
def test_a_broken_answer_is_no_answer(world: World, ours: Client, pieces: tuple[bytes, ...]) -> None:
    """Never taken for a success."""
    with answering(world.socket, *pieces), refused("unreachable", "Unreachable"):
        ours.call("status")


def test_an_answer_may_come_in_any_pieces(world: World, ours: Client) -> None:
    """Cut anywhere, also inside a character."""
    body = '{"a": "ü"}'.encode()
    chunks = b"".join(b"%x;x=y\r\n%s\r\n" % (1, body[at : at + 1]) for at in range(len(body)))
    whole = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    with answering(world.socket, *(whole[at : at + 1] for at in range(len(whole)))):
        assert ours.call("status") == {"a": "ü"}
    with answering(world.socket, HEAD + b"\r\n" + body):
        assert ours.call("status") == {"a": "ü"}


def test_a_limit_says_when_to_come_again(world: World) -> None:
    """`Retry-After`, in seconds."""
    body = b'{"error": "limited", "message": "too often"}'
    with (
        answering(
            world.socket, b"HTTP/1.1 429 X\r\nRetry-After: 3\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        ),
        pytest.raises(client.Limited) as caught,
    ):
        client.Watchdog(world.socket).status()
    assert (caught.value.retry_after, caught.value.code, caught.value.http_status) == (3.0, "limited", 429)


# -- datagrams


def test_an_agent_beats_by_datagram(world: World) -> None:
    """From a process of its own, with the file beside it; a note is cut between characters and stays on its line."""
    world.start()
    code = (
        "import time, agent_watchdog_client as client\n"
        "assert client.Watchdog().beat(tool='make') is None\n"  # first: datagrams are read a moment later
        "assert client.notify(state='waiting', note='Größe\\nWATCHDOG_USEC=1', progress=2.5)\n"
        "assert client.notify(note='ü' * 5000, silent_for_seconds=900, tool='pytest', tool_limit_seconds=60)\n"
        "time.sleep(600)\n"
    )
    ours = client.Watchdog(world.socket)
    made = ours.register("alpha", stall_after_seconds=120)
    process = world.spawn(sys.executable, "-c", code, **made["env"], PYTHONPATH=str(PLACE))
    ours.set_pid(made["agent_id"], process.pid)

    def beaten() -> Any:
        """All three, and what is left of the lease and of the call, which the next sweep counts."""
        one = world.story("alpha")["agent"]
        return one if one["beats"] == 3 and one["lease_left_seconds"] and one["tool_left_seconds"] else None

    found = wait_for(beaten, "its three beats")
    assert (found["state"], found["progress"], found["tool"]) == ("working", 2.5, "pytest")
    assert set(found["note"]) == {"ü"} and found["lease_left_seconds"] > 600
    assert 0 < found["tool_left_seconds"] <= 60
    assert found["after_seconds"] == 120  # the second line of its note was no key


def test_a_datagram_that_cannot_be_sent_harms_no_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No socket, a socket without a daemon, a daemon that reads nothing."""
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert client.notify() is False
    with tempfile.TemporaryDirectory(dir="/tmp") as place, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        monkeypatch.setenv("NOTIFY_SOCKET", f"{place}/s")
        assert client.notify() is False
        there.bind(f"{place}/s")
        while client.notify(note="x" * 5000):
            pass
        assert len(there.recv(65536)) <= MAX_BYTES


# -- where the daemon is


@pytest.mark.parametrize("told", ["socket", "relative", "runtime", "open to others", "stale", "nothing"])
@pytest.mark.parametrize("name", NAMES)
def test_the_daemon_is_found_as_the_command_finds_it(
    name: str, told: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever else runs on this machine."""
    for key in ("AGENT_WATCHDOG_SOCKET", "XDG_RUNTIME_DIR", "AGENT_WATCHDOG_ID"):
        monkeypatch.delenv(key, raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime, socket.socket(socket.AF_UNIX) as listener:
        if told in ("socket", "relative"):
            monkeypatch.setenv("AGENT_WATCHDOG_SOCKET", "/a/b/../s" if told == "socket" else "here/s")
        elif told != "nothing":
            monkeypatch.setenv("XDG_RUNTIME_DIR", f"{runtime}/")
            os.mkdir(f"{runtime}/agent-watchdog", 0o700)
            listener.bind(f"{runtime}/agent-watchdog/control.sock")
            if told != "stale":
                listener.listen(1)
            if told == "open to others":
                os.chmod(f"{runtime}/agent-watchdog", 0o777)
        with running(name, os.environ) as ours:
            found = ours.call("find_socket")

        assert found == sockets.find_socket()
        assert told != "runtime" or found == f"{runtime}/agent-watchdog/control.sock"


# -- the document


@pytest.mark.parametrize(
    ("language", "command", "file", "agent"),
    [
        ("python", (sys.executable, "-B"), "example.py", "copied-python"),
        ("javascript", ("node",), "example.mjs", "copied-node"),
    ],
    ids=NAMES,
)
def test_an_example_runs_as_it_stands(
    world: World, language: str, command: tuple[str, ...], file: str, agent: str
) -> None:
    """With a copy of the client beside it, as its users have it; it says what it does."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    (code,) = re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(), re.DOTALL | re.MULTILINE)
    (world.dir / file).write_text(code)
    for copied in (PYTHON, NODE):
        shutil.copy(copied, world.dir)
    world.start()

    done = subprocess.run(
        [*command, file], cwd=world.dir, env=world.environ, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    listed, killed, removed = done.stdout.splitlines()
    assert (agent in listed, killed) == (True, "Agent terminated gracefully")
    assert removed.startswith("already closed: killed")
    assert world.story(agent)["agent"]["note"] == "page 1 of 9"


def test_the_document_names_each_method() -> None:
    """Those of both, with where they are installed."""
    text = DOCUMENT.read_text()
    public = {name for name in vars(client.Watchdog) if not name.startswith("_")}
    for name in public:
        assert re.search(rf"`{name}\b", text) and re.search(rf"`{camel(name)}\b", text), name
    installed = own_layout("/home/alice").files
    for path in (PYTHON, NODE, TYPES):
        assert f"`{path.name}`" in text
        (target,) = [to for to, source in installed.items() if source == f"config/clients/{path.name}"]
        assert target.endswith(f"/share/doc/agent-watchdogd/clients/{path.name}")


# -- what they say of the daemon


def of_node() -> str:
    return NODE.read_text(encoding="utf-8")


def test_they_ask_for_routes_that_there_are() -> None:
    """Each of those that either names, with the same method."""
    known = {(route.method, f"/v1{route.path}") for route in ROUTES}
    asked = re.compile(r'"(GET|POST|PATCH)",\s*(?:_path\(|withQuery\()?f?["`](/v1[^"`?]*)["`]')
    for text in (PYTHON.read_text(encoding="utf-8"), re.sub(r"\$\{", "{", of_node())):
        routes = {(method, re.sub(r"\{[^}]*\}", "{agent_id}", path)) for method, path in asked.findall(text)}
        assert routes <= known
        assert {("POST", "/v1/kill"), ("POST", "/v1/remove"), ("PATCH", "/v1/agents/{agent_id}")} <= routes
        assert set(re.findall(r"/v1/[a-z]+", text)) <= {f"/v1/{path.split('/')[2]}" for _, path in known}


def test_they_know_each_error_of_the_daemon() -> None:
    """What it can answer is what `errors` has, and the keys of results; the rest is the client's own."""
    everything = vars(watchdog.errors).values()
    kinds = [one for one in everything if isinstance(one, type) and issubclass(one, watchdog.errors.WatchdogError)]
    of_results = {"kill_failed", "withdrawn", "waiting", "preview", "not_found"}
    text = "".join(path.read_text() for path in sorted((PLACE.parent.parent / "watchdog").rglob("*.py")))
    assert all(f'"{code}"' in text for code in of_results)
    daemons = {one.code for one in kinds} | of_results
    assert set(client.ERRORS) == daemons | {"timeout", "untrusted"}

    found = re.findall(r"^export class (\w+) extends (\w+) {\s*static codes = \[(.*?)\]", of_node(), re.MULTILINE)
    of_its = {code: name for name, _, codes in found for code in re.findall(r"\w+", codes)}
    assert of_its == {code: kind.__name__ for code, kind in client.ERRORS.items()}
    bases = {kind.__name__: kind.__bases__[0].__name__ for kind in client.ERRORS.values()}
    assert {name: base for name, base, _ in found} == bases | {"WatchdogError": "Error"}
    assert set(re.findall(r"^export declare class (\w+)", TYPES.read_text(), re.MULTILINE)) == {*bases, "Watchdog"}


def test_they_know_its_states_reserved_words_and_places() -> None:
    """As the daemon has them."""
    assert tuple(client.STATES) == tuple(STATES)
    assert re.findall(r"export const STATES = \[(.+)\]", of_node()) == [", ".join(f'"{one}"' for one in STATES)]
    assert client.SYSTEM_SOCKET == sockets.SYSTEM_SOCKET
    assert f'SYSTEM_SOCKET = "{sockets.SYSTEM_SOCKET}"' in of_node()
    assert client.MOST_BYTES == MAX_BYTES
    words = ", ".join(f'"{word}"' for word in ("all", "stalled", "orphans"))
    assert {"all", "stalled", "orphans"} == set(names.RESERVED)
    assert words in PYTHON.read_text() and words in of_node()


# Method of Python's -> the keys that the daemon takes there, and options that are called otherwise.
BODIES: dict[str, set[str]] = {
    "register": set(CHECKS),
    "beat": {*KEYS, "agent"},
    "kill": set(schemas.Kill.model_fields),
    "stop": set(schemas.Stop.model_fields),
    "remove_agent": {*schemas.Remove.model_fields, "name", "remove_messages"},
    "hold": set(schemas.Hold.model_fields),
    "unhold": set(schemas.Unhold.model_fields),
}
INTERFACES = {
    "register": ("Registration",),
    "beat": ("Beat",),
    "kill": ("KillOptions", "StopOptions"),
    "stop": ("StopOptions",),
    "remove_agent": ("RemoveOptions",),
    "hold": ("HoldOptions",),
}


def arguments(method: str) -> set[str]:
    """Of a method of Python's, without those that are no key."""
    code = getattr(client.Watchdog, method).__code__
    return set(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]) - {"self", "timeout"}


@pytest.mark.parametrize("method", BODIES)
def test_their_options_are_keys_of_the_daemon(method: str) -> None:
    """So are those that are declared for TypeScript; an order has the same ones in both."""
    ours = arguments(method)
    assert ours <= BODIES[method]
    text = TYPES.read_text()
    declared: set[str] = set()
    for interface in INTERFACES.get(method, ()):
        (body,) = re.findall(rf"^export interface {interface} extends \w+ {{\n(.*?)^}}", text, re.DOTALL | re.MULTILINE)
        declared |= set(re.findall(r"^  (\w+)\??:", body, re.MULTILINE))
    assert declared <= {camel(key) for key in BODIES[method]}
    if method in INTERFACES:
        assert {camel(key) for key in ours} - declared <= {"name", "targets"}


def test_both_have_the_same_methods_and_the_types_have_them_too() -> None:
    """By Python's names, and by those in camelCase; what one exports, the declarations have."""
    public = {name for name in vars(client.Watchdog) if not name.startswith("_")}
    methods = re.findall(
        r"^  (?:async )?\*?(\w+)\(.*\) {$", of_node().split("export class Watchdog ")[1].split("\n}\n")[0], re.MULTILINE
    )
    assert set(methods) - {"constructor"} == {camel(name) for name in public}
    declared = TYPES.read_text().split("export declare class Watchdog {")[1].split("\n}\n")[0]
    assert set(re.findall(r"^  (\w+)\(", declared, re.MULTILINE)) == set(methods)
    exports = re.findall(r"^export (?:async )?(?:class|const|function) (\w+)", of_node(), re.MULTILINE)
    assert set(exports) == set(
        re.findall(r"^export declare (?:class|const|function) (\w+)", TYPES.read_text(), re.MULTILINE)
    )


def test_each_is_one_file_that_needs_nothing_else() -> None:
    """Standard library alone; syntax of Python 3.9; no path of this project."""
    tree = ast.parse(PYTHON.read_text(), feature_version=(3, 9))
    found = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    found |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.split(".")[0] for name in found} <= set(sys.stdlib_module_names)
    assert not re.search(r"^\s*(from|import) watchdog", PYTHON.read_text(), re.MULTILINE)
    assert all(name.startswith("node:") for name in re.findall(r'^import .* from "(.+)";$', of_node(), re.MULTILINE))
