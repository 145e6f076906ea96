"""Which process belongs to which agent: pure, on one `ProcessTable`.

Evidence that a process belongs to an agent: it is the main process; it is in the cgroup that `run` made; it carries the
marker (and has the owner's uid, or descends from the agent); it is in the session or the group that the agent itself
leads; it descends from a member; it carries a vendor's marker whose value was made in the agent's tree
(`vendor_markers`) and can have got it there; it was a member before. If several agents have evidence, the innermost
agent wins: what a child agent starts belongs to the child. Merely being in a session, group or cgroup proves nothing.

Never a member: pid 1, kernel threads, the daemon and its ancestors and children, a `run` wrapper, spared programs and
what those started (also processes that have left a pane of theirs), children of a service manager in a unit of their
own, and a shared service (`core.services`) with what runs below it. Such a fence ends at the next agent's main process:
an agent in a pane of a spared tmux server is an agent.

Below a shared service only the session's id shows which agent a process belongs to: it carries the marker of the agent
that started the service first, and may be in that agent's cgroup. It belongs, with its descendants, to the agent that
has that session with that service: below another service (of a copied home directory, in a container, of another
daemon's agents) the same id is another session.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

from watchdog.core.process import Identity, TreeMember
from watchdog.processes import bounded as bounds
from watchdog.processes import identity as identities
from watchdog.processes import procfs
from watchdog.processes.descent import Descent
from watchdog.processes.table import SERVICE_MANAGERS, UNREAD, ProcessTable, Row
from watchdog.processes.vendor_markers import Process, Served, below_services


@dataclass(frozen=True, slots=True)
class Root:
    """What an agent's tree depends on."""

    agent_id: str
    owner_uid: int
    main: Identity | None
    parent_id: str | None = None
    wrapped: bool = False  # started by `run`: the main process's parent is our wrapper, which is not a member
    wrapper: Identity | None = None  # the known wrapper: what is reparented to it belongs to the agent
    cgroup: str | None = None  # the cgroup that `run` made for it, and no other agent's
    home_cgroup: str | None = None  # its main process's last known cgroup; tells a stray child from a unit
    remembered: tuple[Identity, ...] = ()  # members at the last scan
    marks: frozenset[str] = frozenset()  # values of vendors' markers that were made in its tree
    sessions: frozenset[tuple[str, Identity]] = frozenset()  # sessions of shared services: id and service
    spare: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Fence:
    """What lies between a process and the nearest agent's main process above it."""

    names: frozenset[str] = frozenset()  # spared programs
    unit: int | None = None  # pid of the last child of a service manager on the way
    closed: bool = False  # the daemon itself
    shared: frozenset[Process] = frozenset()  # the shared service; for an orphan all that it may come from


def _inside(path: str | None, of: str | None) -> bool:
    if path is None or of is None:
        return False
    return path == of or (of != "/" and path.startswith(f"{of}/"))


def trees(
    table: ProcessTable, agents: Iterable[Root], served: frozenset[Served] = frozenset()
) -> dict[str, tuple[TreeMember, ...]]:
    """The living members of each agent's tree, the main process first, then by start. No process is in two trees.

    `served`: what earlier scans saw below shared services, in addition to this one.
    """
    sorting = _Sorting(table, {root.agent_id: root for root in agents}, served)
    members: dict[str, list[TreeMember]] = {agent_id: [] for agent_id in sorting.roots}
    known = {agent_id: _known(root) for agent_id, root in sorting.roots.items()}
    for pid in sorted(table.rows, key=lambda pid: (table.rows[pid].stat.start_ticks, pid)):
        agent_id, via = sorting.verdict(pid)
        row = table.rows[pid]
        if agent_id is None or pid in sorting.hidden or row.stat.dead:
            continue
        members[agent_id].append(_member(table, known[agent_id].get(pid, ()), row, via))
    return {agent_id: tuple(sorted(found, key=lambda m: m.via != "main")) for agent_id, found in members.items()}


def _known(root: Root) -> dict[int, list[Identity]]:
    """Known identities by pid: a linear search in one user's tree of 3,000 processes would delay all users' kills."""
    found: dict[int, list[Identity]] = {}
    for known in (root.main, *root.remembered):
        if known is not None:
            found.setdefault(known.pid, []).append(known)
    return found


