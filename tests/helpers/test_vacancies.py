"""Places for helpers: who gets one, who waits, what is kept for the daemon's own uid."""

import asyncio
from collections.abc import Awaitable, Callable

from watchdog.helpers.vacancies import Vacancies

OWN, ANN, BEN, CID, DAN = 0, 1, 2, 3, 4


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await story()

    asyncio.run(bounded())


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_one_uid_has_half_of_the_places_and_some_are_kept_for_our_own() -> None:
    """Of eight: three for Ann, two for Ben, one for whoever has none, the last two for our own uid alone."""

    async def story() -> None:
        asked: list[int] = []
        places = Vacancies(8, OWN, lambda: asked.append(1))
        for _ in range(3):
            await places.take(ANN)
        fourth = asyncio.create_task(places.take(ANN))
        await turns()
        assert not fourth.done()
        assert places.wanted
        assert asked == [1]
        await places.take(BEN)
        await places.take(BEN)
        third = asyncio.create_task(places.take(BEN))
        await turns()
        assert not third.done()
        await places.take(OWN)
        await places.take(OWN)
        late = asyncio.create_task(places.take(CID))
        await turns()
        assert not late.done(), "five are taken, the sixth is there, and two are our own's: but those are taken as well"
        places.give_back(OWN)
        places.give_back(OWN)
        await turns()
        assert late.done(), "it has none"
        places.give_back(BEN)
        await turns()
        assert not fourth.done()
        assert not third.done(), "one is free: for whoever has none"
        places.give_back(BEN)
        await turns()
        assert third.done(), "Ben has fewer than Ann"
        assert not fourth.done()
        fourth.cancel()
        await asyncio.gather(fourth, return_exceptions=True)
        assert not places.wanted

    run(story)


def test_however_many_users_hold_their_places_the_next_one_finds_some() -> None:
    """Two users that did not give back kept all others waiting, root's own agents among hooks."""

    async def story() -> None:
        places = Vacancies(32, OWN, lambda: None)
        held: list[int] = []
        for uid in (ANN, BEN, CID):
            tries = [asyncio.create_task(places.take(uid)) for _ in range(32)]
            await turns()
            held.append(sum(one.done() for one in tries))
            for one in tries:
                one.cancel()  # those that wait
            await asyncio.gather(*tries, return_exceptions=True)
        assert held == [12, 6, 3]
        await asyncio.wait_for(places.take(3000), 1)
        for _ in range(8):
            await asyncio.wait_for(places.take(OWN), 1)

    run(story)


def test_a_free_place_goes_to_the_owner_with_the_fewest() -> None:
    """However many of another's calls wait longer."""

    async def story() -> None:
        places = Vacancies(8, OWN, lambda: None)
        for uid in (ANN, ANN, ANN, BEN, BEN, DAN):
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
        for uid in (ANN, ANN, ANN, BEN, BEN, DAN):
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
        for number in range(12):
            await asyncio.wait_for(places.take(100_000 + number), 1)
        late = asyncio.ensure_future(places.take(100_500))
        await asyncio.wait_for(places.take(2000), 1)
        assert not late.done()
        places.give_back(100_003)
        await asyncio.wait_for(late, 1)

    asyncio.run(story())
