"""Agents of other hosts in the same registry: who may see and order what of them, and how they are named."""

from collections.abc import Callable

import pytest

from tests.control.office import ALICE, HOST, ME, ROOT, Office
from watchdog.core.agent import Registration, Status
from watchdog.core.kill import Reason

FAR = "f" * 32
OTHER = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def far(office: Office) -> Office:
    """Another host's daemon has registered `far`."""
    add(office, FAR, "far", OTHER)
    return office


def add(office: Office, agent_id: str, name: str, host: str, **rest: object) -> None:
    reg = Registration(agent_id, name, ME, host, "boot", **rest)  # type: ignore[arg-type]
    registry = office.context.registry
    office.on_loop(lambda: registry.agents.add(reg, Status.RUNNING, office.context.now(), "their daemon"))


def requests(office: Office, agent_id: str = FAR) -> list[tuple[str, Reason, str]]:
    rows = office.context.registry.kills.requests_of(agent_id)
    return [(row.status, row.reason, row.by) for row in rows]


@pytest.mark.parametrize("target", [f"far@{OTHER}", "far@0123", "ffffffff@0123", FAR, "all@0123"])
def test_an_agent_elsewhere_is_named_with_its_host_or_by_its_id(far: Office, target: str) -> None:
    """The worker of this host gets nothing to do; the order is one row, however often it is asked for."""
    for _ in range(2):
        status, answer = far.ask("POST", "/v1/kill", {"targets": [target]})
        result = answer["results"][0] if "results" in answer else answer
        assert status in (200, 202)
        assert (result["success"], result["error"], result["host"]) == (False, "waiting", OTHER)
    assert requests(far) == [("open", Reason.OPERATOR, f"uid {ME} of host {HOST}")]
    assert far.worker.asked == []


def test_a_caller_that_does_not_wait_learns_that_it_is_committed(far: Office) -> None:
    """As with an agent of this host."""
    status, answer = far.ask("POST", "/v1/stop", {"targets": ["far@0123"], "wait": False})
    assert (status, answer["success"]) == (200, True)
    assert f"for the daemon of host {OTHER} is committed" in answer["message"]
    assert [reason for _, reason, _ in requests(far)] == [Reason.STOP]


def test_a_target_that_fits_no_agent_is_answered_with_what_would(far: Office) -> None:
    """A name of another host without its host, an unknown host, a host that two match."""
    office = far
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["far"]})
    assert (status, answer["error"]) == (404, "agent_not_found")
    assert f"far@{OTHER}" in answer["message"]
    assert "known are" in office.ask("POST", "/v1/kill", {"targets": ["far@nowhere"]})[1]["message"]
    assert office.ask("POST", "/v1/kill", {"targets": ["far@012"]})[0] == 404
    assert office.ask("GET", "/v1/agents/near@0123")[0] == 404
    add(office, "e" * 32, "far", OTHER[:-1] + "0")
    assert office.ask("POST", "/v1/kill", {"targets": ["far@0123"]})[1]["error"] == "ambiguous"
    assert requests(office) == []


def test_our_own_host_may_be_named_too_and_a_task_may_hold_an_at(office: Office) -> None:
    """`alpha@test-host` is alpha; `task:T@1` is the task T@1."""
    office.register("alpha", task="T@1")
    office.register("beta")
    assert office.ask("GET", f"/v1/agents/alpha@{HOST}")[1]["agent"]["name"] == "alpha"
    assert office.ask("POST", "/v1/kill", {"targets": [f"beta@{HOST}"]})[0] == 200
    assert office.ask("POST", "/v1/cancel", {"targets": ["T@1"]})[1]["agents_killed"] == 1
    assert office.worker.ended == ["beta", "alpha"]


