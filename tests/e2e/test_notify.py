"""`[notify]` with a real daemon: the command's input, and that a hanging or flooding command harms nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.world import World, alive, wait_for


def script(world: World, text: str) -> list[str]:
    """The command: a shell script."""
    path = world.dir / "told.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o700)
    return [str(path), str(world.dir)]


def heard(world: World) -> list[dict[str, Any]]:
    """The command's input so far, whole lines only."""
    path = world.dir / "heard"
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_the_command_gets_each_event_as_the_log_has_it(world: World) -> None:
    """On stdin, in order, whatever the log level; not as a child of the daemon; the last event at shutdown."""
    on = ["daemon.ready", "agent.registered", "kill.requested", "agent.ended", "daemon.stopping"]
    command = script(
        world,
        """cat >>"$1/heard"
        tr '\\0' ' ' </proc/$PPID/cmdline >"$1/parent"; env >"$1/env"; echo "$PPID" >"$1/ppid" """,
    )
    world.configure(notify={"on": on, "command": command}, log={"level": "error"})
    world.start(wait=False)
    wait_for(lambda: (world.dir / "heard").exists() and heard(world), "the first event")
    world.registered("alpha", "sleep", "600")

    world.cli("kill", "alpha", "--reason", "enough")
    wait_for(lambda: len(heard(world)) == 4, "the end")
    assert world.stop() == 0

    told = heard(world)
    assert [event["event"] for event in told] == on
    assert [event.get("name") for event in told] == [None, "alpha", "alpha", "alpha", None]
    assert told[2]["why"] == "enough"
    assert all(event["level"] in ("info", "warning") and event["ts"] for event in told)
    assert "watchdog.owner.helper" in (world.dir / "parent").read_text()
    environ = (world.dir / "env").read_text()
    assert "AGENT_WATCHDOG_EVENT=daemon.stopping" in environ
    assert "NOTIFY_SOCKET" not in environ
    assert "AGENT_WATCHDOG_SOCKET" not in environ


@pytest.mark.faults
def test_a_command_that_hangs_is_killed_and_reported_once(world: World) -> None:
    """Sweeps and kills continue beside it; its deadline kills its whole tree; it still gets the next event."""
    command = script(world, 'echo $$ >>"$1/pids"; trap "" TERM; sleep 1000 & sleep 1000; sleep 1000')
    world.configure(
        notify={"on": ["agent.registered"], "command": command}, sweep={"interval_seconds": 0.2}, log={"level": "debug"}
    )
    world.start()
    for name in ("alpha", "beta"):
        world.registered(name, "sleep", "600")
    pids = world.dir / "pids"
    wait_for(lambda: pids.exists() and pids.read_text().endswith("\n"), "the command runs")

    world.cli("kill", "alpha", "--force")
    world.wait_sweeps(10)

    assert world.count("notify.failed") == 0, "it hangs still"
    world.wait_event("notify.failed", about="agent.registered", outcome="timeout")
    wait_for(lambda: len(pids.read_text().split()) == 2, "the second event", seconds=40)
    assert not alive(int(pids.read_text().split()[0]))
    world.stop()
    wait_for(lambda: not any(alive(int(pid)) for pid in pids.read_text().split()), "nothing of it stays")
    assert world.count("notify.failed") == 1


def test_a_reload_changes_the_command_and_ends_the_failure(world: World) -> None:
    """A missing command, then an existing one: `notify.failed` once, `notify.recovered` with the count."""
    world.configure(notify={"on": ["agent.registered"], "command": [str(world.dir / "missing.sh")]})
    world.start()
    for name in ("a", "b", "c"):
        world.registered(name, "sleep", "600")
    failed = world.wait_event("notify.failed")
    assert "No such file" in failed["why"]
    world.configure(notify={"on": ["agent.registered"], "command": script(world, 'cat >>"$1/heard"')})
    assert world.daemon is not None
    world.daemon.send_signal(1)
    world.wait_event("config.reloaded")

    world.registered("d", "sleep", "600")

    over = world.wait_event("notify.recovered")
    assert 1 <= over["failed"] <= 3
    assert world.count("notify.failed") == 1
    wait_for(lambda: [event for event in heard(world) if event["name"] == "d"], "the new command hears of it")
    assert Path(world.log).read_text().count("Traceback") == 0
