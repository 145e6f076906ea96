"""A real wrapper like apra-fleet's under a real daemon: killed before the command that it would restart."""

import json
import os
from pathlib import Path

import pytest

from tests.owner.sources.test_fleet_tasks import KEY, LINE, WRAPPER
from tests.world import World, alive, wait_for


@pytest.mark.faults
def test_cancel_kills_the_wrapper_and_nothing_is_restarted(world: World) -> None:
    """The command ignores TERM and fails when it is killed; its wrapper would restart it three times."""
    place = world.dir / "fleet" / KEY
    place.mkdir(parents=True)
    (place / "run.sh").write_text(WRAPPER)
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "fleet_tasks"\npath = "{place.parent}"\n')
    command = "trap '' TERM; echo \"$$\" >> pids; while :; do sleep 0.1; done"
    wrapper = world.spawn("bash", str(place / "run.sh"), LINE, command)
    wait_for(lambda: (place / "pids").exists() and (place / "pids").read_text().endswith("\n"), "its command runs")
    world.start()
    wait_for(lambda: _shown(world, KEY), "it is known")
    assert (_shown(world, KEY)["pid"], _shown(world, KEY)["promised"]) == (wrapper.pid, True)

    assert world.ask("POST", "/v1/cancel", {"targets": [f"task:{KEY}"]})[0] == 200

    wait_for(lambda: not (place / "task.pid").exists(), "its pid file goes")
    (command_pid,) = (int(line) for line in (place / "pids").read_text().splitlines())
    assert not alive(wrapper.pid) and not alive(command_pid)
    assert "retry" not in (place / "task.log").read_text()
    told = json.loads((place / "status.json").read_text())
    assert told["status"] == "cancelled"
    assert told["started"] == json.loads(LINE)["started"]


def test_a_task_whose_wrapper_was_killed_is_closed_and_an_innocent_process_lives(world: World) -> None:
    """It would say `running` for ever; one's pid is gone, another's was reused, a third never had one."""
    innocent = world.spawn("sleep", "300")
    gone = world.spawn("true")
    gone.wait()
    places: list[Path] = []
    for name, pid in (("gone", gone.pid), ("reused", innocent.pid), ("unborn", None)):
        place = world.dir / "fleet" / f"task-{name}"
        place.mkdir(parents=True)
        (place / "status.json").write_text(LINE.replace(KEY, f"task-{name}"))
        os.utime(place / "status.json", (1600000000, 1600000000))
        if pid is not None:
            (place / "task.pid").write_text(f"{pid}\n")
            os.utime(place / "task.pid", (1600000000, 1600000000))
        places.append(place)
    with world.config.open("a") as config:
        config.write(f'[[source]]\nkind = "fleet_tasks"\npath = "{world.dir / "fleet"}"\n')
    world.start()
    for place in places:
        told = place / "status.json"
        wait_for(lambda told=told: json.loads(told.read_text())["status"] == "failed", "it is closed")  # type: ignore[misc]
        wait_for(lambda place=place: not (place / "task.pid").exists(), "its pid file goes")  # type: ignore[misc]
    assert alive(innocent.pid)


def _shown(world: World, name: str) -> dict[str, object]:
    agents: list[dict[str, object]] = world.ask("GET", "/v1/agents")[1]["agents"]
    return next((one for one in agents if one["name"] == name), {})
