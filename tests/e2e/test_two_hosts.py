"""Two real daemons on one real PostgreSQL: each acts on its own host's agents; orders for the other's wait for it."""

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.postgresql import BINARIES, Server, running_server
from tests.world import BIN, World, alive, make_world, wait_for

pytestmark = pytest.mark.skipif(not BINARIES, reason="PostgreSQL is not installed")
HOSTS = ("here", "there")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The session's server, or one of this module's own."""
    if World.server is not None:
        yield World.server
        return
    with running_server() as running:
        yield running


@contextmanager
def worlds(server: Server, *hosts: str) -> Iterator[list[World]]:
    """A world for each host, all with the same registry; none is started."""
    url = server.database()
    with ExitStack() as stack:
        made = [stack.enter_context(contextmanager(make_world)()) for _ in hosts]
        for world, host in zip(made, hosts, strict=True):
            world.registry_url = url
            settings: dict[str, Any] = {"daemon": {"host": host}, "log": {"level": "debug"}}
            world.configure(**settings)
        yield made


@pytest.fixture
def pair(server: Server) -> Iterator[list[World]]:
    """Hosts `here` and `there`, both running."""
    with worlds(server, *HOSTS) as made:
        for world in made:
            world.start()
        yield made


def agent(world: World, name: str, *words: str) -> int:
    """A running agent's pid."""
    world.run(name, *world.script("agent.py", *words))
    world.wait_event("agent.first_beat", name=name)
    return int(world.agents()[name]["pid"])


@pytest.mark.faults
def test_each_judges_and_kills_its_own_host_s_agents_alone(pair: list[World]) -> None:
    """Both have a silent and a beating one of the same names; each list shows only its own host by default."""
    pids = [
        {name: agent(world, name, words) for name, words in (("mute", "beat=0.3/3"), ("well", "beat=0.3"))}
        for world in pair
    ]
    for world, its in zip(pair, pids, strict=True):
        world.wait_status("mute", "killed")
        assert its["mute"] in world.signalled()
        assert alive(its["well"])
        assert {a["pid"] for a in world.json("list")["agents"]} == {its["well"]}
    here, there = (world.signalled() for world in pair)
    assert not here & there
    assert not here & set(pids[1].values())

    lines = pair[0].cli("list", "--all-hosts", "--all").stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if line.split()[:2] == ["NAME", "HOST"])
    assert sorted(line.split()[:2] for line in lines[head + 1 :]) == [[n, h] for n in ("mute", "well") for h in HOSTS]
    assert {(a["name"], a["host"]) for a in pair[0].json("list", "--all-hosts")["agents"]} == {
        ("well", h) for h in HOSTS
    }


def test_an_order_for_the_other_host_s_agent_is_done_by_its_daemon(pair: list[World]) -> None:
    """The verb waits for the outcome; the daemon that got the request sends no signal."""
    here, there = pair
    pid = agent(there, "far", "beat=0.3")
    refused = here.cli("kill", "far", check=False)
    assert (refused.returncode, "far@there" in refused.stderr) == (1, True)

    dry = here.cli("kill", "all@there", "--dry-run").stdout
    assert "far" in dry
    told = here.cli("kill", "far@there", "--reason", "enough")

    assert "ended on TERM" in told.stdout
    assert not alive(pid)
    assert (here.signalled(), there.signalled()) == (set(), {pid})
    story = here.cli("why", "far@there").stdout
    assert "of host here" in story
    assert "enough" in story
    assert here.json("why", "far@there")["agent"]["status"] == "killed"
    assert here.cli("kill", "far@ther").stdout.count("already dead") == 1


@pytest.mark.faults
def test_an_order_waits_while_the_other_daemon_is_down(pair: list[World]) -> None:
    """The caller gets a message and exits with 1; the daemon carries it out as soon as it is up."""
    here, there = pair
    pid = agent(there, "far", "sleep", "beat=0.3/1")
    agent_id = there.agents()["far"]["agent_id"]
    there.stop()

    for target in ("far@there", agent_id):
        told = here.cli("kill", target, check=False)
        assert told.returncode == 1
        assert "no daemon of host there is connected" in told.stderr
    answer = here.json("kill", "far@there", check=False)
    assert (answer["success"], answer["error"], answer["host"]) == (False, "waiting", "there")
    assert alive(pid)
    shown = here.json("why", "far@there")
    assert [request["status"] for request in shown["requests"]] == ["open"]
    assert "not connected" in shown["agent"]["outlook"][0]

    there.start()
    wait_for(lambda: not alive(pid), "the order is taken up")
    there.wait_status("far", "killed")
    assert here.signalled() == set()
    assert here.cli("kill", agent_id).returncode == 0


@pytest.mark.faults
def test_a_hold_is_its_host_s_own_and_one_on_the_other_s_agent_reaches_its_daemon(pair: list[World]) -> None:
    """Also over a restart of the other daemon."""
    here, there = pair
    pid = agent(there, "far", "beat=0.3")
    here.cli("hold", "--reason", "backup")
    there.stop()
    there.start()
    there.wait_sweeps(2)
    assert there.json("status")["holds"] == []
    assert [hold["reason"] for hold in here.json("status")["holds"]] == ["backup"]

    assert "daemon of host there obeys it" in here.cli("hold", "far@there", "--reason", "mine").stdout
    there.wait_event("hold.started", name="far")
    for world, target in ((there, "far"), (here, "far@there")):
        refused = world.cli("kill", target, check=False)
        assert (refused.returncode, "held" in refused.stderr) == (1, True), refused
    assert alive(pid)
    here.cli("unhold", "far@there")
    there.wait_event("hold.ended", name="far")
    assert here.cli("stop", "far@there").returncode == 0
    there.wait_status("far", "stopped")


@pytest.mark.faults
def test_a_second_daemon_of_a_host_is_refused_while_the_first_is_active(server: Server) -> None:
    """It waits a while, names the other one, and exits with 75; the first is not disturbed."""
    with worlds(server, "same", "same") as (first, second):
        first.start()
        pid = agent(first, "a1", "beat=0.3")
        second.start(wait=False)
        assert second.daemon is not None
        assert second.daemon.wait(60) == 75
        assert "another agent-watchdogd of host 'same'" in second.log.read_text()
        assert alive(pid)
        assert first.agents()["a1"]["status"] == "running"


@pytest.mark.faults
def test_a_second_daemon_of_a_host_continues_where_the_first_died(server: Server) -> None:
    """Killed in the middle of a kill: a waiting daemon finds its claim, and that its process is gone."""
    with worlds(server, "same", "same") as (first, second):
        first.start()
        pid = agent(first, "deaf", "deaf", "beat=0.3")
        second.start(wait=False)
        second.wait_event("daemon.starting")
        asked = subprocess.Popen(
            ["agent-watchdog", "kill", "deaf", "--grace", "4s"],
            env=first.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            executable=str(BIN / "agent-watchdog"),
        )
        first.started.append(asked)
        first.wait_event("kill.signal_sent")
        first.crash()
        assert alive(pid)

        second.wait_event("kill.resumed", name="deaf")
        second.wait_status("deaf", "killed")
        assert not alive(pid)
