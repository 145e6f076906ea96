"""What an agent has said through its beats, and how long the daemon has watched it silent.

A beat changes all the parts at once, and each sweep lets all of them age; each part has its own rules.
"""

from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from watchdog.agents.ages import Ages, Elapsed
from watchdog.agents.silence import Silence, SilenceLimits
from watchdog.agents.subagents import Subagents
from watchdog.core.agent import Beat, State
from watchdog.core.verdict import span
from watchdog.core.witnesses import Witness, comes_back

ZERO = timedelta()


@dataclass(slots=True)
class Said:
    """The latest value of each thing that the agent said about itself."""

    promised: bool = False
    state: State | None = None
    state_at: datetime | None = None  # when it last reported its state; unknown after a restart of the daemon
    finished: bool = False  # it said explicitly that its work is done; the end of a session or process does not count
    note: str | None = None  # as received; stored and shown only through `hide_secrets`
    tool: str | None = None  # likewise
    progress: float | None = None

    def promise(self, promised: bool) -> None:
        """From now on its silence counts, or (False) no longer counts."""
        self.promised = promised

    def hear(self, beat: Beat, wall: datetime) -> None:
        """Take a beat."""
        if beat.promises or beat.state is not None:
            self.state, self.state_at = beat.state or State.WORKING, wall
            self.finished = self.state is State.DONE and (self.finished or _is_done(beat))
        if beat.tool is not None:
            self.tool = beat.tool or None
        if beat.progress is not None:
            self.progress = beat.progress
        if beat.note is not None:
            self.note = beat.note

    def restore(
        self, state: State | None, note: str | None, tool: str | None, progress: float | None, *, finished: bool
    ) -> None:
        """Restore what an earlier daemon received."""
        self.state, self.note, self.tool, self.progress, self.finished = state, note, tool, progress, finished


def _is_done(beat: Beat) -> bool:
    """Whether `done` refers to the work: STOPPING=1 (without a promise) and a session's end refer to the process.

    A program that is asked to stop sends these too, in the middle of its work.
    """
    return beat.promises and beat.session_ended is None


PAUSES = 8  # after this many beats, a long pause before them counts for a third


@dataclass(slots=True)
class Rhythm:
    """When it beat, and the pauses between its beats, by which the silence of other agents is judged."""

    beats: int = 0
    renewed: int = 0  # beats that speak against a stall: all except those without the promised progress
    last_heartbeat: datetime | None = None
    spoke: float | None = None  # monotonic instant of the last beat
    returned: float | None = None  # time of the last beat that came after an unusually long pause
    pause: timedelta | None = None  # the longest of its recent pauses between two beats; older ones count less

    def hear(self, mono: float, wall: datetime) -> None:
        """Count a beat."""
        self.beats += 1
        self.spoke, self.last_heartbeat = mono, wall

    def renew(self) -> None:
        """Count a beat that speaks against a stall."""
        self.renewed += 1

    def note_pause(self, mono: float, after: timedelta, age: timedelta) -> None:
        """Record the pause before a beat; a pause longer than allowed is not part of the rhythm."""
        if self.spoke is None:
            return
        pause, former = timedelta(seconds=max(0.0, mono - self.spoke)), self.pause or ZERO
        if pause > comes_back(Witness(0, pause, after, age, self.pause)):
            self.returned = mono
        if pause > after:
            return
        self.pause = max(pause, former - (former - pause) / PAUSES)

    def restore(self, beats: int, last_heartbeat: datetime | None) -> None:
        """Restore what an earlier daemon received."""
        self.beats, self.last_heartbeat = beats, last_heartbeat

    def since(self, now: datetime, watched: timedelta) -> timedelta | None:
        """Time since its last beat by the wall clock, or `watched` where the time of the beat is unknown.

        None: it never sent one.
        """
        if not self.beats:
            return None
        return watched if self.last_heartbeat is None else max(ZERO, now - self.last_heartbeat)

    def shift(self, by: timedelta) -> None:
        """The wall clock was set by this much."""
        if self.last_heartbeat is not None:
            self.last_heartbeat += by


