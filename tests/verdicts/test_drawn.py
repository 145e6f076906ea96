"""Agents whose phases, rhythms, limits and outages are drawn, in simulated time by a real sweeper: any seed must do.

What a scene draws, what it may be told to expect by what agent-watchdog(7) promises, and nothing else: see each kind.
"""

import asyncio
import ctypes
import heapq
import math
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
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
from watchdog.agents.agent import Agent
from watchdog.core.agent import Beat, Policy, Registration, State, Status
from watchdog.core.kill import Reason
from watchdog.core.observed_activity import ActivityKind
from watchdog.processes import identity
from watchdog.service.wiring import Parts

OF_FULL = 40
SCENES = int(os.environ.get("DRAWN", OF_FULL if FULL else 2))  # of each kind; 10 agents each on an average
OF_ONE_TEST = 5  # scenes; one takes 2.5 s of CPU
HOLD = 900.0  # hold.max_seconds, as shipped
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
LIBC = ctypes.CDLL(None, use_errno=True)
LIMITS = """
[sweep]
interval_seconds = {interval}
[kill]
max_per_minute = 100000
[hold]
cpu_pressure_percent = 100
"""
REQUESTS, CLOSED, CONNECTED = "by requests", "by sockets that it closes", "by a socket that it keeps"
Word = tuple[float, Callable[[Parts, Agent], None]]


def says(**words: object) -> Callable[[Parts, Agent], None]:
    """A beat, when it is its time."""

    def say(daemon: Parts, agent: Agent) -> None:
        agent.beat(Beat(**words), daemon.clock.mono(), daemon.clock.now().wall)  # type: ignore[arg-type]

    return say


BEAT = says()


def grows(_: Parts, agent: Agent) -> None:
    """Its log is seen to grow."""
    agent.sights.see(ActivityKind.LOG, "its log grew")


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
    speaks: str = REQUESTS
    starts_within: float | None = None  # its start limit; None: `after`
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
    restarts: list[tuple[float, float]] = field(default_factory=list)  # when the daemon is killed, and for how long
    wait: float = 21_600.0  # stall.wait_limit_seconds, as shipped

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


def newcomers(draw: random.Random) -> Scene:
    """Case Q1 with agents that have not begun to beat when all lose what they need: nobody is ended, whoever is late.

    Or nothing is lost, and they only take their time: who falls silent among them waits for them, and no longer.
    """
    interval, base = rhythm(draw)
    is_lost, old = draw.random() < 0.5, draw.randint(1, 4)
    begins = base * draw.uniform(1, 2)
    ends = begins + base * draw.uniform(1.2, 4)
    limit = ends + base * draw.uniform(0.6, 2)
    length, slowest, agents = limit + base * 9, 0.0, list[Drawn]()
    for number in range(old + draw.randint(max(3, old), 8)):
        is_new = number >= old
        period = base * draw.uniform(0.05, 0.45)
        slowest = max(slowest, period * 1.05)
        gap = is_new or is_lost
        words = [] if is_new else beats(draw, period, 0, begins if is_lost else length)
        again = beats(draw, period, ends, length) if gap else []
        what = "has not begun yet" if is_new else ("in the outage" if is_lost else "beats")
        one = Drawn(what, base * draw.uniform(1, 1.8), [(t, BEAT) for t in [*words, *again]], starts_within=limit)
        agents.append(one)
    falls = limit + base * draw.uniform(3, 4) if is_lost else begins
    words = beats(draw, base * 0.3, 0, min(falls, begins)) + (beats(draw, base * 0.3, ends, falls) if is_lost else [])
    mute = Drawn("mute", base * 1.2, [(t, BEAT) for t in words], STALLED)
    mute.earliest = max(words) + mute.after
    back = mute.earliest if is_lost else max(mute.earliest, ends + slowest + mute.after * 9 / 16)  # `comes_back`
    mute.latest = back + 3 * interval + 1 + slowest
    return Scene(interval, length, [*agents, mute])


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

    def step(by: float) -> Callable[[Parts, Agent], None]:
        def do(daemon: Parts, _: Agent) -> None:
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


