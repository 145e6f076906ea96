"""What is remembered of a tree from one scan to the next: asks for a pidfd of each process, sends nothing."""

import os
from collections.abc import Iterable
from dataclasses import replace

from watchdog.core.model import TreeMember
from watchdog.processes import identity as identities
from watchdog.processes.table import ProcessTable
from watchdog.processes.tree import Root


def with_inodes(members: Iterable[TreeMember]) -> tuple[TreeMember, ...]:
    """The members that are still there, with their pidfd's inode where the kernel has one: fit to be remembered.

    One that cannot be looked at is kept as it is.
    """
    found = []
    for member in members:
        try:
            identity = identities.complete(member.identity)
        except identities.LookFailed:
            identity = member.identity
        if identity is not None:
            found.append(replace(member, identity=identity))
    return tuple(found)


def unseen(table: ProcessTable, root: Root) -> tuple[TreeMember, ...]:
    """Remembered members that a scan did not see, but that are not proved gone (hidepid, a failed read): still its."""
    found = []
    for identity in root.remembered:
        if identity.host == table.host and table.find(identity) is None:
            try:
                pidfd = identities.pin(identity)
            except identities.LookFailed:
                pidfd = -1
            if pidfd is not None:
                found.append(TreeMember(identity, 0, root.owner_uid, "?", "?", "remembered"))
            if pidfd is not None and pidfd >= 0:
                os.close(pidfd)
    return tuple(found)
