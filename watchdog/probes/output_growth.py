"""What changes while a silent agent works: its transcript, its log, its tmux pane, the bytes its processes move.

Asked of the owner's helper, beside the sweep, and only of agents that have been silent for a while: one that beats
costs nothing. Growth counts from one look to the next, so that nothing from before the silence speaks for it.
"""

from collections.abc import Callable
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.observed_activity import ActivityKind
from watchdog.errors import OwnerCallFailed

# Bytes a second, read and written by all processes together, terminals and sockets among them. A spinner that is drawn
# ten times a second writes 1 to 5 kB/s; a download of 1 Mbit/s is read and written with 250 kB/s.
MOVING = 50_000
PROCESSES = 256  # of one tree that are asked about
SCREENS = 64  # that are remembered of one pane: words that blink or run in a circle come again

Key = tuple[str, ActivityKind]


class OutputGrowth:
    """Looks at those in question; what it finds is in their `sights`."""

    def __init__(self, fleet: Fleet, inquiries: BackgroundQueries, clock: Clock) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._clock = clock
        self._asked: set[Key] = set()
        self._stamps: dict[Key, object] = {}
        self._moved: dict[str, tuple[float, dict[str, int]]] = {}  # by agent: when, and bytes by process
        self._shown: dict[str, list[tuple[str, str, str]]] = {}  # by agent: pane, size and hash, the newest last

    def look(self) -> list[Agent]:
        """Ask about every agent in question, and return them. Call it when silence has been reckoned."""
        doubtful = [agent for agent in self._fleet if agent.in_question]
        asked = {agent.agent_id for agent in doubtful}
        for key in [key for key in self._asked if key[0] not in asked]:  # also of what had no answer: no pane, no file
            self._inquiries.forget(key)
            self._asked.discard(key)
            self._stamps.pop(key, None)
            self._moved.pop(key[0], None)
            self._shown.pop(key[0], None)
        for agent in doubtful:
            self._ask_about(agent)
        return doubtful

    def _ask_about(self, agent: Agent) -> None:
        for kind, path in ((ActivityKind.TRANSCRIPT, agent.reg.transcript), (ActivityKind.LOG, agent.reg.log)):
            if path is not None:
                self._ask(agent, kind, "stamp", {"path": path}, self._stamp)
        main = agent.identity
        if main is not None:
            self._ask(
                agent, ActivityKind.PANE, "pane_shows", {"pid": main.pid, "start_ticks": main.start_ticks}, self._screen
            )
        if agent.tree.members:
            pids = [[m.identity.pid, m.identity.start_ticks] for m in agent.tree.members[:PROCESSES]]
            self._ask(agent, ActivityKind.IO, "moved", {"processes": pids}, self._bytes)

    def _ask(
        self,
        agent: Agent,
        kind: ActivityKind,
        call: str,
        args: dict[str, object],
        take: Callable[[Agent, ActivityKind, Any], None],
    ) -> None:
        def failed(error: OwnerCallFailed) -> None:
            agent.sights.looked(kind, None if error.reason == "no_pane" else str(error))

        def answered(answer: object) -> None:
            agent.sights.looked(kind)
            take(agent, kind, answer)

        key = agent.agent_id, kind
        self._asked.add(key)
        self._inquiries.ask(key, agent, call, args, answered, failed)

    def _stamp(self, agent: Agent, kind: ActivityKind, answer: Any) -> None:
        """Another size, content or file than at the last look is growth; other rights (ctime) are none."""
        stamp = [answer[key] for key in ("device", "inode", "size", "mtime_ns")]
        before = self._stamps.get((agent.agent_id, kind))
        if before is not None and before != stamp:
            agent.sights.see(kind, f"its {kind} grew")
        self._stamps[agent.agent_id, kind] = stamp

    def _screen(self, agent: Agent, kind: ActivityKind, answer: Any) -> None:
        """Words that were not there before in this silence; in another size it shows others for that alone."""
        screen = str(answer["pane"]), str(answer["size"]), str(answer["shows"])
        before = self._shown.setdefault(agent.agent_id, [])
        if before and screen not in before and screen[:2] == before[-1][:2]:
            agent.sights.see(kind, "its pane changes")
        self._shown[agent.agent_id] = [*(one for one in before if one != screen), screen][-SCREENS:]

    def _bytes(self, agent: Agent, kind: ActivityKind, answer: Any) -> None:
        """What each process moved since the last look; one that is new there only begins."""
        now, moved = self._clock.mono(), {str(pid): int(count) for pid, count in answer.items()}
        then, before = self._moved.get(agent.agent_id, (now, moved))
        self._moved[agent.agent_id] = now, moved
        count = sum(bytes_ - before.get(pid, bytes_) for pid, bytes_ in moved.items())
        if now > then and count / (now - then) >= MOVING:
            agent.sights.see(kind, f"its processes moved {count / (now - then) / 1000:.0f} kB/s")
