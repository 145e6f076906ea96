"""Case Q9: what a scan says of processes each of which starts the next and ends: real ones, faster than it reads."""

import os
from pathlib import Path

import pytest

from tests.processes.conftest import HOST, Family
from watchdog.processes.table import scan

RELAY = """
import os, sys, time
os.write(1, b"up\\n")
for number in range(100_000):
    time.sleep({rest})
    if os.fork() or os.path.exists({over!r}):
        os._exit(0)
    os.setsid()
"""
SCANS = 20


@pytest.mark.parametrize("rest", [0.0, 0.002, 0.02])
def test_a_scan_that_found_nobody_of_a_relay_says_that_it_may_have_missed_one(
    family: Family, rest: float, tmp_path: Path
) -> None:
    """Each in a session of its own, so its marks alone tell whose it is: found, or a look that is no proof."""
    over = tmp_path / "over"  # nobody can end a relay from outside: it ends itself
    code = RELAY.format(rest=rest, over=str(over))
    relay = family.start("python3", "-c", code, env={"AGENT_WATCHDOG_ID": "a-relay"}, session=True)
    assert family.line(relay) == "up"
    silent = []
    try:
        for number in range(SCANS):
            seen = scan(HOST, frozenset([os.getuid()]))
            found = [row for row in seen.rows.values() if row.marker == "a-relay"]
            if not found and seen.whole and not seen.lost:
                silent.append(number)
        end = scan(HOST, frozenset([os.getuid()]))
    finally:
        over.touch()
    assert not silent, (silent, len(end.rows), os.getloadavg())
