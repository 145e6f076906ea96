"""The answers to /kill and /stop: key by key as the kill-stalled-agent command documents them."""

import pytest

from tests.control.office import Office
from watchdog.control.views.results import OTHERS, OWN, Patience, what_goes_on
from watchdog.core.agent import Verdict
from watchdog.core.hooks import HookOutcome
from watchdog.core.peer import Peer

SINGLE = {
    "success": True,
    "action": "graceful_kill",
    "kill_signal": "SIGTERM",
    "task_id": "TASK-31-1",
    "grace_period_seconds": 10,
    "killed_gracefully": True,
    "message": "Agent terminated gracefully",
}
FORCED = {
    "success": True,
    "action": "force_kill",
    "kill_signal": "SIGKILL",
    "task_id": "TASK-31-1",
    "killed_gracefully": False,
    "message": "Agent force killed",
}
ENTRY = {"agent_id", "pid", "seconds_since_heartbeat", "killed_gracefully", "task_id"}


def test_one_kill_polite_and_by_force_has_the_documented_values(office: Office) -> None:
    """Whole seconds are whole numbers; a kill by force had no grace; `how` has our own text."""
    for force, documented in ((False, SINGLE), (True, FORCED)):
        pid = office.process()
        agent_id = office.register("alpha", task="TASK-31-1", pid=pid)
        _, answer = office.ask("POST", "/v1/kill", {"targets": ["alpha"], "force": force})
        assert {key: answer[key] for key in documented} == documented
        assert (answer["agent_id"], answer["pid"]) == (agent_id, pid)
        assert answer["killed_at"].endswith("Z") and "." not in answer["killed_at"]
        assert isinstance(answer.get("grace_period_seconds", 0), int)
        assert ("grace_period_seconds" in answer) is not force
        assert answer["how"] == "1 process ended"


def test_all_stalled_at_once_has_the_documented_keys(office: Office) -> None:
    """`agents_killed`, and of each what the command tells; the heartbeat's age in whole seconds."""
    office.register("alpha", task="TASK-32-1", pid=office.process())
    office.age("alpha", 250.4, beats=1, verdict=Verdict.STALLED)
    _, answer = office.ask("POST", "/v1/kill", {"targets": ["stalled"]})
    assert (answer["success"], answer["action"], answer["agents_killed"]) == (True, "kill_stalled", 1)
    assert answer["timestamp"].endswith("Z")
    (entry,) = answer["killed_agents"]
    assert set(entry) - {"name"} == ENTRY
    assert (entry["seconds_since_heartbeat"], entry["killed_gracefully"]) == (250, True)
    assert isinstance(entry["seconds_since_heartbeat"], int)


@pytest.mark.parametrize(
    ("target", "error"),
    [("code-developer-20251026-001", "agent_not_found"), ("4194000", "process_not_found")],
    ids=["agent", "process"],
)
def test_an_error_has_the_documented_keys(office: Office, target: str, error: str) -> None:
    """success, error, message, agent_id."""
    _, answer = office.ask("POST", "/v1/kill", {"targets": [target]})
    assert {"success", "error", "message", "agent_id"} <= set(answer)
    assert (answer["success"], answer["error"], answer["agent_id"]) == (False, error, target)


def test_dead_but_not_put_in_order_is_told_as_cleanup_failed(office: Office) -> None:
    """The kill's own keys are there all the same: it is dead, and counts as killed."""
    office.worker.more = {
        "cleanup": [{"hook": "temp_dir", "outcome": HookOutcome.FAILED, "message": "left as it is: read-only"}]
    }
    office.register("alpha", pid=office.process(), tags=["x"])
    office.register("beta", pid=office.process(), tags=["x"])
    _, answer = office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    assert (answer["success"], answer["error"], answer["kill_signal"]) == (False, "cleanup_failed", "SIGTERM")
    told = "Agent terminated gracefully; not everything was cleaned up: temp_dir: left as it is: read-only"
    assert answer["message"] == told
    _, answer = office.ask("POST", "/v1/kill", {"targets": ["tag:x"]})
    assert (answer["success"], answer["agents_killed"]) == (False, 1)

    pane = {"hook": "pane", "outcome": HookOutcome.FAILED, "message": "it remains", "retry": "tmux kill-pane -t '%77'"}
    office.worker.more = {"cleanup": [pane], "pane_cleanup_failed": True, "pane_retry_command": pane["retry"]}
    office.register("gamma", pid=office.process())
    _, answer = office.ask("POST", "/v1/kill", {"targets": ["gamma"]})
    assert (answer["success"], answer["pane_retry_command"]) == (True, "tmux kill-pane -t '%77'")


def test_dead_and_its_cleanup_goes_on_is_a_success(office: Office) -> None:
    """What is left is named; `remove` says that its row is not closed yet."""
    office.worker.more = {"cleanup": [], "cleanup_left": ["worktree", "temp_dir"]}
    office.register("alpha", pid=office.process())
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    assert (status, answer["success"], answer["cleanup_left"]) == (200, True, ["worktree", "temp_dir"])
    assert answer["how"].endswith("; its cleanup goes on (worktree, temp_dir): agent-watchdog why alpha")

    gone = office.process()
    office.register("beta", pid=gone)
    process = next(one for one in office.processes if one.pid == gone)
    process.kill()
    process.wait()
    status, answer = office.ask("POST", "/v1/remove", {"targets": ["beta"]})
    assert (status, answer["success"]) == (409, False)
    assert answer["message"].startswith("beta is dead, but not removed yet: its cleanup goes on (worktree, temp_dir)")


ME, OTHER = 1000, 1001


def test_one_that_took_all_the_time_leaves_none_for_those_after_it() -> None:
    """Of its kind: others' agents use up nothing of the time for one's own."""
    patience = Patience(Peer(ME, ME, 1))
    assert (patience.for_cleanup(ME), patience.for_cleanup(OTHER)) == (OWN, OTHERS)
    patience.spend([{"owner_uid": OTHER, "success": True}, {"owner_uid": ME, "success": True}])
    assert (patience.for_cleanup(ME), patience.for_cleanup(OTHER)) == (OWN, OTHERS)
    patience.spend([{"owner_uid": OTHER, "success": True, "cleanup_left": []}])
    assert (patience.for_cleanup(ME), patience.for_cleanup(OTHER)) == (OWN, 0.0)


def test_what_is_left_is_named_where_it_is_known() -> None:
    assert what_goes_on({"cleanup_left": ["a", "b"]}, "x") == "its cleanup goes on (a, b): agent-watchdog why x"
    assert what_goes_on({"cleanup_left": []}, "x@h") == "its cleanup goes on: agent-watchdog why x@h"
