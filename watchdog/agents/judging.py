"""Builds the input of `core.verdict.judge` for an agent, and applies its answer."""

from datetime import timedelta

from watchdog.agents.agent import Agent
from watchdog.core.agent import State, Status, Verdict
from watchdog.core.process import Presence
from watchdog.core.verdict import Judgement, Observation, left_to_another, quiet


def observe(agent: Agent, presence: Presence, now: float, interval: float) -> Observation:
    """The input of `judge` as a value; a sweep too soon after the last late one does not count as another."""
    heartbeat, ttl, prompt, holder = agent.heartbeat, agent.ttl, agent.sights.prompt, agent.owner.elsewhere
    said, silence, ages = heartbeat.said, heartbeat.silence, heartbeat.ages
    return Observation(
        presence=presence,
        hangs=agent.judged.hangs,
        status=agent.status,
        promised=said.promised,
        has_beaten=heartbeat.rhythm.beats > 0,
        age=ages.age,
        forgiven=silence.forgiven,
        silence=silence.counted,
        after=silence.after,
        state=said.state,
        state_age=ages.state_age,
        rests_on=heartbeat.rests_on,
        lease_left=ages.lease_left,
        tool=said.tool,
        tool_left=ages.tool_left,
        progress_age=ages.progress_age,
        asks=None if prompt is None else prompt.text,
        unprompted=agent.sights.unprompted,
        ttl_left=ttl.left,
        ttl_warning=ttl.warning,
        late_looks=silence.doubts.late_looks - silence.doubts.too_soon(now, interval),
        first_look=agent.judged.first_look,
        activity=agent.activity,
        channel_lost=silence.hindrance.channel_lost,
        elsewhere=None if holder is None else str(holder),
        members=len(agent.tree.members),
        unread=silence.hindrance.unread,
        unread_why=silence.hindrance.unread_why,
        halt=silence.hindrance.halt,
        halted=silence.hindrance.halted,
    )


def remember(agent: Agent, judgement: Judgement, now: float, interval: float) -> None:
    """Store a verdict and count the late sweep."""
    heartbeat, doubts = agent.heartbeat, agent.heartbeat.silence.doubts
    doubts.settle(heartbeat.ages.age + judgement.stands)
    if judgement.verdict is not agent.judged.verdict:
        heartbeat.write_soon()
    agent.judged.remember(judgement, now, heartbeat.rhythm.beats, heartbeat.rhythm.renewed)
    if judgement.verdict in (Verdict.LATE, Verdict.STALLED):
        doubts.late(now, interval)
    else:
        doubts.none()


def perhaps_started(agent: Agent, presence: Presence) -> bool:
    """Whether it counts as not started if no process of it lives: no pid was registered, and it may need none."""
    silent = presence is Presence.NO_PID and not agent.heartbeat.said.promised
    return silent and agent.heartbeat.ages.age >= agent.policy.start_limit


def needs_scan(agent: Agent, interval: timedelta) -> bool:
    """Whether observed activity, which takes a scan, decides in this sweep or the next.

    CPU use is measured from scan to scan, so one scan must precede the sweep that finds the agent late.
    """
    if agent.judged.verdict is Verdict.STALLED:
        return False
    silence = agent.heartbeat.silence
    return agent.heartbeat.stuck or silence.counted >= silence.after - 1.5 * interval


def settled(agent: Agent) -> bool:
    """Whether a judgement could find nothing new as long as its process lives."""
    settled_until = agent.heartbeat.silence.doubts.settled_until
    well = agent.judged.verdict is Verdict.HEALTHY and agent.heartbeat.ages.age < settled_until
    return well and not agent.reported.recovering


def why(agent: Agent) -> str:
    """The line of its verdict, where that of a healthy agent keeps counting.

    If something of it could not be killed, or if it belongs to another daemon: that instead.
    """
    judged, silence, holder = agent.judged, agent.heartbeat.silence, agent.owner.elsewhere
    if agent.status is Status.UNKILLABLE and agent.ending.lives_on:
        return f"cannot be killed: {agent.ending.lives_on}"
    if holder is not None and judged.verdict is not Verdict.GONE:  # then its silence is not counted here
        return left_to_another(str(holder))
    if agent.status is Status.ENDING and agent.ending.why:
        return agent.ending.why
    counts = judged.verdict is Verdict.HEALTHY and agent.heartbeat.said.promised and judged.line
    return quiet(silence.counted, silence.after, silence.forgiven) if counts else judged.line


def needs_person(agent: Agent) -> bool:
    """Whether it waits for a person: as it said itself, as was reported of its pane, or as its pane shows now."""
    asks = agent.judged.verdict is Verdict.WAITING and agent.sights.prompt is not None
    return agent.heartbeat.said.state is State.WAITING or agent.reported.needed_human or asks


def show(shown: Agent, judgement: Judgement, since: timedelta) -> None:
    """In a copy for display: update the verdict by the present ages. `since`: time since the last sweep."""
    shown.judged.shown(judgement, since, shown.heartbeat.rhythm.beats)
