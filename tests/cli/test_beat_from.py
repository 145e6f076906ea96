"""`agent-watchdog beat --from VENDOR`: in a real process tree below a fake agent, against a fake daemon."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Answer, FakeDaemon, Request
from tests.fake_vendor import AGENT, EVENT, FakeVendor
from tests.world import wait_for
from watchdog.cli import beat_from as vendors

QUIET = {"status": 0, "stdout": "", "stderr": ""}


@pytest.fixture
def start(environment: dict[str, str]) -> Iterator[Callable[..., FakeVendor]]:
    """Starts fake vendors, which end with the test."""
    with contextlib.ExitStack() as started:

        def one(vendor: str = "claude", **more: str) -> FakeVendor:
            return started.enter_context(FakeVendor(vendor, {**environment, **more}, f"{PROGRAM} beat --from {vendor}"))

        yield one


def knowing(*words: str, stop: str | None = None) -> Callable[[Request], Answer | None]:
    """A daemon that knows the agents of these words, and asks each to stop."""

    def answer(request: Request) -> Answer | None:
        if not request.path.endswith("/beat"):
            return None
        if request.path.split("/")[-2] not in words:
            return 404, {"error": "agent_not_found", "message": "who?"}
        return None if stop is None else (200, {"stop": {"reason": stop, "deadline_seconds": 30}})

    return answer


def test_a_known_agent_beats_by_one_request(daemon: FakeDaemon, start: Callable[..., FakeVendor]) -> None:
    """Its pid names it, which lives while its hook runs."""
    agent = start()
    daemon.answer = knowing(str(agent.pid))
    assert agent.does(EVENT) == QUIET
    assert [(r.method, r.path, r.body) for r in daemon.requests] == [
        ("POST", f"/v1/agents/{agent.pid}/beat", {"state": "working", "tool": "Read", "type": "claude"})
    ]


def test_an_unknown_agent_is_registered_at_whatever_comes_first(
    daemon: FakeDaemon, start: Callable[..., FakeVendor]
) -> None:
    """The session may be older than the hooks; the daemon may have been away when it began."""
    agent = start("codex")
    known: list[str] = []

    def answer(request: Request) -> Answer | None:
        if request.path == "/v1/agents":
            known.append(str(agent.pid))
        return knowing(*known)(request)

    daemon.answer = answer
    assert agent.does({**EVENT, "hook_event_name": "SessionStart"}) == QUIET
    body = {"name": f"codex-api-{agent.pid}", "pid": agent.pid, "type": "codex", "source": "hook"}
    path = f"/v1/agents/{agent.pid}/beat"
    assert [(r.path, r.body if r.path == "/v1/agents" else {}) for r in daemon.requests] == [
        (path, {}),
        ("/v1/agents", body),
        (path, {}),
    ]


def test_an_agent_within_an_agent_is_its_child(daemon: FakeDaemon, start: Callable[..., FakeVendor]) -> None:
    """The marker is inherited; who it is of is another process, which did not only start this one."""
    agent = start(AGENT_WATCHDOG_ID="a" * 32)
    daemon.answer = lambda request: (
        (200, {"agent": {"pid": os.getpid(), "status": "running"}}) if request.method == "GET" else knowing()(request)
    )
    # Only what begins a session waits long enough for a daemon on a busy machine; else the next event registers it.
    wait_for(lambda: agent.does(EVENT) and daemon.seen("POST", "/v1/agents"), "it is registered")
    assert daemon.seen("POST", "/v1/agents")[0].body["parent"] == "a" * 32


def test_a_registered_shell_beats_by_the_program_that_it_started(
    daemon: FakeDaemon, environment: dict[str, str]
) -> None:
    """`eval "$(agent-watchdog register --pid $$ …)"; claude`: the shell is the agent, and outlives the session."""
    shell = subprocess.Popen(
        ["bash", "-c", f'(exec -a claude "{sys.executable}" "{AGENT}" "{PROGRAM} beat --from claude"); :'],
        env={**environment, "AGENT_WATCHDOG_ID": "b" * 32},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    daemon.answer = lambda request: (
        (200, {"agent": {"pid": shell.pid, "status": "running"}})
        if request.method == "GET"
        else knowing("b" * 32)(request)
    )
    shell.communicate(json.dumps({**EVENT, "hook_event_name": "SessionEnd", "reason": "other"}) + "\n", timeout=60)
    assert (daemon.requests[-1].path, daemon.requests[-1].body) == (
        f"/v1/agents/{'b' * 32}/beat",
        {"promises": False, "type": "claude"},
    )
    assert not daemon.seen("POST", "/v1/agents")


@pytest.mark.parametrize("vendor", ["claude", "codex", "gemini", "opencode"])
def test_a_stop_comes_in_the_vendors_words(vendor: str, daemon: FakeDaemon, start: Callable[..., FakeVendor]) -> None:
    """And nothing but one JSON object on stdout."""
    agent = start(vendor)
    daemon.answer = knowing(str(agent.pid), stop="cancelled by uid 0")
    names = {"gemini": ("BeforeTool", "AfterTool"), "opencode": ("tool.execute.before", "tool.execute.after")}
    answer = agent.does({"loop": [0.01, *names.get(vendor, ("PreToolUse", "PostToolUse"))]})
    assert (answer["status"], answer["stderr"]) == (0, "")
    assert "cancelled by uid 0" in json.dumps(json.loads(answer["stdout"]))


@pytest.mark.parametrize(
    ("vendor", "event", "rests"),
    [
        ("claude", {"hook_event_name": "PostToolUse", "tool_name": "Read"}, True),
        ("claude", {"hook_event_name": "PostToolUse", "tool_name": "Read", "agent_id": "t"}, False),
        ("codex", {"hook_event_name": "PreToolUse", "tool_name": "Read"}, False),
        ("gemini", {"hook_event_name": "AfterTool", "tool_name": "Read"}, True),
    ],
)
def test_the_answer_that_stops_is_told_as_the_end_of_the_turn(
    vendor: str, event: dict[str, str], rests: bool, daemon: FakeDaemon, start: Callable[..., FakeVendor]
) -> None:
    """Claude Code runs no Stop after it; a subagent's end, or a call that is denied, ends no turn."""
    agent = start(vendor)
    daemon.answer = knowing(str(agent.pid), stop="cancelled by uid 0")
    answer = agent.does({**EVENT, **event})
    assert "cancelled by uid 0" in answer["stdout"]
    said = [request.body for request in daemon.requests]
    last = {key: word for key, word in said[-1].items() if key != "session"}
    assert (last == {"state": "idle", "tool": "", "type": vendor}) is rests
    assert len(said) == 1 + rests


