"""From what a person calls an agent to the agent: numbers, and what is refused."""

from tests.control.office import HOST, Office
from watchdog.core.process import Identity
from watchdog.processes.identity import boot_id


def test_an_agent_without_a_pid_is_refused_with_the_hint_stop(office: Office) -> None:
    """Nothing can be proved dead; `stop` closes it. An agent whose tree a scan has found is killed."""
    office.register("alpha", found=False, tags=["x"])
    for target in ("alpha", "tag:x"):
        _, answer = office.ask("POST", "/v1/kill", {"targets": [target]})
        answer = answer["results"][0] if "results" in answer else answer
        assert (answer["success"], answer["error"]) == (False, "process_not_found")
        assert answer["message"] == "no pid is known for alpha; use this instead: agent-watchdog stop alpha"
    _, answer = office.ask("POST", "/v1/kill", {"targets": ["alpha"], "dry_run": True})
    assert (answer["success"], answer["error"]) == (False, "process_not_found")
    assert office.ask("POST", "/v1/stop", {"targets": ["alpha"]})[1]["success"]


def test_a_pid_that_is_no_agents_is_refused_with_a_hint(office: Office) -> None:
    """The answer says how to register it."""
    stranger = office.process()
    _, answer = office.ask("POST", "/v1/kill", {"targets": [str(stranger)]})
    assert answer["error"] == "process_not_found"
    assert f"register --name N --pid {stranger}" in answer["message"]


def test_a_pid_within_an_agents_tree_leads_to_its_agent(office: Office) -> None:
    """The pid of a `run`, as the shell's `$!` tells it, or of a child: registering it would be no help."""
    office.register("alpha", pid=office.process())
    wrapper = office.process()
    run = Identity(HOST, boot_id(), wrapper, 1)
    office.age("alpha", wrapper=run)
    for pid in (wrapper, office.agent("alpha").tree.members[0].identity.pid):
        _, answer = office.ask("POST", "/v1/kill", {"targets": [str(pid)]})
        assert (answer["success"], answer["error"]) == (False, "process_not_found")
        assert answer["message"].endswith("one of alpha's; use this instead: agent-watchdog kill alpha")
    assert office.worker.asked == []
