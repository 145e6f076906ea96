"""Rows of another program's registry (Q4, Q6, Q7, P16): whom each means, and when it wrote, drawn from the seed."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from tests.e2e.test_orchestrator_db import age_of, orchestrated_world, shown
from tests.owner.sources.orchestrator import Orchestrator
from tests.scripted_agents import orchestrated
from tests.verdicts.draw import chance
from tests.verdicts.stage import ENDS_WITHIN, between
from tests.verdicts.table import LIVES, STALLED, Came, Row, Scene, judged
from tests.world import World, alive, make_world, wait_for
from watchdog.core.provenance import OLDER

AFTER = 3.0
INTERVAL = 1.0  # seconds: a daemon that comes late to its looks, by three of them, ends nobody
SILENT = 4 * AFTER  # seconds of silence that one that lives has to show for itself
EAST, WEST = ("Asia/Kolkata", "Asia/Kathmandu", "Pacific/Auckland"), ("America/New_York", "America/St_Johns")
drawn = chance("rows")


@dataclass(frozen=True, kw_only=True)
class Entry(Row):
    """`older`: the process was there so many seconds before its row. `beats`: so many, and no more; `blob`: in bytes.

    `zone`: of all that its row tells, naive and with a space; `untold`: its process does not say so. `there`: before
    the daemon is. `row`: what stands there beside that.
    """

    older: float = 0.0
    beats: int = 0
    blob: bool = False
    zone: str = ""
    untold: bool = False
    there: bool = False
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def refused(self) -> bool:
        return self.older > 0


def ago(seconds: float) -> str:
    return (datetime.now(UTC) - timedelta(seconds=seconds)).strftime("%Y-%m-%d %H:%M:%S")


def entry(name: str, situation: str, right: str = LIVES, **rest: Any) -> Entry:
    early = AFTER if right == STALLED else 0.0
    return Entry(name=name, situation=situation, right=right, earliest=early, **rest)


NOW = {"started_at": ..., "last_heartbeat": ...}
LIVING, MUTE = 1_000_000, drawn.randint(2, 8)
ELDERS = [drawn.uniform(OLDER + 2, OLDER + 12) for _ in range(3)]
BEATEN = [10 ** drawn.uniform(1, 6) for _ in range(2)]
A, B, C = drawn.sample([*EAST, *WEST, "UTC"], 3)
THERE: dict[str, Any] = {"beats": LIVING, "untold": True, "there": True}
ROWS = [
    entry("older", "Q4: a process that was there before its row", older=ELDERS[0], row=NOW),
    entry("spawned", "Q4: the same, where its row was only created", older=ELDERS[1], row={"created_at": ...}),
    entry("made-up", "P16: a row without times names a session that was there", older=ELDERS[2]),
    *(  # with these more than half speak: those that have not begun to are no mass stall with those that are mute
        entry(f"came-{n}", "Q4: a process that came with its row beats", beats=LIVING, row=NOW) for n in range(9)
    ),
    *(
        entry(f"again-{n}", "Q6: its heartbeat is from before its process", row={"started_at": ..., "beaten": seconds})
        for n, seconds in enumerate(BEATEN)
    ),
    entry("then", "Q6: likewise; then it beats, and is mute", STALLED, beats=MUTE, row={**NOW, "beaten": BEATEN[0]}),
    *(entry(f"zone-{n}", f"Q7: writes in {zone}, beats", beats=LIVING, zone=zone) for n, zone in enumerate((A, B, C))),
    *(
        entry(f"zone-mute-{n}", f"Q7: writes in {zone}, is mute", STALLED, beats=LIVING, zone=zone)
        for n, zone in enumerate((A, drawn.choice(EAST), drawn.choice(WEST)))
    ),
    *(
        entry(
            f"untold-{how}-{n}", f"Q7: writes in {zone}, which its beats alone tell, {how}", right, **THERE, zone=zone
        )
        for n, zone in enumerate((drawn.choice(EAST), drawn.choice(WEST)))
        for how, right in (("beats", LIVES), ("mute", STALLED))
    ),
    entry("bytes", "Q7: its heartbeats are bytes, and it is mute", STALLED, beats=MUTE, blob=True, row=NOW),
]


def hushed(world: World, one: Entry) -> Path:
    """Once that is there it is mute."""
    return world.dir / f"{one.name}.mute"


def enter(world: World, made: Orchestrator, one: Entry, pid: int | None) -> int:
    """Its process, unless it is there, and the row that names it."""
    if pid is None:
        environ = {"TZ": one.zone} if one.zone and not one.untold else {}
        options = [f"zone={one.zone}"] if one.zone else []
        if one.beats and not one.blob:
            options += [f"beat={drawn.uniform(0.2, 0.6):.2f}", f"beats={one.beats}", f"until={hushed(world, one)}"]
        pid = world.spawn(sys.executable, str(orchestrated.__file__), str(made.path), one.name, *options, **environ).pid
    row = dict(one.row)
    if one.zone:
        now = str(datetime.now(ZoneInfo(one.zone)).replace(tzinfo=None))
        row |= {"started_at": now, "last_heartbeat": now}
    if "beaten" in row:
        row["last_heartbeat"] = ago(row.pop("beaten"))
    made.insert(agent_id=one.name, status="running", pid=pid, **row)
    return pid


def play(rows: Sequence[Row]) -> dict[str, Came]:
    """Rows come while the daemon looks; bytes are written by us."""
    entries = [one for one in rows if isinstance(one, Entry)]
    settings: dict[str, Any] = {
        "sweep": {"interval_seconds": INTERVAL},
        "stall": {"after_seconds": AFTER, "start_limit_seconds": 60},
        "log": {"level": "debug"},
    }
    with contextmanager(make_world)(**settings) as world:
        made = orchestrated_world(world, after=AFTER)
        pids = {one.name: world.spawn("sleep", "1000").pid for one in entries if one.older}
        pids |= {one.name: enter(world, made, one, None) for one in entries if one.there}
        world.start()
        world.wait_sweeps(2)
        for one in sorted((one for one in entries if not one.there), key=lambda one: one.older):
            if one.older:
                wait_for(lambda one=one: age_of(pids[one.name]) > one.older, f"{one.name} is old")  # type: ignore[misc]
            pids[one.name] = enter(world, made, one, pids.get(one.name))
        for one in entries:
            if not one.refused:
                wait_for(lambda one=one: one.name in known(world), f"{one.name} is known")  # type: ignore[misc]
            if one.right == STALLED and one.beats == LIVING:
                hushed(world, one).touch()
        for number in range(MUTE):
            world.wait_sweeps(1)
            made.sql("UPDATE agent_lifecycle SET last_heartbeat = ? WHERE agent_id = 'bytes'", b"%d" % number)
        for one in entries:
            if one.refused:
                world.wait_event("source.drift", name=one.name)
            elif one.right != LIVES:
                world.wait_event("agent.ended", ENDS_WITHIN, name=one.name)
            elif not one.beats:
                wait_for(lambda one=one: shown(world)[one.name]["silence_seconds"] > SILENT, f"{one.name} is silent")  # type: ignore[misc]
        world.wait_sweeps(2)
        return {one.name: came(world, made, one, pids[one.name]) for one in entries}


def known(world: World) -> set[str]:
    """Who is watched, or was."""
    return {str(event["name"]) for event in world.events() if event["event"] == "agent.registered"}


def came(world: World, made: Orchestrator, one: Entry, pid: int) -> Came:
    """By the log, the kernel, and the row."""
    mine = [event for event in world.events() if event.get("name") == one.name]
    asked = next((event for event in mine if event["event"] == "kill.requested"), None)
    began = next((event for event in mine if event["event"] == "agent.registered"), None)
    seconds = between(began, asked) if began and asked else None
    found = judged(one, asked["reason"] if asked else None, seconds, lambda name: world.count(name, name=one.name))
    wrong = [found.wrong] if found.wrong else []
    if alive(pid) is bool(asked):
        wrong.append(f"its process is {'alive' if alive(pid) else 'dead'}")
    if one.right == LIVES and made.agent(one.name)["status"] != "running":
        wrong.append(f"its row says {made.agent(one.name)['status']}")
    if one.refused and began is not None:
        wrong.append("it was registered")
    return Came(found.what, "; ".join(wrong))


SCENES = [Scene("rows of a registry", ROWS, play)]
