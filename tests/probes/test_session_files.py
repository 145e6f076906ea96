"""Which session files are read, how often, and the effect of an answer."""

import asyncio
import os
from dataclasses import replace
from datetime import timedelta

import pytest

from tests.clocks import Later
from watchdog.agents.agent import Agent
from watchdog.agents.background_queries import BackgroundQueries
from watchdog.agents.fleet import Fleet
from watchdog.core.agent import Beat, Policy, Registration, State, Status
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.probes.session_files import AT_ONCE, NOTE, SessionFiles, take
from watchdog.processes.identity import read_identity

LIMIT = timedelta(minutes=2)  # a check each 15 s
SILENT = timedelta(seconds=10)


class Room(HelperPool):
    """Agents of Claude Code that reported work, with a fake helper of their owners."""

    def __init__(self, agents: int = 1, vendor: str = "claude") -> None:
        super().__init__()
        self.asked: list[int] = []  # by the number of the agent
        self.answer: object = None
        self.clock, self.fleet = Later(), Fleet()
        self.files = SessionFiles(self.fleet, BackgroundQueries(self, self.clock), self.clock)
        me = read_identity(os.getpid(), "host")
        assert me is not None
        self.ticks = me.start_ticks
        for number in range(agents):
            one = replace(me, start_ticks=me.start_ticks + number)
            reg = Registration(
                f"{number:032}", f"a{number}", os.geteuid(), "host", "boot", identity=one, agent_type=vendor
            )
            agent = Agent(reg, Policy(after=LIMIT), Status.RUNNING)
            agent.heartbeat.note_reader()
            agent.beat(Beat(state=State.WORKING), self.clock.mono(), self.clock.now().wall)
            agent.heartbeat.silence.lasted = SILENT
            self.fleet.add(agent)

    @property
    def agent(self) -> Agent:
        return next(iter(self.fleet))

    async def call(self, uid: int, call: str, args: object, deadline: float = 0) -> object:
        assert isinstance(args, dict)
        assert call == "session_state"
        self.asked.append(args["processes"][0][1] - self.ticks)
        if isinstance(self.answer, OwnerCallFailed):
            raise self.answer
        return self.answer

    async def look(self, seconds: float = 0.0) -> None:
        """One check, that much later, and its answers."""
        self.clock.at += seconds
        self.files.look()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if task is not asyncio.current_task()))


def test_an_ended_state_counts_as_a_report_of_the_agent() -> None:
    """It is idle since, without a promise: the next hook's report counts again."""
    room = Room()
    since = room.clock.now().wall.timestamp()
    room.answer = {"state": "idle", "since": since}
    asyncio.run(room.look())
    assert (room.agent.heartbeat.said.state, room.agent.heartbeat.said.note) == (State.IDLE, NOTE)
    room.agent.beat(Beat(state=State.WORKING), room.clock.mono(), room.clock.now().wall)
    assert room.agent.heartbeat.said.state is State.WORKING


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {"state": "working", "since": None},
        {"state": "idle", "since": 1.0},  # long before
        {"state": "asleep", "since": None},
        {"state": ["idle"], "since": None},
        {"since": 1.0},
        [],
        OwnerCallFailed("late", "its helper did not answer"),
    ],
)
def test_a_missing_answer_changes_nothing(answer: object) -> None:
    """Unknown, not newer, or no state; a helper is its owner's process, and may answer anything."""
    room = Room()
    room.answer = answer
    asyncio.run(room.look())
    assert room.asked == [0]
    assert (room.agent.heartbeat.said.state, room.agent.heartbeat.rhythm.beats) == (State.WORKING, 1)


def test_a_beat_after_the_query_is_newer() -> None:
    """The query was sent before the prompt."""

    class Slow(Room):
        async def call(self, uid: int, call: str, args: object, deadline: float = 0) -> object:
            self.agent.beat(Beat(state=State.WORKING), self.clock.mono(), self.clock.now().wall)
            return {"state": "idle", "since": None}

    room = Slow()
    asyncio.run(room.look())
    assert room.agent.heartbeat.said.state is State.WORKING


