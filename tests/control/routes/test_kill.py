"""POST /kill, /stop, /cancel, /remove, /hold, /unhold."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from tests.control.office import _CALL, ALICE, BOB, HOST, ME, ROOT, Office, wait_for
from watchdog.core.agent import Status, Verdict
from watchdog.core.decision import Veto
from watchdog.core.kill import Reason

COMMAND_KEYS = {
    "success",
    "agent_id",
    "action",
    "pid",
    "kill_signal",
    "task_id",
    "killed_at",
    "grace_period_seconds",
    "killed_gracefully",
    "seconds_since_heartbeat",
    "message",
}


def test_one_kill_answers_with_the_keys_of_the_command(office: Office) -> None:
    """The kill-stalled-agent command's keys, plus resume and how each process ended."""
    agent_id = office.register("alpha", task="T-1", pid=office.process())
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["alpha"], "reason": "by test"})
    assert status == 200
    assert set(answer) >= COMMAND_KEYS | {"resume", "processes"}
    assert (answer["success"], answer["agent_id"], answer["action"]) == (True, agent_id, "graceful_kill")
    assert (answer["task_id"], answer["kill_signal"]) == ("T-1", "SIGTERM")
    assert answer["resume"] is None
    name, reason, options, by = office.worker.asked[0]
    assert (name, reason, options.text, by) == ("alpha", Reason.OPERATOR, "by test", f"uid {ME}")
    assert options.cleanup and not options.force


def test_a_secret_in_a_reason_is_shown_nowhere(office: Office) -> None:
    """A reason goes into the log, the history and the task's row; an orchestrator may put an error message into it."""
    office.register("alpha")
    office.ask("POST", "/v1/hold", {"reason": "until token=hunter2 is changed"})
    office.ask("POST", "/v1/kill", {"targets": ["alpha"], "reason": "curl: Authorization: Bearer hunter2 refused"})
    ((_, _, options, _),) = office.worker.asked
    assert options.text == "curl: Authorization: Bearer *** refused"
    (held,) = office.context.registry.history.active_holds(office.context.host)
    assert held.reason == "until token=*** is changed"


def test_force_and_grace_reach_the_worker(office: Office) -> None:
    """--force means no grace; --grace is the time between TERM and KILL; cleanup can be left out."""
    office.register("alpha")
    office.register("beta")
    office.ask("POST", "/kill", {"targets": ["alpha"], "force": True})
    office.ask("POST", "/kill", {"targets": ["beta"], "grace_seconds": 30, "cleanup": False})
    first, second = (options for _, _, options, _ in office.worker.asked)
    assert (first.force, first.grace) == (True, timedelta())
    assert (second.force, second.grace, second.cleanup) == (False, timedelta(seconds=30), False)


def test_an_agent_that_has_ended_already_is_a_success(office: Office) -> None:
    """For an agent that is dead already a kill succeeds; an unknown one is an error of its own kind."""
    agent_id = office.register("alpha")
    office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    for target in ("alpha", agent_id):
        status, answer = office.ask("POST", "/v1/kill", {"targets": [target]})
        assert (status, answer["success"], answer["message"]) == (200, True, "already dead: killed")
    for target, code in (("nobody", "agent_not_found"), ("4194000", "process_not_found"), ("tag:x", "agent_not_found")):
        _, answer = office.ask("POST", "/v1/kill", {"targets": [target]})
        failed = answer if "error" in answer else answer["results"][0]
        assert (failed["success"], failed["error"]) == (False, code), target


def test_one_bad_target_does_not_stop_the_others(office: Office) -> None:
    """Each target has its own result, also one that cannot be killed."""
    office.register("alpha", tags=["x"])
    office.register("beta")
    office.register("gamma")
    office.worker.stubborn.add("beta")
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["nobody", "beta", "tag:x", "gamma"]})
    assert (status, answer["success"], answer["agents_killed"]) == (200, False, 2)
    assert {entry["name"] for entry in answer["killed_agents"]} == {"alpha", "gamma"}
    errors = {result["error"] for result in answer["results"] if not result["success"]}
    assert errors == {"agent_not_found", "kill_failed"}
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["beta"]})
    assert (status, answer["error"]) == (500, "kill_failed")


