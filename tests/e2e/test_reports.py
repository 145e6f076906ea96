"""An agent of `run` exits without a daemon: the next one knows how, from the report of its `run`."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.processes.conftest import needs_root
from tests.world import World, alive, pids_with, wait_for

ON_WORD = 'until [ -e "$0" ]; do sleep 0.05; done; '


def reports(world: World) -> list[Path]:
    return sorted((world.runtime / "reports").glob("*"))


def waiting(world: World, name: str, last: str, options: tuple[str, ...] = ()) -> "subprocess.Popen[bytes]":
    """An agent that waits for a file, and then ends as `last` says."""
    return world.run(name, "/bin/sh", "-c", ON_WORD + last, str(world.dir / f"{name}.go"), options=options)


def end(world: World, name: str, wrapper: "subprocess.Popen[bytes]") -> None:
    (world.dir / f"{name}.go").touch()
    wrapper.wait(20)


def ended(world: World, name: str) -> dict[str, Any]:
    """Its row, once it is closed, with the text of `why`."""
    row = world.wait_status(name, "completed", "failed", "killed", "stopped", "lost")
    return {**row, "told": world.story(name)["requests"][-1]["outcome"]["message"]}


@pytest.mark.parametrize(
    ("last", "status", "code", "number", "words"),
    [
        ("exit 0", "completed", 0, None, "exited by itself with status 0 (as its `run` recorded at "),
        ("exit 3", "failed", 3, None, "exited by itself with status 3 (as its `run` recorded at "),
        (
            "kill -SEGV $$",
            "failed",
            None,
            11,
            "killed by signal 11 (a crash, or sent by another process) (as its `run`",
        ),
    ],
)
def test_an_agent_that_exited_without_a_daemon_ended_as_its_run_saw(
    world: World, last: str, status: str, code: int | None, number: int | None, words: str
) -> None:
    """The next daemon knows its exit status or signal, and the source."""
    world.start()
    wrapper = waiting(world, "alpha", last)
    world.wait_event("agent.registered", name="alpha")
    wait_for(lambda: world.agents()["alpha"]["pid"], "its pid is known")
    assert world.stop() == 0
    end(world, "alpha", wrapper)

    world.start()

    row = ended(world, "alpha")
    assert (row["status"], row["exit_code"], row["exit_signal"]) == (status, code, number)
    assert row["told"].startswith(words)
    assert "as its `run` recorded at" in " ".join(world.cli("why", "alpha").stdout.split())


def test_registration_start_and_end_may_meet_different_daemons(world: World) -> None:
    """`run` begins without a daemon, one comes and registers it, goes, and the agent exits: the third one knows how."""
    wrapper = waiting(world, "alpha", "exit 5")
    wait_for(lambda: pids_with("WORLD", str(world.dir)), "it runs")
    world.start()
    wait_for(lambda: world.agents().get("alpha", {}).get("pid"), "it is registered with its pid")
    world.crash()
    end(world, "alpha", wrapper)

    world.start()

    row = ended(world, "alpha")
    assert (row["status"], row["exit_code"]) == ("failed", 5)


def test_an_agent_that_no_daemon_saw_is_in_the_history_and_cleaned_up_after(world: World) -> None:
    """Registered and closed as it would have been: status, task, hooks; its report is removed when that is done."""
    with world.config.open("a") as config:
        config.write('[[hook]]\nname = "temp_dir"\nrun = "temp_dir"\n')
    wrapper = world.run(
        "early", "/bin/sh", "-c", 'echo "$TMPDIR" > early.dir; exit 4', options=("--temp-dir", "auto", "--task", "T1")
    )
    assert wrapper.wait(20) == 4
    temp_dir = Path((world.dir / "early.dir").read_text().strip())
    assert temp_dir.is_dir()
    assert len(reports(world)) == 1

    world.start()

    row = ended(world, "early")
    assert (row["status"], row["exit_code"], row["task_id"]) == ("failed", 4, "T1")
    assert row["told"].startswith("exited by itself with status 4 (as its `run` recorded at ")
    assert not temp_dir.exists()
    assert world.sql("SELECT status FROM orchestrator_task WHERE task_id = 'T1'") == [("failed",)]
    assert world.stop() == 0
    world.start()
    wait_for(lambda: not reports(world), "nobody needs the report any more")
    assert [entry["name"] for entry in world.json("list", "--all")["agents"]] == ["early"], "once is enough"


def test_a_later_agent_keeps_its_name_and_its_task(world: World) -> None:
    """A late report about a former run takes nothing from the present one."""
    assert world.run("alpha", "/bin/sh", "-c", "exit 4", options=("--task", "T1")).wait(20) == 4
    former = json.loads(reports(world)[0].read_text())["registration"]["agent_id"]
    kept = reports(world)[0].rename(world.dir / former)
    world.start()
    world.run("alpha", "sleep", "600", options=("--task", "T1"))
    world.wait_event("agent.pid_known", name="alpha")
    assert world.stop() == 0
    shutil.move(kept, world.runtime / "reports" / former)

    world.start()

    row = ended(world, f"alpha-{former[:4]}")
    assert (row["agent_id"], row["status"], row["task_id"]) == (former, "failed", None)
    assert world.agents()["alpha"]["status"] == "running"
    assert world.sql("SELECT assigned_agent = ? FROM orchestrator_task".replace("?", f"'{former}'")) == [(0,)]


def test_without_run_no_success_is_assumed(world: World) -> None:
    """`run`, daemon and agent are killed: failed, with exit status unknown."""
    world.start()
    wrapper = world.run("alpha", "sleep", "600")
    world.wait_event("agent.pid_known", name="alpha")
    pid = world.agents()["alpha"]["pid"]
    world.crash()
    wrapper.send_signal(signal.SIGKILL)
    wrapper.wait(20)
    wait_for(lambda: not alive(pid), "it dies with its run")

    world.start()

    row = ended(world, "alpha")
    assert (row["status"], row["exit_code"]) == ("failed", None)
    if row["exit_signal"] is None:  # otherwise an init that reaps late left a zombie, which shows it
        assert row["told"] == "exited by itself, exit status unknown (its `run` exited without reporting its end)"
    assert world.count("agent.crashed", name="alpha") == 1


@needs_root
def test_the_run_of_an_agent_that_dropped_root_is_believed(world: World) -> None:
    """Its owner is another uid by then, which can neither read nor write the report of root's `run`."""
    world.dir.chmod(0o755)
    world.start()
    go = world.dir / "go"
    command = ("/bin/sh", "-c", f'until [ -e "{go}" ]; do sleep 0.05; done; exit 6')
    wrapper = world.run("dropper", "setpriv", "--reuid=12003", "--clear-groups", *command)
    world.wait_event("agent.owner_changed", name="dropper", uid=12003)
    assert world.stop() == 0
    go.touch()
    wrapper.wait(20)

    world.start()

    row = ended(world, "dropper")
    assert (row["owner_uid"], row["status"], row["exit_code"]) == (12003, "failed", 6)


@needs_root
def test_another_uids_report_has_no_effect(world: World) -> None:
    """A success written by a stranger does not count, with a reason logged; a stranger cannot invent an agent."""
    world.start()
    wrapper = waiting(world, "alpha", "exit 3")
    world.wait_event("agent.pid_known", name="alpha")
    assert world.stop() == 0
    end(world, "alpha", wrapper)
    [report] = reports(world)
    report.write_text(report.read_text().replace('"exit_code":3', '"exit_code":0'))
    os.chown(report, 12003, -1)
    told = json.loads(report.read_text())
    other = report.with_name("f" * 32)
    told["registration"] |= {"agent_id": "f" * 32, "name": "ghost"}
    other.write_text(json.dumps(told))
    os.chown(other, 12003, -1)

    world.start()

    row = ended(world, "alpha")
    assert (row["status"], row["exit_code"]) == ("failed", None)
    assert f"the report that its `run` left cannot be read: {report.name} is not a file of uid 0" in row["told"]
    said = [e["why"] for e in world.events() if e["event"] == "row.quarantined"]
    assert any(f"{other}: {other.name} is not a file of uid 0" in why for why in said)
    assert "ghost" not in world.agents()
