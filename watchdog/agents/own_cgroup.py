"""An agent's own cgroup: asked for while `run` holds it back, and known from then on.

Where systemd runs it is the one who writes to cgroups: we ask it for the scope `agent-<id>.scope`, root's daemon in the
owner's slice, a user's daemon the user manager. Elsewhere we make a leaf of cgroup v2: root below the root, a user
below his own cgroup where that was delegated to him. It is never below our service, which is not to end agents.
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

ANSWER = 0.8  # seconds that `run` is kept waiting: it lets its agent go after 1 s in any case
ARRIVAL = 30.0  # seconds that systemd may take after that until we no longer look
NSS_SECONDS = 5.0  # at start, for the answer whether our user manager outlives our logins
LOOK = 0.005  # seconds between two looks where the process is; systemd 252 takes 20 to 40 ms
AT_ONCE = 8  # asks of systemd; each is a process of ours
OURS = "/agent-watchdog"  # root's leaves, below the root of cgroup v2
_LEAF = re.compile("agent-[0-9a-f]{32}")


class CgroupKind(StrEnum):
    """What this host gives to an agent."""

    SCOPE = "scope"
    LEAF = "leaf"
    NONE = "none"


class CgroupPlacement:
    """Knows which kind this host gives, asks for it, and takes it up again after a restart."""

    def __init__(self, fleet: Fleet, registry: AsyncRegistry, log: EventLogger) -> None:
        self._fleet = fleet
        self._registry = registry
        self._log = log
        self._asking = asyncio.Semaphore(AT_ONCE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failing = False
        self._base = ""  # above the leaves
        self.kind, self.why = self._look()

    def __str__(self) -> str:
        """The kind, and why it is none, for people."""
        return f"{self.kind}: {self.why}" if self.why else self.kind

    async def place(self, agent: Agent) -> None:
        """Have an agent moved that `run` holds back. It goes without when that cannot be done; said once."""
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
        """At start, before any order goes on.

        A former daemon may have died before it wrote down where an agent is, or while a tree was frozen: then everybody
        in it waits for us. Leaves that are empty and nobody's are removed.
        """
        for agent in self._fleet:
            if agent.reg.source == "run" and agent.reg.own_cgroup is None and agent.identity is not None:
                with contextlib.suppress(OSError):
                    self._found(agent, agent.identity)
            if agent.reg.own_cgroup is not None and agent.status in (Status.ENDING, Status.UNKILLABLE):
                cgroups.thaw_if_ours(agent.reg.own_cgroup)
        self._clear()

    async def close(self) -> None:
        """Wait for nobody any more."""
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
        except Exception as error:  # noqa: BLE001 - whatever it is, one agent goes without, and it is said
            self._failed(f"{type(error).__name__}: {error}")
            return
        if self._failing:
            self._failing = False
            self._log.event("cgroup.works", kind=self.kind)
        with contextlib.suppress(RegistryUnavailable, Conflict):  # a later daemon finds it there; no row, no daemon
            await self._registry.write(
                self._registry.agent_details.set_cgroup, agent.agent_id, agent.reg.own_cgroup or ""
            )

    async def _refuse_confined(self, agent: Agent, main: Identity) -> None:
        """Its user must not get it out of what root has laid on it, which we could. Raises PermissionError, OSError."""
        uid, path = agent.reg.owner_uid, cgroups.path_of(main.pid)
        if os.geteuid() != 0 or uid == 0 or path is None:
            return
        why = (
            cgroup_limits.of_cgroups(path) if self.kind is CgroupKind.LEAF else await cgroup_limits.of_units(path, uid)
        )
        if why is not None:
            raise PermissionError(errno.EPERM, why)

    def _found(self, agent: Agent, main: Identity) -> bool:
        """Whether the main process sits in the cgroup that was made for it, which then is the agent's.

        By its name, and because we own its directory: nobody else makes one of that name for us. Raises OSError when
        there is no such process.
        """
        path = cgroups.path_of(main.pid)
        if path is None or path.rpartition("/")[2] not in cgroup_names(agent.agent_id):
            return False
        if cgroups.owner_of(path) != os.geteuid() or presence(main, agent.tree.pidfd) is not Presence.ALIVE:
            raise ProcessLookupError(f"{path} was not made by this daemon, or holds another process")
        agent.amend(replace(agent.reg, cgroup=path))
        oom.note(agent)
        return True

    def _failed(self, why: str) -> None:
        """Agents go without; said once, until it works again."""
        if not self._failing:
            self._failing = True
            self._log.event("cgroup.refused", kind=self.kind, why=why)

    def leaves(self) -> dict[str, str]:
        """Empty leaves of no living agent, by the agent's id: a daemon died before it could remove them."""
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
    """Its row is closed: its leaf goes. Scopes are systemd's, which removes them when they are empty."""
    if agent.reg.own_cgroup is not None and not agent.reg.own_cgroup.endswith(".scope"):
        _remove(agent.reg.own_cgroup)


def _refuse_ended(agent: Agent, main: Identity) -> None:
    """Right before its number is used, which may be another user's by now: who waits for his turn may wait for long.

    Raises ProcessLookupError.
    """
    if presence(main, agent.tree.pidfd) is not Presence.ALIVE:
        raise ProcessLookupError(f"process {main.pid} has ended")


def _into_leaf(pid: int, leaf: str) -> None:
    """Make it and move the process there. Raises OSError."""
    for last in (False, False, True):
        cgroups.create(leaf)
        try:
            cgroups.move(pid, leaf)
            break
        except OSError as error:  # another daemon's `_clear` found it empty
            if last or error.errno not in cgroup_walk.GONE:
                raise


def _lingers(uid: int) -> bool:
    """Whether a user's manager outlives his logins (loginctl(1), enable-linger). No answer in time: it may not."""

    def look() -> bool:
        return os.path.exists(f"/var/lib/systemd/linger/{pwd.getpwuid(uid).pw_name}")

    try:
        return threads.call_now(threads.NSS, look, NSS_SECONDS)
    except (KeyError, threads.Unanswered):
        return False


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        cgroups.remove(path)  # one with somebody in it stays, and is looked at again


async def _ask_systemd(agent: Agent, main: Identity) -> None:
    """Ask for the scope. The answer only says that systemd has begun. Raises OSError."""
    argv, environment = scope_argv(agent, main.pid), _bus_environment(os.environ)
    status, words = await children.finished(*argv, seconds=ARRIVAL, told="stderr", env=environment)
    if status:
        raise OSError(f"systemd refuses: {words.decode('utf-8', 'replace').strip()[-200:]}")


def scope_argv(agent: Agent, pid: int) -> list[str]:
    """StartTransientUnit of org.freedesktop.systemd1(5): a scope takes processes that are there, in PIDs."""
    properties: list[Iterable[str]] = [
        ("Description", "s", f"Agent {agent.reg.name}"),
        ("CollectMode", "s", "inactive-or-failed"),  # nothing is left of it, however its processes ended
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
    """Ours, with the user manager's own bus: a daemon that was started by hand may know none, or another."""
    bus = f"/run/user/{os.geteuid()}/bus"
    told = {"DBUS_SESSION_BUS_ADDRESS": f"unix:path={bus}"} if os.path.exists(bus) else {}
    return {**environ, **told}
