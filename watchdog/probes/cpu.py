"""CPU activity of a silent agent, and activity of its child agents. It delays a verdict, up to a cap."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import timedelta
from types import MappingProxyType

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.core.agent import State, Verdict
from watchdog.core.halts import halt
from watchdog.core.observed_activity import ActivityKind
from watchdog.core.usage import Used, since
from watchdog.processes.procfs import waited_seconds
from watchdog.processes.reader import awaited
from watchdog.processes.stops import stops

CPU_WAIT_SHARE = (
    0.5  # share of the time in which it is runnable but does not run; a process with timers alone waits far less
)
NONE: Mapping[int, float] = MappingProxyType({})


async def waiting(fleet: Fleet) -> Mapping[int, float]:
    """Seconds that each process of an agent in question has waited for a CPU so far, by pid."""
    asked = tuple(member.identity.pid for agent in fleet if agent.in_question for member in agent.tree.members)
    return await awaited(None, waited_seconds, asked) if asked else NONE


async def see_halts(agents: Iterable[Agent]) -> None:
    """Find agents that a person stopped on purpose, by the last scan."""
    doubtful = {agent.agent_id: agent for agent in agents}
    asked = tuple(m.identity.pid for agent in doubtful.values() for m in agent.tree.members if m.state in "tT")
    stopped = await awaited(None, stops, asked) if asked else {}
    for agent in doubtful.values():
        tree = {member.identity.pid for member in agent.tree.members}
        main = None if agent.identity is None else agent.identity.pid
        agent.heartbeat.silence.stopped(halt({pid: stop for pid, stop in stopped.items() if pid in tree}, main, tree))


def measure(fleet: Fleet, elapsed: float, waited: Mapping[int, float] = NONE) -> None:
    """Record each agent's observed activity in the `elapsed` seconds between the last two scans."""
    children = defaultdict(list)
    for agent in fleet:
        children[agent.reg.parent_id].append(agent)
    for agent in fleet:
        see_cpu(agent, elapsed, waited)
    for agent in fleet:
        see_children(agent, children.get(agent.agent_id, ()))


def see_cpu(agent: Agent, elapsed: float, waited_by: Mapping[int, float] = NONE) -> None:
    """Record the CPU that its tree used since the last scan, or waited for in vain, unless it has beaten since.

    Children that began and ended between two scans count through the accounting of their parents.

    CPU used before the silence counts for nothing, or each stall would be found later. `waited_by`: by pid.
    """
    used = {
        member.identity: Used(member.identity.pid, member.parent_pid, member.cpu_seconds, member.reaped_seconds)
        for member in agent.tree.members
    }
    waited = {one: waited_by[one.pid] for one in used if one.pid in waited_by} if agent.in_question else {}
    before, waited_before = agent.tree.used(used, waited)
    if before is None or not 0 < elapsed < float("inf") or agent.heartbeat.silent_for < timedelta(seconds=elapsed):
        return
    share = since(before, used) / elapsed
    starved = sum(seconds - waited_before.get(identity, seconds) for identity, seconds in waited.items()) / elapsed
    if share >= ActivityKind.CPU.probe.threshold:
        agent.sights.see(ActivityKind.CPU, f"its processes used {share:.0%} of a core")
    elif starved >= CPU_WAIT_SHARE:
        agent.sights.see(ActivityKind.CPU, f"its processes waited for a CPU in {min(1.0, starved):.0%} of the time")


def see_children(agent: Agent, children: Iterable[Agent]) -> None:
    """A child agent at work: it keeps its promise, or shows activity itself."""
    for child in children:
        beats = child.heartbeat.said.promised and child.judged.verdict in (Verdict.HEALTHY, Verdict.WAITING)
        if (
            (beats or child.activity)
            and child.heartbeat.said.state is not State.IDLE
            and child.ending.request_id is None
        ):
            agent.sights.see(ActivityKind.CHILD, f"its child agent {child.reg.name} is at work")
            return
