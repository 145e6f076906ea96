"""Runs the cleanup hooks of one agent, with the registry as their journal.

Tests: tests/kill/test_worker.py, tests/e2e/test_case_c11.py.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.ownership import UNTOUCHABLE, owner_of
from watchdog.agents.shared_paths import in_use
from watchdog.agents.sites import sites_known
from watchdog.cleanup import cleanup
from watchdog.cleanup.occupancy import Occupancy
from watchdog.clock import Clock
from watchdog.config.settings import Settings
from watchdog.core.agent import Status
from watchdog.core.hooks import BUILT_IN, HookContext, HookOutcome, HookResult, HookSpec
from watchdog.core.kill import Reason
from watchdog.core.process import Listed
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.registry.async_registry import AsyncRegistry


class CleanupRunner:
    """Runs the configured hooks for an agent that is proved dead. Raises RegistryUnavailable; then call again."""

    def __init__(
        self,
        settings: Settings,
        helpers: HelperPool,
        registry: AsyncRegistry,
        clock: Clock,
        recorder: EventRecorder,
        fleet: Fleet,
    ) -> None:
        self._helpers = helpers
        self._occupancy = Occupancy(helpers)
        self._registry = registry
        self._clock = clock
        self._recorder = recorder
        self._fleet = fleet
        self._dead: set[str] = set()  # agents whose tree is proved dead although their rows are still open
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Use these settings for cleanups from now on."""
        self._hooks = settings.hooks
        self._observe = settings.observe

    def knows(self, name: str) -> bool:
        """Whether the configuration still has a hook of that name."""
        return any(hook.name == name for hook in self._hooks)

    async def again(
        self, agent: Agent, reason: Reason, request_id: str, names: frozenset[str], **words: Any
    ) -> list[dict[str, object]]:
        """Run the hooks of these names again for an ended agent, and those that need one of them.

        `words` and, among them, `seen` are those of `run`.
        """
        chosen: list[HookSpec] = []
        for hook in self._hooks:
            if hook.name in names or any(other.name in hook.needs for other in chosen):
                chosen.append(hook)
        needed = {name for hook in chosen for name in hook.needs}
        hooks = [hook for hook in self._hooks if hook in chosen or hook.name in needed]  # finished ones are not rerun
        return await self.run(agent, agent.status, reason, request_id, hooks, **words)

    async def run(
        self,
        agent: Agent,
        outcome: Status,
        reason: Reason,
        request_id: str,
        hooks: Sequence[HookSpec] | None = None,
        *,
        seen: Mapping[str, str] = MappingProxyType({}),
        before_run: Callable[[], Awaitable[None]] | None = None,
        progress: Callable[[list[dict[str, object]], tuple[str, ...]], None] = lambda cleaned, left: None,
        **words: Any,
    ) -> list[dict[str, object]]:
        """Run the hooks (default: all configured) and return what each did, in order. `words`: further context fields.

        `before_run` is awaited before each run of a hook, so not at all if none is to run. `progress` is called before
        each hook with the results so far and the names of those that are left. `seen`: by hook name, what an earlier
        run, now retried, saw when it kept something because it was in use.
        """
        self._dead = {agent.agent_id, *(other.agent_id for other in self._fleet if other.agent_id in self._dead)}

        def context_for(spec: HookSpec) -> HookContext:
            return HookContext(
                run_id=f"{agent.agent_id}/{spec.name}",
                hook=spec.name,
                agent_id=agent.agent_id,
                name=agent.reg.name,
                owner_uid=agent.reg.owner_uid,
                outcome=outcome,
                reason=reason,
                task_id=agent.reg.task_id,
                worktree=agent.reg.worktree,
                temp_dir=agent.reg.temp_dir,
                pane=agent.reg.its_pane,
                exit_code=agent.exit.code,
                exit_signal=agent.exit.signal,
                in_use=in_use(self._fleet, agent, self._dead),
                sites=sites_known(agent, words.get("ended_at")),
                registry_entry=tuple(_place(entry) for entry in agent.reg.entries) or None,
                seen=seen.get(spec.name),
                **words,
            )

        journal = _Journal(self._registry, self._clock, request_id, agent, before_run)
        log = _HookLog(self._recorder, agent, self._observe)
        hooks = self._hooks if hooks is None else hooks
        runner = _AsOwner(self._helpers, agent, self._occupancy)

        def on(results: cleanup.Results, left: tuple[str, ...]) -> None:
            progress([_run_json(spec, result) for spec, result in results], left)

        results = await cleanup.run_hooks(hooks, context_for, runner, journal, log, observe=self._observe, progress=on)
        return [_run_json(spec, result) for spec, result in results]


