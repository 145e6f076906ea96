"""Permission prompts that only a pane shows: of agents that beat, and whose beats do not mention a human.

Read by the owners' helpers beside the sweep, rarely (each quarter of `prompt_limit`) and few at a time, so that the
cost does not depend on the number of beating agents; those whose silence, or whose start, may soon decide are checked
each time. Only a screen with unchanged text from check to check is reported to people. A prompt is no activity and
renews nothing; while it stands, an agent that is silent, or has not beaten yet, waits for a person (`core.verdict`).

An agent that reported itself that it waits is checked too: Codex and Gemini CLI have no hook for a person's approval,
after which the tool runs, and may hang. Two checks in a row that show it at work count as a beat of the agent.

For an agent that has not beaten yet, it is also checked whether it received its first prompt at all.
"""

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any, Protocol

from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.core.agent import Beat, State, Status
from watchdog.core.observed_activity import Sight
from watchdog.core.sd_notify import printable
from watchdog.core.session_states import QUIET
from watchdog.core.vendors import KNOWN
from watchdog.core.verdict import span
from watchdog.errors import OwnerCallFailed

AT_ONCE = 4  # agents that one sweep checks, and as many more where it may soon decide
LOOKS = 4  # checks in one `prompt_limit`
# Their hooks do not report that a person has approved.
UNTOLD = tuple(name for name, vendor in KNOWN.items() if vendor.hides_answers)
NOTE = "its pane shows that it was answered"
TOLD = "a prompt that was reported before the daemon was restarted"
SUBJECT = "prompt"  # key of its query to the helper
FIRST = "first prompt"  # the same for the first prompt

Screen = tuple[str, str]


class HumanAttention(Protocol):
    """Reports each change once (`sweep.announcer`)."""

    def needs_human(self, agent: Agent, text: str) -> None:
        """It has waited for a person for too long."""

    def answered(self, agent: Agent, text: str) -> None:
        """It no longer waits for a person."""


