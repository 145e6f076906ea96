"""What stays of an answer, and what is said of two that differ."""

from typing import Any

import pytest

from tests.wire.shape import differences, merged, shape, unrepeated

KNOWN = {"/tmp/aw-1": "<dir>", "wire-host": "<host>"}


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ({"status": "killed"}, {"status": "killed"}),
        ({"exit_code": 3, "promised": True, "task_id": None}, {"exit_code": 3, "promised": True, "task_id": None}),
        ({"pid": 12, "ppid": 1, "owner_uid": 0}, {"pid": "<int>", "ppid": "<int>", "owner_uid": "<int>"}),
        ({"silence_seconds": 1.5}, {"silence_seconds": "<float>"}),
        ({"silence_seconds": 1}, {"silence_seconds": "<int>"}),
        ({"silence_seconds": None}, {"silence_seconds": None}),
        ({"stall_after_seconds": 300.0}, {"stall_after_seconds": 300.0}),
        ({"at": "2026-01-02T03:04:05.678Z"}, {"at": "0000-00-00T00:00:00.000Z"}),
        ({"at": "2026-01-02T03:04:05Z"}, {"at": "0000-00-00T00:00:00Z"}),
        ({"why": "lost"}, {"why": "<text>"}),
        ({"why": ""}, {"why": ""}),
        ({"reason": "stalled"}, {"reason": "stalled"}),
        ({"reason": "it is stalled"}, {"reason": "<text>"}),
        ({"agent_id": "0123456789abcdef" * 2}, {"agent_id": "<id>"}),
        ({"temp_dir": "/tmp/aw-1/x-0123abcd"}, {"temp_dir": "<dir>/x-<id>"}),
        ({"worktree": "/home/x"}, {"worktree": "<path>"}),
        ({"who": "uid 7"}, {"who": "uid <int>"}),
        ({"host": "wire-host", "cgroup": None}, {"host": "<host>", "cgroup": "<host>"}),
        ({"/tmp/aw-1/s": 1, "two words": 2}, {"<dir>/s": 1, "two words": 2}),
        ({"tags": ["b", "a", "b"]}, {"tags": ["a", "b"]}),
    ],
)
def test_what_stays(value: Any, kept: Any) -> None:
    """Constants, nulls, types and formats; nothing that another run or another English would have otherwise."""
    assert shape(value, KNOWN) == kept


def test_a_whole_number_is_no_fraction() -> None:
    """JSON knows the difference, and some of its readers do."""
    assert differences({"a": 1}, {"a": 1.0}) == ["a: recorded 1, now 1.0"]


def test_objects_of_a_list_are_kept_by_kind() -> None:
    """However many and in whichever order: what differs inside a kind stands side by side, a key of some has a "?"."""
    events = [{"event": "a", "x": 1}, {"event": "b"}, {"event": "a", "x": None, "y": 2}]

    assert shape(events) == shape(events[::-1])
    assert shape(events) == {
        "[event=a]": {"event": "a", "x": {"either": ["1", "null"]}, "y?": 2},
        "[event=b]": {"event": "b"},
    }


def test_three_that_differ_are_merged_in_any_order() -> None:
    """A key that is missing once stays marked."""
    one, two, three = {"a": 1}, {"a": 2, "b": 3}, {"a": 1, "b": 3}

    assert merged(merged(one, two), three) == merged(merged(three, two), one)
    assert merged(merged(one, two), three) == {"a": {"either": ["1", "2"]}, "b?": 3}


def test_what_stands_elsewhere_is_not_said_twice() -> None:
    """Only where it is the same to the last key."""
    known = {"[name=a]": {"pid": 1}, "[name=b]": {"pid": 2}}

    shown = unrepeated({"agents": {"[name=a]": {"pid": 1}, "[name=b]": {"pid": 3}}}, known)

    assert shown == {"agents": {"[name=a]": "as in GET /agents", "[name=b]": {"pid": 3}}}


def test_a_difference_names_its_place() -> None:
    """What was recorded, and what is there now."""
    recorded = {"POST /kill": {"done": {"status": 200, "json": {"old": None, "same": 1}}}}
    now = {"POST /kill": {"done": {"status": 202, "json": {"new": [], "same": 1}}}}

    assert differences(recorded, now) == [
        "POST /kill · done · json · new: new ([]), not recorded",
        "POST /kill · done · json · old: gone (recorded: null)",
        "POST /kill · done · status: recorded 200, now 202",
    ]
    assert differences(now, now) == []


def test_of_two_lists_only_the_difference_is_said() -> None:
    """A table of a hundred names is read by nobody; where only the order differs, both are shown."""
    assert differences({"a": ["x", "y"]}, {"a": ["y", "z"]}) == ['a: ["x"] gone, ["z"] new']
    assert differences({"a": ["x", "y"]}, {"a": ["y", "x"]}) == ['a: recorded ["x", "y"], now ["y", "x"]']
