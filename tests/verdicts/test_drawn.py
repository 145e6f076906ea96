"""Agents whose phases, rhythms, limits and outages are drawn, in simulated time by a real sweeper: any seed must do.

What a scene draws, what it may be told to expect by what the README promises, and nothing else: see each kind.
"""

import asyncio
import heapq
import math
import os
import random
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

from tests.faults.crash.own import own_daemon
from tests.tables import FULL
from tests.verdicts.draw import NAME, chance, seed
from tests.verdicts.hours import CONFIG, MovedClock
from tests.verdicts.table import LIVES, NEVER_STARTED, ROUNDED, STALLED
from tests.verdicts.test_latency import EARLY, sleeping
from watchdog.core.model import Beat, Policy, Reason, Registration, State, Status
from watchdog.core.sights import Kind
from watchdog.fleet import Agent
from watchdog.processes import identity
from watchdog.service import Daemon

SCENES = int(os.environ.get("DRAWN", "40" if FULL else "2"))  # of each kind; 10 agents each on an average
HOLD = 900.0  # hold.max_seconds, as shipped
LIMITS = """
[sweep]
interval_seconds = {interval}
[kill]
max_per_minute = 100000
[hold]
cpu_pressure_percent = 100
"""
Word = tuple[float, Callable[[Daemon, Agent], None]]


def says(**words: object) -> Callable[[Daemon, Agent], None]:
    """A beat, when it is its time."""

    def say(daemon: Daemon, agent: Agent) -> None:
        agent.beat(Beat(**words), daemon.clock.mono(), daemon.clock.now().wall)  # type: ignore[arg-type]

    return say


BEAT = says()


def grows(_: Daemon, agent: Agent) -> None:
    """Its log is seen to grow."""
    agent.sights.see(Kind.LOG, "its log grew")


@dataclass
class Drawn:
    """One agent: what it does and when, and what is right. `earliest`, `latest`: seconds of the scene."""

    what: str
    after: float
    words: list[Word] = field(default_factory=list)
    right: str = LIVES
    earliest: float = 0.0
    latest: float = math.inf
    promised: bool = True
    comes: float = 0.0
    came: str = LIVES
    at: float = math.inf

    @property
    def wrong(self) -> str | None:
        """What is not as it should be."""
        if self.came != self.right:
            right = f"{self.right} in {self.earliest:.1f}..{self.latest:.1f}"
            return f"{self.what}: {self.came} at {self.at:.1f}, right: {right}"
        if self.right != LIVES and not self.earliest - ROUNDED <= self.at <= self.latest + ROUNDED:
            return f"{self.what}: {self.came} at {self.at:.1f}, not in {self.earliest:.1f}..{self.latest:.1f}"
        return None


@dataclass
class Scene:
    """A fleet of one user, and what happens to all."""

    interval: float
    length: float
    agents: list[Drawn]
    steps: list[Word] = field(default_factory=list)  # of the wall clock, and such; the agent is the first

    @property
    def confirm(self) -> float:
        """`after` is over, and it is asked for within this."""
        return 2 * self.interval + 1


def beats(draw: random.Random, period: float, start: float, end: float, jitter: float = 0.05) -> list[float]:
    """At a phase of its own."""
    found, when = [], start + draw.uniform(0, period)
    while when < end:
        found.append(when)
        when += period * draw.uniform(1 - jitter, 1 + jitter)
    return found


def rhythm(draw: random.Random) -> tuple[float, float]:
    """Seconds from look to look, and the limit that the fleet's are drawn around."""
    interval = draw.uniform(0.5, 15)
    return interval, interval * draw.uniform(6, 20)


