"""The table of built-in hooks, compared with the modules that do the work and with the documents."""

import json
from dataclasses import fields
from datetime import UTC, datetime
from inspect import signature
from pathlib import Path

import pytest

from tests.owner.repositories import context
from watchdog.core import hooks
from watchdog.core.agent import ENDED, Status
from watchdog.core.hooks import BUILT_IN, PATHS, CleanupSettings, HookContext, HookOutcome, HookResult
from watchdog.owner import hooks as at_work

MODULES = Path(at_work.__file__).parent


def test_each_built_in_hook_has_a_module_and_each_module_is_in_the_table() -> None:
    """A new hook is a module with a function of its name, and a line in the table."""
    there = {path.stem for path in MODULES.glob("*.py")} - {"__init__", "base"}
    for name in BUILT_IN.keys() - there:
        pytest.fail(f"BUILT_IN in watchdog/core/hooks.py has {name!r}: add watchdog/owner/hooks/{name}.py")
    for name in there - BUILT_IN.keys():
        pytest.fail(f"watchdog/owner/hooks/{name}.py runs for nobody: add a line to BUILT_IN in watchdog/core/hooks.py")
    assert list(at_work.BUILT_IN) == list(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_line_of_the_table_says_all_that_others_ask_of_it(name: str) -> None:
    """Its `place`, the message without it, and what stays if the hook is not configured."""
    hook = BUILT_IN[name]
    where = f"{name} in BUILT_IN, watchdog/core/hooks.py"
    known = {field.name for field in fields(HookContext)}
    assert hook.place is None or hook.place in known, f"{where}: `place` is a field of HookContext"
    assert (hook.place is None) == (hook.missing == ""), f"{where}: `missing` is what is said without its `place`"
    assert hook.about and hook.leaves, f"{where}: `about` and `leaves` are missing"
    assert not hook.about.endswith(".") and hook.about[0].islower(), f"{where}: `about` is a part of a sentence"
    assert not hook.removes or hook.place in PATHS, f"{where}: only a directory can be removed"
    assert hook.removes or not hook.by_name, f"{where}: `by_name` is said of what is removed"
    assert hook.on and hook.on <= ENDED, f"{where}: `on` holds ends"
    before = list(BUILT_IN)[: list(BUILT_IN).index(name)]
    assert set(hook.needs) <= set(before), f"{where}: `needs` names hooks before it"
    assert list(signature(at_work.BUILT_IN[name]).parameters) == ["context", "settings"], f"owner/hooks/{name}.py"


def test_the_directory_that_a_hook_works_on() -> None:
    """The registered directory; a pane is not a directory."""
    directories = {"worktree": "/tree", "temp_dir": "/temp"}
    agent = context(**directories, pane={"terminal": "tmux"})
    for name, hook in BUILT_IN.items():
        assert hook.directory(agent) == directories.get(hook.place or ""), name


def test_what_goes_between_daemon_and_helper_comes_back_the_same() -> None:
    """Both programs use these values; they exchange only JSON."""
    told = context(worktree="/tree", in_use=(("/other", "beta"),), registry_entry=({"kind": "hcom"},))
    assert hooks.context_of(dict(hooks.context_json(told))) == told
    settings = hooks.CleanupSettings(roots=("/a",), rebuildable=("*.log",), tasks=(("1", ""),), protected=("/b",))
    assert hooks.settings_of(dict(hooks.settings_json(settings))) == settings
    result = hooks.kept("why", kept=["a"])
    assert hooks.result_of(hooks.result_json(result)) == result


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
    """JSON lists become tuples again; None is not the same as an empty list of entries."""
    assert hooks.context_of(sent(hooks.context_json(context))) == context


@pytest.mark.parametrize("change", [{"outcome": "eaten"}, {"nobody": 1}, {"in_use": ["/w/x"]}])
def test_what_is_no_context_is_refused(change: dict[str, object]) -> None:
    """An unknown key, an unknown word, a malformed pair."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        hooks.context_of({**sent(hooks.context_json(CONTEXT)), **change})


def test_settings_come_back_as_they_were_sent() -> None:
    """Above all the roots: nothing outside of them is removed."""
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
    """Another program wrote it."""
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
