"""One agent, one daemon: a host's daemon and a user's that may both know an agent (O1, invariant 15)."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.fake_vendor import EVENT, FakeVendor
from tests.household import UID, Household, Seat, household
from tests.owner.sources.orchestrator import Orchestrator
from tests.world import BIN, alive, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a host's daemon and another uid's")
PROMISE = ("--stall-after", "4s")
HOST = "/run/agent-watchdog/control.sock"
HOOK = f"{BIN}/agent-watchdog beat --from claude"


@pytest.fixture
def home() -> Iterator[Household]:
    with household() as made:
        yield made


@contextmanager
def session(home: Household, **environ: str) -> Iterator[FakeVendor]:
    """A session of the user's without `run`."""
    with FakeVendor("claude", {**home.user.world.environ, **environ}, HOOK, home.user.prefix) as agent:
        yield agent


def story(seat: Seat, name: str) -> list[str]:
    """The events of an agent's history."""
    return [one["event"] for one in seat.ask("GET", f"/v1/agents/{name}")[1]["events"]]


def heard(seat: Seat, agent: FakeVendor, event: dict[str, Any], more: int = 1) -> None:
    """Send events of the session until that daemon has received so many more."""

    def beats() -> int:
        return int(next((one["beats"] for one in seat.agents().values() if one["pid"] == agent.pid), 0))

    before = beats()
    wait_for(lambda: agent.does(event) and beats() >= before + more, "its hooks are heard")


def test_an_agent_stays_with_the_hosts_daemon_when_its_user_starts_one(home: Household) -> None:
    """It keeps beating there, over a restart of that daemon as well; the user's knows nothing of it."""
    home.host.start()
    home.user.start_agent("alpha", *home.user.world.script("agent.py", "witness", "beat=0.5"), options=PROMISE)
    home.host.world.wait_event("agent.first_beat", name="alpha")
    home.user.start()
    home.host.world.wait_sweeps(12)
    assert home.host.world.stop() == 0
    home.host.start()
    beats = home.host.agents()["alpha"]["beats"]
    wait_for(lambda: home.host.agents()["alpha"]["beats"] > beats + 2, "it is heard")
    home.host.world.wait_sweeps(12)
    assert home.host.agents()["alpha"]["status"] == "running"
    assert home.signalled() == set()
    assert home.user.world.witnessed() == []
    assert home.user.world.count("agent.registered") == 0


def test_a_session_of_hooks_stays_with_the_daemon_that_registered_it(home: Household) -> None:
    """The user's daemon, which the next hook finds first, reports the holder and passes the beats on."""
    home.host.start()
    with session(home) as agent:
        heard(home.host, agent, EVENT)
        home.user.start()
        heard(home.host, agent, EVENT, more=3)
        assert home.host.held() == [f"claude-api-{agent.pid}"]
        assert home.user.held() == []
        assert home.user.world.count("agent.registered") == 0


def test_a_session_of_hooks_stays_with_its_users_daemon(home: Household) -> None:
    """A hook that finds the host's daemon alone: that one asks the user's, as the user, and registers nothing."""
    home.user.start()
    home.host.start()
    with session(home) as agent:
        heard(home.user, agent, EVENT)
    with session(home, XDG_RUNTIME_DIR="/nowhere", AGENT_WATCHDOG_SOCKET=HOST) as agent:
        body = {"name": "mine", "pid": agent.pid, "source": "register", "stall_after_seconds": 4}
        assert home.user.ask("POST", "/v1/agents", body)[0] == 201
        agent.does(EVENT)
        status, answer = home.user.ask("POST", "/v1/agents", {**body, "name": "again"}, socket=HOST)
        assert (status, answer["error"]) == (421, "elsewhere")
        assert f"is agent mine of the daemon of uid {UID} (pid " in answer["message"]
        assert home.host.world.count("agent.registered") == 0
        assert home.host.ask("POST", "/v1/agents", {**body, "name": "roots", "source": "register"})[0] == 201, "root"
        home.user.world.wait_event("agent.elsewhere", name="mine")
        assert (home.host.held(), home.user.held()) == (["roots"], [])
        wait_for(lambda: "agent.elsewhere" in story(home.user, "mine"), "its history says so")
        (left,) = home.user.ask("GET", "/v1/status")[1]["elsewhere"]
        assert (left["name"], left["name_there"], left["socket"]) == ("mine", "roots", HOST)


def test_a_source_entry_that_another_daemon_watches_is_shown_with_that_daemon(home: Household) -> None:
    """Its beats go there: registered here, it would be killed as stalled."""
    home.host.start()
    home.user.start_agent("alpha", *home.user.world.script("agent.py", "witness", "beat=0.5"), options=PROMISE)
    home.host.world.wait_event("agent.first_beat", name="alpha")
    pid = home.host.agents()["alpha"]["pid"]
    made = Orchestrator(home.user.world.dir / "data")
    for path in (made.path, made.path.parent, made.status):
        os.chown(path, UID, UID)
    made.insert(agent_id="listed", agent_type="x", status="running", pid=pid, created_at=..., last_heartbeat=...)
    with home.user.world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "orchestrator_db"\npath = "{made.path}"\nafter_seconds = 3\n')
    home.user.start()
    one = wait_for(lambda: home.user.agents().get("listed"), "it is shown")
    assert "watched by root's daemon (pid " in one["why"]
    home.user.world.wait_sweeps(12)
    assert home.user.held() == []
    assert home.signalled() == set()
    assert home.user.world.witnessed() == []


