"""Exhausted descriptors: how many are reserved, and what is reported when connections have to wait."""

import asyncio
import errno
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.control.office import Recorder
from watchdog.host import fd_limit
from watchdog.host.fd_limit import FdExhaustion, reserved

LIMITED = """
import os, resource, sys
from watchdog.errors import NoDescriptors
from watchdog.host import fd_limit
soft = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
try:
    fd_limit.refuse_too_few()
except NoDescriptors as error:
    print(error)
while not fd_limit.scarce():
    last = os.open("/dev/null", os.O_RDONLY)
    print(last)
try:
    while True:
        os.open("/dev/null", os.O_RDONLY)
except OSError:
    print(fd_limit.scarce())
"""


def lines(limit: int) -> list[str]:
    """The messages of a process with that limit."""
    done = subprocess.run([sys.executable, "-c", LIMITED, str(limit)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(("limit", "kept"), [(128, 16), (1024, 128), (1280, 160), (1_000_000, 160)])
def test_an_eighth_is_reserved_and_never_more_than_needed(limit: int, kept: int) -> None:
    """For root, and for agents that are registered already."""
    assert reserved(limit) == kept


def test_they_are_scarce_as_soon_as_only_the_reserve_is_left() -> None:
    """And if not even one can be opened."""
    *_, last, none_left = lines(256)
    assert int(last) == 256 - reserved(256) - 1
    assert none_left == "True"


def test_a_limit_without_room_to_work_in_is_refused_with_the_remedy() -> None:
    """One below the minimum; the minimum itself is enough."""
    assert "ulimit -n 65536" in lines(fd_limit.LEAST - 1)[0]
    assert lines(fd_limit.LEAST)[0].isdigit()


def play(story: Callable[[asyncio.AbstractEventLoop, FdExhaustion], None]) -> tuple[list[object], int]:
    """The log, and how often connections had to wait."""
    log, waited = Recorder(), []

    async def whole() -> None:
        exhaustion = FdExhaustion(lambda: waited.append(1), log)
        exhaustion.watch()
        story(asyncio.get_running_loop(), exhaustion)

    asyncio.run(whole())
    return [one["event"] for one in log.events], len(waited)


def out(number: int = errno.EMFILE) -> dict[str, object]:
    """asyncio's report of a failed accept(2)."""
    return {"message": "socket.accept() out of system resource", "exception": OSError(number, "Too many open files")}


def test_a_storm_of_failures_is_reported_once_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """asyncio has a hundred of them a second; that connections had to wait is noted once per second."""

    def storm(loop: asyncio.AbstractEventLoop, exhaustion: FdExhaustion) -> None:
        for number in (errno.EMFILE, errno.ENFILE, errno.EMFILE):
            loop.call_exception_handler(out(number))
        exhaustion.look()

    assert play(storm) == (["descriptors.exhausted"], 1)

    def over(loop: asyncio.AbstractEventLoop, exhaustion: FdExhaustion) -> None:
        for _ in range(2):
            storm(loop, exhaustion)
            monkeypatch.setattr(fd_limit, "ACCEPT_RETRY_DELAY", -1.0)  # so long ago by now
            exhaustion.look()
            exhaustion.look()
            monkeypatch.undo()

    assert play(over)[0] == ["descriptors.exhausted", "descriptors.back"] * 2


def test_other_errors_go_to_their_own_handler(caplog: pytest.LogCaptureFixture) -> None:
    """They do not mean a lack of descriptors."""

    def other(loop: asyncio.AbstractEventLoop, _exhaustion: FdExhaustion) -> None:
        loop.call_exception_handler({"message": "another fault", "exception": OSError(errno.EIO, "x")})

    assert play(other) == ([], 0)
    assert "another fault" in caplog.text
