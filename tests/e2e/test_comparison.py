"""Our column of the comparison with hcom and agent-relay, played on every run; `make peers` plays theirs beside it."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.peers import ours
from tests.world import alive, wait_for


@pytest.fixture(scope="module")
def here() -> Iterator[ours.Ours]:
    """One daemon for all of them: each has agents of its own."""
    with ours.running() as one:
        yield one


@pytest.mark.parametrize("scenario", ours.SCENARIOS.values(), ids=lambda scenario: scenario.__name__)
def test_it_ends_as_the_comparison_says(here: ours.Ours, scenario: ours.Scenario) -> None:
    """Each function asserts what must be so, and says it in words."""
    assert scenario(here)


@pytest.mark.faults
@pytest.mark.faults
def test_an_interactive_agent_of_hcoms_is_stopped_by_hcom_first(here: ours.Ours) -> None:
    """`stop` has hcom disconnect it; who does not leave by that is ended, politely."""
    program = here.world.dir / "bin/hcom"
    program.write_text(f'#!/bin/sh\necho "$HCOM_DIR $*" >> {here.world.dir}/asked\n')
    program.chmod(0o755)
    agent = here.launch("inter", "sleep", "1000", background=0)

    done = here.world.json("stop", "inter")

    assert done["status"] == "stopped"
    assert (here.world.dir / "asked").read_text() == f"{here.hcom.root} stop inter\n"
    assert not alive(agent.pid)
    assert here.ended("inter") == "external"


def test_a_tag_of_hcoms_means_its_agents(here: ours.Ours) -> None:
    """As `hcom kill tag:T`, with each dead."""
    crew = [here.launch(name, "sleep", "1000", tag="crew") for name in ("ann", "bob")]
    here.world.cli("kill", "tag:crew", "--go")
    assert not any(alive(one.pid) for one in crew)
    assert (here.ended("ann"), here.ended("bob")) == ("killed", "killed")


def test_a_leftover_process_of_hcoms_can_be_ended_by_name(here: ours.Ours) -> None:
    """It was stopped and ran on: hcom's orphan. Its line in the pid file goes with it."""
    process = here.world.spawn("sleep", "1000")
    here.hcom.launched(**{f"p{process.pid}": {"names": ["zara"], "launched_at": time.time()}})
    here.world.wait_status("zara", "running")
    here.world.cli("kill", "zara")
    assert not alive(process.pid)
    assert json.loads(here.hcom.pid_file.read_text()) == {}


def test_a_launch_that_died_is_closed_in_both(here: ours.Ours) -> None:
    """hcom has it launching for 30 s, agent-relay's list of workers keeps it for ever."""
    dead = here.world.spawn("true")
    dead.wait()
    here.hcom.add("unborn", pid=dead.pid, status="pending", status_context="new", created_at=time.time())
    workers = here.relay.workers({"name": "Unborn", "pid": dead.pid, "spawnedAt": int(time.time() * 1000)})
    assert here.ended("unborn") == "process_exit"
    wait_for(lambda: json.loads(workers.read_text()) == {"workers": []}, "the worker is off the list")


def test_a_workers_pid_that_passed_on_is_an_innocents(here: ours.Ours) -> None:
    """agent-relay would end it: its list tells a number, and when it was written."""
    innocent = here.world.spawn("sleep", "1000")
    spawned = int((time.time() - 60) * 1000)
    workers = here.relay.workers({"name": "Passed", "pid": innocent.pid, "spawnedAt": spawned})
    wait_for(lambda: json.loads(workers.read_text()) == {"workers": []}, "the worker is off the list")
    assert alive(innocent.pid)
    assert innocent.pid not in here.world.signalled()
