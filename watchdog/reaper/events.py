"""What the reaper logs and records: each leftover once, each action before and after it, each problem once."""

from collections.abc import Mapping

from watchdog.clock import Clock
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome
from watchdog.reaper.leftovers import Leftover
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.telemetry import logger
from watchdog.telemetry.logger import EventLogger

WELL = frozenset({HookOutcome.DONE, HookOutcome.NOTHING, HookOutcome.KEPT})


class ReapEvents:
    """Remembers what it has logged."""

    def __init__(self, registry: AsyncRegistry, clock: Clock, log: EventLogger) -> None:
        self._registry = registry
        self._clock = clock
        self._log = log
        self._told: set[tuple[str, str, str]] = set()
        self._troubled: set[str] = set()  # problems already logged

    def keep(self, found: list[Leftover]) -> None:
        """Forget what the last round no longer found."""
        self._told &= {one.key for one in found}

    def found(self, one: Leftover) -> None:
        """Log a leftover that is left as it is, once."""
        if one.key not in self._told and not one.quiet:
            self._told.add(one.key)
            with logger.caused_by(one.owner_uid):
                self._log.bind(**_facts(one), action=one.action).event("reap.found")

    def trouble(self, what: str, error: object) -> None:
        """Log a check that failed, each problem once."""
        words = f"{what}: {error}"
        if words not in self._troubled:
            if len(self._troubled) > 100:
                self._troubled.clear()
            self._troubled.add(words)
            self._log.event("reap.trouble", why=words)

    def done(self, event: str, one: Leftover, by: str, facts: Mapping[str, object]) -> None:
        """Log the outcome of an action."""
        with logger.caused_by(one.owner_uid if by == "daemon" else logger.cause()):
            self._log.bind(**_facts(one), **facts).event(event)

    async def history(self, event: str, one: Leftover, by: str) -> None:
        """Add a row to the history. Raises RegistryUnavailable."""
        why = f"{one.kind} {hooks.printable(one.what)}: {one.why}"
        if one.result is not None:
            why = f"{one.kind} {hooks.printable(one.what)}: {one.result.outcome}: {one.result.message}"
        add, now = self._registry.history.add_event, self._clock.now().wall
        await self._registry.write(add, event, one.agent_id, by, why, now, evidence=one.json(), owner_uid=one.owner_uid)


def _facts(one: Leftover) -> dict[str, object]:
    facts = {"kind": one.kind, "what": hooks.printable(one.what), "why": hooks.printable(one.why)}
    return {**facts, "agent_id": one.agent_id, "name": one.name, "uid": one.owner_uid}
