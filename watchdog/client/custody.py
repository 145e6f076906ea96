"""Find another daemon that watches a process, by asking at the daemons' control sockets as the process's owner.

Root's daemon opens no path that a user controls, so the owner's helper calls this for it; the answer is only that
user's claim about their own process. For a process of its own uid a daemon calls this itself.
"""

import json
import os
import socket
import stat
import struct
import time
from collections.abc import Mapping
from typing import Any

_UCRED = struct.Struct("iII")
SECONDS = 0.5  # for the complete answer of one daemon
MOST_BYTES = 1 << 22
MOST = 8  # sockets to ask


def daemon_of(
    pid: int, start_ticks: int, sockets: list[str], but: str, environment: Mapping[str, str]
) -> dict[str, Any] | None:
    """The first daemon that watches that process, and the agent that the process belongs to there.

    `sockets`: where daemons usually listen; the socket in the process's `environment` is asked first. `but`: the
    asking daemon's own socket, which is skipped. The answer contains "socket", "pid" and "uid" of the daemon, and
    "agent_id" and "name" of the agent. Takes up to `SECONDS` for each of `MOST` sockets; a socket without a valid
    answer is skipped.
    """
    named = environment.get("AGENT_WATCHDOG_SOCKET", "")
    for path in dict.fromkeys([*([named] if named.startswith("/") else []), *sockets][:MOST]):
        if path == but or not _trusted(os.path.dirname(path)):
            continue
        try:
            answer, daemon_pid, uid = _ask(path)
        except (OSError, ValueError, KeyError):
            continue
        for one in answer["held"]:
            if (one["pid"], one["start_ticks"]) == (pid, start_ticks):
                told = {"agent_id": str(one["agent_id"])[:64], "name": str(one["name"])[:64]}
                return {"socket": path, "pid": daemon_pid, "uid": uid, **told}
    return None


def _trusted(directory: str) -> bool:
    """Whether only root and this uid can create sockets there."""
    try:
        found = os.lstat(directory)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def _ask(path: str) -> tuple[dict[str, Any], int, int]:
    """The agent according to one daemon, and the daemon's pid and uid. Raises OSError, ValueError, KeyError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        deadline = time.monotonic() + SECONDS
        connection.settimeout(SECONDS)
        connection.connect(path)
        pid, uid, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        if uid not in (0, os.geteuid()):
            raise ValueError(f"the daemon at {path} runs as uid {uid}")
        connection.sendall(b"GET /v1/custody HTTP/1.1\r\nHost: agent-watchdog\r\nConnection: close\r\n\r\n")
        received = bytearray()
        while piece := connection.recv(65536):
            received += piece
            connection.settimeout(max(0.001, deadline - time.monotonic()))  # for the whole answer, however slow
            if len(received) > MOST_BYTES:
                raise ValueError("its answer is too long")
    head, _, body = bytes(received).partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise ValueError("it does not support that request")
    answer = json.loads(body)
    if not isinstance(answer, dict) or not isinstance(answer["held"], list):
        raise ValueError("its answer is not valid")
    return answer, pid, uid
