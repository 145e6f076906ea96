"""Git without the config of whoever runs the tests, and a fresh repository."""

import os
from pathlib import Path

import pytest

from tests.owner.repositories import Repository


@pytest.fixture(autouse=True)
def _git_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No config of whoever runs the tests."""
    config = tmp_path_factory.mktemp("config") / "gitconfig"
    config.write_text("[user]\n\tname = t\n\temail = t@example.org\n")
    for key in [key for key in os.environ if key.startswith("GIT_")]:
        monkeypatch.delenv(key)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    # The hooks strip GIT_*: there the config is found by HOME, and it protects only that.
    monkeypatch.setenv("HOME", str(config.parent))
    (config.parent / ".gitconfig").write_text(config.read_text())


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """A fresh repository."""
    return Repository(tmp_path)
