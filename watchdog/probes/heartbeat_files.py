"""Heartbeat files: a new mtime is a beat. The daemon never opens or stats the path; the owner's helper does.

A file that cannot be read, or a helper that hangs on it, means missing evidence about that agent alone: its other
channels, its process and all other agents are judged as before.
"""

from dataclasses import dataclass

from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.agent import Beat
from watchdog.errors import OwnerCallFailed
from watchdog.telemetry import logger
from watchdog.telemetry.logger import EventLogger

WRITTEN_NS = 2_000_000_000  # at most this far apart are the two times of a written file, on any file system
SLOW = 1.0  # seconds without an answer, after which the former answer is outdated


@dataclass(slots=True)
class _File:
    """What is known of one agent's file. `heard`: the agent's beats, without those from other channels."""

    heard: int
    known: bool = False
    stamp: object = None


class HeartbeatFiles:
    """Checks all heartbeat files beside the sweep."""

    def __init__(self, fleet: Fleet, inquiries: BackgroundQueries, clock: Clock, log: EventLogger) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._clock = clock
        self._log = log
        self._files: dict[str, _File] = {}

    def look(self) -> None:
        """Start a check of each file whose former check is over; a beat counts when it is found.

        Call it after silence was computed: an agent that would be too silent by an old answer is unread instead.
        """
        for gone in self._files.keys() - {agent.agent_id for agent in self._fleet}:
            self._inquiries.forget(_key(gone))
            del self._files[gone]
        for agent in self._fleet:
            if agent.reg.beat_file is not None:
                self._look(agent, self._files.setdefault(agent.agent_id, _File(heard=agent.heartbeat.rhythm.beats)))

    def _look(self, agent: Agent, file: _File) -> None:
        key = _key(agent.agent_id)
        waiting = self._inquiries.waiting(key)
        if waiting is not None:
            if waiting > SLOW and agent.heartbeat.silence.counted >= agent.heartbeat.silence.after:
                self._unread(agent, file, "no answer yet")
            return
        self._inquiries.ask(
            key,
            agent,
            "stamp",
            {"path": agent.reg.beat_file},
            lambda answer: self._take(agent, file, answer),
            lambda error: self._failed(agent, file, error),
        )

    def _take(self, agent: Agent, file: _File, answer: object) -> None:
        """A changed stamp is a beat; the first one is only the baseline.

        If the disk cannot be written, the agent may have tried to beat and failed: then an unchanged stamp says
        nothing.
        """
        stamp = {**answer} if isinstance(answer, dict) else {}
        unwritable = stamp.pop("unwritable", "")
        if isinstance(unwritable, str) and unwritable and file.stamp == stamp:
            self._unread(agent, file, f"{unwritable}: no beat could be written")
            return
        agent.heartbeat.silence.read_again()
        if file.known and file.stamp != stamp and not _set_back(file.stamp, stamp):
            now = self._clock.now()
            agent.beat(Beat(), now.mono, now.wall)
            file.heard += 1
        file.known, file.stamp = True, stamp

    def _failed(self, agent: Agent, file: _File, error: OwnerCallFailed) -> None:
        if error.reason == "ENOENT" and agent.heartbeat.rhythm.beats == 0:
            file.known, file.stamp = True, None  # its first beat makes the file
        else:
            self._unread(agent, file, str(error))

    def _unread(self, agent: Agent, file: _File, why: str) -> None:
        """Its file gives no evidence. An agent that also beats elsewhere is judged by that."""
        if agent.heartbeat.silence.hindrance.unread is None and agent.heartbeat.rhythm.beats == file.heard:
            path = agent.reg.beat_file or ""
            agent.heartbeat.silence.unread_now(why if path in why else f"{path}: {why}")
            with logger.caused_by(agent.reg.owner_uid):
                self._log.event("agent.beat_file_unread", agent_id=agent.agent_id, name=agent.reg.name, why=why)


def _set_back(former: object, stamp: dict[str, object]) -> bool:
    """Whether its mtime was set to an older time (`rsync -t`, `touch -d`) instead of by a write.

    A write while the clock is wrong makes both of its times wrong.
    """
    before = former.get("mtime_ns") if isinstance(former, dict) else None
    written, changed = stamp.get("mtime_ns"), stamp.get("ctime_ns")
    if not (isinstance(before, int) and isinstance(written, int) and isinstance(changed, int)):
        return False
    return written < before and changed - written > WRITTEN_NS


def _key(agent_id: str) -> tuple[str, str]:
    return agent_id, "beat file"