def test_one_agent_in_several_words_is_told_once(office: Office) -> None:
    """Held, ended, living or unknown; by its name, its id, its tag and its pid."""
    pid = office.process()
    ids = {name: office.register(name, tags=["x"]) for name in ("held", "ended")}
    ids["alpha"] = office.register("alpha", tags=["x"], pid=pid)
    office.ask("POST", "/v1/hold", {"targets": ["held"]})
    office.ask("POST", "/v1/kill", {"targets": ["ended"]})
    words = [*ids, *ids.values(), "tag:x", str(pid), "alpha", "nobody", "nobody", ids["alpha"][:8]]
    _, answer = office.ask("POST", "/v1/kill", {"targets": words})
    told = sorted(result.get("name", "nobody") for result in answer["results"])
    assert (told, answer["agents_killed"]) == (["alpha", "ended", "held", "nobody"], 1)
    assert [name for name, *_ in office.worker.asked] == ["ended", "alpha"]


def test_stalled_picks_those_stalled_or_silent_for_longer(office: Office) -> None:
    """Without a limit the sweep's verdict counts; with one, watched silence of those that promised a beat."""
    for name, silence in (("alpha", 250), ("beta", 100), ("quiet", 9000)):
        office.register(name, stall_after_seconds=None if name == "quiet" else 120)
        office.age(name, silence, beats=1, verdict=Verdict.HEALTHY)
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["stalled"]})
    assert (status, answer["success"], answer["action"], answer["agents_killed"]) == (200, True, "kill_stalled", 0)
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["stalled"], "stall_after_seconds": 200})
    assert set(answer) >= {"success", "action", "agents_killed", "killed_agents", "timestamp"}
    assert [entry["name"] for entry in answer["killed_agents"]] == ["alpha"]
    assert answer["killed_agents"][0]["seconds_since_heartbeat"] == 250
    office.age("beta", 130, verdict=Verdict.STALLED)
    office.ask("POST", "/v1/kill", {"targets": ["stalled"]})
    assert office.worker.ended == ["alpha", "beta"]
    assert office.ask("POST", "/v1/kill", {"targets": ["beta"], "stall_after_seconds": 200})[0] == 400


def test_an_agent_that_beat_since_it_was_found_stalled_is_not_killed_as_stalled(office: Office) -> None:
    """The next look would find it well. One that waits for a person is silent, and never stalled."""
    office.register("alpha", stall_after_seconds=120)
    office.age("alpha", 130, beats=1, verdict=Verdict.STALLED)
    office.ask("POST", "/v1/agents/alpha/beat", {})
    office.register("asks", stall_after_seconds=120)
    office.age("asks", 9000, beats=1, verdict=Verdict.WAITING)
    for body in ({}, {"stall_after_seconds": 60}):
        status, answer = office.ask("POST", "/v1/kill", {"targets": ["stalled"], **body})
        assert (status, answer["success"], answer["results"]) == (200, True, [])


def test_children_are_spared_unless_asked_for_and_then_come_last(office: Office) -> None:
    """Ending a parent spares its child agents; with children, parents first."""
    for name, parent in (("top", None), ("mid", "top"), ("low", "mid"), ("other", None)):
        office.register(name, parent=parent)
    office.ask("POST", "/v1/kill", {"targets": ["low", "top"], "dry_run": True, "children": True})
    assert office.worker.ended == []
    office.ask("POST", "/v1/kill", {"targets": ["top"], "children": True})
    assert office.worker.ended == ["top", "mid", "low"]
    office.register("top")
    office.register("mid", parent="top")
    office.ask("POST", "/v1/kill", {"targets": ["top"]})
    assert office.worker.ended[3:] == ["top"]


def test_a_dry_run_kills_no_agent(office: Office) -> None:
    """It lists what would be killed."""
    office.register("alpha")
    _, answer = office.ask("POST", "/v1/kill", {"targets": ["all"], "dry_run": True})
    assert [result["name"] for result in answer["results"]] == ["alpha"]
    assert office.worker.asked == []


