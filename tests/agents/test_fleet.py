"""The agents in memory, and the processes that must not be signalled."""

from dataclasses import replace
from datetime import timedelta

import pytest

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.core.agent import Policy, Registration, Status
from watchdog.core.process import Identity, Listed, TreeMember
from watchdog.core.sessions import SESSION
from watchdog.errors import Conflict

S = timedelta(seconds=1)


def agent(agent_id: str = "a" * 32, name: str = "alpha", uid: int = 1000, **rest: object) -> Agent:
    return Agent(Registration(agent_id, name, uid, "host", "boot", **rest), Policy(), Status.RUNNING)  # type: ignore[arg-type]


def test_every_process_of_every_other_agent_is_protected_as_of_now() -> None:
    """After earlier calls: an agent was added, got another tree or process, or was removed.

    Shared ones stay protected.
    """

    def process(pid: int) -> Identity:
        return Identity("host", "boot", pid, 7)

    def tree(*pids: int) -> tuple[TreeMember, ...]:
        return tuple(TreeMember(process(pid), 1, 1000, "sleep", "S", "marker") for pid in pids)

    fleet, one, other = Fleet(), agent("a" * 32), agent("b" * 32, "beta", identity=process(20))

    def protected() -> set[int]:
        return {pid for pid, _ in fleet.processes_but("a" * 32)}

    fleet.add(one)
    one.tree.members = tree(10, 11)
    assert protected() == set()
    fleet.add(other)
    assert protected() == {20}
    other.tree.members = tree(20, 21, 11)
    assert protected() == {20, 21, 11}
    one.tree.members = tree(10)
    other.tree.members = tree(20, 22)
    assert protected() == {20, 22}
    other.amend(replace(other.reg, identity=process(30), owner_uid=1000))
    assert protected() == {20, 22, 30}
    fleet.drop("b" * 32)
    assert protected() == set()
    assert {pid for pid, _ in fleet.processes_but("nobody")} == {10}


def test_a_shared_service_is_never_signalled_with_an_agent() -> None:
    """Not even with the agent in whose tree an older version recorded it; a main process is its agent's."""
    server = Identity("host", "boot", 70, 7)
    entry = Listed(kind=SESSION, path="codex app-server", key="s-1", token="7", also=(server,))
    fleet, one = Fleet(), agent("a" * 32)
    one.tree.members = (TreeMember(server, 1, 1000, "codex", "S", "marker"),)
    fleet.add(one)
    fleet.add(agent("b" * 32, "beta", entries=(entry,)))
    assert fleet.guard(one, "host").protected == {(70, 7)}
    one.amend(replace(one.reg, entries=(entry,)))  # its own session lives there, too
    assert fleet.guard(one, "host").protected == {(70, 7)}
    one.amend(replace(one.reg, identity=server, owner_uid=1000))
    assert fleet.guard(one, "host").protected == set()


def fleet(*agents: Agent) -> Fleet:
    made = Fleet()
    for one in agents:
        made.add(one)
    return made


def test_a_living_name_is_taken_for_its_owner_only() -> None:
    """Another owner may use the same name; the same owner may not."""
    one = fleet(agent())

    with pytest.raises(Conflict, match="a" * 32):
        one.refuse_taken("alpha", 1000)
    one.refuse_taken("alpha", 1001)
