"""What all verbs share when they ask the daemon."""

import sys
import threading
from typing import Any

import pytest

from watchdog.cli import verb, verbs
from watchdog.client import client


@pytest.mark.parametrize(
    "words",
    [
        "kill a",
        "stop a",
        "cancel a",
        "remove a",
        "purge a --yes",
        "reap",
        "reload",
        "restore",
        "restore a",
        "register --name a --replace",
    ],
)
def test_who_waits_for_long_at_a_terminal_is_told(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """O26: each verb whose answer may take long was mute but `kill` and `stop`. A script hears nothing."""
    said, heard = threading.Event(), list[str]()

    def warn(text: str) -> None:
        heard.append(text)
        said.set()

    def request(*_: Any, timeout: float, **__: Any) -> tuple[int, dict[str, object]]:
        assert timeout > verb.QUICK
        if sys.stderr.isatty() and "--json" not in argv:
            assert said.wait(60)
        return 409, {"error": "conflict", "message": "m"}

    monkeypatch.setattr(verb, "MUTE", 0.0)
    monkeypatch.setattr(verb, "warn", warn)
    monkeypatch.setattr(client, "request", request)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for argv in (words.split(), [*words.split(), "--json"]):
        verbs.main(argv)
    assert len(heard) == 1
    assert heard[0].startswith("still working; ")
    assert ("time to exit (stop_pause_seconds" in heard[0]) == words.startswith(("stop ", "cancel "))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    verbs.main(words.split())
    assert len(heard) == 1
