"""One user's chain of processes, each the child of the one before, takes the scan's time from everybody's agents.

Seen at bc51ea4: with `CLAUDE_CODE_SESSION_ID` in its environment a chain of 2,000 took 4 s of CPU, one of 4,000 half a
minute, with the id of somebody else's agent as marker a quarter of that. The reader has 15 s for a scan: then it is
given up, and nobody's tree is known, in this sweep and in each one after.

The tables here are what a scan of such a chain gives; time is CPU time, whatever else the machine does.
"""

import time
from collections.abc import Callable

import pytest

from tests.processes.test_tree_pure import agent, identity, row, table
from watchdog.core.ladder import parents_first
from watchdog.processes.table import ProcessTable, Row
from watchdog.processes.tree import trees
from watchdog.processes.vendor_markers import MarkedAgent, made_inside

pytestmark = pytest.mark.attacks

DEPTH = 4000
ENOUGH = 2.0  # seconds of CPU; it takes 0.05
MALLORY, VICTIM = 1001, 100
MARK = "CLAUDE_CODE_SESSION_ID=x"


def chain(*, marker: str | None = None, mark: str | None = None, above: int = 1) -> list[Row]:
    """Below `above`, each below the one before."""
    rows = []
    for number in range(DEPTH):
        one = row(1000 + number, 999 + number if number else above, uid=MALLORY, marker=marker)
        rows.append(one._replace(vendors=frozenset({mark} if mark else ())))
    return rows


def quickly(act: Callable[[], object]) -> None:
    began = time.process_time()
    act()
    assert time.process_time() - began < ENOUGH


def seen(*rows: Row) -> ProcessTable:
    return table(row(VICTIM, 1), *rows)


@pytest.mark.parametrize("leaves", [0, DEPTH])
def test_a_chain_with_the_marker_of_anothers_agent(leaves: int) -> None:
    """It is a claim that has to be looked into, for each of them."""
    deep = chain(marker="victim")
    last = deep[-1].stat.pid
    deep += [row(last + 1 + number, last, uid=MALLORY, marker="victim") for number in range(leaves)]
    quickly(lambda: trees(seen(*deep), [agent("victim", VICTIM)]))


def test_a_chain_with_a_mark_of_a_vendors() -> None:
    """Whose agent's it is, is asked of all that carry it."""
    deep = seen(*chain(mark=MARK))
    quickly(lambda: made_inside(deep, [MarkedAgent("victim", MALLORY, identity(VICTIM))]))
    quickly(lambda: trees(deep, [agent("victim", VICTIM, owner_uid=MALLORY, marks=frozenset({MARK}))]))


def test_a_chain_below_an_agent_below_which_many_agents_are() -> None:
    """Each of them asks for those above it."""
    deep = chain(mark=MARK)
    last = deep[-1].stat.pid
    mains = [row(last + 1 + number, last, uid=MALLORY) for number in range(256)]
    found = seen(*deep, *mains)
    roots = [agent(f"a{one.stat.pid}", one.stat.pid, owner_uid=MALLORY) for one in (deep[0], *mains)]
    quickly(lambda: trees(found, roots))
    quickly(lambda: made_inside(found, [MarkedAgent(r.agent_id, MALLORY, r.main) for r in roots if r.main is not None]))


def test_thousands_of_marks_and_hundreds_of_agents() -> None:
    """A sibling: no chain, but each process with a value of its own, and each agent to be asked about each value."""
    flat = [
        row(1000 + number, 1, uid=MALLORY)._replace(vendors=frozenset(f"{name}={number}" for name in "abcde"))
        for number in range(DEPTH)
    ]
    mains = [row(10_000 + number, 1, uid=MALLORY) for number in range(256)]
    sources = [MarkedAgent(f"a{one.stat.pid}", MALLORY, identity(one.stat.pid)) for one in mains]
    quickly(lambda: made_inside(seen(*flat, *mains), sources))


def test_the_order_in_which_a_chain_is_stopped() -> None:
    """The last comes first: nothing is known yet of those above it. On the event loop, in each round of a kill."""
    members = [one.stat for one in reversed(chain())]
    quickly(lambda: parents_first(members))
    assert [one.pid for one in parents_first(members)] == sorted(one.pid for one in members)
