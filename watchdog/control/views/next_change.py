"""What would change an agent's verdict: sentences of `why`. Pure."""

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from watchdog.agents.agent import ZERO, Agent
from watchdog.agents.holds import Holds
from watchdog.core.agent import ENDED, State, Status, Verdict
from watchdog.core.custody import Holder
from watchdog.core.kill import Step
from watchdog.core.verdict import overdue, span


@dataclass(frozen=True, slots=True)
class Ending:
    """How far the end of an agent has come, by its request and its hooks' runs."""

    how: str  # "it has ended by itself"
    dead: bool  # all of its processes are: only its cleanup is left
    hook: str = ""  # which hook that waits for, and in which try


def next_changes(
    agent: Agent,
    holds: Holds,
    now: datetime,
    doubts: Iterable[str] = (),
    *,
    observes: bool = False,
    ending: Ending | None = None,
    spared: timedelta | None = None,
) -> list[str]:
    """Sentences, the nearest change first. `doubts`: why the daemon holds back its own kills for silence.

    `spared`: for how long it does that for this agent (`hold.max_seconds`, or what is left of it).
    """
    said, doubts = _held(agent, holds, now), list(doubts)
    if observes:
        said.append("The daemon only observes: a kill would be logged, not carried out.")
    if agent.judged.verdict in (Verdict.STARTING, Verdict.LATE, Verdict.STALLED):
        said += [_doubted(agent, why, spared) for why in doubts]
    if agent.status is Status.ENDING and ending is not None:
        return _ending(agent, ending)
    if agent.status is Status.ENDING:
        return [f"It is being killed (request {agent.ending.request_id}); a heartbeat no longer changes that.", *said]
    if agent.status is Status.UNKILLABLE:
        return [
            "Part of its process tree could not be killed; that is tried again, and nothing is cleaned up before.",
            *said,
        ]
    if agent.status in ENDED:
        return ["It has ended; nothing will change."]
    if agent.status is Status.QUEUED:
        return [
            "It is queued; a pid (PATCH /v1/agents/ID) makes it running. Until then nothing is done about it.",
            *said,
        ]
    if agent.owner.elsewhere is not None:
        return _left(agent, agent.owner.elsewhere, held=bool(_held(agent, holds, now)))
    if agent.ending.asked is not None:
        return [f"It was asked to exit by itself ({agent.ending.asked.reason}); if it does not, it is killed.", *said]
    doubted = bool(doubts) and (spared is None or spared > ZERO)
    if agent.judged.verdict is Verdict.STALLED and (doubted or observes or _held(agent, holds, now)):
        return [f"It is stalled, and its kill is held back. {_spares(agent)}.", *said]
    return [*_by_verdict(agent), *_limits(agent), *said]


def _doubted(agent: Agent, why: str, spared: timedelta | None) -> str:
    """Why the daemon kills no agent for silence, for how long it does not kill this one, and what ends it."""
    if spared is not None and spared <= ZERO:
        return f"The daemon holds back kills for silence at present: {why}. It has done so for this agent long enough."
    begun = "more" if agent.judged.kill_due_since is not None else "from when it is stalled"
    limit = "" if spared is None else f", for this agent for {span(spared)} {begun} at most"
    return f"The daemon kills no agent for silence at present{limit}: {why}. `agent-watchdog unhold` lifts that."


def _ending(agent: Agent, ending: Ending) -> list[str]:
    """Of one that is dead no hold and no heartbeat changes anything: what is left is its cleanup."""
    if ending.dead:
        return [f"{ending.how}; its cleanup goes on{f', and waits for {ending.hook}' if ending.hook else ''}."]
    return [f"{ending.how}; what it left behind is killed (request {agent.ending.request_id}) and cleaned up next."]


def _left(agent: Agent, holder: Holder, *, held: bool) -> list[str]:
    """Of one that another daemon of this host watches: whatever changes, changes there."""
    there, name = f"agent-watchdog --socket {shlex.quote(holder.socket)}", shlex.quote(holder.name)
    said = [
        f"It is watched by {holder}, as {holder.name}. Here it is neither judged nor killed for silence nor cleaned up;"
        " what it says here is passed on to that daemon.",
        f"What comes next is said there: {there} why {name}. To kill it there: {there} kill {name}.",
        "When that daemon is gone, or no longer watches it, this one does, and its silence counts from then on.",
    ]
    return [*said, "It is held by this daemon alone; that does not bind the other one."] if held else said


