"""Case Q9: agents whose processes start a successor and end, at rates that are drawn: ended, or not called so."""

import sys
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.test_relays import RELAY, SESSION
from tests.verdicts.draw import chance
from tests.verdicts.table import Came, Row, Scene
from tests.world import make_world, pids_with, wait_for

ENDED = "operator"  # or the kill says that it is not done
drawn = chance("relays")


@dataclass(frozen=True, kw_only=True)
class Relay(Row):
    """`rest`: seconds that each of its processes lives; `more`: what each does when it begins."""

    rest: float
    more: str = "pass"


def relay(number: int) -> Relay:
    rest, alone = 10 ** drawn.uniform(-2.3, -0.7), drawn.random() < 0.5
    what = f"Q9: each lives for {1000 * rest:.0f} ms" + (", in a session of its own" if alone else "")
    return Relay(name=f"relay-{number}", situation=what, right=ENDED, rest=rest, more=SESSION if alone else "pass")


ROWS = [relay(number) for number in range(3)]


def play(rows: Sequence[Row]) -> dict[str, Came]:
    """Each is killed by a person's word. What is left ends itself when the scene is over."""
    with contextmanager(make_world)(
        stall={"after_seconds": 600}, kill={"grace_seconds": 1, "verify_seconds": 20}
    ) as world:
        world.start()
        going = world.dir / "going"
        going.touch()
        came = {}
        try:
            for row in rows:
                assert isinstance(row, Relay)
                words = RELAY.format(more=row.more), str(row.rest), str(going)
                world.registered(row.name, sys.executable, "-c", *words)
                marker = world.agents()[row.name]["agent_id"]
                wait_for(lambda marker=marker: len(pids_with("AGENT_WATCHDOG_ID", marker)) > 1, "the relay runs")  # type: ignore[misc]
                done = world.cli("kill", row.name, check=False)
                left, end = set[int](), time.monotonic() + 1
                while time.monotonic() < end:
                    left |= set(pids_with("AGENT_WATCHDOG_ID", marker))
                wrong = f"called ended, and {len(left)} live" if done.returncode == 0 and left else ""
                came[row.name] = Came(ENDED, wrong)
        finally:
            going.unlink()
        return came


SCENES = [Scene("relays", ROWS, play)]
