"""Flags of `run` and `beat`: what is a flag, what is its value, and where the command begins."""

import pytest

from watchdog.cli.flags import one, read_flags
from watchdog.errors import BadRequest

TAKES = {"--name": True, "--tag": True, "--replace": False}


@pytest.mark.parametrize(
    ("words", "values", "rest"),
    [
        ("", {}, []),
        ("--name a cmd --name b", {"--name": ["a"]}, ["cmd", "--name", "b"]),
        ("--name=a --tag=x=y --tag z", {"--name": ["a"], "--tag": ["x=y", "z"]}, []),
        ("--name= --", {"--name": [""]}, []),
        ("--replace -- --name", {"--replace": [""]}, ["--name"]),
        ("--name -- cmd", {"--name": ["--"]}, ["cmd"]),
        ("- --name a", {}, ["-", "--name", "a"]),
    ],
)
def test_the_command_begins_at_the_first_word_that_is_no_flag(
    words: str, values: dict[str, list[str]], rest: list[str]
) -> None:
    """Its own flags are not ours."""
    assert read_flags(words.split(), TAKES) == (values, rest)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--nope x", "unknown option --nope"),
        ("--nope=x", "unknown option --nope"),
        ("-n a", "unknown option -n"),
        ("--name", "--name needs a value"),
        ("--replace=1", "--replace takes no value"),
    ],
)
def test_what_is_no_flag_is_refused_by_its_name(words: str, said: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(BadRequest, match=f"^{said}$"):
        read_flags(words.split(), TAKES)


def test_a_flag_that_counts_once_is_given_once() -> None:
    """Of two values neither is taken for the one that was meant."""
    assert one({"--name": ["a"]}, "--name") == "a"
    assert one({}, "--name") is None
    with pytest.raises(BadRequest, match="--name is given 2 times"):
        one({"--name": ["a", "a"]}, "--name")