def _by_verdict(agent: Agent) -> list[str]:
    policy, silence = agent.policy, agent.heartbeat.silence
    left, unread = silence.after - silence.counted, silence.hindrance.unread
    match agent.judged.verdict:
        case None:
            return ["It has not been looked at yet; the next sweep does that."]
        case Verdict.GONE:
            return ["Its main process has exited; what it left behind is killed and cleaned up next."]
        case Verdict.UNKNOWN if unread is not None and unread <= policy.wait_limit:
            left = policy.wait_limit - unread
            return [f"Its heartbeat file, once it can be read, decides; otherwise its silence counts in {span(left)}."]
        case Verdict.UNKNOWN if agent.judged.hangs is not None:
            name = shlex.quote(agent.reg.name)
            return [
                f"Once {agent.judged.hangs} can be read again, its silence counts, with the time of the hang; until"
                " then it is not killed for silence. Perhaps a disk or file system (FUSE, NFS) hangs that its"
                " process waits for.",
                f"It can be killed all the same: agent-watchdog kill {name}.",
            ]
        case Verdict.UNKNOWN:
            return ["A look that succeeds (see the reason above) decides; until then nothing is done about it."]
        case Verdict.STARTING:
            return [_starting(agent)]
        case Verdict.EXPIRED:
            return ["Its time to live is over; nothing changes that."]
        case Verdict.LINGERING:
            return ["A heartbeat with another state than `done` spares it."]
        case Verdict.WAITING:
            return _waiting(agent)
        case Verdict.HEALTHY if not agent.heartbeat.said.promised:
            return ["Only its exit and its time to live count; after a first heartbeat its silence counts, too."]
        case Verdict.HEALTHY:
            return [f"Without a heartbeat it is late in {span(max(ZERO, left))}, and stalled{_confirmed(agent)}."]
        case Verdict.LATE if silence.hindrance.channel_lost and silence.counted < policy.wait_limit:
            left = policy.wait_limit - silence.counted
            return [
                "A heartbeat makes it healthy at once. Its heartbeats could not reach the daemon, so it is stalled in"
                f" {span(left)} at the earliest{_then(agent)}."
            ]
        case Verdict.LATE if agent.activity is not None:
            late = overdue(silence.counted, silence.after, agent.heartbeat.ages.progress_age, policy)
            left = policy.busy_limit - max(ZERO, late)
            return [
                f"{_spares(agent)}. Without one, when it shows no more activity (now: "
                f"{agent.activity}), or in {span(max(ZERO, left))} in any case, it is stalled{_then(agent)}."
            ]
        case Verdict.LATE:
            looks = silence.doubts.late_looks
            return [
                f"{_spares(agent)}. Without one it is stalled after"
                f" {policy.confirm_sweeps} looks in a row ({looks} so far){_then(agent)}."
            ]
        case Verdict.STALLED:
            then = " and killed next" if agent.policy.ladder == (Step.KILL,) else _then(agent)
            spares = "A heartbeat before the first signal withdraws the kill"
            return [f"It is stalled{then}. {spares if Step.KILL in agent.policy.ladder else _spares(agent)}."]


def _starting(agent: Agent) -> str:
    """Beyond its limit it counts as starting only while there is evidence for it (`core.verdict`)."""
    silence, ages = agent.heartbeat.silence, agent.heartbeat.ages
    policy = agent.policy
    what = "A pid" if agent.identity is None else "A first heartbeat"
    limit = max(policy.start_limit, silence.after) if agent.heartbeat.said.promised else policy.start_limit
    left, failed = (
        limit - (ages.age - silence.forgiven),
        "it has failed to start and is killed",
    )
    if left <= ZERO and silence.hindrance.channel_lost and ages.age < policy.wait_limit:
        more = span(policy.wait_limit - ages.age)
        return f"{what} could not reach the daemon, and is waited for for {more} more; otherwise {failed}."
    if left <= ZERO and agent.activity is not None:
        return (
            f"{what} makes it running. Without one, when it shows no more activity (now: {agent.activity}), or in "
            f"{span(max(ZERO, left + policy.busy_limit))} in any case, {failed}."
        )
    return f"{what} must come within {span(max(ZERO, left))}; otherwise {failed}."


def _spares(agent: Agent) -> str:
    stands = (
        agent.heartbeat.silence.counted < agent.heartbeat.silence.after
        and agent.heartbeat.ages.progress_age is not None
    )
    return "A heartbeat with another progress makes it healthy" if stands else "A heartbeat makes it healthy at once"


