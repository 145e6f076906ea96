"""Hostile rows of the registry, in their own pid namespace: a daemon with a bug may signal -1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: namespaces, or acting as another uid")
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("hostile_rows",), "hostile rows survived: "),
        pytest.param(
            ("hostile_rows", "edited"), "rows edited under a running daemon survived: ", marks=pytest.mark.faults
        ),
        (("hostile_orders",), "hostile orders survived: "),
    ],
)
def test_d4_and_h12_hostile_rows_cause_one_error_each_and_no_harm(words: tuple[str, ...], told: str) -> None:
    """Pids 0, 1, -1, 2^31, paths /, .., $HOME and others: only the one agent that stalls is killed."""
    program = [sys.executable, "-m", f"tests.e2e.{words[0]}", *words[1:]]
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", *program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=110,
    )

    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    assert told in done.stdout
