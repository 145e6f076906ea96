"""The uid as which the daemon acts for an agent: checked before each act."""

import ast
import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.control.office import Recorder as Kept
from tests.registry.samples import NOW
from tests.setuid import Leashed, leashed
from tests.world import wait_for
from watchdog.agents import ownership
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.ownership import owner_of
from watchdog.agents.tracker import AgentTracker
from watchdog.clock import Clock
from watchdog.core.agent import Policy, Registration, Status
from watchdog.errors import OwnerCallFailed, RegistryUnavailable
from watchdog.intake.notify_sockets import NotifySockets
from watchdog.processes import identity
from watchdog.processes.identity import boot_id, pin, read_identity
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry

PACKAGE = Path(ownership.__file__).parents[1]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: setuid programs and other uids")
U, V = 12001, 12002
# (file, function): why it may use the owner without a check of the process.
ALLOWED = {("control/routes/purge.py", "_purge"): "an ended agent's row: it has no process"}
ASKS = {"call", "call_in_fresh_helper", "type_keys", "run_notice"}


def agent_of(pid: int, owner: int) -> Agent:
    reg = Registration("a" * 32, "alpha", owner, "h", boot_id(), identity=read_identity(pid, "h"), created_at=NOW)
    return Agent(reg, Policy(), Status.RUNNING)


def refused(agent: Agent) -> str:
    with pytest.raises(OwnerCallFailed) as error:
        owner_of(agent)
    return error.value.reason


def test_a_helper_is_called_only_after_a_check_of_the_process() -> None:
    """Helpers are called as `owner_of(agent)`, not as `agent.reg.owner_uid`."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ASKS:
                    words = [ast.unparse(word) for word in (*node.args, *(keyword.value for keyword in node.keywords))]
                    if any(word.endswith("reg.owner_uid") for word in words):
                        found.add((str(path.relative_to(PACKAGE)), function.name))
    assert found == set(ALLOWED)


@needs_root
def test_a_users_agent_is_untouchable_while_its_process_is_in_a_setuid_program(public: Path) -> None:
    """And it is touchable again afterwards, and when the process has ended."""
    with leashed(public, U) as process:
        agent = agent_of(process.pid, U)
        assert owner_of(agent) == U
        process.exec_setuid()
        assert refused(agent) == ownership.UNTOUCHABLE
        assert agent.owner.untouchable is not None and "effective 0" in agent.owner.untouchable
        process.do(f"os.setresuid({U}, {U}, {U})")
        assert owner_of(agent) == U
        process.sudo()
        assert refused(agent) == ownership.UNTOUCHABLE
        process.process.kill()
        wait_for(lambda: b") Z" in Path(f"/proc/{process.pid}/stat").read_bytes(), "a zombie")
        assert owner_of(agent) == U, "what ended does nothing any more, and the owner's helper has the owner's rights"
        process.process.wait(20)
        assert owner_of(agent) == U


@needs_root
def test_an_agent_of_root_that_was_not_root_to_its_end_stays_untouched(public: Path) -> None:
    """Its uid at its end is unknown: nothing is opened as root for it."""
    with leashed(public, 0) as process:
        agent = agent_of(process.pid, 0)
        agent.tree.pidfd = None if agent.identity is None else pin(agent.identity)
        process.do(f"os.setresuid({U}, {V}, {V})")
        assert refused(agent) == ownership.UNTOUCHABLE
        process.process.kill()
        process.process.wait(20)
        assert refused(agent) == ownership.UNTOUCHABLE
        agent.tree.close()


@needs_root
def test_a_drop_counts_when_it_is_committed_and_only_once(
    public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while the registry is away; sudo in between does not return it to root."""

    async def fail(*_: object) -> None:
        raise RegistryUnavailable("away")

    async def story(process: Leashed) -> None:
        registry = AsyncRegistry(Registry(f"sqlite:///{tmp_path}/registry.db").open())
        log = Kept()
        tracker = AgentTracker(Fleet(), NotifySockets(str(tmp_path)), Clock(), log)
        try:
            agent = agent_of(process.pid, 0)
            agent.reg = replace(agent.reg, pane={"terminal": "tmux", "server": "/roots", "pane": "%1"})
            registry.agents.add(agent.reg, Status.RUNNING, NOW, "test")
            tracker.sockets.open(agent.agent_id, 0)
            tracker.admit(agent)
            process.do(f"os.setresuid({U}, {U}, {U})")
            assert refused(agent) == ownership.UNTOUCHABLE
            process.sudo()
            assert refused(agent) == ownership.UNTOUCHABLE, "it looks like root's, and is not"
            assert agent.reg.owner_uid == 0

            with monkeypatch.context() as away:
                away.setattr(registry, "write", fail)
                await tracker.follow(agent, registry)
            assert (agent.reg.owner_uid, agent.owner.dropping) == (0, U)
            await tracker.follow(agent, registry)
            assert (agent.reg.owner_uid, agent.reg.dropped, agent.reg.pane, agent.owner.dropping) == (
                U,
                True,
                None,
                None,
            )
            row = registry.agents.get(agent.agent_id)
            assert row is not None and (row.registration.owner_uid, row.registration.pane) == (U, None)
            assert refused(agent) == ownership.UNTOUCHABLE
            process.do(f"os.setresuid({V}, {V}, {V})")
            await tracker.follow(agent, registry)
            assert agent.reg.owner_uid == U
            assert [event["event"] for event in log.events].count("agent.owner_changed") == 1
            tracker.forget(agent)
        finally:
            tracker.close()
            registry.close()

    with leashed(public, 0) as process:
        asyncio.run(story(process))


def test_a_failed_check_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptors, or a /proc that hides it: tried again, and no permanent reason to keep a place."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        agent = agent_of(process.pid, os.geteuid())
        assert owner_of(agent) == os.geteuid()
        monkeypatch.setattr(identity, "uids", lambda _: (_ for _ in ()).throw(OSError(5, "no")))
        assert refused(agent) == ownership.UNSEEN
        monkeypatch.undo()
        assert owner_of(agent) == os.geteuid()
    finally:
        process.kill()
        process.wait(20)


def test_an_agent_without_a_process_belongs_to_its_registrant() -> None:
    agent = Agent(Registration("a" * 32, "alpha", U, "h", boot_id(), created_at=NOW), Policy(), Status.STARTING)
    assert owner_of(agent) == U
