"""Which URLs name a registry, and the messages about those that cannot be used. Connections: test_postgresql.py."""

import sys
import tomllib
from pathlib import Path

import pytest

from watchdog.errors import ConfigError
from watchdog.registry import postgresql
from watchdog.registry.registry import Registry


@pytest.mark.parametrize("url", ["nonsense", "sqlite://", "sqlite:///relative.db", "sqlite:///:memory:", "mysql://x/y"])
def test_a_url_that_cannot_be_used_is_refused_with_the_right_form(url: str) -> None:
    """Before anything is opened."""
    with pytest.raises(ConfigError, match=r"registry\.url.*; use "):
        Registry(url)


def test_a_postgresql_url_means_psycopg_and_hides_its_password() -> None:
    """`postgresql://` alone means another driver in each SQLAlchemy."""
    pytest.importorskip("psycopg")
    registry = Registry("postgresql://user:secret@host/db?application_name=x")
    assert registry.engines.durable.dialect.driver == "psycopg"
    assert "secret" not in registry.engines.place
    registry.close()


def test_a_missing_driver_is_told_as_an_installed_host_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """O35: "pip install" does not help on a host that was installed with `make install`, which knows that extra."""
    postgresql._bounded.cache_clear()
    monkeypatch.setitem(sys.modules, "psycopg", None)
    try:
        with pytest.raises(ConfigError, match="run make install EXTRAS=postgres ") as fault:
            Registry("postgresql://u@h/d")
    finally:
        postgresql._bounded.cache_clear()
    extra = str(fault.value).partition("EXTRAS=")[2].split()[0]
    root = Path(__file__).parent.parent.parent
    assert extra in tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f'    "{extra}": (' in (root / "systemd/environments.py").read_text()
