"""What is expected of the daemon under every fault of its registry, whichever the database.

Three agents: one beats; one falls silent under the fault; one had its kill ordered before, is deaf to TERM, and its
KILL falls due under the fault. Afterwards the first lives, the others are ended by one order each, and the daemon, the
same process as before, has said one `registry.unavailable` and one `registry.recovered`, and no other error.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from tests.tables import FULL
from tests.world import World, alive

S = TypeVar("S")
LONG = 600 if FULL else 0  # seconds that a fault of the kind `AWAY` lasts longer


class End(StrEnum):
    """How a fault is expected to end."""

    HELD = "nobody is ended until somebody has undone it"
    RESTART = "nobody is ended until the daemon is started anew"
    AWAY = "the same; ten minutes long with FULL=1"
    BRIEF = "it is over by itself, or the daemon mends it: told, and gone on with"
    UNSEEN = "what is open goes on working: nothing to tell"


@dataclass(frozen=True)
class Fault(Generic[S]):
    """One row: the fault, how it is made and undone, and its end. `site` is made ready before the daemon starts."""

    name: str
    inject: Callable[[S], AbstractContextManager[None]]
    end: End = End.HELD
    ready: Callable[[S], AbstractContextManager[None]] = lambda _: nullcontext()
    root: bool | None = None  # True: needs root; False: root may do anything, so there is no such fault


def outlive(world: World, fault: Fault[S], site: S) -> None:
    """The whole story of one fault."""
    world.start()
    assert world.daemon is not None
    first = world.daemon.pid
    world.run("well", *world.script("agent.py", "beat=0.3"))
    world.run("half", *world.script("agent.py", "deaf", "beat=0.3"))
    well, half = world.wait_status("well", "running"), world.wait_status("half", "running")
    world.wait_event("agent.first_beat", name="half")
    world.spawn("agent-watchdog", "kill", "half", "--grace", "6s")
    world.wait_event("kill.signal_sent", name="half")
    world.run("mute", *world.script("agent.py", "beat=0.3/hush"))
    mute = world.wait_status("mute", "running")
    world.wait_event("agent.first_beat", name="mute")

    with fault.inject(site):
        (world.dir / "hush").touch()
        if fault.end is not End.UNSEEN:
            world.wait_event("registry.unavailable")
        if fault.end in (End.HELD, End.RESTART, End.AWAY):
            world.wait_event("agent.stalled", name="mute")
            time.sleep(LONG if fault.end is End.AWAY else 0)
            assert alive(mute["pid"])
            assert world.count("kill.signal_sent", name="mute") == 0
            assert world.count("registry.recovered") == 0

    anew = fault.end is End.RESTART
    if fault.end is not End.UNSEEN and not anew:
        world.wait_event("registry.recovered")
    for name, pid in (("mute", mute["pid"]), ("half", half["pid"])):
        world.wait_status(name, "killed")
        assert not alive(pid)
        assert world.count("kill.finished", name=name) == 1
    assert alive(well["pid"])
    assert world.daemon.poll() is None
    assert (world.daemon.pid != first, world.count("daemon.ready")) == (anew, 1 + anew)
    told = [e["event"] for e in world.events() if e["level"] == "error" or e["event"].startswith("registry.")]
    told = [event for event in told if event != "disk.reserve_used"]
    expected = ["registry.unavailable", "registry.recovered"]
    assert told == ([] if fault.end is End.UNSEEN else expected[:1] if anew else expected), told
