"""How an agent under `agent-watchdog run` speaks: real sd_notify clients, and what reaches the daemon of it."""

import json
import os
import shutil
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Answer, FakeDaemon, Request, Start, wait_for
from tests.fake_vendor import AGENT

needs_systemd_notify = pytest.mark.skipif(
    shutil.which("systemd-notify") is None, reason="systemd-notify is not installed"
)


def run_python(start: Start, program: str, *options: str) -> None:
    """An agent that is a Python program, to its end."""
    wrapper = start("run", "--stall-after", "1m", *options, "--", sys.executable, "-c", textwrap.dedent(program))
    _, stderr = wrapper.communicate(timeout=60)
    assert wrapper.returncode == 0, stderr


def test_sdnotify_is_a_client(start: Start, daemon: FakeDaemon) -> None:
    """PyPI's library, which connects once; its READY=1 promises nothing, its WATCHDOG=1 does."""
    run_python(
        start,
        """
        import sdnotify, time
        notifier = sdnotify.SystemdNotifier()
        notifier.notify("READY=1")
        time.sleep(0.7)
        notifier.notify("WATCHDOG=1")
        time.sleep(0.7)
        notifier.notify("STATUS=compiling")
        time.sleep(0.7)
        """,
    )
    assert daemon.beats() == [
        {"promises": False},
        {"state": "working", "promises": True},
        {"note": "compiling", "promises": False},
    ]


@needs_systemd_notify
def test_systemd_notify_without_waiting_is_a_client(start: Start, daemon: FakeDaemon) -> None:
    """It is gone before its message is read; the kernel's credentials are enough."""
    script = "systemd-notify --no-block WATCHDOG=1; exec sleep 60"
    start("run", "--", "sh", "-c", script)
    assert wait_for(daemon.beats) == [{"state": "working", "promises": True}]


@needs_systemd_notify
def test_systemd_notify_that_waits_is_released(start: Start, daemon: FakeDaemon) -> None:
    """BARRIER=1: its descriptor is closed after the message was taken; else it would wait 5 s and fail."""
    wrapper = start("run", "--", "systemd-notify", "WATCHDOG=1")
    assert wrapper.wait(60) == 0
    script = "systemd-notify WATCHDOG=1 && echo released; exec sleep 60"
    wrapper = start("run", "--", "sh", "-c", script)
    assert wrapper.stdout is not None
    assert wrapper.stdout.readline() == "released\n"
    assert wait_for(daemon.beats)[-1] == {"state": "working", "promises": True}


def test_a_childs_own_ready_is_not_the_agents(start: Start, daemon: FakeDaemon) -> None:
    """READY=1, STATUS= and STOPPING=1 count from the main process; WATCHDOG=1 from anybody."""
    run_python(
        start,
        """
        import subprocess, sys, time
        send = "import sdnotify, sys; sdnotify.SystemdNotifier().notify(sys.argv[1])"
        for message in ("READY=1", "STATUS=mine", "STOPPING=1", "WATCHDOG=1"):
            subprocess.run([sys.executable, "-c", send, message], check=True)
        time.sleep(0.3)
        """,
    )
    assert daemon.beats() == [{"state": "working", "promises": True}]


@needs_systemd_notify
def test_a_run_within_an_agent_does_not_beat_for_that_one(start: Start, daemon: FakeDaemon) -> None:
    """NOTIFY_SOCKET is the outer agent's there, no service manager's: nothing is passed on to it."""
    script = "systemd-notify --no-block --ready WATCHDOG=1; sleep 1"
    wrapper = start("run", "--name", "outer", "--", PROGRAM, "run", "--name", "inner", "--", "sh", "-c", script)
    assert wrapper.wait(60) == 0
    ids = {r.body["name"]: r.body["agent_id"] for r in daemon.seen("POST", "/agents")}
    assert {r.path.split("/")[3] for r in daemon.seen("POST", "/beat")} == {ids["inner"]}


def test_the_first_beat_goes_at_once_and_the_next_ones_together(start: Start, daemon: FakeDaemon) -> None:
    """At most one in 500 ms; a lease that came in between is not lost."""
    run_python(
        start,
        """
        import sdnotify, time
        notify = sdnotify.SystemdNotifier().notify
        notify("WATCHDOG=1")
        time.sleep(0.2)
        notify("X_AGENT_STATE=blocked\\nX_AGENT_SILENT_FOR=600\\nX_AGENT_TOOL=make")
        for _ in range(300):
            notify("X_AGENT_PROGRESS=3")
        time.sleep(1.2)
        """,
    )
    first, second = daemon.seen("POST", "/beat")
    assert second.at - first.at > 0.4
    assert second.body["state"] == "blocked"
    assert second.body["tool"] == "make"
    assert second.body["progress"] == 3
    assert second.body["silent_for_seconds"] == pytest.approx(600, abs=1)


def test_the_last_word_waits_for_a_daemon_that_is_away(
    start: Start, absent_daemon: FakeDaemon, environment: dict[str, str], tmp_path: Path
) -> None:
    """It is passed on with its age when the daemon comes, merged into one."""
    script = f"{PROGRAM} beat --silent-for 1h; {PROGRAM} beat --note late; touch said; exec sleep 60"
    began = time.monotonic()
    start("run", "--", "sh", "-c", script)
    wait_for((tmp_path / "said").exists)
    said = time.monotonic()
    absent_daemon.start()
    beat = wait_for(lambda: absent_daemon.seen("POST", "/beat"))[0]
    assert beat.body["note"] == "late"
    assert float(str(beat.body["silent_for_seconds"])) > 3590
    assert beat.at - said - 0.1 < float(str(beat.body["age_seconds"])) < beat.at - began
    assert [r.method for r in absent_daemon.requests] == ["POST", "POST"]