def test_stop_and_cancel_end_politely(office: Office) -> None:
    """stop: outcome stopped; cancel: also the task."""
    office.register("alpha", task="T-1")
    office.register("beta", task="T-2")
    _, answer = office.ask("POST", "/v1/stop", {"targets": ["alpha"]})
    assert (answer["success"], office.worker.asked[0][1]) == (True, Reason.STOP)
    status, answer = office.ask("POST", "/v1/cancel", {"targets": ["T-2"]})
    assert (status, answer["success"], answer["agents_killed"]) == (200, True, 1)
    task = office.context.registry.history.task("T-2")
    assert task is not None and task.status == "cancelled"
    _, answer = office.ask("POST", "/v1/cancel", {"targets": ["T-9"]})
    assert answer["results"][0]["error"] == "agent_not_found"


def test_a_held_agent_is_not_ended_until_it_is_released(office: Office) -> None:
    """A hold survives a restart, is shown with its reason, and is lifted by unhold."""
    agent_id = office.register("alpha", tags=["x"])
    status, answer = office.ask("POST", "/v1/hold", {"targets": ["alpha"], "reason": "debugging", "for_seconds": 3600})
    assert (status, answer["success"]) == (200, True)
    now = office.context.now()
    reason = office.context.holds.reason_for(agent_id, now)
    assert reason is not None and reason.startswith("debugging (by uid")
    assert office.context.holds.reason_for(agent_id, now + timedelta(hours=2)) is None
    assert office.context.holds.reason_for(None, now) is None
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    assert (status, answer["error"]) == (409, "held")
    assert "unhold alpha" in answer["message"]
    _, answer = office.ask("POST", "/v1/kill", {"targets": ["tag:x"]})
    assert answer["results"][0]["error"] == "held"
    assert [row.agent_id for row in office.context.registry.history.active_holds(HOST)] == [agent_id]
    office.ask("POST", "/v1/hold", {"targets": ["alpha"], "reason": "again"})
    assert [row.reason for row in office.context.registry.history.active_holds(HOST)] == ["again"]
    assert office.ask("POST", "/v1/unhold", {"targets": ["alpha"]})[1]["results"][0]["message"] == "no longer held"
    assert office.context.registry.history.active_holds(HOST) == []
    assert office.ask("POST", "/v1/kill", {"targets": ["alpha"]})[0] == 200


def test_a_hold_that_comes_too_late_says_so_and_is_not_kept(office: Office) -> None:
    """Also where the first signal overtook it; the others of the same command are held."""
    late, other = office.register("late", tags=["x"]), office.register("other", tags=["x"])
    agent = office.context.fleet.get(late)
    assert agent is not None
    registry = office.context.registry
    registry.kills.open_request("r1", late, Reason.STALLED, by="daemon", now=office.context.now(), options={})
    agent.ending.request_id, agent.status = "r1", Status.ENDING

    status, answer = office.ask("POST", "/v1/hold", {"targets": ["late"]})
    assert (status, answer["error"]) == (409, "conflict")
    assert "late is being killed since 20" in answer["message"] and "by daemon: stalled" in answer["message"]
    assert registry.history.active_holds(HOST) == []

    agent.status = Status.RUNNING
    add = registry.history.add_hold

    def overtaken(*args: Any, **kwargs: Any) -> Any:
        agent.status = Status.ENDING
        return add(*args, **kwargs)

    registry.history.add_hold = overtaken  # type: ignore[method-assign]
    _, answer = office.ask("POST", "/v1/hold", {"targets": ["late", "other"]})
    assert [result["success"] for result in answer["results"]] == [False, True]
    assert [row.agent_id for row in registry.history.active_holds(HOST)] == [other]
    assert office.context.holds.reason_for(late, office.context.now()) is None


def test_a_hold_on_all_binds_the_daemon_not_the_operator(office: Office) -> None:
    """Without targets the daemon kills no agent of its own accord; a kill by name still works."""
    office.register("alpha")
    assert office.ask("POST", "/v1/hold", {"reason": "upgrade"})[0] == 200
    assert office.context.holds.reason_for(None, office.context.now()) is not None
    assert office.ask("GET", "/v1/status")[1]["holds"][0]["reason"] == "upgrade"
    assert office.ask("POST", "/v1/kill", {"targets": ["alpha"]})[0] == 200
    assert office.ask("POST", "/v1/unhold", {})[0] == 200
    assert office.context.holds.reason_for(None, office.context.now()) is None


