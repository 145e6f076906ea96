"""Case Q5: holds, the trash and the history after the clock was set, also while no daemon ran."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.world import wait_for
from watchdog.agents.holds import Holds
from watchdog.clock import Clock, Instant
from watchdog.host.clock_steps import Steps
from watchdog.registry.rows import HoldRow

BEGAN = datetime(2030, 1, 1, tzinfo=UTC)
DAYS = timedelta(days=3)


class Set(Clock):
    """Clocks that are set by hand."""

    def __init__(self) -> None:
        self.at = self.stepped = 0.0

    def now(self) -> Instant:
        return Instant(self.at, self.at, BEGAN + timedelta(seconds=self.at + self.stepped))


def test_the_trash_gets_the_time_of_a_step_back(tmp_path: Path) -> None:
    """Four days forward: three of the trash's retention remain, in addition to the time so far."""
    clock = Set()
    steps = Steps(str(tmp_path), clock, "boot")
    clock.at += 3600
    assert not steps.credit(DAYS)
    clock.stepped += 4 * 86_400
    assert steps.credit(DAYS) == timedelta(days=4)  # at once, before any sweep
    clock.at += 2.9 * 86_400
    assert steps.credit(DAYS) == timedelta(days=4)
    clock.at += 0.2 * 86_400
    assert not steps.credit(DAYS)


def test_a_step_is_known_to_the_next_daemon_also_one_without_a_daemon(tmp_path: Path) -> None:
    """In the same boot the file shows it; of another boot only the known steps count."""
    clock, file = Set(), tmp_path / "clock.json"
    steps = Steps(str(tmp_path), clock, "boot")
    clock.stepped += 86_400
    steps.look()
    wait_for(file.exists, "it is written down")
    elsewhere = tmp_path / "elsewhere"  # each writes its own file
    elsewhere.mkdir()
    shutil.copy(file, elsewhere)
    assert Steps(str(elsewhere), clock, "another boot").credit(DAYS) == timedelta(days=1)
    steps.look()
    clock.at, clock.stepped = 600, 4 * 86_400  # while no daemon runs
    later = Steps(str(tmp_path), clock, "boot")
    assert later.credit(DAYS) == timedelta(days=4)


def test_the_content_of_the_file_does_no_harm(tmp_path: Path) -> None:
    """Empty, cut, of another format, no file."""
    for text in ("", "[]", "{", '{"wall": 1e99, "boot": 0, "boot_id": "boot", "steps": []}', '{"steps": 7}', "\0\0"):
        (tmp_path / "clock.json").write_text(text)
        assert not Steps(str(tmp_path), Set(), "boot").credit(DAYS)
    (tmp_path / "d" / "clock.json").mkdir(parents=True)
    assert not Steps(str(tmp_path / "d"), Set(), "boot").credit(DAYS)
    assert not Steps(str(tmp_path / "not there"), Set(), "boot").credit(DAYS)


def test_a_hold_lasts_as_long_as_requested(tmp_path: Path) -> None:
    """Two hours, and the clock is set three hours forward; then a day back. Its end follows the present clock."""
    clock = Set()
    until = BEGAN + timedelta(hours=2)
    holds = Holds([HoldRow(1, "a1", "debugging", 0, BEGAN, until), HoldRow(2, "a2", "for ever", 0, BEGAN)])
    steps = Steps(str(tmp_path), clock, "boot")
    steps.subscribe(holds.shift)
    for by in (3 * 3600, -86_400):
        clock.stepped += by
        steps.look()
        assert holds.reason_for("a1", clock.now().wall) is not None
        (row,) = holds.moved()
        assert row.until_at == until + timedelta(seconds=clock.stepped)
        assert holds.moved() == []
    clock.at += 2 * 3600 - 1
    assert holds.reason_for("a1", clock.now().wall) is not None
    clock.at += 2
    assert [row.id for row in holds.expire(clock.now().wall)] == [1]


def test_a_fifo_in_place_of_the_steps_hangs_no_start(tmp_path: Path) -> None:
    """As if there were none; the next reading replaces it."""
    os.mkfifo(tmp_path / "clock.json")
    Steps(str(tmp_path), Set(), "boot").look()
    wait_for((tmp_path / "clock.json").is_file, "it is written")