def restarts(draw: random.Random) -> Scene:
    """Case Q8: the daemon is killed again and again, and away for a while each time. Silence adds up over its lives.

    Each life is long enough for a word of everybody that speaks. What one says while no daemon lives, or on a socket of
    a former one, is lost: that is its channel's silence, for up to wait_limit.
    """
    interval, base = rhythm(draw)
    length, when = base * 40, base * draw.uniform(2, 3)
    scene = Scene(interval, length, [])
    for _ in range(draw.randint(1, 6)):
        away = base * draw.uniform(0.01, 0.5)
        scene.restarts.append((when, away))
        when += away + base * draw.uniform(1, 2)
    slowest = 0.0
    for number in range(draw.randint(4, 8)):
        period = base * draw.uniform(0.05, 0.45)
        slowest = max(slowest, period * 1.05)
        words = [(t, BEAT) for t in beats(draw, period, 0, length)]
        speaks = (REQUESTS, CLOSED, CONNECTED)[min(number, 2) if number < 3 else draw.randrange(3)]
        scene.agents.append(Drawn(f"beats {speaks}", base, words, speaks=speaks))
    lost = 7 * interval + 5.0  # of a life at most: what was not written down, and `tracker.RECONNECTS`
    for speaks in (REQUESTS, CLOSED):
        falls = base * draw.uniform(1.5, 6)
        spoken = beats(draw, base * 0.3, 0, falls)
        mute = Drawn(f"spoke {speaks}, mute", base, [(t, BEAT) for t in spoken], STALLED, speaks=speaks)
        heard = [t for t in spoken if not any(at <= t <= at + away for at, away in scene.restarts)]
        mute.earliest = max(heard) + base
        away = sum(rest + lost for at, rest in scene.restarts)
        mute.latest = mute.earliest + base + away + 3 * interval + 1 + slowest  # `after` again, once in one silence
        scene.agents.append(mute)
    return scene


def halts(draw: random.Random) -> Scene:
    """Case N22: real processes that a debugger holds for a while, or for ever, or that somebody stopped.

    Who is held is waited for, for wait_limit, and has all of its limit once more when it is let go; a stop by nobody
    known is a silence like any. A hold that is over before it is late may be seen or not.
    """
    interval, base = rhythm(draw)
    scene = Scene(interval, base * 24, [], wait=base * draw.uniform(5, 7))
    slowest = 0.0
    for _ in range(9):  # more than half of all, so that those who are silent are no mass stall
        period = base * draw.uniform(0.1, 0.6)
        slowest = max(slowest, period * 1.05)
        scene.agents.append(Drawn("beats", base, [(t, BEAT) for t in beats(draw, period, 0, scene.length)]))
    for then in ("goes on", "is mute", "is held for ever", "was held for a moment", "is stopped"):
        after, falls = base * draw.uniform(1, 1.5), base * draw.uniform(2, 4)
        spoken = beats(draw, after * draw.uniform(0.05, 0.4), 0, falls)
        one = Drawn(f"a debugger holds it, then it {then}", after, [(t, BEAT) for t in spoken])
        last = spoken[-1]
        short, is_long = then == "was held for a moment", last + after + 4 * interval
        freed = last + after * draw.uniform(0.1, 0.7) if short else is_long + base * draw.uniform(0, 1.5)
        one.earliest, confirmed = last + after, 3 * interval + 1 + slowest
        one.latest = one.earliest + confirmed
        one.right = LIVES if then == "goes on" else STALLED
        if then == "is stopped":
            one.what = "somebody stopped it, nobody knows who"
            one.words.append((falls, stops))
        else:
            one.words.append((last + after * 0.05 if short else falls, held))
        if then in ("goes on", "is mute", "was held for a moment"):
            one.words.append((freed, let_go))
        if then == "goes on":
            one.words += [(t, BEAT) for t in beats(draw, after * 0.4, freed, scene.length)]
        if then == "is mute":
            one.earliest, one.latest = freed + after, freed + after + confirmed + interval
        if short:  # unless a scan for another one's sake has seen it held
            one.latest = freed + after + confirmed + interval
        if then == "is held for ever":
            one.earliest, one.latest = last + scene.wait, last + after + scene.wait + confirmed + interval
        scene.agents.append(one)
    return scene


