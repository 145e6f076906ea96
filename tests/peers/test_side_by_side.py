"""Ours, hcom and agent-relay in the same situations, all columns printed: `make peers`."""

import os
from collections.abc import Iterator
from functools import partial

import pytest

from tests.peers import ours, theirs, tools
from tests.world import alive, make_world, wait_for

pytestmark = [pytest.mark.peers, pytest.mark.timeout(900)]
ABSENT = "not installed here"


@pytest.fixture
def hcom() -> Iterator[theirs.Hcom | None]:
    """The real one, if it is there."""
    for world in make_world():
        yield theirs.Hcom(world) if tools.works(tools.HCOM_PROGRAM) else None


@pytest.fixture
def relay() -> Iterator[theirs.Relay | None]:
    """Likewise, with its server."""
    for world in make_world():
        one = theirs.Relay(world) if tools.works(tools.RELAY_PROGRAM) else None
        if one is not None:
            one.up()
        yield one
        if one is not None:
            one.close()


@pytest.fixture(scope="module")
def here() -> Iterator[ours.Ours]:
    """Our daemon."""
    with ours.running() as one:
        yield one


def test_the_comparison(
    here: ours.Ours, hcom: theirs.Hcom | None, relay: theirs.Relay | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours is asserted, theirs is told as it was seen."""
    rows = []
    for title, scenario in ours.SCENARIOS.items():
        name = scenario.__name__
        columns = [scenario(here)]
        columns += [theirs.HCOM[name](hcom) if hcom and name in theirs.HCOM else theirs.NOT if hcom else ABSENT]
        columns += [theirs.RELAY[name](relay) if relay and name in theirs.RELAY else theirs.NOT if relay else ABSENT]
        rows.append((title, *columns))
        with capsys.disabled():
            print(f"\n{title}")
            for who, saw in zip(("agent-watchdog", "hcom 0.7.31", "agent-relay 1.6.0"), columns, strict=True):
                print(f"  {who:18} {saw}")
    assert len(rows) == len(ours.SCENARIOS)


@pytest.mark.parametrize("mode", ["stubborn", "escaped"])
def test_hcom_lists_what_is_true_after_we_acted(hcom: theirs.Hcom | None, mode: str) -> None:
    """On a database that it wrote itself: not among the living, known as killed, to be taken up again by its name."""
    if hcom is None:
        pytest.skip(ABSENT)
    for world in make_world():
        with world.config.open("a") as config:
            config.write(f'[[source]]\nkind = "hcom"\npath = "{hcom.world.dir / "hcom"}"\n')
        name, agent = hcom.start(mode, *(("-p", "hello") if mode == "stubborn" else ()))
        ((pid, context),) = hcom.sql("SELECT pid, json_extract(launch_context, '$.pid_identity') FROM instances")
        world.start()
        running = world.wait_status(name, "running")
        assert (running["pid"], running["source"]) == (pid, "hcom")
        assert str(context).startswith("linux:")

        world.json("kill", name)

        assert not alive(agent)
        if mode == "escaped":
            assert not alive(hcom.escaped())
        assert hcom.call("hcom", "list", "--json").stdout.strip() == "[]"
        stopped = hcom.call("hcom", "list", "--stopped").stdout
        line = next(line for line in stopped.splitlines() if f" {name} " in f" {line} ")
        assert "[killed by:" in line
        assert "already" in (again := hcom.call("hcom", "kill", name).stdout) or "stopped" in again
        assert not list((hcom.world.dir / "hcom/.tmp/launch").glob(f"*{name}*"))


def test_agent_relay_lists_what_is_true_after_we_acted(relay: theirs.Relay | None) -> None:
    """What its wrapper wraps died: the wrapper is ended, and the name is not among the connected."""
    if relay is None:
        pytest.skip(ABSENT)
    for world in make_world():
        with world.config.open("a") as config:
            config.write(f'[[source]]\nkind = "agent_relay"\npath = "{relay.world.dir / ".agent-relay"}"\n')
        pty, agent = relay.start("stubborn", "Gamma")
        world.start()
        world.wait_status("Gamma", "running")
        # Who only passes by is no part of an agent: what its wrapper wraps counts from the second look on.
        known = partial(world.sql, f"SELECT 1 FROM agent_lifecycle WHERE entries LIKE '%\"pid\":{agent},%'")
        wait_for(known, "what it wraps is known")
        os.kill(agent, 9)
        world.wait_status("Gamma", "failed", "completed", seconds=20)
        assert not alive(pty)
        wait_for(lambda: "Gamma" not in relay.connected(), "it is not connected")
        # For 30 s its `agents` takes who just disconnected for online, when nobody else is connected.
        wait_for(lambda: "Gamma" not in relay.call("agent-relay", "agents").stdout, "`agents` has it no more", 60)
