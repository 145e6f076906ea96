"""The present owner of an agent's process by the kernel, checked before anything is done as its owner.

`core.ownership` has the rules. Here they are applied to an agent: a drop from root is kept as pending until it is
committed (`tracker.follow`), and any other mismatch makes the agent untouchable until a later check.
"""

import os

from watchdog.agents.agent import Agent
from watchdog.core.ownership import ROOT, Dropped, Owned, Ownership, Untouchable, ownership
from watchdog.errors import OwnerCallFailed
from watchdog.processes import identity

UNTOUCHABLE, UNSEEN = "untouchable", "unseen"


def look(agent: Agent) -> None:
    """Check once; the result is in `agent.owner`.

    A drop stays recorded: until it is committed, later checks compare with the new owner. A process that has ended can
    do nothing as any user, and a user's helper has that user's rights alone; only for root does the last check of the
    living process stay in force.
    """
    agent.owner.hidden(None)
    try:
        found = _seen(agent)
    except OSError as error:
        agent.owner.hidden(f"the owner of its process cannot be determined: {error.strerror or error}")
        return
    match found:
        case Dropped(uid):
            agent.owner.drops_to(uid)
        case Untouchable(why):
            agent.owner.touchable(why)
        case Owned.SAME:
            agent.owner.touchable(None)
        case None if agent.reg.owner_uid != ROOT:
            agent.owner.touchable(None)


def owner_of(agent: Agent) -> int:
    """The uid that its places, terminals, hooks and commands belong to, if they may be touched at this instant.

    Raises OwnerCallFailed: `untouchable`, `unseen`.
    """
    look(agent)
    if agent.owner.dropping is not None:
        raise OwnerCallFailed(UNTOUCHABLE, f"it has dropped from root to uid {agent.owner.dropping}; not committed yet")
    if agent.owner.untouchable is not None:
        raise OwnerCallFailed(UNTOUCHABLE, agent.owner.untouchable)
    if agent.owner.unseen is not None:
        raise OwnerCallFailed(UNSEEN, agent.owner.unseen)
    return agent.reg.owner_uid


def _seen(agent: Agent) -> Ownership | None:
    """None: it has no process, or no longer one. Raises OSError when the check failed."""
    if agent.identity is None:
        return None
    owner = agent.reg.owner_uid if agent.owner.dropping is None else agent.owner.dropping
    own: int | None = None
    try:
        pidfd = agent.tree.pidfd
        if pidfd is None:
            pidfd = own = identity.pin(agent.identity)
        uids = None if pidfd is None else identity.uids(pidfd)
        if pidfd is None or uids is None:
            return None
        found = ownership(owner, uids)
        dead = isinstance(found, Untouchable) and owner != ROOT and identity.ended(pidfd)  # a zombie
        return None if dead else found
    finally:
        if own is not None:
            os.close(own)
