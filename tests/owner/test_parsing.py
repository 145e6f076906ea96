"""Work in a child that sees its places alone, with real children: results, errors, and what it asks its parent."""

import os
import signal
from pathlib import Path

import pytest

from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import confinement, parsing
from watchdog.owner.sources import kernel


def failing(error: Exception) -> object:
    raise error


@parsing.outside
def whose(word: str) -> list[object]:
    """Which process answers."""
    if word == "wrong":
        raise OwnerCallFailed("wrong", "it is wrong")
    return [word, os.getpid()]


def test_a_result_comes_from_another_process(tmp_path: Path) -> None:
    """As JSON, of any length."""
    assert parsing.parsed(os.getpid, [str(tmp_path)]) != os.getpid()
    assert parsing.parsed(lambda: "x" * 3_000_000, []) == "x" * 3_000_000
    assert parsing.parsed(lambda: {"surrogate": "\udcff"}, []) == {"surrogate": "\udcff"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OwnerCallFailed("busy", "later"), "busy"),
        (PathRefused("link", "a link"), "refused"),
        (FileNotFoundError(2, "not there"), "ENOENT"),
        (MemoryError(), "out_of_memory"),
        (ValueError("no"), "bad_request"),
        (RuntimeError("no"), "failed"),
    ],
)
def test_an_error_arrives_with_the_code_that_the_helper_gives_it(error: Exception, reason: str) -> None:
    """As if it was raised here."""
    with pytest.raises(OwnerCallFailed) as failure:
        parsing.parsed(lambda: failing(error), [])
    assert failure.value.reason == reason


def test_a_child_that_ends_without_an_answer_is_lost() -> None:
    """By a signal, by itself, or with words that are none."""
    for work, words in (
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
        (lambda: os._exit(3), "exit status 3"),
    ):
        with pytest.raises(OwnerCallFailed, match=words) as failure:
            parsing.parsed(work, [])
        assert failure.value.reason == "lost"


def test_what_it_may_not_do_is_done_outside() -> None:
    """The parent answers, and its errors arrive too."""
    assert parsing.parsed(lambda: whose("mine"), []) == ["mine", os.getpid()]
    assert whose("here") == ["here", os.getpid()]
    with pytest.raises(OwnerCallFailed, match="it is wrong"):
        parsing.parsed(lambda: whose("wrong"), [])


@pytest.mark.skipif(confinement.landlock_abi() < 2, reason="this kernel has no Landlock")
def test_another_process_is_seen_through_the_parent_alone() -> None:
    """Where it works is told; to look itself it is refused."""
    own = os.getpid()

    def look() -> list[str]:
        try:
            return [os.readlink(f"/proc/{own}/cwd")]
        except PermissionError:
            return ["refused", kernel.link(own, "cwd"), kernel.link(own, "root")]

    assert parsing.parsed(look, []) == ["refused", os.getcwd(), ""]


def test_a_host_without_any_mechanism_parses_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is only less confined."""
    monkeypatch.setattr(confinement, "landlock_abi", lambda: 0)
    monkeypatch.setattr(confinement, "MACHINES", {})
    (tmp_path / "file").write_text("x")

    assert parsing.parsed((tmp_path / "file").read_text, []) == "x"
