"""Runs the cleanup hooks of one agent that has ended: in order, each journaled before it runs, each below its deadline.

1. Only hooks whose `on` holds the outcome, in the order of the configuration.
2. A hook whose thing was never registered (no worktree, no temp dir) is passed over, and only that one.
3. The intent is committed before each try; a run that the journal knows as done is not repeated.
4. A try that fails or is late is repeated after a back-off until `retries` is used up; then it is told once.
5. Every hook runs, whatever became of the one before.

It must not touch an owner's file or start a process itself: `Owners` does, as the owner.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Protocol

from watchdog.core.model import HookContext, HookOutcome, HookResult, HookSpec
from watchdog.errors import RegistryUnavailable

FINAL = frozenset({HookOutcome.DONE, HookOutcome.NOTHING, HookOutcome.KEPT})
NEEDS = {"worktree": "worktree", "temp_dir": "temp_dir"}  # built-in hook -> the field of the context it is about
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

    async def finish_run(self, context: HookContext, result: HookResult) -> None:
        """Commit how the try ended."""


class Runner(Protocol):
    """What is needed of `owners.Owners`."""

    async def run_hook(self, spec: HookSpec, context: HookContext) -> HookResult:
        """One try, as the owner."""


class Log(Protocol):
    """What is needed of a bound structlog logger."""

    def info(self, event: str, **facts: object) -> object: ...
    def warning(self, event: str, **facts: object) -> object: ...


async def run_hooks(
    hooks: Sequence[HookSpec],
    context_for: Callable[[HookSpec], HookContext],
    owners: Runner,
    journal: Journal,
    log: Log,
    *,
    observe: bool = False,
    pause: timedelta = timedelta(seconds=1),
) -> list[tuple[HookSpec, HookResult]]:
    """Run what applies; what was passed over is in the answer as `nothing`. `pause` is the first back-off, doubled.

    `context_for` gives every try of one hook the same `run_id`. Raises RegistryUnavailable: call again, what was done
    is not repeated.
    """
    results: list[tuple[HookSpec, HookResult]] = []
    for spec in hooks:
        context = context_for(spec)
        if context.outcome not in spec.on:
            continue
        need = NEEDS.get(spec.run or "")
        if need is not None and getattr(context, need) is None:
            results.append((spec, HookResult(HookOutcome.NOTHING, f"no {need} was registered")))
        elif observe:
            log.info("cleanup.hook_finished", hook=spec.name, outcome="observed", message="observe mode: not run")
            results.append((spec, HookResult(HookOutcome.NOTHING, "observe mode: not run")))
        else:
            results.append((spec, await _run(spec, context_for, owners, journal, log, pause)))
    return results


async def _run(
    spec: HookSpec,
    context_for: Callable[[HookSpec], HookContext],
    owners: Runner,
    journal: Journal,
    log: Log,
    pause: timedelta,
) -> HookResult:
    """One hook until it ends well or its tries are used up; at least one try, also after a daemon that died in it."""
    while True:
        context = context_for(spec)  # anew for each try: others may have come to work there meanwhile
        run = await journal.open_run(context)
        if run.status in FINAL:
            return HookResult(HookOutcome(run.status), run.message, dict(run.details))
        try:
            result = await owners.run_hook(spec, context)
        except RegistryUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 one hook's fault must not keep the next from running
            result = HookResult(HookOutcome.FAILED, f"{type(error).__name__}: {error}")
        await journal.finish_run(context, result)
        facts = {
            "hook": spec.name,
            "outcome": result.outcome.value,
            "attempt": run.attempts,
            "message": result.message,
        }
        if result.outcome in FINAL:
            log.info("cleanup.hook_finished", **facts)
            return result
        if run.attempts > spec.retries:
            log.warning("cleanup.hook_failed", **facts)
            return result
        log.info("cleanup.hook_retried", **facts)
        await asyncio.sleep(min(LONGEST_PAUSE, pause * 2 ** min(run.attempts - 1, 10)).total_seconds())
