"""Which places of an agent other living agents use too: two may share a worktree, and none may lose its place.

Compared by name only: the daemon opens no owner's path. The cleanup hooks receive these places and compare them as the
owner, with links resolved. Agents of other uids do not count, or any user could keep any other's temp dir from being
removed. Only root's hooks could remove other users' places, so for root all count, up to the size of a request to its
helper: 256 agents of one user with places of 1,000 letters exceeded it, and root's cleanup failed for all its agents.
"""

import json
from collections.abc import Collection, Sequence
from itertools import accumulate, takewhile

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.errors import BadRequest, Conflict

OTHERS = 1 << 18  # bytes of other users' places, as JSON, that are sent to root's helper


def within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or lies inside it, by name."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def in_use(fleet: Fleet, agent: Agent, dead: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Worktrees and temp dirs of the other living agents, each with its owner as text. `dead`: ids proved dead.

    Empty for an agent without a place of its own: there is nothing to compare.
    """
    if agent.reg.worktree is None and agent.reg.temp_dir is None:
        return ()
    mine = [place for place in (agent.reg.worktree, agent.reg.temp_dir) if place is not None]
    return places(fleet, agent.reg.owner_uid, mine, {agent.agent_id, *dead})


def places(
    fleet: Fleet, owner_uid: int, near: Sequence[str] = (), without: Collection[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Worktrees and temp dirs that this owner's hooks leave alone, each with its agent as text; not of `without`.

    Other users' places that contain or lie in one of `near` come first, then the shortest: a user that fills the room
    with long ones loses its own. A place that is left out is still kept while a process uses it (`owner.occupancy`).
    """
    own: list[tuple[str, str]] = []
    others: list[tuple[str, str]] = []
    for other in fleet:
        if other.agent_id in without or not _reached(other, owner_uid):
            continue
        who = f"{other.reg.name} ({other.agent_id})"
        found = [(path, who) for path in (other.reg.worktree, other.reg.temp_dir) if path is not None]
        (own if other.reg.owner_uid == owner_uid else others).extend(found)

    def size(pair: tuple[str, str]) -> int:
        return len(json.dumps(pair))

    def is_apart(pair: tuple[str, str]) -> bool:
        return not any(within(pair[0], place) or within(place, pair[0]) for place in near)

    others.sort(key=lambda pair: (is_apart(pair), size(pair)))
    room = takewhile(lambda used: used <= OTHERS, accumulate(map(size, others)))
    return (*own, *(pair for pair, _ in zip(others, room, strict=False)))


def sharing_worktree(fleet: Fleet, agent: Agent) -> list[str]:
    """Other living agents of its owner in the same worktree, as text; not its ancestors, which share on purpose."""
    above = _above(fleet, agent.reg.parent_id)
    return [
        f"{other.reg.name} ({other.agent_id})"
        for other in fleet
        if agent.reg.worktree is not None
        and (other.reg.worktree, other.reg.owner_uid) == (agent.reg.worktree, agent.reg.owner_uid)
        and other.agent_id not in {agent.agent_id, *above}
    ]


def refuse_temp_dir(fleet: Fleet, path: str, owner_uid: int, parent: str | None, roots: Sequence[str] = ("/",)) -> None:
    """Raise Conflict when a temp dir is or contains another living agent's place, or lies in another's temp dir.

    A sub-agent's may lie in the temp dir of an ancestor, whose TMPDIR it inherits; it is kept while the sub-agent
    lives. One of `roots` (`cleanup.roots`), or a parent of one, is never removed and cannot be a temp dir: BadRequest;
    in a row that came another way it blocks no other agent.
    """
    if _holds_root(path, roots):
        raise BadRequest(
            f"temp_dir: {path} is one of cleanup.roots, or contains one; use a separate directory below it"
        )
    above = _above(fleet, parent)
    for other in fleet:
        theirs, tree = other.reg.temp_dir, other.reg.worktree
        if not _reached(other, owner_uid):
            continue
        if theirs == path:
            raise Conflict(f"temp_dir: {path} already belongs to another living agent; each agent needs its own")
        who = f"living agent {other.reg.name} ({other.agent_id})"
        for place in (theirs, tree):
            if place is not None and within(place, path):
                raise Conflict(f"temp_dir: {place} of the {who} lies in {path}; use a separate directory")
        if theirs is not None and _holds_root(theirs, roots):
            theirs = None
        if theirs is not None and within(path, theirs) and other.agent_id not in above:
            raise Conflict(f"temp_dir: {path} lies in the temp dir of the {who}; use a separate directory")


def _holds_root(path: str, roots: Sequence[str]) -> bool:
    return any(within(root, path) for root in ("/", *roots))


def _reached(other: Agent, owner_uid: int) -> bool:
    """Whether that owner's hooks could remove the other agent's places."""
    return owner_uid in (0, other.reg.owner_uid)


def _above(fleet: Fleet, parent: str | None) -> set[str]:
    above: set[str] = set()
    while parent is not None and parent not in above:
        above.add(parent)
        agent = fleet.get(parent)
        parent = None if agent is None else agent.reg.parent_id
    return above
