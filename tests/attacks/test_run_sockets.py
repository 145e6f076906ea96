"""The notify socket that a `run` of root's has: other users neither fill it nor leave anything in it.

At 6e2b281 and before anybody might write there (mode 0666, as an agent of root's may drop to a user): ten datagrams
fill it, and every agent's id, by which it was called, is public. Its sibling, a descriptor that comes along and hangs
when `run` closes it, is played in `tests/cli/run/test_inbox.py::test_takes_no_descriptor_that_it_is_sent`.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_two_people import FLOOD, Person
from tests.world import World, wait_for

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: agents of root's, and a user beside it"),
]
BEN = 12002
ROOT = str(Path(__file__).parents[2])

# Beats twice a second, as libraries do that must not hold their program up: what does not fit is dropped.
BEATING = """
import os, socket, time
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.setblocking(False)
while True:
    try:
        out.sendto(b"WATCHDOG=1", os.environ["NOTIFY_SOCKET"])
    except OSError:
        pass
    time.sleep(0.5)
"""

# Registers, as soon as there is a daemon, whatever a socket in that directory is called (proc(5), /proc/net/unix).
THIEF = """
import sys, time
from watchdog.client import client
control, directory = sys.argv[1:]
print("waiting", flush=True)
while True:
    time.sleep(0.002)
    for line in open("/proc/net/unix"):
        if f" {directory}/" in line:
            name = line.split()[-1][-32:]
            try:
                body = {"name": f"x{name[:8]}", "agent_id": name}
                print(client.request("POST", "/v1/agents", body, socket_path=control), flush=True)
            except Exception:
                continue
"""


@pytest.fixture
def settings() -> dict[str, dict[str, Any]]:
    return {"log": {"level": "debug"}}


def test_a_flood_by_another_user_has_no_agent_of_roots_killed(world: World) -> None:
    """At 6e2b281 it was killed for its silence after 9 s, with a limit of 3."""
    world.start()
    world.run("roots", world.environ["PYTHON"], "-c", BEATING, options=("--stall-after", "3s"))
    world.wait_event("agent.first_beat", name="roots")
    [socket] = (world.runtime / "notify").glob("run-*")
    ben = Person(world, "ben", BEN)
    with open(os.devnull, "wb") as out:
        for _ in range(2):
            ben.start(world.environ["PYTHON"], "-c", FLOOD, str(socket), out=out)

    world.wait_sweeps(24)

    assert world.agents()["roots"]["status"] == "running", world.story("roots")["events"]


def test_an_agent_that_drops_its_uid_is_heard(world: World) -> None:
    """Its `run` gives the socket to that user, and to nobody else."""
    world.start()
    drop = ("setpriv", "--reuid", str(BEN), "--regid", str(BEN), "--clear-groups")
    world.run("dropped", *drop, world.environ["PYTHON"], "-c", BEATING, options=("--stall-after", "3s"))
    world.wait_event("agent.first_beat", name="dropped")
    [socket] = (world.runtime / "notify").glob("run-*")
    found = socket.stat()
    assert (found.st_uid, found.st_mode & 0o777) == (BEN, 0o600)


def test_nobody_takes_the_id_of_an_agent_that_waits_for_its_daemon(world: World) -> None:
    """At 6e2b281 its socket was called by its id: who registered that first kept root's agent unwatched for ever."""
    world.run("roots", world.environ["PYTHON"], "-c", BEATING, options=("--stall-after", "3s"))
    wait_for(lambda: list((world.runtime / "notify").glob("*")), "its socket")
    ben = Person(world, "ben", BEN)
    with (world.dir / "thief.out").open("wb") as out:
        ben.start(
            world.environ["PYTHON"], "-c", THIEF, world.socket, str(world.runtime / "notify"), PYTHONPATH=ROOT, out=out
        )
    wait_for(lambda: (world.dir / "thief.out").read_bytes(), "the thief")

    world.start()

    world.wait_event("agent.first_beat", name="roots")
    wait_for(lambda: b"(201," in (world.dir / "thief.out").read_bytes(), "it was tried")
