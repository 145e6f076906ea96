"""What the reaper and an owner's helper exchange about leftovers survives the round trip."""

import pytest

from watchdog.core import findings
from watchdog.core.findings import Finding, KnownAgents

DEAD, ALIVE = "d" * 32, "a" * 32


def test_values_come_back_as_they_were_sent() -> None:
    """Also a path that is not UTF-8; anything that is not a finding is rejected."""
    one = Finding("socket", "/tmp/\udcff", DEAD, "why", "keep", 12)
    assert findings.finding_of(findings.finding_json(one)) == one
    everything = KnownAgents(
        frozenset({ALIVE}), {DEAD: 1.0}, {DEAD: "/t"}, {DEAD: "/w"}, {DEAD: "/s"}, ("/c",), (("/p", "x"),)
    )
    assert findings.known_of(findings.known_json(everything)) == everything
    told = findings.finding_json(one)
    wrong: list[object] = [{}, [], {**told, "action": "burn"}, {**told, "bytes": "1"}]
    for data in wrong:
        with pytest.raises((ValueError, TypeError)):
            findings.finding_of(data)
