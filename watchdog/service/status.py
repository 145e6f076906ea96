"""What the daemon says of itself: the status line, the facts of `status`, figures of the fleet and the holds."""

import dataclasses
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from watchdog.agents import judging
from watchdog.agents.fleet import Fleet
from watchdog.agents.holds import Holds
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.config.settings import Settings
from watchdog.host.disk_reserve import Reserve
from watchdog.kill.worker import KillWorker
from watchdog.reaper.shares import Shares
from watchdog.service.reload import ConfigReload
from watchdog.sweep.sweeper import Sweeper
from watchdog.telemetry.queue_handler import QueueHandler
from watchdog.telemetry.troubles import Troubles


@dataclass(frozen=True, slots=True, eq=False)
class DaemonStatus:
    """Reads the parts, changes none; `settings` gives those that hold now."""

    settings: Callable[[], Settings]
    clock: Clock
    fleet: Fleet
    holds: Holds
    worker: KillWorker
    sweeper: Sweeper
    reload: ConfigReload
    placement: CgroupPlacement
    sink: QueueHandler
    reserve: Reserve
    shares: Shares
    troubles: Troubles

    def line(self) -> str:
        """STATUS= of sd_notify(3), shown by `systemctl status`."""
        count, health = len(self.fleet), self.sink.health()
        said = [f"watching {count} agent{'' if count == 1 else 's'}, {self.worker.busy} being killed"]
        if self.sweeper.recorder.trouble is not None:
            said.append("registry unavailable, kills suspended (see `status`, `doctor`)")
        if self.reserve.in_use:
            said.append("the registry's disk is full: its reserve is in use")
        if health.error:
            said.append(f"the log ({health.target}) cannot be written: {health.error}")
        if stuck := threads.overdue():
            said.append(f"no answer from: {', '.join(sorted(stuck))}")
        if errors := sum(one["level"] == "error" for one in self.troubles.facts()):
            said.append(f"{errors} error{'' if errors == 1 else 's'} of its own (status, doctor)")
        if self.reload.problems:
            said.append("the configuration file cannot be used, the former one holds")
        return "; ".join(said)

    def facts(self) -> dict[str, object]:
        """What `status` prints beside the counts."""
        last = self.sweeper.account.last_sweep
        return {
            "mode": self.settings().mode,
            "interval_seconds": self.settings().interval.total_seconds(),
            "last_sweep": last.wall.isoformat(timespec="seconds") if last else None,
            "being_ended": self.worker.busy,
            "needs_person": self.need_a_person(),
            "state_dir": self.settings().state_dir,
            "own_cgroup": str(self.placement),
            "roots": list(self.settings().cleanup.roots),
            "config": self.settings().file or "defaults",
            "config_problems": self.reload.problems,
            "config_waiting": self.reload.waiting,
            "unreadable": [
                {"pid": one.pid, "file": f"/proc/{one.pid}/{one.file}", "uid": one.uid}
                for one in sorted(self.sweeper.account.hung.values())
            ],
            "shared_services": self.sweeper.services,
            "registry_problem": self.sweeper.recorder.trouble,
            "users_over_share": self.shares.facts(),
            "disk_reserve": self.reserve.facts(),
            "hold_max_seconds": self.settings().hold.max_seconds,
            "lasting_doubts": self.sweeper.restraint.lasting(),
            "troubles": self.troubles.facts(),
            "waits_for": {what: round(seconds) for what, seconds in sorted(threads.overdue().items())},
            "log": dataclasses.asdict(self.sink.health()),
        }

    def verdicts(self) -> dict[str, int]:
        """Living agents by verdict."""
        return Counter(str(agent.judged.verdict or "none") for agent in self.fleet)

    def need_a_person(self) -> int:
        """Living agents that wait for a person, by their own word or by what their pane shows."""
        return sum(judging.needs_person(agent) for agent in self.fleet)

    def kinds_of_hold(self) -> dict[str, int]:
        """Holds that are on, by what holds."""
        return {
            "operator": len(self.holds.current(self.clock.now().wall)),
            **self.sweeper.restraint.kinds(),
        }
