"""Each step of a ladder, and who obeys it: he lives; who obeys none is ended."""

from collections.abc import Mapping

from tests.verdicts.scenes.everyday import dies, lives
from tests.verdicts.stage import Stage, scene

AFTER, PAUSE = 3.0, 4.0
MUTE = "beat=0.3/2"
STEPS = ("agent.told", "agent.nudged", "stop.asked")  # the fourth is the kill


def obeyed(steps: int) -> Mapping[str, int]:
    """So many steps were taken, each once, and it obeyed the last of them."""
    taken = {step: int(number < steps) for number, step in enumerate(STEPS)}
    return {**taken, "agent.obeyed": 1, "kill.signal_sent": 0}


def obey(stage: Stage) -> None:
    """One rests when it was warned, one when it was nudged, one when it was asked; each as soon as it is told."""
    for step, name in zip(STEPS, ("warned", "nudged", "asked"), strict=True):
        stage.world.wait_event(step, name=name)
        status, _ = stage.world.ask("POST", f"/v1/agents/{name}/beat", {"state": "idle"})
        assert status in (200, 204)


SCENES = [
    scene(
        "ladder",
        [
            lives("warned", "mute, rests when it is warned", MUTE, told=obeyed(1)),
            lives("nudged", "mute, rests when it is nudged", MUTE, told=obeyed(2)),
            lives("asked", "mute, rests when it is asked to stop", MUTE, told=obeyed(3)),
            dies(
                "mute",
                "mute, heeds no step of its ladder",
                MUTE,
                AFTER + 2 * PAUSE,
                told={**dict.fromkeys(STEPS, 1), "agent.obeyed": 0},
            ),
            lives("beats", "beats beside them", "beat=0.5", told=dict.fromkeys((*STEPS, "agent.obeyed"), 0)),
        ],
        obey,
        tables={
            "stall": {"after_seconds": AFTER},
            "kill": {
                "ladder": ["warn", "nudge", "stop", "kill"],
                "nudge_command": ["true"],
                **dict.fromkeys(("warn_pause_seconds", "nudge_pause_seconds", "stop_pause_seconds"), PAUSE),
            },
        },
    )
]
