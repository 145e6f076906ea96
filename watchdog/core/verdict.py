"""judge(): what one sweep's observation of one agent means. The first line of the table that applies wins.

Pure. Every duration in an `Observation` was *watched* by the daemon on its own monotonic clock; none is computed from
wall times. A missing observation is None or zero and means "no evidence", never "skip" and never "dead".
"""

from dataclasses import dataclass
from datetime import timedelta

from watchdog.core.agent import Policy, State, Status, Verdict
from watchdog.core.process import Presence
from watchdog.core.redaction import hide_secrets

ZERO = timedelta()
FOR_EVER = timedelta(days=365)
_UNHEARD = "its heartbeats could not reach the daemon (its socket or the way to it was gone, or too many connections)"


@dataclass(frozen=True, slots=True)
class Observation:
    """What one sweep saw of one agent.

    `silence` counts from the last beat, or from the end of a lease or declared tool, whichever came last; without any
    beat, from registration. `forgiven`: additional silence that is not counted, because a beat may have been lost.
    `late_looks` is how many earlier checks in a row found it silent. `unread` is how long its only beat, a file, could
    not be read (None: it was read, or the agent beats elsewhere).
    """

    presence: Presence
    hangs: str | None = None  # the file of its main process whose read hangs, so that nothing is known of that process
    status: Status = Status.RUNNING
    promised: bool = False
    has_beaten: bool = False
    age: timedelta = ZERO
    forgiven: timedelta = ZERO
    silence: timedelta = ZERO
    after: timedelta = timedelta(seconds=120)
    state: State | None = None
    state_age: timedelta = ZERO
    rests_on: bool = False  # idle until something that it started wakes it
    lease_left: timedelta = ZERO
    tool: str | None = None
    tool_left: timedelta = ZERO
    progress_age: timedelta | None = None
    asks: str | None = None  # what its terminal asks a person for, when last seen
    unprompted: str | None = None  # why it may be waiting for its first prompt
    ttl_left: timedelta | None = None
    ttl_warning: timedelta = ZERO  # how long before the TTL ends it is reported
    late_looks: int = 0
    first_look: bool = False
    activity: str | None = None
    channel_lost: bool = False
    elsewhere: str | None = None  # the other daemon that watches it
    members: int = 0  # processes of its tree in the last scan
    unread: timedelta | None = None
    unread_why: str = ""
    halt: str | None = None  # how a person stopped it on purpose, if so; and for how long during this silence
    halted: timedelta = ZERO


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and its explanation, as text for `why`.

    `overdue`: STARTING for longer than the limit. `stands`: how long only a new beat or a new check of the process can
    change it; a bare beat extends that. Zero: to be judged again in the next sweep.
    """

    verdict: Verdict
    line: str
    overdue: bool = False
    stands: timedelta = ZERO


def judge(seen: Observation, policy: Policy) -> Judgement:
    """Return the verdict, by the first of the nine lines that applies.

    1 GONE, 2 UNKNOWN, 3 STARTING, 4 EXPIRED, 5 LINGERING, 6 WAITING, 7 HEALTHY, 8 LATE, 9 STALLED. An agent that is
    only queued is never judged: it has not been started yet.
    """
    if seen.status is Status.QUEUED:
        return Judgement(Verdict.STARTING, "queued: not started yet")
    for line in (_gone, _elsewhere, _unknown, _starting, _expired, _lingering, _waiting, _healthy, _late):
        judgement = line(seen, policy)
        if judgement is not None:
            return judgement
    return Judgement(Verdict.STALLED, f"{_silent(seen, policy)}; confirmed by {seen.late_looks + 1} looks")


def _gone(seen: Observation, policy: Policy) -> Judgement | None:
    if seen.presence is Presence.ABSENT:
        return Judgement(Verdict.GONE, "the main process has ended")
    return None


def _elsewhere(seen: Observation, policy: Policy) -> Judgement | None:
    if seen.elsewhere is not None:
        return Judgement(Verdict.HEALTHY, left_to_another(seen.elsewhere))
    return None


def left_to_another(holder: str) -> str:
    """The explanation for an agent that another daemon of this host watches."""
    return f"watched by {holder}, not by this daemon"


def _unknown(seen: Observation, policy: Policy) -> Judgement | None:
    if seen.presence is Presence.UNKNOWN:
        what = "its processes could not be looked at" if seen.hangs is None else f"reading {seen.hangs} hangs"
        return Judgement(Verdict.UNKNOWN, f"{what}, so it counts neither as ended nor as silent")
    if seen.unread is not None and seen.unread <= policy.wait_limit:
        line = f"its heartbeat file could not be read for {span(seen.unread)} (≤ {span(policy.wait_limit)})"
        return Judgement(Verdict.UNKNOWN, f"{line}: {hide_secrets(seen.unread_why)}" if seen.unread_why else line)
    return None


def _starting(seen: Observation, policy: Policy) -> Judgement | None:
    # An agent that promised a beat every four hours may take four hours for the first one.
    limit = max(policy.start_limit, seen.after) if seen.promised else policy.start_limit
    waited = seen.age - seen.forgiven
    if seen.presence is Presence.NO_PID and not seen.promised and seen.members:
        return None  # no pid was registered, and it needs none
    if seen.presence is Presence.NO_PID and not (seen.promised and seen.has_beaten):
        what = "no pid registered yet"
    elif seen.promised and not seen.has_beaten:
        what = "it promised a heartbeat and none has come yet"
    else:
        return None
    if seen.asks is not None:
        return None  # it waits for a person
    if waited < limit:
        return Judgement(Verdict.STARTING, f"{what}: {span(waited)} of {span(limit)}{_not_counted(seen.forgiven)}")
    if seen.unprompted is not None:
        return None
    if seen.channel_lost and seen.age < policy.wait_limit:
        return Judgement(Verdict.STARTING, f"{what} after {span(seen.age)}; {_UNHEARD}{_up_to(policy.wait_limit)}")
    after = f"{span(waited)}{_not_counted(seen.forgiven)}"
    if (held := _halted(seen, policy)) is not None:
        return held
    if seen.activity is not None and waited - limit < policy.busy_limit:  # it has started, although it has not beaten
        busy = f"{seen.activity} (accepted for {span(policy.busy_limit)})"
        return Judgement(Verdict.STARTING, f"{what} after {after}, but {busy}")
    return Judgement(Verdict.STARTING, f"{what} after {after} (limit {span(limit)})", overdue=True)


def _expired(seen: Observation, policy: Policy) -> Judgement | None:
    if seen.ttl_left is not None and seen.ttl_left <= ZERO:
        return Judgement(Verdict.EXPIRED, f"its time to live ended {span(-seen.ttl_left)} ago")
    return None


def _lingering(seen: Observation, policy: Policy) -> Judgement | None:
    if seen.state is State.DONE and seen.state_age >= policy.linger:
        return Judgement(
            Verdict.LINGERING, f"said `done` {span(seen.state_age)} ago and still runs (limit {span(policy.linger)})"
        )
    return None


def _waiting(seen: Observation, policy: Policy) -> Judgement | None:
    quiet_for = f"silent for {span(seen.silence)}" if seen.has_beaten else "no heartbeat yet"
    if seen.asks is not None and seen.promised and (seen.silence >= seen.after or not seen.has_beaten):
        return Judgement(Verdict.WAITING, f"needs a person: its pane shows {seen.asks}; {quiet_for}")
    if seen.unprompted is not None and seen.promised and not seen.has_beaten:
        return Judgement(Verdict.WAITING, f"waits for its first prompt: {seen.unprompted}; {quiet_for}")
    if seen.rests_on:
        believed = max(policy.wait_limit, seen.after)
        if seen.silence < believed:
            line = f"idle for {span(seen.state_age)} while something that it started goes on"
            return Judgement(Verdict.WAITING, f"{line} (accepted for {span(believed)} of silence)")
    elif seen.state is State.WAITING:
        return Judgement(Verdict.WAITING, f"has needed a person for {span(seen.state_age)}")
    elif seen.state in (State.IDLE, State.DONE):
        return Judgement(Verdict.WAITING, f"{seen.state} for {span(seen.state_age)}")
    if seen.state is State.BLOCKED and seen.state_age < policy.wait_limit:
        limit = span(policy.wait_limit)
        return Judgement(Verdict.WAITING, f"blocked for {span(seen.state_age)} (accepted for {limit})")
    if seen.lease_left > ZERO:
        return Judgement(Verdict.WAITING, f"on a lease: {span(seen.lease_left)} left")
    if seen.tool is not None and seen.tool_left > ZERO:
        left = span(seen.tool_left)
        return Judgement(Verdict.WAITING, f"running tool {hide_secrets(seen.tool)}: {left} of its limit left")
    return None


def _healthy(seen: Observation, policy: Policy) -> Judgement | None:
    stands = FOR_EVER if seen.ttl_left is None else seen.ttl_left
    if stands > seen.ttl_warning:
        stands -= seen.ttl_warning
    if not seen.promised:
        line = "it promised no heartbeats: judged by its process, exit and TTL alone"
        if seen.presence is Presence.NO_PID:
            line = f"no pid was registered; {seen.members} of its processes live"
        return Judgement(Verdict.HEALTHY, line, stands=stands)
    if seen.silence < seen.after and not _progress_stands(seen, policy):
        stands = min(stands, seen.after - seen.silence)
        if seen.progress_age is not None:
            stands = min(stands, policy.progress_limit - seen.progress_age)
        return Judgement(Verdict.HEALTHY, quiet(seen.silence, seen.after, seen.forgiven), stands=stands)
    return None


def _halted(seen: Observation, policy: Policy) -> Judgement | None:
    """WAITING, up to a limit, for an agent that a person stopped on purpose."""
    if seen.halt is None or seen.halted >= policy.wait_limit:
        return None
    return Judgement(Verdict.WAITING, f"{seen.halt} (waited for up to {span(policy.wait_limit)})")


def _late(seen: Observation, policy: Policy) -> Judgement | None:
    if (held := _halted(seen, policy)) is not None:
        return held
    silent = _silent(seen, policy)
    if seen.channel_lost and seen.silence < policy.wait_limit:
        return Judgement(Verdict.LATE, f"{silent}; {_UNHEARD}{_up_to(policy.wait_limit)}")
    looks = seen.late_looks + 1
    needed = max(policy.confirm_sweeps, 2) if seen.first_look else policy.confirm_sweeps
    if looks < needed:
        return Judgement(Verdict.LATE, f"{silent}; not confirmed yet (look {looks} of {needed})")
    if seen.activity is not None and overdue(seen.silence, seen.after, seen.progress_age, policy) < policy.busy_limit:
        return Judgement(Verdict.LATE, f"{silent}, but {seen.activity} (accepted for {span(policy.busy_limit)})")
    return None


def overdue(silence: timedelta, after: timedelta, progress_age: timedelta | None, policy: Policy) -> timedelta:
    """By how much its silence, or the standstill of its progress, exceeds its limit; the larger of the two."""
    silent = silence - after
    return silent if progress_age is None else max(silent, progress_age - policy.progress_limit)


def _progress_stands(seen: Observation, policy: Policy) -> bool:
    return seen.progress_age is not None and seen.progress_age >= policy.progress_limit


def _silent(seen: Observation, policy: Policy) -> str:
    if seen.silence < seen.after and seen.progress_age is not None:
        return (
            f"beats, but its progress has not moved for {span(seen.progress_age)} (limit {span(policy.progress_limit)})"
        )
    return f"silent for {span(seen.silence)}, promised {span(seen.after)}{_not_counted(seen.forgiven)}"


def _up_to(limit: timedelta) -> str:
    return f" (waited for up to {span(limit)} of silence)"


def quiet(silence: timedelta, after: timedelta, forgiven: timedelta = ZERO) -> str:
    """The explanation for a healthy agent that promised beats; `silence` excludes what is forgiven."""
    return f"silent for {span(silence)} of {span(after)}{_not_counted(forgiven)}"


def _not_counted(forgiven: timedelta) -> str:
    return f"; {span(forgiven)} not counted: the daemon could not hear it" if forgiven else ""


def span(duration: timedelta) -> str:
    """A duration for people: 0.4s, 42s, 3m20s, 2h05m, 3d4h."""
    seconds = duration.total_seconds()
    if seconds < 0:
        return f"-{span(-duration)}"
    if seconds < 10:
        return f"{seconds:.1f}s".replace(".0s", "s")
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole % 60 else f"{whole // 60}m"
    if whole < 86400:
        minutes = whole % 3600 // 60
        return f"{whole // 3600}h{minutes:02d}m" if minutes else f"{whole // 3600}h"
    hours = whole % 86400 // 3600
    return f"{whole // 86400}d{hours}h" if hours else f"{whole // 86400}d"
