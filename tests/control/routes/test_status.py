"""GET /agents, /agents/ID, /events, /status, /metrics."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.control.office import ALICE, HOST, ME, ROOT, Office, wait_for
from watchdog.client import client
from watchdog.core.agent import State, Status, Verdict
from watchdog.core.observed_activity import ActivityKind
from watchdog.telemetry.catalogue import CATALOGUE


def stream(office: Office, path: str) -> Iterator[dict[str, object]]:
    return client.stream(path, office.socket_path)


def test_a_list_shows_what_is_known_of_each(office: Office) -> None:
    """Living agents; with `all` the ended ones; `tag` picks."""
    office.register("alpha", tags=["x"], stall_after_seconds=120)
    office.register("beta")
    office.age("alpha", 30, beats=2, verdict=Verdict.HEALTHY, line="silent for 30s of 2m", note="builds")
    agents = {agent["name"]: agent for agent in office.ask("GET", "/v1/agents")[1]["agents"]}
    assert set(agents) == {"alpha", "beta"}
    alpha = agents["alpha"]
    assert (alpha["silence_seconds"], alpha["after_seconds"], alpha["note"]) == (30.0, 120.0, "builds")
    assert (alpha["verdict"], alpha["why"], alpha["owner_uid"]) == ("healthy", "silent for 30s of 2m", ME)
    assert [a["name"] for a in office.ask("GET", "/v1/agents?tag=x")[1]["agents"]] == ["alpha"]
    office.ask("POST", "/kill", {"targets": ["beta"]})
    assert [a["name"] for a in office.ask("GET", "/agents")[1]["agents"]] == ["alpha"]
    everybody = office.ask("GET", "/agents?all")[1]["agents"]
    assert {(a["name"], a["status"]) for a in everybody} == {("alpha", "starting"), ("beta", "killed")}
    assert office.ask("GET", "/agents?all=maybe")[0] == 400


def test_one_agent_comes_with_its_story_and_what_would_change_it(office: Office) -> None:
    """The verdict line, its history, kill requests, cleanup runs, and the outlook."""
    agent_id = office.register("alpha", stall_after_seconds=120)
    office.age("alpha", 30, beats=2, promised=True, verdict=Verdict.HEALTHY)
    status, answer = office.ask("GET", f"/v1/agents/{agent_id}")
    assert status == 200
    assert [event["event"] for event in answer["events"]] == ["agent.registered"]
    assert answer["requests"] == answer["cleanup"] == []
    assert "late in 1m30s" in answer["agent"]["outlook"][0]
    late = office.age("alpha", 150, verdict=Verdict.LATE)
    late.sights.see(ActivityKind.LOG, "its log grew")
    sentence = office.ask("GET", "/agents/alpha")[1]["agent"]["outlook"][0]
    assert "(now: its log grew), or in 59m30s in any case" in sentence
    office.age("alpha", 30, verdict=Verdict.WAITING, state=State.IDLE)
    assert "another state" in office.ask("GET", "/agents/alpha")[1]["agent"]["outlook"][0]
    assert office.ask("GET", "/v1/agents/nobody")[0] == 404


def test_the_outlook_has_a_sentence_for_every_verdict(office: Office) -> None:
    """No verdict leaves the reader without an answer."""
    office.register("alpha", ttl_seconds=60)
    for verdict in (None, *Verdict):
        office.age("alpha", verdict=verdict)
        outlook = office.ask("GET", "/agents/alpha")[1]["agent"]["outlook"]
        assert len(outlook) >= 2, verdict
        assert all(sentence.endswith(".") for sentence in outlook), outlook


def test_the_outlook_says_that_the_daemon_only_observes(office: Office) -> None:
    """Else "it is stalled and ended" would be read as what comes."""
    office.register("alpha", stall_after_seconds=60)
    office.age("alpha", verdict=Verdict.STALLED)
    assert "only observes" not in str(office.ask("GET", "/agents/alpha")[1]["agent"]["outlook"])
    office.context.registrar.apply(replace(office.context.settings, mode="observe"))

    assert office.ask("GET", "/agents/alpha")[1]["agent"]["outlook"][-1].startswith("The daemon only observes")


def test_events_come_in_order_and_go_on_where_one_stopped(office: Office) -> None:
    """JSON lines with rising ids; `after` leaves out what was dealt with; `agent` picks."""
    office.register("alpha")
    office.register("beta")
    first = list(stream(office, "/v1/events?after=0"))
    assert [event["event"] for event in first] == ["agent.registered"] * 2
    ids = [event["id"] for event in first]
    assert ids == sorted(ids)  # type: ignore[type-var]
    assert list(stream(office, f"/v1/events?after={ids[0]}")) == first[1:]
    assert list(stream(office, "/events?agent=beta")) == first[1:]
    assert office.ask("GET", "/v1/events?after=-1")[0] == 400
    assert office.ask("GET", "/v1/events?agent=nobody")[0] == 404


def test_a_follower_sees_everything_once_it_happens_and_over_a_restart(office: Office) -> None:
    """`follow` waits; when the daemon stops the stream ends, and the next stream continues after the last id."""
    seen: list[dict[str, Any]] = []

    def follow() -> None:
        for event in stream(office, f"/v1/events?follow=1&after={seen[-1]['id'] if seen else 0}"):
            seen.append(event)

    reader = threading.Thread(target=follow)
    reader.start()
    for number in range(20):
        office.register(f"agent-{number}")
    wait_for(lambda: len(seen) == 20, "20 events")
    office.stop()
    reader.join(60)
    assert not reader.is_alive()
    office.start()
    reader = threading.Thread(target=follow)
    reader.start()
    office.register("late")
    wait_for(lambda: len(seen) == 21, "the event after the restart")
    ids = [event["id"] for event in seen]
    assert ids == sorted(set(ids))
    office.stop()
    reader.join(60)


def test_a_follower_that_does_not_read_stops_no_other(office: Office) -> None:
    """A full pipe waits by itself; others are answered at once."""
    registry = office.context.registry
    for _ in range(40):
        registry.history.add_event("agent.late", None, "test", "x" * 20_000, office.context.now())
    connection = office.connect()
    connection.sendall(b"GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\n\r\n")
    for number in range(5):
        office.register(f"agent-{number}")
    connection.close()
    wait_for(lambda: office.ask("GET", "/v1/status")[0] == 200, "an answer")


def test_status_says_whether_the_daemon_works(office: Office) -> None:
    """Figures, holds, and what the main loop adds."""
    office.register("alpha")
    _, answer = office.ask("GET", "/v1/status")
    assert (answer["agents"], answer["host"], answer["mode"]) == (1, HOST, "enforce")
    assert answer["you"] == {"uid": ME, "admin": True}
    assert answer["verdicts"] == {"none": 1}
    json.dumps(answer)


@pytest.mark.skipif(not ROOT, reason="needs root, for another user")
def test_the_words_of_the_daemon_s_errors_are_for_admins_alone(office: Office) -> None:
    """They name agents and paths of others; all users see that there are any, and the remedy."""
    office.register("alpha-secret")
    trouble = {"event": "notify.failed", "what": "the pager failed for alpha-secret", "todo": "why alpha-secret"}
    office.context.status.facts = lambda: {"troubles": [trouble]}  # type: ignore[method-assign]
    agent = next(iter(office.context.fleet))
    office.on_loop(lambda: agent.become(Status.UNKILLABLE))
    office.on_loop(lambda: agent.ending.survived("frozen: secret[7]"))

    _, mine = office.ask("GET", "/v1/status")
    _, theirs = office.ask_as(ALICE, "GET", "/v1/status")

    assert mine["troubles"] == [trouble] and mine["unkillable"][0]["why"] == "frozen: secret[7]"
    public = {"what": "notify.failed (its log has the details)", "todo": CATALOGUE["notify.failed"].act}
    assert theirs["troubles"] == [trouble | public]
    assert theirs["unkillable"][0]["why"] is None


def test_metrics_are_prometheus_text_without_names(office: Office) -> None:
    """Verdicts, kills, holds and the last sweep are there; no agent's name ever is a label."""
    office.register("alpha-secret")
    office.on_loop(lambda: office.metrics.kills.labels(reason="stalled", outcome="killed").inc())
    connection = office.connect()
    connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    received = b""
    while piece := connection.recv(65536):
        received += piece
    connection.close()
    text = received.decode()
    assert "Content-Type: text/plain; version=0.0.4" in text
    for line in (
        'agent_watchdog_agents{verdict="stalled"} 0.0',
        'agent_watchdog_kills_total{outcome="killed",reason="stalled"} 1.0',
        "agent_watchdog_last_sweep_timestamp_seconds 0.0",
        'agent_watchdog_holds{reason="operator"} 0.0',
    ):
        assert line in text.splitlines(), text
    assert "alpha-secret" not in text
