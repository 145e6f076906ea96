"""Hostile rows of the registry, in a pid namespace of their own: a daemon that fails may signal -1."""

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
def test_d4_and_h12_hostile_rows_end_in_one_error_each_and_harm_nobody(words: tuple[str, ...], told: str) -> None:
    """Pids 0, 1, -1, 2^31, paths /, .., $HOME and the rest: the one agent that stalls is ended, nobody else."""
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