def held(_: Parts, agent: Agent) -> None:
    """By a debugger: us."""
    pid = pid_of(agent)
    assert LIBC.ptrace(PTRACE_ATTACH, pid, None, None) == 0
    os.waitpid(pid, 0)


def let_go(_: Parts, agent: Agent) -> None:
    """By it."""
    assert LIBC.ptrace(PTRACE_DETACH, pid_of(agent), None, None) == 0


def stops(_: Parts, agent: Agent) -> None:
    """By a signal of nobody known."""
    os.kill(pid_of(agent), signal.SIGSTOP)


def pid_of(agent: Agent) -> int:
    assert agent.identity is not None
    return agent.identity.pid


KINDS = {
    "restarts": restarts,
    "halts": halts,
    "outage": outage,
    "newcomers": newcomers,
    "alone": alone,
    "active": active,
    "clocks": clocks,
    "seldom": seldom,
}


@dataclass
class Played:
    """What of a scene outlives its daemon."""

    scene: Scene
    clock: MovedClock
    agents: dict[str, Drawn] = field(default_factory=dict)
    due: list[tuple[float, int, str, Callable[[Parts, Agent], None]]] = field(default_factory=list)
    look: float = 0.0
    connects: int = 0  # the process that holds a socket

    def await_words(self) -> None:
        """Put them in their order; the scene's own belong to its first agent."""
        first = next(iter(self.agents))
        words = [(agent_id, *word) for agent_id, one in self.agents.items() for word in one.words]
        words += [(first, *word) for word in self.scene.steps]
        self.due = [(when, number, agent_id, do) for number, (agent_id, when, do) in enumerate(words)]
        heapq.heapify(self.due)

    def speak(self, daemon: Parts, lives: int) -> None:
        """All that is said by now. On a socket of a former daemon's nobody hears it."""
        while self.due and self.due[0][0] <= self.look:
            when, _, agent_id, do = heapq.heappop(self.due)
            self.clock.ahead = max(self.clock.ahead, when)
            one, agent = self.agents[agent_id], daemon.fleet.get(agent_id)
            if agent is None or (one.came != LIVES and do is BEAT) or (lives and one.speaks == CONNECTED):
                continue
            do(daemon, agent)
            if one.speaks != REQUESTS:
                agent.heartbeat.speaker_pid = self.connects if one.speaks == CONNECTED else pid_of(agent)


async def play(scene: Scene, directory: Path, pids: Iterable[int], connects: int) -> None:
    """A daemon, and where it is killed the next one, in simulated time."""
    played = Played(scene, MovedClock(), connects=connects)
    lives = [*scene.restarts, (scene.length, 0.0)]
    for number, (until, away) in enumerate(lives):
        text = CONFIG + LIMITS.format(interval=scene.interval)
        async with own_daemon(directory, text=text, clock=played.clock) as daemon:
            if not number:
                for one, pid in zip(scene.agents, pids, strict=False):
                    played.agents[(await admitted(daemon, one, pid, scene)).agent_id] = one
                played.await_words()
            for agent_id, one in played.agents.items():
                if one.came != LIVES and (agent := daemon.fleet.get(agent_id)) is not None:
                    daemon.tracker.forget(agent)
            await live(daemon, played, until, number)
            for agent in [*daemon.fleet] if until == scene.length else []:
                daemon.tracker.forget(agent)
        played.clock.ahead = played.look = max(until, played.clock.ahead) + away
        while played.due and played.due[0][0] < played.look:
            heapq.heappop(played.due)  # nobody hears it


