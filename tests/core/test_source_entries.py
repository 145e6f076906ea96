"""The table of kinds of registries, compared with the modules that read them; entries as JSON."""

import json
from pathlib import Path

import pytest

from watchdog.core import source_entries
from watchdog.core.source_entries import KINDS, Entry, EntryEnd
from watchdog.owner import sources

MODULES = Path(sources.__file__).parent


def test_each_kind_has_a_module_and_each_module_that_discovers_is_in_the_table() -> None:
    """A new kind is a module with `discover`, and a line in the table; other modules there are parts of these."""
    there = {path.stem for path in MODULES.glob("*.py") if "\ndef discover(" in path.read_text()}
    for kind in KINDS.keys() - there:
        pytest.fail(f"KINDS in watchdog/core/source_entries.py has {kind!r}: add watchdog/owner/sources/{kind}.py")
    for kind in there - KINDS.keys():
        pytest.fail(f"watchdog/owner/sources/{kind}.py is never asked: add a line to KINDS in core/source_entries.py")
    assert sorted(sources.SOURCES) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_of_the_table_says_all_that_documents_need(kind: str) -> None:
    """What a path names, what the registry is, and what a beat is there; a `told_of` kind has no entries to close."""
    one, where = KINDS[kind], f"{kind} in KINDS, watchdog/core/source_entries.py"
    assert one.place and one.registry and one.beat, f"{where}: `place`, `registry` and `beat` are missing"
    assert "|" not in one.registry + one.beat, f"{where}: they stand in a table"
    assert not one.told_of or sources.SOURCES[kind].forget is None, f"{where}: `told_of`, but its entries are closed"


def test_an_entry_and_an_end_come_back_the_same() -> None:
    """Unset fields are not sent."""
    entry = Entry("k", "t", "name", 1000, pid=7, tags=("a",), pane={"terminal": "tmux"}, stop=("x", "stop"))
    assert source_entries.entry_of(source_entries.entry_json(entry)) == entry
    assert "note" not in source_entries.entry_json(entry)
    end = EntryEnd("killed", "stalled", "daemon", 1.5, signal="SIGKILL", temp=("/a",))
    assert source_entries.end_of(source_entries.end_json(end)) == end
    with pytest.raises(ValueError, match="pid"):
        source_entries.entry_of({"key": "k", "token": "t", "name": "n", "uid": 1, "pid": "7"})


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
    """Unset fields are not sent."""
    told = source_entries.entry_json(entry)
    assert source_entries.entry_of(json.loads(json.dumps(told))) == entry
    assert "boot_id" not in told


def test_what_a_newer_helper_says_besides_is_left_out() -> None:
    """After an upgrade a helper of another version may send one more answer."""
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
def test_a_malformed_entry_is_refused(change: dict[str, object]) -> None:
    """Another uid wrote it: each field has a type and a limit."""
    with pytest.raises(ValueError, match=r"is not what it may be|has a key"):
        source_entries.entry_of({"key": "k", "token": "t", "name": "n", "uid": 0, **change})


@pytest.mark.parametrize("data", [None, [], "k", {"key": "k"}])
def test_less_than_an_entry_is_refused(data: object) -> None:
    """Not an object, or one that lacks a required field."""
    with pytest.raises(ValueError, match=r"one JSON object|missing"):
        source_entries.entry_of(data)


def test_an_end_comes_back_as_it_was_said() -> None:
    """JSON lists become tuples again."""
    end = EntryEnd("killed", "stalled", "daemon", 5.0, signal="SIGKILL", resumable=False, temp=("/tmp/s",))
    assert source_entries.end_of(json.loads(json.dumps(source_entries.end_json(end)))) == end
    with pytest.raises(ValueError, match="ended_at"):
        source_entries.end_of({"status": "killed", "reason": "", "by": "x", "ended_at": "now"})


def test_an_entry_that_cannot_be_read_has_a_name_all_the_same() -> None:
    """Its texts are made printable, as they are logged."""
    unread = source_entries.unread_entry("", "bad\x1b[2J", 7)
    assert (unread.key, unread.name, unread.uid) == ("/", "/", 7)
    assert "\x1b" not in unread.unread
