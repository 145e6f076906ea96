"""Places for helpers: who gets one, who waits, what is kept for the daemon's own uid."""

import asyncio
from collections.abc import Awaitable, Callable

from watchdog.vacancies import Vacancies

OWN, ANN, BEN, CID = 0, 1, 2, 3


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(bounded())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_our_own_uid_may_be_bound_too() -> None:
    """Of sixteen hooks eight are ours at most, and four are nobody else's."""

    async def story() -> None:
        places = Vacancies(16, OWN, lambda: None, of_own=8)
        for uid in [ANN] * 8 + [BEN] * 4:
            await asyncio.wait_for(places.take(uid), 5)
        ours = [asyncio.create_task(places.take(OWN)) for _ in range(9)]
        await turns()
        assert [one.done() for one in ours].count(True) == 4
        for _ in range(6):
            places.give_back(ANN)
        await turns()
        assert [one.done() for one in ours].count(True) == 8
        ours[8].cancel()
        await asyncio.gather(*ours, return_exceptions=True)

    run(story)


def test_one_uid_has_half_of_the_places_and_some_are_kept_for_our_own() -> None:
    """Of eight: four for Ann, two more for anybody, the last two for our own uid alone."""

    async def story() -> None:
        asked: list[int] = []
        places = Vacancies(8, OWN, lambda: asked.append(1))
        for _ in range(4):
            await places.take(ANN)
        fifth = asyncio.create_task(places.take(ANN))
        await turns()
        assert not fifth.done()
        assert places.wanted
        assert asked == [1]
        await places.take(BEN)
        await places.take(BEN)
        third = asyncio.create_task(places.take(BEN))
        await turns()
        assert not third.done()
        await places.take(OWN)
        await places.take(OWN)
        places.give_back(ANN)
        places.give_back(OWN)
        await turns()
        assert not fifth.done(), "six are taken, and two are kept"
        assert not third.done()
        places.give_back(OWN)
        await turns()
        assert third.done(), "Ben has fewer than Ann"
        assert not fifth.done()
        fifth.cancel()
        await asyncio.gather(fifth, return_exceptions=True)
        assert not places.wanted

    run(story)


def test_a_free_place_goes_to_the_owner_with_the_fewest() -> None:
    """However many of another's calls wait longer."""

    async def story() -> None:
        places = Vacancies(8, OWN, lambda: None)
        for uid in (ANN, ANN, ANN, BEN, BEN, BEN):
            await places.take(uid)
        crowd = [asyncio.create_task(places.take(ANN)) for _ in range(20)]
        await turns()
        late = asyncio.create_task(places.take(CID))
        await turns()
        assert not late.done()
        places.give_back(BEN)
        await turns()
        assert late.done()
        assert not any(task.done() for task in crowd)
        for task in crowd:
            task.cancel()
        await asyncio.gather(*crowd, return_exceptions=True)

    run(story)


def test_a_turn_that_was_given_to_a_call_that_is_cancelled_goes_on_to_the_next() -> None:
    """No place is lost by a deadline."""

    async def story() -> None:
        places = Vacancies(8, OWN, lambda: None)
        for uid in (ANN, ANN, ANN, BEN, BEN, BEN):
            await places.take(uid)
        first, second = (asyncio.create_task(places.take(CID)) for _ in range(2))
        await turns()
        places.give_back(ANN)
        first.cancel()  # in the same moment
        await asyncio.gather(first, return_exceptions=True)
        await turns()
        assert second.done()
        assert not second.cancelled()

    run(story)


def test_subordinate_uids_count_for_their_user() -> None:
    """Twenty uids of one user have half of the places together, not half each."""

    async def story() -> None:
        places = Vacancies(32, OWN, lambda: None, lambda uid: 1000 if 100_000 <= uid < 165_536 else uid)
        for number in range(16):
            await asyncio.wait_for(places.take(100_000 + number), 1)
        late = asyncio.ensure_future(places.take(100_500))
        await asyncio.wait_for(places.take(2000), 1)
        assert not late.done()
        places.give_back(100_003)
        await asyncio.wait_for(late, 1)

    asyncio.run(story())
