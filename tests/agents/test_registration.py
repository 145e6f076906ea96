"""Rights and rules of registration: real processes, a real registry and real notify sockets."""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.control.office import Recorder
from watchdog.agents.admission import Admission
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.history import EventRecorder
from watchdog.agents.process_claim import identify_pid
from watchdog.agents.registration import Registered, Registrar, one_spelling
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.config.settings import load
from watchdog.core.admission import WAIT
from watchdog.core.agent import Status
from watchdog.core.peer import Peer
from watchdog.core.process import Listed
from watchdog.core.registration import RegistrationRequest
from watchdog.core.sessions import SESSION
from watchdog.errors import BadRequest, Conflict, Forbidden, ProcessNotFound, RegistryUnavailable
from watchdog.helpers.users import Users
from watchdog.intake.notify_sockets import NotifySockets
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.registry.rows import AgentRow
from watchdog.telemetry.metrics import Metrics

ME, OTHER = os.geteuid(), 61001  # a uid without an account
US, THEM = Peer(ME, 0, os.getpid()), Peer(OTHER, 0, os.getpid())
ADMIN = Peer(ME, 0, os.getpid(), admin=True)
ENTRY = Listed("hcom", "/srv/.hcom", "row-7", "run-1", proved=False, stop=("hcom", "stop", "row-7"))


class Room:
    """A registrar and its parts."""

    def __init__(self, directory: Path) -> None:
        file = directory / "agent-watchdog.toml"
        file.write_text("")
        file.chmod(0o600)
        settings = load(str(file), environ={"HOME": str(directory)})
        self.settings = replace(settings, host="h1", runtime_dir=str(directory))
        self.notify = directory / "notify"
        self.notify.mkdir()
        self.log, self.fleet, clock = Recorder(), Fleet(), Clock()
        self.registry = AsyncRegistry(Registry(f"sqlite:///{directory}/registry.db").open())
        self.users = Users(clock, self.log, str(directory / "subuid"))
        self.admission = Admission(self.users, clock, Metrics(), self.log)
        self.tracker = AgentTracker(self.fleet, NotifySockets(str(self.notify)), clock, self.log)
        recorder = EventRecorder(self.registry, clock, self.log)
        self.registrar = Registrar(
            self.fleet, self.registry, clock, self.settings, self.tracker, self.admission, recorder
        )

    async def register(self, name: str, peer: Peer = US, **more: Any) -> Agent:
        return (await self.registered(name, peer, **more)).agent

    async def registered(self, name: str, peer: Peer = US, **more: Any) -> Registered:
        return await self.registrar.register(RegistrationRequest(name, **more), peer)

    async def row(self, agent: Agent) -> AgentRow:
        """Its row in the registry."""
        row = await self.registry.read(self.registry.agents.get, agent.agent_id)
        assert row is not None
        return row

    def sockets(self) -> list[str]:
        """The agents with a notify socket."""
        return sorted(os.listdir(self.notify))


@asynccontextmanager
async def room() -> AsyncIterator[Room]:
    with tempfile.TemporaryDirectory(prefix="awr-", dir="/tmp") as name:  # a unix socket's path must be short
        made = Room(Path(name))
        await made.users.begin()
        try:
            yield made
        finally:
            made.tracker.close()
            made.registry.close()