def _run_json(spec: HookSpec, result: HookResult) -> dict[str, object]:
    """A run as the outcome lists it; `retry`: the command with which a person can repeat what could not be done.

    `needs`: the hooks that did not end well, so that this one was not run.
    """
    run: dict[str, object] = {"hook": spec.name, "outcome": result.outcome, "message": result.message}
    return run | {key: said for key in ("retry", "needs") if isinstance(said := result.details.get(key), str)}


def _place(entry: Listed) -> dict[str, Any]:
    return {"kind": entry.kind, "path": entry.path, "key": entry.key, "token": entry.token, "temp": entry.temp}


class _AsOwner:
    """Runs hooks as the agent's owner; none as root unless the agent is known to have been root's until its end."""

    def __init__(self, helpers: HelperPool, agent: Agent, occupancy: Occupancy) -> None:
        self._helpers = helpers
        self._occupancy = occupancy
        self._agent = agent

    async def run_hook(self, spec: HookSpec, context: HookContext) -> HookResult:
        built_in = BUILT_IN.get(spec.run or "")
        try:
            if built_in is not None and built_in.removes and (place := built_in.directory(context)) is not None:
                owner = owner_of(self._agent)
                user = await self._occupancy.user_of(owner, place, by_name=built_in.by_name)
                context = replace(context, used_by=user)
            owner_of(self._agent)
        except OwnerCallFailed as error:
            outcome = HookOutcome.KEPT if error.reason == UNTOUCHABLE else HookOutcome.FAILED
            return HookResult(outcome, f"not touched: {error}", {"reason": error.reason})
        return await self._helpers.run_hook(spec, context)


class _Journal:
    def __init__(
        self,
        registry: AsyncRegistry,
        clock: Clock,
        request_id: str,
        agent: Agent,
        before_run: Callable[[], Awaitable[None]] | None,
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._request_id = request_id
        self._agent = agent
        self._before_run = before_run

    async def open_run(self, context: HookContext) -> cleanup.Run:
        if self._before_run is not None:
            await self._before_run()
        return await self._registry.write(
            self._registry.history.open_run,
            context.run_id,
            context.agent_id,
            context.hook,
            self._clock.now().wall,
            request_id=self._request_id,
            anew=context.seen is not None,
        )

    async def finish_run(
        self, context: HookContext, result: HookResult, event: str, facts: Mapping[str, object]
    ) -> None:
        details = dict(result.details)
        if context.seen is not None and result.outcome not in cleanup.FINAL:
            details["seen"] = context.seen  # keep it for the next try
        await self._registry.write(
            self._registry.history.finish_run,
            context.run_id,
            HookOutcome(result.outcome),
            result.message,
            self._clock.now().wall,
            details,
            event=event,
            evidence=facts,
            owner_uid=self._agent.reg.owner_uid,
        )


class _HookLog:
    """Reports a hook's run. The journal has recorded it already, except in observe mode and for skipped hooks."""

    def __init__(self, recorder: EventRecorder, agent: Agent, observe: bool) -> None:
        self._recorder = recorder
        self._agent = agent
        self._observe = observe

    def info(self, event: str, **facts: object) -> None:
        why = f"{facts['hook']}: {facts['outcome']}: {facts['message']}"
        if self._observe or event == "cleanup.hook_skipped":  # no run was recorded
            self._recorder.record(event, self._agent, why, evidence=facts)
        else:
            self._recorder.log(event, self._agent, why, facts)
            self._recorder.new_events.ring()
