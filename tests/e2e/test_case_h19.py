"""H19: the same alarm at every sweep. Thirty agents are stuck in every possible way; 600 sweeps report nothing new."""

import shutil
from collections import Counter
from typing import Any

import pytest

from tests.world import World, wait_for

POLICY = '\n[[policy]]\nmatch = { type = "told" }\nladder = ["warn"]\n'
ALARMS = {
    "unkillable": ["kill.unkillable", "kill.refused"],
    "held": ["agent.late", "agent.stalled", "kill.held"],
    "asking": ["agent.needs_human", "agent.waiting"],
    "told": ["agent.late", "agent.stalled", "agent.told"],
    "unread": ["agent.beat_file_unread"],
    "closed": ["agent.late", "agent.stalled", "kill.withdrawn"],
}


def said(world: World) -> Counter[tuple[str, str]]:
    """The number of log events of each kind about an agent."""
    return Counter((str(e["name"]), e["event"]) for e in world.events() if e.get("name"))


def history(world: World) -> list[tuple[Any, ...]]:
    """The number of registry rows of each agent."""
    return world.sql("SELECT agent_id, event, count(*) FROM lifecycle_event GROUP BY 1, 2 ORDER BY 1, 2")


@pytest.mark.faults
@pytest.mark.timeout(400)
def test_thirty_stuck_agents_are_reported_once_each(world: World) -> None:
    """Unkillable, held, waiting, only warned, unreadable, closed by others: one record for each change.

    The retries for unkillable agents, after 5 and 15 s, fall into that time too.
    """
    world.configure(
        sweep={"interval_seconds": 0.1},
        stall={"after_seconds": 1, "prompt_limit_seconds": 0.5, "start_limit_seconds": 30},
        log={"level": "debug"},
    )
    world.config.write_text(world.config.read_text() + POLICY)
    spared = world.dir / "ssh-agent"  # never signalled: makes an agent unkillable without root or a broken disk
    shutil.copy("/bin/sleep", spared)
    world.start()
    for number in range(8):
        world.registered(f"unkillable-{number}", str(spared), "1000")
        world.registered(f"held-{number}", "sleep", "1000", stall_after_seconds=1)
    world.cli("hold", *(f"held-{number}" for number in range(8)), "--reason", "I look at them")
    for number in range(4):
        world.registered(f"told-{number}", "sleep", "1000", stall_after_seconds=1, type="told")
        world.registered(f"asking-{number}", "sleep", "1000", stall_after_seconds=1)
        world.ask("POST", f"/v1/agents/asking-{number}/beat", {"state": "waiting"})
    for number in range(3):
        world.registered(f"unread-{number}", "sleep", "1000", beat_file=str(world.dir))
        world.registered(f"closed-{number}", "sleep", "1000", stall_after_seconds=1)
    done = world.cli("kill", *(f"unkillable-{number}" for number in range(8)), check=False)
    assert done.returncode == 1, done.stdout
    for name in (
        *(f"held-{n}" for n in range(8)),
        *(f"told-{n}" for n in range(4)),
        *(f"closed-{n}" for n in range(3)),
    ):
        assert world.ask("POST", f"/v1/agents/{name}/beat", {})[0] in (200, 202, 204)
    names = {name for name, event in said(world) if event == "agent.registered"}
    assert len(names) == 30
    world.sql("UPDATE agent_lifecycle SET status = 'completed' WHERE name LIKE 'closed-%'")
    wanted = {(name, event) for name in names for event in ALARMS[name.partition("-")[0]]}
    try:
        wait_for(lambda: wanted <= said(world).keys(), "every alarm once")
    except AssertionError:
        raise AssertionError(f"not told: {sorted(wanted - said(world).keys())}") from None
    world.wait_sweeps(1)

    world.wait_sweeps(600, seconds=300)

    gaps = world.count("clock.gap")  # on a busy machine: after each gap, silence begins again, and so do its reports
    assert {key: times for key, times in said(world).items() if times > 1 + gaps} == {}
    assert max(times for _, _, times in history(world)) <= 1 + gaps
