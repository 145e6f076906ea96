"""How long one look at everything takes (`-m bench`; a figure, never a gate)."""

import os
import time

import pytest

from tests.processes.conftest import HOST, Family, known
from watchdog.processes.table import scan
from watchdog.processes.tree import Root, trees


@pytest.mark.bench
def test_one_scan_serves_50_agents_among_2000_processes(family: Family) -> None:
    """About 0.1 s for the scan with all markers, and 15 ms for the trees, on two shared cores."""
    pids = [
        family.start("sleep", "300", env={"AGENT_WATCHDOG_ID": f"bench-{number // 40}"}).pid for number in range(2000)
    ]
    roots = [Root(f"bench-{number}", os.getuid(), known(pids[number * 40])) for number in range(50)]
    begin = time.perf_counter()
    table = scan(HOST, frozenset({os.getuid()}))
    between = time.perf_counter()
    found = trees(table, roots)
    end = time.perf_counter()
    assert len(found) == 50
    print(f"{len(table.rows)} processes: scan {between - begin:.3f} s, trees {end - between:.3f} s")
