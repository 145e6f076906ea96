"""What a silent agent was seen doing from outside. It delays a verdict, up to a cap; it never renews a promise."""

from watchdog.core.model import State, Verdict
from watchdog.fleet import Agent, Fleet

BUSY = 0.05  # share of one core; an idle Node program with timers uses under 1 %


def seen_doing(agent: Agent, fleet: Fleet, elapsed: float) -> str | None:
    """A child agent at work, or the CPU that its tree used in the `elapsed` seconds since the last scan; or None."""
    used = {member.identity: member.cpu_seconds for member in agent.members}
    before, agent.cpu_used = agent.cpu_used, used
    for child in fleet.children(agent.agent_id):
        at_work = child.verdict in (Verdict.HEALTHY, Verdict.WAITING) and child.state is not State.IDLE
        if at_work and child.promised and child.request_id is None:
            return f"its child agent {child.reg.name} is at work"
    if before is None or not 0 < elapsed < float("inf"):
        return None
    share = sum(seconds - before.get(identity, 0.0) for identity, seconds in used.items()) / elapsed
    return f"its processes used {share:.0%} of a core" if share >= BUSY else None
