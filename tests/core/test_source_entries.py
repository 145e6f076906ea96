"""The table of kinds of registries, held together with the modules that read them; entries as JSON."""

from pathlib import Path

import pytest

from watchdog.core import source_entries
from watchdog.core.source_entries import KINDS, Entry, EntryEnd
from watchdog.owner import sources

MODULES = Path(sources.__file__).parent


def test_each_kind_has_a_module_and_each_module_that_discovers_is_in_the_table() -> None:
    """A new one is a module with `discover`, and a line in the table; other modules there are parts of these."""
    there = {path.stem for path in MODULES.glob("*.py") if "\ndef discover(" in path.read_text()}
    for kind in KINDS.keys() - there:
        pytest.fail(f"KINDS in watchdog/core/source_entries.py has {kind!r}: add watchdog/owner/sources/{kind}.py")
    for kind in there - KINDS.keys():
        pytest.fail(f"watchdog/owner/sources/{kind}.py is never asked: add a line to KINDS in core/source_entries.py")
    assert sorted(sources.SOURCES) == sorted(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_line_of_the_table_says_all_that_documents_need(kind: str) -> None:
    """What a path names, what the registry is, and what is a beat there; an entry that we never close is told of."""
    one, where = KINDS[kind], f"{kind} in KINDS, watchdog/core/source_entries.py"
    assert one.place and one.registry and one.beat, f"{where}: `place`, `registry` and `beat` are missing"
    assert "|" not in one.registry + one.beat, f"{where}: they stand in a table"
    assert not one.told_of or sources.SOURCES[kind].forget is None, f"{where}: `told_of`, but its entries are closed"


def test_an_entry_and_an_end_come_back_the_same() -> None:
    """What was not said is not sent."""
    entry = Entry("k", "t", "name", 1000, pid=7, tags=("a",), pane={"terminal": "tmux"}, stop=("x", "stop"))
    assert source_entries.entry_of(source_entries.entry_json(entry)) == entry
    assert "note" not in source_entries.entry_json(entry)
    end = EntryEnd("killed", "stalled", "daemon", 1.5, signal="SIGKILL", temp=("/a",))
    assert source_entries.end_of(source_entries.end_json(end)) == end
    with pytest.raises(ValueError, match="pid"):
        source_entries.entry_of({"key": "k", "token": "t", "name": "n", "uid": 1, "pid": "7"})
