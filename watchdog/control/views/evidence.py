"""The evidence for and against an agent, each signal with its age and source: the middle part of `why`. Pure.

A missing signal is shown as missing, with the reason; it is no evidence.
"""

from datetime import datetime, timedelta

from watchdog.agents.agent import Agent
from watchdog.core.agent import Verdict
from watchdog.core.observed_activity import ActivityKind, Trust
from watchdog.core.redaction import hide_secrets
from watchdog.core.verdict import span

Json = dict[str, object]


def signals(agent: Agent, now: datetime) -> list[Json]:
    """What it reported first, then what is seen from outside."""
    inside = _word("containers", None, None, "what it runs in a container is neither watched nor killed with it")
    return [*_words(agent, now), *(_sight(agent, kind) for kind in ActivityKind), _prompt(agent), inside]


def _words(agent: Agent, now: datetime) -> list[Json]:
    silence, ages = agent.heartbeat.silence, agent.heartbeat.ages
    state_at = agent.heartbeat.said.state_at
    said = [_heartbeat(agent, now), _promise(agent)]
    said.append(
        _word(
            "state",
            agent.heartbeat.said.state and str(agent.heartbeat.said.state),
            ages.state_age if state_at is None else max(timedelta(), now - state_at),
            "it never reported one",
        )
    )
    lease = f"{span(ages.lease_left)} left" if ages.lease_left else None
    said.append(_word("lease", lease, None, "it has none"))
    tool = None
    if agent.heartbeat.said.tool:
        left = f"{span(ages.tool_left)} of its limit left" if ages.tool_left else "no limit left, or none was given"
        tool = f"{hide_secrets(agent.heartbeat.said.tool)}, {left}"
    said.append(_word("tool", tool, None, "none was reported, or it is over"))
    progress = None if agent.heartbeat.said.progress is None else f"{agent.heartbeat.said.progress:g}"
    said.append(
        _word(
            "progress",
            progress,
            ages.progress_age,
            "it never reported any; judged by its heartbeats alone",
        )
    )
    if agent.reg.shared(agent.perhaps.values()):
        said.append(_entry("sessions", agent.reg.shared(agent.perhaps.values()), None, Trust.OWNER, None))
    if agent.reg.beat_file is not None:
        failure = (
            None if silence.hindrance.unread is None else f"could not be read for {span(silence.hindrance.unread)}"
        )
        said.append(_entry("beat file", None if failure else "is read", None, Trust.OWNER, failure))
    return said


def _heartbeat(agent: Agent, now: datetime) -> Json:
    more, silence, beats = [], agent.heartbeat.silence, agent.heartbeat.rhythm.beats
    if silence.forgiven:
        more.append(f"{span(silence.forgiven)} of that not counted: the daemon could not hear it")
    if silence.hindrance.channel_lost and agent.judged.verdict is not Verdict.GONE:  # what has ended says nothing
        more.append(
            "further ones could not reach the daemon (its socket or the way to it was gone, or too many connections)"
        )
    if looks := silence.doubts.late_looks:
        more.append(f"{looks} look{'s' if looks != 1 else ''} in a row found it too silent")
    text = f"{beats} received, the last" if beats else None
    missing = f"none yet in {span(agent.heartbeat.ages.age)} of watched time"
    said = _word("heartbeat", text, agent.heartbeat.rhythm.since(now, silence.lasted), missing)
    return said | {"more": "; ".join(more) if text else ""}


def _promise(agent: Agent) -> Json:
    text = f"stalled after {span(agent.heartbeat.silence.after)} of silence" if agent.heartbeat.said.promised else None
    return _word("promise", text, None, "it promised no heartbeats; silence alone never kills it")


def _sight(agent: Agent, kind: ActivityKind) -> Json:
    sight = agent.sights.seen.get(kind)
    return _entry(
        kind,
        sight.text if sight else None,
        sight.age if sight else None,
        kind.probe.trust,
        None if sight else _unseen(agent, kind),
    )


def _prompt(agent: Agent) -> Json:
    prompt = agent.sights.prompt
    says, age = (None, None) if prompt is None else (f"its pane shows {prompt.text}", prompt.age)
    return _entry("prompt", says, age, Trust.OWNER, None if says else "none seen in its tmux pane")


def _unseen(agent: Agent, kind: ActivityKind) -> str:
    if kind.probe.named_by is not None and kind.probe.path(agent.reg) is None:
        return "none was named"
    failure = agent.sights.failed.get(kind)
    if failure is not None:
        return f"the look failed: {failure}"
    if agent.judged.verdict is Verdict.GONE:
        return "it has ended"
    if kind.probe.unseen:
        return kind.probe.unseen
    return "nothing seen since it fell silent" if agent.in_question else "looked at when it has been silent for a while"


def _word(name: str, says: str | None, age: timedelta | None, missing: str) -> Json:
    return _entry(name, says, age if says else None, Trust.AGENT, None if says else missing)


def _entry(name: str, says: str | None, age: timedelta | None, trust: Trust, missing: str | None) -> Json:
    seconds = None if age is None else round(age.total_seconds(), 1)
    return {"signal": str(name), "says": says, "age_seconds": seconds, "trust": str(trust), "missing": missing}
