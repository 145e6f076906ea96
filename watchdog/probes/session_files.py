"""Vendors' own session files, for agents that beat by hooks: they show the end of a state that has no event.

Read by the owners' helpers beside the sweep: for agents of Claude Code, Codex and Gemini CLI that reported that they
work or wait for a person and have been silent for a moment, each now and then and few at a time. Claude Code's file is
found by its process; that of the others is the one that their hooks reported, if the process has no other session.
"""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.agent import Beat, State, Status
from watchdog.core.process import Identity
from watchdog.core.session_states import LOGGED, QUIET, ended_by, quiet_for
from watchdog.core.vendors import KNOWN

AT_ONCE = 8  # agents that one sweep queries
LOOKS = 8  # checks in the allowed silence
SUBJECT = "session"  # key of its query to the helper
PROCESSES = 64  # per query, of one tree
CLAUDE = "claude"
TOLD = tuple(name for name, vendor in KNOWN.items() if vendor.tells_file)  # vendors whose hooks report the file
NOTE = "its own session file says so"


class SessionFiles:
    """Checks those files; a state that has ended is applied as a beat."""

    def __init__(self, fleet: Fleet, inquiries: BackgroundQueries, clock: Clock) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._clock = clock
        self._looked: dict[str, float] = {}  # by agent: monotonic instant of the last query

    def look(self) -> None:
        """Query the least recently checked agents, if that is long enough ago."""
        now, silent = self._clock.mono(), {agent.agent_id: agent for agent in self._silent()}
        for agent_id in self._looked.keys() - silent:
            self._inquiries.forget((agent_id, SUBJECT))
            del self._looked[agent_id]
        due = [(self._looked.get(agent_id, float("-inf")), agent) for agent_id, agent in silent.items()]
        due = [
            (then, agent) for then, agent in due if now - then >= agent.heartbeat.silence.after.total_seconds() / LOOKS
        ]
        for _, agent in sorted(due, key=lambda pair: pair[0])[:AT_ONCE]:
            self._looked[agent.agent_id] = now
            self._ask(agent)

    def _silent(self) -> Iterator[Agent]:
        for agent in self._fleet:
            if (
                agent.reg.agent_type not in (CLAUDE, *TOLD)
                or not agent.heartbeat.reads_answers
                or agent.status is not Status.RUNNING
            ):
                continue
            if agent.reg.agent_type in TOLD and (
                agent.reg.transcript is None or len(agent.heartbeat.subagents.sessions) > 1
            ):
                continue
            if agent.heartbeat.said.state in (State.WORKING, State.WAITING) and self._quiet(agent) >= quiet_for(
                agent.heartbeat.silence.after
            ):
                yield agent

    def _quiet(self, agent: Agent) -> timedelta:
        """How long it has not beaten; within a tool's limit, or on a lease, that is not silence yet."""
        spoke = agent.heartbeat.rhythm.spoke  # None after a restart of the daemon
        return (
            agent.heartbeat.silence.lasted
            if spoke is None
            else max(agent.heartbeat.silence.lasted, timedelta(seconds=self._clock.mono() - spoke))
        )

    def _ask(self, agent: Agent) -> None:
        main = agent.identity
        if main is None:
            return
        key, heard = (agent.agent_id, SUBJECT), agent.heartbeat.rhythm.beats
        call, args = _question(agent, main)
        self._inquiries.ask(
            key,
            agent,
            call,
            args,
            lambda answer: self._take(agent, heard, answer),
            lambda _: None,
        )

    def _take(self, agent: Agent, heard: int, answer: Any) -> None:
        """Apply the file's state, unless a beat came meanwhile."""
        if answer is None or agent.heartbeat.rhythm.beats != heard or self._fleet.get(agent.agent_id) is not agent:
            return
        listed = State(answer["state"]) if answer["state"] in set(State) else None
        since = answer["since"]
        take(agent, listed, since if isinstance(since, float | int) else None, self._clock)


def _question(agent: Agent, main: Identity) -> tuple[str, dict[str, object]]:
    """The helper's call and its arguments."""
    if agent.reg.agent_type in TOLD:
        return "turn_state", {"vendor": agent.reg.agent_type, "path": agent.reg.transcript}
    others = [m.identity for m in agent.tree.members if m.uid == agent.reg.owner_uid and m.identity.pid != main.pid]
    processes = [[one.pid, one.start_ticks] for one in (main, *others)][:PROCESSES]
    return "session_state", {"processes": processes}


def take(agent: Agent, listed: State | None, since: float | None, clock: Clock) -> bool:
    """Whether the file's state is newer than the last beat; then it is applied."""
    said = agent.heartbeat.rhythm.last_heartbeat
    lag = LOGGED if agent.reg.agent_type in TOLD else QUIET
    state = None if said is None else ended_by(agent.heartbeat.said.state, said.timestamp(), listed, since, lag)
    if state is None:
        return False
    now = clock.now()
    tool = "" if state is State.IDLE else None  # otherwise it is the tool that a person has approved, or is asked about
    agent.beat(Beat(state=state, tool=tool, note=NOTE, promises=False), now.mono, now.wall)
    return True
