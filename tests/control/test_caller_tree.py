"""Who asks from within an agent's tree, by its environment or by its descent, is only shown what a group would end."""

import json
import os
import subprocess
import sys

import pytest

from tests.control.office import _CALL, Office


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


def test_who_descends_from_an_agent_is_of_its_tree_without_a_marker(office: Office) -> None:
    """By the identity of the main process above him."""
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
