"""What a helper reports of another program's registry comes back as it was said; other words are refused."""

import json

import pytest

from watchdog.core import source_entries
from watchdog.core.source_entries import Entry, EntryEnd

ENTRY = Entry(
    "k",
    "t",
    "alpha",
    1000,
    pid=42,
    ticks=99,
    since=1.5,
    also=(43, 44),
    living=False,
    tags=("x",),
    pane={"terminal": "tmux", "pane": "%1"},
    stop=("hcom", "stop", "alpha"),
    temp=("/tmp/s",),
)


@pytest.mark.parametrize("entry", [ENTRY, Entry("k", "t", "n", 0), source_entries.unread_entry("a/", "no JSON", 7)])
def test_an_entry_comes_back_as_it_was_said(entry: Entry) -> None:
    """What was not said is not sent either."""
    told = source_entries.entry_json(entry)
    assert source_entries.entry_of(json.loads(json.dumps(told))) == entry
    assert "boot_id" not in told


def test_what_a_newer_helper_says_besides_is_left_out() -> None:
    """A helper may outlive its daemon's version by one answer."""
    assert source_entries.entry_of({"key": "k", "token": "t", "name": "n", "uid": 0, "mood": "x"}).name == "n"


@pytest.mark.parametrize(
    "change",
    [
        {"key": ""},
        {"token": ""},
        {"name": None},
        {"uid": "0"},
        {"uid": True},
        {"pid": 4.0},
        {"since": float("nan")},
        {"since": float("inf")},
        {"since": 1e13},
        {"living": 1},
        {"tags": ["x", 7]},
        {"also": list(range(257))},
        {"pane": {"pane": 1}},
        {"note": "x" * 4097},
        {"stop": "hcom stop"},
    ],
)
def test_what_is_no_entry_is_refused(change: dict[str, object]) -> None:
    """Another uid's words: each field has its type and its bound."""
    with pytest.raises(ValueError, match=r"is not what it may be|has a key"):
        source_entries.entry_of({"key": "k", "token": "t", "name": "n", "uid": 0, **change})


@pytest.mark.parametrize("data", [None, [], "k", {"key": "k"}])
def test_less_than_an_entry_is_refused(data: object) -> None:
    """No object, or one that lacks what every entry has."""
    with pytest.raises(ValueError, match=r"one JSON object|missing"):
        source_entries.entry_of(data)


def test_an_end_comes_back_as_it_was_said() -> None:
    """Lists of JSON are tuples again."""
    end = EntryEnd("killed", "stalled", "daemon", 5.0, signal="SIGKILL", resumable=False, temp=("/tmp/s",))
    assert source_entries.end_of(json.loads(json.dumps(source_entries.end_json(end)))) == end
    with pytest.raises(ValueError, match="ended_at"):
        source_entries.end_of({"status": "killed", "reason": "", "by": "x", "ended_at": "now"})


def test_an_entry_that_cannot_be_read_has_a_name_all_the_same() -> None:
    """Its words are made printable: they go into the log."""
    unread = source_entries.unread_entry("", "bad\x1b[2J", 7)
    assert (unread.key, unread.name, unread.uid) == ("/", "/", 7)
    assert "\x1b" not in unread.unread
