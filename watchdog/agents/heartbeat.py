"""An agent as far as it speaks: what it has said, how long the daemon has watched it silent, what was seen meanwhile.

Silence grows only in `watch`, by time that the daemon watched on its monotonic clock, so no clock step, suspend or late
start can make anybody stale.
"""

from collections.abc import Collection
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta

from watchdog.core.agent import Beat, Policy, Registration, State
from watchdog.core.kill import StopAsked
from watchdog.core.observed_activity import ObservedActivity
from watchdog.core.verdict import span
from watchdog.core.witnesses import Witness, comes_back

ZERO = timedelta()
MOST_SESSIONS = 256  # of one process
SWAPPED = 5.0  # seconds in which two hooks may be heard in the other order: their vendors end what takes longer
PAUSES = 8  # after so many words a longer pause before them counts a third as much


@dataclass(slots=True)
class Heartbeat:
    """What silence is reckoned from."""

    reg: Registration
    policy: Policy
    _: KW_ONLY
    # what it said
    beats: int = 0
    renewed: int = 0  # those that speak against a stall: all but beats whose progress stands still
    touched: float | None = None  # monotonic instant of the last word, not yet reckoned by `watch`
    spoke: float | None = None  # the same, for as long as it is the last one
    returned: float | None = None  # when it spoke last after a pause that was longer than its rhythm
    pause: timedelta | None = None  # the longest of its last pauses between two words, of which older ones count less
    last_heartbeat: datetime | None = None
    promised: bool = False
    after_said: timedelta | None = None
    state: State | None = None
    finished: bool = False  # it said in so many words that its work is done; the end of a session or process is no such
    note: str | None = None  # as it was said; kept and shown only by `hide_secrets`
    speaker_pid: int | None = None  # who sent its last word through a socket of ours
    tool: str | None = None  # likewise
    progress: float | None = None
    sessions: dict[str, float] = field(default_factory=dict)  # not ended, of many in its process: when each spoke last
    asks: set[str] = field(default_factory=set)  # what it waits for a human to answer, as far as that is told apart
    calling: set[str] = field(default_factory=set)  # its subagents in a tool call
    suspects: set[str] = field(default_factory=set)  # those of them that a human may be asked for
    threads: set[str] = field(default_factory=set)  # subagents whose turn has begun and not ended
    unbegun: dict[str, float] = field(default_factory=dict)  # subagents whose turn's end came first, and when that was
    goes_on: bool = False  # what it began goes on while it rests
    inherited: bool = False  # `blocked` as a daemon before us wrote it down, which perhaps stands for such a rest
    spoken: dict[str, float] = field(default_factory=dict)  # when its subagents, and its main thread (""), spoke last
    cleared: float = float("-inf")  # when its main thread said last that nothing goes on
    hears: bool = False  # it beats over HTTP itself, and so reads our answers
    asked: StopAsked | None = None
    asked_too_much: str = ""  # to be told
    state_at: datetime | None = None  # when it said its state last; a daemon that was restarted does not know
    # as `touched`, of what ages by itself: beats that come meanwhile do not stop these clocks
    state_since: float | None = None
    progress_since: float | None = None
    lease_since: float | None = None
    tool_since: float | None = None
    # what was watched
    reckoned: float = float("-inf")  # monotonic instant up to which that was reckoned
    age: timedelta = ZERO
    silence: timedelta = ZERO
    forgiven: timedelta = ZERO  # of it: it may have spoken and we could not hear it
    state_age: timedelta = ZERO
    progress_age: timedelta | None = None
    lease_left: timedelta = ZERO
    tool_left: timedelta = ZERO
    unread: timedelta | None = None
    halt: str | None = None  # somebody stopped it on purpose, in words; None: it runs, or was stopped by nobody known
    halted: timedelta = ZERO  # how long that was so in this silence
    channel_lost: bool = False
    sights: ObservedActivity = field(default_factory=ObservedActivity)
    rhythm: timedelta = ZERO  # two intervals of the sweep: what is seen is believed at least so long
    # what was made of it, and is over with its next word
    settled_until: timedelta = ZERO  # the age up to which time alone cannot change that it is healthy
    changed: bool = True  # more than time has, since its row was written
    late_looks: int = 0
    looked: float | None = None  # monotonic instant of the last counted late look

    @property
    def after(self) -> timedelta:
        """The silence that is too long: its own word, else its registration, else the policy; never under two beats."""
        after = self.after_said or self.reg.stall_after or self.policy.after
        if self.reg.interval is not None:
            after = max(after, 2 * self.reg.interval)
        return after

    @property
    def counted(self) -> timedelta:
        """The silence that is held against it."""
        return self.silence - self.forgiven

    @property
    def silent_for(self) -> timedelta:
        """How long it has done nothing of what it promised: silent, or with a progress that stands still."""
        return max(self.silence, self.progress_age or ZERO) if self.stuck else self.silence

    @property
    def activity(self) -> str | None:
        """The freshest thing seen from outside; believed for half of the silence that is too long."""
        return self.sights.best(max(self.after / 2, self.rhythm))

    @property
    def excused(self) -> bool:
        """Whether its own word says that nothing is to be expected of it now."""
        waits = self.state in (State.IDLE, State.WAITING, State.DONE)
        if self.rests_on:
            waits = self.counted < max(self.after, self.policy.wait_limit)
        blocked = self.state is State.BLOCKED and self.state_age < self.policy.wait_limit
        return waits or blocked or self.lease_left > ZERO or self.tool_left > ZERO

    @property
    def asks_itself(self) -> bool:
        """Whether its main thread waits for a human, which its terminal shows: a subagent may wait elsewhere."""
        told = self.state is State.WAITING and self.state_at is not None
        return told and not self.suspects and all(ask.startswith(" ") for ask in self.asks)

    @property
    def rests_on(self) -> bool:
        """Whether it rests until what it began wakes it: a subagent, a background task."""
        return self.state is State.IDLE and (self.goes_on or bool(self.threads))

    @property
    def resting_on(self) -> tuple[str, ...]:
        """What it rests on, or would: its subagents whose turn goes on, and "" for what its main thread left."""
        return tuple(sorted({*self.threads, ""} if self.goes_on else self.threads))

    @property
    def stuck(self) -> bool:
        """Whether its progress, which it promised, stands still for too long: its beats renew nothing then."""
        return self.progress_age is not None and self.progress_age >= self.policy.progress_limit and not self.excused

    def beat(self, beat: Beat, mono: float, wall: datetime, said: float | None = None) -> Beat:
        """Take one word of the agent, and return what of it was taken. The same content again is a new beat.

        `said`: the monotonic instant at which it was, if not now.
        """
        former = (self.promised, self.state, self.note, self.goes_on, len(self.threads))
        self.promised = self.promised or beat.promises
        said = mono if said is None else said
        beat = self._answered(self._of_session(self._in_order(beat, said), mono))
        self._of_thread(beat, said)
        beat = self._at_rest(beat)
        self.beats += 1
        self._note_pause(mono)
        self.touched = self.spoke = mono
        self.last_heartbeat = wall
        self.silence = self.forgiven = ZERO
        self.unread = self.halt = None
        self.halted = ZERO
        self.channel_lost = False
        if beat.promises or beat.state is not None:
            state, self.state_at = beat.state or State.WORKING, wall
            self.finished = state is State.DONE and (self.finished or _is_done(beat))
            if state is not self.state:
                self.state, self.state_age, self.state_since = state, ZERO, mono
                if self.progress_age is not None:
                    self.progress_age, self.progress_since = ZERO, mono  # it stood still while there was nothing to do
        if beat.after is not None:
            self.after_said = self._capped(beat.after, "a limit of silence")
        if beat.silent_for is not None:
            self.lease_left, self.lease_since = self._capped(beat.silent_for, "a lease"), mono
        if beat.tool is not None:
            self.tool = beat.tool or None
            self.tool_left = self._capped(beat.tool_limit or ZERO, "a tool's limit") if self.tool else ZERO
            self.tool_since = mono
        if beat.progress is not None:
            if beat.progress != self.progress:
                self.progress_age, self.progress_since = ZERO, mono
            self.progress = beat.progress
        if beat.note is not None:
            self.note = beat.note
        if beat.transcript is not None:
            self.reg = replace(self.reg, transcript=beat.transcript)
        if beat.agent_type is not None and not self.reg.agent_type:
            self.reg = replace(self.reg, agent_type=beat.agent_type)
        if not self.stuck:
            self.renewed += 1
            self.late_looks = 0
        if (
            self.beats == 1
            or not beat.bare
            or (self.promised, self.state, self.note, self.goes_on, len(self.threads)) != former
        ):
            self.settled_until, self.changed = ZERO, True
        return beat

    def _in_order(self, beat: Beat, said: float) -> Beat:
        """What is left of a word that comes after one which was said later: nothing of what it does, or did.

        `run` keeps what hooks say while no daemon is there. As soon as one is there they say it to that one, and may be
        faster. What its main thread says of all that goes on is said of its subagents, too.
        """
        who = beat.thread or ""
        latest = max(self.spoken.get(who, said), self.cleared if beat.goes_on is not None else said)
        if said < latest:
            beat = replace(beat, state=None, tool=None, tool_limit=None, note=None)
            return replace(beat, asks=None, answered=None, goes_on=None, promises=False)
        if len(self.spoken) > MOST_SESSIONS:
            del self.spoken[min(self.spoken, key=lambda one: self.spoken[one])]
        self.spoken[who] = said
        return beat

    def _note_pause(self, mono: float) -> None:
        """How long it was quiet before this word, where that was to be expected: longer than allowed is no rhythm."""
        if self.spoke is None or self.excused:
            return
        pause, former = timedelta(seconds=max(0.0, mono - self.spoke)), self.pause or ZERO
        if pause > comes_back(Witness(0, pause, self.after, self.age, self.pause)):
            self.returned = mono
        if pause > self.after:
            return
        self.pause = max(pause, former - (former - pause) / PAUSES)

    def witness(self, owner: int) -> Witness | None:
        """What its words tell of the silence of others; None: nothing, as none is to be expected of it now."""
        if not self.promised or self.excused or self.channel_lost or self.unread is not None:
            return None
        if self.stuck or self.halt is not None:
            return None
        back = None if self.returned is None else timedelta(seconds=max(0.0, self.reckoned - self.returned))
        return Witness(owner, self.silence, self.after, self.age, self.pause, back)

    def _answered(self, beat: Beat) -> Beat:
        """Keep what a human is asked. With the last answer it works again, whichever thread told of that.

        What a notification alone told of, or what was answered with no, is over with the main thread's next word.
        """
        if (beat.promises or beat.state is not None) and beat.state is not State.WAITING:
            self.asks.clear()
            self.suspects.clear()
        if beat.asks is not None and len(self.asks) < MOST_SESSIONS:
            self.asks.add(beat.asks)
        elif beat.state is State.WAITING and not self.asks:
            self.suspects |= self.calling
        if beat.answered in self.asks:
            self.asks.discard(beat.answered)
        elif self.asks or beat.state is not None or beat.thread is None or beat.tool is None:
            return beat
        if beat.thread is not None:
            self.suspects.discard(beat.thread)
        over = self.state is State.WAITING and not self.asks and not self.suspects
        return replace(beat, state=State.WORKING) if over else beat

    def _of_thread(self, beat: Beat, said: float) -> None:
        """Keep which subagents are at work, and whether the main thread left anything that goes on."""
        if beat.thread is None:
            if beat.goes_on is False:
                self.threads.clear()
                self.cleared = max(self.cleared, said)
            if beat.goes_on is not None or beat.state is State.WORKING:
                self.goes_on = bool(beat.goes_on)  # an agent that works will say again what it leaves running
            return
        if beat.tool and len(self.calling) < MOST_SESSIONS:
            self.calling.add(beat.thread)
        elif beat.tool is not None or beat.goes_on is not None:
            self.calling.discard(beat.thread)
        over = said - self.unbegun.get(beat.thread, float("-inf")) <= SWAPPED
        if beat.goes_on and over:  # two hooks are two processes: the one of its end was faster
            del self.unbegun[beat.thread]
        elif beat.goes_on is False and beat.thread in self.threads:
            self.threads.remove(beat.thread)
        elif beat.goes_on is False:
            self.unbegun = {one: at for one, at in self.unbegun.items() if said - at <= SWAPPED}
            if len(self.unbegun) < MOST_SESSIONS:
                self.unbegun[beat.thread] = said
        elif (beat.goes_on or (self.inherited and not over)) and len(self.threads) < MOST_SESSIONS:
            self.threads.add(beat.thread)  # also one that shows after a restart that it is at work

    def goes_on_with(self, rested_on: Collection[str]) -> None:
        """Take over what it rested on for a daemon before us: what its hooks said since, only a `run` has heard."""
        if rested_on and self.reg.source == "run":
            self.threads, self.goes_on = set(rested_on) - {""}, "" in rested_on
            if self.state is State.BLOCKED:
                self.state = State.IDLE
        self.inherited = self.state is State.BLOCKED

    def _at_rest(self, beat: Beat) -> Beat:
        """What it rested on when a daemon before us wrote it down is over with the end of a subagent, if none is known.

        That there was another one which hangs is possible; then it is missed, and nobody is ended at its prompt.
        """
        if beat.promises or beat.state is not None:
            self.inherited = False
        elif self.inherited and beat.thread is not None and beat.goes_on is False and not self.threads:
            self.inherited = False
            return replace(beat, state=State.IDLE)
        return beat

    def newer_word(self, state: State | None, changed: float | None) -> Beat | None:
        """The word that its vendor's own list of sessions is, where that is newer than what its hooks said last.

        No hook tells that a person has answered, nor which of two subagents is asked: the list says `waiting` or not.
        `changed`: epoch seconds at which the list's state began.
        """
        if changed is None or self.state_at is None or changed <= self.state_at.timestamp():
            return None
        asked, asks = self.state is State.WAITING, state is State.WAITING
        if state not in (State.WORKING, State.WAITING) or asked == asks or "turn" in self.asks:
            return None
        return Beat(state=state, promises=False)

    def _of_session(self, beat: Beat, mono: float) -> Beat:
        """The end of one session is no end of the process while another of its sessions goes on: it only lives.

        One that was not heard of for `wait_limit` ended without a word.
        """
        if beat.session is not None and (beat.session in self.sessions or len(self.sessions) < MOST_SESSIONS):
            self.sessions[beat.session] = mono
        if beat.session_ended is None:
            return beat
        self.sessions.pop(beat.session_ended, None)
        limit = self.policy.wait_limit.total_seconds()
        if beat.state is not State.DONE or all(mono - spoke >= limit for spoke in self.sessions.values()):
            return beat
        return replace(beat, state=None, tool=None, promises=False)

    def _capped(self, asked: timedelta, what: str) -> timedelta:
        """At most `wait_limit`: no word switches the watch off for ever (case B6)."""
        if asked > self.policy.wait_limit:
            self.asked_too_much = f"asked for {what} of {span(asked)}; {span(self.policy.wait_limit)} is the limit"
        return min(asked, self.policy.wait_limit)

    def watch(self, last: float, now: float, cap: float) -> None:
        """Reckon the time from `last` to `now` (monotonic seconds), at most `cap`, to everything that ages.

        A lease and a declared tool are used up first: silence begins when they end. Of a tool's limit nothing is used
        up while a human is asked: it may not have begun.
        """

        whole = timedelta(seconds=max(0.0, min(now - last, cap)))

        def passed(since: float | None) -> timedelta:
            return whole if since is None or since <= last else timedelta(seconds=max(0.0, min(now - since, cap)))

        quiet, excused = passed(self.touched), ZERO
        self.silence += quiet
        if self.lease_left or self.tool_left:
            asked = self.state is State.WAITING
            lease, tool = passed(self.lease_since), ZERO if asked else passed(self.tool_since)
            excused = max(min(self.lease_left, lease), min(self.tool_left, tool))
            self.lease_left, self.tool_left = self.lease_left - lease, self.tool_left - tool
            in_tool = ZERO if asked else self.tool_left + quiet
            self.silence -= min(quiet, max(ZERO, self.lease_left + quiet, in_tool))
            self.lease_left, self.tool_left = max(ZERO, self.lease_left), max(ZERO, self.tool_left)
        self.age += whole
        self.state_age += passed(self.state_since)
        if self.progress_age is not None and self.state in (None, State.WORKING):
            stood = passed(self.progress_since)
            self.progress_age += stood - min(stood, excused)
        if self.unread is not None:
            self.unread += quiet
        if self.halt is not None:
            self.halted += quiet
        self.sights.watch(whole)
        self.rhythm = timedelta(seconds=cap)
        self.touched = self.state_since = self.progress_since = self.lease_since = self.tool_since = None

    def forgive(self) -> None:
        """It may have spoken and we could not hear it: all of `after` is waited once more, once in one silence.

        Again and again, as by a daemon that is restarted each minute or comes late to each look, makes that no longer.
        """
        former, self.forgiven = self.forgiven, max(self.forgiven, min(self.silence, self.after))
        self.settled_until = ZERO
        if self.forgiven > former:
            self.late_looks, self.looked = 0, None

    def lose_channel(self) -> None:
        """What it says cannot reach us: its silence is the channel's until its next word, or until that is found."""
        self.channel_lost, self.settled_until = True, ZERO

    def find_channel(self) -> None:
        """What it says can reach us again: all of `after` is waited once more, as what it said meanwhile is lost."""
        if self.channel_lost:
            self.channel_lost = False
            self.forgive()

    def read_again(self) -> None:
        """Its file can be read; the disk that could not be read could perhaps not be written, either.

        All of `after` is waited once more, once in one silence and where that lasted as long; else only that time does
        not count. A file that is locked now and then keeps no stalled one alive.
        """
        if self.unread is not None:
            former, spell, self.unread = self.forgiven, self.unread, None
            self.forgive()
            fresh = not former or spell >= self.after
            self.forgiven = self.silence if fresh else min(self.silence, former + spell)

    def stopped(self, halt: str | None) -> None:
        """Somebody stopped it on purpose (in words), or (None) nobody does any more.

        Then all of `after` is waited once more. Who is stopped again and again, for longer than `wait_limit` in one
        silence, is judged by that silence.
        """
        if halt is None and self.halt is not None and self.halted < self.policy.wait_limit:
            self.forgiven = self.silence
            self.late_looks, self.looked = 0, None
        if halt != self.halt:
            self.settled_until = ZERO
        self.halt = halt

    def unread_now(self) -> None:
        """Its only beat, a file, cannot be read: how long that lasts is watched until its next word."""
        self.unread, self.settled_until = ZERO, ZERO


def _is_done(beat: Beat) -> bool:
    """Whether `done` is said of the work: STOPPING=1, which promises nothing, and a session's end mean the process.

    A program that is told to end says these as well, in the middle of its work.
    """
    return beat.promises and beat.session_ended is None
