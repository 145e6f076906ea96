"""Whose a value of a vendor's marker is: pure, on one `ProcessTable`.

`CLAUDE_CODE_SESSION_ID=…` is inherited like our own marker, but nobody made it for us: an agent may have it from an
outer agent or a shell. A value is an agent's only where it was made inside its tree:

- it is carried below the main process, which does not carry it itself, or by the main process, whose parent does not;
- nobody carried it before the main process started, and nobody above it does;
- no other agent of the owner has the same claim, unless one runs inside the other: then it is the inner one's.
"""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from watchdog.core.model import Identity
from watchdog.processes.table import ProcessTable, Row

MOST = 16  # values kept of one agent: a session that is cleared or resumed gets a new one
Served = tuple[str, str | None]  # a mark, and our marker beside it


@dataclass(frozen=True, slots=True)
class Source:
    """One agent, as far as its marks depend on it."""

    agent_id: str
    owner_uid: int
    main: Identity
    known: frozenset[str] = frozenset()  # what was its own at an earlier look


def made_inside(table: ProcessTable, agents: Iterable[Source]) -> dict[str, frozenset[str]]:
    """The values ("NAME=value") made in each agent's tree, for agents that have any. Found once, they are kept."""
    carriers: dict[str, list[Row]] = {}
    for row in table.rows.values():
        for mark in row.vendors or ():
            carriers.setdefault(mark, []).append(row)
    oldest = {mark: min(row.stat.start_ticks for row in rows) for mark, rows in carriers.items()}
    above = {row.stat.pid: table.ancestry(row.stat.pid) for rows in carriers.values() for row in rows}
    claims: dict[tuple[int, str], list[Source]] = {}
    for agent in agents:
        for mark in agent.known | _claimed(table, agent.main, carriers, above):
            claims.setdefault((agent.owner_uid, mark), []).append(agent)
    found: dict[str, list[str]] = {}
    # The newest values are the ones that matter; of the same age any order will do, if it is always the same.
    for (_, mark), claimants in sorted(claims.items(), key=lambda claim: (-oldest.get(claim[0][1], 0), claim[0])):
        agent = max(claimants, key=lambda one: len(_around(table, one.main)))
        around = {agent.main.pid, *_around(table, agent.main)}
        if any(other.main.pid not in around for other in claimants):
            continue  # of two strangers': one session in two terminals proves nothing
        kept = found.setdefault(agent.agent_id, [])
        if oldest.get(mark, agent.main.start_ticks) >= agent.main.start_ticks and len(kept) < MOST:
            kept.append(mark)
    return {agent_id: frozenset(kept) for agent_id, kept in found.items() if kept}


def below_services(table: ProcessTable, mains: Container[int]) -> frozenset[Served]:
    """What processes below shared services carry that are below no agent's main process there.

    Whoever carries the same and is below none any more is an orphan from there: it has our marker from the service.
    """
    below: dict[int, bool] = {}
    for pid in table.rows:
        chain, current = [], pid
        while current not in below:
            chain.append(current)
            above = table.parent(current)
            if table.rows[current].service is not None or current in mains or above is None or above in chain:
                below[current] = table.rows[current].service is not None and current not in mains
                break
            current = above
        for each in chain:
            below.setdefault(each, below[current])
    carrying = ((row, mark) for row in table.rows.values() if row.vendors for mark in row.vendors)
    return frozenset((mark, row.marker) for row, mark in carrying if below[row.stat.pid] and row.service is None)


def _around(table: ProcessTable, main: Identity) -> list[int]:
    """Those above a main process that is there."""
    return [] if table.find(main) is None else table.ancestry(main.pid)


def _claimed(
    table: ProcessTable, main: Identity, carriers: Mapping[str, list[Row]], above: Mapping[int, list[int]]
) -> set[str]:
    row = table.find(main)
    if row is None or row.vendors is None:
        return set()
    ancestors = _around(table, main)
    parent = table.rows.get(row.stat.parent_pid)
    outer = parent.vendors if parent is not None and not parent.stat.dead else None
    found = set()
    for mark, rows in carriers.items():
        if any(each.stat.pid in ancestors for each in rows):
            continue
        if mark not in row.vendors:
            made = any(main.pid in above[each.stat.pid] for each in rows)
        else:
            # What a shell exports is not seen in its own environment (proc(5): the initial one): its jobs show it.
            jobs = [each for each in rows if each.stat.parent_pid == row.stat.parent_pid and each.stat.pid != main.pid]
            older = any(each.stat.start_ticks < main.start_ticks for each in rows)
            made = outer is not None and mark not in outer and not jobs and not older
        if made:
            found.add(mark)
    return found