@dataclass(slots=True)
class Heartbeat:
    """Everything that the judgement of its silence rests on."""

    silence: Silence
    said: Said = field(default_factory=Said)
    rhythm: Rhythm = field(default_factory=Rhythm)
    subagents: Subagents = field(default_factory=Subagents)
    ages: Ages = field(default_factory=Ages)
    speaker_pid: int | None = None  # sender of its last beat through a notify socket
    reads_answers: bool = False  # it beats over HTTP itself, and so reads the answers
    asked_too_much: str = ""  # to be reported
    changed: bool = True  # something other than ages has changed since its row was written
    silence_written: timedelta = ZERO

    @property
    def silent_for(self) -> timedelta:
        """How long it has broken its promise: silent, or beating without the promised progress."""
        return max(self.silence.lasted, self.ages.progress_age or ZERO) if self.stuck else self.silence.lasted

    @property
    def excused(self) -> bool:
        """Whether by its own report no beat is to be expected of it now."""
        wait_limit = self.silence.limits.policy.wait_limit
        waits = self.said.state in (State.IDLE, State.WAITING, State.DONE)
        if self.rests_on:
            waits = self.silence.counted < max(self.silence.after, wait_limit)
        blocked = self.said.state is State.BLOCKED and self.ages.state_age < wait_limit
        return waits or blocked or self.ages.lease_left > ZERO or self.ages.tool_left > ZERO

    @property
    def asks_itself(self) -> bool:
        """Whether its main thread waits for a human, as its terminal shows."""
        told = self.said.state is State.WAITING and self.said.state_at is not None
        return told and self.subagents.asked_by_main

    @property
    def rests_on(self) -> bool:
        """Whether it rests until something that it began wakes it: a subagent, a background task."""
        return self.said.state is State.IDLE and self.subagents.going_on

    @property
    def stuck(self) -> bool:
        """Whether its promised progress has stood still for too long; then its beats do not count against a stall."""
        stands = self.ages.progress_age
        return stands is not None and stands >= self.silence.limits.policy.progress_limit and not self.excused

    def copy(self) -> "Heartbeat":
        """A copy for display whose ages advance independently."""
        shown = copy(self)
        shown.silence, shown.ages = self.silence.copy(), copy(self.ages)
        return shown

    def beat(self, beat: Beat, mono: float, wall: datetime, age: timedelta = ZERO) -> Beat:
        """Take a beat of the agent and return the part that was applied. An identical beat counts as a new one.

        `age`: how long ago it was sent.
        """
        before = self.silence.copy() if age > ZERO else self.silence
        former = self._condition()
        said, wall = mono - age.total_seconds(), wall - age
        self.said.promise(self.said.promised or beat.promises)
        beat = self.subagents.hear(beat, said, mono, self.said.state, self.silence.limits.policy.wait_limit)
        if not self.excused:
            self.rhythm.note_pause(mono, self.silence.after, self.ages.age)
        self.rhythm.hear(mono, wall)
        self.silence.end(mono)
        self._take(beat, mono, wall)
        if not self.stuck:
            self.rhythm.renew()
            self.silence.doubts.spoke()
        if self.rhythm.beats == 1 or not beat.bare or self._condition() != former:
            self.silence.doubts.unsettle()
            self.changed = True
        if age > ZERO:
            aged = max(ZERO, age - max(self.ages.lease_left, self.ages.tool_left))
            self.silence.end_earlier(aged, before, mono)
            self.ages.begun_before(age, lease=beat.silent_for is not None, tool=beat.tool_limit is not None)
        return beat

    def _condition(self) -> tuple[object, ...]:
        """The fields besides silence that a bare beat may change."""
        return self.said.promised, self.said.state, self.said.note, self.subagents.goes_on, len(self.subagents.threads)

    def _take(self, beat: Beat, mono: float, wall: datetime) -> None:
        state, progress = self.said.state, self.said.progress
        self.said.hear(beat, wall)
        if self.said.state is not state:
            self.ages.begin_state(mono)
        if beat.after is not None:
            after = self._capped(beat.after, "a limit of silence")
            self.silence.adopt(replace(self.silence.limits, said=after))
        if beat.silent_for is not None:
            self.ages.begin_lease(self._capped(beat.silent_for, "a lease"), mono)
        if beat.tool is not None:
            limit = self._capped(beat.tool_limit or ZERO, "a tool's limit") if self.said.tool else ZERO
            self.ages.begin_tool(limit, mono)
        if beat.progress is not None and beat.progress != progress:
            self.ages.begin_progress(mono)

    def _capped(self, asked: timedelta, what: str) -> timedelta:
        """At most `wait_limit`: a beat must not be able to switch the watch off for ever (case B6)."""
        most = self.silence.limits.policy.wait_limit
        if asked > most:
            self.asked_too_much = f"asked for {what} of {span(asked)}; {span(most)} is the limit"
        return min(asked, most)

    def watch(self, elapsed: Elapsed) -> None:
        """Add that time to everything that ages."""
        quiet = elapsed.since(self.silence.touched)
        self.silence.advance(quiet, self.ages.advance(elapsed, quiet, self.said.state), elapsed.cap)

    def adopt(self, limits: SilenceLimits) -> None:
        """Apply other limits from now on; a maximum silence that the agent announced itself stays in force."""
        self.silence.adopt(replace(limits, said=self.silence.limits.said))

    def release(self) -> None:
        """The client that promised beats no longer speaks for it."""
        self.silence.adopt(replace(self.silence.limits, stall_after=None, said=None))
        self.said.promise(False)
        self.silence.doubts.unsettle()
        self.changed = True

    def sent_by(self, pid: int | None) -> None:
        """Record the sender of its last beat."""
        self.speaker_pid = pid

    def note_reader(self) -> None:
        """It beats over HTTP itself."""
        if not self.reads_answers:
            self.reads_answers = self.changed = True

    def write_soon(self) -> None:
        """Its row is to be written again soon."""
        self.changed = True

    def unsaved(self, slack: timedelta) -> bool:
        """Whether its row must be written: it lacks a beat, or has more silence than there is (by `slack`).

        A daemon that starts from such a row would call the agent late too early; a row with too little silence is
        harmless.
        """
        return self.changed or self.silence_written > self.silence.lasted + slack

    def written(self) -> None:
        """Its row is up to date."""
        self.changed, self.silence_written = False, self.silence.lasted


