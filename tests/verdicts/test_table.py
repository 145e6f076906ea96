"""Each scene of the table is played, and every agent in it meets what is right."""

from collections.abc import Callable

import pytest

from tests.verdicts.table import Result, Scene, all_scenes, facts_of, share


@pytest.mark.faults
@pytest.mark.parametrize(
    "scene", [pytest.param(one, id=one.name, marks=pytest.mark.timeout(one.limit)) for one in share(all_scenes())]
)
def test_the_healthy_live_and_the_stalled_do_not(scene: Scene, record_property: Callable[[str, object], None]) -> None:
    """The facts go with the report to whoever prints the table."""
    record_property("scene", scene.name)
    record_property("rows", len(scene.rows))
    scene.skip()
    came = facts_of(scene, scene.play(scene.rows))
    record_property("came", came)
    wrong = [Result(*line) for line in came if not Result(*line).as_it_should]
    assert not wrong, "\n".join(" | ".join(line.cells) for line in wrong)
