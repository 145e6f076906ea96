"""/etc/subuid as it is read: once, when it changes, and never waited for."""

import asyncio
import os
import pwd
import threading
from pathlib import Path
from typing import Any

import pytest

from watchdog.clock import Clock
from watchdog.helpers import users as module
from watchdog.helpers.users import Users
from watchdog.telemetry.logger import EventLogger, get_logger


class Kept(EventLogger):
    """Keeps the events."""

    def __init__(self) -> None:
        super().__init__(get_logger()._logger)
        self.events: list[dict[str, object]] = []

    def event(self, event: str, /, *, exc_info: BaseException | bool | None = None, **fields: object) -> None:
        super().event(event, exc_info=exc_info, **fields)
        self.events.append({"event": event, **fields})


async def read_again(users: Users) -> None:
    """Wait until a look has been answered and taken over."""
    async with asyncio.timeout(60):
        users.look()
        while users._asked is not None:
            await asyncio.sleep(0.01)
            users.look()


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY", 0.0)


def test_it_is_read_when_it_changes(tmp_path: Path) -> None:
    """Not there: every uid counts for itself. Names are those of the host."""
    file, log = tmp_path / "subuid", Kept()
    own = pwd.getpwuid(os.getuid()).pw_name

    async def story() -> None:
        users = Users(Clock(), log, str(file))
        await users.begin()
        assert users.user_of(100_000) == 100_000
        file.write_text(f"{own}:100000:10\n")
        await read_again(users)
        assert users.user_of(100_005) == os.getuid()
        file.write_text("4242:100000:10\nnonsense\n")
        await read_again(users)
        assert users.user_of(100_005) == 4242
        await read_again(users)
        file.unlink()
        await read_again(users)
        assert users.user_of(100_005) == 100_005

    asyncio.run(story())
    assert [event["event"] for event in log.events] == ["users.unread"]
    assert "line 2" in str(log.events[0]["problems"])


def test_a_file_that_cannot_be_read_is_told_once(tmp_path: Path) -> None:
    """Each uid counts for itself then."""
    log = Kept()

    async def story() -> None:
        users = Users(Clock(), log, str(tmp_path))  # a directory
        await users.begin()
        await read_again(users)
        assert users.user_of(100_000) == 100_000
        assert users.problems == [f"{tmp_path}: Is a directory; each uid counts for itself"]

    asyncio.run(story())
    assert len(log.events) == 1


def test_a_directory_service_that_is_away_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The former map holds until it answers, and only one question is open."""
    file, there, asked = tmp_path / "subuid", threading.Event(), []
    file.write_text("somebody:100000:10\n")

    def away(name: str) -> Any:
        asked.append(name)
        there.wait(60)
        return pwd.struct_passwd(("somebody", "x", 4242, 4242, "", "/", "/bin/sh"))

    monkeypatch.setattr(pwd, "getpwnam", away)
    monkeypatch.setattr(module, "AT_START", 0.01)

    async def story() -> None:
        users = Users(Clock(), Kept(), str(file))
        await users.begin()
        for _ in range(5):
            users.look()
        assert users.user_of(100_000) == 100_000
        there.set()
        await read_again(users)
        assert users.user_of(100_000) == 4242
        assert asked == ["somebody"]

    asyncio.run(story())
