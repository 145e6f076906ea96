"""Command hooks that behave badly in every way we know of: each ends at its deadline, and nothing of it stays."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.owner.repositories import context
from watchdog.core import hooks
from watchdog.core.hooks import HookContext, HookOutcome, HookResult
from watchdog.owner.command_hook import STDOUT_LIMIT, environment

# A process of its own, as the helper is: it becomes subreaper, and none of the tests' own children are its.
DRIVER = """
import json, sys
from watchdog.core import hooks
from watchdog.owner import bounded_child
from watchdog.owner.command_hook import run_command
bounded_child.become_subreaper()
request = json.loads(sys.argv[1])
result = run_command(request["argv"], hooks.context_of(request["context"]), request["seconds"], None)
print(json.dumps(hooks.result_json(result)))
"""


def run(*argv: str, seconds: float = 20.0, about: HookContext | None = None) -> HookResult:
    """One command hook, contained."""
    request = {"argv": argv, "context": hooks.context_json(about or context()), "seconds": seconds}
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(request)], capture_output=True, text=True, timeout=60, check=True
    )
    return hooks.result_of(json.loads(ran.stdout))


def alive(marker: str) -> list[str]:
    """Living processes with this word in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in line and b"pytest" not in line:
            found.append(pid)
    return found


def test_exit_status_0_is_done_and_the_words_are_the_message() -> None:
    """No JSON needed."""
    assert run("sh", "-c", "echo all good") == HookResult(HookOutcome.DONE, "all good", {})


def test_json_on_stdout_is_the_result() -> None:
    """The contract of built-in hooks holds for commands too."""
    said = '{"outcome": "kept", "message": "busy", "details": {"n": 1}}'
    assert run("echo", said) == HookResult(HookOutcome.KEPT, "busy", {"n": 1})


@pytest.mark.parametrize("said", ['{"outcome": "perfect"}', "[1]", "{", '"x"', "[" * 60_000, '{"outcome": 1}'])
def test_json_that_is_no_result_is_only_words(said: str) -> None:
    """Nothing that a hook prints can break the run."""
    result = run("printf", "%s", said)
    assert result.outcome is HookOutcome.DONE
    assert result.message == said[: hooks.MESSAGE_LIMIT]


def test_the_context_is_json_on_stdin() -> None:
    """One object with what is known of the agent."""
    result = run("cat", about=context(worktree="/w", task_id="T-1"))
    assert json.loads(result.message)["worktree"] == "/w"
    assert json.loads(result.message)["task_id"] == "T-1"


@pytest.mark.parametrize(
    ("script", "said"), [("echo no >&2; exit 3", "exit status 3: no"), ("kill -9 $$", "signal 9: {}")]
)
def test_any_other_end_is_failed(script: str, said: str) -> None:
    """The exit status judges, whatever stdout says."""
    result = run("sh", "-c", f"echo '{{}}'; {script}")
    assert result.outcome is HookOutcome.FAILED
    assert result.message.startswith(said)


def test_a_missing_program_is_failed() -> None:
    """With its name and the system's word."""
    result = run("/no/such/program")
    assert result.outcome is HookOutcome.FAILED
    assert "/no/such/program: No such file" in result.message


def test_who_fails_without_a_word_has_no_colon_after_it() -> None:
    """`exit status 1: ` looks as if the rest were lost."""
    assert run("false").message == "exit status 1"


def test_a_grandchild_that_keeps_the_pipe_open_is_not_waited_for() -> None:
    """Case H16: judged by the exit of the hook itself."""
    began = time.monotonic()
    result = run("sh", "-c", "sleep 6001 & echo done")

    assert result.outcome is HookOutcome.DONE
    assert result.message == "done"
    assert result.details == {"leftover_processes_ended": 1}
    assert time.monotonic() - began < 100
    assert alive("6001") == []


def test_at_the_deadline_the_whole_tree_ends() -> None:
    """One that ignores TERM, forks twice into sessions of its own and sleeps for ever."""
    script = "trap '' TERM HUP; echo begun; (setsid sh -c 'setsid sleep 6002 & sleep 6002' &); sleep 6002; sleep 6002"
    began = time.monotonic()

    result = run("sh", "-c", script, seconds=1.0)

    assert result.outcome is HookOutcome.TIMEOUT
    assert "begun" in result.message
    assert time.monotonic() - began < 100
    assert alive("6002") == []


def test_a_stopped_hook_ends_at_the_deadline() -> None:
    """A process that stopped itself takes TERM only after CONT, and KILL always."""
    assert run("sh", "-c", "kill -STOP $$", seconds=0.5).outcome is HookOutcome.TIMEOUT


def test_a_flood_is_read_and_dropped() -> None:
    """64 KiB are kept, the hook is not held up by a full pipe."""
    result = run("sh", "-c", "head -c 50000000 /dev/zero | tr '\\0' x; echo done >&2")
    assert result.outcome is HookOutcome.DONE
    assert len(result.message) == hooks.MESSAGE_LIMIT


def test_an_endless_flood_ends_at_the_deadline() -> None:
    """Reading never waits longer than the deadline."""
    assert run("yes", seconds=1.0).outcome is HookOutcome.TIMEOUT


def test_huge_json_is_cut_and_so_only_words() -> None:
    """What does not fit is no result."""
    script = f"import json; print(json.dumps(dict(outcome='kept', message='x' * {STDOUT_LIMIT})))"
    assert run(sys.executable, "-c", script).outcome is HookOutcome.DONE


def test_no_descriptor_of_ours_is_passed_on() -> None:
    """0, 1, 2 and the one that `ls` opens."""
    assert run("ls", "/proc/self/fd").message.split() == ["0", "1", "2", "3"]


def test_the_marker_of_the_agent_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sweep would take the hook for the dead agent's tree; tokens and git's variables stay outside too."""
    for key in ("AGENT_WATCHDOG_ID", "NOTIFY_SOCKET", "GIT_DIR", "SECRET_TOKEN"):
        monkeypatch.setenv(key, "x")

    variables = environment(context(worktree="/w"))

    assert not {"AGENT_WATCHDOG_ID", "NOTIFY_SOCKET", "GIT_DIR", "SECRET_TOKEN"} & set(variables)
    assert variables["AGENT_WATCHDOG_ENDED_AGENT"] == "a" * 32
    assert variables["AGENT_WATCHDOG_WORKTREE"] == "/w"
    assert "AGENT_WATCHDOG_TEMP_DIR" not in variables