def test_an_admin_kills_an_agent_of_another_daemon_through_the_hosts(home: Household) -> None:
    """No claim binds root's orders; a process of no agent is not killed."""
    home.host.start()
    home.user.start()
    home.user.start_agent("alpha", *home.user.world.script("agent.py", "beat=0.5"), options=PROMISE)
    home.user.world.wait_event("agent.first_beat", name="alpha")
    stranger = home.user.spawn("sleep", "300")
    pid = home.user.agents()["alpha"]["pid"]
    assert home.host.cli("kill", str(stranger.pid)).returncode == 1
    done = home.host.cli("kill", str(pid), "--reason", "enough")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not alive(pid)
    assert alive(stranger.pid)
    wait_for(lambda: home.user.agents()["alpha"]["status"] not in ("running", "ending"), "its own daemon has seen it")


CLAIMS = """
import json, os, socket, sys
directory = f"/run/user/{os.getuid()}/agent-watchdog"
os.makedirs(directory, 0o700, exist_ok=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(directory + "/control.sock")
listener.listen(64)
print("claims", flush=True)
ticks = lambda pid: int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[19])
while True:
    connection, _ = listener.accept()
    connection.recv(65536)
    held = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            held.append({"pid": int(pid), "start_ticks": ticks(pid), "agent_id": "f" * 32, "name": "claimed"})
        except (OSError, IndexError):
            pass
    body = json.dumps({"held": held}).encode()
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body) + body)
    connection.close()
"""


def test_claims_of_a_hostile_user_spare_no_agent_of_the_hosts_daemon(home: Household) -> None:
    """The user's program answers like a daemon and claims every process of the host: root's and its own are judged.

    Of agents that root's daemon never registered it may keep its own; another uid's it cannot.
    """
    home.host.start()
    for name, seat in (("theirs", home.user), ("roots", home.host)):
        seat.start_agent(name, *home.user.world.script("agent.py", "beat=0.3/hush"), options=PROMISE)
        home.host.world.wait_event("agent.first_beat", name=name)
    out = home.user.world.dir / "claims"
    home.user.spawn(str(BIN / "python"), "-c", CLAIMS, out=out)
    wait_for(lambda: "claims" in out.read_text(), "it claims")
    other = home.host.spawn("sleep", "300")
    body = {"name": "another", "pid": other.pid, "source": "hook"}
    assert home.host.ask("POST", "/v1/agents", body)[0] == 201, "what a user says of root's process is nothing"
    (home.user.world.dir / "hush").touch()
    (home.host.world.dir / "hush").touch()
    for name in ("theirs", "roots"):
        home.host.world.wait_event("agent.ended", name=name, status="killed")
    assert home.host.world.count("agent.elsewhere") == 0


HEARS = """
import os, signal, time
from watchdog.client.client import request
def witness(number, _):
    open(os.path.join(os.environ["WORLD"], "signals"), "a").write(f"{os.getpid()} {number}")
signal.signal(signal.SIGTERM, witness)
path = f"/v1/agents/{os.environ['AGENT_WATCHDOG_ID']}/beat"
request("POST", path, {}, socket_path=os.environ["AGENT_WATCHDOG_SOCKET"])
while not os.path.exists(os.path.join(os.environ["WORLD"], "wake")):
    time.sleep(0.02)
while True:
    os.system("systemd-notify --no-block WATCHDOG=1")
    time.sleep(0.3)
"""


@pytest.mark.faults  # half a minute; that the order is vetoed before it runs is in tests/service/test_recovery.py
def test_an_order_left_by_a_crash_is_not_resumed_once_another_daemon_has_the_agent(home: Household) -> None:
    """The user's daemon had decided to kill it and sent no signal; the host's took over, and the agent beats there."""
    home.user.configure(kill={"ladder": ["stop", "kill"], "stop_pause_seconds": 8})
    home.user.start()
    # It beats over HTTP, so it reads a stop request: it is asked, and not signalled yet.
    home.user.start_agent("alpha", str(BIN / "python"), "-c", HEARS, options=PROMISE)
    home.user.world.wait_event("kill.requested", name="alpha")
    home.user.world.crash()
    (home.user.world.dir / "wake").touch()
    home.host.start()
    home.host.world.wait_event("agent.first_beat", name="alpha")
    home.user.start()
    home.user.world.wait_event("agent.elsewhere", name="alpha")
    home.host.world.wait_sweeps(30)  # longer than the stop request lasts
    assert home.host.agents()["alpha"]["status"] == "running"
    assert home.host.held() == ["alpha"]
    assert home.user.world.witnessed() == []
    assert home.signalled() == set()
