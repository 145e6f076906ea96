"""One scan for all agents, and the result for each: its tree, its marks, the cgroup of its main process.

In the daemon the reader runs it and keeps the previous scan.

Tests: tests/processes/test_shared_services.py, tests/processes/test_relays.py.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from watchdog.core.process import Identity, TreeMember
from watchdog.core.services import CODEX, PARTS
from watchdog.processes import identity as identities
from watchdog.processes import table, tree, vendor_markers
from watchdog.processes import tree as trees
from watchdog.processes.bounded import bounded


class Trees(dict[str, tuple[TreeMember, ...]]):
    """The trees by agent id. `whole` and `lost`: as in the scan's `table.ProcessTable`.

    `passed`: agents of which a process was found that had exited before its identity could be completed.
    """

    whole: bool = True
    lost: bool = False
    passed: frozenset[str] = frozenset()


_previous: table.ProcessTable | None = None
_served: frozenset[vendor_markers.Served] = frozenset()  # marks seen below shared services that a process still carries


class Service(NamedTuple):
    """A shared service (`core.services`)."""

    pid: int
    uid: int
    name: str


@bounded
def survey(host: str, roots: list[tree.Root], scanner_pid: int) -> tuple[list[tree.Root], Trees, tuple[Service, ...]]:
    """Scan, assign the marks, sort processes into trees, and complete new identities. Returns the roots with what is to
    be remembered of them, the trees, and the services that no agent owns.

    Raises LookFailed when /proc cannot be read at all.
    """
    global _previous, _served
    seen = table.scan(
        host,
        frozenset(root.owner_uid for root in roots),
        cgroups_of=frozenset(root.main.pid for root in roots if root.main is not None),
        own_cgroups=frozenset(root.cgroup for root in roots if root.cgroup is not None),
        previous=_previous,
        scanner_pid=scanner_pid,
    )
    seen = _previous = _with_bound(_recognised(seen, roots), roots)
    sources = [
        vendor_markers.MarkedAgent(r.agent_id, r.owner_uid, r.main, r.marks) for r in roots if r.main is not None
    ]
    made = vendor_markers.made_inside(seen, sources)
    roots = [_seen(seen, root, made.get(root.agent_id, frozenset())) for root in roots]
    found = Trees(tree.trees(seen, roots, _served))
    carried = {(mark, row.marker) for row in seen.rows.values() for mark in row.vendors or ()}
    mains = {root.main.pid for root in roots if seen.find(root.main) is not None and root.main is not None}
    _served = frozenset(one for one in _served if one[:2] in carried) | vendor_markers.below_services(seen, mains)
    for root in roots:
        found[root.agent_id] += trees.unseen(seen, root)
    if identities.pidfd_inodes_work():
        found = _completed(found)
    found.whole, found.lost = seen.whole, seen.lost
    known = ((row.stat.pid, row.uid, row.service) for row in seen.rows.values() if row.stat.pid not in mains)
    shared = tuple(Service(pid, uid, name) for pid, uid, name in known if name is not None and name != PARTS)
    return roots, found, shared


def _recognised(seen: table.ProcessTable, roots: Iterable[tree.Root]) -> table.ProcessTable:
    """Add the start ticks of processes that hung before a scan could read them, if an agent knows their inode."""
    unknown = {pid for pid, row in seen.rows.items() if row.stat.start_ticks == 0 and pid in seen.unreadable}
    if not unknown:
        return seen
    rows = dict(seen.rows)
    for root in roots:
        for known in (root.main, *root.remembered):
            if known is not None and known.pid in unknown and _is_it(known):
                row = rows[known.pid]
                rows[known.pid] = row._replace(stat=row.stat._replace(start_ticks=known.start_ticks))
    return replace(seen, rows=rows)


def _with_bound(seen: table.ProcessTable, roots: Iterable[tree.Root]) -> table.ProcessTable:
    """Mark the known services of sessions if their command line hangs or was not read: one that was started by hand in
    a shell leads no session of its own."""
    services = {service for root in roots for _, service in root.sessions}
    found = {row.stat.pid: row for one in services if (row := seen.find(one)) is not None and row.service is None}
    if not found:
        return seen
    bound = {pid: row._replace(service=CODEX) for pid, row in found.items()}
    return replace(seen, rows={**seen.rows, **bound})


def _is_it(known: Identity) -> bool:
    try:
        pidfd = identities.pin(known)
    except OSError:
        return False
    if pidfd is None:
        return False
    os.close(pidfd)
    return known.pidfd_inode is not None


def _seen(seen: table.ProcessTable, root: tree.Root, marks: frozenset[str]) -> tree.Root:
    """Add what this scan saw of its main process, while that exists."""
    main = seen.find(root.main)
    home = (None if main is None or main.stat.dead else main.cgroup) or root.home_cgroup
    return root if (marks, home) == (root.marks, root.home_cgroup) else replace(root, marks=marks, home_cgroup=home)


def _completed(found: Trees) -> Trees:
    """Add the pidfd's inode to members that were not seen before."""
    new = [one for members in found.values() for one in members if one.identity.pidfd_inode is None]
    if not new:
        return found
    whole = {replace(one.identity, pidfd_inode=None): one for one in trees.with_inodes(new)}
    pinned = Trees((agent_id, tuple(_in_place(members, whole))) for agent_id, members in found.items())
    pinned.passed = frozenset(agent_id for agent_id, members in found.items() if len(members) > len(pinned[agent_id]))
    return pinned


def _in_place(members: Iterable[TreeMember], whole: Mapping[Identity, TreeMember]) -> Iterable[TreeMember]:
    members = list(members)
    yield from (one for one in members if one.identity.pidfd_inode is not None)
    yield from (whole[one.identity] for one in members if one.identity in whole)
