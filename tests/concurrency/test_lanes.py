"""Nobody's work stands behind another user's."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from watchdog.concurrency.lanes import FIRST, Lane, Lanes, Pace, Turns, enter, lane


def run(story: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story

    asyncio.run(bounded())


async def put(queue: Lanes[str], user: int | None, *items: str) -> None:
    """In a task of its own, as a request is."""

    async def work() -> None:
        enter(Lane(user))
        for item in items:
            queue.put(item)

    await asyncio.create_task(work())


def test_ours_comes_first_and_users_in_turn() -> None:
    """Each lane in its own order; a transaction of ours takes only so many of users along."""

    async def story() -> None:
        queue: Lanes[str] = Lanes()
        await put(queue, 1, "a1", "a2", "a3", "a4")
        await put(queue, 2, "b1")
        await put(queue, None, "r1", "r2")
        await put(queue, 3, "c1", "c2")
        assert len(queue) == 9
        assert queue.take(200, 4) == ["r1", "r2", "a1", "b1", "c1", "a2"]
        await put(queue, None, "r3")
        assert queue.take(2, 4) == ["r3", "c2"]
        assert queue.take(200, 4) == ["a3", "a4"]
        assert (queue.take(200, 4), len(queue)) == ([], 0)

    run(story())


def test_a_task_works_in_the_lane_of_who_started_it() -> None:
    """And one that root presses goes on in root's."""

    async def story() -> None:
        of = Lane(7)
        seen: list[int | None] = []
        pressed = asyncio.Event()

        async def order() -> None:
            seen.append(lane().user)
            await pressed.wait()
            seen.append(lane().user)

        async def request() -> "asyncio.Task[None]":
            enter(of)
            return asyncio.create_task(order())

        task = await asyncio.create_task(request())
        await asyncio.sleep(0)
        of.user = None
        pressed.set()
        await task
        assert seen == [7, None]
        assert lane() is FIRST and FIRST.user is None

    run(story())


def test_turns_go_to_the_user_with_the_fewest() -> None:
    """One user's queue of ten does not stand before another's first."""

    async def story() -> None:
        turns, order, doors = Turns(2, 2), [], [asyncio.Event() for _ in range(12)]

        async def work(user: int, door: asyncio.Event) -> None:
            async with turns.turn(user):
                order.append(user)
                await door.wait()

        tasks = [asyncio.create_task(work(1, door)) for door in doors[:10]]
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(work(user, door)) for user, door in ((2, doors[10]), (3, doors[11]))]
        await asyncio.sleep(0)
        assert order == [1, 1]
        doors[0].set()
        await tasks[0]
        await asyncio.sleep(0)
        assert order == [1, 1, 2]
        doors[10].set()
        await tasks[10]
        await asyncio.sleep(0)
        assert order[3] == 3
        for door in doors:
            door.set()
        await asyncio.gather(*tasks)
        assert sorted(order) == [1] * 10 + [2, 3]

    run(story())


def test_a_share_binds_and_ours_waits_for_nobody() -> None:
    """Also when there is room for more of that user."""

    async def story() -> None:
        turns = Turns(10, 1)
        async with turns.turn(1), turns.turn(None), turns.turn(None), turns.turn(2):
            waiting = asyncio.create_task(turns.turn(1).__aenter__())
            await asyncio.sleep(0)
            assert not waiting.done()
        await waiting

    run(story())


@pytest.mark.parametrize("late", [False, True])
def test_who_waits_no_longer_leaves_its_turn_to_the_next(late: bool) -> None:
    """A client that hangs up; `late`: in the very moment in which its turn came."""

    async def story() -> None:
        turns, door = Turns(1, 1), asyncio.Event()

        async def work(user: int) -> None:
            async with turns.turn(user):
                await door.wait()

        first, second, third = (asyncio.create_task(work(user)) for user in (1, 2, 3))
        await asyncio.sleep(0)
        if late:
            door.set()
            await asyncio.wait([first])
        second.cancel()
        await asyncio.wait([second])
        door.set()
        await asyncio.gather(first, third)
        async with turns.turn(4):
            pass

    run(story())


def test_one_request_of_a_user_begins_in_each_round_of_the_loop() -> None:
    """However many ask at once; users in turn, and a client that hung up takes nobody's turn."""

    async def story() -> None:
        pace, rounds = Pace(), 0
        begun: list[tuple[int, int]] = []

        async def request(user: int) -> None:
            await pace.begin(user)
            begun.append((rounds, user))

        requests = [asyncio.create_task(request(user)) for user in (1, 1, 1, 1, 2, 3)]
        for _ in range(20):
            await asyncio.sleep(0)
            rounds += 1
            if rounds == 1:
                requests[2].cancel()
        await asyncio.wait(requests)
        assert [user for _, user in begun] == [1, 1, 2, 3, 1]
        assert len({at for at, _ in begun}) == len(begun)
        await asyncio.wait_for(pace.begin(4), 1)

    run(story())