def _member(table: ProcessTable, known: Iterable[Identity], row: Row, via: str) -> TreeMember:
    identity = table.identity(row.stat.pid)
    identity = next((one for one in known if one.same_process(identity)), identity)  # it may know the inode
    return TreeMember(
        identity=identity,
        parent_pid=row.stat.parent_pid,
        uid=row.uid,
        name=row.stat.name,
        state=row.stat.state,
        via=via,
        cpu_seconds=row.stat.cpu_ticks / procfs.TICKS_PER_SECOND,
        rss_bytes=row.stat.rss_pages * procfs.PAGE_BYTES,
        reaped_seconds=row.stat.reaped_ticks / procfs.TICKS_PER_SECOND,
    )


def _forked_from(stat: procfs.Stat, parent: procfs.Stat) -> bool:
    """Whether it looks like a fork of its parent. The name alone proves nothing, as any process can choose it."""
    return (stat.name, stat.session, stat.group) == (parent.name, parent.session, parent.group)


class _Sorting:
    """Decides for each process, parents before children, and remembers the decisions."""

    def __init__(self, table: ProcessTable, roots: dict[str, Root], served: frozenset[Served]) -> None:
        self.table = table
        self.descent = Descent(table)
        self.roots = roots
        self.rows = table.rows
        self.mains = {
            root.main.pid: agent_id
            for agent_id, root in roots.items()
            if root.main is not None
            and root.main.pid not in (1, table.scanner_pid)
            and table.find(root.main) is not None
        }
        self.spared = frozenset(name[:15] for root in roots.values() for name in root.spare)
        self.hidden = frozenset(self.table.ancestry(table.scanner_pid)) | {table.scanner_pid, 0, 1}
        self.remembered: dict[int, list[str]] = {}
        self.sessions: dict[int, str] = {}
        self.groups: dict[int, str] = {}
        self.wrappers: dict[int, str | None] = {}
        self.homes: dict[str, frozenset[str]] = {}
        services = [pid for pid, row in self.rows.items() if row.service is not None]
        self.services = self.descent.nearest(services) if services else {}  # by process: the service above it
        self.conversing: dict[tuple[str, Process], list[str]] = {}  # by session and its service
        self.bound: dict[str, set[Process]] = {}  # by session: all its services
        for agent_id, root in roots.items():
            self._enter(agent_id, root)
        # Innermost first: of two nested cgroups the deeper one is the process's own.
        self.cgroups = sorted(
            ((root.cgroup, agent_id) for agent_id, root in roots.items() if root.cgroup not in (None, "", "/")),
            key=lambda pair: (-len(pair[0] or ""), pair[1]),
        )
        self.served: dict[tuple[str, str | None], set[Process]] = {}
        for mark, marker, service in served | below_services(table, self.mains):
            self.served.setdefault((mark, marker), set()).add(service)
        self.over = self._above(services)
        self.around = self._nesting()
        self.marks: dict[str, list[str]] = {}
        for agent_id, root in roots.items():
            for mark in root.marks:
                self.marks.setdefault(mark, []).append(agent_id)
        self.decided: dict[int, tuple[str | None, str]] = {}
        self.heirs: dict[int, str | None] = {}
        self.adopted: dict[tuple[str, str], dict[int, bool]] = {}  # results of `_from_inside`
        self.fences: dict[int, _Fence] = {}

    def verdict(self, pid: int) -> tuple[str | None, str]:
        """The agent that owns the process (or None), and the evidence."""
        chain: dict[int, None] = {}
        current: int | None = pid
        while current is not None and current not in self.decided and current not in chain:
            chain[current] = None
            current = self.descent.parent(current)
        for each in reversed(chain):
            self._decide(each)
        return self.decided[pid]

    def _enter(self, agent_id: str, root: Root) -> None:
        main = self.table.find(root.main)
        homes = {root.home_cgroup, root.cgroup, main.cgroup if main is not None else None}
        for identity in root.remembered:
            known = self.table.find(identity)
            if known is not None:
                self.remembered.setdefault(identity.pid, []).append(agent_id)
                homes.add(known.cgroup)
        for session, service in root.sessions:
            if (service.host, service.boot_id) == (self.table.host, self.table.boot_id):
                place = service.pid, service.start_ticks
                self.bound.setdefault(session, set()).add(place)
                self.conversing.setdefault((session, place), []).append(agent_id)
            row = self.table.find(service)
            homes |= {row.cgroup if row is not None else None}  # an orphan of its tools is in the service's cgroup
        self.homes[agent_id] = frozenset(home for home in homes if home)
        if root.wrapper is not None and self.table.find(root.wrapper) is not None:
            self.wrappers[root.wrapper.pid] = agent_id
        elif root.wrapped and main is not None:
            self.wrappers.setdefault(main.stat.parent_pid, None)
        if root.main is None:
            return
        number = root.main.pid
        if main is not None:
            led = [main.stat]
        elif number not in self.rows:
            # The leader is gone. Its pid stays taken while its session or group exists, so a known member that is
            # still in it proves that it is the same one.
            rows = [self.table.find(identity) for identity in root.remembered]
            led = [row.stat for row in rows if row is not None]
        else:
            return
        if any(stat.session == number for stat in led):
            self.sessions[number] = agent_id
        if any(stat.group == number for stat in led):
            self.groups[number] = agent_id

    def _nesting(self) -> dict[str, frozenset[str]]:
        """For each agent all agents that it runs inside of: by ancestry, by marker, by its registered parent."""
        direct: dict[str, set[str]] = {}
        nearest = self.descent.nearest(self.mains)  # nearest main process above each process
        for agent_id, root in self.roots.items():
            around = {root.parent_id} if root.parent_id in self.roots else set()
            row = self.table.find(root.main)
            if row is not None:
                around |= {self.mains[nearest[row.stat.pid]]} if row.stat.pid in nearest else set()
                if row.marker in self.roots and self.roots[row.marker].owner_uid == row.uid:
                    around.add(row.marker)
                for mark in row.vendors or ():
                    if mark not in root.marks:
                        around |= {name for name, other in self.roots.items() if mark in other.marks}
                        around |= self._conversing(row, mark, self._services_of(row))
            direct[agent_id] = {name for name in around if name is not None and name != agent_id}
        closed: dict[str, frozenset[str]] = {}
        for agent_id in self.roots:
            found: set[str] = set()
            queue = list(direct[agent_id])
            while queue:
                name = queue.pop()
                if name not in found:
                    found.add(name)
                    queue.extend(direct[name])
            closed[agent_id] = frozenset(found - {agent_id})
        return closed

    def _decide(self, pid: int) -> None:
        row = self.rows[pid]
        parent = self.table.parent(pid)
        if pid <= 1 or row.stat.kernel_thread:
            self._settle(pid, None, "", None, _Fence())
        elif pid in self.mains:
            self._settle(pid, self.mains[pid], "main", self.mains[pid], _Fence())
        elif pid in self.wrappers:
            heir = self.wrappers[pid]  # None for an inferred wrapper: it is no member and claims nothing
            self._settle(pid, None, "", heir, self._fence(row, parent) if heir is None else _Fence())
        else:
            fence = self._fence(row, parent)
            heir_of = self.heirs.get(parent) if parent is not None else None
            adopted = heir_of is None or parent in self.wrappers
            if adopted and not fence.shared and (shared := self._left_by(row, parent)):
                fence, heir_of = replace(fence, shared=shared), None  # an orphan of a shared service
            elif parent in self.wrappers and self._is_known_elsewhere(pid, heir_of):
                heir_of = None  # likewise, but without a mark
            if parent in self.wrappers and _forked_from(row.stat, self.rows[parent].stat):
                heir_of = None  # the wrapper's second process, which wakes it when its agent was stopped
            owner, via = self._choose(row, heir_of, fence)
            # A member inside a unit's fence brings its descendants past the fence.
            self._settle(pid, owner, via, owner, fence if owner is None else replace(fence, unit=None))

    def _settle(self, pid: int, owner: str | None, via: str, heir: str | None, fence: _Fence) -> None:
        self.decided[pid] = (owner, via)
        self.heirs[pid] = heir
        self.fences[pid] = fence

    def _fence(self, row: Row, parent: int | None) -> _Fence:
        above = self.fences.get(parent, _Fence()) if parent is not None else _Fence()
        pid = row.stat.pid
        names, unit, closed = above.names, above.unit, above.closed
        if row.stat.name in self.spared:
            names |= {row.stat.name}
        if parent is not None and self.rows[parent].stat.name in SERVICE_MANAGERS:
            unit = pid
        closed = closed or pid == self.table.scanner_pid
        shared = above.shared if row.service is None else frozenset({(pid, row.stat.start_ticks)})
        return _Fence(names, unit, closed, shared)

    def _keeps_out(self, fence: _Fence, row: Row, agent_id: str, via: str) -> bool:
        spare = {name[:15] for name in self.roots[agent_id].spare}
        if fence.closed or fence.names & spare or self._of_a_pane(row, agent_id, spare):
            return True
        if fence.shared and via not in ("conversation", "descent"):
            return True  # any other evidence is inherited from the service
        known = agent_id in self.remembered.get(row.stat.pid, ())
        if fence.unit is None or known or self._is_above(fence.unit, agent_id):
            return False
        cgroups = (self.rows[fence.unit].cgroup, row.cgroup)
        return not any(_inside(path, home) for path in cgroups for home in self.homes[agent_id])

    def _of_a_pane(self, row: Row, agent_id: str, spare: set[str]) -> bool:
        """Whether it was started in a pane of a spared server that the agent had started, so by the pane's user.

        Its environment still shows that if it has left the pane (`nohup`, `setsid`) and no longer descends from it.
        """
        server = self.rows.get(row.terminal) if row.terminal is not None else None
        if server is None or server.stat.name not in spare or server.stat.start_ticks > row.stat.start_ticks:
            return False
        talks = any(agent_id in self._conversing(server, mark, self._bound(mark)) for mark in server.vendors or ())
        return talks or server.marker == agent_id or _inside(server.cgroup, self.roots[agent_id].cgroup)

    def _choose(self, row: Row, heir_of: str | None, fence: _Fence) -> tuple[str | None, str]:
        evidence = self._evidence(row, heir_of)
        if fence.shared and row.service is None:
            evidence = [*((name, "conversation") for name in self._talks(row, fence.shared)), *evidence]
        open_to = [(name, via) for name, via in evidence if not self._keeps_out(fence, row, name, via)]
        names = {name for name, _ in open_to}
        for name, via in open_to:  # among the innermost agents, the strongest evidence
            if not any(name in self.around[other] and other not in self.around[name] for other in names):
                return name, via
        return None, ""

    def _evidence(self, row: Row, heir_of: str | None) -> list[tuple[str, str]]:
        """(agent, via) pairs, the strongest evidence first."""
        pid = row.stat.pid
        found: list[tuple[str, str]] = []
        if row.cgroup is not None:
            found += [(name, "cgroup") for path, name in self.cgroups if _inside(row.cgroup, path)][:1]
        if row.marker in self.roots and self._may_claim(row, row.marker):
            found.append((row.marker, "marker"))
        if heir_of is not None:
            found.append((heir_of, "descent"))
        if row.stat.session in self.sessions:
            found.append((self.sessions[row.stat.session], "session"))
        if row.stat.group in self.groups:
            found.append((self.groups[row.stat.group], "group"))
        for mark in row.vendors or ():
            found += [(name, "vendor") for name in self.marks.get(mark, ()) if self._from_inside(row, mark, name)]
        found += [(name, "remembered") for name in self.remembered.get(pid, ())]
        return found

    def _talks(self, row: Row, services: frozenset[Process]) -> list[str]:
        """The agents in whose sessions a process below a service was started; for an orphan only if that is
        unambiguous.
        """
        found = set().union(*(self._conversing(row, mark, services) for mark in row.vendors or ()))
        return sorted(found) if len(services) == 1 or len(found) == 1 else []

    def _conversing(self, row: Row, mark: str, services: Iterable[Process]) -> set[str]:
        """The agents whose session with these services a mark names. A mark counts only in processes of their owner."""
        session = mark.partition("=")[2]
        names = {name for service in services for name in self.conversing.get((session, service), ())}
        return {name for name in names if self.roots[name].owner_uid == row.uid}

    def _services_of(self, row: Row) -> frozenset[Process]:
        """The service above a process; for an orphan all services below which its marks were seen."""
        above = self.services.get(row.stat.pid)
        return self._served(row) if above is None else frozenset({(above, self.rows[above].stat.start_ticks)})

    def _bound(self, mark: str) -> set[Process]:
        return self.bound.get(mark.partition("=")[2], set())

    def _left_by(self, row: Row, parent: int | None) -> frozenset[Process]:
        """The services that an orphan may come from; empty if it is not an orphan. Its descendants follow it.

        For one that no earlier scan saw (the daemon was restarted) its session decides, together with the service's
        marker. With another living agent's marker it belongs to that agent, which ran below the service.
        """
        served = self._served(row)
        if parent is not None and parent > 1 and not self._adopts(parent):
            return served if any(self._is_gone(service) for service in served) else frozenset()
        if served:
            return served
        named = [self._bound(mark) for mark in row.vendors or () if mark not in self.marks]
        return frozenset(one for service in named for one in service if self._marks(one, row.marker))

    def _marks(self, service: Process, marker: str | None) -> bool:
        """Whether its children inherit that marker, as far as is known."""
        return marker not in self.roots or (not self._is_gone(service) and self.rows[service[0]].marker == marker)

    def _adopts(self, pid: int) -> bool:
        """Whether it adopts orphans of services. Any other parent set the session's id itself."""
        return pid in self.wrappers or pid in self.over or self.rows[pid].stat.name in SERVICE_MANAGERS

    def _is_gone(self, service: Process) -> bool:
        row = self.rows.get(service[0])
        return row is None or row.stat.start_ticks != service[1]

    def _above(self, services: Iterable[int]) -> set[int]:
        """The ancestors of services, although services belong to no process: they include subreapers (prctl(2))."""
        found: set[int] = set()
        for service in services:
            pid = self.rows[service].stat.parent_pid
            while pid in self.rows and pid not in found:
                found.add(pid)
                pid = self.rows[pid].stat.parent_pid
        return found

    def _served(self, row: Row) -> frozenset[Process]:
        """The services below which the marks of its environment were seen."""
        return frozenset().union(*(self.served.get((mark, row.marker), ()) for mark in row.vendors or ()))

    def _is_known_elsewhere(self, pid: int, heir_of: str | None) -> bool:
        """Whether the process was a member of another agent than its heir: an orphan passes to some ancestor."""
        known = self.remembered.get(pid, [])
        return bool(known) and heir_of not in known and not any(heir_of in self.around[name] for name in known)

    def _may_claim(self, row: Row, agent_id: str) -> bool:
        """Whether a mark counts in this process: it has the owner's uid, or descends from the agent."""
        root = self.roots[agent_id]
        return row.uid == root.owner_uid or (
            root.main is not None
            and self.mains.get(root.main.pid) == agent_id
            and self.descent.is_below(row.stat.pid, root.main.pid)
        )

    def _is_above(self, pid: int, agent_id: str) -> bool:
        """Whether a process is an ancestor of the agent's main process."""
        main = self.table.find(self.roots[agent_id].main)
        return main is not None and self.descent.is_below(main.stat.pid, pid)

    def _from_inside(self, row: Row, mark: str, agent_id: str) -> bool:
        """Whether a process can have got a vendor's mark from that agent.

        It must be younger, and orphaned: its nearest ancestor without the mark adopted it. That is init, a service
        manager, or another subreaper above the agent (prctl(2)); any other such ancestor set the same value itself, as
        a session does that is resumed in another terminal.
        """
        main = self.roots[agent_id].main
        if main is None or row.stat.start_ticks < main.start_ticks or not self._may_claim(row, agent_id):
            return False
        known = self.adopted.setdefault((mark, agent_id), {})
        way, found = [row.stat.pid], True
        for pid in self.descent.above(row.stat.pid):
            above = self.rows[pid]
            if pid == 1 or self._is_above(pid, agent_id) or above.stat.name in SERVICE_MANAGERS:
                break
            if mark not in (above.vendors or ()):
                found = self.wrappers.get(pid) == agent_id or self.decided.get(pid, (None, ""))[0] == agent_id
                break
            if pid in known:
                found = known[pid]
                break
            way.append(pid)
        known.update(dict.fromkeys(way, found))  # the same holds for all on the way
        return found


def with_inodes(members: Iterable[TreeMember]) -> tuple[TreeMember, ...]:
    """The members that still exist, with their pidfd's inode if the kernel has one, ready to be remembered.

    A member that cannot be checked is kept as it is.
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
    """The main process and remembered members that a scan did not see but that are not proved gone: still members.

    The scan missed them because of hidepid, or because their files cannot be read.
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