def under_run(start: Start, place: Path, events: list[dict[str, str]]) -> None:
    """A program of Codex' name under `run`, whose hooks were given these events."""
    orders, told = place / "orders", place / "told"
    os.mkfifo(orders)
    hook = f"{PROGRAM} beat --from codex; echo >>{told}"
    start("run", "--", "bash", "-c", f"exec -a codex {sys.executable} {AGENT} '{hook}' 0<>{orders}")
    with orders.open("w") as out:
        out.writelines(json.dumps({"session_id": "s", "cwd": "/srv", **event}) + "\n" for event in events)
    wait_for(lambda: told.exists() and len(told.read_bytes()) == len(events))


def test_a_mere_sign_of_life_reaches_a_daemon_that_comes_later(
    start: Start, absent_daemon: FakeDaemon, tmp_path: Path
) -> None:
    """It renews, and promises nothing: so it goes on where another daemon has taken the agent over."""
    under_run(start, tmp_path, [{"hook_event_name": "PreCompact"}])
    absent_daemon.start()
    assert wait_for(absent_daemon.beats) == [{"promises": False}]


def test_what_subagents_do_waits_for_a_daemon_that_is_away(
    start: Start, absent_daemon: FakeDaemon, tmp_path: Path
) -> None:
    """One that was begun then, and hangs, was never known: its agent counted as idle without limit."""
    turn = [
        {"hook_event_name": "SubagentStart", "agent_id": "before"},
        {"hook_event_name": "UserPromptSubmit", "prompt": "go"},
        {"hook_event_name": "SubagentStart", "agent_id": "short"},
        {"hook_event_name": "SubagentStart", "agent_id": "long"},
        {"hook_event_name": "SubagentStop", "agent_id": "short"},
        {"hook_event_name": "Stop"},
    ]
    under_run(start, tmp_path, turn)
    absent_daemon.start()
    wait_for(lambda: len(absent_daemon.beats()) > 3)
    beats = absent_daemon.beats()
    assert (beats[0]["state"], beats[0]["promises"]) == ("idle", True)
    ended = {"promises": False, "goes_on": False, "thread": "short"}
    begun = [{"promises": False, "goes_on": True, "thread": name} for name in ("before", "long")]
    assert sorted(beats[1:], key=lambda beat: str(beat["thread"])) == [*begun, ended]


def test_a_beat_that_was_under_way_when_the_daemon_died_is_told_again(start: Start, daemon: FakeDaemon) -> None:
    """No answer is no delivery."""
    refused: list[Request] = []

    def away_once(request: Request) -> Answer | None:
        if request.path.endswith("/beat") and not refused:
            refused.append(request)
            return 503, {"error": "registry_unavailable", "message": "in a moment"}
        return None

    daemon.answer = away_once
    start("run", "--", "sh", "-c", f"{PROGRAM} beat --state waiting; exec sleep 60")
    first, second = wait_for(lambda: daemon.seen("POST", "/beat")[1:] and daemon.seen("POST", "/beat"))
    assert (first.body["state"], second.body["state"]) == ("waiting", "waiting")
    assert float(str(second.body["age_seconds"])) >= 0.9


def test_none_of_two_hundred_beats_is_lost(start: Start, daemon: FakeDaemon, tmp_path: Path) -> None:
    """Senders that are gone at once, on a queue of ten: the wrapper reads as fast as they write."""
    run_python(
        start,
        f"""
        import subprocess, time
        for n in range(0, 200, 20):
            jobs = [subprocess.Popen(["{PROGRAM}", "beat", "--progress", str(n + i)]) for i in range(20)]
            assert [job.wait() for job in jobs] == [0] * 20
        time.sleep(0.6)
        """,
    )
    seen = {float(str(beat["progress"])) for beat in daemon.beats()}
    assert max(seen) >= 180, "the last batch"


def test_no_word_of_ours_comes_between_the_agent_and_its_screen(start: Start, daemon: FakeDaemon) -> None:
    """stderr belongs to the agent once it runs, whatever the daemon does."""
    daemon.answer = lambda r: (500, {"message": "broken"}) if r.path.endswith("/beat") else None
    wrapper = start("run", "--stall-after", "1m", "--", "sh", "-c", f"{PROGRAM} beat; sleep 0.3")
    assert wrapper.communicate(timeout=60)[1] == ""


@pytest.mark.parametrize("words", [1, 2])
def test_a_last_word_that_crosses_with_its_end_is_no_complaint(
    start: Start, daemon: FakeDaemon, tmp_path: Path, words: int
) -> None:
    """The daemon saw the agent's end first. One that speaks again lives, although the daemon takes it for ended."""
    daemon.answer = lambda r: (409, {"message": "it has ended"}) if r.path.endswith("/beat") else None
    script = "for n in 1 2; do {} beat; while [ ! -e said$n ]; do sleep 0.02; done; done"
    wrapper = start("run", "--name", "a", "--stall-after", "1m", "--", "sh", "-c", script.format(PROGRAM))
    wait_for(lambda: len(daemon.beats()) == 1)
    if words == 2:
        (tmp_path / "said1").touch()
        wait_for(lambda: len(daemon.beats()) == 2)
    wrapper.terminate()
    told = "agent-watchdog run: a: it has ended\n"
    assert wrapper.communicate(timeout=60)[1] == ("" if words == 1 else told)