def outage(draw: random.Random) -> Scene:
    """Case Q1: all but few lose at one instant what they need, and have it again before a hold ends. Nobody is ended.

    Beats come at least twice within a limit; the limits of one fleet differ by less than two. A quarter of it may be
    with another provider. Some rest, one was mute long before, and one falls silent when all is over.
    """
    interval, base = rhythm(draw)
    count = draw.randint(3, 14)
    begins = base * draw.uniform(4, 8)
    ends = begins + draw.uniform(0.2 * base, HOLD - 0.4 * base - 4 * interval)
    length = ends + 8 * base
    agents = []
    slowest = 0.0
    for number in range(count):
        after, spared = base * draw.uniform(1, 1.8), number >= max(3, math.ceil(0.75 * count))
        period = base * draw.uniform(0.05, 0.45)
        slowest = max(slowest, period)
        gone = [] if spared else beats(draw, period, ends, length)
        words = [(t, BEAT) for t in [*beats(draw, period, 0, length if spared else begins), *gone]]
        agents.append(Drawn("spared by the outage" if spared else "in the outage", after, words))
    for _ in range(draw.randint(0, 3)):
        agents.append(Drawn("idle", base, [(draw.uniform(0, base), says(state=State.IDLE))]))
    falls = ends + base * draw.uniform(3, 4)
    words = [(t, BEAT) for t in beats(draw, base * 0.3, 0, begins)] + [
        (t, BEAT) for t in beats(draw, base * 0.3, ends, falls)
    ]
    alone = Drawn("mute afterwards", base * 1.2, words, STALLED)
    alone.earliest = max(t for t, _ in words) + alone.after
    alone.latest = alone.earliest + 2 * interval + 1 + slowest * 1.05
    return Scene(interval, length, [*agents, alone])


def alone(draw: random.Random) -> Scene:
    """One or two of a fleet fall silent: in time where the others were heard meanwhile, else as soon as they were."""
    interval, base = rhythm(draw)
    length = base * 20
    agents, slowest = [], 0.0
    for _ in range(draw.randint(0, 12)):
        after = base * draw.uniform(1, 3)
        period = after * draw.uniform(0.05, 0.9)
        slowest = max(slowest, period)
        words = [(t, BEAT) for t in beats(draw, period, 0, length)]
        agents.append(Drawn(f"beats each {period / after:.2f}", after, words))
    for number in range(draw.randint(1, 2)):
        after = base * draw.uniform(1, 2)
        falls = base * draw.uniform(5, 6) + 6 * number * base
        words = [(t, BEAT) for t in beats(draw, after * draw.uniform(0.05, 0.8), 0, falls)]
        mute = Drawn("mute", after, words, STALLED)
        mute.earliest = max(t for t, _ in words) + after
        mute.latest = mute.earliest + 2 * interval + 1 + (min(slowest * 1.05, after) if len(agents) > 1 else 0)
        agents.append(mute)
    return Scene(interval, length, agents)


def active(draw: random.Random) -> Scene:
    """Cases Q2 and Q3: what is seen delays the end, before a first beat as after it, and no longer than it is seen."""
    interval, base = rhythm(draw)
    length, agents, count = base * 16, list[Drawn](), draw.randint(4, 10)
    slowest = 0.0
    for _ in range(count + 1):  # more than half of all, so that those who are silent are no mass stall
        period = base * draw.uniform(0.1, 0.6)
        slowest = max(slowest, period * 1.05)
        agents.append(Drawn("beats", base, [(t, BEAT) for t in beats(draw, period, 0, length)]))
    for number in range(count):
        starts, after = number % 2 == 0, base * draw.uniform(1, 2)
        stops = draw.choice([None, base * draw.uniform(6, 9)])
        pause = (base / 2 - interval) * draw.uniform(0.1, 0.8)  # a look sees it up to an interval later
        seen = beats(draw, pause, 0, length if stops is None else stops, jitter=0.2)
        words = [*([] if starts else [(0.1, BEAT), (pause / 2, BEAT)]), *((t, grows) for t in seen)]
        one = Drawn(f"{'never beaten' if starts else 'silent'}, its log grows", after, words)
        if stops is not None:
            one.right = NEVER_STARTED if starts else STALLED
            believed, limit = max(after / 2, 2 * interval), max(base, after) if starts else after
            one.earliest = max(0.0 if starts else pause / 2, 0.0) + limit
            one.earliest = max(one.earliest, seen[-1])
            one.latest = max(one.earliest, seen[-1] + believed) + 2 * interval + 1 + slowest
        agents.append(one)
    return Scene(interval, length, agents)


def clocks(draw: random.Random) -> Scene:
    """Case Q5: the wall clock is set again and again, forward and back; silence is what was watched."""
    scene = alone(draw)

    def step(by: float) -> Callable[[Daemon, Agent], None]:
        def do(daemon: Daemon, _: Agent) -> None:
            assert isinstance(daemon.clock, MovedClock)
            daemon.clock.set += by

        return do

    for _ in range(draw.randint(1, 6)):
        by = draw.choice([-1, 1]) * 10 ** draw.uniform(0.5, 7.5)
        scene.steps.append((draw.uniform(0, scene.length), step(by)))
    for one in scene.agents:
        one.latest += 2 * scene.interval * len(scene.steps)  # nobody is ended right after one
    return scene


