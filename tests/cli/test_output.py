"""What every verb prints with: one time at one terminal."""

import re
import time
from collections.abc import Iterator

import pytest

from tests.control.office import Office, make_office
from watchdog.cli import verbs
from watchdog.cli.output import local

UTC_STAMP = re.compile(r"\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)")


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """A daemon that the verbs find by the environment, and a terminal far from Greenwich."""
    monkeypatch.delenv("AGENT_WATCHDOG_ID", raising=False)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    for made in make_office():
        monkeypatch.setenv("AGENT_WATCHDOG_SOCKET", made.socket_path)
        made.context.status.facts = lambda: {"last_sweep": "2026-01-01T20:00:00+00:00"}  # type: ignore[method-assign]
        yield made
    monkeypatch.undo()
    time.tzset()


def test_the_daemons_words_have_local_times_too(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """O21: `list`, `why` and a refusal had UTC in the end of a hold, beside local time; `status` in its last look."""
    office.register("alpha")
    assert verbs.main(["hold", "alpha", "--for", "1h", "--reason", "deploy"]) == 0
    shown = {"hold": capsys.readouterr()}
    for words in ("list", "why alpha", "status", "kill alpha"):
        verbs.main(words.split())
        shown[words] = capsys.readouterr()
    for words, (out, error) in shown.items():
        assert not UTC_STAMP.search(out + error), (words, out, error)
    for words in ("list", "why alpha", "kill alpha"):
        (until,) = set(re.findall(r"until (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\b", "".join(shown[words])))
        left = time.mktime(time.strptime(until, "%Y-%m-%d %H:%M:%S")) - time.time()
        assert 0 < left <= 3600, (words, until)
    assert "2026-01-02 01:30:00" in shown["status"].out
    assert local("already dead: killed since 2026-01-01T20:00:00.5Z, by uid 0: 20:00Z") == (
        "already dead: killed since 2026-01-02 01:30:00, by uid 0: 20:00Z"
    )