def test_parents_and_children_elsewhere_are_ordered_and_nothing_is_removed(far: Office) -> None:
    """`remove` looks whether a process lives, which only its own host can."""
    add(far, "c" * 32, "child", OTHER, parent_id=FAR)
    shown = far.ask("POST", "/v1/kill", {"targets": ["far@0123"], "children": True, "dry_run": True})[1]
    assert [result["name"] for result in shown["results"]] == ["far", "child"]
    far.ask("POST", "/v1/kill", {"targets": ["far@0123"], "children": True})
    assert len(requests(far, "c" * 32)) == 1
    status, answer = far.ask("POST", "/v1/remove", {"targets": ["far@0123"]})
    assert (status, "on host" in answer["message"]) == (409, True)


def test_a_hold_elsewhere_is_a_row_and_keeps_orders_away(far: Office) -> None:
    """The newest holds; `unhold` lifts all; ours are not touched."""
    registry = far.context.registry
    far.ask("POST", "/v1/hold", {"reason": "all of ours"})
    for reason in ("first", "second"):
        status, answer = far.ask("POST", "/v1/hold", {"targets": ["far@0123"], "reason": reason})
        assert (status, answer["success"]) == (200, True)
    assert [row.reason for row in registry.history.active_holds(OTHER)] == ["second"]
    assert far.ask("POST", "/v1/kill", {"targets": ["far@0123"]})[1]["error"] == "held"
    assert "second" in far.ask("GET", "/v1/agents/far@0123")[1]["agent"]["held"]
    far.ask("POST", "/v1/unhold", {"targets": ["far@0123"]})
    assert registry.history.active_holds(OTHER) == []
    assert [row.reason for row in registry.history.active_holds(HOST)] == ["all of ours"]


@pytest.mark.skipif(not ROOT, reason="needs root: namespaces, or acting as another uid")
def test_other_hosts_are_for_root_and_admins(far: Office) -> None:
    """The same uid there may be another person: that user sees what all may know, and acts on no agent."""
    add(far, "a" * 32, "mine", OTHER)
    far.on_loop(lambda: far.context.registry.agent_details.drop_owner("a" * 32, ALICE, far.context.now()))
    asks: list[Callable[[], tuple[int, dict[str, object]]]] = [
        lambda: far.ask_as(ALICE, "POST", "/v1/kill", {"targets": ["mine@0123"]}),
        lambda: far.ask_as(ALICE, "POST", "/v1/hold", {"targets": ["a" * 32]}),
        lambda: far.ask_as(ALICE, "GET", "/v1/agents/mine@0123"),
        lambda: far.ask_as(ALICE, "GET", f"/v1/events?agent={'a' * 32}"),
    ]
    for ask in asks:
        status, answer = ask()
        assert (status, answer["error"]) == (403, "permission_denied"), answer
    assert requests(far, "a" * 32) == []
    listed = far.ask_as(ALICE, "GET", "/v1/agents?all_hosts")[1]["agents"]
    assert [set(agent) for agent in listed] == [{"agent_id", "name", "owner_uid", "status", "verdict", "host"}] * 2
    assert far.ask_as(ALICE, "GET", "/v1/agents?all_hosts&tag=x")[1]["agents"] == []
    assert far.ask_as(ALICE, "GET", "/v1/agents/mine")[0] == 404


def test_a_list_has_other_hosts_agents_only_when_asked_for(far: Office) -> None:
    """Ended ones too with `all`; of each its host."""
    far.register("near")
    add(far, "e" * 32, "over", OTHER, tags=("x",))
    registry = far.context.registry
    far.on_loop(
        lambda: registry.agents.transition(
            "e" * 32, {Status.RUNNING}, Status.KILLED, now=far.context.now(), who="their daemon", why="t"
        )
    )

    def names(query: str) -> set[tuple[object, object]]:
        return {(a["name"], a["host"]) for a in far.ask("GET", f"/v1/agents{query}")[1]["agents"]}

    assert names("") == {("near", HOST)}
    assert names("?all_hosts") == {("near", HOST), ("far", OTHER)}
    assert names("?all_hosts&all") == {("near", HOST), ("far", OTHER), ("over", OTHER)}
    assert names("?all_hosts&all&tag=x") == {("over", OTHER)}