def seldom(draw: random.Random) -> Scene:
    """Some of a fleet speak so seldom that there is no waiting for them; its frequent ones are judged by each other."""
    scene = alone(draw)
    for _ in range(draw.randint(1, 6)):
        after = scene.length * draw.uniform(1, 3)
        scene.agents.append(
            Drawn("promised one each hour", after, [(t, BEAT) for t in beats(draw, after * 0.4, 0, scene.length)])
        )
    return scene


KINDS = {"outage": outage, "alone": alone, "active": active, "clocks": clocks, "seldom": seldom}


async def play(scene: Scene, directory: Path, pid: int) -> None:
    """A look at each interval, and one when a silence could become too long, as `service` does; orders are noted."""
    text, clock = CONFIG + LIMITS.format(interval=scene.interval), MovedClock()
    async with own_daemon(directory, text=text, clock=clock) as daemon:
        agents: dict[str, tuple[Agent, Drawn]] = {}
        due: list[tuple[float, int, str, Callable[[Daemon, Agent], None]]] = []
        for one in scene.agents:
            agent = admitted(daemon, one, pid)
            agents[agent.agent_id] = agent, one
            due += [(when, len(due) + number, agent.agent_id, do) for number, (when, do) in enumerate(one.words)]
        first = next(iter(agents))
        due += [(when, len(due) + number, first, do) for number, (when, do) in enumerate(scene.steps)]
        heapq.heapify(due)

        async def request(agent: Agent, reason: Reason, *_: object) -> str:
            one = agents[agent.agent_id][1]
            one.came, one.at, agent.request_id = str(reason), clock.ahead, "noted"
            agent.status = Status.ENDING
            return "noted"

        daemon.worker.request = request  # type: ignore[assignment]
        scheduled = look = 0.0
        while clock.ahead < scene.length:
            while due and due[0][0] <= look:
                when, _, agent_id, do = heapq.heappop(due)
                clock.ahead = max(clock.ahead, when)
                if agents[agent_id][1].came == LIVES or do is not BEAT:
                    do(daemon, agents[agent_id][0])
            clock.ahead = max(clock.ahead, look)
            await daemon.sweeper.sweep()
            while scheduled <= look:
                scheduled += scene.interval
            look = min(scheduled, look + daemon.sweeper.next_deadline() + EARLY)
        for agent, _ in agents.values():
            daemon.hearing.forget(agent)


def admitted(daemon: Daemon, one: Drawn, pid: int) -> Agent:
    found, agent_id = identity.read_identity(pid, daemon.host), secrets.token_hex(16)
    after = timedelta(seconds=one.after)
    reg = Registration(
        agent_id, f"a-{agent_id[:8]}", os.getuid(), daemon.host, daemon.boot_id, identity=found, stall_after=after
    )
    policy = Policy(after=after, start_limit=after, busy_limit=timedelta(days=9))
    agent = Agent(reg, policy, Status.RUNNING, promised=one.promised)
    daemon.hearing.admit(agent)
    return agent


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_drawn_the_healthy_live_and_the_stalled_do_not(
    kind: str, record_property: Callable[[str, object], None]
) -> None:
    """The matrix of all is in the facts of the report, and empty off its diagonal."""
    wrong, count = [], {(should, did): 0 for should in (True, False) for did in (True, False)}
    with sleeping() as process:
        for number in range(SCENES):
            scene = KINDS[kind](chance(f"{kind} {number}"))
            with tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory:
                asyncio.run(play(scene, Path(directory), process.pid))
            for one in scene.agents:
                count[one.right != LIVES, one.came != LIVES] += 1
            wrong += [f"{kind} {number}: {one.wrong}" for one in scene.agents if one.wrong]
    record_property("drawn", [kind, seed(), *(count[key] for key in sorted(count, reverse=True)), len(wrong)])
    assert not wrong, f"{NAME}={seed()}: {len(wrong)} of {sum(count.values())}:\n" + "\n".join(wrong[:20])
