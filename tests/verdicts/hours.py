"""Hours of a daemon in seconds: all its real parts in our own loop, on a clock that we move from look to look.

Agents are real processes that sleep; what they say is written down with the second of it, and sent as a datagram or a
request when the clock is there. The configuration is the shipped one, unless a scene says otherwise.
"""

import asyncio
import heapq
import json
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.bench.crowd import Crowd
from tests.faults.crash.own import own_daemon
from tests.verdicts.table import Came, Row, Scene, judged, together
from tests.world import PATIENCE, started_at
from watchdog.agents.agent import Agent
from watchdog.client import client
from watchdog.clock import Clock, Instant
from watchdog.core.agent import Status
from watchdog.service.wiring import Parts

CONFIG = """
[daemon]
state_dir = "{directory}"
runtime_dir = "{directory}"
[log]
file = "{directory}/logs/daemon.log"
format = "json"
"""
TABLES = {"hold": {"cpu_pressure_percent": 100}}  # the machine that runs the tests may be as busy as it likes
BEAT = "WATCHDOG=1"
END = PATIENCE  # seconds of ours that an order to end a sleeping process may take


class MovedClock(Clock):
    """Clocks that stand still until they are moved, so that a busy machine makes nobody late."""

    def __init__(self) -> None:
        self._began, self._offset = super().now(), super().offset()
        self.ahead = self.asleep = self.set = 0.0  # seconds: all three; boot time and wall; wall alone

    def now(self) -> Instant:
        wall = self._began.wall + timedelta(seconds=self.ahead + self.asleep + self.set)
        return Instant(self.mono(), self._began.boot + self.ahead + self.asleep, wall)

    def mono(self) -> float:
        return self._began.mono + self.ahead

    def offset(self) -> float:
        return self._offset + self.asleep + self.set


@dataclass(frozen=True, kw_only=True)
class Spoken(Row):
    """An agent by what it says and when, in seconds after the scene began.

    `says`: datagrams, or bodies of `POST /v1/agents/ID/beat`. `body`: of its registration; `{directory}` in it is the
    scene's. `pid_at`: when its process is told; None never. `count`: so many of the same kind, as one row: `name-0` and
    so on.
    """

    says: Iterable[tuple[float, str | Mapping[str, Any]]] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    pid_at: float | None = 0.0
    parent: str | None = None
    count: int = 1

    def each(self) -> "list[Spoken]":
        """One row for each agent."""
        if self.count == 1:
            return [self]
        return [replace(self, name=f"{self.name}-{number}", count=1) for number in range(self.count)]


def every(seconds: float, until: float, word: str | Mapping[str, Any] = BEAT, start: float = 0.0) -> list[Any]:
    """The same word again and again; until and from when, in seconds after the scene began."""
    return [(start + n * seconds, word) for n in range(int((until - start) / seconds) + 1)]


