"""CI does not pass by skipping."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CASES = {
    "call": "def test_a(): pytest.skip('PostgreSQL is not installed')",
    "mark": "@pytest.mark.skipif(True, reason='tmux is not installed')\ndef test_a(): pass",
    "fixture": "@pytest.fixture\ndef f(): pytest.skip('no node')\ndef test_a(f): pass",
    "module": "pytest.importorskip('no_such_module')",
    "kernel": "def test_a(): pytest.skip('this kernel has no pidfs (>= 6.9)')",
}
FORGIVEN = {"kernel"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, dict[str, str]]:
    """What pytest says of each case, lax (False) and strict (True): all of them in one run each."""
    directory = tmp_path_factory.mktemp("skips")
    (directory / "conftest.py").write_text((ROOT / "tests/conftest.py").read_text())
    for name, code in CASES.items():
        (directory / f"test_{name}.py").write_text(f"import pytest\n{code}\ndef test_other(): pass\n")
    return {strict: outcome(directory, strict=strict) for strict in (False, True)}


def outcome(directory: Path, *, strict: bool) -> dict[str, str]:
    """File -> the line of pytest's short summary about it."""
    options = ["-q", "-rsfE", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--rootdir", directory, directory],
        cwd=directory,
        env={**os.environ, "STRICT_SKIPS": "1" if strict else "", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode != 0) == strict, done.stdout
    assert ("skipped where nothing may be missing: tmux is not installed" in done.stdout) == strict, done.stdout
    lines = re.findall(r"^(SKIPPED|FAILED|ERROR)( .*?)?\btest_(\w+)\.py(.*)$", done.stdout, re.MULTILINE)
    assert {line[2] for line in lines} == set(CASES), done.stdout
    return {name: word + rest for word, _, name, rest in lines}


@pytest.mark.parametrize("way", [way for way in CASES if way not in FORGIVEN])
def test_a_skip_fails_where_nothing_may_be_missing(way: str, outcomes: dict[bool, dict[str, str]]) -> None:
    """By a call, a mark, a fixture, or of a whole module; on a laptop each is only a skip."""
    assert outcomes[False][way].startswith("SKIPPED")
    assert outcomes[True][way].startswith(("FAILED", "ERROR"))


def test_what_no_package_can_mend_is_forgiven(outcomes: dict[bool, dict[str, str]]) -> None:
    """The kernel is as it is."""
    assert {way for way, line in outcomes[True].items() if line.startswith("SKIPPED")} == FORGIVEN
