"""What is remembered of a tree from one scan to the next: asks for a pidfd of each process, sends nothing."""

import os
from collections.abc import Iterable
from dataclasses import replace

from watchdog.core.process import Identity, TreeMember
from watchdog.processes import bounded as bounds
from watchdog.processes import identity as identities
from watchdog.processes.table import UNREAD, ProcessTable
from watchdog.processes.tree import Root


def with_inodes(members: Iterable[TreeMember]) -> tuple[TreeMember, ...]:
    """The members that are still there, with their pidfd's inode where the kernel has one: fit to be remembered.

    One that cannot be looked at is kept as it is.
    """
    given = list(members)
    completed = bounds.each(range(len(given)), lambda number: identities.complete(given[number].identity))
    found = []
    for number, member in enumerate(given):
        identity = completed[number]
        if isinstance(identity, identities.LookFailed):
            found.append(member)
        elif isinstance(identity, OSError):
            raise identity
        elif identity is not None:
            found.append(replace(member, identity=identity))
    return tuple(found)


def unseen(table: ProcessTable, root: Root) -> tuple[TreeMember, ...]:
    """The main process and remembered members that a scan did not see, but that are not proved gone: still its.

    It did not see them for hidepid, or since their files cannot be read.
    """
    known = dict.fromkeys((*([] if root.main is None else [root.main]), *root.remembered))
    missing = [one for one in known if one.host == table.host and table.find(one) is None]
    there = bounds.each(range(len(missing)), lambda number: _is_there(missing[number]))
    found = []
    for number, identity in enumerate(missing):
        answer = there[number]
        if isinstance(answer, OSError) and not isinstance(answer, identities.LookFailed):
            raise answer
        if answer is not False:
            via = "main" if identity == root.main else "remembered"
            found.append(TreeMember(identity, 0, root.owner_uid, UNREAD, UNREAD, via))
    return tuple(found)


def _is_there(identity: Identity) -> bool:
    pidfd = identities.pin(identity)
    if pidfd is not None:
        os.close(pidfd)
    return pidfd is not None
