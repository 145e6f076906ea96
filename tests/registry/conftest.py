"""A real SQLite file for each test."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from watchdog.registry.registry import Registry


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """The path of the test's registry."""
    return tmp_path / "registry.db"


@pytest.fixture
def registry(database: Path) -> Iterator[Registry]:
    """An open registry that waits 0.2 s for a busy database instead of 5 s."""
    registry = Registry(f"sqlite:///{database}", busy_timeout=timedelta(seconds=0.2)).open()
    yield registry
    registry.close()