def witness(heartbeat: Heartbeat, owner: int) -> Witness | None:
    """What its beats say about the silence of others; None: nothing, as no beat is expected of it now."""
    silence, rhythm = heartbeat.silence, heartbeat.rhythm
    hindered = silence.hindrance.channel_lost or silence.hindrance.unread is not None
    if not heartbeat.said.promised or heartbeat.excused or hindered:
        return None
    if heartbeat.stuck or silence.hindrance.halt is not None:
        return None
    back = None if rhythm.returned is None else timedelta(seconds=max(0.0, silence.reckoned - rhythm.returned))
    return Witness(owner, silence.lasted, silence.after, heartbeat.ages.age, rhythm.pause, back)


def newer_beat(heartbeat: Heartbeat, state: State | None, changed: float | None) -> Beat | None:
    """A beat made from its vendor's own list of sessions, if that is newer than the last report of its hooks.

    No hook reports that a person has answered, or which of two subagents is asked: the list says `waiting` or not.
    `changed`: epoch seconds at which the list's state began.
    """
    said = heartbeat.said
    if changed is None or said.state_at is None or changed <= said.state_at.timestamp():
        return None
    asked, asks = said.state is State.WAITING, state is State.WAITING
    if state not in (State.WORKING, State.WAITING) or asked == asks or "turn" in heartbeat.subagents.asks:
        return None
    return Beat(state=state, promises=False)
