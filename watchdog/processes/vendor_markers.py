"""Which agent a value of a vendor's marker belongs to: pure, on one `ProcessTable`.

`CLAUDE_CODE_SESSION_ID=…` is inherited like our own marker, but was not made for us: an agent may have inherited it
from an outer agent or a shell. A value belongs to an agent only if it was made inside the agent's tree:

- a process below the main process carries it and the main process does not, or the main process does and its parent
  does not;
- no process carried it before the main process started, and no ancestor carries it;
- no other agent of the owner has the same claim, unless one runs inside the other: then it belongs to the inner one.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from watchdog.core.process import Identity
from watchdog.processes.descent import Descent
from watchdog.processes.table import ProcessTable, Row

MOST = 16  # values kept per agent: a session that is cleared or resumed gets a new one
Process = tuple[int, int]  # pid and start ticks
Served = tuple[str, str | None, Process]  # a mark, our marker next to it, and the shared service above both


@dataclass(frozen=True, slots=True)
class MarkedAgent:
    """What an agent's marks depend on."""

    agent_id: str
    owner_uid: int
    main: Identity
    known: frozenset[str] = frozenset()  # its own marks at earlier scans


def made_inside(table: ProcessTable, agents: Iterable[MarkedAgent]) -> dict[str, frozenset[str]]:
    """The values ("NAME=value") made in each agent's tree, for agents that have any. Once found, they are kept."""
    agents = list(agents)
    seen = _Seen(table, [agent for agent in agents if table.find(agent.main) is not None])
    claims: dict[tuple[int, str], list[MarkedAgent]] = {}
    for agent in agents:
        for mark in agent.known | seen.claimed(agent):
            claims.setdefault((agent.owner_uid, mark), []).append(agent)
    found: dict[str, list[str]] = {}
    # The newest values matter most; ties are broken in a fixed order.
    for (_, mark), claimants in sorted(claims.items(), key=lambda claim: (-seen.oldest.get(claim[0][1], 0), claim[0])):
        agent = max(claimants, key=seen.depth)
        if any(not seen.runs_inside(agent, other) for other in claimants):
            continue  # two unrelated agents: one session in two terminals proves nothing
        kept = found.setdefault(agent.agent_id, [])
        if seen.oldest.get(mark, agent.main.start_ticks) >= agent.main.start_ticks and len(kept) < MOST:
            kept.append(mark)
    return {agent_id: frozenset(kept) for agent_id, kept in found.items() if kept}


def below_services(table: ProcessTable, mains: Container[int]) -> frozenset[Served]:
    """The marks of processes that are below a shared service and not below an agent's main process there.

    A process with the same marks that is below no service is an orphan from there: it inherited our marker from the
    service.
    """
    below: dict[int, int | None] = {}  # the service
    for pid in table.rows:
        chain, current = [], pid
        while current not in below:
            chain.append(current)
            above = table.parent(current)
            if table.rows[current].service is not None or current in mains or above is None or above in chain:
                is_one = table.rows[current].service is not None and current not in mains
                below[current] = current if is_one else None
                break
            current = above
        for each in chain:
            below.setdefault(each, below[current])
    found = set()
    for row in table.rows.values():
        service = below[row.stat.pid]
        if service is not None and row.service is None:
            process = service, table.rows[service].stat.start_ticks
            found |= {(mark, row.marker, process) for mark in row.vendors or ()}
    return frozenset(found)


class _Seen:
    """The marks of one table, and the nearest main process above each process that carries them."""

    def __init__(self, table: ProcessTable, agents: Iterable[MarkedAgent]) -> None:
        self._rows = table.rows
        self._descent = Descent(table)
        self._mains = {agent.main.pid: agent for agent in agents}
        self.oldest: dict[str, int] = {}  # start ticks
        self._jobs: Counter[tuple[str, int]] = Counter()  # processes that carry it, by mark and parent
        self._below: dict[str, set[str]] = {}  # by agent: marks below it, but not below a nested agent
        nearest = self._descent.nearest(self._mains)
        around = self._around(nearest)
        for row in table.rows.values():
            main = nearest.get(row.stat.pid)
            owners = around[main].values() if main is not None and row.vendors else ()
            for mark in row.vendors or ():
                self.oldest[mark] = min(row.stat.start_ticks, self.oldest.get(mark, row.stat.start_ticks))
                self._jobs[mark, row.stat.parent_pid] += 1
                for agent_id in owners:
                    self._below.setdefault(agent_id, set()).add(mark)

    def depth(self, agent: MarkedAgent) -> int:
        """The number of ancestors of its main process; 0 if that does not exist."""
        return self._descent.depth(agent.main.pid) if self._is_there(agent) else 0

    def runs_inside(self, agent: MarkedAgent, other: MarkedAgent) -> bool:
        """Whether an agent runs inside the other one, or is the same."""
        same = agent.main.pid == other.main.pid
        return same or (self._is_there(agent) and self._descent.is_below(agent.main.pid, other.main.pid))

    def claimed(self, agent: MarkedAgent) -> set[str]:
        """The marks that were made in its tree, according to this table."""
        row = self._rows.get(agent.main.pid)
        if row is None or row.vendors is None or not self._is_there(agent):
            return set()
        wanted = row.vendors | self._below.get(agent.agent_id, set())
        for pid in self._descent.above(agent.main.pid) if wanted else ():
            wanted -= self._rows[pid].vendors or frozenset()
        return {mark for mark in wanted if mark not in row.vendors or self._is_its_own(row, mark)}

    def _is_its_own(self, row: Row, mark: str) -> bool:
        """Whether the main process's mark is its own. What a shell exports shows only in its jobs, as /proc has only
        the initial environment (proc(5))."""
        parent = self._rows.get(row.stat.parent_pid)
        outer = parent.vendors if parent is not None and not parent.stat.dead else None
        alone = self._jobs[mark, row.stat.parent_pid] == 1
        return outer is not None and mark not in outer and alone and self.oldest[mark] >= row.stat.start_ticks

    def _is_there(self, agent: MarkedAgent) -> bool:
        known = self._mains.get(agent.main.pid)
        return known is not None and known.main == agent.main

    def _around(self, nearest: Mapping[int, int]) -> dict[int, dict[int, str]]:
        """For each main process, by owner, the innermost agent that it is or runs inside of."""
        found: dict[int, dict[int, str]] = {}
        for pid in self._descent:
            if (agent := self._mains.get(pid)) is not None:
                above = found.get(nearest[pid], {}) if pid in nearest else {}
                found[pid] = {**above, agent.owner_uid: agent.agent_id}
        return found
