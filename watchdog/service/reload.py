"""SIGHUP: the configuration is read again, and applied as a whole or not at all."""

import asyncio
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from watchdog.agents.tracker import AgentTracker
from watchdog.concurrency import threads
from watchdog.config.settings import Settings
from watchdog.errors import ConfigError, WatchdogError
from watchdog.host.service_manager import ServiceManager
from watchdog.telemetry import logger
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.queue_handler import QueueHandler
from watchdog.telemetry.troubles import Troubles

# Agents, clients and the registry's rows depend on these: different values make a different daemon.
FIXED = ("daemon.host", "daemon.runtime_dir", "daemon.state_dir", "registry.url")

PATIENCE = 10.0  # seconds for reading it, and for NSS queries about the names in it; until then the former one holds


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """The result of a reload: the settings in force from now on, and the keys that are new or must wait."""

    settings: Settings
    changed: tuple[str, ...]
    waiting: tuple[str, ...]  # differ in the file, and apply from the next start on


def merge_settings(old: Settings, new: Settings) -> SettingsChange:
    """Overlay the new settings on the old ones, except for the keys that are fixed while the daemon runs."""
    differing = _differing(old, new)
    fixed: dict[str, dict[str, object]] = {}
    for key in FIXED:
        section, name = key.split(".")
        fixed.setdefault(section, {})[name] = getattr(getattr(old.config, section), name)
    config = new.config.model_copy(
        update={section: getattr(new.config, section).model_copy(update=keys) for section, keys in fixed.items()}
    )
    settings = dataclasses.replace(
        new,
        config=config,
        host=old.host,
        state_dir=old.state_dir,
        runtime_dir=old.runtime_dir,
        registry_url=old.registry_url,
    )
    return SettingsChange(
        settings,
        changed=tuple(key for key in differing if key not in FIXED),
        waiting=tuple(key for key in differing if key in FIXED),
    )


class Configured(Protocol):
    """A part that depends on the settings."""

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on. Must not wait; no sweep is running."""


class LogOutput:
    """The log, as configured."""

    def __init__(self, sink: QueueHandler) -> None:
        self._sink = sink

    def apply(self, settings: Settings) -> None:
        """Set target, format and level; and reopen a file, as after a rotation."""
        logger.change(self._sink, settings.log.level, settings.log.format, settings.log.file)
        self._sink.reopen()


class ConfiguredEntries:
    """The daemon's own recent errors, as far as they are about entries of the configuration."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles

    def apply(self, settings: Settings) -> None:
        """Errors of a hook or a source that the settings no longer have are forgotten."""
        self._troubles.configure("hook", ((hook.name,) for hook in settings.hooks))
        self._troubles.configure("source", ((source.kind, source.place()) for source in settings.sources))


class ConfigReload:
    """Reads, checks, swaps; reports the result to the log, systemd and `status`."""

    def __init__(
        self,
        settings: Settings,
        read: Callable[[], Settings],
        lock: asyncio.Lock,
        tracker: AgentTracker,
        supervisor: ServiceManager,
        log: EventLogger,
    ) -> None:
        """`read` raises WatchdogError; `lock` is the sweeps'. The tracker brings the next sweep forward."""
        self.settings = settings  # those in force
        self._read = read
        self._lock = lock
        self._tracker = tracker
        self._supervisor = supervisor
        self._log = log
        self._asked: list[asyncio.Future[None]] = []  # callers that wait for the result of the next one
        self.problems: list[str] = []  # of the last reload; while there are any, the former settings are in force
        self.waiting: tuple[str, ...] = ()

    @property
    def wanted(self) -> bool:
        """Whether a caller waits for one."""
        return bool(self._asked)

    async def ask(self) -> dict[str, object]:
        """Have the next sweep read it, and wait for the result."""
        asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._asked.append(asked)
        self._tracker.look_soon()
        await asked
        problems = list(self.problems)
        return {
            "success": not problems,
            "config": self.settings.file or "defaults",
            "problems": problems,
            "waiting": list(self.waiting),
        }

    async def run(self, parts: Sequence[Configured]) -> None:
        """Reload once, for each of these parts, in this order, and for all callers that asked.

        An unusable file changes nothing. The caller sends READY=1 with the result.
        """
        asked, self._asked = self._asked, []
        try:
            await self._run(parts)
        finally:
            for one in asked:
                if not one.done():
                    one.set_result(None)

    async def _run(self, parts: Sequence[Configured]) -> None:
        old = self.settings
        self._supervisor.reloading()
        try:
            new = await threads.call(old.file or "the configuration file", self._read, PATIENCE)
            self._supervisor.refuse_interval(new.interval)
        except WatchdogError as error:  # UnsafeDirectory too: the directory of our log
            self.problems = [*error.problems] if isinstance(error, ConfigError) else [str(error)]
            if isinstance(error, ConfigError) and isinstance(error.rest, Settings):  # report all errors at once
                self.problems += self._supervisor.problems_with(error.rest.interval)
            self._log.event("config.invalid", problems=self.problems)
            return
        change = merge_settings(old, new)
        async with self._lock:
            try:
                self._apply(change.settings, parts)
            except Exception as error:  # noqa: BLE001 - half of it would be worse than none
                self._apply(old, parts)
                self.problems = [f"not applied: {type(error).__name__}: {error}"]
                self._log.event("config.invalid", problems=self.problems)
                return
        self.problems, self.waiting = [], change.waiting
        self._log.event(
            "config.reloaded",
            config=new.file or "defaults",
            changed=change.changed,
            waiting_for_restart=change.waiting,
        )

    def _apply(self, settings: Settings, parts: Sequence[Configured]) -> None:
        self.settings = settings
        for part in parts:
            part.apply(settings)


def _differing(old: Settings, new: Settings) -> list[str]:
    """The keys whose values differ, as `section.key`; lists of tables (`hook`, `policy`) as one."""
    before, after = old.config.model_dump(), new.config.model_dump()
    keys = []
    for section, value in after.items():
        if not isinstance(value, dict):
            keys += [section] if before[section] != value else []
        else:
            keys += [f"{section}.{name}" for name in value if before[section].get(name) != value[name]]
    return sorted(keys)
