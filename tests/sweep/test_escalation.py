"""The ladder steps that kill nothing: committed before they are taken, and ended when the agent obeys."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.agents.state_of import put
from tests.control.office import NoHelpers, Recorder
from watchdog.agents.agent import Agent
from watchdog.agents.history import EventRecorder
from watchdog.clock import Clock
from watchdog.core.agent import Policy, Registration, State, Status, Verdict
from watchdog.core.kill import Step
from watchdog.core.process import Identity
from watchdog.core.verdict import Judgement
from watchdog.errors import RegistryUnavailable
from watchdog.helpers.pool import HelperPool
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.sweep.escalation import Escalation

REG = Registration("a" * 32, "alpha", os.geteuid(), "h", "b", identity=Identity("h", "b", 4242, 99))
WELL = Judgement(Verdict.HEALTHY, "silent for 1s of 2m")


class Heard(Recorder):
    """Also records events about the agent."""

    def bind(self, **_fields: object) -> "Heard":
        return self


class Scene:
    """One registered agent, and a real registry."""

    def __init__(self, async_registry: AsyncRegistry, owners: HelperPool, policy: Policy) -> None:
        self.log, self.registry = Heard(), async_registry.sync
        self.escalation = Escalation(async_registry, owners, EventRecorder(async_registry, Clock(), self.log))
        self.agent = Agent(REG, policy, Status.RUNNING)
        put(self.agent, promised=True, beats=1)

    async def climb(self, step: Step) -> None:
        await self.escalation.take_step(self.agent, step, "silent for 2m")
        async with asyncio.timeout(60):
            while self.escalation._nudges:
                await asyncio.sleep(0.01)

    def told(self) -> list[tuple[object, object]]:
        return [(one["event"], one["why"]) for one in self.log.events]

    def rung(self) -> Step | None:
        row = self.registry.agents.get(REG.agent_id)
        assert row is not None
        return row.rung


def play(
    place: Path, story: Callable[[Scene], Awaitable[None]], policy: Policy | None = None, *, real: bool = False
) -> None:
    async def whole() -> None:
        registry = Registry(f"sqlite:///{place}/r.db").open()
        registry.agents.add(REG, Status.RUNNING, datetime.now(UTC), "test")
        async_registry, owners = AsyncRegistry(registry), HelperPool() if real else NoHelpers()
        try:
            await story(Scene(async_registry, owners, policy or Policy()))
        finally:
            await owners.close()
            async_registry.close()

    asyncio.run(whole())


def test_a_step_is_in_its_row_before_it_is_taken(tmp_path: Path) -> None:
    """No restart takes it twice; a warning only reports."""

    async def story(scene: Scene) -> None:
        await scene.climb(Step.WARN)
        assert scene.told() == [("agent.told", "silent for 2m")]
        assert (scene.agent.ladder.rung, scene.rung()) == (Step.WARN, Step.WARN)

    play(tmp_path, story)


def test_a_step_that_cannot_be_committed_is_not_taken(tmp_path: Path) -> None:
    """It is tried again by a later sweep."""

    async def story(scene: Scene) -> None:
        scene.registry.close()
        (tmp_path / "r.db").unlink()
        (tmp_path / "r.db").mkdir()
        with pytest.raises(RegistryUnavailable):
            await scene.climb(Step.WARN)
        assert (scene.told(), scene.agent.ladder.rung) == ([], None)

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"beats": 0}, "it has not started"),
        ({"state": State.WAITING}, "it waits for a person's answer"),
        ({"reg": Registration("a" * 32, "alpha", os.geteuid(), "h", "b")}, "it has no process yet"),
        ({}, "no helper in this office"),
    ],
)
def test_a_nudge_that_cannot_be_given_is_reported_with_the_reason(
    tmp_path: Path, change: dict[str, object], words: str
) -> None:
    """A line typed at an agent that asks a question would be taken for the answer."""

    async def story(scene: Scene) -> None:
        put(scene.agent, **change)
        await scene.climb(Step.NUDGE)
        ((event, why),) = scene.told()
        assert event == "agent.nudged"
        assert str(why).startswith("silent for 2m; could not be nudged: ")
        assert words in str(why)
        assert scene.rung() is Step.NUDGE

    play(tmp_path, story)


def test_a_nudge_by_command_gets_the_facts_and_its_end_is_reported(tmp_path: Path) -> None:
    """As its owner, by a real helper."""
    command = ("/bin/sh", "-c", f"cat > {tmp_path}/facts; exit 3")

    async def story(scene: Scene) -> None:
        await scene.climb(Step.NUDGE)
        ((event, why),) = scene.told()
        assert event == "agent.nudged"
        assert str(why).startswith("silent for 2m; its nudge command: failed")
        facts = json.loads((tmp_path / "facts").read_text())
        assert (facts["name"], facts["pid"], facts["text"]) == ("alpha", 4242, "wake up")

    play(tmp_path, story, Policy(nudge_command=command, nudge_text="wake up"), real=True)


def test_an_agent_that_has_beaten_since_it_was_judged_is_not_nudged(tmp_path: Path) -> None:
    """While its step was being committed."""

    async def story(scene: Scene) -> None:
        climbing = asyncio.create_task(scene.climb(Step.NUDGE))
        await asyncio.sleep(0)
        scene.agent.heartbeat.rhythm.renewed += 1
        await climbing
        assert (scene.told(), scene.rung()) == ([], Step.NUDGE)

    play(tmp_path, story)


def test_a_ladder_ends_where_the_agent_obeys(tmp_path: Path) -> None:
    """It has beaten since, and is healthy; healthy alone may mean that its beats could not be received for a while."""

    async def story(scene: Scene) -> None:
        scene.escalation.look(scene.agent, WELL)
        await scene.climb(Step.WARN)
        scene.log.events.clear()
        scene.agent.heartbeat.changed = False
        scene.escalation.look(scene.agent, WELL)
        scene.agent.heartbeat.rhythm.renewed += 1
        scene.escalation.look(scene.agent, Judgement(Verdict.LATE, "late"))
        assert (scene.told(), scene.agent.ladder.rung, scene.agent.heartbeat.changed) == ([], Step.WARN, False)
        scene.escalation.look(scene.agent, WELL)
        scene.escalation.look(scene.agent, WELL)
        assert scene.told() == [("agent.obeyed", "after warn: silent for 1s of 2m")]
        assert (scene.agent.ladder.rung, scene.agent.heartbeat.changed) == (None, True)

    play(tmp_path, story)


def test_running_nudges_are_cancelled_at_shutdown(tmp_path: Path) -> None:
    """The daemon waits for no nudge."""

    async def story(scene: Scene) -> None:
        await scene.escalation.take_step(scene.agent, Step.NUDGE, "silent")
        (nudge,) = scene.escalation._nudges
        async with asyncio.timeout(5):
            await scene.escalation.close()
        assert nudge.cancelled()

    play(tmp_path, story, Policy(nudge_command=("/bin/sleep", "1000")), real=True)
