"""Runs a configured command: JSON on stdin, a result or any text on stdout, judged by its exit status.

A hook runs as the owner, the `[notify]` command as the daemon's uid, in a session of its own, with an environment made
here, and a deadline at which its whole tree is killed. The agent's marker (AGENT_WATCHDOG_ID) is never passed on: the
sweep would take the hook for a process of the dead agent.
"""

import json
import os
from collections.abc import Sequence

from watchdog.core import hooks
from watchdog.core.hooks import HookContext, HookOutcome, HookResult
from watchdog.owner import bounded_child

STDOUT_LIMIT = 65536  # bytes kept; the rest is read and dropped
STDERR_LIMIT = 4096
ALLOWED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")


def environment(context: HookContext) -> dict[str, str]:
    """The allowed variables, and the facts under names that no agent carries."""
    kept = {key: os.environ[key] for key in ALLOWED if key in os.environ}
    facts = {
        "AGENT_WATCHDOG_HOOK": context.hook,
        "AGENT_WATCHDOG_RUN": context.run_id,
        "AGENT_WATCHDOG_ENDED_AGENT": context.agent_id,
        "AGENT_WATCHDOG_ENDED_NAME": context.name,
        "AGENT_WATCHDOG_OUTCOME": context.outcome,
        "AGENT_WATCHDOG_REASON": context.reason,
        "AGENT_WATCHDOG_TASK": context.task_id,
        "AGENT_WATCHDOG_WORKTREE": context.worktree,
        "AGENT_WATCHDOG_TEMP_DIR": context.temp_dir,
    }
    return kept | {key: str(value) for key, value in facts.items() if value is not None and "\0" not in value}


def run_command(argv: Sequence[str], context: HookContext, seconds: float, caller: int | None) -> HookResult:
    """Run one command hook to its end; failures of the command are results, not exceptions."""
    return _run(argv, json.dumps(hooks.context_json(context)), environment(context), seconds, caller)


def run_notice(argv: Sequence[str], name: str, event: str, seconds: float, caller: int | None) -> HookResult:
    """Run the `[notify]` command for one event (`event` is its JSON); its failures are results, not exceptions."""
    kept = {key: os.environ[key] for key in ALLOWED if key in os.environ}
    return _run(argv, event, kept | {"AGENT_WATCHDOG_EVENT": name}, seconds, caller)


def _run(argv: Sequence[str], told: str, variables: dict[str, str], seconds: float, caller: int | None) -> HookResult:
    stdin = bounded_child.input_file(told.encode() + b"\n")
    out, out_end = bounded_child.pipe_pair()
    err, err_end = bounded_child.pipe_pair()

    def execute() -> None:
        try:
            os.execvpe(argv[0], list(argv), variables)  # noqa: S606 an argv, no shell wanted
        except OSError as error:
            os.write(2, f"{argv[0]}: {error.strerror}".encode())
            os._exit(127)

    try:
        pid = bounded_child.start(execute, {0: stdin, 1: out_end, 2: err_end})
        bounded_child.close_all([stdin, out_end, err_end])
        ran = bounded_child.supervise(pid, {out: STDOUT_LIMIT, err: STDERR_LIMIT}, seconds, caller)
    finally:
        bounded_child.close_all([out, err])
    return judge(ran, ran.output[out], ran.output[err], seconds)


def judge(ran: bounded_child.ChildResult, out: bytes, err: bytes, seconds: float) -> HookResult:
    """The result of a run: with exit status 0 the JSON's outcome or `done`; anything else is `failed` or `timeout`."""
    details: dict[str, object] = {}
    if ran.leftovers:
        details["leftover_processes_ended"] = ran.leftovers
    if ran.survivors:
        details["processes_not_ended"] = ran.survivors
    words = (out.decode("utf-8", "replace").strip() or err.decode("utf-8", "replace").strip())[: hooks.MESSAGE_LIMIT]
    if ran.late or ran.status is None:
        return HookResult(HookOutcome.TIMEOUT, f"ended after {seconds:g} s; it had said: {words!r}", details)
    code = os.waitstatus_to_exitcode(ran.status)
    if code:
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        said = err.decode("utf-8", "replace").strip()[: hooks.MESSAGE_LIMIT] or words
        return HookResult(HookOutcome.FAILED, f"{how}: {said}" if said else how, details | {"exit": code})
    try:
        result = hooks.result_of(json.loads(out))
    except (ValueError, RecursionError):
        return HookResult(HookOutcome.DONE, words, details)
    return HookResult(result.outcome, result.message, result.details | details)
