"""The daemon's own status: the status line, the facts of `status`, metrics of the fleet and the holds."""

import dataclasses
from collections import Counter
from dataclasses import dataclass

from watchdog.agents import judging
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.holds import Holds
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.agents.persistence import AgentPersistence
from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.config.settings import Settings
from watchdog.host.disk_reserve import Reserve
from watchdog.kill.safeguards import Safeguards
from watchdog.kill.worker import KillWorker
from watchdog.reaper.shares import Shares
from watchdog.service.reload import ConfigReload
from watchdog.sweep.process_watch import ProcessWatch
from watchdog.sweep.stats import SweepStats
from watchdog.telemetry.metrics import Metrics
from watchdog.telemetry.queue_handler import LogHealth, QueueHandler
from watchdog.telemetry.troubles import Troubles


@dataclass(frozen=True, slots=True, eq=False)
class WatchState:
    """State of the watch over agents."""

    fleet: Fleet
    holds: Holds
    safeguards: Safeguards
    kills: KillWorker
    processes: ProcessWatch
    stats: SweepStats
    placement: CgroupPlacement


@dataclass(frozen=True, slots=True, eq=False)
class StorageState:
    """State of the storage: registry, history, log and disk."""

    persistence: AgentPersistence
    recorder: EventRecorder
    reserve: Reserve
    shares: Shares
    sink: QueueHandler
    troubles: Troubles
    metrics: Metrics


class DaemonStatus:
    """Reads the parts, changes none."""

    def __init__(
        self, settings: Settings, clock: Clock, watch: WatchState, storage: StorageState, reload: ConfigReload
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._watch = watch
        self._storage = storage
        self._reload = reload

    def apply(self, settings: Settings) -> None:
        """Apply these settings from now on."""
        self._settings = settings

    def line(self) -> str:
        """STATUS= of sd_notify(3), shown by `systemctl status`."""
        count, health = len(self._watch.fleet), self._storage.sink.health()
        said = [f"watching {count} agent{'' if count == 1 else 's'}, {self._watch.kills.busy} being killed"]
        if self._storage.persistence.trouble is not None:
            said.append("registry unavailable, kills suspended (see `status`, `doctor`)")
        if self._storage.reserve.in_use:
            said.append("the registry's disk is full: its reserve is in use")
        if health.error:
            said.append(f"the log ({health.target}) cannot be written: {health.error}")
        if stuck := threads.overdue():
            said.append(f"no answer from: {', '.join(sorted(stuck))}")
        if errors := sum(one["level"] == "error" for one in self._storage.troubles.facts()):
            said.append(f"{errors} error{'' if errors == 1 else 's'} of its own (status, doctor)")
        if self._reload.problems:
            said.append("the configuration file cannot be used, the former one holds")
        return "; ".join(said)

    def facts(self) -> dict[str, object]:
        """What `status` prints besides the counts."""
        last = self._watch.stats.last_sweep
        return {
            "mode": self._settings.mode,
            "interval_seconds": self._settings.interval.total_seconds(),
            "last_sweep": last.wall.isoformat(timespec="seconds") if last else None,
            "being_ended": self._watch.kills.busy,
            "needs_person": self.needs_person(),
            "state_dir": self._settings.state_dir,
            "own_cgroup": str(self._watch.placement),
            "roots": list(self._settings.cleanup.roots),
            "config": self._settings.file or "defaults",
            "config_problems": self._reload.problems,
            "config_waiting": self._reload.waiting,
            "unreadable": [
                {"pid": one.pid, "file": f"/proc/{one.pid}/{one.file}", "uid": one.uid}
                for one in sorted(self._watch.stats.hung.values())
            ],
            "shared_services": self._watch.processes.services,
            "registry_problem": self._storage.persistence.trouble,
            "users_over_share": self._storage.shares.facts(),
            "disk_reserve": self._storage.reserve.facts(),
            "hold_max_seconds": self._settings.hold.max_seconds,
            "lasting_doubts": self._watch.safeguards.lasting(),
            "troubles": self._storage.troubles.facts(),
            "waits_for": {what: round(seconds) for what, seconds in sorted(threads.overdue().items())},
            "log": dataclasses.asdict(self._storage.sink.health()),
        }

    def verdicts(self) -> dict[str, int]:
        """Living agents by verdict."""
        return Counter(str(agent.judged.verdict or "none") for agent in self._watch.fleet)

    def needs_person(self) -> int:
        """Living agents that wait for a person, by their own report or by what their pane shows."""
        return sum(judging.needs_person(agent) for agent in self._watch.fleet)

    def hold_counts(self) -> dict[str, int]:
        """Holds in force, by kind."""
        return {
            "operator": len(self._watch.holds.current(self._clock.now().wall)),
            **self._watch.safeguards.kinds(),
        }

    def mass_stalled(self) -> list[str]:
        """The uids whose agents fell silent together; `all` if all users' did."""
        return self._watch.safeguards.mass_stalled()

    def log_health(self) -> LogHealth:
        """The state of the log."""
        return self._storage.sink.health()

    def history_lost(self) -> int:
        """Events that only the log has."""
        return self._storage.recorder.lost

    def figures(self) -> bytes:
        """The metrics in Prometheus's format."""
        return self._storage.metrics.text()

    def no_space(self, uid: int) -> str | None:
        """Why non-essential data of this user is not written, or None."""
        if self._storage.reserve.in_use:
            return "the disk of the registry is full"
        if self._storage.shares.over(uid):
            return f"uid {uid} has used up its share of the registry ({self._storage.shares.most >> 20} MiB)"
        return None
