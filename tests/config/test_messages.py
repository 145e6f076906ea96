"""Each fault of a configuration in one line: the key, what stands there, what would be right."""

import datetime

import pytest
from pydantic import ValidationError

from watchdog.config.messages import explain
from watchdog.config.schema import Config


def said(document: dict[str, object]) -> str:
    """The only fault of that document."""
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(document)
    (found,) = [dict(one) for one in caught.value.errors() if one["type"] != "missing" or len(one["loc"]) > 1]
    return explain(found)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"swep": {}}, "swep: unknown key; did you mean 'sweep'?"),
        ({"sweep": {"intervall_seconds": 1}}, "sweep.intervall_seconds: unknown key; did you mean 'interval_seconds'?"),
        ({"sweep": {"a\nb": 1}}, r"sweep.'a\nb': unknown key"),
        ({"sweep": 7}, "sweep: 7 is wrong; it must be a table"),
        (
            {"stall": {"after_seconds": "2m"}},
            "stall.after_seconds: '2m' is wrong; it must be a valid number (default: ",
        ),
        ({"kill": {"spare": "tmux"}}, "kill.spare: 'tmux' is wrong; it must be a list"),
        ({"control": {"admin_group": "no such group"}}, "control.admin_group: 'no such group' is not a group"),
    ],
)
def test_a_fault_is_one_line_with_its_key(document: dict[str, object], words: str) -> None:
    """In TOML's words, with the default where a file could hold it."""
    line = said(document)
    assert line.startswith(words)
    assert "\n" not in line


def test_a_date_is_told_as_it_was_written() -> None:
    """Not as Python shows it."""
    assert "2026-11-30 is wrong" in said({"stall": {"after_seconds": datetime.date(2026, 11, 30)}})


@pytest.mark.parametrize(
    ("url", "shown"),
    [("mysql://u:secret@h/n", "'mysql://…'"), ("u:secret@h", "'…'"), ("mysql:///n?password=secret", "'mysql://…'")],
)
def test_a_password_in_an_address_is_not_told(url: str, shown: str) -> None:
    """Nobody knows where it stands in what cannot be read: the kind alone is shown."""
    line = said({"registry": {"url": url}})
    assert line.startswith(f"registry.url: {shown} must be a URL")
    assert "secret" not in line


def test_what_is_long_is_cut() -> None:
    """The line stays one that a person reads."""
    assert len(said({"stall": {"after_seconds": "x" * 10_000}})) < 400
    assert len(said({"sweep": {"x" * 10_000: 1}})) < 600
