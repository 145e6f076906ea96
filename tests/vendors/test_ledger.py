"""What counts in a day, and what does not."""

from typing import Any

from tests.vendors import table
from tests.vendors.ledger import Ledger, Verdict, moment, own_orders


def order(second: int, reason: str, request: str) -> dict[str, Any]:
    return {
        "event": "kill.requested",
        "reason": reason,
        "request_id": request,
        "ts": f"2026-01-01T00:00:{second:02}.5Z",
    }


def test_only_orders_of_the_daemons_own_count() -> None:
    """In their time, and not called off."""
    events = [
        order(1, "stalled", "early"),
        order(5, "operator", "asked"),
        order(6, "stalled", "back"),
        {"event": "kill.withdrawn", "request_id": "back", "ts": "2026-01-01T00:00:07Z"},
        order(8, "failed_to_start", "mine"),
        order(9, "gone", "gone"),
        order(30, "stalled", "late"),
    ]
    began = moment(events[0]) + 1
    assert [each["request_id"] for each in own_orders(events, began, began + 20)] == ["mine"]


def test_a_matrix_has_what_is_off_its_diagonal() -> None:
    ledger = Ledger(
        [
            Verdict("a", "codex", "idle", must_end=False, ended=False),
            Verdict("b", "codex", "idle", must_end=False, ended=True, why="silent"),
            Verdict("c", "codex", "hangs", must_end=True, ended=True, seconds=21.2),
            Verdict("d", "codex", "hangs", must_end=True, ended=False),
        ]
    )
    assert [one.agent for one in ledger.wrong] == ["b", "d"]
    assert [line.replace(" ", "") for line in ledger.matrix()[1:]] == [
        "codex|idle|1|1|0|0|",
        "codex|hangs|0|0|1|1|21/21/21",
        "all||1|1|1|1|21/21/21",
    ]
    assert "1 wrong kills, 1 missed stalls" in ledger.summary()


def test_what_was_written_of_a_day_stays_when_the_table_is_written_anew() -> None:
    """It stands below the table, and nothing writes it again."""
    page = table.written([])
    assert page.count(table.DAY) == 1
    assert page.endswith(table.RESULTS.read_text().partition(table.DAY)[2])
