"""`make demo` is the first thing that many run: it plays to its end."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_demo_plays_to_its_end_in_under_a_minute() -> None:
    """Exit 0, every check fine, nothing of it left behind."""
    before = set(Path("/tmp").glob("aw-*")) | set(Path("/tmp").glob("agent-watchdog-stubborn-*"))

    done = subprocess.run(
        [sys.executable, "-m", "tests.demo"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert done.stdout.count("  ok ") == 11, done.stdout
    for told in ("agent.stalled", "SIGKILL to", "worktree: done", "all as it should be"):
        assert told in done.stdout
    assert "stubborn" not in str(set(Path("/tmp").glob("agent-watchdog-stubborn-*")) - before)
