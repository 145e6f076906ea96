"""An agent as far as it speaks: what it has said, and how long the daemon has watched it silent.

One word changes all the parts at once, and a look lets all of them age; each keeps its own rules.
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
    """What it said of itself, each as it was said last."""

    promised: bool = False
    state: State | None = None
    state_at: datetime | None = None  # when it said its state last; a daemon that was restarted does not know
    finished: bool = False  # it said in so many words that its work is done; the end of a session or process is no such
    note: str | None = None  # as it was said; kept and shown only by `hide_secrets`
    tool: str | None = None  # likewise
    progress: float | None = None

    def promise(self, promised: bool) -> None:
        """Its silence means something from now on, or (False) nothing any more."""
        self.promised = promised

    def hear(self, beat: Beat, wall: datetime) -> None:
        """Take one word."""
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
        """What an earlier daemon heard."""
        self.state, self.note, self.tool, self.progress, self.finished = state, note, tool, progress, finished


def _is_done(beat: Beat) -> bool:
    """Whether `done` is said of the work: STOPPING=1, which promises nothing, and a session's end mean the process.

    A program that is told to end says these as well, in the middle of its work.
    """
    return beat.promises and beat.session_ended is None


PAUSES = 8  # after so many words a longer pause before them counts a third as much


@dataclass(slots=True)
class Rhythm:
    """When it spoke, and the pauses between its words, by which others' silence is judged."""

    beats: int = 0
    renewed: int = 0  # those that speak against a stall: all but beats whose progress stands still
    last_heartbeat: datetime | None = None
    spoke: float | None = None  # monotonic instant of the last word
    returned: float | None = None  # when it spoke last after a pause that was longer than its rhythm
    pause: timedelta | None = None  # the longest of its last pauses between two words, of which older ones count less

    def hear(self, mono: float, wall: datetime) -> None:
        """It speaks."""
        self.beats += 1
        self.spoke, self.last_heartbeat = mono, wall

    def renew(self) -> None:
        """Its word speaks against a stall."""
        self.renewed += 1

    def note_pause(self, mono: float, after: timedelta, age: timedelta) -> None:
        """How long it was quiet before a word, where that was to be expected: longer than allowed is no rhythm."""
        if self.spoke is None:
            return
        pause, former = timedelta(seconds=max(0.0, mono - self.spoke)), self.pause or ZERO
        if pause > comes_back(Witness(0, pause, after, age, self.pause)):
            self.returned = mono
        if pause > after:
            return
        self.pause = max(pause, former - (former - pause) / PAUSES)

    def restore(self, beats: int, last_heartbeat: datetime | None) -> None:
        """What an earlier daemon heard."""
        self.beats, self.last_heartbeat = beats, last_heartbeat


