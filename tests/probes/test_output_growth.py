"""Queries to owners' helpers about silent agents: growth since the last answer, by real helpers."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.control.office import Recorder as Kept
from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.agent import Policy, Registration, Status
from watchdog.core.observed_activity import ActivityKind
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.probes.heartbeat_files import HeartbeatFiles
from watchdog.probes.output_growth import OutputGrowth
from watchdog.processes.identity import read_identity

ME = os.geteuid()


class Looking:
    """One agent that has been silent for a minute of two, and its observers."""

    def __init__(self, owners: HelperPool) -> None:
        clock, self.fleet = Clock(), Fleet()
        self.inquiries = BackgroundQueries(owners, clock)
        self.growth = OutputGrowth(self.fleet, self.inquiries, clock)
        self.files = HeartbeatFiles(self.fleet, self.inquiries, clock, Kept())
        reg = Registration("a" * 32, "alpha", ME, "host", "boot", stall_after=timedelta(minutes=2))
        self.agent = Agent(reg, Policy(), Status.RUNNING)
        self.agent.heartbeat.said.promise(True)
        self.agent.heartbeat.silence.lasted = timedelta(minutes=1)
        self.fleet.add(self.agent)

    def seen(self) -> str | None:
        return self.agent.activity

    def unread(self) -> bool:
        return self.agent.heartbeat.silence.hindrance.unread is not None

    async def look(self, kind: ActivityKind | str, by: Callable[[], None] | None = None) -> None:
        """Start the queries, and wait for the answers."""
        (by or self.growth.look)()
        async with asyncio.timeout(60):
            while self.inquiries.waiting((self.agent.agent_id, kind)) is not None:
                await asyncio.sleep(0.01)


def run(story: Callable[[Looking], Awaitable[None]]) -> None:
    @asynccontextmanager
    async def looking() -> AsyncIterator[Looking]:
        owners = HelperPool()
        made = Looking(owners)
        try:
            yield made
        finally:
            await made.inquiries.close()
            await owners.close()

    async def told() -> None:
        async with looking() as made:
            await story(made)

    asyncio.run(told())


@pytest.mark.parametrize(("kind", "key"), [(ActivityKind.TRANSCRIPT, "transcript"), (ActivityKind.LOG, "log")])
def test_growth_counts_from_one_answer_to_the_next_of_one_silence(tmp_path: Path, kind: ActivityKind, key: str) -> None:
    """The first answer is the baseline; growth before the silence does not count; changed permissions are no growth."""
    path = tmp_path / "file"
    path.write_text("1\n")

    async def story(made: Looking) -> None:
        agent = made.agent
        agent.reg = replace(agent.reg, log=str(path)) if key == "log" else replace(agent.reg, transcript=str(path))
        await made.look(kind)
        path.chmod(0o600)
        await made.look(kind)
        assert made.seen() is None
        with path.open("a") as file:
            file.write("2\n")
        await made.look(kind)
        assert made.seen() == f"its {kind} grew"

        agent.sights.seen.clear()
        agent.heartbeat.silence.lasted = timedelta()  # it beat
        made.growth.look()
        path.write_text("3\n3\n3\n")
        agent.heartbeat.silence.lasted = timedelta(minutes=1)
        await made.look(kind)
        assert made.seen() is None

    run(story)


def test_an_unreadable_file_is_no_evidence_and_has_a_reason(tmp_path: Path) -> None:
    """Neither for the agent nor against it."""
    path = tmp_path / "none"

    async def story(made: Looking) -> None:
        made.agent.reg = replace(made.agent.reg, log=str(path))
        await made.look(ActivityKind.LOG)
        assert "No such file" in made.agent.sights.failed[ActivityKind.LOG]
        path.touch()
        await made.look(ActivityKind.LOG)
        assert (made.agent.sights.failed, made.agent.sights.seen) == ({}, {})

    run(story)


@pytest.mark.parametrize("answer", [None, [], {"device": 1}, {"10": "x"}, "x"], ids=str)
def test_an_invalid_answer_of_a_helper_is_a_failed_query(answer: object) -> None:
    """The owner of that process may replace it."""

    class Liar(HelperPool):
        async def call(self, *_: object, **__: object) -> object:
            return answer

    async def story() -> None:
        made = Looking(Liar())
        made.agent.reg = replace(made.agent.reg, log="/x")
        await made.look(ActivityKind.LOG)
        assert "no answer" in made.agent.sights.failed[ActivityKind.LOG]
        await made.inquiries.close()

    asyncio.run(story())


SCREENS = [  # (the pane's content at each check, whether it counts as changed)
    ("80x24 a", False),
    ("80x24 a", False),
    ("80x24 b", True),
    ("80x24 a", False),  # it blinks
    ("80x24 b", False),
    ("40x24 c", False),  # a person views it in a smaller window
    ("40x24 d", True),
]


def test_a_pane_changes_when_it_shows_new_text() -> None:
    """Two alternating texts, and another size, are no work."""

    class Shows(HelperPool):
        async def call(self, uid: int, call: str, args: object, deadline: float) -> object:
            size, shows = screens[0].split()
            return {"pane": "%0", "size": size, "shows": shows}

    async def story() -> None:
        made = Looking(Shows())
        made.agent.reg = replace(made.agent.reg, identity=read_identity(os.getpid(), "host"))
        for screen, seen in SCREENS:
            screens[:] = [screen]
            await made.look(ActivityKind.PANE)
            assert made.seen() == ("its pane changes" if seen else None), screen
            made.agent.sights.seen.clear()
        await made.inquiries.close()

    screens: list[str] = []
    asyncio.run(story())


def test_an_agent_without_a_pane_is_not_reported_as_a_failed_query() -> None:
    """Most agents have none; a tmux that does not answer is a failure."""

    class Refuses(HelperPool):
        async def call(self, *_: object, **__: object) -> object:
            raise OwnerCallFailed(reason[0], "so it is")

    async def story() -> None:
        made = Looking(Refuses())
        made.agent.reg = replace(made.agent.reg, identity=read_identity(os.getpid(), "host"))
        for code, told in (("no_pane", {}), ("tmux", {ActivityKind.PANE: "so it is"})):
            reason[:] = [code]
            await made.look(ActivityKind.PANE)
            assert made.agent.sights.failed == told
        await made.inquiries.close()

    reason: list[str] = []
    asyncio.run(story())


def test_nothing_is_kept_of_an_agent_that_is_no_longer_in_question() -> None:
    """Also of subjects without an answer: it has no pane, and its log does not exist."""

    async def story(made: Looking) -> None:
        made.agent.reg = replace(made.agent.reg, log="/nowhere", identity=read_identity(os.getpid(), "host"))
        await made.look(ActivityKind.PANE)
        await made.look(ActivityKind.LOG)
        assert made.inquiries._subjects
        made.fleet.drop(made.agent.agent_id)
        made.growth.look()
        assert not made.inquiries._subjects

    run(story)
