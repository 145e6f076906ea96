"""Runs the cleanup hooks of one agent that has ended: in order, each journaled before it runs, each below its deadline.

1. Only hooks whose `on` holds the outcome, in the order of the configuration.
2. A hook whose thing was never registered (no worktree, no temp dir) is passed over, and only that one.
3. The intent is committed before each try; a run that the journal knows as done is not repeated.
4. A try that fails or is late is repeated after a back-off until `retries` is used up; then it is told once.
5. Every hook runs, whatever became of the one before, but for one that `needs` it: that one is not run, and says why.

It must not touch an owner's file or start a process itself: `HelperPool` does, as the owner.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from watchdog.core.hooks import BUILT_IN, HookContext, HookOutcome, HookResult, HookSpec
from watchdog.errors import RegistryUnavailable

Results = list[tuple[HookSpec, HookResult]]
FINAL = frozenset({HookOutcome.DONE, HookOutcome.NOTHING, HookOutcome.KEPT})
WELL = frozenset({HookOutcome.DONE, HookOutcome.NOTHING})  # what a hook that needs another takes for its success
LONGEST_PAUSE = timedelta(seconds=60)


class Run(Protocol):
    """A run as the journal knows it: `status` is `running` or a HookOutcome, `attempts` counts this try too."""

    @property
    def status(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def message(self) -> str: ...
    @property
    def details(self) -> Mapping[str, object]: ...


class Journal(Protocol):
    """Where runs are written down. Both raise RegistryUnavailable; then nothing was promised and nothing is run."""

    async def open_run(self, context: HookContext) -> Run:
        """Commit that a try begins. A run that already ended well comes back untouched, with its outcome as status."""

    async def finish_run(
        self, context: HookContext, result: HookResult, event: str, facts: Mapping[str, object]
    ) -> None:
        """Commit how the try ended, together with the event that tells it: neither is ever there alone."""


class Runner(Protocol):
    """What is needed of `helpers.pool.HelperPool`."""

    async def run_hook(self, spec: HookSpec, context: HookContext) -> HookResult:
        """One try, as the owner."""


class Log(Protocol):
    """Where it is said what was done."""

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
    """Run what applies; what was passed over is in the answer as `nothing`. `pause` is the first back-off, doubled.

    `context_for` gives every try of one hook the same `run_id`. `progress` is called before each hook with what came
    so far, and the names of this one and of those after it that have something to do. Raises RegistryUnavailable: call
    again, what was done is not repeated.
    """
    results: Results = []
    well: dict[str, str | None] = {}  # of the hooks before: why one did not end well, or None
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
    """Whether it has something to do for that agent."""
    return context.outcome in spec.on and _missing(spec, context) is None


def _missing(spec: HookSpec, context: HookContext) -> str | None:
    """What is said where the thing that a built-in hook is about was never registered."""
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
    """One hook until it ends well or its tries are used up; at least one try, also after a daemon that died in it."""
    while True:
        context = context_for(spec)  # again for each try: others may have come to work there meanwhile
        run = await journal.open_run(context)
        if run.status in FINAL:
            return HookResult(HookOutcome(run.status), run.message, dict(run.details))
        try:
            result = await helpers.run_hook(spec, context)
        except RegistryUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 one hook's fault must not keep the next from running
            result = HookResult(HookOutcome.FAILED, f"{type(error).__name__}: {error}")
        facts = {
            "hook": spec.name,
            "outcome": result.outcome.value,
            "attempt": run.attempts,
            "message": result.message,
        }
        final, spent = result.outcome in FINAL, run.attempts > spec.retries
        gives_up = run.attempts == spec.retries + 1  # reported once: the reaper tries it again from time to time
        event = "cleanup.hook_finished" if final else "cleanup.hook_failed" if gives_up else "cleanup.hook_retried"
        await journal.finish_run(context, result, event, facts)
        log.info(event, **facts)
        if final or spent:
            return result
        await asyncio.sleep(min(LONGEST_PAUSE, pause * 2 ** min(run.attempts - 1, 10)).total_seconds())
