"""A crash is told: in the stream of events, and by the command of `[notify]`. An end in order is none."""

import json
import os
import signal
import subprocess

import pytest

from tests.world import BIN, World, wait_for


@pytest.mark.faults
def test_a_crash_is_told_by_the_stream_and_by_the_command(world: World) -> None:
    """Once each, with how it ended; who ended well, or was killed by us, did not crash."""
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
        assert told(file)["ill"] == "ended by itself with exit status 3"
        assert told(file)["shot"] == "ended by signal 11 from somebody else"
    assert world.count("agent.crashed") == 2