class Hours:
    """One daemon on its moved clock, and its agents."""

    def __init__(self, daemon: Parts, clock: MovedClock, directory: Path, rows: Sequence[Spoken], crowd: Crowd) -> None:
        self.daemon, self.clock, self.directory = daemon, clock, directory
        self._began = clock.mono()
        self._order = 0
        self._due: list[tuple[float, int, Callable[[], Any]]] = []
        self.agents: dict[str, Agent] = {}
        self.asked: dict[str, float] = {}  # when an order to end it was first seen
        self.pids = {row.name: pid for row, pid in zip(rows, crowd.pids, strict=True)}

    @property
    def now(self) -> float:
        """Seconds since the scene began."""
        return self.clock.mono() - self._began

    def at(self, seconds: float, do: Callable[[], Any]) -> None:
        """Something that happens then; a coroutine is awaited."""
        self._order += 1
        heapq.heappush(self._due, (seconds, self._order, do))

    async def ask(self, method: str, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """One request on the control socket: status and answer."""
        return await asyncio.to_thread(
            client.request, method, path, dict(body), socket_path=f"{self.directory}/control.sock", timeout=PATIENCE
        )

    async def come(self, row: Spoken) -> None:
        """It registers, and all that it will say is written down."""
        body = {"name": row.name, **json.loads(json.dumps(row.body).replace("{directory}", str(self.directory)))}
        if row.pid_at == 0:
            body["pid"] = self.pids[row.name]
        if row.parent is not None:
            body["parent"] = self.agents[row.parent].agent_id
        status, answer = await self.ask("POST", "/v1/agents", body)
        assert status == 201, answer
        agent = self.daemon.fleet.get(answer["agent_id"])
        assert agent is not None
        self.agents[row.name] = agent
        if row.pid_at:
            path = f"/v1/agents/{agent.agent_id}"
            self.at(row.pid_at, lambda: self.ask("PATCH", path, {"pid": self.pids[row.name]}))
        for seconds, word in row.says:
            self.at(seconds, lambda word=word: self.say(agent, word))  # type: ignore[misc]

    async def say(self, agent: Agent, word: str | Mapping[str, Any]) -> None:
        """One word of an agent, taken at once."""
        if not isinstance(word, str):
            await self.ask("POST", f"/v1/agents/{agent.agent_id}/beat", word)
            return
        if self.daemon.fleet.get(agent.agent_id) is None:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(word.encode(), str(agent.notify_socket))
        self.daemon.tracker.sockets.drain_all()

    async def last(self, seconds: float, *, sweeps: bool = True) -> None:
        """Until then: what is due, and a look each interval and when a silence could become too long, as `service`."""
        interval = self.daemon.reload.settings.interval.total_seconds()
        look = self.now
        while True:
            due = self._due[0][0] if self._due else float("inf")
            goal = min(due, look if sweeps else float("inf"), seconds)
            self.clock.ahead += max(0.0, goal - self.now)
            if goal >= seconds and due > seconds:
                break
            if due <= goal:
                done = heapq.heappop(self._due)[2]()
                if done is not None:
                    await done
                continue
            await self.daemon.sweeper.sweep()
            await self._ended()
            look = self.now + min(interval, self.daemon.watched.next_deadline() + 0.02)

    async def _ended(self) -> None:
        """Note who is to be ended, and let that be done before the clock moves on."""
        fleet = self.daemon.fleet
        for name, agent in self.agents.items():
            if agent.ending.request_id is not None:
                self.asked.setdefault(name, self.now)
        limit = time.monotonic() + END
        while any(agent.status is Status.ENDING or agent.ending.request_id is not None for agent in fleet):
            assert time.monotonic() < limit, [agent.reg.name for agent in fleet if agent.ending.request_id]
            await asyncio.sleep(0.01)


Story = Callable[[Hours], Any]


def scene(
    name: str,
    seconds: float,
    rows: Sequence[Spoken],
    story: Story | None = None,
    *,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    more: str = "",
    **how: Any,
) -> Scene:
    """So many seconds of everybody's life. `story` plans what else happens (`Hours.at`), or plays it itself.

    `tables`: sections and keys of the configuration; `more`: the rest of it.
    """
    merged = {**TABLES, **{table: {**TABLES.get(table, {}), **keys} for table, keys in (tables or {}).items()}}
    text = CONFIG + "".join(
        f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for table, keys in merged.items()
    )
    text += more.replace("{", "{{").replace("}", "}}")

    def play(_: Sequence[Row]) -> dict[str, Came]:
        with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
            return asyncio.run(_play(Path(directory), text, rows, seconds, story))

    return Scene(name, rows, play, **how)


async def _play(
    directory: Path, text: str, rows: Sequence[Spoken], seconds: float, story: Story | None
) -> dict[str, Came]:
    kinds, rows = rows, [each for row in rows for each in row.each()]
    clock, crowd = MovedClock(), Crowd(len(rows))
    try:
        async with own_daemon(directory, text=text, clock=clock) as daemon:
            await daemon.control.open()
            hours = Hours(daemon, clock, directory, rows, crowd)
            born = {name: started_at(pid) for name, pid in hours.pids.items()}
            for row in rows:
                await hours.come(row)
            if story is not None and (playing := story(hours)) is not None:
                await playing
            await hours.last(seconds)
            alive = {name: started_at(pid) == born[name] for name, pid in hours.pids.items()}
        events = [json.loads(line) for line in (directory / "logs" / "daemon.log").read_text().splitlines()]
    finally:
        crowd.close()
    came = {row.name: _came(row, hours, events, alive=alive[row.name]) for row in rows}
    return {kind.name: together([came[each.name] for each in kind.each()]) for kind in kinds}


def _came(row: Spoken, hours: Hours, events: list[dict[str, Any]], *, alive: bool) -> Came:
    """By the log, and by the kernel: who is said to have been ended is dead, and nobody else."""
    mine = [event for event in events if event.get("name") == row.name]
    asked = [event for event in mine if event["event"] == "kill.requested"]
    first = min((seconds for seconds, _ in row.says), default=0.0)
    when = hours.asked.get(row.name)
    came = judged(
        row,
        asked[0]["reason"] if asked else None,
        None if when is None else when - first,
        lambda name: sum(event["event"] == name for event in mine),
    )
    if alive is bool(asked) and row.pid_at is not None:
        return Came(came.what, f"its process is {'alive' if alive else 'dead'}; {came.wrong}")
    return came
