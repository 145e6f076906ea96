"""The table of built-in hooks, held together with the modules that do the work and with what documents say."""

from dataclasses import fields
from inspect import signature
from pathlib import Path

import pytest

from tests.owner.repositories import context
from watchdog.core import hooks
from watchdog.core.agent import ENDED
from watchdog.core.hooks import BUILT_IN, PATHS, HookContext
from watchdog.owner import hooks as at_work

MODULES = Path(at_work.__file__).parent


def test_each_built_in_hook_has_a_module_and_each_module_is_in_the_table() -> None:
    """A new one is a module with a function of its name, and a line in the table."""
    there = {path.stem for path in MODULES.glob("*.py")} - {"__init__", "base"}
    for name in BUILT_IN.keys() - there:
        pytest.fail(f"BUILT_IN in watchdog/core/hooks.py has {name!r}: add watchdog/owner/hooks/{name}.py")
    for name in there - BUILT_IN.keys():
        pytest.fail(f"watchdog/owner/hooks/{name}.py runs for nobody: add a line to BUILT_IN in watchdog/core/hooks.py")
    assert list(at_work.BUILT_IN) == list(BUILT_IN)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_line_of_the_table_says_all_that_others_ask_of_it(name: str) -> None:
    """Which place it is about, what is said without that, and what stays where it is left out."""
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


def test_where_a_hook_is_at_work() -> None:
    """The directory that was registered; a pane is none."""
    agent = context(worktree="/tree", temp_dir="/temp", pane={"terminal": "tmux"})
    assert {name: hook.directory(agent) for name, hook in BUILT_IN.items()} == {
        "pane": None,
        "git_locks": "/tree",
        "worktree": "/tree",
        "temp_dir": "/temp",
        "registry_entry": None,
    }


def test_what_goes_between_daemon_and_helper_comes_back_the_same() -> None:
    """Both programs have these values; only JSON is between them."""
    told = context(worktree="/tree", in_use=(("/other", "beta"),), registry_entry=({"kind": "hcom"},))
    assert hooks.context_of(dict(hooks.context_json(told))) == told
    settings = hooks.CleanupSettings(roots=("/a",), rebuildable=("*.log",), tasks=(("1", ""),), protected=("/b",))
    assert hooks.settings_of(dict(hooks.settings_json(settings))) == settings
    result = hooks.kept("why", kept=["a"])
    assert hooks.result_of(hooks.result_json(result)) == result
