"""SIGHUP: the configuration is read anew, and holds as a whole or not at all."""

import asyncio
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from watchdog.concurrency import threads
from watchdog.config.settings import Settings
from watchdog.errors import ConfigError, WatchdogError
from watchdog.host.service_manager import ServiceManager
from watchdog.telemetry.logger import EventLogger

# What agents, clients and the registry's rows go by: another one is another daemon.
FIXED = ("daemon.host", "daemon.runtime_dir", "daemon.state_dir", "registry.url")

PATIENCE = 10.0  # seconds for reading it, and for NSS about the names in it; the former one holds meanwhile


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """What a reload comes to: the settings that hold from now on, and by key what is new and what has to wait."""

    settings: Settings
    changed: tuple[str, ...]
    waiting: tuple[str, ...]  # differ in the file, and hold from the next start on


def merge_settings(old: Settings, new: Settings) -> SettingsChange:
    """Lay the new settings over the old ones, but for the keys that are fixed while we live."""
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


class ConfigReload:
    """Reads, checks, swaps; tells the log, systemd and `status` how it went."""

    def __init__(
        self,
        read: Callable[[], Settings],
        adopt: Callable[[Settings], None],
        lock: asyncio.Lock,
        supervisor: ServiceManager,
        log: EventLogger,
    ) -> None:
        """`read` raises WatchdogError; `adopt` hands the settings to every part, under the sweeps' `lock`."""
        self._read = read
        self._adopt = adopt
        self._lock = lock
        self._supervisor = supervisor
        self._log = log
        self.problems: list[str] = []  # of the last reload; while there are any, the former settings hold
        self.waiting: tuple[str, ...] = ()

    async def run(self, old: Settings) -> None:
        """Once. A file that cannot be used changes nothing. The caller says READY=1, with what came of it."""
        self._supervisor.reloading()
        try:
            new = await threads.call(old.file or "the configuration file", self._read, PATIENCE)
            self._supervisor.refuse_interval(new.interval)
        except WatchdogError as error:  # UnsafeDirectory too: the directory of a log of our own
            self.problems = [*error.problems] if isinstance(error, ConfigError) else [str(error)]
            if isinstance(error, ConfigError) and isinstance(error.rest, Settings):  # all that is wrong, at once
                self.problems += self._supervisor.problems_with(error.rest.interval)
            self._log.event("config.invalid", problems=self.problems)
            return
        change = merge_settings(old, new)
        async with self._lock:
            try:
                self._adopt(change.settings)
            except Exception as error:  # noqa: BLE001 - half of it would be worse than none
                self._adopt(old)
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
