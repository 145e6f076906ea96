"""Rows as the database returns them: decoded to what was stored, or refused with the column and what is wrong."""

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.registry.samples import FULL, HERE, NOW
from watchdog.core.process import Identity, Listed, TreeMember
from watchdog.registry import row_codec
from watchdog.registry.column_decoders import BadRow

MEMBER = asdict(TreeMember(HERE, 1, 1000, "sleep", "S", "descent", 1.5, 4096))
LISTED = Listed("hcom", "/h", "k", "t", also=(HERE,), stop=("hcom", "stop"), temp=("/tmp/s",))
HOLD: dict[str, Any] = {
    "id": 1,
    "agent_id": "a",
    "reason": "mine",
    "by_uid": 1000,
    "created_at": NOW,
    "until_at": None,
    "ended_at": None,
}
REQUEST: dict[str, Any] = {
    "request_id": "r",
    "agent_id": "a",
    "reason": "stalled",
    "by_text": "daemon",
    "by_uid": None,
    "status": "claimed",
    "created_at": NOW,
    "options": '{"grace_seconds": 1}',
    "pid": HERE.pid,
    "start_ticks": HERE.start_ticks,
    "host": HERE.host,
    "boot_id": HERE.boot_id,
    "step": "cleanup",
    "members": json.dumps([MEMBER]),
    "evidence": "{}",
    "outcome": '{"status": "killed"}',
    "claimed_by": "d",
    "claimed_at": NOW,
    "finished_at": None,
}


def test_a_request_is_read_with_its_process_and_members() -> None:
    """The inode of its pidfd is of no use to another daemon, and is not stored."""
    row = row_codec.to_request(REQUEST)
    assert row.identity == replace(HERE, pidfd_inode=None)
    assert [TreeMember(**{**one, "identity": Identity(**one["identity"])}) for one in row.members] == [  # type: ignore[arg-type]
        TreeMember(HERE, 1, 1000, "sleep", "S", "descent", 1.5, 4096)
    ]
    assert row.options == {"grace_seconds": 1}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"claimed_by": None}, "^claimed_by: .*take it over"),
        ({"outcome": "{}"}, "^outcome: .*no end"),
        ({"outcome": '{"status": "running"}'}, "^outcome: .*no end"),
        ({"reason": "hunger"}, "^reason: "),
        ({"options": '{"grace_seconds": -1}'}, "^options: grace_seconds"),
        ({"pid": 1}, "^pid: "),
        ({"start_ticks": None}, "^start_ticks: "),
        ({"members": json.dumps([{**MEMBER, "mood": 1}])}, "^members: .*no process"),
        ({"members": json.dumps([{**MEMBER, "identity": 4}])}, "^members: identity"),
        ({"members": json.dumps([{**MEMBER, "parent_pid": -1}])}, "^members: parent_pid"),
        ({"members": json.dumps([{"identity": MEMBER["identity"]}])}, "^members: 'name' is missing"),
    ],
)
def test_a_request_that_was_edited_is_told_by_its_column(change: dict[str, object], words: str) -> None:
    """A kill depends on these values: none is guessed."""
    with pytest.raises(BadRow, match=words):
        row_codec.to_request({**REQUEST, **change})


def test_a_request_that_is_done_may_say_less() -> None:
    """No daemon will continue with it."""
    assert row_codec.to_request({**REQUEST, "status": "done", "outcome": "{}"}).outcome == {}


def test_a_hold_that_cannot_be_read_holds_all_the_same() -> None:
    """An operator wanted the agent left alone; only the agent must be readable."""
    assert row_codec.to_hold(HOLD).reason == "mine"
    row = row_codec.to_hold({**HOLD, "until_at": "tomorrow"})
    assert (row.id, row.agent_id, row.until_at, row.ended_at) == (1, "a", None, None)
    assert "until_at: 'tomorrow'" in row.reason
    assert row.created_at == datetime.min.replace(tzinfo=UTC)
    for change in ({"agent_id": 7}, {"id": "x"}):
        with pytest.raises(BadRow):
            row_codec.to_hold({**HOLD, **change})


def test_entries_and_sites_are_written_as_they_are_read() -> None:
    """JSON has no tuples."""
    (stored,) = json.loads(row_codec.entries_json([LISTED]))
    assert row_codec._entry(stored) == LISTED
    assert json.loads(row_codec.sites_json(FULL)) == {}
    for wrong in ({}, {**stored, "mood": 1}, {**stored, "also": [4]}, {**stored, "key": 7}):
        with pytest.raises(BadRow, match=r"^entries: "):
            row_codec._entry(wrong)


def test_a_trees_processes_are_of_their_rows_host_and_boot() -> None:
    """The members in a row of another boot match no live process."""
    stored = {"members": row_codec.from_members([HERE, replace(HERE, pid=43, pidfd_inode=None)])}
    found = row_codec._identities(stored, "h2", "b2")
    assert found == (Identity("h2", "b2", 4242, 99, 7), Identity("h2", "b2", 43, 99))
    for wrong in ("[[1, 2, 3]]", "[[42, 99]]", "[[null, 1, 1]]", "[4]"):
        with pytest.raises(BadRow):
            row_codec._identities({"members": wrong}, "h2", "b2")


def test_the_name_of_another_row_hides_no_event() -> None:
    """The name is joined from the agent's row, which may be damaged."""
    row: dict[str, object] = {"id": 1, "at": NOW, "event": "agent.killed", "who": "daemon", "why": "", "agent_id": "a"}
    row |= {"from_status": None, "to_status": None, "evidence": "{}", "owner_uid": 0}
    assert row_codec.to_event({**row, "name": "alpha"}).name == "alpha"
    assert row_codec.to_event({**row, "name": b"\xff"}).name is None
    with pytest.raises(BadRow, match=r"^evidence: "):
        row_codec.to_event({**row, "name": None, "evidence": "{"})


def test_json_of_a_column_takes_what_json_does_not_know() -> None:
    """As strings, and without spaces."""
    assert row_codec.dump({"at": NOW, "x": [1]}) == f'{{"at":"{NOW}","x":[1]}}'
