"""Calls that never return: whoever waits is answered in time, their number is bounded, and the process ends."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest

from tests.world import wait_for
from watchdog.concurrency import threads
from watchdog.concurrency.threads import Pool, Unanswered

HANGING = "import threading; from watchdog.concurrency import threads; e = threading.Event()"


def test_an_answer_and_an_error_come_back() -> None:
    """From a call of its own, and from a pool."""

    async def asked() -> None:
        assert await threads.call("x", lambda: 7, 60) == 7
        assert await threads.finished("x", lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await threads.call("x", lambda: 1 / 0, 60)

    asyncio.run(asked())
    assert threads.call_now("x", lambda: 7, 60) == 7
    pool = Pool(2, "y")
    assert [pool.submit(pow, 2, number).result(60) for number in range(5)] == [1, 2, 4, 8, 16]
    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(60)
    assert pool.close(60)
    with pytest.raises(RuntimeError, match="no call after the end: y"):
        pool.submit(int)


def test_a_call_that_hangs_is_given_up_named_and_not_made_again() -> None:
    """Until it has returned; then it is."""
    gate = threading.Event()

    async def asked() -> None:
        with pytest.raises(Unanswered, match=r"the disk: no answer within 0\.05 s"):
            await threads.call("the disk", gate.wait, 0.05)
        began = time.monotonic()
        with pytest.raises(Unanswered, match="earlier call"):
            await threads.call("the disk", gate.wait, 60)
        assert time.monotonic() - began < 30
        assert threads.overdue(0).keys() >= {"the disk"}
        gate.set()
        wait_for(lambda: not threads.count("the disk"), "it has returned")
        assert await threads.call("the disk", lambda: 7, 60) == 7

    asyncio.run(asked())
    with pytest.raises(Unanswered):
        threads.call_now("another", threading.Event().wait, 0.05)


def test_a_pool_keeps_no_more_threads_than_its_size() -> None:
    """Calls beyond that wait, and one that waits can be cancelled; the end waits so long and no longer."""
    gate, pool = threading.Event(), Pool(2, "z")
    calls = [pool.submit(gate.wait) for _ in range(5)]
    wait_for(lambda: pool.stuck(0) == 2, "both are in a call")
    assert pool.stuck(3600) == 0
    assert calls[4].cancel()
    assert not pool.close(0.05, cancel=True)
    assert [call.cancelled() for call in calls] == [False, False, True, True, True]
    gate.set()
    assert pool.close(60)


@pytest.mark.parametrize("begin", ["threads.begin('x', e.wait)", "threads.Pool(1, 'x').submit(e.wait)"])
def test_the_interpreter_ends_beside_a_call_that_hangs(begin: str) -> None:
    """Threads of concurrent.futures are joined at its end: for ever."""
    done = subprocess.run([sys.executable, "-c", f"{HANGING}; {begin}"], timeout=60)
    assert done.returncode == 0
