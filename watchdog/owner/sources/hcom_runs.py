"""What hcom keeps outside its database: the pid file and launch scripts; and what its processes show.

Tests: tests/owner/sources/test_hcom.py.
"""

import contextlib
import itertools
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from watchdog.core.source_entries import Became
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import files, kernel
from watchdog.owner.sources.base import Forgotten

PID_FILE = ".tmp/launched_pids.json"
SCRIPT_BYTES = 65536  # real ones have 3000
MOST_SCRIPTS = 4096  # checked at most; hcom removes only those of panes
BEFORE, AFTER = 60.0, 900.0  # seconds around a row's creation in which its scripts are written
LAUNCH = 120.0  # seconds from a row's creation until its pid is written: hcom itself gives up after 30
_PROCESS = re.compile(r"\bHCOM_PROCESS_ID=([0-9A-Za-z-]{8,64});")
LEFTOVERS = "pid:"  # prefix of their keys
_LEFTOVER = re.compile(r"pid:(\d{1,9})")
_IDENTITY = re.compile(r"linux:([0-9a-f-]{36}):(\d{1,20})")
_TERMINALS = ("tmux", "kitty", "wezterm")


def launched(root: str) -> tuple[dict[int, dict[str, Any]], int, str]:
    """The pid file by pid, its owner, and why it cannot be read (then hcom itself ignores it)."""
    try:
        data, status = files.read_json(os.path.join(root, PID_FILE))
    except FileNotFoundError:
        return {}, os.geteuid(), ""
    except OwnerCallFailed as error:
        return {}, os.geteuid(), str(error)
    pids = {int(pid): one for pid, one in _entries(data).items() if 1 < int(pid) <= kernel.pid_max()}
    return pids, status.st_uid, ""


def _entries(data: object) -> dict[str, dict[str, Any]]:
    if not isinstance(data, dict):
        return {}
    return {
        pid: one
        for pid, one in data.items()
        if re.fullmatch("[0-9]{1,10}", pid) and isinstance(one, dict) and isinstance(one.get("names"), list)
    }


def drop(root: str, pid: str, same: Callable[[dict[str, Any]], bool]) -> bool:
    """Remove that pid from the pid file if its entry is the `same`; whether it was removed."""
    path = os.path.join(root, PID_FILE)

    def edit(text: str) -> str | None:
        one = _entries(files.parsed(path, text)).get(pid)
        return files.without(text, pid) if one is not None and same(one) else None

    return files.change(path, edit)


def leftover_key(pid: int) -> str:
    """The key of a process in the pid file that no row has."""
    return f"{LEFTOVERS}{pid}"


def is_leftover(key: str) -> bool:
    """Whether that key is one of those."""
    return _LEFTOVER.fullmatch(key) is not None


def leftover_token(one: Mapping[str, Any]) -> str:
    """Changes when the pid there means another run."""
    return f"{one.get('launched_at')} {one.get('process_id', '')}"


def forget_leftover(root: str, key: str, token: str) -> Forgotten:
    """Remove one of those. Raises OSError, OwnerCallFailed."""
    pid = key.removeprefix("pid:")
    if drop(root, pid, lambda one: leftover_token(one) == token):
        return Forgotten(Became.DONE, f"hcom no longer lists the process {pid}")
    there = int(pid) in launched(root)[0]
    return Forgotten(Became.CHANGED, f"{pid} is another run's by now") if there else Forgotten(Became.GONE, key)


def identity(
    pid: int, noted: str, processes: list[str], since: float | None, created: float | None
) -> tuple[int | None, str | None, float | None]:
    """Which process that pid means: ticks and boot as recorded, or since when the pid is there.

    The recorded identity may not belong to the pid next to it: hcom puts a new pid into the row of a resumed agent and
    keeps the old identity. The process that carries the agent's own HCOM_PROCESS_ID is the agent.
    """
    if processes and _carries(pid, processes):
        one = kernel.process(pid)
        return one.ticks if one else None, kernel.this_boot(), None
    if match := _IDENTITY.fullmatch(noted):
        return int(match[2]), match[1], None
    if since is None and created is not None:
        since = created + LAUNCH
    return None, None, since


def _carries(pid: int, processes: list[str]) -> bool:
    return kernel.environ(pid).get("HCOM_PROCESS_ID") in processes


def scripts(root: str, births: list[float]) -> dict[str, tuple[str, ...]]:
    """The launch scripts of runs that began around `births`, by the process id in them.

    hcom removes only those of panes, and only at their own end. The logs next to them stay: the snapshot of a stopped
    agent names its log.
    """
    found: dict[str, tuple[str, ...]] = {}
    try:
        with os.scandir(os.path.join(root, ".tmp/launch")) as entries:
            listed = list(itertools.islice(entries, MOST_SCRIPTS))
    except OSError:
        return found
    for entry in sorted(listed, key=lambda one: one.name):
        with contextlib.suppress(OSError, OwnerCallFailed):
            written = entry.stat(follow_symlinks=False).st_mtime
            if not entry.name.endswith(".sh") or not any(b - BEFORE <= written <= b + AFTER for b in births):
                continue
            text, status = files.read(entry.path, SCRIPT_BYTES)
            processes = set(_PROCESS.findall(text))
            if len(processes) == 1 and status.st_uid == os.geteuid():
                process = processes.pop()
                found[process] = (*found.get(process, ()), entry.path)
    return found


def pane(pid: int, told: Mapping[str, Any]) -> dict[str, str] | None:
    """The pane that hcom opened for it, if it is in a supported terminal."""
    preset = str(told.get("terminal_preset_effective") or told.get("terminal_preset") or "")
    terminal = next((one for one in _TERMINALS if preset == one or preset.startswith(f"{one}-")), None)
    number = told.get("pane_id")
    if terminal is None or not isinstance(number, str) or not number or not number.isprintable():
        return None
    servers = {"tmux": "", "kitty": str(told.get("kitty_listen_on") or ""), "wezterm": ""}
    server = servers[terminal]
    if terminal == "tmux":  # the server is not recorded, but is in the environment of the pane's processes
        server = kernel.environ(pid).get("TMUX", "").split(",")[0]
    return {"terminal": terminal, "pane": number} | ({"server": server} if server else {})
