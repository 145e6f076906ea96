"""POST /sessions/beat: which agent a session of an app server belongs to, and what a beat of it does."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.control.office import Office, wait_for
from watchdog.core.agent import Status
from watchdog.core.kill import Reason
from watchdog.processes.identity import read_identity

SESSION = "01a22851-0000-4000-8000-5e551011beef"
NAME = "codex-elsewhere-1011beef"
SHARED = ("app-server", "--listen", "unix://")
WAITS = "import signal; signal.pause()"
Start = Callable[..., int]


@pytest.fixture
def codex(office: Office) -> Iterator[Start]:
    """Starts a process that is called so, in a directory of that name; the pid."""
    program = office.directory / "codex"
    program.symlink_to(os.path.realpath(sys.executable))

    def start(*words: str, place: str = "") -> int:
        directory = office.directory / place
        directory.mkdir(exist_ok=True)
        argv = [str(program), "-c", WAITS, *words]
        office.processes.append(subprocess.Popen(argv, cwd=directory, start_new_session=True))
        pid = office.processes[-1].pid
        # `Popen` is back when execve(2) has closed its pipe, which is before its argv is there.
        wait_for(Path(f"/proc/{pid}/cmdline").read_bytes, "its words are there")
        return pid

    yield start


def speak(office: Office, server: int, cwd: str = "/srv/elsewhere", **more: Any) -> tuple[int, Any]:
    body = {"session": SESSION, "type": "codex", "cwd": cwd, "pid": server, "beat": {"state": "working"}, **more}
    return office.ask("POST", "/v1/sessions/beat", body)


def served(office: Office, name: str) -> set[tuple[str, int]]:
    return {(session, one.pid) for session, one in office.agent(name).reg.served}


def test_one_that_no_agent_here_began_is_an_agent_of_its_own(office: Office, codex: Start) -> None:
    """Its beats are one agent's, which has no process; the service that works for it is known with it."""
    server = codex(*SHARED)
    assert speak(office, server)[0] == 204
    assert speak(office, server)[0] == 204
    found = office.agent(NAME)
    assert (found.status, found.identity, found.heartbeat.rhythm.beats) == (Status.RUNNING, None, 2)
    assert found.reg.served == {(SESSION, found.reg.entries[0].also[0])}
    assert found.reg.entries[0].also == (read_identity(server, office.context.host),)
    assert "codex app-server" in found.reg.shared(found.perhaps.values())


def test_the_same_session_in_another_server_is_another_agent(office: Office, codex: Start) -> None:
    """Of a copied home directory: neither beats for the other, nor takes its commands."""
    servers = codex(*SHARED), codex(*SHARED)
    for server in (*servers, *servers):
        assert speak(office, server)[0] == 204
    assert len(office.context.fleet) == 2
    assert [agent.heartbeat.rhythm.beats for agent in office.context.fleet] == [2, 2]
    assert {pid for agent in office.context.fleet for _, pid in served(office, agent.reg.name)} == set(servers)


def test_a_server_that_was_started_again_is_its_sessions_service(office: Office, codex: Start) -> None:
    """A client's session continues in the new one; two that live take turns and are both known, and stored."""
    place = str(office.directory / "api")
    office.register("one", pid=codex(place="api"))
    first = codex(*SHARED)
    assert speak(office, first, place)[0] == 204
    assert served(office, "one") == {(SESSION, first)}
    second = codex(*SHARED)
    for server in (second, first, second):
        assert speak(office, server, place)[0] == 204
    assert served(office, "one") == {(SESSION, first), (SESSION, second)}
    office.end_process(first)
    office.end_process(second)
    third = codex(*SHARED)
    assert speak(office, third, place)[0] == 204
    assert served(office, "one") == {(SESSION, third)}
    row = office.context.registry.agents.get(office.agent("one").agent_id)
    assert row is not None
    assert [[each.pid for each in one.also] for one in row.registration.entries] == [[third]]
    assert len(office.context.fleet) == 1
    assert office.agent("one").heartbeat.rhythm.beats == 5


def test_one_whose_agent_was_ended_has_nothing_more_to_do(office: Office, codex: Start) -> None:
    """Its next tool is refused; a person's next prompt begins it again."""
    server = codex(*SHARED)
    speak(office, server)
    assert office.ask("POST", "/v1/kill", {"targets": [NAME]})[1]["success"]
    status, answer = speak(office, server)
    assert (status, answer["stop"]["deadline_seconds"]) == (200, 0.0)
    assert not len(office.context.fleet)
    assert speak(office, server, begins=True)[0] == 204
    assert office.agent(NAME).heartbeat.rhythm.beats == 1


def test_its_end_is_its_agents_alone(office: Office, codex: Start) -> None:
    """An agent without a process ends with its session; one with a client continues, for another session."""
    server, place = codex(*SHARED), str(office.directory / "api")
    office.register("one", pid=codex(place="api"))
    over: dict[str, Any] = {"beat": {"state": "idle", "session_ended": SESSION}}
    assert speak(office, server, place)[0] == 204
    assert speak(office, server, place, **over)[0] == 204
    assert office.agent("one").status is Status.RUNNING
    assert not office.worker.asked
    other = {"session": "other-session"}
    assert speak(office, server, **other)[0] == 204
    assert speak(office, server, **over, **other)[0] == 204
    assert [asked[1] for asked in office.worker.asked] == [Reason.GONE]


def test_what_is_no_service_is_refused(office: Office, codex: Start) -> None:
    """A client, another program, an unused number: each gets its own answer, and no agent is registered."""
    for pid, status in ((codex(place="api"), 400), (office.process(), 400), (4_000_000, 404)):
        assert speak(office, pid)[0] == status
    assert not len(office.context.fleet)


def test_a_service_that_an_agent_runs_is_that_agent(office: Office, codex: Start) -> None:
    """On purpose, as that user's agent: the beats of all its sessions count for it."""
    server = codex(*SHARED)
    office.register("served", pid=server)
    assert speak(office, server)[0] == 204
    assert (office.agent("served").heartbeat.rhythm.beats, office.agent("served").reg.served) == (1, frozenset())
