"""What each source said of an agent right before its first signal: kept with the kill request, shown by `why`.

It is bounded, and has no secrets that `core.redaction` knows. What is not known is reported as such. Numbers are
seconds, times UTC.
"""

import asyncio
from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.agents.ownership import owner_of
from watchdog.agents.watched_time import WatchedTime
from watchdog.clock import Clock
from watchdog.core.conversations import Conversation
from watchdog.core.redaction import hide_secrets
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.probes.conversation import find_conversation
from watchdog.probes.panes import Panes

LONGEST = 500  # characters of a text that is not ours
MOST = 10  # lines of a log
DEADLINE = 1.0  # seconds that the first signal may wait for the log


class EvidenceCollector:
    """Asks each part that knows something of an agent."""

    def __init__(
        self,
        clock: Clock,
        holds: Holds,
        helpers: HelperPool,
        panes: Panes,
        watched: WatchedTime,
    ) -> None:
        self._clock = clock
        self._holds = holds
        self._helpers = helpers
        self._panes = panes
        self._watched = watched

    def catch_up(self, agent: Agent) -> None:
        """Bring the agent's watched time up to this moment, before it is shown."""
        self._watched.catch_up(agent)

    async def conversation(self, agent: Agent) -> Conversation | None:
        """The conversation of its program that it is in."""
        return await find_conversation(agent, self._helpers)

    async def collect(self, agent: Agent) -> dict[str, object]:
        """What each source says of it now."""
        held = self._holds.reason_for(agent.agent_id, self._clock.now().wall)
        self.catch_up(agent)
        return await collect_evidence(agent, held, self._helpers, self._panes)


async def collect_evidence(agent: Agent, held: str | None, helpers: HelperPool, panes: Panes) -> dict[str, object]:
    """By source: verdict, heartbeat, lease, tool, progress, beat_file, activity, seen, hold, last_words, pane.

    `held`: a hold on it that came too late for this kill, or None. Waits at most `DEADLINE` for the owner's helper to
    read the end of its log, and `panes.DEADLINE` for what its pane shows.
    """
    ages, said = agent.heartbeat.ages, agent.heartbeat.said
    output, pane = await asyncio.gather(_output(agent, helpers), panes.last_screen(agent))
    tool = None if not said.tool else {"name": _words(said.tool), "left_seconds": _seconds(ages.tool_left)}
    progress = None
    if said.progress is not None:
        progress = {"value": said.progress, "unchanged_seconds": _seconds(ages.progress_age)}
    return {
        "verdict": f"{agent.judged.verdict or 'none yet'}: {_words(agent.judged.line) or 'not judged'}",
        "heartbeat": _heartbeat(agent),
        "lease": {"left_seconds": _seconds(ages.lease_left)} if ages.lease_left else None,
        "tool": tool,
        "progress": progress,
        "beat_file": _beat_file(agent),
        "activity": _words(agent.activity) or "none seen from outside, or not looked for",
        "seen": {str(kind): f"{_words(s.text)}, {_seconds(s.age)} s ago" for kind, s in agent.sights.seen.items()},
        "looks_that_failed": {str(kind): _words(why) for kind, why in agent.sights.failed.items()},
        "hold": _words(held),
        "last_words": {"note": _words(said.note) or "none was ever reported", "output": output},
        "pane": pane or "it has no terminal",
    }


def _heartbeat(agent: Agent) -> dict[str, object]:
    silence, said, rhythm = agent.heartbeat.silence, agent.heartbeat.said, agent.heartbeat.rhythm
    return {
        "beats": rhythm.beats,
        "last_at": rhythm.last_heartbeat.isoformat(timespec="seconds") if rhythm.last_heartbeat else None,
        "silent_seconds": _seconds(silence.lasted),
        "not_counted_seconds": _seconds(silence.forgiven) if silence.forgiven else None,
        "allowed_seconds": _seconds(silence.after),
        "promised": said.promised,
        "state": said.state.value if said.state else None,
        "looks_that_found_it_silent": silence.doubts.late_looks,
        "channel_lost": silence.hindrance.channel_lost,
        "from_pid": agent.heartbeat.speaker_pid,
    }


def _beat_file(agent: Agent) -> str | None:
    if agent.reg.beat_file is None:
        return None
    unread = agent.heartbeat.silence.hindrance.unread
    return "read" if unread is None else f"could not be read for {_seconds(unread)} s"


async def _output(agent: Agent, helpers: HelperPool) -> object:
    """The last lines of its log, if one was registered."""
    if agent.reg.log is None:
        return "not known: no log was registered (--log)"
    try:
        lines = await helpers.call(owner_of(agent), "last_lines", {"path": agent.reg.log}, DEADLINE)
    except OwnerCallFailed as error:
        return f"not known: {_words(str(error))}"
    if not isinstance(lines, list):
        return "not known"
    return [str(line)[:LONGEST] for line in lines][:MOST] or "none: its log ends with no whole line"


def _words(text: str | None) -> str | None:
    if text is None:
        return None
    shown = hide_secrets(text[: 8 * LONGEST])
    return shown if len(shown) <= LONGEST else f"{shown[: LONGEST - 1]}…"


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else round(span.total_seconds(), 1)
