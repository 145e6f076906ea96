"""One agent, one daemon: which processes other daemons on this host hold, and the consequences for our agents.

ask their control sockets each interval -> leave agents that are theirs (`core.custody`) to them -> the daemon is gone,
or no longer holds it -> ours, with fresh silence

While an agent belongs to another daemon, nothing is judged or cleaned up here. Its messages to us are passed on to that
daemon: its own notify socket, or the `run` that stays with us, may be its only channel. Before a new process is
registered, its owner's helper asks the other daemons about it.
"""

import asyncio
import os
from dataclasses import dataclass
from functools import partial
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.process_claim import look_at
from watchdog.agents.selectors import is_number
from watchdog.client import client, sockets
from watchdog.client.custody import daemon_of
from watchdog.clock import Clock
from watchdog.concurrency import threads
from watchdog.config.settings import Settings
from watchdog.core.custody import Custody, DaemonProcess, Holder, custody
from watchdog.core.ownership import ROOT
from watchdog.core.process import Identity, Presence
from watchdog.discovery.forwarder import ANSWER, Forwarder
from watchdog.errors import DaemonUnreachable, OwnerCallFailed, UnsafeDirectory
from watchdog.helpers.pool import HelperPool
from watchdog.kill.worker import KillWorker
from watchdog.processes import identity as identities
from watchdog.processes.environment import environment
from watchdog.processes.identity import Seen, presence
from watchdog.processes.reader import awaited

REMEMBERED = 60.0  # seconds until another daemon is asked again about a process that it holds
Key = tuple[int, int]  # pid and start ticks
Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class _Neighbour:
    """Another daemon, as of its last answer."""

    daemon: DaemonProcess
    identity: Identity
    held: dict[Key, tuple[str, str]]  # id and name of each agent there