SCRIPT = """#!/bin/bash
while read -r event; do printf '%s' "$event" | {hook}; done
:
"""


@pytest.mark.parametrize(
    ("name", "last"), [("claude", {"state": "done", "tool": ""}), ("wrapped", {"promises": False})]
)
def test_a_script_that_calls_the_hooks_is_known_by_its_marker(
    name: str, last: dict[str, object], daemon: FakeDaemon, environment: dict[str, str], tmp_path: Path
) -> None:
    """Nothing but launchers stands between it and us. Where its name is the vendor's the session's end is its own."""
    script = tmp_path / name
    script.write_text(SCRIPT.format(hook=f"{PROGRAM} beat --from claude"))
    script.chmod(0o755)
    own = "d" * 32
    with subprocess.Popen(
        [str(script)], env={**environment, "AGENT_WATCHDOG_ID": own}, stdin=subprocess.PIPE, text=True
    ) as agent:
        daemon.answer = lambda request: (
            (200, {"agent": {"pid": agent.pid, "status": "running"}})
            if request.method == "GET"
            else knowing(own)(request)
        )
        events = [EVENT, {**EVENT, "hook_event_name": "SessionEnd", "reason": "other"}]
        agent.communicate("".join(json.dumps(event) + "\n" for event in events), timeout=60)
    said = [request for request in daemon.requests if request.method == "POST"]
    assert [request.path for request in said] == [f"/v1/agents/{own}/beat"] * 2
    assert said[0].body == {"state": "working", "tool": "Read", "type": "claude"}
    assert said[1].body == {**last, "type": "claude"}


