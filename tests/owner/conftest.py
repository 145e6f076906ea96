"""Git without the config of whoever runs the tests, and a fresh repository."""

from pathlib import Path

import pytest

from tests.owner.repositories import Repository, own_config


@pytest.fixture(autouse=True)
def _git_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    own_config(monkeypatch, tmp_path_factory.mktemp("config"))


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A fresh repository."""
    return Repository(tmp_path)
