"""Messages on an agent's own socket: which ones count, from which sender, and when."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.control.office import Recorder as Kept
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.core.agent import Policy, Registration, State, Status
from watchdog.core.process import Identity
from watchdog.intake.notify_sockets import NotifySockets
from watchdog.processes.identity import read_identity
from watchdog.registry.rows import AgentRow

ME = os.geteuid()
SAYS = "import os, socket, sys; socket.socket(1, 2).sendto(sys.argv[1].encode(), sys.argv[2])"

CONNECTED = """
import socket, time
speaker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
{}
print("up", flush=True)
time.sleep(300)
"""
CLOSES = "speaker.close()"


def test_messages_of_the_main_process_before_its_pid_is_registered_count_then(tmp_path: Path) -> None:
    """Register, start, send the pid: a fast program has sent messages in between; a child's do not count."""

    async def story() -> None:
        tracker = AgentTracker(fleet := Fleet(), NotifySockets(str(tmp_path)), Clock(), Kept())
        try:
            agents = {}
            for name, by in (("main", "us"), ("child", "another"), ("ends", "us")):
                agent = Agent(Registration(name, name, ME, "host", "boot"), Policy(), Status.STARTING)
                path = tracker.sockets.open(name, ME)
                tracker.admit(agent)
                words = "STOPPING=1" if name == "ends" else "READY=1"
                if by == "us":
                    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
                        speaker.sendto(words.encode(), path)
                else:
                    subprocess.run([sys.executable, "-c", SAYS, words, path], check=True, timeout=20)
                tracker.sockets.drain(name)
                agents[name] = agent
                assert agent.heartbeat.rhythm.beats == 0, "nobody knows yet who the main process is"
            assert len(fleet) == 3
            for agent in agents.values():
                agent.amend(replace(agent.reg, identity=us()))
                tracker.identified(agent)
            assert {name: agent.heartbeat.rhythm.beats for name, agent in agents.items()} == {
                "main": 1,
                "child": 0,
                "ends": 1,
            }
            assert agents["ends"].heartbeat.said.state is State.DONE
            assert not agents["main"].heartbeat.said.promised
        finally:
            tracker.close()

    asyncio.run(story())


def test_what_a_beat_asks_for_beside_itself_counts_once_its_sender_is_known(tmp_path: Path) -> None:
    """Seen: an agent that asked for ten minutes before its pid was registered was killed after four seconds."""

    async def story() -> None:
        tracker = AgentTracker(Fleet(), NotifySockets(str(tmp_path)), Clock(), Kept())
        try:
            agent = Agent(Registration("a", "a", ME, "host", "boot"), Policy(), Status.STARTING)
            path = tracker.sockets.open("a", ME)
            tracker.admit(agent)
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
                speaker.sendto(b"WATCHDOG=1\nEXTEND_TIMEOUT_USEC=600000000", path)
                speaker.sendto(b"READY=1\nX_AGENT_STATE=working", path)
                for _ in range(20):
                    speaker.sendto(b"WATCHDOG=1\nX_AGENT_STATE=idle", path)
                    tracker.sockets.drain("a")
            subprocess.run(
                [sys.executable, "-c", SAYS, "WATCHDOG=1\nEXTEND_TIMEOUT_USEC=1", path], check=True, timeout=60
            )
            tracker.sockets.drain("a")
            assert agent.heartbeat.said.promised and not agent.heartbeat.ages.lease_left
            agent.amend(replace(agent.reg, identity=us()))
            tracker.identified(agent)
            assert agent.heartbeat.ages.lease_left > timedelta(minutes=9)
            assert agent.heartbeat.said.state is State.IDLE
        finally:
            tracker.close()

    asyncio.run(story())


def us() -> Identity:
    found = read_identity(os.getpid(), "host")
    assert found is not None
    return found


def test_holders_of_the_former_socket_are_found_before_any_agent_is_taken_in(
    tmp_path: Path, patient: list[str]
) -> None:
    """Case Q8: one that closed its sockets finds the new one by itself; the loop waits for none of these checks."""
    holds, closed = (
        subprocess.Popen([sys.executable, "-c", CONNECTED.format(more)], stdout=subprocess.PIPE)
        for more in ("", CLOSES)
    )

    async def story() -> dict[str, bool]:
        tracker = AgentTracker(Fleet(), NotifySockets(str(tmp_path)), Clock(), Kept())
        try:
            rows = [
                row("holds", holds.pid),
                row("closed", closed.pid),
                row("nobody", None),
                row("run", holds.pid, source="run"),
            ]
            connected = await tracker.connected(rows)
            agents = {}
            for one in rows:
                agent = agents[one.agent_id] = Agent(one.registration, Policy(), Status.STARTING)
                tracker.readmit(agent, one, connected)
            return {name: agent.heartbeat.silence.hindrance.channel_lost for name, agent in agents.items()}
        finally:
            tracker.close()

    with holds, closed:
        try:
            for process in (holds, closed):
                assert process.stdout is not None
                assert process.stdout.readline() == b"up\n"
            lost = asyncio.run(story())
        finally:
            holds.kill()
            closed.kill()
    assert lost == {"holds": True, "closed": False, "nobody": False, "run": False}
    assert patient == ["channels.hold_datagram_sockets"]


def row(agent_id: str, speaker: int | None, source: str = "register") -> AgentRow:
    reg = Registration(agent_id, agent_id, ME, "host", "boot", source=source)
    return AgentRow(reg, Status.STARTING, 1, datetime.now(UTC), speaker_pid=speaker)


def test_a_process_that_was_dead_when_pinned_was_not_watched_to_its_end(tmp_path: Path) -> None:
    """A zombie is pinned, too, for its exit status; its places may belong to others by now."""

    async def story() -> None:
        tracker = AgentTracker(Fleet(), NotifySockets(str(tmp_path)), Clock(), Kept())
        try:
            with subprocess.Popen(["sleep", "300"]) as child:
                for alive in (True, False):
                    agent = Agent(Registration(f"a{alive}", "a", ME, "host", "boot"), Policy(), Status.RUNNING)
                    tracker.admit(agent)
                    identity = read_identity(child.pid, "host")
                    assert identity is not None
                    agent.amend(replace(agent.reg, identity=identity))
                    tracker.identified(agent)
                    assert agent.tree.pidfd is not None and agent.tree.met_alive is alive
                    os.kill(child.pid, signal.SIGKILL)  # Popen's own would reap it
                    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        finally:
            tracker.close()

    asyncio.run(story())