def test_only_agents_whose_state_may_have_ended_are_checked() -> None:
    """Claude Code's own, with hooks, that works or waits for a person, and has been silent for a moment."""
    for change in ("silence", "state", "status"):
        room = Room()
        match change:
            case "silence":
                room.agent.heartbeat.silence.lasted = timedelta(seconds=1)
            case "state":
                room.agent.heartbeat.said.state = State.IDLE
            case _:
                room.agent.become(Status.ENDING)
        asyncio.run(room.look())
        assert not room.asked, change
    for vendor in ("codex", "gemini", "opencode"):
        room = Room(vendor=vendor)
        asyncio.run(room.look())
        assert not room.asked


@pytest.mark.parametrize("vendor", ["codex", "gemini"])
def test_a_file_that_hooks_reported_is_read(vendor: str) -> None:
    """In its vendor's format; not if one process has many sessions."""

    class Telling(Room):
        async def call(self, uid: int, call: str, args: object, deadline: float = 0) -> object:
            assert (call, args) == ("turn_state", {"vendor": vendor, "path": "/t.jsonl"})
            return {"state": "idle", "since": None}

    for sessions, state in (({"one": 0.0}, State.IDLE), ({"one": 0.0, "other": 0.0}, State.WORKING)):
        room = Telling(vendor=vendor)
        room.agent.reg = replace(room.agent.reg, transcript="/t.jsonl")
        room.agent.heartbeat.subagents.sessions.update(sessions)
        asyncio.run(room.look())
        assert room.agent.heartbeat.said.state is state


def test_one_in_a_tool_within_its_limit_is_checked_too() -> None:
    """Esc in a shell command: otherwise it would be shown as running for ten minutes more."""
    room = Room()
    room.agent.beat(Beat(state=State.WORKING, tool="Bash", tool_limit=LIMIT), room.clock.mono(), room.clock.now().wall)
    room.answer = {"state": "idle", "since": None}
    asyncio.run(room.look(1))
    assert not room.asked
    asyncio.run(room.look(5))
    assert (room.agent.heartbeat.said.state, room.agent.heartbeat.said.tool) == (State.IDLE, None)


def test_each_in_turn_and_now_and_then() -> None:
    """Few at a time, the least recently checked first; not again before an eighth of the limit is over."""

    async def looks(room: Room) -> None:
        await room.look()
        assert len(room.asked) == AT_ONCE
        await room.look(1)
        assert sorted(room.asked) == list(range(AT_ONCE + 3))
        await room.look(1)
        assert len(room.asked) == AT_ONCE + 3
        await room.look(LIMIT.total_seconds() / 8)
        assert len(room.asked) == 2 * AT_ONCE + 3

    asyncio.run(looks(Room(AT_ONCE + 3)))


@pytest.mark.parametrize(
    ("vendor", "state"), [("gemini", State.IDLE), ("codex", State.IDLE), ("claude", State.WORKING)]
)
def test_a_hook_delayed_by_a_busy_machine_is_not_newer_than_a_log(vendor: str, state: State) -> None:
    """Gemini CLI's last hook at Esc in a tool reports work, and came 10 s later; a list describes the present."""
    agent, clock = Room(vendor=vendor).agent, Later()
    said = agent.heartbeat.rhythm.last_heartbeat
    assert said is not None
    take(agent, State.IDLE, said.timestamp() - 10, clock)
    assert agent.heartbeat.said.state is state


@pytest.mark.parametrize(("listed", "tool"), [(State.WORKING, "Bash"), (State.IDLE, None)])
def test_a_tool_that_was_allowed_keeps_its_limit(listed: State, tool: str | None) -> None:
    """A long build behind a dialog; it ends with the turn."""
    agent = Room().agent
    clock = Later()
    agent.beat(Beat(state=State.WAITING, tool="Bash", tool_limit=LIMIT), clock.mono(), clock.now().wall)
    assert take(agent, listed, None, clock)
    assert (agent.heartbeat.said.tool, agent.heartbeat.ages.tool_left) == (tool, LIMIT if tool else timedelta())


def test_a_file_wakes_no_agent_at_rest() -> None:
    """An agent that reported idle stays so, until a hook reports a prompt."""
    room = Room()
    room.agent.beat(Beat(state=State.IDLE), room.clock.mono(), room.clock.now().wall)
    assert not take(room.agent, State.WORKING, None, room.clock)
    assert room.agent.heartbeat.said.state is State.IDLE
