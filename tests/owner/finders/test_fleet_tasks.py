"""apra-fleet's tasks that ended long ago go as that program lets them go; what may live, or is a link, stays."""

import json
import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.owner.sources.test_fleet_tasks import LINE
from watchdog.core import hooks
from watchdog.core.findings import KnownAgents
from watchdog.core.hooks import HookOutcome
from watchdog.owner.finders import fleet_tasks

HOUR = 3600
KNOWN = KnownAgents()


class Place:
    """A directory of tasks, and the settings that name it."""

    def __init__(self, path: Path) -> None:
        self.path = path / "fleet"
        self.path.mkdir()
        self.settings = hooks.CleanupSettings(tasks=((str(os.geteuid()), str(self.path)),))

    def ended(self, key: str, status: str | None, hours: float) -> Path:
        """One whose last word was so long ago."""
        task = self.path / f"task-{key}"
        task.mkdir()
        (task / "task.log").write_text("said\n")
        if status is not None:
            at = datetime.fromtimestamp(time.time() - hours * HOUR, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            told = {**json.loads(LINE), "taskId": task.name, "status": status, "updated": at}
            (task / "status.json").write_text(json.dumps(told))
        then = time.time() - hours * HOUR
        os.utime(task, (then, then))
        return task

    def found(self) -> list[str]:
        return [os.path.basename(one.path) for one in fleet_tasks.look(self.settings, KNOWN)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_each_goes_after_its_time(place: Place) -> None:
    """An hour for what completed, a week for the rest; twice does no harm, and the others stay whole."""
    stay = [place.ended("aaa1", "completed", 0.9), place.ended("aaa2", "failed", 167), place.ended("aaa3", None, 167)]
    for key, status, hours in (("bbb1", "completed", 1.1), ("bbb2", "cancelled", 169.0), ("bbb3", None, 169.0)):
        place.ended(key, status, hours)

    assert place.found() == ["task-bbb1", "task-bbb2", "task-bbb3"]
    for finding in list(fleet_tasks.look(place.settings, KNOWN)):
        assert fleet_tasks.act(finding, place.settings, KNOWN).outcome is HookOutcome.DONE
        assert fleet_tasks.act(finding, place.settings, KNOWN).outcome is HookOutcome.NOTHING
    assert sorted(place.path.iterdir()) == stay
    assert all((task / "task.log").exists() for task in stay)


def test_who_may_live_stays_and_so_does_what_somebody_has_open(place: Place) -> None:
    """By the identity of its pid, not by the number; the act decides anew."""
    with subprocess.Popen(["sleep", "60"]) as process:
        living, dead = place.ended("live", "running", 200), place.ended("dead", "running", 200)
        for task in (living, dead):
            (task / "task.pid").write_text(f"{process.pid}\n")
        os.utime(dead / "task.pid", (time.time() - HOUR, time.time() - HOUR))  # before that process began
        then = time.time() - 200 * HOUR
        for task in (living, dead):
            os.utime(task, (then, then))
        assert place.found() == ["task-dead"]
        process.kill()
    (finding,) = [one for one in fleet_tasks.look(place.settings, KNOWN) if one.path == str(dead)]
    with subprocess.Popen(["sleep", "60"], cwd=dead) as process:
        kept = fleet_tasks.act(finding, place.settings, KNOWN)
        assert (kept.outcome, "in use" in kept.message) == (HookOutcome.KEPT, True)
        process.kill()
    assert dead.exists()


def test_no_link_is_followed_and_no_other_place_is_looked_at(place: Place, tmp_path: Path) -> None:
    """Of a task and of what lies in one the link goes at most; another user's source is his helper's."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "work").write_text("kept")
    (place.path / "task-link").symlink_to(elsewhere)
    task = place.ended("with", "failed", 169)
    (task / "data").symlink_to(elsewhere)

    (finding,) = fleet_tasks.look(place.settings, KNOWN)
    assert list(fleet_tasks.look(hooks.CleanupSettings(), KNOWN)) == []
    others = hooks.CleanupSettings(tasks=(("nobody-here", str(place.path)),))
    assert list(fleet_tasks.look(others, KNOWN)) == []
    assert fleet_tasks.act(finding, others, KNOWN).outcome is HookOutcome.KEPT

    assert fleet_tasks.act(finding, place.settings, KNOWN).outcome is HookOutcome.DONE
    assert not task.exists()
    assert (elsewhere / "work").read_text() == "kept"
    assert hooks.settings_of(json.loads(json.dumps(hooks.settings_json(place.settings)))) == place.settings
