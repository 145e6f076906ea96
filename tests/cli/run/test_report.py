"""How an agent ended, written down by its `run` where no daemon is told."""

import json
import os
import signal
from pathlib import Path

from tests.cli.conftest import FakeDaemon, Request, Start


def reports_in(runtime: Path) -> list[Path]:
    return list((runtime / "agent-watchdog" / "reports").glob("*"))


def test_what_the_daemon_has_heard_leaves_no_report(start: Start, daemon: FakeDaemon, runtime: Path) -> None:
    """Written before it is told, removed when it has answered."""
    seen: list[object] = []

    def answer(request: Request) -> None:
        if "exit_code" in request.body:
            seen.extend(json.loads(path.read_text())["end"] for path in reports_in(runtime))

    daemon.answer = answer
    assert start("run", "--name", "a", "--", "sh", "-c", "exit 7").wait(10) == 7
    assert seen == [{"exit_code": 7}]
    assert reports_in(runtime) == []


def test_without_a_daemon_its_end_is_written_down_and_the_oldest_makes_room(
    start: Start, absent_daemon: FakeDaemon, runtime: Path
) -> None:
    """For its own uid to read; as many as 256 are kept for a daemon to come."""
    old = runtime / "agent-watchdog" / "reports"
    old.mkdir(mode=0o700)
    for number in range(256):
        (old / f"{number:032x}").touch()
        os.utime(old / f"{number:032x}", (1000 + number, 1000 + number))
    assert start("run", "--name", "a", "--", "sh", "-c", "kill -TERM $$").wait(10) == -signal.SIGTERM

    assert len(reports_in(runtime)) == 256
    assert not (old / f"{0:032x}").exists()
    [made] = [path for path in reports_in(runtime) if path.stat().st_size]
    told = json.loads(made.read_text())
    assert made.stat().st_mode & 0o777 == 0o600
    assert (told["registration"]["name"], told["registration"]["agent_id"]) == ("a", made.name)
    assert (told["end"], told["socket"]) == ({"exit_signal": signal.SIGTERM}, absent_daemon.path)


def test_an_end_that_can_neither_be_told_nor_written_is_said(start: Start, runtime: Path) -> None:
    """And the exit status is the agent's all the same."""
    (runtime / "agent-watchdog" / "reports").touch()
    wrapper = start("run", "--name", "a", "--", "sh", "-c", "exit 7")
    assert (
        "a: how it ended could not be reported to a daemon, nor recorded for one" in wrapper.communicate(timeout=10)[1]
    )
    assert wrapper.returncode == 7
