"""A crash is reported: in the stream of events, and by the command of `[notify]`. An orderly exit is not."""

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from tests.world import BIN, World, wait_for


@pytest.mark.faults
def test_a_crash_is_reported_by_the_stream_and_by_the_command(world: World) -> None:
    """Once each, with the exit status; an agent that exited with 0, or that we killed, did not crash."""
    command = world.dir / "tell.sh"
    command.write_text(f'#!/bin/sh\ncat >>"{world.dir}/heard"\n')
    command.chmod(0o755)
    world.configure(notify={"on": ["agent.crashed"], "command": [str(command)]})
    world.start()
    with (world.dir / "followed").open("wb") as stream:
        follow = [str(BIN / "agent-watchdog"), "events", "--follow", "--json"]
        world.started.append(subprocess.Popen(follow, env=world.environ, stdout=stream))
    for name, ending in (("well", "exit 0"), ("ill", "exit 3"), ("shot", "exec sleep 600"), ("ours", "exec sleep 600")):
        world.run(name, "/bin/sh", "-c", ending)
    os.kill(world.wait_status("shot", "running")["pid"], signal.SIGSEGV)
    world.wait_status("ours", "running")
    world.cli("kill", "ours")
    for name in ("well", "ill", "shot"):
        world.wait_status(name, "completed", "failed")

    def told(file: str) -> dict[str, str]:
        lines = (world.dir / file).read_text().splitlines(keepends=True) if (world.dir / file).exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        names = {agent["agent_id"]: name for name, agent in world.agents().items()}
        return {names[one["agent_id"]]: one["why"] for one in found if one["event"] == "agent.crashed"}

    for file in ("followed", "heard"):
        wait_for(lambda file=file: len(told(file)) == 2, f"both in {file}")  # type: ignore[misc]
        assert told(file)["ill"] == "exited by itself with status 3"
        assert told(file)["shot"] == "killed by signal 11 (a crash, or sent by another process)"
    assert world.count("agent.crashed") == 2


@pytest.mark.faults
@pytest.mark.parametrize("elapsed", [1000.0, -1000.0])
def test_a_grace_that_was_given_is_not_given_again_by_a_restarted_daemon(world: World, elapsed: float) -> None:
    """A daemon that crashes in each grace would never kill an agent that ignores TERM.

    A time in the future is not believed: then the grace is given.
    """
    world.start()
    world.run("deaf", "sh", "-c", "trap '' TERM; while :; do sleep 0.2; done")
    agent = world.wait_status("deaf", "running")
    killing = subprocess.Popen([BIN / "agent-watchdog", "kill", "deaf", "--grace", "600s"], env=world.environ)

    def termed() -> dict[str, Any]:
        [(outcome,)] = world.sql("SELECT outcome FROM kill_request") or [("{}",)]
        return dict(json.loads(outcome).get("termed") or {})

    first = wait_for(termed, "it is committed that the grace runs")
    world.crash()
    killing.wait(60)
    told = {**first, "mono": first["mono"] - elapsed, "all": True}
    world.sql(f"UPDATE kill_request SET outcome = '{json.dumps({'termed': told})}'")

    world.start()
    if elapsed < 0:
        anew = wait_for(lambda: {} if termed() == told else termed(), "a grace of this daemon's own")
        assert first["mono"] < anew["mono"] < told["mono"]
        world.cli("kill", "deaf", "--force")
    assert world.wait_status("deaf", "killed")["pid"] == agent["pid"]
    signals = [one["why"] for one in world.events() if one["event"] == "kill.signal_sent"]
    assert sum("SIGTERM" in why for why in signals) == (1 if elapsed > 0 else 2), signals
