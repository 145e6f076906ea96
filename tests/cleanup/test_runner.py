"""The facts that a hook gets; what the runner does with them is in tests/kill/test_worker.py."""

import ast
import inspect
from dataclasses import fields

from watchdog.agents.agent import Agent
from watchdog.cleanup import runner
from watchdog.core.agent import Policy, Registration, Status
from watchdog.core.hooks import HookContext
from watchdog.core.kill import KillOptions
from watchdog.kill.close import end_words


def test_each_fact_of_a_context_is_filled_in() -> None:
    """By the runner, or by how the agent ended: a field that neither sets would be None for every hook."""
    agent = Agent(Registration("a" * 32, "alpha", 0, "h", "b"), Policy(), Status.ENDING)
    ended = end_words(agent, Status.KILLED, KillOptions(), "daemon", "why", {})
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(runner))) if isinstance(node, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ("HookContext", "replace")]
    filled = {keyword.arg for call in made for keyword in call.keywords} | set(ended)

    missing = {field.name for field in fields(HookContext)} - filled
    assert not missing, f"set {missing} in CleanupRunner.run, watchdog/cleanup/runner.py"
