"""An agent's own cgroup: requested while `run` holds the agent back, and recorded from then on.

Under systemd, only systemd writes to cgroups: we ask it for the scope `agent-<id>.scope`, root's daemon in the owner's
slice, a user's daemon through the user manager. Elsewhere we make a leaf of cgroup v2: root below the root cgroup, a
user below its own cgroup where that is delegated to it. It is never below our own service, whose stop must not kill
agents.
"""

import asyncio
import contextlib
import errno
import os
import pwd
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum

from watchdog.agents import cgroup_limits, oom
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.concurrency import threads
from watchdog.core.agent import Status
from watchdog.core.process import Identity, Presence, cgroup_names
from watchdog.errors import Conflict, RegistryUnavailable
from watchdog.host import children
from watchdog.processes import cgroup_walk, cgroups
from watchdog.processes.identity import presence
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.telemetry.logger import EventLogger

ANSWER = 0.8  # seconds that `run` is kept waiting; it starts its agent after 1 s in any case
ARRIVAL = 30.0  # seconds that systemd may take after that until we stop checking
NSS_SECONDS = 5.0  # at start, for the answer whether our user manager outlives our logins
LOOK = 0.005  # seconds between two checks where the process is; systemd 252 takes 20 to 40 ms
AT_ONCE = 8  # requests to systemd; each is a process of ours
OURS = "/agent-watchdog"  # leaves made by root, below the root of cgroup v2
_LEAF = re.compile("agent-[0-9a-f]{32}")


class CgroupKind(StrEnum):
    """The kind of cgroup that this host offers for an agent."""

    SCOPE = "scope"
    LEAF = "leaf"
    NONE = "none"


