"""A kill by the kernel's OOM killer is reported as such, and another SIGKILL is not."""

import os
import signal
from pathlib import Path

from tests.cgroups import needs_v1, scratch
from tests.world import BIN, World, wait_for

GREEDY = "waste = [b'x' * (1 << 20) for _ in range(1000)]"


def run_in(world: World, cgroup: Path, name: str, command: str) -> None:
    """`run` and its agent inside a memory cgroup, as in a container with a limit."""
    run = f'echo $$ > {cgroup}/cgroup.procs; exec {BIN}/agent-watchdog run --name {name} -- $PYTHON -c "$CODE"'
    world.spawn("sh", "-c", run, CODE=f"{command}; import time; time.sleep(300)")


@needs_v1("memory")
def test_an_oom_kill_by_the_kernel_is_reported_as_such(world: World) -> None:
    """A neighbour in the same cgroup, later killed by a process, is not reported as the kernel's victim too."""
    world.start()
    with scratch("memory") as cgroup:
        (cgroup / "memory.limit_in_bytes").write_text(str(96 << 20))
        run_in(world, cgroup, "greedy", GREEDY)
        ended = world.wait_event("agent.ended", name="greedy")

        assert f"killed by the kernel's OOM killer (oom_kill 1 in {cgroup})" in ended["why"]
        story = world.story("greedy")["agent"]
        assert (story["status"], story["exit_signal"]) == ("failed", signal.SIGKILL)
        assert "killed by the kernel's OOM killer" in story["error_message"]
        assert "killed by the kernel's OOM killer" in world.cli("why", "greedy").stdout

        run_in(world, cgroup, "murdered", "pass")
        pid = wait_for(lambda: world.agents().get("murdered", {}).get("pid"), "it runs")
        os.kill(pid, signal.SIGKILL)
        assert "killed by signal 9 (sent by another process)" in world.wait_event("agent.ended", name="murdered")["why"]