def play(story: Callable[[Room], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with room() as made:
            await story(made)

    asyncio.run(whole())


@pytest.fixture
def child() -> Iterator[int]:
    """The pid of a process of our own."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process.pid
        process.kill()


def test_a_registered_agent_is_in_the_fleet_and_in_the_registry(child: int) -> None:
    """The row is committed before the caller gets an answer; the identity is the kernel's."""

    async def story(here: Room) -> None:
        agent = await here.register(
            "alpha", pid=child, tags=("a", "b", "a"), task="T-1", stall_after_seconds=120, worktree="/srv//tree/"
        )
        assert list(here.fleet) == [agent]
        assert agent.identity is not None and agent.identity.pid == child and agent.tree.pidfd is not None
        assert (agent.status, agent.heartbeat.said.promised, agent.reg.command) == (Status.RUNNING, True, "sleep")
        assert (agent.reg.tags, agent.reg.worktree) == (("a", "b"), "/srv/tree")
        row = await here.row(agent)
        assert (row.status, row.registration.identity) == (Status.RUNNING, agent.identity)
        task = await here.registry.read(here.registry.history.task, "T-1")
        assert task is not None and task.assigned_agent == agent.agent_id
        assert here.sockets() == [agent.agent_id]
        assert here.log.events[-1]["event"] == "agent.registered"

    play(story)


def test_without_a_pid_it_starts_or_is_queued() -> None:
    async def story(here: Room) -> None:
        assert (await here.register("starts")).status is Status.STARTING
        assert (await here.register("waits", queued=True)).status is Status.QUEUED

    play(story)


def test_a_name_belongs_to_one_living_agent_of_its_owner() -> None:
    """Another owner's agent may have it too, and so may the next one when it has ended."""

    async def story(here: Room) -> None:
        alpha = await here.register("alpha")
        with pytest.raises(Conflict, match="alpha"):
            await here.register("alpha")
        await here.register("alpha", THEM)
        here.tracker.forget(alpha)
        await here.register("alpha")
        assert len(here.fleet) == 2
        assert len(here.sockets()) == 2, "a refused one leaves no socket"

    play(story)


def test_a_process_belongs_to_one_agent(child: int) -> None:
    """Even if it was checked before another one registered it."""

    async def story(here: Room) -> None:
        looked_at = await identify_pid(child, US, here.fleet, "h1")
        await here.register("alpha", pid=child)
        with pytest.raises(Conflict, match="is the main process of agent"):
            await here.register("beta", pid=child)
        with pytest.raises(Conflict, match="is the main process of agent"):
            await here.registrar.register(RegistrationRequest("gamma", pid=child), US, looked_at)
        assert [agent.reg.name for agent in here.fleet] == ["alpha"]

    play(story)


def test_another_users_process_cannot_be_registered(child: int) -> None:
    """Nor one that does not exist."""

    async def story(here: Room) -> None:
        with pytest.raises(Forbidden, match=f"runs as uid {ME}, you are uid {OTHER}"):
            await here.register("alpha", THEM, pid=child)
        with pytest.raises(ProcessNotFound):
            await here.register("alpha", pid=4_194_304)
        assert not here.sockets()

    play(story)


@pytest.mark.skipif(ME != 0, reason="needs root: a process of another uid")
def test_the_owner_is_the_uid_of_the_process() -> None:
    """Not the peer's, where an admin registers it."""

    async def story(here: Room) -> None:
        with subprocess.Popen(["sleep", "300"], user=OTHER, group=OTHER, extra_groups=[], cwd="/") as theirs:
            agent = await here.register("alpha", ADMIN, pid=theirs.pid)
            assert agent.reg.owner_uid == (await here.row(agent)).registration.owner_uid == OTHER
            assert os.stat(here.notify / agent.agent_id).st_uid == OTHER
            theirs.kill()

    play(story)


def test_a_parent_is_a_living_agent_of_the_same_owner() -> None:
    """By its name, its id or a prefix of that."""

    async def story(here: Room) -> None:
        lead = await here.register("lead")
        for number, word in enumerate(("lead", lead.agent_id, lead.agent_id[:8])):
            assert (await here.register(f"child-{number}", parent=word)).reg.parent_id == lead.agent_id
        with pytest.raises(BadRequest, match="parent: 'nobody' is not a living agent"):
            await here.register("alpha", parent="nobody")
        with pytest.raises(Forbidden, match="is another user's agent"):
            await here.register("alpha", THEM, parent="lead")
        await here.register("theirs", THEM)
        with pytest.raises(Forbidden, match=f"belongs to uid {OTHER}, this agent to uid {ME}"):
            await here.register("alpha", ADMIN, parent="theirs")

    play(story)


def test_a_temp_dir_belongs_to_one_agent() -> None:
    """It is removed when that agent ends: it may contain no other agent's place, except a sub-agent's."""

    async def story(here: Room) -> None:
        lead = await here.register("lead", temp_dir="/tmp/of-lead")
        with pytest.raises(Conflict, match="/tmp/of-lead already belongs to another living agent"):
            await here.register("alpha", temp_dir="/tmp//of-lead/")
        with pytest.raises(Conflict, match="lies in the temp dir of the living agent lead"):
            await here.register("alpha", temp_dir="/tmp/of-lead/inner")
        await here.register("alpha", temp_dir="/tmp/of-lead/inner", parent=lead.agent_id)
        with pytest.raises(BadRequest, match=r"is one of cleanup\.roots"):
            await here.register("beta", temp_dir="/tmp")

    play(story)


def test_the_client_gets_notes(child: int) -> None:
    """About a raised limit, a shared worktree, a temp dir that stays, a task of another user."""

    async def story(here: Room) -> None:
        await here.register("first", THEM, task="T-1")
        assert (await here.registered("lead", worktree="/srv/tree")).notes == ()
        second = await here.registered(
            "second", worktree="/srv/tree", temp_dir="/srv/temp", task="T-1", interval_seconds=3600
        )
        assert [note.split()[0] for note in second.notes] == ["the", "/srv/tree", "temp_dir:", "task"]
        assert second.agent.reg.task_id is None
        assert here.log.events[-1]["note"] == "; ".join(second.notes)

    play(story)


def test_only_a_run_brings_its_own_socket() -> None:
    async def story(here: Room) -> None:
        with pytest.raises(BadRequest, match="only `run` owns its agent's socket"):
            await here.register("alpha", notify_socket="/srv/socket")
        with pytest.raises(BadRequest, match="holds nothing else"):
            await here.register("alpha", source="run", notify_socket=f"{here.notify}/another")
        own = f"{here.notify}/run-{'0' * 32}"
        assert (await here.register("alpha", source="run", notify_socket=own)).notify_socket == own
        assert not here.sockets(), "the daemon makes none"

    play(story)


def test_an_agent_that_another_registry_lists_keeps_its_entry(child: int) -> None:
    """The entry's stop command is needed when it ends, perhaps by a later daemon."""

    async def story(here: Room) -> None:
        agent = await here.register("alpha", pid=child, source="hcom", entry=ENTRY)
        assert agent.reg.entries == (await here.row(agent)).registration.entries == (ENTRY,)
        assert agent.reg.unproved
        second = replace(ENTRY, key="row-8")
        assert await here.registrar.keep_entries(agent, (ENTRY, second))
        assert agent.reg.entries == (await here.row(agent)).registration.entries == (ENTRY, second)

    play(story)


def test_a_session_runs_without_a_process() -> None:
    """It belongs to a service that works for many."""

    async def story(here: Room) -> None:
        entry = Listed(SESSION, "codex", "session-1", "7")
        assert (await here.register("alpha", source="hook", entry=entry)).status is Status.RUNNING

    play(story)


def test_a_registration_that_cannot_be_committed_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(here: Room) -> None:
        async def write(*_: object) -> None:
            raise RegistryUnavailable("locked")

        monkeypatch.setattr(here.registry, "write", write)
        with pytest.raises(RegistryUnavailable):
            await here.register("alpha")
        assert not len(here.fleet) and not here.sockets()

    play(story)


def test_one_user_does_not_take_all_the_room() -> None:
    """Each agent costs descriptors. An admin registers what it wants."""

    async def story(here: Room) -> None:
        here.admission.descriptors = 4  # one agent
        await here.register("alpha", THEM)
        with pytest.raises(Conflict, match=f"uid {OTHER} .* already has as many living agents as one user may have"):
            await here.register("beta", THEM)
        await here.register("beta", replace(THEM, admin=True))

    play(story)


def test_registrations_of_one_owner_take_turns() -> None:
    """Two that look up a name at the same moment would both take it. Another owner's does not wait."""

    async def story(here: Room) -> None:
        order: list[str] = []
        held, begun = asyncio.Event(), asyncio.Event()

        async def first() -> None:
            async with here.registrar.turn(ME):
                begun.set()
                await held.wait()
                order.append("first")

        async def other(uid: int, word: str) -> None:
            async with here.registrar.turn(uid):
                order.append(word)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(first())
            await begun.wait()
            tasks.create_task(other(ME, "second"))
            await other(OTHER, "another owner's")
            held.set()
        assert order == ["another owner's", "first", "second"]

    play(story)


def test_a_pid_is_registered_once(child: int) -> None:
    """Repeating it changes nothing; another process belongs to another agent."""

    async def story(here: Room) -> None:
        alpha, waits = await here.register("alpha"), await here.register("waits", queued=True)
        taken = await identify_pid(child, US, here.fleet, "h1")
        for _ in range(2):
            await here.registrar.identify(alpha, taken, US)
        assert (alpha.status, alpha.identity) == (Status.RUNNING, taken.identity)
        assert (await here.row(alpha)).registration.identity == taken.identity
        another = replace(taken, identity=replace(taken.identity, pid=taken.identity.pid + 1))
        with pytest.raises(Conflict, match=f"has process {child} already"):
            await here.registrar.identify(alpha, another, US)
        with pytest.raises(Conflict, match=f"runs as uid {OTHER}" if ME else "takes no pid"):
            waits.status = waits.status if ME else Status.ENDING
            await here.registrar.identify(waits, replace(another, uid=OTHER), US)

    play(story)


@pytest.mark.parametrize("with_row", [True, False])
def test_a_living_agent_that_the_registry_has_lost_is_watched_again(child: int, with_row: bool) -> None:
    """By its registration backup; its row is written at once, or later."""

    async def story(here: Room) -> None:
        former = await here.register("alpha", pid=child, stall_after_seconds=120)
        copy = await here.row(former)
        here.tracker.forget(former)
        copy = replace(copy, registration=replace(copy.registration, agent_id="f" * 32))
        await here.registrar.readopt(copy, with_row=with_row)
        agent = here.fleet.get("f" * 32)
        assert agent is not None and agent.heartbeat.said.promised and agent.tree.pidfd is not None
        assert (await here.registry.read(here.registry.agents.get, "f" * 32) is not None) is with_row
        if not with_row:
            await here.registrar.write_row(agent)
        assert (await here.row(agent)).registration.name == "alpha"

    play(story)


def test_a_process_known_only_from_the_backup_is_its_agents_again(child: int) -> None:
    """The registry is older than the registration of its pid."""

    async def story(here: Room) -> None:
        agent = await here.register("alpha")
        taken = await identify_pid(child, US, here.fleet, "h1")
        await here.registrar.restore_identity(agent, agent.reg)
        assert agent.identity is None, "nor does the copy know any"
        await here.registrar.restore_identity(agent, replace(agent.reg, identity=taken.identity))
        assert (agent.status, agent.tree.pidfd is not None) == (Status.RUNNING, True)
        assert (await here.row(agent)).registration.identity == taken.identity

    play(story)


def test_a_registration_costs_its_user_a_share() -> None:
    """So a file that comes and goes cannot register agents without end; the daemon's own uid is exempt."""

    async def story(here: Room) -> None:
        assert here.registrar.take_share(ME) == 0
        for _ in range(1000):
            if here.registrar.take_share(OTHER) > WAIT:
                break
        else:
            pytest.fail("it may register without end")
        assert [one["kind"] for one in here.admission.limited()] == ["requests"]

    play(story)


@pytest.mark.parametrize(
    ("path", "spelled"), [(None, None), ("/", "/"), ("/a//b/./c/", "/a/b/c"), ("/a", "/a"), ("//a", "/a")]
)
def test_two_spellings_of_one_path_are_equal(path: str | None, spelled: str | None) -> None:
    assert one_spelling(path) == spelled
