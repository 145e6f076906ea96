"""What hooks are told of an agent's places, by how its end was seen. The whole story: tests/e2e/test_sites.py."""

import os
from datetime import UTC, datetime

from watchdog.core.model import Policy, Registration, Status
from watchdog.core.sites import Known, Site, known_of
from watchdog.fleet import Agent
from watchdog.sites import sites_known

MADE = datetime(2026, 1, 1, tzinfo=UTC)


def agent(status: Status, pidfd: int | None) -> Agent:
    """With a worktree that was seen, and a temp dir that was not."""
    reg = Registration("a1", "alpha", 0, "h", "b", worktree="/w", temp_dir="/t", created_at=MADE)
    made = Agent(reg, Policy(), status)
    made.lies_at(Site((1, 2), (3, 4), "refs/heads/x"), None)
    made.pidfd = pidfd
    return made


def told(one: Agent, place: str) -> Known:
    return known_of(sites_known(one, 2e9)[place])


def test_what_an_agent_made_before_an_end_that_was_watched_is_its_own() -> None:
    """Also when nobody had seen it yet; after an end that nobody watched only what is older than the agent is."""
    watched = agent(Status.ENDING, os.open("/dev/null", os.O_RDONLY))
    try:
        assert told(watched, "temp_dir") == Known(None, 2e9 + 1, True)
    finally:
        watched.close()
    assert told(agent(Status.ENDING, None), "temp_dir") == Known(None, MADE.timestamp(), False)
    assert told(agent(Status.ENDING, None), "worktree").site == Site((1, 2), (3, 4), "refs/heads/x")


def test_of_an_agent_whose_row_is_closed_the_branch_was_compared_before() -> None:
    """A hook that is tried again for it must not take the agent's own new branch for somebody's."""
    assert told(agent(Status.COMPLETED, None), "worktree").watched
