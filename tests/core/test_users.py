"""Which user a uid counts for, by /etc/subuid."""

import time

import pytest

from watchdog.core.users import MOST_RANGES, Range, UserMap, parse_subuid

NAMES = {"alice": 1000, "bob": 1001}


def test_a_subordinate_uid_counts_for_its_user_and_every_other_for_itself() -> None:
    """By login name or by uid; the range ends where it says."""
    users, problems = parse_subuid("alice:100000:65536\n1001:200000:10\n", NAMES.get)
    assert problems == []
    found = {uid: users.user_of(uid) for uid in (0, 1000, 99_999, 100_000, 165_535, 165_536, 200_009, 200_010)}
    assert found == {
        0: 0,
        1000: 1000,
        99_999: 99_999,
        100_000: 1000,
        165_535: 1000,
        165_536: 165_536,
        200_009: 1001,
        200_010: 200_010,
    }


@pytest.mark.parametrize("second", [(100_050, 100), (99_950, 100), (100_010, 10), (99_000, 5000)])
def test_of_ranges_that_overlap_the_first_one_counts(second: tuple[int, int]) -> None:
    """The overlap belongs to the earlier line; the rest of the later one stays its own."""
    first, size = second
    users = UserMap([Range(100_000, 100, 1000), Range(first, size, 1001)])
    for uid in range(98_990, 104_010):
        expected = 1000 if 100_000 <= uid < 100_100 else 1001 if first <= uid < first + size else uid
        assert users.user_of(uid) == expected, uid


def test_the_ranges_of_a_name_without_an_account_count_together() -> None:
    """So no user gets a share for each of them."""
    users, _ = parse_subuid("gone:300000:10\ngone:400000:10\n", NAMES.get)
    assert {users.user_of(uid) for uid in (300_000, 300_009, 400_005)} == {300_000}


def test_bad_lines_are_reported_and_the_others_count() -> None:
    """Comments and empty lines are skipped; a few problems are reported, not thousands."""
    bad = ["alice", "alice:1", ":5:5", "alice:-1:5", "alice:4294967290:65536", "alice:x:1", "alice:1:1:1", "alice:٣:1"]
    users, problems = parse_subuid("\n".join(["# a comment", "", *bad, "alice:100000:10"]), NAMES.get)
    assert users.user_of(100_005) == 1000
    assert problems[0] == "line 3: is not NAME:FIRST:COUNT with uids up to 4294967294"
    assert (len(problems), problems[-1]) == (6, "and 3 more")


def test_a_huge_file_is_cut_and_costs_a_moment() -> None:
    """A host with thousands of users; ranges beyond the limit are reported."""
    lines = [f"{1000 + n}:{100_000 + 65_536 * n}:65536" for n in range(MOST_RANGES + 1)]
    began = time.monotonic()
    users, problems = parse_subuid("\n".join(lines), NAMES.get)
    assert time.monotonic() - began < 5
    assert problems == [f"line {MOST_RANGES + 1}: more than {MOST_RANGES} ranges; the rest is not read"]
    assert users.user_of(100_000 + 65_536 * 5000 + 7) == 6000
