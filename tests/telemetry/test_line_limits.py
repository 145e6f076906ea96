"""One user's log lines are limited; root's, the daemon's own and other users' are not."""

import asyncio
import contextvars
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.office import Recorder
from tests.kill.test_safeguards import Set
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.tracker import AgentTracker
from watchdog.core.agent import Policy, Registration, Status
from watchdog.intake.notify_sockets import NotifySockets
from watchdog.telemetry import logger
from watchdog.telemetry.line_limits import BYTES, LINES, LineLimits
from watchdog.telemetry.logger import caused_by, get_logger

MALLORY, ALICE = 61001, 61002


@pytest.fixture
def limits() -> Iterator[LineLimits]:
    """As installed."""
    made = LineLimits(Set(), Recorder(), lambda uid: MALLORY if uid >= 100_000 else uid)
    logger.limit(made.allows)
    yield made
    logger.limit(None)


def written(limits: LineLimits, uid: int | None, count: int, text: str = "") -> int:
    """How many of so many lines caused by this uid were logged."""
    heard: list[str] = []
    logger.EventLogger.heard = lambda event, fields: heard.append(event)
    try:
        with caused_by(uid):
            for _ in range(count):
                get_logger().event("agent.late", text=text)
    finally:
        logger.EventLogger.heard = None
    return heard.count("agent.late")


def told(limits: LineLimits) -> list[dict[str, object]]:
    asyncio.run(limits.round())
    return limits._log.events  # type: ignore[attr-defined, no-any-return]


def test_lines_beyond_a_users_limit_are_counted_and_reported_once(limits: LineLimits) -> None:
    """Including its subordinate uids'; the next minute is another one."""
    assert written(limits, MALLORY, LINES - 1) == LINES - 1
    assert written(limits, 165_535, 100) == 1
    assert [written(limits, uid, LINES + 1) for uid in (ALICE, 0, os.geteuid(), None)] == [LINES, *3 * [LINES + 1]]
    assert told(limits) == []
    limits._clock.at += 60  # type: ignore[attr-defined]
    expected = [
        {"event": "log.limited", "uid": MALLORY, "lines": 99},
        {"event": "log.limited", "uid": ALICE, "lines": 1},
    ]
    assert told(limits) == expected
    assert told(limits) == expected
    assert written(limits, MALLORY, 3) == 3


def test_a_few_long_lines_count_as_many(limits: LineLimits) -> None:
    """By their characters."""
    assert written(limits, MALLORY, 400, "x" * 1000) == BYTES // 1000


def test_a_task_that_a_request_began_counts_for_it_and_later_ones_do_not(limits: LineLimits) -> None:
    """The cause is in the context, which tasks and callbacks copy; it ends with each request."""

    async def play() -> tuple[int | None, int | None, int | None]:
        async def inner() -> int | None:
            await asyncio.sleep(0)
            return logger.cause()

        with caused_by(MALLORY):
            task = asyncio.create_task(inner())
            with caused_by(None):
                nobody = asyncio.create_task(inner())
        return await task, await nobody, logger.cause()

    assert contextvars.copy_context().run(asyncio.run, play()) == (MALLORY, None, None)


def test_messages_of_agents_count_for_their_owner(limits: LineLimits, tmp_path: Path) -> None:
    """One agent after the other, each with its first beat and invalid datagrams: two lines without a request."""
    heard: list[str] = []
    logger.EventLogger.heard = lambda event, fields: heard.append(event)

    async def play() -> None:
        tracker = AgentTracker(Fleet(), NotifySockets(str(tmp_path)), Set(), get_logger())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
            for number in range(LINES):
                agent_id = f"{number:032x}"
                agent = Agent(Registration(agent_id, f"m{number}", MALLORY, "host", "boot"), Policy(), Status.RUNNING)
                path = tracker.sockets.open(agent_id, os.geteuid())
                tracker.admit(agent)
                for words in (b"WATCHDOG=1", b"\0"):
                    speaker.sendto(words, path)
                tracker.sockets.drain(agent_id)
                tracker.forget(agent)
        tracker.close()

    try:
        asyncio.run(play())
    finally:
        logger.EventLogger.heard = None
    assert len(heard) == LINES
    assert set(heard) == {"agent.first_beat", "beat.rejected"}
