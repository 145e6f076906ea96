"""Finds orphans: living processes of an agent's tree whose row is closed and whose main process is dead.

How orphans come about: the process carried the agent's marker but could not be read while the agent was killed; it was
started later by something that inherited the marker; or another daemon closed the row. Orphans are found by the marker,
by the identities that a kill request has committed, and by the agent's own cgroup, never by a name. `processes.tree`
decides which agent a process belongs to, for living and ended agents at once: what a spared program started, what
belongs to a living agent's tree and what a service manager runs in a unit of its own is no orphan.

This module only finds them; the kill worker kills them, by an ordinary kill request.

Tests: tests/e2e/test_reap.py.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.config.settings import Settings
from watchdog.core.agent import ENDED
from watchdog.core.kill import Step
from watchdog.core.process import Identity, Presence, TreeMember
from watchdog.kill.order import member_of
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes import cgroups
from watchdog.processes.identity import presence
from watchdog.processes.table import ProcessTable
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.rows import AgentRow, Json

NEWEST = 500  # ended agents of this boot whose recorded identities and cgroups are checked; a marker finds any agent
AT_A_TIME = 50  # rows in memory: 500 rows with all their recorded members took 12 MB
MOST_MARKS = 1000  # ids that are looked up; any user may start a million processes with made-up markers
MOST_LEFT = 200  # processes that are listed one by one; each pane of a tmux server that an agent started is one


@dataclass(frozen=True, slots=True)
class Left:
    """A process that carries the marker of an ended agent and is left alone."""

    pid: int
    name: str
    uid: int
    agent_id: str
    why: str
    usual: bool  # not worth reporting


@dataclass(slots=True)
class OrphanScan:
    """`agents`: ended agents, each with its orphans as `members`; `left`: marked processes that are not orphans.

    `strangers`: by uid, pids with the marker of an agent that is unknown here, for example another daemon's.
    """

    agents: list[Agent] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    strangers: dict[int, list[int]] = field(default_factory=dict)


class Orphans:
    """Finds orphans; sends no signals."""

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        registry: AsyncRegistry,
        scanner: ProcessScanner,
        *,
        host: str,
        boot_id: str,
    ) -> None:
        self._fleet = fleet
        self._registry = registry
        self._scanner = scanner
        self._settings = settings
        self._host = host
        self._boot_id = boot_id

    def apply(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = settings

    async def find(self) -> OrphanScan:
        """The orphans that are alive now. Raises OSError when /proc cannot be read, RegistryUnavailable."""
        registry = self._registry
        owners = await registry.read(registry.agents.owners, self._host)
        table = await self._scanner.table(frozenset(owners) | {agent.reg.owner_uid for agent in self._fleet})
        marked = {row.marker for row in table.rows.values() if row.marker is not None and not row.stat.dead}
        marked -= {agent.agent_id for agent in self._fleet}
        ids = await registry.read(registry.leftovers.ended_ids, self._host, self._boot_id, NEWEST)
        ids += sorted(marked.difference(ids))[:MOST_MARKS]
        known, ghosts, reasons = set(), {}, {}
        for start in range(0, len(ids), AT_A_TIME):
            rows = await registry.read(registry.agents.by_ids, ids[start : start + AT_A_TIME])
            recorded = await registry.read(registry.leftovers.remembered, [row.agent_id for row in rows])
            for row in rows:
                agent_id, members = row.agent_id, _members(recorded.get(row.agent_id, ()))
                known.add(agent_id)
                if agent_id not in marked and not _lives(table, members) and not _populated(row):
                    continue
                ended_agent = self._ghost(row, members)
                if isinstance(ended_agent, str):
                    reasons[agent_id] = ended_agent
                elif agent_id not in self._scanner.ended_agents:  # an agent is there while its orphans are being killed
                    ghosts[agent_id] = ended_agent
        self._scanner.look_also_for(ghosts)
        try:
            trees = await self._scanner.trees()
        finally:
            self._scanner.look_no_more_for(ghosts)
        found = OrphanScan([ended_agent for agent_id, ended_agent in ghosts.items() if trees.get(agent_id)])
        inside = {member.identity.pid for members in trees.values() for member in members}
        for pid, seen in sorted(table.rows.items()):
            if seen.marker not in marked or seen.stat.dead or pid in inside:
                continue  # not one of ours, or in the tree of the agent that it belongs to or is an orphan of
            if seen.marker not in known:
                found.strangers.setdefault(seen.uid, []).append(pid)
                continue
            usually = "it is spared, of another uid, in a unit of its own, or works for a session of another's"
            if seen.service is not None:
                usually = f"{seen.service}: the sessions of all agents share it"
            why = reasons.get(seen.marker, usually)
            usual = seen.marker not in reasons
            if len(found.left) < MOST_LEFT:
                found.left.append(Left(pid, seen.stat.name, seen.uid, seen.marker, why, usual))
        return found

    def _ghost(self, row: AgentRow, members: tuple[TreeMember, ...]) -> Agent | str:
        """The ended agent, ready for a scan for its orphans; or the reason why they are left alone."""
        reg = row.registration
        policy = self._settings.policy_for(reg)
        if row.status not in ENDED:
            return "its agent's row is not closed"  # an agent that cannot be judged, or another daemon's
        if (reg.host, reg.boot_id) != (self._host, self._boot_id):
            return "its agent is of another host or boot"
        if reg.identity is not None and presence(reg.identity, None) is not Presence.ABSENT:
            return "its agent's row is closed, but its main process is not proved dead"
        if reg.told_of and Step.KILL not in policy.ladder:
            return "its agent was only listed by another program: what it left is not the daemon's to kill"
        ended_agent = Agent(reg, policy, row.status)
        ended_agent.tree.remember(members)
        ended_agent.judged.written(None, "outlived its agent")
        return ended_agent


def _members(recorded: Iterable[Json]) -> tuple[TreeMember, ...]:
    """One member per identity; entries that cannot be parsed (a row edited by hand) are left out."""
    found: dict[Identity, TreeMember] = {}
    for stored in recorded:
        try:
            member = member_of(stored)
        except TypeError:
            continue
        found[member.identity] = member
    return tuple(found.values())


def _lives(table: ProcessTable, members: Iterable[TreeMember]) -> bool:
    rows = (table.find(member.identity) for member in members)
    return any(row is not None and not row.stat.dead for row in rows)


def _populated(row: AgentRow) -> bool:
    """Whether the cgroup that was made for it holds a process."""
    path = row.registration.own_cgroup
    try:
        return path is not None and cgroups.events(path).populated
    except OSError:
        return False