def test_unhold_without_targets_names_the_daemon_s_own_holds_that_it_lifts(office: Office) -> None:
    """They were lifted silently: an operator who only wanted to lift a hold of their own learned nothing of them."""
    office.context.safeguards._doubt(Veto.PRESSURE, "the host is overloaded: load 9 a core")

    (result,) = office.ask("POST", "/v1/unhold", {})[1]["results"]
    (again,) = office.ask("POST", "/v1/unhold", {})[1]["results"]

    assert result["message"] == (
        "no longer held; lifted what made the daemon itself hold back kills: the host is overloaded: load 9 a core"
    )
    assert again["message"] == "they were not held"


def test_remove_closes_only_what_is_gone(office: Office) -> None:
    """A living agent is refused; one whose process has gone is closed; one that ended is closed already."""
    pid = office.process()
    office.register("alpha", pid=pid)
    office.register("queued", queued=True)
    status, answer = office.ask("POST", "/v1/remove", {"targets": ["alpha"]})
    assert (status, answer["error"]) == (409, "conflict")
    assert "is alive" in answer["message"]
    office.end_process(pid)
    assert office.ask("POST", "/v1/remove", {"targets": ["alpha", "queued"]})[1]["success"]
    assert office.worker.ended == ["alpha", "queued"]
    _, answer = office.ask("POST", "/v1/remove", {"targets": ["alpha"]})
    assert (answer["success"], answer["results"][0]["action"]) == (True, "none")


def test_a_kill_that_is_not_waited_for_is_committed(office: Office) -> None:
    """wait: false answers when the request is in the registry."""
    office.register("alpha")
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["alpha"], "wait": False})
    assert (status, answer["success"], answer["request_id"]) == (200, True, "request-1")
    office.register("beta")
    _, answer = office.ask("POST", "/v1/kill", {"targets": ["beta", "beta"], "wait": False, "force": True})
    assert (answer["agents_killed"], answer["killed_agents"]) == (0, [])  # not yet
    assert "grace_period_seconds" not in answer["results"][0]


def test_a_pid_means_its_agent_also_after_its_end_until_it_is_reused(office: Office) -> None:
    """The second of two kills: already dead. A living process of that number is not a registered one."""
    pid = office.process()
    agent_id = office.register("alpha", pid=pid)
    office.ask("POST", "/v1/kill", {"targets": [str(pid)]})
    status, answer = office.ask("POST", "/v1/kill", {"targets": [str(pid)]})
    assert (status, answer["error"]) == (404, "process_not_found")  # the process lives: the worker is a fake
    office.end_process(pid)
    for verb in ("kill", "stop"):
        status, answer = office.ask("POST", f"/v1/{verb}", {"targets": [str(pid)]})
        assert (status, answer["action"], answer["message"]) == (200, "none", "already dead: killed")
        assert answer["agent_id"] == agent_id
    _, answer = office.ask("POST", "/v1/remove", {"targets": [str(pid)]})
    assert answer["results"][0]["message"].startswith("already closed: killed")


@pytest.mark.skipif(not ROOT, reason="needs root: other people's agents")
def test_ones_own_ended_agent_is_found_though_another_user_has_a_living_one_of_that_name(office: Office) -> None:
    """Already dead is a success; a user without an agent of that name is refused, and that is counted."""
    office.register("alpha", ALICE)
    office.register("alpha", BOB)
    assert office.ask_as(BOB, "POST", "/v1/kill", {"targets": ["alpha"]})[0] == 200
    for path in ("kill", "stop", "remove"):
        status, answer = office.ask_as(BOB, "POST", f"/v1/{path}", {"targets": ["alpha"]})
        assert (status, answer["success"]) == (200, True), answer
    status, answer = office.ask_as(BOB, "GET", "/v1/agents/alpha")
    assert (status, answer["agent"]["status"]) == (200, "killed")
    status, answer = office.ask_as(ALICE + 100, "POST", "/v1/kill", {"targets": ["alpha"]})
    assert (status, answer["error"]) == (403, "permission_denied")
    assert office.log.events[-1]["event"] == "control.denied"
    assert office.agent("alpha").reg.owner_uid == ALICE


