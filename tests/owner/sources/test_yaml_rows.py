"""One row of a YAML list, changed at its place: everything else keeps its bytes, or nothing is done."""

import pytest

from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources.yaml_rows import load, with_members

BLOCK = """\
# mine
sessions:
  - name: a
    status: running   # by hand
    note: 'it''s'
  - {name: b, status: "running"}
  - name: c
    status:
    pid: 7
"""


def changed(name: str, **members: object) -> str:
    """What stands there afterwards in the place of the lines that are no longer there."""
    after = with_members(BLOCK, "sessions", name, members)
    before, now = BLOCK.splitlines(), after.splitlines()
    return "\n".join(line for line in now if line not in before)


@pytest.mark.parametrize(
    ("name", "members", "lines"),
    [
        ("a", {"status": "killed"}, "    status: killed   # by hand"),
        ("a", {"status": "killed", "ended": 5}, "    status: killed   # by hand\n    ended: 5"),
        ("a", {"note": "x: y"}, "    note: 'x: y'"),
        ("b", {"status": "killed", "why": "it's"}, "  - {name: b, status: killed, why: 'it''s'}"),
        ("c", {"status": "killed"}, "    status: killed"),
        ("c", {"pid": None}, "    pid: null"),
        ("a", {"done": True}, "    done: true"),
        ("a", {"status": "no"}, "    status: 'no'   # by hand"),  # a word that means false
        ("a", {"status": "7"}, "    status: '7'   # by hand"),  # a text, and no number
    ],
)
def test_a_value_is_exchanged_at_its_place(name: str, members: dict[str, object], lines: str) -> None:
    """Comments, quotes and order of all the others stay."""
    assert changed(name, **members) == lines
    (row,) = [one for one in load(with_members(BLOCK, "sessions", name, members))["sessions"] if one["name"] == name]
    assert {key: row[key] for key in members} == members


def test_line_ends_of_windows_stay_what_they_are() -> None:
    """Each of them."""
    after = with_members(BLOCK.replace("\n", "\r\n"), "sessions", "a", {"status": "x", "ended": 5})
    assert after.replace("\r\n", "").count("\n") == 0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (BLOCK, "nobody"),
        (BLOCK + "  - name: a\n    status: x\n", "a"),
        ("sessions: {a: 1}\n", "a"),
        ("sessions:\n  - name: a\n", "a"),  # it has no status to stand behind
        ("sessions:\n  - &x {name: a, status: s}\n  - *x\n", "a"),
        ("sessions:\n  - name: a\n    status: [1]\n", "a"),
        ("sessions: [\n", "a"),
        ("- 1\n", "a"),
    ],
)
def test_what_cannot_be_changed_at_its_place_is_left_alone(text: str, name: str) -> None:
    """No such row, two of them, a row that stands in two places, no YAML."""
    with pytest.raises(OwnerCallFailed) as caught:
        with_members(text, "sessions", name, {"status": "killed"})
    assert caught.value.reason == "not_understood"
