"""Runs the cleanup hooks of one ended agent: in order, each journaled before it runs, each with a deadline.

1. Only hooks whose `on` contains the outcome run, in the order of the configuration.
2. A hook whose subject was never registered (no worktree, no temp dir) is skipped.
3. The intent is committed before each try; a run that the journal records as done is not repeated.
4. A try that fails or times out is repeated after a back-off until `retries` is used up; then it is reported once.
5. Each hook runs, whatever the outcome of the one before, except one that `needs` it: that is skipped with a reason.

This module must not touch an owner's files or start a process: `HelperPool` does that, as the owner.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from watchdog.core.hooks import BUILT_IN, HookContext, HookOutcome, HookResult, HookSpec
from watchdog.errors import RegistryUnavailable

Results = list[tuple[HookSpec, HookResult]]
FINAL = frozenset({HookOutcome.DONE, HookOutcome.NOTHING, HookOutcome.KEPT})
WELL = frozenset({HookOutcome.DONE, HookOutcome.NOTHING})  # outcomes that satisfy `needs`
LONGEST_PAUSE = timedelta(seconds=60)


class Run(Protocol):
    """A run as the journal has it: `status` is `running` or a HookOutcome, `attempts` includes this try."""

    @property
    def status(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def message(self) -> str: ...
    @property
    def details(self) -> Mapping[str, object]: ...


class Journal(Protocol):
    """Where runs are recorded. Both methods raise RegistryUnavailable; then nothing was recorded and nothing is run."""

    async def open_run(self, context: HookContext) -> Run:
        """Commit that a try begins. A run that already ended well is returned unchanged, with its outcome as status."""

    async def finish_run(
        self, context: HookContext, result: HookResult, event: str, facts: Mapping[str, object]
    ) -> None:
        """Commit the outcome of the try together with the event that reports it, in one transaction."""


class Runner(Protocol):
    """The part of `helpers.pool.HelperPool` that is needed here."""

    async def run_hook(self, spec: HookSpec, context: HookContext) -> HookResult:
        """Run one try, as the owner."""


class Log(Protocol):
    """Where actions are logged."""

    def info(self, event: str, **facts: object) -> object: ...


async def run_hooks(
    hooks: Sequence[HookSpec],
    context_for: Callable[[HookSpec], HookContext],
    helpers: Runner,
    journal: Journal,
    log: Log,
    *,
    observe: bool = False,
    pause: timedelta = timedelta(seconds=1),
    progress: Callable[[Results, tuple[str, ...]], None] = lambda results, left: None,
) -> Results:
    """Run the hooks that apply; skipped ones are returned as `nothing`. `pause` is the first back-off; it doubles.

    `context_for` gives all tries of one hook the same `run_id`. `progress` is called before each hook with the results
    so far and the names of this hook and the later ones that have something to do. Raises RegistryUnavailable: then
    call again; finished hooks are not repeated.
    """
    results: Results = []
    well: dict[str, str | None] = {}  # by earlier hook: why it did not end well, or None
    for number, spec in enumerate(hooks):
        context = context_for(spec)
        progress(results, tuple(one.name for one in hooks[number:] if _applies(one, context)))
        if context.outcome not in spec.on:
            well[spec.name] = f"not run for agents that ended as {context.outcome}"
            continue
        unmet = [f"{name}: {well[name]}" for name in spec.needs if well.get(name) is not None]
        if unmet and not observe:
            result = HookResult(
                HookOutcome.NOTHING, f"not run, it needs {'; '.join(unmet)}", {"needs": "; ".join(unmet)}
            )
            facts = {"hook": spec.name, "outcome": "skipped", "message": result.message}
            log.info("cleanup.hook_skipped", **facts)
            results.append((spec, result))
            well[spec.name] = "not run"
            continue
        if (missing := _missing(spec, context)) is not None:
            results.append((spec, HookResult(HookOutcome.NOTHING, missing)))
        elif observe:
            log.info("cleanup.hook_finished", hook=spec.name, outcome="observed", message="observe mode: not run")
            results.append((spec, HookResult(HookOutcome.NOTHING, "observe mode: not run")))
        else:
            results.append((spec, await _run(spec, context_for, helpers, journal, log, pause)))
        last = results[-1][1]
        well[spec.name] = None if last.outcome in WELL else f"{last.outcome}: {last.message}"
    return results


def _applies(spec: HookSpec, context: HookContext) -> bool:
    """Whether the hook has something to do for that agent."""
    return context.outcome in spec.on and _missing(spec, context) is None


def _missing(spec: HookSpec, context: HookContext) -> str | None:
    """The message for a built-in hook whose subject was never registered; None: it was."""
    built_in = BUILT_IN.get(spec.run or "")
    if built_in is None or built_in.place is None or getattr(context, built_in.place) is not None:
        return None
    return built_in.missing


async def _run(
    spec: HookSpec,
    context_for: Callable[[HookSpec], HookContext],
    helpers: Runner,
    journal: Journal,
    log: Log,
    pause: timedelta,
) -> HookResult:
    """Try one hook until it ends well or its tries are used up; at least once, also if a daemon died during it."""
    while True:
        context = context_for(spec)  # again for each try: other agents may have started to work there meanwhile
        run = await journal.open_run(context)
        if run.status in FINAL:
            return HookResult(HookOutcome(run.status), run.message, dict(run.details))
        try:
            result = await helpers.run_hook(spec, context)
        except RegistryUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 one hook's failure must not keep the next from running
            result = HookResult(HookOutcome.FAILED, f"{type(error).__name__}: {error}")
        facts = {
            "hook": spec.name,
            "outcome": result.outcome.value,
            "attempt": run.attempts,
            "message": result.message,
        }
        final, spent = result.outcome in FINAL, run.attempts > spec.retries
        gives_up = run.attempts == spec.retries + 1  # reported once: the reaper retries it from time to time
        event = "cleanup.hook_finished" if final else "cleanup.hook_failed" if gives_up else "cleanup.hook_retried"
        await journal.finish_run(context, result, event, facts)
        log.info(event, **facts)
        if final or spent:
            return result
        await asyncio.sleep(min(LONGEST_PAUSE, pause * 2 ** min(run.attempts - 1, 10)).total_seconds())
