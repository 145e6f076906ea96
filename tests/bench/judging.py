"""What it costs to judge and decide for 1,000 agents: pure, in this process; nothing is asked of the kernel."""

import time
from collections.abc import Callable
from datetime import UTC, datetime

from tests.bench.table import NONE, QUICK, Row, spread
from watchdog.agents.agent import Agent
from watchdog.agents.judging import observe, remember
from watchdog.core.agent import Beat, Policy, Registration, State, Status
from watchdog.core.decision import Limits, Look, decide
from watchdog.core.process import Presence
from watchdog.core.verdict import judge

SIZE, INTERVAL = 1000, 10.0
ROUNDS = 100 if QUICK else 400
WALL = datetime(2030, 1, 1, tzinfo=UTC)
WORDS = (Beat(), Beat(state=State.IDLE), Beat(progress=0.5), Beat(tool="make"))


def judging() -> list[Row]:
    """Each of 1,000 ages by an interval, is observed and judged, and all are decided for; the floor only compares."""
    agents = [_agent(number) for number in range(SIZE)]
    policy, now = Policy(), 0.0

    def ours() -> None:
        nonlocal now
        now += INTERVAL
        looks = []
        for agent in agents:
            agent.watch(now - INTERVAL, now, 2 * INTERVAL)
            judgement = judge(observe(agent, Presence.ALIVE, now, INTERVAL), policy)
            remember(agent, judgement, now, INTERVAL)
            looks.append(Look(agent.agent_id, judgement, policy, silence=agent.heartbeat.silence.lasted))
        decide(looks, Limits())

    last = dict.fromkeys((agent.agent_id for agent in agents), 0.0)
    stale: list[str] = []

    def bare() -> None:
        stale[:] = [agent_id for agent_id, beat in last.items() if now - beat > 1e9]

    return [("judging 1,000 agents, all in doubt, CPU ms: median (p99)", _timed(ours), _timed(bare), NONE, "20")]


def _agent(number: int) -> Agent:
    agent = Agent(Registration(f"{number:032x}", f"a{number}", 0, "host", "boot"), Policy(), Status.RUNNING)
    agent.beat(WORDS[number % len(WORDS)], 0.0, WALL)
    return agent


def _timed(do: Callable[[], None]) -> str:
    found = []
    for _ in range(ROUNDS):
        began = time.process_time()
        do()
        found.append((time.process_time() - began) * 1000)
    return spread(found, ".2f")
