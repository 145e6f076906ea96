"""Passing events on with real helpers: pace, room, failures, floods."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from watchdog.clock import Clock
from watchdog.config.schema import NotifySection
from watchdog.helpers.pool import HelperPool
from watchdog.service.alerts import AlertCommand
from watchdog.telemetry import logger
from watchdog.telemetry.logger import get_logger
from watchdog.telemetry.queue_handler import QueueHandler

ON = ("agent.late", "log.failed")


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[QueueHandler]:
    """A log in a file, `log`."""
    made = logger.set_up(file=str(tmp_path / "log"))
    yield made
    logger.finish(made)


@asynccontextmanager
async def notices(sink: QueueHandler, directory: Path, text: str, **limits: float) -> AsyncIterator[AlertCommand]:
    """They receive the log's events; the command is this script."""
    script = directory / "command.sh"
    script.write_text(f"#!/bin/sh\ncd {directory}\n{text}\n")
    script.chmod(0o700)
    owners = HelperPool()
    made = AlertCommand(NotifySection(on=ON, command=(str(script),)), owners, Clock(), get_logger(), **limits)  # type: ignore[arg-type]
    logger.set_listener(sink, made.hear)
    try:
        async with asyncio.timeout(60):
            yield made
    finally:
        await made.close()
        await owners.close()


async def until(sink: QueueHandler, directory: Path, event: str) -> dict[str, object]:
    """The first such event in the log."""
    while True:
        log = (directory / "log").read_text() if (directory / "log").exists() else ""
        for line in map(json.loads, log[: log.rfind("\n") + 1].splitlines()):
            if line["event"] == event:
                return dict(line)
        await asyncio.sleep(0.02)


def count(directory: Path, event: str) -> int:
    return (directory / "log").read_text().count(f'"event": "{event}"')


def test_a_flood_of_output_is_cut_and_its_command_killed(sink: QueueHandler, tmp_path: Path) -> None:
    """Endless output fills neither our memory nor the log; the deadline kills the command."""

    async def story() -> None:
        async with notices(sink, tmp_path, "exec yes flood", seconds=1.0):
            get_logger().event("agent.late", name="alpha")
            failed = await until(sink, tmp_path, "notify.failed")
            assert failed["outcome"] == "timeout"
            assert "flood" in str(failed["why"])
            assert len(json.dumps(failed)) < 5_000

    asyncio.run(story())


def test_excess_events_wait_and_beyond_that_are_counted(sink: QueueHandler, tmp_path: Path) -> None:
    """Two a minute, three that wait: of ten events five are dropped, reported once, and the log has all."""

    async def story() -> None:
        async with notices(sink, tmp_path, "cat >>heard", each_minute=2, room=3) as them:
            for number in range(10):
                get_logger().event("agent.late", name=f"a{number}")
            await until(sink, tmp_path, "notify.dropped")
            while not (tmp_path / "heard").exists() or len((tmp_path / "heard").read_text().splitlines()) < 2:
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.3)
            assert len((tmp_path / "heard").read_text().splitlines()) == 2, "the third waits for its minute"
            await them.close()  # shutdown does not wait for a minute
            recovered = await until(sink, tmp_path, "notify.recovered")
            assert (recovered["failed"], recovered["dropped"]) == (0, 7)

    asyncio.run(story())
    heard = [json.loads(line)["name"] for line in (tmp_path / "heard").read_text().splitlines()]
    assert heard == ["a0", "a1", "a2"]
    assert count(tmp_path, "notify.dropped") == 1


def test_an_exit_status_is_a_failure_reported_once(sink: QueueHandler, tmp_path: Path) -> None:
    """With the command's last output; ten failures are one line; an event that is not configured starts nothing."""

    async def story() -> None:
        async with notices(sink, tmp_path, "cat >>heard; echo no server >&2; exit 3"):
            get_logger().event("agent.recovered", name="other")
            for number in range(5):
                get_logger().event("agent.late", name=f"a{number}")
            failed = await until(sink, tmp_path, "notify.failed")
            assert failed["why"] == "exit status 3: no server"
            while len((tmp_path / "heard").read_text().splitlines()) < 5:
                await asyncio.sleep(0.02)

    asyncio.run(story())
    assert count(tmp_path, "notify.failed") == 1
    assert "other" not in (tmp_path / "heard").read_text()


def test_each_reason_of_failure_is_reported_once_up_to_a_limit(sink: QueueHandler, tmp_path: Path) -> None:
    """First one thing is wrong, then another; text that differs each time ends at the fifth reason."""
    script = "test -f heard || { : >heard; echo first >&2; exit 3; }"
    script += '; sed \'s/.*"name": "//; s/".*//\' >>heard; tail -n 1 heard >&2; exit 4'

    async def story() -> None:
        async with notices(sink, tmp_path, script):
            for name in ("x", "a", "a", "b", "b", "c", "d", "e", "f"):
                get_logger().event("agent.late", name=name)
            while not (tmp_path / "heard").exists() or len((tmp_path / "heard").read_text().splitlines()) < 8:
                await asyncio.sleep(0.02)

    asyncio.run(story())
    told = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    reasons = [event["why"] for event in told if event["event"] == "notify.failed"]
    assert reasons == ["exit status 3: first", *(f"exit status 4: {name}" for name in "abcd")]


def test_a_log_that_fails_is_reported_too(tmp_path: Path) -> None:
    """The queue handler's own events come from its thread."""
    made = logger.set_up(file="/dev/full")

    async def story() -> None:
        async with notices(made, tmp_path, "cat >>heard"):
            get_logger().event("agent.late", name="alpha")
            while not (tmp_path / "heard").exists() or "log.failed" not in (tmp_path / "heard").read_text():
                await asyncio.sleep(0.02)

    try:
        asyncio.run(story())
    finally:
        logger.finish(made)
    told = [json.loads(line) for line in (tmp_path / "heard").read_text().splitlines()]
    assert {event["event"] for event in told} == {"agent.late", "log.failed"}


def test_a_password_in_an_event_is_hidden(sink: QueueHandler, tmp_path: Path) -> None:
    """The command gets what the log gets, and no more."""

    async def story() -> None:
        async with notices(sink, tmp_path, "cat >>heard"):
            get_logger().bind(argv=["x"]).event("agent.late", why="postgresql://me:secret@h/d")

    asyncio.run(story())
    told = (tmp_path / "heard").read_text()
    assert "secret" not in told
    assert "argv" not in told