@dataclass(slots=True)
class Heartbeat:
    """What silence is reckoned from."""

    silence: Silence
    said: Said = field(default_factory=Said)
    rhythm: Rhythm = field(default_factory=Rhythm)
    subagents: Subagents = field(default_factory=Subagents)
    ages: Ages = field(default_factory=Ages)
    speaker_pid: int | None = None  # who sent its last word through a socket of ours
    hears: bool = False  # it beats over HTTP itself, and so reads our answers
    asked_too_much: str = ""  # to be told
    changed: bool = True  # more than time has, since its row was written
    silence_written: timedelta = ZERO

    @property
    def silent_for(self) -> timedelta:
        """How long it has done nothing of what it promised: silent, or with a progress that stands still."""
        return max(self.silence.lasted, self.ages.progress_age or ZERO) if self.stuck else self.silence.lasted

    @property
    def excused(self) -> bool:
        """Whether its own word says that nothing is to be expected of it now."""
        wait_limit = self.silence.limits.policy.wait_limit
        waits = self.said.state in (State.IDLE, State.WAITING, State.DONE)
        if self.rests_on:
            waits = self.silence.counted < max(self.silence.after, wait_limit)
        blocked = self.said.state is State.BLOCKED and self.ages.state_age < wait_limit
        return waits or blocked or self.ages.lease_left > ZERO or self.ages.tool_left > ZERO

    @property
    def asks_itself(self) -> bool:
        """Whether its main thread waits for a human, which its terminal shows."""
        told = self.said.state is State.WAITING and self.said.state_at is not None
        return told and self.subagents.asked_by_main

    @property
    def rests_on(self) -> bool:
        """Whether it rests until what it began wakes it: a subagent, a background task."""
        return self.said.state is State.IDLE and self.subagents.going_on

    @property
    def stuck(self) -> bool:
        """Whether its progress, which it promised, stands still for too long: its beats renew nothing then."""
        stands = self.ages.progress_age
        return stands is not None and stands >= self.silence.limits.policy.progress_limit and not self.excused

    def copy(self) -> "Heartbeat":
        """One whose ages go on by themselves, to be shown."""
        shown = copy(self)
        shown.silence, shown.ages = self.silence.copy(), copy(self.ages)
        return shown

    def beat(self, beat: Beat, mono: float, wall: datetime, age: timedelta = ZERO) -> Beat:
        """Take one word of the agent, and return what of it was taken. The same content again is a new beat.

        `age`: so long ago it was said.
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
        """What a bare word may change of it besides its silence."""
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
        """At most `wait_limit`: no word switches the watch off for ever (case B6)."""
        most = self.silence.limits.policy.wait_limit
        if asked > most:
            self.asked_too_much = f"asked for {what} of {span(asked)}; {span(most)} is the limit"
        return min(asked, most)

    def watch(self, elapsed: Elapsed) -> None:
        """Reckon that time to everything that ages."""
        quiet = elapsed.since(self.silence.touched)
        self.silence.advance(quiet, self.ages.advance(elapsed, quiet, self.said.state), elapsed.cap)

    def adopt(self, limits: SilenceLimits) -> None:
        """Other limits from now on; what it said itself of how long it may be silent goes on to hold."""
        self.silence.adopt(replace(limits, said=self.silence.limits.said))

    def release(self) -> None:
        """Who promised its beats says nothing of it any more."""
        self.silence.adopt(replace(self.silence.limits, stall_after=None, said=None))
        self.said.promise(False)
        self.silence.doubts.unsettle()
        self.changed = True

    def sent_by(self, pid: int | None) -> None:
        """That process sent its last word."""
        self.speaker_pid = pid

    def reads_answers(self) -> None:
        """It speaks over HTTP itself."""
        if not self.hears:
            self.hears = self.changed = True

    def write_soon(self) -> None:
        """What its row has of it is to be written anew."""
        self.changed = True

    def unsaved(self, slack: timedelta) -> bool:
        """Whether its row has to be written, since it lacks a word, or holds more silence than there is (by `slack`).

        A daemon that goes on from such a row would call it late too early; what a row lacks of silence harms nobody.
        """
        return self.changed or self.silence_written > self.silence.lasted + slack

    def written(self) -> None:
        """Its row has all of it."""
        self.changed, self.silence_written = False, self.silence.lasted


def witness(heartbeat: Heartbeat, owner: int) -> Witness | None:
    """What its words tell of the silence of others; None: nothing, as none is to be expected of it now."""
    silence, rhythm = heartbeat.silence, heartbeat.rhythm
    hindered = silence.hindrance.channel_lost or silence.hindrance.unread is not None
    if not heartbeat.said.promised or heartbeat.excused or hindered:
        return None
    if heartbeat.stuck or silence.hindrance.halt is not None:
        return None
    back = None if rhythm.returned is None else timedelta(seconds=max(0.0, silence.reckoned - rhythm.returned))
    return Witness(owner, silence.lasted, silence.after, heartbeat.ages.age, rhythm.pause, back)


def newer_word(heartbeat: Heartbeat, state: State | None, changed: float | None) -> Beat | None:
    """The word that its vendor's own list of sessions is, where that is newer than what its hooks said last.

    No hook tells that a person has answered, nor which of two subagents is asked: the list says `waiting` or not.
    `changed`: epoch seconds at which the list's state began.
    """
    said = heartbeat.said
    if changed is None or said.state_at is None or changed <= said.state_at.timestamp():
        return None
    asked, asks = said.state is State.WAITING, state is State.WAITING
    if state not in (State.WORKING, State.WAITING) or asked == asks or "turn" in heartbeat.subagents.asks:
        return None
    return Beat(state=state, promises=False)
