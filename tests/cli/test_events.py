"""`events`, against the real control socket."""

import json
import subprocess
import threading

import pytest

from tests.cli.conftest import PROGRAM
from tests.control.office import Office, wait_for
from watchdog.cli import verbs


def test_events_prints_and_follows_over_a_restart(office: Office, capfd: pytest.CaptureFixture[str]) -> None:
    """Without --follow it ends; with it, it goes on by itself when the daemon comes back."""
    agent_id = office.register("alpha")
    assert verbs.main(["events"]) == 0
    assert f"agent.registered alpha {agent_id[:8]} →" in capfd.readouterr().out, "an id alone tells nobody who it was"
    process = subprocess.Popen(
        [PROGRAM, "events", "--follow", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: list[dict[str, object]] = []
    assert process.stdout is not None and process.stderr is not None
    reader = threading.Thread(target=lambda: lines.extend(json.loads(line) for line in process.stdout or ()))
    reader.start()
    office.register("beta")
    try:
        wait_for(lambda: len(lines) == 2, "it follows", 60)
        office.stop()
        office.start()
        office.register("gamma")
        wait_for(lambda: lines and lines[-1]["evidence"]["name"] == "gamma", "the event after the restart")  # type: ignore[index]
    finally:
        process.terminate()
        process.wait(60)
        reader.join(60)
        process.stdout.close()
        process.stderr.close()
    ids = [line["id"] for line in lines]
    assert [line["evidence"]["name"] for line in lines] == ["alpha", "beta", "gamma"]  # type: ignore[index]
    assert ids == sorted(set(ids))  # type: ignore[type-var]
