"""Vendors' own session files, of agents that beat by hooks: a state that has ended without an event is seen there.

Asked of the owners' helpers beside the sweep: of agents of Claude Code, Codex and Gemini CLI that said that they work
or wait for a person and have been silent for a moment, each now and then and few at a time. Claude Code's is found by
its process; that of the others is the one that their hooks reported, where the process has no other session.
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

AT_ONCE = 8  # agents that one sweep asks about
LOOKS = 8  # in the silence that is too long
SUBJECT = "session"  # of its question to the helper
PROCESSES = 64  # of one tree that are asked about
CLAUDE = "claude"
TOLD = tuple(name for name, vendor in KNOWN.items() if vendor.tells_file)  # whose hooks report the file
NOTE = "its own session file says so"


class SessionFiles:
    """Looks at those files; what has ended is a word of the agent."""

    def __init__(self, fleet: Fleet, inquiries: BackgroundQueries, clock: Clock) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._clock = clock
        self._looked: dict[str, float] = {}  # by agent: monotonic instant of the last question

    def look(self) -> None:
        """Ask about those that were not looked at for longest, if that is long enough ago."""
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
                or not agent.heartbeat.hears
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
        """How long it has said nothing; within a tool's limit, or on a lease, that is no silence yet."""
        spoke = agent.heartbeat.rhythm.spoke  # None: to a daemon that was restarted
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
        """What the file said, unless a word came meanwhile."""
        if answer is None or agent.heartbeat.rhythm.beats != heard or self._fleet.get(agent.agent_id) is not agent:
            return
        listed = State(answer["state"]) if answer["state"] in set(State) else None
        since = answer["since"]
        take(agent, listed, since if isinstance(since, float | int) else None, self._clock)


def _question(agent: Agent, main: Identity) -> tuple[str, dict[str, object]]:
    """The helper's call, and what it is asked with."""
    if agent.reg.agent_type in TOLD:
        return "turn_state", {"vendor": agent.reg.agent_type, "path": agent.reg.transcript}
    others = [m.identity for m in agent.tree.members if m.uid == agent.reg.owner_uid and m.identity.pid != main.pid]
    processes = [[one.pid, one.start_ticks] for one in (main, *others)][:PROCESSES]
    return "session_state", {"processes": processes}


def take(agent: Agent, listed: State | None, since: float | None, clock: Clock) -> bool:
    """Whether the file's word is the newer one; then it is the agent's."""
    said = agent.heartbeat.rhythm.last_heartbeat
    lag = LOGGED if agent.reg.agent_type in TOLD else QUIET
    state = None if said is None else ended_by(agent.heartbeat.said.state, said.timestamp(), listed, since, lag)
    if state is None:
        return False
    now = clock.now()
    tool = "" if state is State.IDLE else None  # else it is the one that a person has allowed, or is asked about
    agent.beat(Beat(state=state, tool=tool, note=NOTE, promises=False), now.mono, now.wall)
    return True