def test_a_hook_of_another_program_within_an_agent_is_said_in_its_why(
    daemon: FakeDaemon, environment: dict[str, str]
) -> None:
    """An orchestrator that runs a program nobody knows: its states are not the orchestrator's."""
    inside = {**environment, "AGENT_WATCHDOG_ID": "e" * 32}
    with FakeVendor("unheard-of", inside, f"{PROGRAM} beat --from claude") as other:
        daemon.answer = lambda request: (
            (200, {"agent": {"pid": os.getpid(), "status": "running"}}) if request.method == "GET" else None
        )
        assert other.does(EVENT) == QUIET
    (said,) = [request for request in daemon.requests if request.method == "POST"]
    assert said.path == f"/v1/agents/{'e' * 32}/beat"
    assert said.body == {
        "unheard": "a hook of claude ran in it, but no ancestor of this process is claude: its report is ignored"
    }


def test_an_event_without_end_is_a_sign_of_life(daemon: FakeDaemon, start: Callable[..., FakeVendor]) -> None:
    """A tool's whole output is in its event; of one that is too long to be read no state is known."""
    agent = start()
    daemon.answer = knowing(str(agent.pid))
    assert agent.does({**EVENT, "tool_response": "x" * (17 << 20)}) == QUIET
    assert daemon.requests[-1].body == {"promises": False, "type": "claude"}


def test_outside_a_vendors_program_nothing_is_said(environment: dict[str, str], daemon: FakeDaemon) -> None:
    """No beat, exit 0; with AGENT_WATCHDOG_DEBUG it says why. The same for words that are no event."""
    for vendor, text in (("gemini", json.dumps(EVENT)), ("gemini", "nonsense"), ("gemini", "")):
        for debug in ({}, {"AGENT_WATCHDOG_DEBUG": "1"}):
            done = subprocess.run(
                [PROGRAM, "beat", "--from", vendor],
                env={**environment, **debug, "AGENT_WATCHDOG_ID": "c" * 32},
                input=text,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.returncode, done.stdout, bool(done.stderr)) == (0, "", bool(debug))
    assert not [request for request in daemon.requests if request.method == "POST"]


def test_a_daemon_that_hangs_costs_a_moment(
    environment: dict[str, str], runtime: Path, start: Callable[..., FakeVendor]
) -> None:
    """It takes the connection and never answers; one that is not there costs nothing."""
    agent = start()
    began = time.monotonic()
    assert agent.does(EVENT) == QUIET
    without = time.monotonic() - began
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(runtime / "agent-watchdog" / "control.sock"))
        listener.listen(8)
        began = time.monotonic()
        assert agent.does(EVENT) == QUIET
        assert time.monotonic() - began < 4 * without + 10  # 0.05; on a busy machine far more than it took to start


def test_stdin_that_does_not_end_is_not_waited_for(environment: dict[str, str]) -> None:
    """A vendor that keeps the pipe open must not stand still for us."""
    with subprocess.Popen([PROGRAM, "beat", "--from", "claude"], env=environment, stdin=subprocess.PIPE) as process:
        assert process.wait(60) == 0


SESSION = (9, "claude", ["claude"], "/n/@anthropic-ai/claude-code/bin/claude.exe")
SERVICE = (7, "claude.exe", ["claude", "daemon", "run"], "/n/@anthropic-ai/claude-code/bin/claude.exe")
RUN = (8, "agent-watchdog", ["python", "start.py"], "/usr/bin/python3")
SHELL = (5, "sh", ["sh", "-c", "claude --bg"], "/usr/bin/dash")


@pytest.mark.parametrize(
    ("chain", "own", "left"),
    [
        ([SESSION, SERVICE, SHELL], "", 1),  # the marker is that of whoever started the service
        ([SESSION, RUN, SERVICE, SHELL], "a1", 2),  # a `run` below it: its own
        ([SESSION, SHELL], "a1", 2),
    ],
)
def test_what_stands_above_a_shared_service_says_nothing(
    monkeypatch: pytest.MonkeyPatch, chain: list[vendors.Process], own: str, left: int
) -> None:
    """Neither of whom a session runs in, nor whose it is."""
    monkeypatch.setenv("AGENT_WATCHDOG_ID", "a1")
    speech = vendors._Speech("claude", {**EVENT}, chain, "/s")
    speech._below_a_service()
    assert (speech._own, len(speech._chain)) == (own, left)
