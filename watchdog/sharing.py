"""Which places of one agent another living agent has too: two may share a worktree, none may lose its place.

Names only: the daemon looks at no owner's path. The cleanup hooks get what is known here and compare it as the owner,
with links resolved. Agents of other uids do not count, or anybody could keep anybody's temp dir from being removed;
only root's hooks could remove what is another's, so for root all count.
"""

from collections.abc import Collection, Sequence

from watchdog.errors import BadRequest, Conflict
from watchdog.fleet import Agent, Fleet


def within(path: str, directory: str) -> bool:
    """Whether `path` is `directory` or lies inside it, by name."""
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def in_use(fleet: Fleet, agent: Agent, dead: Collection[str]) -> tuple[tuple[str, str], ...]:
    """Worktrees and temp dirs of the other living agents, each with whose it is in words. `dead`: ids proved dead.

    For an agent without a place of its own there is nothing to compare them with.
    """
    if agent.reg.worktree is None and agent.reg.temp_dir is None:
        return ()
    found = []
    for other in fleet:
        if other.agent_id == agent.agent_id or other.agent_id in dead or not _reached(other, agent.reg.owner_uid):
            continue
        who = f"{other.reg.name} ({other.agent_id})"
        found += [(path, who) for path in (other.reg.worktree, other.reg.temp_dir) if path is not None]
    return tuple(found)


def working_in(fleet: Fleet, agent: Agent) -> list[str]:
    """Other living agents of its owner in the same worktree, in words; not those above it, which share on purpose."""
    above = _above(fleet, agent.reg.parent_id)
    return [
        f"{other.reg.name} ({other.agent_id})"
        for other in fleet
        if agent.reg.worktree is not None
        and (other.reg.worktree, other.reg.owner_uid) == (agent.reg.worktree, agent.reg.owner_uid)
        and other.agent_id not in {agent.agent_id, *above}
    ]


def refuse_temp_dir(fleet: Fleet, path: str, owner_uid: int, parent: str | None, roots: Sequence[str] = ("/",)) -> None:
    """Raise Conflict when a temp dir is another living agent's place, holds one, or lies in another's temp dir.

    A sub-agent's may lie in that of an agent above it, whose TMPDIR it inherits: there it is kept while it lives. One
    of `roots` (`cleanup.roots`), or what holds one, is never removed and nobody's own: BadRequest, and as the temp dir
    of a row that came another way it is in nobody's way.
    """
    if _holds_root(path, roots):
        raise BadRequest(
            f"temp_dir: {path} is one of cleanup.roots, or holds one; take a directory of its own below it"
        )
    above = _above(fleet, parent)
    for other in fleet:
        theirs, tree = other.reg.temp_dir, other.reg.worktree
        if not _reached(other, owner_uid):
            continue
        if theirs == path:
            raise Conflict(f"temp_dir: {path} is that of another living agent; each needs one of its own")
        who = f"living agent {other.reg.name} ({other.agent_id})"
        for place in (theirs, tree):
            if place is not None and within(place, path):
                raise Conflict(f"temp_dir: {place} of the {who} lies in {path}; take a directory of its own")
        if theirs is not None and _holds_root(theirs, roots):
            theirs = None
        if theirs is not None and within(path, theirs) and other.agent_id not in above:
            raise Conflict(f"temp_dir: {path} lies in the temp dir of the {who}; take a directory of its own")


def _holds_root(path: str, roots: Sequence[str]) -> bool:
    return any(within(root, path) for root in ("/", *roots))


def _reached(other: Agent, owner_uid: int) -> bool:
    """Whether that owner's hooks could remove what is the other agent's."""
    return owner_uid in (0, other.reg.owner_uid)


def _above(fleet: Fleet, parent: str | None) -> set[str]:
    above: set[str] = set()
    while parent is not None and parent not in above:
        above.add(parent)
        agent = fleet.get(parent)
        parent = None if agent is None else agent.reg.parent_id
    return above
