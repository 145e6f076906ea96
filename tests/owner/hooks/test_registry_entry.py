"""The hook that closes an agent's entries elsewhere: what it makes of each, and of all together."""

from dataclasses import replace
from pathlib import Path

import pytest

from watchdog.core.agent import Status
from watchdog.core.hooks import CleanupSettings, HookContext, HookOutcome
from watchdog.owner.hooks.registry_entry import end_of, registry_entry

CONTEXT = HookContext("r", "registry_entry", "a" * 32, "a", 1000, Status.KILLED, "stalled", "T-1", None, None)
SESSIONS = """\
tmux_sessions:
- name: a
  status: running
"""


def place(path: Path, key: str = "a", token: str = "t", kind: str = "agent_sessions") -> dict[str, object]:
    return {"kind": kind, "path": str(path), "key": key, "token": token}


def test_who_stands_nowhere_needs_nothing() -> None:
    """No list, and an empty one."""
    for entries in (None, ()):
        assert (
            registry_entry(replace(CONTEXT, registry_entry=entries), CleanupSettings()).outcome is HookOutcome.NOTHING
        )


@pytest.mark.parametrize("kind", ["claude", "nobody's"])
def test_an_entry_that_only_its_own_program_may_close_is_left_to_it(tmp_path: Path, kind: str) -> None:
    """And so is that of a kind which nobody knows any more."""
    entry = place(tmp_path, kind=kind)
    answer = registry_entry(replace(CONTEXT, registry_entry=(entry,)), CleanupSettings())
    assert (answer.outcome, answer.message) == (HookOutcome.NOTHING, f"{kind} a: left to its own program")


def test_one_that_cannot_be_read_fails_and_is_told_first(tmp_path: Path) -> None:
    """The others are told all the same; the hook is tried again."""
    broken = tmp_path / "s.yaml"
    broken.write_text("sessions: [\n")
    entries = place(tmp_path, kind="claude"), place(broken)
    answer = registry_entry(replace(CONTEXT, registry_entry=entries), CleanupSettings())
    assert answer.outcome is HookOutcome.FAILED
    assert answer.message.startswith("agent_sessions a: ")
    assert answer.message.endswith("claude a: left to its own program")


def test_an_entry_that_is_another_runs_by_now_is_kept(tmp_path: Path) -> None:
    """Not a byte of it is changed."""
    path = tmp_path / "s.yaml"
    path.write_text(SESSIONS)
    answer = registry_entry(replace(CONTEXT, registry_entry=(place(path, token="another"),)), CleanupSettings())
    assert answer.outcome is HookOutcome.KEPT, answer
    assert path.read_text() == SESSIONS


def test_an_entry_that_is_not_there_needs_nothing(tmp_path: Path) -> None:
    """Somebody was faster."""
    path = tmp_path / "s.yaml"
    path.write_text(SESSIONS)
    answer = registry_entry(replace(CONTEXT, registry_entry=(place(path, key="b"),)), CleanupSettings())
    assert answer.outcome is HookOutcome.NOTHING, answer


@pytest.mark.parametrize(("number", "name"), [(None, None), (9, "SIGKILL"), (15, "SIGTERM"), (40, "SIG40")])
def test_an_end_is_told_in_words(number: int | None, name: str | None) -> None:
    """A real-time signal has no name."""
    end = end_of(replace(CONTEXT, exit_signal=number, why="silent for 2m"))
    assert (end.status, end.reason, end.signal) == ("killed", "silent for 2m", name)
    assert end_of(CONTEXT).reason == "stalled"
