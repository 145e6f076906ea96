"""What of an agent is shown to which user: everything to its owner, and to others none of its texts."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from tests.agents.state_of import put
from tests.registry.samples import FULL, NOW
from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.control.views import agent as views
from watchdog.core.agent import Policy, Status, Verdict
from watchdog.core.peer import Peer
from watchdog.core.process import TreeMember
from watchdog.registry.rows import AgentRow, EventRow, HoldRow

OWNER, OTHER, ROOT = Peer(1000, 1000, 7), Peer(1001, 1001, 8), Peer(0, 0, 9, admin=True)
PUBLIC = {"agent_id", "name", "owner_uid", "status", "verdict"}
SECRET = "sk-ant-a1b2c3d4e5f6a1b2c3d4e5f6"
ENDED = AgentRow(FULL, Status.COMPLETED, 1, NOW, completed_at=NOW, note="page 3", silence_seconds=4.0)


def living() -> Agent:
    """One that says a lot of itself."""
    agent = Agent(FULL, Policy(), Status.RUNNING)
    put(agent, promised=True, beats=3, silence=timedelta(seconds=1.26))
    agent.judged.verdict, agent.heartbeat.said.note, agent.heartbeat.said.tool = (
        Verdict.HEALTHY,
        f"with {SECRET}",
        f"curl {SECRET}",
    )
    assert FULL.identity is not None
    agent.tree.members = (TreeMember(FULL.identity, 1, 1000, "agent.sh", "S", "main", 1.234, 4096),)
    return agent


def test_times_are_utc_with_a_z_and_durations_are_tenths_of_seconds() -> None:
    """What is not known is null."""
    assert views.stamp(datetime(2026, 11, 30, 1, 2, 3, 456789, tzinfo=UTC)) == "2026-11-30T01:02:03.456Z"
    assert views.seconds(timedelta(seconds=1.26)) == 1.3
    assert (views.stamp(None), views.seconds(None)) == (None, None)


def test_of_other_peoples_agents_five_words_are_shown() -> None:
    """Never evidence, a note, a command, a path; living or ended."""
    for one in (living(), ENDED):
        assert set(views.listed(one, OTHER, NOW)) == PUBLIC
        for peer in (OWNER, ROOT):
            shown = views.listed(one, peer, NOW)
            assert set(shown) > PUBLIC
            assert shown["worktree"] == FULL.worktree


def test_a_secret_in_an_agents_own_texts_is_hidden_from_all() -> None:
    """The reader of a note is not its writer."""
    shown = views.full(living(), Holds(), NOW)
    assert SECRET not in json.dumps(shown)
    assert str(shown["note"]).startswith("with ")


def test_everything_of_a_living_agent_can_be_sent() -> None:
    """With the number of its verdict's line, as the documents count them."""
    agent = living()
    shown = json.loads(json.dumps(views.full(agent, Holds(), NOW)))
    assert shown["line"] == [*Verdict].index(Verdict.HEALTHY) + 1 == 7
    assert (shown["seconds_since_heartbeat"], shown["silence_seconds"]) == (1.3, 1.3)
    assert shown["members"][0] == {
        "pid": 4242,
        "name": "agent.sh",
        "state": "S",
        "via": "main",
        "uid": 1000,
        "cpu_seconds": 1.23,
        "rss_bytes": 4096,
    }
    agent.heartbeat.rhythm.beats, agent.judged.verdict = 0, None
    shown = views.full(agent, Holds(), NOW)
    assert (shown["seconds_since_heartbeat"], shown["line"], shown["verdict"]) == (None, None, None)


def test_of_one_that_has_ended_nothing_will_change() -> None:
    """Its end is described if there is no error."""
    shown = views.full(ENDED, Holds(), NOW)
    assert shown["outlook"] == ["It has ended; nothing will change."]
    assert shown["why"] == "exited by itself, exit status unknown"
    assert views.full(replace(ENDED, exit_code=0), Holds(), NOW)["why"] == "exited by itself with status 0"
    assert views.full(replace(ENDED, error_message="stalled"), Holds(), NOW)["why"] == "stalled"
    assert views.full(replace(ENDED, status=Status.RUNNING), Holds(), NOW)["why"] == ""


def test_why_something_cannot_be_killed_is_its_owners_to_know() -> None:
    """Every user may know that it lives on."""
    agent = living()
    agent.ending.lives_on = "pid 7 in D"
    assert views.unkillable(agent, OWNER)["why"] == "pid 7 in D"
    assert views.unkillable(agent, OTHER) == {"agent_id": FULL.agent_id, "name": "alpha", "why": None}


def test_the_reason_of_a_hold_is_shown_to_who_may_see_its_agent() -> None:
    """A hold on all agents is shown to all."""
    row = HoldRow(1, FULL.agent_id, "secret plans", 0, NOW)
    agent = living()
    assert views.hold(row, OTHER, agent)["reason"] is None
    assert views.hold(row, OWNER, agent)["reason"] == "secret plans"
    assert views.hold(replace(row, agent_id=None), OTHER, None)["reason"] == "secret plans"


def test_an_event_has_the_time_of_its_row() -> None:
    """And its evidence as it was stored."""
    row = EventRow(5, NOW, "agent.killed", "daemon", "stalled", evidence={"x": 1})
    shown = views.event(row)
    assert (shown["id"], shown["at"], shown["evidence"]) == (5, "2026-11-27T22:00:00.123Z", {"x": 1})
