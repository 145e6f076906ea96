"""Exits of real processes: each is noted once, and one check handles all exits of the meantime."""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress

import pytest

from watchdog.agents.agent import Agent
from watchdog.agents.exit_watcher import ExitWatcher
from watchdog.core.agent import Policy, Registration, Status

Start = Callable[[str], tuple[Agent, "subprocess.Popen[bytes]"]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Agents whose process exits when its stdin is closed."""
    made: list[tuple[Agent, subprocess.Popen[bytes]]] = []

    def one(name: str) -> tuple[Agent, "subprocess.Popen[bytes]"]:
        process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        agent = Agent(Registration(name * 32, name, os.geteuid(), "host", "boot"), Policy(), Status.RUNNING)
        agent.tree.pidfd = os.pidfd_open(process.pid)
        made.append((agent, process))
        return made[-1]

    yield one
    for agent, process in made:
        end(process)
        if agent.tree.pidfd is not None:
            os.close(agent.tree.pidfd)


def end(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.close()
    process.wait(60)


def play(story: Callable[[ExitWatcher], Awaitable[None]]) -> None:
    async def bounded() -> None:
        watcher = ExitWatcher()
        try:
            async with asyncio.timeout(60):
                await story(watcher)
        finally:
            watcher.close()

    asyncio.run(bounded())


def test_an_exited_agent_is_noted_and_collected_once(start: Start) -> None:
    """By a sweep: also an exit that the loop has not handled yet."""

    async def story(watcher: ExitWatcher) -> None:
        (one, process), (other, _) = start("a"), start("b")
        watcher.watch(one)
        watcher.watch(other)
        assert watcher.collect() == []
        end(process)
        assert watcher.collect() == [one]
        assert (one.exit.ended, other.exit.ended) == (True, False)
        assert watcher.collect() == []

    play(story)


def test_further_exits_gather_while_a_check_runs(start: Start) -> None:
    """One check at a time, and none is left out."""

    async def story(watcher: ExitWatcher) -> None:
        looks: list[list[str]] = []
        begun, go_on, over = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def look(agents: list[Agent]) -> None:
            looks.append(sorted(agent.reg.name for agent in agents))
            begun.set()
            await go_on.wait()
            if sum(map(len, looks)) == 3:
                over.set()

        watcher.subscribe(look)
        agents = [start(name) for name in "abc"]
        for agent, _ in agents:
            watcher.watch(agent)
        end(agents[0][1])
        await begun.wait()
        end(agents[1][1])
        end(agents[2][1])
        while not all(agent.exit.ended for agent, _ in agents):
            await asyncio.sleep(0.01)
        assert looks == [["a"]]
        go_on.set()
        await over.wait()
        assert looks == [["a"], ["b", "c"]]

    play(story)


def test_an_unwatched_agent_is_not_reported(start: Start) -> None:
    """Its pidfd may be closed, and the descriptor's number another file's."""

    async def story(watcher: ExitWatcher) -> None:
        agent, process = start("a")
        watcher.watch(agent)
        watcher.unwatch(agent)
        watcher.unwatch(agent)
        end(process)
        assert watcher.collect() == []
        assert not agent.exit.ended

    play(story)


def test_an_agent_without_a_pidfd_is_left_to_the_sweep() -> None:
    """A pidfd could not be opened."""

    async def story(watcher: ExitWatcher) -> None:
        agent = Agent(Registration("a" * 32, "a", os.geteuid(), "host", "boot"), Policy(), Status.RUNNING)
        watcher.watch(agent)
        watcher.unwatch(agent)
        assert watcher.collect() == []

    play(story)
