"""The commands' entry. It has a name of its own: in an agent's environment `watchdog` may be another program.

What PYTHONPATH holds is the agent's work, and would come before ours: PyPI's `watchdog`, or another pydantic. So it
comes last; the variable stays as it is for what we start. Imports nothing else: it is on the way of each `beat`.

Tests: tests/service/test_bootstrap.py.
"""

import os
import sys


def client() -> int:
    """`agent-watchdog`: the exit status."""
    _ours_first()
    from watchdog.cli.main import main  # it is ours only now

    return main()


def daemon() -> int:
    """`agent-watchdogd`: the exit status."""
    _ours_first()
    from watchdog.service.bootstrap import main  # it is ours only now

    return main()


def _ours_first() -> None:
    """Move the entries of PYTHONPATH to the end of the search path."""
    foreign = {os.path.abspath(part) for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part}
    sys.path.sort(key=lambda part: os.path.abspath(part) in foreign)
