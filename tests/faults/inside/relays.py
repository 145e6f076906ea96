"""Agents whose processes start a successor and end, as fast as they can, are killed. usage: relays TIMES REST [SESSION]

REST: seconds that each of them lives. Others are there, too: a look at them all takes longer than each of these lives.
"""

import json
import subprocess
import sys
import time

from tests.e2e.test_relays import RELAY, SESSION
from tests.faults.private import running
from tests.world import pids_with, wait_for

BYSTANDERS = 100
AFTER = 0.5  # seconds in which one that lives would be seen


def once(rest: str, more: str) -> dict[str, float]:
    """How the kill ended, what it said, and how many were seen alive behind it."""
    with running(stall={"after_seconds": 600}, kill={"grace_seconds": 0.3, "verify_seconds": 10}) as world:
        going = world.dir / "going"  # what is not ended here ends itself when this is gone
        going.touch()
        world.registered("relay", sys.executable, "-c", RELAY.format(more=more), rest, str(going))
        marker = world.agents()["relay"]["agent_id"]
        try:
            wait_for(lambda: len(pids_with("AGENT_WATCHDOG_ID", marker)) > 1, "the relay runs")
            done = world.cli("kill", "relay", check=False)
            left, end = set[int](), time.monotonic() + AFTER
            while time.monotonic() < end:
                left |= set(pids_with("AGENT_WATCHDOG_ID", marker))
        finally:
            going.unlink()
        return {"code": done.returncode, "left": len(left)}


def main(times: int, rest: str, more: str) -> list[dict[str, float]]:
    others = [subprocess.Popen(["sleep", "1000"]) for _ in range(BYSTANDERS)]
    try:
        return [once(rest, more) for _ in range(times)]
    finally:
        for other in others:
            other.kill()
            other.wait()


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2], SESSION if sys.argv[3:] else "pass")))
