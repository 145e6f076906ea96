"""What becomes known of an agent after its registration: its process, its owner, its cgroup, its places."""

from dataclasses import replace

import pytest

from tests.registry.samples import HERE, NOW, add
from watchdog.core.agent import Status
from watchdog.core.sites import Site
from watchdog.errors import Conflict
from watchdog.registry.registry import Registry


def test_a_pid_is_taken_once(registry: Registry) -> None:
    """Setting the same process again is harmless; another one is refused."""
    add(registry, status=Status.STARTING)
    assert registry.agent_details.set_identity("a1", HERE, Status.RUNNING, NOW, "uid 1000")
    assert registry.agent_details.set_identity("a1", HERE, Status.RUNNING, NOW, "uid 1000")
    assert not registry.agent_details.set_identity(
        "a1", replace(HERE, start_ticks=100), Status.RUNNING, NOW, "uid 1000"
    )
    assert not registry.agent_details.set_identity("nobody", HERE, Status.RUNNING, NOW, "uid 1000")
    row = registry.agents.get("a1")
    assert row is not None
    assert (row.identity, row.status, row.started_at) == (HERE, Status.RUNNING, NOW)
    assert [event.event for event in registry.history.events(0)] == ["agent.registered", "agent.pid_known"]


def test_an_owner_changes_once_and_from_root_alone(registry: Registry) -> None:
    """A user to which an agent of root's dropped owns it for good."""
    add(registry, owner_uid=0)
    assert not registry.agents.by_name("a1")[0].registration.dropped
    assert registry.agent_details.drop_owner("a1", 1000, NOW)
    assert registry.agent_details.drop_owner("a1", 1000, NOW), "once more is no fault"
    assert not registry.agent_details.drop_owner("a1", 2000, NOW)
    assert not registry.agent_details.drop_owner("a1", 0, NOW)
    [row] = registry.agents.by_name("a1", owner_uid=1000)
    assert row.registration.dropped
    assert [event.event for event in registry.history.events(0, agent_id="a1")].count("agent.owner_changed") == 1
    assert not registry.agent_details.drop_owner("nobody", 1000, NOW)


def test_a_pid_that_is_told_later_changes_only_roots_owner(registry: Registry) -> None:
    """Root may register an agent and start it as a user; an agent of a user stays that user's."""
    for agent_id, owner, process, came in (("a1", 0, 1000, 1000), ("a2", 1000, 2000, 1000), ("a3", 1000, 0, 1000)):
        add(registry, agent_id, Status.STARTING, owner_uid=owner)
        assert registry.agent_details.set_identity(agent_id, HERE, Status.RUNNING, NOW, "test", process)
        row = registry.agents.get(agent_id)
        assert row is not None
        assert (row.registration.owner_uid, row.registration.dropped) == (came, False)


def test_the_cgroup_of_an_agent_is_kept_as_long_as_it_lives(registry: Registry) -> None:
    add(registry)
    assert registry.agent_details.set_cgroup("a1", "/user.slice/user-1000.slice/agent-a1.scope")
    row = registry.agents.get("a1")
    assert row is not None and row.registration.cgroup == "/user.slice/user-1000.slice/agent-a1.scope"
    registry.agents.transition("a1", {Status.RUNNING}, Status.COMPLETED, now=NOW, who="t", why="exit 0")
    assert not registry.agent_details.set_cgroup("a1", "/other")


def test_what_lay_at_its_places_is_remembered(registry: Registry) -> None:
    """None at first, as in a row of version 0.1; saved for live agents only; a broken value names its column."""
    row = add(registry, "a1")
    assert (row.registration.worktree_site, row.registration.temp_site) == (None, None)
    site = Site((1, 2), (3, None), "refs/heads/wt", 4.5)
    assert registry.agent_details.set_sites(replace(row.registration, worktree_site=site))
    kept = registry.agents.get("a1")
    assert kept is not None and (kept.registration.worktree_site, kept.registration.temp_site) == (site, None)
    with registry.engines.begin(registry.engines.durable) as connection:
        connection.exec_driver_sql("""UPDATE agent_lifecycle SET sites = '{"worktree": {"directory": 1}}'""")
    with pytest.raises(Conflict, match="sites: worktree"):
        registry.agents.get("a1")
