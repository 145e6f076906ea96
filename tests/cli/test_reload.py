"""What `reload` prints."""

import pytest

from tests.cli.conftest import told
from watchdog.client import client


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("/etc/a.toml", "/etc/a.toml was adopted"),
        ("defaults", "there is no configuration file: the defaults were adopted"),
    ],
)
def test_a_reload_names_what_was_adopted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: str, said: str
) -> None:
    """A newcomer without a file read "defaults was adopted"."""
    answer: dict[str, object] = {"success": True, "config": config, "problems": [], "waiting": []}
    monkeypatch.setattr(client, "request", lambda *_, **__: (200, answer))

    assert told(capsys, "reload", "--socket", "/nowhere") == (0, f"{said}\n", "")