class CgroupPlacement:
    """Knows which kind this host offers, requests it, and finds it again after a restart."""

    def __init__(self, fleet: Fleet, registry: AsyncRegistry, log: EventLogger) -> None:
        self._fleet = fleet
        self._registry = registry
        self._log = log
        self._asking = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failing = False
        self._base = ""  # path above the leaves
        self.kind, self.why = self._look()

    def __str__(self) -> str:
        """The kind, or why there is none, for display."""
        return f"{self.kind}: {self.why}" if self.why else self.kind

    async def place(self, agent: Agent) -> None:
        """Move an agent that `run` holds back. If that fails, it runs without a cgroup of its own; reported once."""
        main, number = agent.identity, agent.agent_id
        if self.kind is CgroupKind.NONE or agent.reg.own_cgroup is not None or main is None:
            return
        task = self._tasks.get(number)
        if task is None:
            task = self._tasks[number] = asyncio.create_task(self._place(agent, main))
            task.add_done_callback(lambda _: self._tasks.pop(number))
        done, _ = await asyncio.wait([task], timeout=ANSWER)
        if not done:
            self._failed(f"no answer within {ANSWER:g} s")

    def take_up(self) -> None:
        """At start, before any kill order is resumed: find the cgroups of an earlier daemon.

        It may have died before it recorded an agent's cgroup, or while a tree was frozen; then all processes in it wait
        for us. Empty leaves without an agent are removed.
        """
        for agent in self._fleet:
            if agent.reg.source == "run" and agent.reg.own_cgroup is None and agent.identity is not None:
                with contextlib.suppress(OSError):
                    self._found(agent, agent.identity)
            if agent.reg.own_cgroup is not None and agent.status in (Status.ENDING, Status.UNKILLABLE):
                cgroups.thaw_if_ours(agent.reg.own_cgroup)
        self._clear()

    async def close(self) -> None:
        """Stop waiting."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _look(self) -> tuple[CgroupKind, str]:
        if cgroups.version_2() is None:
            return CgroupKind.NONE, "cgroup v2 is not mounted"
        if os.path.isdir("/run/systemd/system"):  # sd_booted(3)
            if os.geteuid() and not _lingers(os.geteuid()):
                return (
                    CgroupKind.NONE,
                    "your user manager kills everything it runs when your last login ends (enable-linger)",
                )
            return CgroupKind.SCOPE, ""
        try:
            own = "" if os.geteuid() == 0 else cgroups.path_of(os.getpid()) or ""
            self._base = OURS if os.geteuid() == 0 else own
            trial = f"{self._base}/{cgroup_names('0' * 32)[1]}"
            cgroups.create(trial)
            cgroups.remove(trial)
        except OSError as error:
            return CgroupKind.NONE, f"no systemd, and no cgroup v2 that uid {os.geteuid()} may divide: {error.strerror}"
        return CgroupKind.LEAF, ""

    async def _place(self, agent: Agent, main: Identity) -> None:
        try:
            await self._refuse_confined(agent, main)
            if self.kind is CgroupKind.LEAF:
                self._clear()
                _refuse_ended(agent, main)
                _into_leaf(main.pid, f"{self._base}/{cgroup_names(agent.agent_id)[1]}")
            else:
                async with self._asking:
                    _refuse_ended(agent, main)
                    await _ask_systemd(agent, main)
            async with asyncio.timeout(ARRIVAL):
                while not self._found(agent, main):
                    await asyncio.sleep(LOOK)
        except (OSError, TimeoutError) as error:
            if presence(main, agent.tree.pidfd) is not Presence.ABSENT:
                self._failed(error.strerror or str(error) or "it does not arrive there")
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, only this agent goes without, and it is reported
            self._failed(f"{type(error).__name__}: {error}")
            return
        if self._failing:
            self._failing = False
            self._log.event("cgroup.works", kind=self.kind)
        # a later daemon finds it there; without a row there is no agent
        with contextlib.suppress(RegistryUnavailable, Conflict):
            await self._registry.write(
                self._registry.agent_details.set_cgroup, agent.agent_id, agent.reg.own_cgroup or ""
            )

    async def _refuse_confined(self, agent: Agent, main: Identity) -> None:
        """Its user must not use us to escape limits that root has set. Raises PermissionError, OSError."""
        uid, path = agent.reg.owner_uid, cgroups.path_of(main.pid)
        if os.geteuid() != 0 or uid == 0 or path is None:
            return
        why = (
            cgroup_limits.of_cgroups(path) if self.kind is CgroupKind.LEAF else await cgroup_limits.of_units(path, uid)
        )
        if why is not None:
            raise PermissionError(errno.EPERM, why)

    def _found(self, agent: Agent, main: Identity) -> bool:
        """Whether the main process is in the cgroup that was made for it; if so, record it as the agent's.

        Recognised by its name and by our ownership of its directory: no one else makes one of that name for us. Raises
        OSError when there is no such process.
        """
        path = cgroups.path_of(main.pid)
        if path is None or path.rpartition("/")[2] not in cgroup_names(agent.agent_id):
            return False
        if cgroups.owner_of(path) != os.geteuid() or presence(main, agent.tree.pidfd) is not Presence.ALIVE:
            raise ProcessLookupError(f"{path} was not made by this daemon, or holds another process")
        agent.amend(replace(agent.reg, cgroup=path))
        oom.record_counts(agent)
        return True

    def _failed(self, why: str) -> None:
        """Agents go without a cgroup of their own; reported once until it works again."""
        if not self._failing:
            self._failing = True
            self._log.event("cgroup.refused", kind=self.kind, why=why)

    def leaves(self) -> dict[str, str]:
        """Empty leaves without a living agent, by agent id: a daemon died before it could remove them."""
        if self.kind is not CgroupKind.LEAF:
            return {}
        living = {cgroup_names(agent.agent_id)[1] for agent in self._fleet}
        names = [name for name in cgroups.below(self._base) if _LEAF.fullmatch(name) and name not in living]
        paths = {name.removeprefix("agent-"): f"{self._base}/{name}" for name in names}
        return {agent_id: path for agent_id, path in paths.items() if not cgroups.events(path).populated}

    def _clear(self) -> None:
        for path in self.leaves().values():
            _remove(path)


def leave(agent: Agent) -> None:
    """Its row is closed: remove its leaf. systemd removes empty scopes itself."""
    if agent.reg.own_cgroup is not None and not agent.reg.own_cgroup.endswith(".scope"):
        _remove(agent.reg.own_cgroup)


def _refuse_ended(agent: Agent, main: Identity) -> None:
    """Check right before its pid is used: the wait for a turn may be long, and the pid may have been reused.

    Raises ProcessLookupError.
    """
    if presence(main, agent.tree.pidfd) is not Presence.ALIVE:
        raise ProcessLookupError(f"process {main.pid} has ended")


def _into_leaf(pid: int, leaf: str) -> None:
    """Make the leaf and move the process there. Raises OSError."""
    for last in (False, False, True):
        cgroups.create(leaf)
        try:
            cgroups.move(pid, leaf)
            break
        except OSError as error:  # the `_clear` of another daemon found it empty
            if last or error.errno not in cgroup_walk.GONE:
                raise


def _lingers(uid: int) -> bool:
    """Whether the manager of a user outlives its logins (loginctl(1), enable-linger). No answer in time: False."""

    def look() -> bool:
        return os.path.exists(f"/var/lib/systemd/linger/{pwd.getpwuid(uid).pw_name}")

    try:
        return threads.call_now(threads.NSS, look, NSS_SECONDS)
    except (KeyError, threads.Unanswered):
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        cgroups.remove(path)  # one that is not empty stays, and is tried again later


async def _ask_systemd(agent: Agent, main: Identity) -> None:
    """Ask for the scope. The answer only says that systemd has begun. Raises OSError."""
    argv, environment = scope_argv(agent, main.pid), _bus_environment(os.environ)
    status, words = await children.finished(*argv, seconds=ARRIVAL, told="stderr", env=environment)
    if status:
        raise OSError(f"systemd refuses: {words.decode('utf-8', 'replace').strip()[-200:]}")


def scope_argv(agent: Agent, pid: int) -> list[str]:
    """StartTransientUnit of org.freedesktop.systemd1(5): a scope takes existing processes, given in PIDs."""
    properties: list[Iterable[str]] = [
        ("Description", "s", f"Agent {agent.reg.name}"),
        ("CollectMode", "s", "inactive-or-failed"),  # leave nothing behind, however its processes ended
        ("PIDs", "au", "1", str(pid)),
    ]
    if os.geteuid() == 0:
        properties.append(("Slice", "s", f"user-{agent.reg.owner_uid}.slice"))
    manager = "org.freedesktop.systemd1"
    return [
        *("busctl", "--system" if os.geteuid() == 0 else "--user", "--quiet", "call"),
        *(manager, f"/{manager.replace('.', '/')}", f"{manager}.Manager", "StartTransientUnit", "ssa(sv)a(sa(sv))"),
        *(cgroup_names(agent.agent_id)[0], "fail", str(len(properties))),
        *(word for each in properties for word in each),
        "0",
    ]


def _bus_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the bus of our user manager: a daemon started by hand may have none, or another one."""
    bus = f"/run/user/{os.geteuid()}/bus"
    told = {"DBUS_SESSION_BUS_ADDRESS": f"unix:path={bus}"} if os.path.exists(bus) else {}
    return {**environ, **told}
