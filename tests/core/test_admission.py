"""What requests cost, how tokens accumulate and are spent, and when a user may take more of a shared resource."""

import pytest

from watchdog.core.admission import DEBT, LONE, RATES, Bucket, LimitKind, cost_of, may_take


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_what_starts_a_helper_or_writes_costs_more_than_a_look(prefix: str) -> None:
    """However the path is spelled; a heartbeat is a kind of its own."""
    costs = {
        route: cost_of(*route.replace(" /", f" {prefix}/", 1).split(" ", 1))
        for route in ("GET /agents", "GET /agents?all=1", "POST /agents", "POST /remove", "GET /restore?place=/x")
    }
    ordered = [cost for _, cost in costs.values()]
    assert all(kind is LimitKind.REQUESTS for kind, _ in costs.values())
    assert ordered[0] < ordered[1] <= ordered[2] <= ordered[3] < ordered[4]
    assert cost_of("POST", f"{prefix}/agents/x/beat")[0] is LimitKind.BEATS
    assert cost_of("GET", f"{prefix}/agents/x/beat")[0] is LimitKind.REQUESTS
    assert cost_of("BREW", "\x00?//")[1] > 0


def test_a_bucket_fills_up_to_its_burst_and_owes_no_more_than_its_debt() -> None:
    """Tokens accumulate with time; a clock that stands still adds none."""
    bucket = Bucket(10.0, 0.0)
    bucket.spend(10.0, 2.0)
    assert bucket.wait(4.0, 2.0) == 2.0
    bucket.fill(1.0, 2.0, 10.0)
    assert bucket.wait(4.0, 2.0) == 1.0
    bucket.fill(1.0, 2.0, 10.0)
    assert bucket.tokens == 2.0
    bucket.fill(1000.0, 2.0, 10.0)
    assert bucket.tokens == 10.0
    bucket.spend(1e9, 2.0)
    assert bucket.wait(0.0, 2.0) == DEBT


def test_users_that_want_some_share_the_tokens() -> None:
    """A lone user has all of them."""
    rate = RATES[LimitKind.REQUESTS]
    assert rate.each(0) == rate.each(1) == 20 * rate.each(20)
    assert rate.saved(0) == rate.saved(1) == 20 * rate.saved(20) == rate.burst


def test_a_lone_user_may_have_more_than_its_share_until_others_come() -> None:
    """And what it has then is not taken back."""
    assert may_take(mine=31, everyone=31, share=32, total=1000)
    assert may_take(mine=LONE * 32 - 1, everyone=LONE * 32 - 1, share=32, total=1000)
    assert not may_take(mine=LONE * 32, everyone=LONE * 32, share=32, total=1000)
    assert not may_take(mine=33, everyone=200, share=32, total=1000)
    assert may_take(mine=31, everyone=200, share=32, total=1000)


def test_the_last_part_of_a_total_is_for_users_that_have_none() -> None:
    """So a victim gets its first one however much others take, until nothing at all is left."""
    assert not may_take(mine=1, everyone=90, share=32, total=100)
    assert may_take(mine=0, everyone=90, share=32, total=100)
    assert not may_take(mine=0, everyone=100, share=32, total=100)


def test_hostile_users_leave_the_first_one_to_a_victim() -> None:
    """Twenty users that each take all they can of 256."""
    held = dict.fromkeys(range(20), 0)
    for _ in range(300):
        for user in held:
            held[user] += may_take(held[user], sum(held.values()), 32, 256)
    assert sum(held.values()) < 256
    assert may_take(0, sum(held.values()), 32, 256)
