"""Our column of the comparison with hcom and agent-relay, run in every test run; `make peers` runs theirs."""

import json
import time
from collections.abc import Iterator

import pytest

from tests.peers import ours
from tests.world import alive, wait_for


@pytest.fixture(scope="module")
def here() -> Iterator[ours.Ours]:
    """One daemon for all of them: each test has its own agents."""
    with ours.running() as one:
        yield one


@pytest.mark.parametrize("scenario", ours.SCENARIOS.values(), ids=lambda scenario: scenario.__name__)
def test_it_ends_as_the_comparison_says(here: ours.Ours, scenario: ours.Scenario) -> None:
    """Each function asserts the required result and describes it."""
    assert scenario(here)


@pytest.mark.faults
@pytest.mark.faults
def test_an_interactive_agent_of_hcoms_is_stopped_by_hcom_first(here: ours.Ours) -> None:
    """`stop` has hcom disconnect it; if it stays, it is killed, politely first."""
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
    """As `hcom kill tag:T`, with each proven dead."""
    crew = [here.launch(name, "sleep", "1000", tag="crew") for name in ("ann", "bob")]
    here.world.cli("kill", "tag:crew", "--go")
    assert not any(alive(one.pid) for one in crew)
    assert (here.ended("ann"), here.ended("bob")) == ("killed", "killed")


def test_a_leftover_process_of_hcom_can_be_killed_by_name(here: ours.Ours) -> None:
    """It was stopped but kept running: hcom's orphan. Its line in the pid file is removed too."""
    process = here.world.spawn("sleep", "1000")
    here.hcom.launched(**{f"p{process.pid}": {"names": ["zara"], "launched_at": time.time()}})
    here.world.wait_status("zara", "running")
    here.world.cli("kill", "zara")
    assert not alive(process.pid)
    assert json.loads(here.hcom.pid_file.read_text()) == {}


def test_a_launch_that_died_is_closed_in_both(here: ours.Ours) -> None:
    """hcom shows it as launching for 30 s; agent-relay's list of workers keeps it for ever."""
    dead = here.world.spawn("true")
    dead.wait()
    here.hcom.add("unborn", pid=dead.pid, status="pending", status_context="new", created_at=time.time())
    workers = here.relay.workers({"name": "Unborn", "pid": dead.pid, "spawnedAt": int(time.time() * 1000)})
    assert here.ended("unborn") == "process_exit"
    wait_for(lambda: json.loads(workers.read_text()) == {"workers": []}, "the worker is off the list")


def test_a_reused_pid_of_a_worker_belongs_to_a_bystander(here: ours.Ours) -> None:
    """agent-relay would kill it: its list contains only a pid, and the time when it was written."""
    innocent = here.world.spawn("sleep", "1000")
    spawned = int((time.time() - 60) * 1000)
    workers = here.relay.workers({"name": "Passed", "pid": innocent.pid, "spawnedAt": spawned})
    wait_for(lambda: json.loads(workers.read_text()) == {"workers": []}, "the worker is off the list")
    assert alive(innocent.pid)
    assert innocent.pid not in here.world.signalled()
