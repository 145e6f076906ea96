"""A beat at every point between the look that found an agent silent and the first signal.

A point is a line of ours that the event loop's thread runs, whichever: a datagram can reach the agent's socket between
any two. What comes by the control socket or a file reaches memory between two steps of the loop only.
"""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from tests.faults.crash.own import admit
from watchdog.agents.agent import Agent
from watchdog.core.agent import Beat
from watchdog.service.wiring import Parts

PACKAGE = str(Path(__file__).parents[3] / "watchdog")


class Marks:
    """What happened, in order: `beat`, `look` (at the sockets), `step` (of the loop after that look), `signal`."""

    def __init__(self, daemon: Parts, agent: Agent) -> None:
        self.found: list[str] = []
        self.lines = 0
        self._daemon = daemon
        self._agent = agent

    @contextmanager
    def watching(self, at: int, inject: Callable[[], None]) -> Iterator[None]:
        """Run `inject` when the thread comes to its `at`th line of the package."""
        drain, send = self._daemon.tracker.sockets.drain, signal.pidfd_send_signal
        loop = asyncio.get_running_loop()

        def looked(agent_id: str) -> None:
            self.found.append("look")
            loop.call_soon(self.found.append, "step")
            drain(agent_id)

        def signalled(pidfd: int, number: int, *rest: Any) -> None:
            self.found.append("signal")
            send(pidfd, number, *rest)

        def trace(frame: FrameType, event: str, _: object) -> Any:
            if not frame.f_code.co_filename.startswith(PACKAGE):
                return None
            if event == "line" and "signal" not in self.found:
                self.lines += 1
                if self.lines == at:
                    inject()
            return trace

        self._daemon.tracker.sockets.drain = looked  # type: ignore[method-assign]
        signal.pidfd_send_signal = signalled
        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)
            self._daemon.tracker.sockets.drain = drain  # type: ignore[method-assign]
            signal.pidfd_send_signal = send

    def by_datagram(self) -> None:
        """As any sd_notify library does."""
        assert self._agent.notify_socket is not None
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
            speaker.sendto(b"WATCHDOG=1", self._agent.notify_socket)
        self.found.append("beat")

    def by_word(self) -> None:
        """As the control socket does: in the loop's next step."""

        def speak() -> None:
            self._agent.beat(Beat(), self._daemon.clock.mono(), self._daemon.clock.now().wall)
            self.found.append("beat")

        asyncio.get_running_loop().call_soon(speak)

    def judge(self, *, killed: bool) -> None:
        """Killed if and only if no beat came before the last look; and between that and the signal nothing can come
        but a datagram, as the loop makes no step there.
        """
        before = self.found[: self.found.index("signal")] if "signal" in self.found else self.found
        last = max((number for number, mark in enumerate(before) if mark == "look"), default=-1)
        spoke = "beat" in before[:last] if killed else "beat" in before
        assert killed == ("signal" in self.found)
        assert killed != spoke, self.found
        assert not killed or "step" not in before[last:], self.found

    @property
    def too_late(self) -> bool:
        """The beat came right after the last look: nobody can hear it before the signal."""
        return "look beat signal" in " ".join(self.found)


async def interleave(daemon: Parts, at: int, *, word: bool) -> Marks:
    """One silent agent, one sweep, one kill or none; fails when it ends otherwise than it must."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as process:
        try:
            agent = await admit(daemon, process.pid)
            marks = Marks(daemon, agent)
            with marks.watching(at, marks.by_word if word else marks.by_datagram):
                await daemon.sweeper.sweep()
                if agent.ending.request_id is not None:
                    assert await daemon.kills.finished(agent.ending.request_id, 60) is not None
            killed = process.poll() is not None
            if not killed:
                daemon.tracker.forget(agent)
        finally:
            process.kill()
    marks.judge(killed=killed)
    return marks
