"""Too many connections of one user: no healthy agent is killed because its beats were refused."""

import socket
import sys
from collections.abc import Iterator

import pytest

from tests.world import World, make_world, wait_for


@pytest.fixture
def world() -> Iterator[World]:
    """A daemon of our own uid; three seconds of silence are too long."""
    yield from make_world()


HOLDERS = """
import os, socket, sys, time
for _ in range(8):
    if not os.fork():
        break
while True:
    held = socket.socket(socket.AF_UNIX)
    held.connect(sys.argv[1])
    try:
        held.sendall(b"GET /v1/status HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        if b" 200 " in held.recv(65536):
            break
    except OSError:
        pass
    time.sleep(0.05)
time.sleep(60)
"""


def hold(world: World) -> socket.socket:
    """A connection that has sent a request and is kept open (30 s)."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(world.socket)
    connection.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
    return connection


def start_agents(world: World) -> None:
    """One that beats with our own verb, one with a library through its `run`."""
    world.start()
    for name, manner in (("g", "by=beat"), ("h", "by=sdnotify")):
        world.run(name, *world.script("agent.py", manner, "beat=0.5"), options=("--stall-after", "3s"))
        world.wait_event("agent.first_beat", name=name)


def beats(world: World) -> dict[str, int]:
    """By an operator's client: our own process has no connection left."""
    return {agent["name"]: agent["beats"] for agent in world.json("list")["agents"]}


def test_one_process_that_takes_all_connections_harms_no_agent(world: World) -> None:
    """200 connections of one process: operator and beats have reserved ones, for longer than 3 s of silence."""
    start_agents(world)
    held = [hold(world) for _ in range(200)]
    before = beats(world)
    wait_for(lambda: all(count >= before[name] + 8 for name, count in beats(world).items()), "beats come through")
    for connection in held:
        connection.close()
    assert [e["event"] for e in world.events() if e["event"] in ("agent.stalled", "kill.requested")] == []


def test_33_followers_harm_no_agent(world: World) -> None:
    """One `events --follow` per agent is common; the 33rd gets the reason for its refusal."""
    start_agents(world)
    followers = [world.spawn("agent-watchdog", "events", "--follow") for _ in range(33)]
    refused = wait_for(lambda: [f for f in followers if f.poll() is not None], "one is refused")
    assert [f.returncode for f in refused] == [75]
    before = beats(world)
    wait_for(lambda: all(count >= before[name] + 8 for name, count in beats(world).items()), "beats come through")
    assert world.count("kill.requested") == 0


def test_an_agent_whose_beats_cannot_be_received_is_late_and_not_killed(world: World) -> None:
    """Every connection is taken, also the reserved ones: late for that reason, reported once, then healthy."""
    start_agents(world)
    held = [hold(world) for _ in range(32)]
    holders = world.spawn(sys.executable, "-c", HOLDERS, world.socket)
    for name in ("g", "h"):
        world.wait_event("agent.channel_lost", name=name)
    refused = world.cli("status", check=False)
    assert refused.returncode == 75
    assert "connections open already; close some" in refused.stderr
    for connection in held:
        connection.close()
    for name in ("g", "h"):
        world.wait_event("agent.recovered", name=name)
        assert world.count("agent.channel_lost", name=name) == 1
    assert world.count("kill.requested") == 0
    holders.kill()