async def live(daemon: Parts, played: Played, until: float, lives: int) -> None:
    """A look at each interval, and one when a silence could become too long, as `service` does; orders are noted."""
    clock, scheduled = played.clock, played.look

    async def request(agent: Agent, reason: Reason, *_: object) -> str:
        one = played.agents[agent.agent_id]
        one.came, one.at, agent.ending.request_id = str(reason), clock.ahead, "noted"
        agent.status = Status.ENDING
        return "noted"

    daemon.kills.request = request  # type: ignore[assignment]
    while clock.ahead < until:
        played.speak(daemon, lives)
        clock.ahead = max(clock.ahead, played.look)
        await daemon.sweeper.sweep()
        while scheduled <= played.look:
            scheduled += played.scene.interval
        played.look = min(scheduled, played.look + daemon.watched.next_deadline() + EARLY)


async def admitted(daemon: Parts, one: Drawn, pid: int, scene: Scene) -> Agent:
    """With a row where a later daemon has to know it."""
    found, agent_id = identity.read_identity(pid, daemon.host), secrets.token_hex(16)
    after, now = timedelta(seconds=one.after), daemon.clock.now().wall
    reg = Registration(
        agent_id,
        f"a-{agent_id[:8]}",
        os.getuid(),
        daemon.host,
        daemon.boot_id,
        identity=found,
        stall_after=after,
        created_at=now,
    )
    days = timedelta(days=9)
    start_limit = after if one.starts_within is None else timedelta(seconds=one.starts_within)
    policy = Policy(after=after, start_limit=start_limit, busy_limit=days, wait_limit=timedelta(seconds=scene.wait))
    agent = Agent(reg, policy, Status.RUNNING)
    agent.heartbeat.said.promise(one.promised)
    if scene.restarts:
        await daemon.registry.write(daemon.registry.agents.add, reg, Status.RUNNING, now, "test", None)
    daemon.tracker.admit(agent)
    return agent


@contextmanager
def processes(scene: Scene, one: int) -> Iterator[list[int]]:
    """One of all agents, unless each of them is known by it, or stopped, by itself."""
    if not scene.restarts and not any(do in (held, stops) for agent in scene.agents for _, do in agent.words):
        yield [one] * len(scene.agents)
        return
    with ExitStack() as made:
        yield [made.enter_context(sleeping()).pid for _ in scene.agents]


@contextmanager
def speaker() -> Iterator[int]:
    """A process that keeps a datagram socket open."""
    code = "import socket; s = socket.socket(1, 2); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.mark.faults
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, SCENES, OF_ONE_TEST))
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_drawn_the_healthy_live_and_the_stalled_do_not(
    kind: str, first: int, record_property: Callable[[str, object], None]
) -> None:
    """The matrix of all is in the facts of the report, and empty off its diagonal."""
    wrong, count = [], {(should, did): 0 for should in (True, False) for did in (True, False)}
    with sleeping() as process, speaker() as connects:
        for number in range(first, min(first + OF_ONE_TEST, SCENES)):
            scene = KINDS[kind](chance(f"{kind} {number}"))
            with (
                tempfile.TemporaryDirectory(prefix="aw-", dir="/tmp") as directory,
                processes(scene, process.pid) as pids,
            ):
                asyncio.run(play(scene, Path(directory), pids, connects))
            for one in scene.agents:
                count[one.right != LIVES, one.came != LIVES] += 1
            wrong += [f"{kind} {number}: {one.wrong}" for one in scene.agents if one.wrong]
    record_property("drawn", [kind, seed(), *(count[key] for key in sorted(count, reverse=True)), len(wrong)])
    assert not wrong, f"{NAME}={seed()}: {len(wrong)} of {sum(count.values())}:\n" + "\n".join(wrong[:20])


def test_a_full_run_draws_2000_agents() -> None:
    """Whatever the seed is."""
    drawn = sum(len(KINDS[kind](chance(f"{kind} {number}")).agents) for kind in KINDS for number in range(OF_FULL))
    assert drawn >= 2000, f"{NAME}={seed()}"
