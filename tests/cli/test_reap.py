"""`reap`: what it says of what was left."""

import pytest

from tests.cli.conftest import told
from watchdog.cli import reap


def test_reap_says_whose_and_how_much_where_it_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes with the marker of an unknown agent have neither: no empty brackets."""
    one = {"kind": "process", "what": "2 processes", "why": "unknown here", "action": "keep"}
    findings = [one, {**one, "name": "alpha"}, {**one, "agent_id": "0123456789ab", "bytes": 5}, {**one, "bytes": 0}]
    monkeypatch.setattr(reap, "ask", lambda *_, **__: (200, {"success": True, "findings": findings}))
    status, out, _ = told(capsys, "reap")
    heads = out.splitlines()[::2]

    whose = ["", " (alpha)", " (01234567, 5 bytes)", " (0 bytes)"]
    assert (status, heads) == (0, [f"keep 2 processes{words}" for words in whose])
