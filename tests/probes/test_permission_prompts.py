"""Which agents are checked for prompts that only a pane shows, how often, and what is reported."""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from datetime import timedelta
from typing import cast

import pytest

from tests.clocks import Later
from watchdog.agents import judging
from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.core.agent import Beat, Policy, Registration, State, Status, Verdict
from watchdog.core.observed_activity import Sight
from watchdog.core.process import Presence
from watchdog.core.verdict import judge
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.probes.permission_prompts import AT_ONCE, NOTE, TOLD, PermissionPrompts
from watchdog.processes.identity import read_identity
from watchdog.sweep.announcer import Announcer

LIMIT = timedelta(minutes=4)  # one check a minute
PROMPT = ("screen one", "a prompt")


class Told:
    """Replaces log and history."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.texts: list[str] = []

    def record(self, event: str, _agent: Agent, text: str, **_: object) -> None:
        if event != "agent.waiting":
            self.events.append(event.removeprefix("agent."))
            self.texts.append(text)


class Room(HelperPool):
    """Agents in panes, with a fake helper of their owners."""

    def __init__(self, agents: int = 1) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.asked_about: list[int] = []  # by the number of the agent
        self.works = False
        self.first = ""  # why it waits for its first prompt
        self.shows: tuple[str, str] | OwnerCallFailed = PROMPT
        self.clock, self.fleet, self.told = Later(), Fleet(), Told()
        self.inquiries = BackgroundQueries(self, self.clock)
        self.tidings = Announcer(cast("EventRecorder", self.told))
        self.prompts = PermissionPrompts(self.fleet, self.inquiries, self.clock, self.tidings)
        me = read_identity(os.getpid(), "host")
        assert me is not None
        self.ticks = me.start_ticks
        for number in range(agents):
            one = replace(me, start_ticks=me.start_ticks + number)
            pane: dict[str, object] = {"terminal": "tmux", "pane": f"%{number}"}
            reg = Registration(f"{number:032}", f"a{number}", os.geteuid(), "host", "boot", identity=one, pane=pane)
            self.fleet.add(agent := Agent(reg, Policy(prompt_limit=LIMIT), Status.RUNNING))
            agent.heartbeat.said.promise(True)
            agent.heartbeat.rhythm.beats = 1

    @property
    def agent(self) -> Agent:
        return next(iter(self.fleet))

    async def call(self, uid: int, call: str, args: object, deadline: float = 0) -> object:
        assert isinstance(args, dict)
        if call == "first_prompt":
            return {"waits": self.first}
        assert call == "pane_shows"
        self.asked.append(uid)
        self.asked_about.append(args["start_ticks"] - self.ticks)
        if isinstance(self.shows, OwnerCallFailed):
            raise self.shows
        return {"pane": "%0", "size": "80x24", "shows": self.shows[0], "asks": self.shows[1], "works": self.works}

    async def minutes(self, count: int) -> None:
        """One sweep every ten seconds; all of them beat."""
        for _ in range(6 * count):
            await self.sweep()

    async def sweep(self) -> None:
        """One of these sweeps."""
        self.clock.at += 10
        self.prompts.look()
        for agent in self.fleet:
            agent.sights.watch(timedelta(seconds=10))
            judgement = judge(judging.observe(agent, Presence.ALIVE, 0, 10), agent.policy)
            self.tidings.judged(agent, judgement)
            judging.remember(agent, judgement, 0, 10)
        for _ in range(5):
            await asyncio.sleep(0)


def story(told: Callable[[Room], Coroutine[None, None, None]], agents: int = 1) -> None:
    async def run() -> None:
        room = Room(agents)
        await told(room)
        await room.inquiries.close()

    asyncio.run(run())


def test_a_prompt_and_its_end_are_reported_once_after_the_limit() -> None:
    """With its age; not before the limit, and not again at each check."""

    async def told(room: Room) -> None:
        await room.minutes(4)
        assert room.told.events == []
        await room.minutes(20)
        assert room.told.events == ["needs_human"]
        assert "its pane %0 has shown a prompt for 4m (limit 4m)" in room.told.texts[0]
        room.shows = "screen two", ""
        await room.minutes(2)
        assert room.told.events == ["needs_human", "human_answered"]
        assert room.agent.sights.prompt is None

    story(told)


def test_a_pane_with_different_text_shows_another_prompt() -> None:
    """An agent at work keeps writing; a second prompt starts again."""

    async def told(room: Room) -> None:
        for number in range(20):
            room.shows = f"screen {number}", "a prompt"
            await room.minutes(1)
        assert room.told.events == []
        await room.minutes(6)
        room.shows = "another", "a prompt"
        await room.minutes(2)
        assert room.told.events == ["needs_human", "human_answered"]
        await room.minutes(6)
        assert room.told.events[2:] == ["needs_human"]

    story(told)


@pytest.mark.parametrize(
    ("reason", "over"),
    [("no_pane", ["needs_human", "human_answered"]), ("tmux", ["needs_human"]), ("left", ["needs_human"])],
)
def test_a_failed_check_changes_nothing(reason: str, over: list[str]) -> None:
    """Only an agent without a pane shows nothing any more."""

    async def told(room: Room) -> None:
        await room.minutes(6)
        room.shows = OwnerCallFailed(reason, "so it is")
        await room.minutes(6)
        assert room.told.events == over

    story(told)


def test_an_invalid_answer_is_tolerated() -> None:
    """The helper is a process of its owner."""

    async def told(room: Room) -> None:
        room.shows = cast("tuple[str, str]", ("x",))
        await room.minutes(6)
        assert (room.told.events, room.agent.sights.prompt) == ([], None)

    story(told)


@pytest.mark.parametrize("state", [State.IDLE, State.DONE, State.BLOCKED])
def test_a_report_of_the_agent_ends_a_prompt(state: State) -> None:
    """An agent that reports its state is not checked."""

    async def told(room: Room) -> None:
        await room.minutes(6)
        room.agent.heartbeat.said.state = state
        room.asked.clear()
        await room.minutes(6)
        assert (room.told.events, room.asked) == (["needs_human", "human_answered"], [])

    story(told)


def test_an_agent_that_finally_reports_its_wait_is_reported_once() -> None:
    """The prompt in its pane is the same wait."""

    async def told(room: Room) -> None:
        await room.minutes(6)
        room.agent.heartbeat.said.state, room.agent.heartbeat.ages.state_age = State.WAITING, timedelta()
        await room.minutes(6)
        assert room.told.events == ["needs_human"]

    story(told)


def test_an_agent_being_killed_is_left_alone_until_that_is_withdrawn() -> None:
    """Nothing is reported meanwhile; the prompt is the same afterwards."""

    async def told(room: Room) -> None:
        await room.minutes(6)
        room.agent.ending.request_id = "r"
        await room.minutes(6)
        room.agent.ending.request_id = None
        await room.minutes(6)
        assert room.told.events == ["needs_human"]

    story(told)


def test_an_agent_without_a_tmux_pane_is_not_checked() -> None:
    """Nor is one that is being killed."""

    async def told(room: Room) -> None:
        first, second, third = room.fleet
        first.reg = replace(first.reg, pane=None)
        second.reg = replace(second.reg, pane={"terminal": "kitty", "pane": "1"})
        third.ending.request_id = "r"
        await room.minutes(6)
        assert room.asked == []

    story(told, 3)


def test_many_agents_cost_no_more_than_some() -> None:
    """A few in each sweep, all in turn."""

    async def told(room: Room) -> None:
        await room.minutes(1)
        assert len(room.asked) == 6 * AT_ONCE
        await room.minutes(20)
        assert len(room.asked) == 21 * 6 * AT_ONCE
        assert len([agent for agent in room.fleet if agent.reported.needed_human]) == 40

    story(told, 40)


def test_one_healthy_agent_is_checked_four_times_in_a_limit() -> None:
    """Not in each sweep."""

    async def told(room: Room) -> None:
        room.shows = "screen", ""
        await room.minutes(20)
        assert 19 <= len(room.asked) <= 21

    story(told)


def test_a_prompt_from_before_a_restart_is_not_reported_again() -> None:
    """The report of an earlier daemon stands until the pane shows no prompt."""

    async def told(room: Room) -> None:
        room.agent.reported.needed_human, room.agent.sights.prompt = True, Sight(TOLD, LIMIT)
        await room.minutes(6)
        assert room.told.events == []
        room.shows = "screen", ""
        await room.minutes(2)
        assert room.told.events == ["human_answered"]

    story(told)


def test_a_prompt_is_no_activity_and_renews_nothing() -> None:
    """One that beats keeps its verdict; one that is silent waits for a person, and only while the prompt stands."""
    agent = Room().agent
    agent.sights.prompt = Sight("a prompt", LIMIT)
    assert judge(judging.observe(agent, Presence.ALIVE, 0, 10), agent.policy).verdict is Verdict.HEALTHY
    agent.heartbeat.silence.lasted = timedelta(minutes=9)
    waits = judge(judging.observe(agent, Presence.ALIVE, 0, 10), agent.policy)
    assert (waits.verdict, waits.line) == (
        Verdict.WAITING,
        "needs a person: its pane shows a prompt; silent for 9m",
    )
    agent.sights.prompt = None
    assert judge(judging.observe(agent, Presence.ALIVE, 0, 10), agent.policy).verdict is Verdict.LATE


def test_an_agent_whose_silence_or_start_may_soon_decide_is_checked_each_time() -> None:
    """Otherwise a dialog since the last check would be found only after its kill."""

    async def told(room: Room) -> None:
        silent, starting, *_ = room.fleet
        silent.heartbeat.silence.lasted, starting.heartbeat.rhythm.beats, starting.heartbeat.ages.age = (
            timedelta(seconds=100),
            0,
            starting.policy.start_limit,
        )
        room.shows = "screen", ""
        for _ in range(6):
            await room.sweep()
        counts = Counter(room.asked_about)
        assert counts[0] == counts[1] == 6
        assert len(counts) == 9

    story(told, 9)


def test_many_silent_agents_keep_no_other_from_being_checked() -> None:
    """Where no ladder kills them they stay silent for days."""

    async def told(room: Room) -> None:
        for agent in list(room.fleet)[:20]:
            agent.heartbeat.silence.lasted = timedelta(days=1)
        room.shows = "screen", ""
        for _ in range(30):
            await room.sweep()
        counts = Counter(room.asked_about)
        assert counts[20] == counts[21] == 5  # in five minutes, of which four are the limit
        assert {counts[number] for number in range(20)} == {6}

    story(told, 22)


def test_an_agent_that_has_not_beaten_is_checked_for_its_first_prompt() -> None:
    """Until it has; then the result no longer counts."""

    async def told(room: Room) -> None:
        agent = room.agent
        agent.heartbeat.rhythm.beats, agent.heartbeat.ages.age, agent.reg = (
            0,
            agent.policy.start_limit,
            replace(agent.reg, pane=None),
        )
        room.first = "codex was started without one"
        await room.minutes(6)
        seen = judge(judging.observe(agent, Presence.ALIVE, 0, 10), agent.policy)
        assert (seen.verdict, seen.overdue) == (Verdict.WAITING, False)
        assert "waits for its first prompt: codex was started without one" in seen.line
        room.first = ""
        await room.minutes(2)
        assert judge(judging.observe(agent, Presence.ALIVE, 0, 10), agent.policy).overdue
        room.first = "codex was started without one"
        await room.minutes(2)
        agent.heartbeat.rhythm.beats = 1
        await room.minutes(1)
        assert agent.sights.unprompted is None

    story(told)


def waiting(room: Room, vendor: str = "codex", beat: Beat | None = None) -> None:
    """Its hook reported a dialog, long enough ago."""
    agent = room.agent
    agent.reg = replace(agent.reg, agent_type=vendor)
    agent.beat(beat or Beat(state=State.WAITING, asks=" Bash 1"), room.clock.mono(), room.clock.now().wall)
    agent.heartbeat.ages.state_age = timedelta(minutes=1)
    room.shows, room.works = ("screen", ""), True


@pytest.mark.parametrize("vendor", ["codex", "gemini"])
def test_an_agent_that_was_answered_and_works_no_longer_waits(vendor: str) -> None:
    """No hook reports the approval; a hang after it is a stall. Its tool is unchanged."""

    async def told(room: Room) -> None:
        waiting(room, vendor)
        room.agent.heartbeat.said.tool, room.agent.reported.needed_human = "Bash", True
        await room.minutes(1)
        assert room.agent.heartbeat.said.state is State.WAITING  # one check may have come before the dialog
        await room.minutes(1)
        assert (room.agent.heartbeat.said.state, room.agent.heartbeat.said.tool, room.agent.heartbeat.said.note) == (
            State.WORKING,
            "Bash",
            NOTE,
        )
        await room.sweep()
        assert room.told.events == ["human_answered"]
        room.agent.heartbeat.silence.lasted = room.agent.heartbeat.silence.after
        judgement = judge(judging.observe(room.agent, Presence.ALIVE, 0, 10), room.agent.policy)
        assert judgement.verdict is Verdict.LATE

    story(told)


@pytest.mark.parametrize(
    "beat",
    [
        Beat(state=State.WAITING, asks="a1 Bash 1"),  # a subagent's dialog is elsewhere
        Beat(state=State.IDLE),
    ],
)
def test_an_agent_that_its_pane_does_not_describe_keeps_waiting(beat: Beat) -> None:
    """The pane shows the main thread at work beside a subagent that asks; an agent at rest is woken by a hook."""

    async def told(room: Room) -> None:
        waiting(room, beat=beat)
        state = room.agent.heartbeat.said.state
        await room.minutes(6)
        assert room.agent.heartbeat.said.state is state

    story(told)


def test_a_dialog_that_still_stands_is_waited_for() -> None:
    """Also after a check that came before it was drawn, and for a program with its own session file."""

    async def told(room: Room) -> None:
        waiting(room)
        await room.minutes(1)
        room.works = False
        await room.minutes(1)
        room.works = True
        await room.minutes(1)
        assert room.agent.heartbeat.said.state is State.WAITING
        room.agent.beat(Beat(state=State.WAITING, asks=" Bash 2"), room.clock.mono(), room.clock.now().wall)
        await room.minutes(1)
        assert room.agent.heartbeat.said.state is State.WAITING  # that is another one

    story(told)

    async def claude(room: Room) -> None:
        waiting(room, "claude")
        await room.minutes(6)
        assert (room.agent.heartbeat.said.state, room.asked) == (State.WAITING, [])

    story(claude)