def _waiting(agent: Agent) -> list[str]:
    silence, said = agent.heartbeat.silence, agent.heartbeat.said
    ages, tool = agent.heartbeat.ages, said.tool
    if ages.lease_left > ZERO:
        return [f"Its lease ends in {span(ages.lease_left)}; silence counts from then on."]
    if tool is not None and ages.tool_left > ZERO:
        return [f"The limit of tool {tool} ends in {span(ages.tool_left)}; silence counts from then on."]
    if agent.sights.prompt is not None and said.state not in (State.IDLE, State.WAITING, State.DONE):
        return ["A person must answer what its pane asks; a heartbeat or another screen ends the wait."]
    if agent.heartbeat.rhythm.beats == 0 and agent.sights.unprompted is not None:
        return ["It waits for its first prompt; from its first heartbeat on its silence counts."]
    if said.state is State.DONE:
        left = max(ZERO, agent.policy.linger - agent.heartbeat.ages.state_age)
        return [f"It said `done`; if it still runs in {span(left)} it is killed as lingering."]
    left = max(silence.after, agent.policy.wait_limit) - silence.counted
    if agent.heartbeat.rests_on and left > ZERO:
        return [f"It is idle while what it started goes on; without a sign of either it is late in {span(left)}."]
    left = agent.policy.wait_limit - agent.heartbeat.ages.state_age
    if said.state is State.BLOCKED and left > ZERO:
        return [f"It said `blocked`; that is accepted for {span(left)} more, then its silence counts."]
    left = agent.policy.wait_limit - silence.hindrance.halted
    by_itself = not agent.heartbeat.rests_on and said.state in (State.IDLE, State.WAITING)
    if silence.hindrance.halt is not None and left > ZERO and not by_itself:
        return [f"It is waited for, for {span(left)} more; when it goes on before, it has a fresh limit of silence."]
    return [f"It said `{said.state}`; a heartbeat with another state ends the wait, which has no limit."]


def _confirmed(agent: Agent) -> str:
    """The look that finds it late is the first of those that confirm it."""
    more = agent.policy.confirm_sweeps - 1
    return f" {more} look{'s' if more != 1 else ''} later" if more > 0 else " with the same look"


def _then(agent: Agent) -> str:
    ladder = agent.policy.ladder
    if ladder != (Step.KILL,) and Step.KILL in ladder:
        return f", and its ladder ({', '.join(ladder)}) goes on" + (
            f" from {agent.ladder.rung}" if agent.ladder.rung else ""
        )
    if Step.KILL in ladder:
        return " and killed"
    return f", which is only reported: its ladder ({', '.join(ladder) or 'empty'}) ends before a kill"


def _limits(agent: Agent) -> list[str]:
    said = []
    if agent.ttl.left is not None and agent.ttl.left > ZERO:
        said.append(f"Its time to live ends in {span(agent.ttl.left)}.")
    if agent.heartbeat.ages.progress_age is not None and agent.judged.verdict is Verdict.HEALTHY:
        left = max(ZERO, agent.policy.progress_limit - agent.heartbeat.ages.progress_age)
        said.append(f"If its progress stays at {agent.heartbeat.said.progress} it counts as silent in {span(left)}.")
    return said


def _held(agent: Agent, holds: Holds, now: datetime) -> list[str]:
    own, everybody = holds.reason_for(agent.agent_id, now), holds.reason_for(None, now)
    said = []
    if own is not None:
        said.append(f"It is held: {own}. It is not killed before `agent-watchdog unhold {agent.reg.name}`.")
    if everybody is not None:
        said.append(f"All agents are held: {everybody}. The daemon kills none of them before `agent-watchdog unhold`.")
    return said


def held_back(agent: Agent, doubts: Iterable[str], everybody: str | None, spared: timedelta | None) -> str | None:
    """Why a kill that its verdict asks for is not ordered now, for a list: a hold on all, or the daemon's own doubt.

    A hold on the agent itself is reported separately. `everybody`: the reason of a hold on all agents.
    """
    timed = agent.judged.verdict in (Verdict.EXPIRED, Verdict.LINGERING)
    if (
        agent.ending.request_id is not None
        or agent.owner.elsewhere is not None
        or (agent.judged.kill_due_since is None and not timed)
    ):
        return None
    if everybody is not None:
        return f"all agents are held: {everybody}"
    if timed or spared is None or spared <= ZERO:
        return None
    return next((f"{why} (for {span(spared)} more at most)" for why in doubts), None)
