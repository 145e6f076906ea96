"""What cannot be had is reported, with npm's words and without its registry's address."""

import os
from pathlib import Path

import pytest

from tests.vendors import programs

NPM = """#!/bin/sh
case "$1" in
view) echo 9.9.9 ;;
install) echo "npm error code E404" "npm error 404 GET https://u:p@npm.example/x - Not found" >&2; exit 1 ;;
esac
"""


@pytest.fixture
def nothing_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm that knows the newest version of all, and has none."""
    (tmp_path / "bin").mkdir()
    npm = tmp_path / "bin/npm"
    npm.write_text(NPM)
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{npm.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(programs, "DIRECTORY", tmp_path / "vendors")
    return tmp_path / "vendors"


def test_a_version_that_cannot_be_had_is_reported(nothing_to_be_had: Path) -> None:
    """Each one, pinned or newest; written down for the tests, which have a line for it."""
    found = programs.install((programs.PINNED, programs.NEWEST))
    assert found == programs.versions()
    wanted = {(one.vendor, number) for one in programs.PROGRAMS.values() for number in (one.pinned, "9.9.9")}
    assert {(one.vendor, one.number) for one in found} == wanted
    for one in found:
        assert one.lacks == "npm ended with 1: npm error code E404 npm error 404 GET its registry - Not found"
    assert "npm.example" not in (nothing_to_be_had / "versions.json").read_text()
