"""What a user may take, how a refusal is reported, and how long a spell of refusals lasts."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.test_users import Kept
from watchdog.agents import admission as module
from watchdog.agents.admission import AGENTS, DATAGRAMS, PERIOD, SPELL, Admission, DatagramBudget
from watchdog.clock import Clock
from watchdog.core.admission import LONE, RATES, WAIT, LimitKind
from watchdog.helpers.users import Users
from watchdog.telemetry.metrics import Metrics

ALICE, BOB, SUB = 61001, 61002, 3_000_000_000


class Hand(Clock):
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.at = 1000.0

    def mono(self) -> float:
        return self.at


class Made:
    """Admission with alice's subordinate uids, and its log."""

    def __init__(self, directory: Path) -> None:
        file = directory / "subuid"
        file.write_text(f"{ALICE}:{SUB}:65536\n")
        self.clock, self.log = Hand(), Kept()
        self.metrics = Metrics()
        users = Users(self.clock, self.log, str(file))
        asyncio.run(users.begin())
        self.it = Admission(users, self.clock, self.metrics, self.log)

    def told(self, event: str) -> list[dict[str, object]]:
        return [one for one in self.log.events if one["event"] == event]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    yield Made(tmp_path)


def spend(made: Made, uid: int, kind: LimitKind = LimitKind.REQUESTS, cost: float = 1.0) -> int:
    """The number of requests served without waiting."""
    count = 0
    while made.it.take(uid, kind, cost) == 0 and count < 10_000:
        count += 1
    return count


def test_subordinate_uids_share_their_users_bucket(made: Made) -> None:
    """Another user has its own; root and the daemon's own uid have none."""
    assert spend(made, SUB) == RATES[LimitKind.REQUESTS].burst
    assert made.it.take(SUB + 1, LimitKind.REQUESTS, 1.0) > 0
    assert made.it.take(ALICE, LimitKind.REQUESTS, 1.0) > 0
    assert made.it.take(BOB, LimitKind.REQUESTS, 1.0) == 0
    assert made.it.take(ALICE, LimitKind.BEATS, 1.0) == 0
    assert spend(made, 0) == 10_000


def test_waiting_requests_queue_and_a_long_queue_is_refused(made: Made) -> None:
    """Each waits for its own tokens, up to a second; a refused one takes none."""
    spend(made, ALICE)
    waits = [made.it.take(ALICE, LimitKind.REQUESTS, 10.0) for _ in range(50)]
    served = [wait for wait in waits if wait <= WAIT]
    assert served == sorted(served) and 0 < len(served) < 15
    assert len(set(waits[len(served) :])) == 1
    made.clock.at += 1.0
    assert made.it.take(ALICE, LimitKind.REQUESTS, 1.0) < WAIT


def test_users_that_come_together_have_a_small_common_reserve(made: Made) -> None:
    """Otherwise twenty that come in the same second keep the loop busy for twenty times as long as one."""
    counts = [spend(made, 62000 + number) for number in range(20)]
    burst = RATES[LimitKind.REQUESTS].burst
    assert burst <= sum(counts) < 4.5 * burst, counts
    assert counts == sorted(counts, reverse=True) and counts[-1] >= burst // 20


def test_with_more_users_each_gets_less(made: Made) -> None:
    """And all of it again when the others have gone."""
    uids = [ALICE, *range(62000, 62019)]
    for uid in uids:
        spend(made, uid)
    made.clock.at += 1.0
    each = [spend(made, uid) for uid in uids]
    assert all(4 <= count <= 6 for count in each), each
    made.clock.at += 1000.0
    made.it.look()
    spend(made, ALICE)
    made.clock.at += 1.0
    assert spend(made, ALICE) == RATES[LimitKind.REQUESTS].tokens - 1  # the last request that waited has its token


def test_a_request_with_many_targets_leaves_a_debt_that_ends(made: Made) -> None:
    """However many targets it names."""
    made.it.charge(ALICE, 1e6)
    assert made.it.take(ALICE, LimitKind.REQUESTS, 1.0) > WAIT
    made.clock.at += 11.0
    assert made.it.take(ALICE, LimitKind.REQUESTS, 1.0) == 0


def test_agents_of_subordinate_uids_are_their_users(made: Made) -> None:
    """Beyond the share as long as few are taken; exempt uids count for no user."""
    made.it.descriptors = 65536
    owners = [SUB + number % 20 for number in range(AGENTS)] + [0] * 5000
    assert made.it.may_register(SUB + 30, owners)
    others = [63000 + number % 50 for number in range((LONE - 1) * AGENTS)]
    assert not made.it.may_register(SUB + 30, owners + others)
    assert made.it.may_register(BOB, owners + others)
    assert made.it.may_register(0, owners + others)


def test_a_spell_is_logged_when_it_begins_and_when_it_is_over(made: Made) -> None:
    """One line each, whatever is refused in between; `status` has the count."""
    for _ in range(100):
        made.it.refused(SUB + 5, LimitKind.REQUESTS)
    made.it.refused(ALICE, LimitKind.AGENTS)
    assert [(one["uid"], one["kind"]) for one in made.told("user.limited")] == [(ALICE, "requests"), (ALICE, "agents")]
    (first, _) = made.it.limited()
    assert (first["uid"], first["kind"], first["refused"]) == (ALICE, "requests", 100)
    made.clock.at += SPELL - 1
    made.it.refused(ALICE, LimitKind.REQUESTS)
    made.it.look()
    assert made.told("user.unlimited") == []
    made.clock.at += 2
    made.it.look()
    assert [one["kind"] for one in made.told("user.unlimited")] == ["agents"]
    made.clock.at += SPELL
    made.it.look()
    assert made.it.limited() == []
    assert made.told("user.unlimited")[-1]["refused"] == 101
    assert b'agent_watchdog_refused_total{kind="requests"} 101.0' in made.metrics.text()


def test_refusals_of_many_users_do_not_grow_without_bound(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """A uid without a range has one spell; refusals beyond the limit are only counted."""
    monkeypatch.setattr(module, "MOST_SPELLS", 10)
    for uid in range(64000, 64100):
        made.it.refused(uid, LimitKind.REQUESTS)
    assert len(made.it.limited()) == len(made.told("user.limited")) == 10
    assert b'refused_total{kind="requests"} 100.0' in made.metrics.text()


def test_the_datagrams_of_users_that_flood_are_shared(made: Made) -> None:
    """A lone user gets all; one that does not flood gets what it sends; exempt uids are not counted."""
    budget = DatagramBudget(made.it)
    budget._clock = made.clock

    def taken(uid: int, most: int = 10_000) -> int:
        count = 0
        while count < most and budget.take(uid):
            count += 1
        return count

    budget.renew()
    assert taken(SUB) == DATAGRAMS
    assert taken(ALICE) == 0
    assert (taken(BOB, 5), taken(0)) == (5, 10_000)
    made.clock.at += PERIOD / 2
    budget.renew()
    assert taken(ALICE) == 0
    made.clock.at += PERIOD
    assert budget.renew()
    assert (taken(ALICE), taken(BOB)) == (DATAGRAMS, DATAGRAMS)
    made.clock.at += PERIOD
    budget.renew()
    assert (taken(ALICE), taken(BOB, 5)) == (DATAGRAMS // 2, 5)
    assert [one["kind"] for one in made.it.limited()] == ["datagrams", "datagrams"]