class Custodians:
    """Knows which other daemon holds which process. One round at a time."""

    def __init__(
        self,
        fleet: Fleet,
        clock: Clock,
        recorder: EventRecorder,
        helpers: HelperPool,
        kills: KillWorker,
        settings: Settings,
        forwarder: Forwarder,
    ) -> None:
        self._fleet = fleet
        self._clock = clock
        self._record = recorder.record  # to the log and the history
        self._helpers = helpers
        self._kills = kills
        self._host = host = identities.this_host(settings.host)
        self._socket_path = f"{settings.runtime_dir}/control.sock"  # our own, which is not asked
        me = identities.read_identity(os.getpid(), host)
        self._me = DaemonProcess(os.geteuid(), os.getpid(), 0 if me is None else me.start_ticks)
        self._neighbours: dict[str, _Neighbour] = {}  # by socket
        self._learnt: dict[Key, tuple[Holder, Identity, float]] = {}  # processes that we left to others; until when
        # by uid: daemons that did not answer, and until when they are not asked again
        self._deaf: dict[int, float] = {}
        self._pool = forwarder.pool

    async def round(self) -> None:
        """Ask every daemon that may hold agents of ours, and leave them to it or take them over."""
        if len(self._fleet):
            await self.look()
            for agent in self._fleet:
                self.settle(agent)

    async def look(self) -> None:
        """Ask them. At start before our own agents are restored: one that was taken over must not be killed by us."""
        try:
            paths = await threads.call("sockets of other daemons", self._sockets, ANSWER)
        except threads.Unanswered:
            return
        for path in self._neighbours.keys() - set(paths):
            del self._neighbours[path]
        for path in paths:
            await self._ask(path)

    async def holder_of(self, process: Identity, owner: int, *, ordered: bool = False) -> Holder | None:
        """The other daemon that holds a process which is to become an agent here; None: no other does, register it.

        `owner`: the uid of the process. `ordered`: by root or an admin, which takes it from any other daemon.
        """
        key = process.pid, process.start_ticks
        if ordered:
            self._learnt.pop(key, None)
            return None
        known = self._learnt.get(key)
        if known is not None:
            holder, daemon, until = known
            alive = presence(daemon, None, host=self._host) is not Presence.ABSENT
            if alive and self._clock.mono() < until:
                return holder
            del self._learnt[key]
        if self._deaf.get(owner, 0.0) > self._clock.mono():
            return None
        args: dict[str, Any] = {"pid": process.pid, "start_ticks": process.start_ticks, "sockets": self._usual(owner)}
        args["but"] = self._socket_path
        try:
            answer = await self._asked(owner, args)
            found = None if answer is None else await self._proved(answer, owner)
        except (OwnerCallFailed, KeyError, TypeError, ValueError) as error:
            if isinstance(error, OwnerCallFailed) and error.reason == "late":
                # No user may delay us once for each entry of a file.
                self._deaf[owner] = self._clock.mono() + REMEMBERED
            return None  # missing evidence
        if found is None or custody(self._me, found[0].daemon, owner, held=False) is Custody.OURS:
            return None
        self._learnt = {key: one for key, one in self._learnt.items() if one[2] > self._clock.mono()}
        self._learnt[key] = (*found, self._clock.mono() + REMEMBERED)
        return found[0]

    async def _asked(self, owner: int, args: dict[str, Any]) -> Json | None:
        """Asked by ourselves if the process has our own uid: a hook would have to wait for a helper to start."""
        if owner != self._me.uid:
            found: Json | None = await self._helpers.call(owner, "daemon_of", args, 2 * ANSWER)
            return found
        try:
            async with asyncio.timeout(2 * ANSWER):
                args["environment"] = await _environment(args["pid"])
                return await asyncio.get_running_loop().run_in_executor(self._pool, partial(daemon_of, **args))
        except (TimeoutError, RuntimeError) as error:
            raise OwnerCallFailed("late", f"another daemon: {error}") from None

    def left_to(self, pid: int) -> Holder | None:
        """The last known holder of that process, if we left it to another daemon."""
        now = self._clock.mono()
        return next(
            (one for (number, _), (one, _, until) in self._learnt.items() if number == pid and now < until), None
        )

    def pid_of(self, word: str) -> int | None:
        """The pid of a process by its pid, or by its name at the daemon that we left it to."""
        if is_number(word):
            return int(word) if len(word) < 8 else None
        return next((pid for (pid, _), (one, _, _) in self._learnt.items() if one.name == word), None)

    # -- which daemons to ask

    def _usual(self, owner: int) -> list[str]:
        """Sockets of daemons that may hold a process of that uid: root's and that uid's. Nothing is accessed."""
        own = [f"/run/user/{owner}/agent-watchdog", f"/tmp/agent-watchdog-{owner}"]  # noqa: S108 - asked by that uid
        return [sockets.SYSTEM_SOCKET, *(f"{directory}/control.sock" for directory in own)]

    def _sockets(self) -> list[str]:
        """Those with precedence over us: root's, and of our own uid. In a thread: a directory may hang."""
        ours = self._socket_path
        there = [path for path in (sockets.SYSTEM_SOCKET, *sockets.own_sockets()) if os.path.lexists(path)]
        return [path for path in dict.fromkeys(there) if path != ours]

    async def _ask(self, path: str) -> None:
        """A daemon that does not answer in time keeps its former processes for as long as they live."""
        credentials: list[tuple[int, int]] = []

        ask = partial(
            client.request,
            "GET",
            "/v1/custody",
            socket_path=path,
            timeout=ANSWER,
            opened=lambda connection: credentials.append(client.credentials(connection)),
        )
        former = self._neighbours.get(path)
        try:
            async with asyncio.timeout(2 * ANSWER):  # its directory may hang
                status, answer = await asyncio.get_running_loop().run_in_executor(self._pool, ask)
            pid, uid = credentials[0]
            held = answer.get("held")
            if status != 200 or not isinstance(held, list):
                raise ValueError(f"it answered {status}")
            seen = (await look_at([pid], self._host))[pid]
            if not isinstance(seen, Seen):
                raise ValueError("it has ended, or cannot be seen")
            self._neighbours[path] = _Neighbour(
                DaemonProcess(uid, pid, seen.identity.start_ticks),
                seen.identity,
                {(int(one["pid"]), int(one["start_ticks"])): (str(one["agent_id"]), str(one["name"])) for one in held},
            )
        except (DaemonUnreachable, UnsafeDirectory, OSError, RuntimeError, LookupError, TypeError, ValueError):
            if former is None or presence(former.identity, None, host=self._host) is Presence.ABSENT:
                self._neighbours.pop(path, None)

    async def _proved(self, answer: Json, owner: int) -> tuple[Holder, Identity] | None:
        """A helper's answer, as far as the kernel confirms it.

        An owner's answer does not count for other uids' processes.
        """
        pid, uid = int(str(answer["pid"])), int(str(answer["uid"]))
        if uid not in (ROOT, owner) or (self._me.uid == ROOT and uid == ROOT != owner):
            return None  # we ask root's daemons, a user does not
        seen = (await look_at([pid], self._host))[pid]
        if not isinstance(seen, Seen) or seen.uids.one != uid:
            return None
        daemon = DaemonProcess(uid, pid, seen.identity.start_ticks)
        return Holder(daemon, str(answer["socket"]), str(answer["agent_id"]), str(answer["name"])), seen.identity

    # -- consequences

    def settle(self, agent: Agent) -> None:
        """Leave an agent to the daemon that it belongs to, or take it over from one that is gone; by the last round."""
        holder = self._holder(agent)
        if holder is not None:
            if agent.owner.elsewhere != holder:
                agent.left_to(holder)
                self._kills.cancel_automatic(agent, f"watched by {holder}")
                self._record("agent.elsewhere", agent, f"{holder} holds it as {holder.name}; nothing is done here")
        elif agent.owner.elsewhere is not None:
            former = agent.owner.elsewhere
            agent.taken_over()
            self._record(
                "agent.taken_over", agent, f"{former} is gone, or no longer watches it; its silence starts from zero"
            )

    def _holder(self, agent: Agent) -> Holder | None:
        if agent.identity is None:
            return None
        key = agent.identity.pid, agent.identity.start_ticks
        for path, neighbour in self._neighbours.items():
            if key not in neighbour.held:
                continue
            if custody(self._me, neighbour.daemon, agent.reg.owner_uid, held=True) is Custody.THEIRS:
                return Holder(neighbour.daemon, path, *neighbour.held[key])
        return None


async def _environment(pid: int) -> dict[str, str]:
    """The environment of a process of our own uid; empty where reading it hangs."""
    try:
        found: dict[str, str] = await awaited(None, environment, pid)
    except OSError:
        return {}
    return found