class PermissionPrompts:
    """Checks panes; results are in `sights.prompt`, and are reported when older than the limit."""

    def __init__(self, fleet: Fleet, inquiries: BackgroundQueries, clock: Clock, announcer: HumanAttention) -> None:
        self._fleet = fleet
        self._inquiries = inquiries
        self._clock = clock
        self._announcer = announcer
        self._looked: dict[str, float] = {}  # by agent: monotonic instant of the last query
        self._starting: dict[str, float] = {}  # the same for those that have not beaten yet
        self._shown: dict[str, Screen] = {}  # pane and hash of its screen at the last check that showed a prompt
        self._worked: dict[str, int] = {}  # beat count of each agent that reported waiting and was seen at work

    def look(self) -> None:
        """Query the least recently checked agents, if that is long enough ago."""
        self._look_at_starts()
        now, sitting = self._clock.mono(), {agent.agent_id: agent for agent in self._sitting()}
        for agent_id in self._looked.keys() - sitting:
            self._inquiries.forget((agent_id, SUBJECT))
            del self._looked[agent_id]
            self._shown.pop(agent_id, None)
            self._worked.pop(agent_id, None)
        soon, due = [], []
        for agent_id, agent in sitting.items():
            then = self._looked.get(agent_id, float("-inf"))
            if _decides_soon(agent):
                soon.append((then, agent))
            elif now - then >= agent.policy.prompt_limit.total_seconds() / LOOKS:
                due.append((then, agent))
        # Some of each group: silent agents may stay for days where no ladder kills them.
        first = [sorted(some, key=lambda pair: pair[0])[:AT_ONCE] for some in (soon, due)]
        for _, agent in chain(*first):
            self._looked[agent.agent_id] = now
            self._ask(agent)

    def _look_at_starts(self) -> None:
        """Check whether agents that are slow to start were prompted; drop results about agents that have beaten."""
        now, starting = self._clock.mono(), {agent.agent_id: agent for agent in self._fleet if not agent.started}
        for agent_id in self._starting.keys() - starting:
            self._inquiries.forget((agent_id, FIRST))
            del self._starting[agent_id]
            if (agent := self._fleet.get(agent_id)) is not None:
                agent.sights.may_be_unprompted(None)
        for agent_id, agent in starting.items():
            pause = 0.0 if agent.sights.unprompted is None else agent.policy.prompt_limit.total_seconds() / LOOKS
            main, then = agent.identity, self._starting.get(agent_id, float("-inf"))
            if main is None or agent.ending.request_id is not None or not _decides_soon(agent) or now - then < pause:
                continue
            self._starting[agent_id] = now
            args = {"pid": main.pid, "start_ticks": main.start_ticks}
            took = partial(self._take_first, agent)
            self._inquiries.ask((agent_id, FIRST), agent, "first_prompt", args, took, lambda error: None)

    def _take_first(self, agent: Agent, answer: Any) -> None:
        """Store an answer; for an agent that has beaten meanwhile, nothing is stored."""
        if not agent.started:
            agent.sights.may_be_unprompted(printable(str(answer["waits"])[:120]) or None)

    def _sitting(self) -> Iterator[Agent]:
        """Agents in a tmux pane whose beats leave open whether they wait. Results about others are dropped."""
        for agent in self._fleet:
            pane, prompt = agent.reg.pane, agent.sights.prompt
            if (
                (pane is None and prompt is None)
                or agent.status is not Status.RUNNING
                or agent.ending.request_id is not None
            ):
                continue  # most have no pane; one that is being killed is left alone until that is withdrawn
            states = (None, State.WORKING) if prompt is None else (None, State.WORKING, State.WAITING)
            open_yet = agent.heartbeat.said.state in states or (
                agent.reg.agent_type in UNTOLD and agent.heartbeat.asks_itself
            )
            if pane is not None and pane.get("terminal") == "tmux" and open_yet:
                yield agent
            elif prompt is not None:
                state = agent.heartbeat.said.state
                self._over(agent, f"it says {state}" if state not in states else "it sits in no tmux pane")

    def _ask(self, agent: Agent) -> None:
        def failed(error: OwnerCallFailed) -> None:
            if error.reason == "no_pane" and agent.sights.prompt is not None:
                self._over(agent, str(error))

        main = agent.identity
        if main is not None:
            args = {"pid": main.pid, "start_ticks": main.start_ticks}
            key = agent.agent_id, SUBJECT
            self._inquiries.ask(key, agent, "pane_shows", args, lambda answer: self._take(agent, answer), failed)

    def _take(self, agent: Agent, answer: Any) -> None:
        """Apply one check. A screen with different text shows a different prompt, if any."""
        if self._fleet.get(agent.agent_id) is not agent or agent.ending.request_id is not None:
            return
        screen, asks = (str(answer["pane"]), str(answer["shows"])), printable(str(answer["asks"])[:80])
        prompt = agent.sights.prompt
        if agent.heartbeat.said.state is State.WAITING and prompt is None:
            self._take_answered(agent, works=answer.get("works") is True)
            return
        before = self._shown.get(agent.agent_id, screen)  # missing after a restart of the daemon
        if prompt is not None and (not asks or screen != before):
            self._over(agent, "its pane no longer asks, or asks something else")
            prompt = None
        if not asks:
            return
        self._shown[agent.agent_id] = screen
        if prompt is None:
            agent.sights.asks(Sight(asks))
            return
        prompt.say(asks)
        if prompt.age >= agent.policy.prompt_limit:
            limit = span(agent.policy.prompt_limit)
            seen = f"its pane {screen[0]} has shown {asks} for {span(prompt.age)} (limit {limit})"
            self._announcer.needs_human(agent, f"{seen}; it does not report that itself")

    def _take_answered(self, agent: Agent, *, works: bool) -> None:
        """Apply a check of an agent that reported waiting. The first may have come before its dialog was drawn."""
        if not works or not agent.heartbeat.asks_itself or agent.heartbeat.ages.state_age < QUIET:
            self._worked.pop(agent.agent_id, None)
        elif self._worked.get(agent.agent_id) != agent.heartbeat.rhythm.beats:
            self._worked[agent.agent_id] = agent.heartbeat.rhythm.beats
        else:
            now = self._clock.now()
            agent.beat(Beat(state=State.WORKING, note=NOTE, promises=False), now.mono, now.wall)

    def _over(self, agent: Agent, why: str) -> None:
        agent.sights.asks(None)
        self._shown.pop(agent.agent_id, None)
        if not (
            agent.heartbeat.said.state is State.WAITING and agent.heartbeat.ages.state_age >= agent.policy.prompt_limit
        ):
            self._announcer.answered(agent, why)


def _decides_soon(agent: Agent) -> bool:
    """Whether its silence, or the lack of a first beat, may soon decide."""
    return agent.in_question if agent.started else 2 * agent.heartbeat.ages.age >= agent.policy.start_limit
