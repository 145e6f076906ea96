"""Agents that a `[[source]]` tells of: today Claude Code's own list of the sessions that run.

So that sessions which were there before us, and have no hooks yet, are in `list` within one sweep. They are told of and
never ended for it (`core.model.TOLD_OF`), and promise nothing: their state is taken over, their silence is not counted.
As soon as a session's hooks speak, those alone are heard.
"""

import json
import os
from contextlib import suppress

from watchdog.control.claims import claim
from watchdog.control.desk import Desk
from watchdog.control.peers import Peer
from watchdog.control.registering import take_in
from watchdog.control.requests import Register, parse
from watchdog.core.model import Beat, State
from watchdog.errors import BadRequest, OwnerCallFailed, WatchdogError
from watchdog.fleet import Agent
from watchdog.owner.sources import SOURCES
from watchdog.owner.sources.base import Entry, entry_of
from watchdog.owners import Owners

DEADLINE = 3.0  # seconds for one look


class Sources:
    """Looks at each source beside the sweep, by the helper of the daemon's own uid; nobody else's files are read."""

    def __init__(self, desk: Desk, owners: Owners) -> None:
        self._desk = desk
        self._owners = owners
        self._peer = Peer(os.geteuid(), os.getegid(), os.getpid(), admin=True)
        self._unread: set[str] = set()

    async def look(self) -> None:
        """Register who is new, and take over what each says of itself."""
        for source in self._desk.settings.sources:
            kind = SOURCES[source.kind]
            path = source.path or os.environ.get(kind.variable) or kind.path
            try:
                args = {"kind": source.kind, "path": path}
                told = await self._owners.call(self._peer.uid, "source_discover", args, DEADLINE)
            except OwnerCallFailed as error:
                if path not in self._unread and error.reason != "closed":
                    self._desk.event("source.unread", source=source.kind, path=path, why=str(error))
                    self._unread.add(path)
                continue
            self._unread.discard(path)
            for one in told if isinstance(told, list) else ():
                with suppress(WatchdogError, ValueError):  # gone, another's, or no answer of ours
                    await self._take(source.kind, entry_of(one))

    async def _take(self, kind: str, entry: Entry) -> None:
        """One entry; whose process it is, and which, is the kernel's word. Raises WatchdogError when it is none."""
        pid, desk = entry.pid, self._desk
        if pid is None:
            return
        agent = next((a for a in desk.fleet if a.identity is not None and a.identity.pid == pid), None)
        if agent is None:
            async with desk.registering:
                taken = claim(pid, self._peer, desk.fleet, desk.host)
                if taken.uid != entry.uid or entry.ticks not in (None, taken.identity.start_ticks):
                    return  # the file outlived its session, and the number is another process's
                agent, _ = await take_in(desk, self._peer, _body(kind, entry, pid), taken)
        if agent.reg.source == kind and not agent.promised:
            self._hear(agent, entry)

    def _hear(self, agent: Agent, entry: Entry) -> None:
        """What changed since the last look, as its word that promises nothing."""
        state = State(entry.state) if entry.state in set(State) else None
        if state is None or (state is agent.state and entry.note == (agent.note or "")):
            return
        now = self._desk.clock.now()
        agent.beat(Beat(state=state, note=entry.note, promises=False), now.mono, now.wall)


def _body(kind: str, entry: Entry, pid: int) -> Register:
    body = {"name": entry.name, "pid": pid, "type": entry.type, "source": kind}
    try:
        return parse(Register, json.dumps({**body, "transcript": entry.transcript}).encode())
    except BadRequest:
        return parse(Register, json.dumps(body).encode())
