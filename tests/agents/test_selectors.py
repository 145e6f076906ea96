"""A selector finds exactly the intended agent, among those that the peer may touch."""

import os

import pytest

from tests.agents.test_fleet import agent, fleet
from watchdog.agents import selectors
from watchdog.core.peer import Peer
from watchdog.errors import AgentNotFound, Ambiguous, BadRequest, Forbidden, NotYours

ALICE, BOB = Peer(1000, 1000, os.getpid()), Peer(1001, 1001, os.getpid())
ADMIN = Peer(0, 0, os.getpid(), admin=True)


def test_a_name_of_two_agents_is_refused_with_their_ids() -> None:
    """Two users may each have an alpha; root must say which."""
    both = fleet(agent("a" * 32), agent("b" * 32, uid=1001))

    with pytest.raises(Ambiguous, match=f"{'a' * 32} .uid 1000., {'b' * 32} .uid 1001."):
        selectors.select_one(both, "alpha")
    assert selectors.select_one(both, "alpha", frozenset({"a" * 32})).agent_id == "a" * 32


def test_targets_find_by_id_prefix_tag_task_and_type() -> None:
    """Every form of a selector, and no other agent."""
    one = agent("a" * 32, tags=("x",), task_id="T-1", agent_type="codex")
    both = fleet(one, agent("b" * 32, name="beta"))

    for target in ("a" * 32, "a" * 8, "alpha", "tag:x", "task:T-1", "type:codex"):
        assert [one] == selectors.select(both, target), target
    assert len(selectors.select(both, "all")) == 2
    with pytest.raises(AgentNotFound):
        selectors.select(both, "aaaa")


def test_a_user_sees_its_own_agents() -> None:
    """Another user's agent of the same name makes it ambiguous only for an admin."""
    both = fleet(agent("a" * 32), agent("b" * 32, uid=1001))
    assert selectors.resolve(both, ALICE, "alpha").agent_id == "a" * 32
    assert selectors.resolve(both, BOB, "alpha").agent_id == "b" * 32
    assert selectors.visible(both, BOB) == {"b" * 32}
    with pytest.raises(Ambiguous, match="fits 2 living agents"):
        selectors.resolve(both, ADMIN, "alpha")


def test_an_agent_of_another_user_is_reported_as_such() -> None:
    """Its existence is no secret; a name without an agent is not found."""
    alices = fleet(agent())
    with pytest.raises(
        NotYours, match="'alpha' is another user's agent; you are uid 1001 and may act only on your own"
    ):
        selectors.resolve(alices, BOB, "alpha")
    with pytest.raises(AgentNotFound, match="no living agent is called 'beta'"):
        selectors.resolve(alices, BOB, "beta")
    assert selectors.is_anybodys(alices, "alpha") and not selectors.is_anybodys(alices, "beta")


def test_a_pid_of_another_pid_namespace_means_no_agent() -> None:
    """A peer without a pid here (0) is in a namespace that the daemon cannot see; eight digits may begin an id."""
    inside = Peer(1000, 1000, 0)
    one = fleet(agent("12345678" + "a" * 24))
    with pytest.raises(AgentNotFound, match="42 is a number of your own pid namespace"):
        selectors.resolve(one, inside, "42")
    assert selectors.resolve(one, inside, "12345678").agent_id.startswith("12345678")
    assert not selectors.means_another(ALICE, "42")


def test_a_parent_lives_and_has_the_same_owner() -> None:
    both = fleet(agent(), agent("b" * 32, "beta", 1001))
    assert selectors.parent_of(both, ALICE, "alpha", 1000) == "a" * 32
    with pytest.raises(BadRequest, match="parent: 'nobody' is not a living agent; name one, or leave this out"):
        selectors.parent_of(both, ALICE, "nobody", 1000)
    with pytest.raises(Forbidden, match="another user"):
        selectors.parent_of(both, ALICE, "beta", 1000)
    with pytest.raises(Forbidden, match="parent: beta belongs to uid 1001, this agent to uid 1000"):
        selectors.parent_of(both, ADMIN, "beta", 1000)
