"""The activity inside an agent's program: its sessions, its subagents, open questions to a human, background work.

Its main thread speaks for all of them; this module keeps what a beat of one means for the others.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta

from watchdog.core.agent import Beat, State

MOST_SESSIONS = 256  # of one process
SWAPPED = 5.0  # seconds by which two hooks may arrive swapped: vendors kill hooks that take longer


@dataclass(slots=True)
class Subagents:
    """Activity inside the program, by its own reports."""

    # open sessions if its process has several: when each was last heard of
    sessions: dict[str, float] = field(default_factory=dict)
    asks: set[str] = field(default_factory=set)  # open questions to a human, as far as they can be told apart
    calling: set[str] = field(default_factory=set)  # subagents in a tool call
    suspects: set[str] = field(default_factory=set)  # those of them that may be waiting for a human
    threads: set[str] = field(default_factory=set)  # subagents whose turn has begun and not ended
    # subagents whose turn's end was reported before its beginning, and when
    unbegun: dict[str, float] = field(default_factory=dict)
    goes_on: bool = False  # work that it began continues while it rests
    inherited: bool = False  # `blocked` as stored by an earlier daemon, which perhaps means such a rest
    # when its subagents, and its main thread (""), were last heard of
    spoken: dict[str, float] = field(default_factory=dict)
    cleared: float = float("-inf")  # when its main thread last reported that nothing continues

    @property
    def going_on(self) -> bool:
        """Whether anything continues while it rests: a subagent, a background task."""
        return self.goes_on or bool(self.threads)

    @property
    def resting_on(self) -> tuple[str, ...]:
        """What it rests on, or would: subagents whose turn is open, and "" for background work of its main thread."""
        return tuple(sorted({*self.threads, ""} if self.goes_on else self.threads))

    @property
    def asked_by_main(self) -> bool:
        """Whether the main thread, if any, asks the human: a subagent may wait elsewhere."""
        return not self.suspects and all(ask.startswith(" ") for ask in self.asks)

    def hear(self, beat: Beat, said: float, mono: float, state: State | None, wait_limit: timedelta) -> Beat:
        """Take a beat, sent at `said` by an agent in `state`, and return the part that counts for the agent."""
        beat = self._answered(self._of_session(self._in_order(beat, said), mono, wait_limit), state)
        self._of_thread(beat, said)
        return self._at_rest(beat)

    def restore(self, rested_on: Collection[str], state: State | None, *, kept: bool) -> State | None:
        """Restore what it rested on under an earlier daemon, and return its state as that daemon stored it.

        `kept`: a `run` buffers its reports while no daemon is there; only then are later reports of its hooks known.
        """
        if rested_on and kept:
            self.threads, self.goes_on = set(rested_on) - {""}, "" in rested_on
            if state is State.BLOCKED:
                state = State.IDLE
        self.inherited = state is State.BLOCKED
        return state

    def _in_order(self, beat: Beat, said: float) -> Beat:
        """The rest of a beat that arrives after one that was sent later: nothing about present or past activity.

        `run` buffers the reports of hooks while no daemon is there. As soon as one is, hooks reach it directly and may
        overtake the buffer. A report of the main thread on everything that continues also covers its subagents.
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

    def _of_session(self, beat: Beat, mono: float, wait_limit: timedelta) -> Beat:
        """The end of one session is not the end of a process that has other sessions: then it is only a sign of life.

        A session that was not heard of for `wait_limit` counts as ended.
        """
        if beat.session is not None and (beat.session in self.sessions or len(self.sessions) < MOST_SESSIONS):
            self.sessions[beat.session] = mono
        if beat.session_ended is None:
            return beat
        self.sessions.pop(beat.session_ended, None)
        limit = wait_limit.total_seconds()
        if beat.state is not State.DONE or all(mono - spoke >= limit for spoke in self.sessions.values()):
            return beat
        return replace(beat, state=None, tool=None, promises=False)

    def _answered(self, beat: Beat, state: State | None) -> Beat:
        """Track the questions to a human. With the last answer the agent works again, whichever thread reported it.

        A question known only from a notification, or one answered with no, is over at the main thread's next beat.
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
        over = state is State.WAITING and not self.asks and not self.suspects
        return replace(beat, state=State.WORKING) if over else beat

    def _of_thread(self, beat: Beat, said: float) -> None:
        """Track which subagents are at work, and whether the main thread left anything running."""
        if beat.thread is None:
            if beat.goes_on is False:
                self.threads.clear()
                self.cleared = max(self.cleared, said)
            if beat.goes_on is not None or beat.state is State.WORKING:
                self.goes_on = bool(beat.goes_on)  # an agent that works will report again what it leaves running
            return
        if beat.tool and len(self.calling) < MOST_SESSIONS:
            self.calling.add(beat.thread)
        elif beat.tool is not None or beat.goes_on is not None:
            self.calling.discard(beat.thread)
        over = said - self.unbegun.get(beat.thread, float("-inf")) <= SWAPPED
        if beat.goes_on and over:  # two hooks are two processes: the one for its end was faster
            del self.unbegun[beat.thread]
        elif beat.goes_on is False and beat.thread in self.threads:
            self.threads.remove(beat.thread)
        elif beat.goes_on is False:
            self.unbegun = {one: at for one, at in self.unbegun.items() if said - at <= SWAPPED}
            if len(self.unbegun) < MOST_SESSIONS:
                self.unbegun[beat.thread] = said
        elif (beat.goes_on or (self.inherited and not over)) and len(self.threads) < MOST_SESSIONS:
            self.threads.add(beat.thread)  # also one that turns out to be at work after a restart

    def _at_rest(self, beat: Beat) -> Beat:
        """If no subagent is known, a subagent's end also ends a rest that an earlier daemon stored.

        Another subagent may hang; then it is missed, and no agent is killed at its prompt.
        """
        if beat.promises or beat.state is not None:
            self.inherited = False
        elif self.inherited and beat.thread is not None and beat.goes_on is False and not self.threads:
            self.inherited = False
            return replace(beat, state=State.IDLE)
        return beat
