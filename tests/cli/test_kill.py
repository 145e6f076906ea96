"""The verbs that end an agent, or keep hands off, against the real control socket."""

import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.conftest import told
from tests.control.office import ALICE, BOB, ROOT, Office
from watchdog.cli import verbs


def test_kill_prints_json_with_the_keys_of_the_command(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """One target: one object; several: the summary. Flags reach the worker."""
    office.register("alpha", task="T-1")
    office.register("beta")
    gamma = office.register("gamma")
    words = ["kill", "alpha", "--json", "--grace", "30s", "--no-cleanup", "--reason", "why not"]
    status, out, _ = told(capsys, *words)
    answer = json.loads(out)
    assert (status, answer["success"], answer["task_id"]) == (0, True, "T-1")
    options = office.worker.asked[0][2]
    assert (options.grace, options.cleanup, options.text) == (timedelta(seconds=30), False, "why not")
    for word in (gamma[:8], gamma):
        status, out, _ = told(capsys, "kill", word, "--json")
        assert (status, json.loads(out)["agent_id"]) == (0, gamma)
    status, out, _ = told(capsys, "kill", "stalled", "all", "--json", "--force")
    answer = json.loads(out)
    assert (status, answer["agents_killed"], answer["killed_agents"][0]["name"]) == (0, 1, "beta")
    status, out, _ = told(capsys, "kill", "alpha")
    assert (status, out.split(": ")[1]) == (0, "already dead")


def test_what_was_not_cleaned_up_stands_beside_how_it_ended(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """The same words as without a failed hook, which has a line of its own; it said "Agent terminated gracefully"."""
    office.worker.more = {"cleanup": [{"hook": "mine", "outcome": "failed", "message": "exit status 1"}]}
    office.register("alpha", pid=office.process())
    how = office.ask("POST", "/v1/kill", {"targets": ["alpha"]})[1]["how"]
    office.register("alpha", pid=office.process())
    status, out, err = told(capsys, "kill", "alpha")
    assert status == 1
    assert err.rstrip().endswith(f": {how}; not everything was cleaned up:")
    assert "  cleanup mine: failed; exit status 1\n" in out


def test_kill_ends_with_1_when_any_target_lives_on(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """Each failure is a line on stderr; the others are ended."""
    office.register("alpha")
    office.register("beta")
    office.worker.stubborn.add("beta")
    status, out, err = told(capsys, "kill", "alpha", "beta", "nobody")
    assert status == 1
    assert "alpha" in out
    assert "): something of it lives" in err and "no agent is called 'nobody'" in err
    assert told(capsys, "kill", "beta")[0] == 1
    office.ask("POST", "/v1/hold", {"targets": ["beta"]})
    status, _, err = told(capsys, "kill", "beta")
    assert (status, "held" in err) == (1, True)


@pytest.mark.skipif(not ROOT, reason="needs root: other people's agents")
def test_kill_ends_with_77_when_all_that_live_on_are_not_ours(office: Office) -> None:
    """Permission is the only reason: 77; one other reason among them: 1."""
    office.register("alpha", ALICE)
    office.register("mine", BOB)
    office.worker.stubborn.add("mine")
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from watchdog.cli import verbs; "
    code += "sys.exit(verbs.main(sys.argv[1:]))"
    root = str(Path(verbs.__file__).parents[2])

    def as_bob(*words: str) -> int:
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, root, *words],
            user=BOB,
            group=BOB,
            extra_groups=[],
            env={"AGENT_WATCHDOG_SOCKET": office.socket_path},
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode

    assert as_bob("kill", "alpha") == 77
    assert as_bob("kill", "alpha", "mine") == 1
    assert as_bob("why", "alpha") == 77
    assert as_bob("events", "--agent", "alpha") == 77
    assert as_bob("hold") == 77
    assert as_bob("list") == 0


def test_a_dry_run_says_who_and_ends_nobody(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """For everything that destroys."""
    pid = office.process()
    office.register("alpha", pid=pid, task="T-1")
    office.end_process(pid)
    for words in (["kill", "alpha"], ["stop", "all"], ["cancel", "T-1"], ["remove", "alpha"]):
        status, out, _ = told(capsys, *words, "--dry-run")
        assert (status, "alpha" in out, "would be" in out) == (0, True, True), (words, out)
    assert office.worker.asked == []


@pytest.mark.parametrize(
    "words", [("hold", "--for"), ("kill", "stalled", "--stall-after"), ("register", "--name", "a", "--ttl")]
)
def test_no_duration_at_all_is_refused_by_the_flag_s_own_name(
    office: Office, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """The request's key, which the daemon names, was never typed."""
    status, _, error = told(capsys, *words, "0s")
    assert status == 64
    assert f"{words[-1]}: must be more than 0" in error


def test_hold_unhold_stop_cancel_remove(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """The small verbs do what they say, with --json too."""
    office.register("alpha", task="T-1")
    status, out, _ = told(capsys, "hold", "alpha", "--for", "2h", "--reason", "debugging")
    assert (status, "held: debugging" in out) == (0, True)
    assert "HELD: debugging" in told(capsys, "why", "alpha")[1]
    assert "held: debugging" in told(capsys, "list")[1]
    assert told(capsys, "unhold", "alpha")[0] == 0
    assert told(capsys, "hold", "--reason", "night")[0] == 0
    assert "all agents: night" in told(capsys, "status")[1]
    status, out, _ = told(capsys, "unhold", "--json")
    assert json.loads(out)["success"]
    status, out, _ = told(capsys, "cancel", "T-1", "--json")
    assert (status, json.loads(out)["agents_killed"]) == (0, 1)
    office.register("beta")
    assert told(capsys, "stop", "beta")[0] == 0
    assert told(capsys, "remove", "beta")[0] == 0
    assert told(capsys, "status", "--json")[0] == 0


def test_a_kill_tells_what_was_done_and_not_what_had_nothing_to_do(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is paged reads four lines of nothing else. What was not run for want of another is told; `why` has all."""
    office.register("alpha")
    office.worker.more = {
        "cleanup": [
            {"hook": "pane", "outcome": "nothing", "message": "it sat in no pane that is known"},
            {"hook": "worktree", "outcome": "kept", "message": "kept /w: it is not clean"},
            {"hook": "board", "outcome": "nothing", "message": "not run, it needs worktree", "needs": "worktree"},
        ]
    }
    status, out, _ = told(capsys, "kill", "alpha")
    assert (status, "pane" in out) == (0, False)
    assert (
        "  cleanup worktree: kept; /w: it is not clean\n  cleanup board: nothing; not run, it needs worktree\n" in out
    )


@pytest.mark.parametrize("verb", ["kill", "stop"])
def test_a_pane_that_was_not_made_for_the_agent_is_no_news(
    office: Office, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """Case O27: it is the shell in which it was started, or a hook had nothing to do; the rest is told."""
    office.register("alpha")
    for told_of, outcome, why in (
        (False, "kept", "was left open: it was not made for the agent"),
        (True, "kept", "stays: in use by vim"),
        (False, "nothing", "it has no pane"),
        (True, "failed", "was left open"),
    ):
        office.worker.more = {"cleanup": [{"hook": "pane", "outcome": outcome, "message": f"tmux pane %1 {why}"}]}
        assert ("pane" in told(capsys, verb, "alpha")[1]) is told_of, (outcome, why)
        office.register("alpha")


def test_a_kill_names_the_child_agents_that_it_spares(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """They work on for nobody; who meant them, too, says --children."""
    parent = office.register("alpha")
    office.register("beta", parent=parent)
    assert "1 process ended; child agents still running (--children): beta" in told(capsys, "kill", "alpha")[1]
    assert "live on" not in told(capsys, "kill", "beta")[1]


def test_a_remove_says_that_it_removed(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """ "There was nobody to end" alone leaves open whether the row is closed."""
    office.register("alpha")
    assert "): removed: 1 process ended" in told(capsys, "remove", "alpha")[1]


def test_a_cancel_says_what_became_of_the_task(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where its agent had ended before: "already dead" alone leaves open whether the task goes on."""
    office.register("alpha", task="T-1")
    office.register("beta", task="T-2")
    assert told(capsys, "kill", "alpha")[0] == 0
    for _ in range(2):
        status, out, _ = told(capsys, "cancel", "T-1")
        assert (status, "): task T-1 is cancelled; its agent: already dead: killed" in out) == (0, True)
    assert "): task T-2 is cancelled; its agent: 1 process ended" in told(capsys, "cancel", "T-2")[1]
    status, _, err = told(capsys, "cancel", "T-9")
    assert (status, "no agent has or had task 'T-9'" in err) == (1, True)