@pytest.mark.parametrize("word", ["²", "①", "१२३", "-1", "0", "1", "7" * 200, "a*", "../a", " "])
def test_what_only_looks_like_a_target_means_no_agent(office: Office, word: str) -> None:
    """Of digits too, of which Python's int() takes some and fails at others."""
    office.register("alpha", pid=office.process())
    for path in ("kill", "stop", "remove", "hold", "unhold"):
        status, answer = office.ask("POST", f"/v1/{path}", {"targets": [word]})
        assert (status, answer["error"] in ("agent_not_found", "process_not_found")) == (404, True), answer
    status, answer = office.ask("POST", "/v1/purge", {"agent": word})
    assert status in (400, 404), answer
    assert office.worker.asked == []


def test_a_pid_of_an_agent_is_a_target(office: Office) -> None:
    """The number of its main process means the agent; that of any other process means nothing."""
    pid, stranger = office.process(), office.process()
    office.register("alpha", pid=pid)
    assert office.ask("POST", "/v1/kill", {"targets": [str(stranger)]})[1]["error"] == "process_not_found"
    assert office.ask("POST", "/v1/kill", {"targets": [str(pid)]})[1]["success"]


def test_the_row_of_an_ended_agent_tells_its_outcome(office: Office) -> None:
    """GET gives an ended agent with its history, by name or id."""
    agent_id = office.register("alpha")
    office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    for word in ("alpha", agent_id):
        status, answer = office.ask("GET", f"/v1/agents/{word}")
        assert (status, answer["agent"]["status"]) == (200, Status.KILLED)
    wait_for(lambda: not list(office.context.fleet), "the fleet is empty")


def asked_from(office: Office, body: object, **environ: str) -> dict[str, object]:
    """POST /kill by a process of its own, with that in its environment."""
    command = [sys.executable, "-I", "-c", _CALL, office.socket_path, "POST", "/v1/kill", json.dumps(body)]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=30)
    answer = json.loads(json.loads(done.stdout)[1])
    assert isinstance(answer, dict), done
    return answer


@pytest.mark.parametrize("target", ["all", "tag:x", "type:claude", "all@test-host"])
def test_a_group_from_within_an_agents_tree_is_only_shown(office: Office, target: str) -> None:
    """By the marker; with `go`, by name, or from elsewhere it is done, and a dry run does nothing from anywhere."""
    own = office.register("own", tags=["x"], type="claude", pid=office.process())
    office.register("other", tags=["x"], type="claude", pid=office.process())
    answer = asked_from(office, {"targets": [target]}, AGENT_WATCHDOG_ID=own)
    assert (answer["success"], answer["action"], answer["agents_killed"]) == (False, "would_end", 0)
    results = answer["results"]
    assert isinstance(results, list)
    assert {(result["name"], result["error"]) for result in results} == {("own", "preview"), ("other", "preview")}
    assert all("in the tree of agent own" in result["message"] and "--go" in result["message"] for result in results)
    for marker in (own, "f" * 32):
        dry = asked_from(office, {"targets": [target], "go": True, "dry_run": True}, AGENT_WATCHDOG_ID=marker)
        assert (dry["success"], dry["action"], dry["agents_killed"]) == (True, "would_end", 0)
    assert office.worker.asked == []

    assert asked_from(office, {"targets": ["other"]}, AGENT_WATCHDOG_ID=own)["success"]
    assert asked_from(office, {"targets": [target], "go": True}, AGENT_WATCHDOG_ID=own)["agents_killed"] == 1
    office.register("third", tags=["x"], type="claude", pid=office.process())
    assert asked_from(office, {"targets": [target]}, AGENT_WATCHDOG_ID="f" * 32)["agents_killed"] == 1


def test_a_caller_that_descends_from_an_agent_is_in_its_tree_without_a_marker(office: Office) -> None:
    """By the identity of the main process above it."""
    call = [sys.executable, "-I", "-c", _CALL, office.socket_path, "POST", "/v1/kill", '{"targets": ["all"]}']
    agent = subprocess.Popen(
        ["/bin/sh", "-c", 'read go; "$@"; true', "sh", *call],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    office.processes.append(agent)  # type: ignore[arg-type] # ended with the others
    office.register("parent", pid=agent.pid)
    out, _ = agent.communicate("go\n", timeout=30)
    answer = json.loads(json.loads(out)[1])
    assert [result["error"] for result in answer["results"]] == ["preview"]
