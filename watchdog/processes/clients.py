"""Shared services (`core.services`) and their possible clients, as processes."""

import os
from typing import NamedTuple

from watchdog.core.services import directory_in, may_be_client, named_in, service_of, works_anywhere
from watchdog.processes import bounded as bounds
from watchdog.processes import procfs
from watchdog.processes.ancestry import MOST
from watchdog.processes.bounded import Unreadable, bounded

_WORDS_LIMIT = 16384  # bytes read from the start of a command line
_NAMES = frozenset({"codex"})  # prefixes of a native client's comm (a release build has a longer name)
Process = tuple[int, int]  # pid and start ticks


class ClientCandidate(NamedTuple):
    """A process that may be a client."""

    chain: tuple[Process, ...]  # itself, and its ancestors
    directory: str | None  # None: on another machine, or not visible
    told: bool  # the directory comes from its arguments, so it may be another name of the same place
    named: frozenset[str]  # sessions that it was asked to resume


@bounded
def service_at(pid: int) -> tuple[str, int] | None:
    """The shared service that a process is a part of, and its start ticks; None: none. Raises OSError."""
    ticks = procfs.stat(pid).start_ticks
    service = service_of(*_called(pid))
    return None if service is None or procfs.stat(pid).start_ticks != ticks else (service, ticks)


@bounded
def clients(uid: int) -> tuple[ClientCandidate, ...]:
    """All processes of that user that may be clients of a shared service. Raises OSError.

    One whose files hang may be one too, with an unknown directory.
    """
    pids = [int(name) for name in os.listdir(procfs.PROC) if name.isdigit()]
    found = bounds.each(pids, lambda pid: _client(pid, uid))
    hung = [pid for pid, one in found.items() if isinstance(one, Unreadable) and _uid(pid) == uid]
    unknown = [ClientCandidate(((pid, 0),), None, told=False, named=frozenset()) for pid in hung]
    return (*(one for one in found.values() if isinstance(one, ClientCandidate)), *unknown)


def _uid(pid: int) -> int | None:
    try:
        return os.stat(f"{procfs.PROC}/{pid}").st_uid
    except OSError:
        return None


def _client(pid: int, uid: int) -> ClientCandidate | None:
    if _uid(pid) != uid:
        return None
    stat = procfs.stat(pid)
    if stat.dead or not stat.name.startswith(tuple(_NAMES)):
        return None
    words, program = _called(pid)
    if not may_be_client(words, program):
        return None
    chain, above = [(pid, stat.start_ticks)], stat.parent_pid
    while above > 0 and len(chain) < MOST:
        try:
            line = procfs.stat(above)
        except OSError:
            break
        chain.append((above, line.start_ticks))
        above = line.parent_pid
    place = None if works_anywhere(words) else _directory(pid)
    told = directory_in(words)
    if place is not None and told is not None:
        place = os.path.normpath(os.path.join(place, told))
    return ClientCandidate(tuple(chain), place, told is not None, named_in(words))


def _called(pid: int) -> tuple[list[str], str]:
    data = procfs.read_of(pid, "cmdline", limit=_WORDS_LIMIT)
    try:
        program = procfs.program_file(pid)
    except PermissionError:
        program = ""
    return [word for word in data.decode("utf-8", "replace").split("\0") if word], program


def _directory(pid: int) -> str | None:
    try:
        with bounds.Reading(pid, "cwd"):
            return os.readlink(f"{procfs.PROC}/{pid}/cwd")
    except OSError:
        return None
