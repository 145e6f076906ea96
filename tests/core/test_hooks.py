"""What a hook is told and answers comes back through JSON as it was; other words are refused, or cut."""

import json
from datetime import UTC, datetime

import pytest

from watchdog.core import hooks
from watchdog.core.agent import Status
from watchdog.core.hooks import CleanupSettings, HookContext, HookOutcome, HookResult

CONTEXT = HookContext(
    run_id="r",
    hook="worktree",
    agent_id="a" * 32,
    name="a",
    owner_uid=1000,
    outcome=Status.KILLED,
    reason="stalled",
    task_id=None,
    worktree="/w",
    temp_dir=None,
    in_use=(("/w2", "agent b"),),
    registry_entry=({"kind": "hcom", "path": "/h", "key": "k"},),
    ended_at=datetime(2026, 11, 30, tzinfo=UTC).timestamp(),
)


def sent(data: object) -> dict[str, object]:
    """As it comes out of the pipe."""
    back = json.loads(json.dumps(data))
    assert isinstance(back, dict)
    return back


@pytest.mark.parametrize("context", [CONTEXT, HookContext("r", "h", "a", "n", 0, Status.LOST, "", None, None, None)])
def test_a_context_comes_back_as_it_was_sent(context: HookContext) -> None:
    """Lists of JSON are tuples again; no entry at all is not the same as no entries."""
    assert hooks.context_of(sent(hooks.context_json(context))) == context


@pytest.mark.parametrize("change", [{"outcome": "eaten"}, {"nobody": 1}, {"in_use": ["/w/x"]}])
def test_what_is_no_context_is_refused(change: dict[str, object]) -> None:
    """A key too many, a word too many, a pair that is none."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        hooks.context_of({**sent(hooks.context_json(CONTEXT)), **change})


def test_settings_come_back_as_they_were_sent() -> None:
    """The roots above all: what lies outside of them is not removed."""
    settings = CleanupSettings(("/a",), 1.5, "rescue", "delete", ("out",), (("u", "/t"),), 2.0, ("/state",))
    assert hooks.settings_of(sent(hooks.settings_json(settings))) == settings
    with pytest.raises(KeyError):
        hooks.settings_of({"dirty_worktree": "keep"})


@pytest.mark.parametrize(
    ("made", "outcome"),
    [
        (hooks.done, HookOutcome.DONE),
        (hooks.nothing, HookOutcome.NOTHING),
        (hooks.kept, HookOutcome.KEPT),
        (hooks.failed, HookOutcome.FAILED),
    ],
)
def test_an_answer_comes_back_as_it_was_given(made: object, outcome: HookOutcome) -> None:
    """Each of the four, with its details."""
    assert callable(made)
    answer = made("why", path="/p")
    assert answer == HookResult(outcome, "why", {"path": "/p"})
    assert hooks.result_of(sent(hooks.result_json(answer))) == answer


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"outcome": "burnt"},
        {"outcome": 1},
        {"outcome": "done", "message": 1},
        {"outcome": "done", "details": []},
    ],
)
def test_what_is_no_answer_is_refused(data: object) -> None:
    """They are somebody else's words."""
    with pytest.raises(ValueError, match=r"a hook answers|is not a valid"):
        hooks.result_of(data)


def test_an_answer_is_cut_and_made_printable() -> None:
    """It goes into a log line and a row, and neither takes a lone surrogate."""
    answer = hooks.result_of({"outcome": "kept", "message": "\udcff" + "x" * 3000})
    assert answer.message.startswith("\\udcffx")
    assert len(answer.message) == hooks.MESSAGE_LIMIT


def test_nothing_known_of_a_place_is_no_site() -> None:
    """With and without `sites`."""
    assert hooks.known_site(CONTEXT, "worktree").site is None
