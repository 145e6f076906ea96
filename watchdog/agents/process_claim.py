"""Whether a pid may be registered as an agent's main process, by the kernel's present answer.

Reads /proc through `processes.identity`; a failed read is UNKNOWN and refuses, it never passes as "fine".

Tests: tests/agents/test_registration.py, tests/discovery/test_foreign_registry.py.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from watchdog.agents.fleet import Fleet
from watchdog.core.peer import Peer
from watchdog.core.process import Identity
from watchdog.errors import BadRequest, Conflict, Forbidden, ProcessHidden, ProcessNotFound
from watchdog.processes import identity as identities
from watchdog.processes import pidfd_info
from watchdog.processes.bounded import Unreadable
from watchdog.processes.identity import Seen, ThreadSeen
from watchdog.processes.reader import awaited
from watchdog.processes.signals import ancestors

_WRAPPER = "agent-watchdog"  # comm that `run` gives itself (cli.run.prctl)


@dataclass(frozen=True, slots=True)
class ProcessClaim:
    """A process that may be registered: its identity, the user that has all its uids, its program's name (comm)."""

    identity: Identity
    uid: int
    name: str


Look = Seen | ThreadSeen | OSError  # result of one look at a pid


async def look_at(pids: Iterable[int], host: str) -> dict[int, Look]:
    """The kernel's view of these pids now, in one call; a read that hangs delays no other.

    For a claim, no file of a process is read anywhere else: its owner decides how long such a read takes.
    """
    wanted = tuple(dict.fromkeys(pids))
    try:
        found: dict[int, Look] = await awaited(None, identities.look_at, wanted, host)
    except OSError as error:
        return dict.fromkeys(wanted, error)
    return found


async def identify_pid(pid: int, peer: Peer, fleet: Fleet, host: str, for_agent: str | None = None) -> ProcessClaim:
    """Read a process and return its claim, or refuse. Raises as `checked`."""
    return checked(pid, (await look_at([pid], host))[pid], peer, fleet, for_agent)


def checked(pid: int, seen: Look, peer: Peer, fleet: Fleet, for_agent: str | None = None) -> ProcessClaim:
    """Turn the kernel's view of a process into a claim, or refuse.

    A process whose uids differ is refused, whoever registers it: in a setuid program a user's process looks like
    root's. `for_agent` may have it already. Raises ProcessNotFound, Forbidden (another user's), BadRequest (never an
    agent), Conflict (another agent's), ProcessHidden (the kernel did not show it).
    """
    if pid == os.getpid() or pid in ancestors():
        raise BadRequest(f"pid: {pid} is the daemon itself or one of its ancestors, which it cannot watch")
    try:
        _same_namespace(pid, peer)
    except OSError as error:
        raise ProcessHidden(f"pid: {error.strerror or error}; nothing is known of process {pid} (hidepid?)") from error
    if isinstance(seen, ThreadSeen | ProcessLookupError):
        raise ProcessNotFound(f"pid: there is no process {pid}") from None
    if isinstance(seen, Unreadable):
        raise ProcessHidden(f"pid: {seen.strerror}; nothing is known of it: try again when it can be read") from seen
    if isinstance(seen, OSError):
        raise ProcessHidden(f"pid: {seen.strerror or seen}; nothing is known of process {pid} (hidepid?)") from seen
    if seen.stat.kernel_thread:
        raise BadRequest(f"pid: {pid} is a kernel thread")
    if seen.stat.dead:
        raise ProcessNotFound(f"pid: process {pid} has ended already (a zombie)")
    if seen.uids.one is None:
        raise Forbidden(
            f"pid: process {pid} runs with {seen.uids} (a setuid program?); register it when all four are one user's"
        )
    found = ProcessClaim(seen.identity, seen.uids.one, seen.stat.name)
    if not peer.may(found.uid):
        raise Forbidden(f"pid: process {pid} runs as uid {found.uid}, you are uid {peer.uid}; register your own")
    if os.geteuid() not in (0, found.uid):
        raise Forbidden(
            f"pid: process {pid} runs as uid {found.uid}; this daemon is uid {os.geteuid()}'s and cannot kill it"
        )
    if found.name == _WRAPPER:
        _refuse_wrapper(pid, peer, fleet)
    refuse_twice(found, peer, fleet, for_agent)
    return found


def refuse_twice(found: ProcessClaim, peer: Peer, fleet: Fleet, for_agent: str | None = None) -> None:
    """A process is the main process of at most one agent. Raises Conflict."""
    for agent in fleet:
        other = agent.identity
        if agent.agent_id != for_agent and other is not None and other.same_process(found.identity):
            whose = f"agent {agent.agent_id} ({agent.reg.name})" if peer.may(agent.reg.owner_uid) else "another agent"
            raise Conflict(f"pid: process {other.pid} is the main process of {whose} already")


def _refuse_wrapper(pid: int, peer: Peer, fleet: Fleet) -> None:
    """A `run` is not the agent: it would be killed, with its agent, for a silence that is not its own."""
    for agent in fleet:
        main = agent.identity
        if main is None or _parent_of(main) != pid:
            continue
        whose = f"agent {agent.agent_id} ({agent.reg.name})" if peer.may(agent.reg.owner_uid) else "another agent"
        raise Conflict(f"pid: {pid} is the `agent-watchdog run` of {whose}, which is registered; name that one")


def _parent_of(identity: Identity) -> int | None:
    """The pid of that very process's parent now; None when the process is gone or cannot be seen."""
    try:
        pidfd = identities.pin(identity)
        if pidfd is None:
            return None
        try:
            known = pidfd_info.info(pidfd)
            if known is not None:
                return known.parent_pid
            stat = identities.read_stat(identity.pid, pidfd)
        finally:
            os.close(pidfd)
    except OSError:
        return None
    return None if stat is None else stat.parent_pid


async def has_ended(pid: int, host: str) -> bool:
    """Whether there is provably no such living process; a process that cannot be seen has not ended."""
    if pid == 0:  # it is in a pid namespace that is not visible here
        return False
    seen = (await look_at([pid], host))[pid]
    if isinstance(seen, Seen):
        return seen.stat.dead and not seen.stat.kernel_thread
    return isinstance(seen, ThreadSeen | ProcessLookupError)


def foreign_number(peer: Peer) -> bool:
    """Whether a pid sent by this peer was read in another pid namespace, and so means another process here.

    This is unknown, and False, for a peer that has ended meanwhile or may not be inspected.
    """
    try:
        return peer.pid == 0 or identities.pid_namespace(peer.pid) != identities.pid_namespace(os.getpid())
    except OSError:
        return False


def _same_namespace(pid: int, peer: Peer) -> None:
    """A pid read in another pid namespace means another process here, or none (pid_namespaces(7))."""
    if peer.pid == 0:  # SO_PEERCRED is translated into our namespace; 0: the peer has no pid in it
        raise BadRequest("pid: you are in a pid namespace that the daemon cannot see into; register without a pid")
    if pid == peer.pid:
        return
    try:
        theirs, ours = identities.pid_namespace(peer.pid), identities.pid_namespace(os.getpid())
    except ProcessLookupError:
        raise ProcessHidden("pid: you exited before the daemon could see which pid namespace you were in") from None
    if theirs != ours:
        raise BadRequest(f"pid: {pid} is a number of your own pid namespace and means nothing in the daemon's")
