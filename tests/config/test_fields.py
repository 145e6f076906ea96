"""What a key of the configuration may hold: taken as it is meant, or refused with what would be right."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from watchdog.config import fields
from watchdog.core.kill import Step

ROOT = "root"  # a user and a group of every machine


@pytest.mark.parametrize(
    ("kind", "given", "taken"),
    [
        (fields.Path, "/a/../b//c/", "/b/c"),
        (fields.Path, "//a", "/a"),
        (fields.Path, "", ""),
        (fields.Seconds, 0.05, 0.05),
        (fields.SecondsOrZero, 0, 0.0),
        (fields.Address, "[::1]:9477", "[::1]:9477"),
        (fields.Database, "sqlite:////var/lib/x.db", "sqlite:////var/lib/x.db"),
        (fields.Database, "postgresql://u@h:5432/n?sslmode=require", "postgresql://u@h:5432/n?sslmode=require"),
        (fields.Ladder, ("warn", "kill"), (Step.WARN, Step.KILL)),
        (fields.Command, ("notify-send", "a b"), ("notify-send", "a b")),
        (fields.Account, ROOT, ROOT),
        (fields.Group, ROOT, ROOT),
        (fields.Group, "", ""),
        (fields.Type, "", ""),
        (fields.LogFile, "/tmp/x.log", "/tmp/x.log"),
    ],
)
def test_what_is_meant_is_taken(kind: Any, given: object, taken: object) -> None:
    """Paths without detours; bounds are taken themselves."""
    assert TypeAdapter(kind).validate_python(given) == taken


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        (fields.Path, "a/b", "must be an absolute path"),
        (fields.Path, "/a\nb", "must be printable"),
        (fields.Seconds, 0.049, "greater than or equal to 0.05"),
        (fields.Seconds, float("nan"), "finite number"),
        (fields.Seconds, "5", "valid number"),
        (fields.Count, True, "valid integer"),
        (fields.Address, "localhost:0", "must be HOST:PORT"),
        (fields.Address, "example.org:80", "no DNS name"),
        (fields.Database, "mysql://h/n", "must be a URL of sqlite or postgresql"),
        (fields.Database, "sqlite:///x.db", "must name an absolute file"),
        (fields.Database, "sqlite:////x.db?mode=ro", r"without \? "),
        (fields.Database, "postgresql://h:port/n", "must have a port of digits"),
        (fields.Ladder, ("kill", "warn"), r"must be in order, each step once; use \['warn', 'kill'\]"),
        (fields.Ladder, ("kill", "kill"), "must be in order"),
        (fields.Command, ("bin/x",), "'bin/x' is neither"),
        (fields.Command, ("/bin/x", "a\0"), "must hold no NUL"),
        (fields.Account, "no such user", "is not a user of this machine"),
        (fields.Group, "no such group", "is not a group of this machine"),
        (fields.Host, "a@b", "must hold no @"),
        (fields.Host, " a", "without spaces around it"),
        (fields.Line, "a\tb", "one printable line"),
        (fields.AgentName, "all", "matches no agent"),
        (fields.Tag, "x*", "patterns are not supported"),
        (fields.Event, "sweep.finishd", "is not an event; did you mean 'sweep.finished'"),
        (fields.LogFile, "/no/such/directory/x.log", "there is no directory /no/such/directory"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_would_be_right(kind: Any, given: object, words: str) -> None:
    """Each in words for whoever wrote the file."""
    with pytest.raises(ValidationError, match=words):
        TypeAdapter(kind).validate_python(given)


@pytest.mark.parametrize(
    ("address", "split"),
    [
        ("localhost:80", ("127.0.0.1", 80)),
        ("[::1]:65535", ("::1", 65535)),
        ("127.0.0.1:65536", None),
        ("::1:80", None),
        ("256.0.0.1:80", None),
        ("127.0.0.1", None),
    ],
)
def test_an_address_is_split_at_its_port(address: str, split: tuple[str, int] | None) -> None:
    """Six colons are no port: that address needs its brackets."""
    assert fields.split_address(address) == split


def test_a_slip_is_told_what_was_meant_and_a_short_list_is_told_whole() -> None:
    """A long list would be no help."""
    assert fields.suggest("intervall", ["interval", "mode"]) == "; did you mean 'interval'?"
    assert fields.suggest("xyz", ["b", "a"]) == "; use one of a, b"
    assert fields.suggest("xyz", [f"{number:03}" for number in range(15)]) == ""
    assert fields.suggest("xyz", []) == ""


def test_only_what_means_itself_is_a_file_in_a_url() -> None:
    """%41 is an A there, and what comes after a ? is cut off."""
    assert fields.plain_in_url("/var/lib/ü x.db")
    assert not any(map(fields.plain_in_url, ("/a?b", "/a%41", "/a\0")))
