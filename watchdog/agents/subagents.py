"""Who in an agent's program is at work: its sessions, its subagents, what they ask a human and what they leave behind.

Its main thread speaks for all; here is kept what a word of one of them means for the others.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from datetime import timedelta

from watchdog.core.agent import Beat, State

MOST_SESSIONS = 256  # of one process
SWAPPED = 5.0  # seconds in which two hooks may be heard in the other order: their vendors end what takes longer


@dataclass(slots=True)
class Subagents:
    """What goes on in it, by its own words."""

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

    @property
    def going_on(self) -> bool:
        """Whether anything goes on while it rests: a subagent, a background task."""
        return self.goes_on or bool(self.threads)

    @property
    def resting_on(self) -> tuple[str, ...]:
        """What it rests on, or would: its subagents whose turn goes on, and "" for what its main thread left."""
        return tuple(sorted({*self.threads, ""} if self.goes_on else self.threads))

    @property
    def asked_by_main(self) -> bool:
        """Whether it is its main thread, if anybody, that a human is asked for: a subagent may wait elsewhere."""
        return not self.suspects and all(ask.startswith(" ") for ask in self.asks)

    def hear(self, beat: Beat, said: float, mono: float, state: State | None, wait_limit: timedelta) -> Beat:
        """Take one word, said at that instant by one in that state, and return what of it counts for the agent."""
        beat = self._answered(self._of_session(self._in_order(beat, said), mono, wait_limit), state)
        self._of_thread(beat, said)
        return self._at_rest(beat)

    def restore(self, rested_on: Collection[str], state: State | None, *, kept: bool) -> State | None:
        """Take over what it rested on for a daemon before us, and return its state, as that wrote it down.

        `kept`: a `run` keeps what it says while no daemon is there; only then is known what its hooks said since.
        """
        if rested_on and kept:
            self.threads, self.goes_on = set(rested_on) - {""}, "" in rested_on
            if state is State.BLOCKED:
                state = State.IDLE
        self.inherited = state is State.BLOCKED
        return state

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

    def _of_session(self, beat: Beat, mono: float, wait_limit: timedelta) -> Beat:
        """The end of one session is no end of the process while another of its sessions goes on: it only lives.

        One that was not heard of for `wait_limit` ended without a word.
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
        over = state is State.WAITING and not self.asks and not self.suspects
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
