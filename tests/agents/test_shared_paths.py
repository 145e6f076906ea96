"""Two agents may work in one place; neither may lose it when the other ends."""

import json

import pytest

from tests.agents.test_fleet import agent
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.shared_paths import in_use, refuse_temp_dir, sharing_worktree
from watchdog.core.agent import Status
from watchdog.errors import BadRequest, Conflict

A, B, C = "a" * 32, "b" * 32, "c" * 32


def fleet_of(*agents: Agent) -> Fleet:
    fleet = Fleet()
    for one in agents:
        fleet.add(one)
    return fleet


@pytest.mark.parametrize("status", [Status.QUEUED, Status.RUNNING, Status.ENDING, Status.UNKILLABLE])
def test_an_agent_that_is_not_proven_dead_keeps_its_places(status: Status) -> None:
    """While it is being killed it is not dead; while its own hooks run it is."""
    ended = agent(A, worktree="/w/shared", temp_dir="/t/a")
    other = agent(B, "beta", worktree="/w/shared", temp_dir="/t/b")
    other.status = status
    fleet = fleet_of(ended, other, agent(C, "gamma"))

    who = f"beta ({B})"
    assert in_use(fleet, ended, {A}) == (("/w/shared", who), ("/t/b", who))
    assert in_use(fleet, ended, {A, B}) == ()


def test_another_uids_agents_keep_places_only_from_root() -> None:
    """Otherwise any user could protect any temp dir; only root's hooks could remove other users' places."""
    mine, his = agent(A, uid=1000, temp_dir="/t/a"), agent(B, uid=1001, temp_dir="/t/a/b")
    roots = agent(C, uid=0, temp_dir="/t")
    fleet = fleet_of(mine, his, roots)

    assert in_use(fleet, mine, ()) == ()
    assert [path for path, _ in in_use(fleet, roots, ())] == ["/t/a", "/t/a/b"]


def test_no_user_makes_the_places_longer_than_a_helper_accepts() -> None:
    """256 agents of one user with 1,000 letters of four bytes each were 3 MB of JSON, and root's cleanup failed.

    Places near root's own and short ones come first: those of an honest user's agents.
    """
    long, roots = "/\N{GRINNING FACE}" * 500, agent(C, uid=0, temp_dir="/t")
    hostile = [agent(f"{n:032}", uid=1001, temp_dir=f"/h/{n}{long}", worktree=f"/t/{n}{long}") for n in range(256)]
    fleet = fleet_of(roots, *hostile, agent(A, uid=1000, temp_dir="/home/a/t"), agent(B, uid=1000, worktree="/t/b"))

    told = in_use(fleet, roots, ())
    assert len(json.dumps(told)) < 1 << 19
    assert told[0][0] == "/t/b"
    assert "/home/a/t" in [path for path, _ in in_use(fleet, agent(roots.agent_id, uid=0, temp_dir="/r"), ())]


@pytest.mark.parametrize("path", ["/t/b", "/t/b/sub", "/t", "/w/b", "/w"])
def test_a_temp_dir_must_not_overlap_another_agents_places(path: str) -> None:
    """It is removed at the end, with its content; the answer names the other agent."""
    fleet = fleet_of(agent(B, "beta", temp_dir="/t/b", worktree="/w/b"))

    with pytest.raises(Conflict, match="temp_dir: ") as refused:
        refuse_temp_dir(fleet, path, 1000, None)
    assert path == "/t/b" or f"beta ({B})" in str(refused.value)


def test_a_temp_dir_beside_another_or_for_a_sub_agent_is_accepted() -> None:
    """Names with a common prefix; in a worktree; in the TMPDIR that a sub-agent, or the agent itself, inherits."""
    fleet = fleet_of(agent(A, temp_dir="/t/a", worktree="/w/a"), agent(B, "beta", parent_id=A))

    for path in ("/t/ab", "/t/a-1", "/w/a/tmp"):
        refuse_temp_dir(fleet, path, 1000, None)
    refuse_temp_dir(fleet, "/t/a/sub", 1000, A)
    refuse_temp_dir(fleet, "/t/a/sub", 1000, B)
    refuse_temp_dir(fleet, "/t/a/sub", 1001, None)
    with pytest.raises(Conflict):
        refuse_temp_dir(fleet, "/t", 1000, A)


@pytest.mark.parametrize("path", ["/", "/t", "/t/roots"])
def test_a_root_of_temp_dirs_belongs_to_no_agent(path: str) -> None:
    """Case G3: it is never removed.

    An agent that had it, by a foreign registry for example, blocked all others' temp dirs.
    """
    roots = ("/t/roots", "/var/tmp")
    with pytest.raises(BadRequest, match="use a separate directory below it"):
        refuse_temp_dir(fleet_of(), path, 1000, None, roots)

    refuse_temp_dir(fleet_of(agent(A, temp_dir=path)), "/t/roots/mine", 1000, None, roots)


def test_an_agent_in_anothers_worktree_gets_a_note() -> None:
    """F2: a second agent started in the directory of a living one; a sub-agent shares its parent's on purpose."""
    first = agent(A, "alpha", worktree="/w/shared")
    second, helper = agent(B, "beta", worktree="/w/shared"), agent(C, "gamma", worktree="/w/shared", parent_id=A)
    fleet = fleet_of(first, second, helper, agent("d" * 32, "delta", uid=1001, worktree="/w/shared"))

    assert sharing_worktree(fleet, second) == [f"alpha ({A})", f"gamma ({C})"]
    assert sharing_worktree(fleet, helper) == [f"beta ({B})"]
    assert sharing_worktree(fleet, agent("e" * 32, "epsilon")) == []
