"""The hooks' information about an agent's places, by how its exit was seen. End to end: tests/e2e/test_sites.py."""

from dataclasses import replace
from datetime import UTC, datetime

from watchdog.agents.agent import Agent
from watchdog.agents.sites import sites_known
from watchdog.core.agent import Policy, Registration, Status
from watchdog.core.sites import KnownSite, Site, known_of

MADE = datetime(2026, 1, 1, tzinfo=UTC)


def agent(status: Status, *, met_alive: bool) -> Agent:
    """With a worktree of known site, and a temp dir of unknown site."""
    reg = Registration("a1", "alpha", 0, "h", "b", worktree="/w", temp_dir="/t", created_at=MADE)
    made = Agent(reg, Policy(), status)
    made.amend(replace(reg, worktree_site=Site((1, 2), (3, 4), "refs/heads/x")))
    made.tree.met_alive = met_alive
    return made


def told(one: Agent, place: str) -> KnownSite:
    return known_of(sites_known(one, 2e9)[place])


def test_places_made_before_a_watched_exit_are_its_own() -> None:
    """Even with a site unknown until then; after an unwatched exit only places older than the agent are not."""
    assert told(agent(Status.ENDING, met_alive=True), "temp_dir") == KnownSite(None, 2e9 + 1, True)
    assert told(agent(Status.ENDING, met_alive=False), "temp_dir") == KnownSite(None, MADE.timestamp(), False)
    assert told(agent(Status.ENDING, met_alive=False), "worktree").site == Site((1, 2), (3, 4), "refs/heads/x")


def test_the_branch_of_an_agent_with_a_closed_row_was_compared_before() -> None:
    """A hook that is tried again for it must not take the agent's own new branch for another's."""
    assert told(agent(Status.COMPLETED, met_alive=False), "worktree").watched
