"""A user writes lines into root's log, or fields into the journal: by names, paths, notes, reasons, programs.

All of it held when it was first tried, in a file and by journald's native protocol (a socket of ours in its place).
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.test_admission import ask_as
from tests.attacks.test_held import dangerous
from tests.world import World, wait_for
from watchdog.telemetry.catalogue import CATALOGUE

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other people's processes"),
]
MALLORY = 12100
FORGED = '\n{"event":"kill.finished","forged":1}\nFORGED=1\nMESSAGE=forged\x1b[2J\x1b]0;owned\x07\u2028\u202e'
LONG = FORGED + "x" * 20_000
# A process that calls itself so (prctl(2), PR_SET_NAME: 15 bytes).
NAMED = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, b"a\\nFORGED=1\\n\\x1b[2J")
time.sleep(1000)
"""


def attack(world: World) -> None:
    """All words that the daemon takes from a user, and then an end, so that they are told."""
    place = world.dir / "mallory"
    odd = place / FORGED  # a repository, for which its helper keeps the temp dir, and says so
    (odd / ".git/refs").mkdir(parents=True)
    (odd / ".git/HEAD").write_text("ref: refs/heads/main")
    for path in (place, odd, odd / ".git", odd / ".git/refs", odd / ".git/HEAD"):
        os.chown(path, MALLORY, MALLORY)
    process = subprocess.Popen(
        [sys.executable, "-c", NAMED],
        user=MALLORY,
        group=MALLORY,
        extra_groups=[],
        cwd="/",
        env={"WORLD": str(world.dir)},
    )
    world.started.append(process)
    wait_for(lambda: b"FORGED" in Path(f"/proc/{process.pid}/comm").read_bytes(), "its name")

    def ask(path: str, body: object) -> int:
        return ask_as(world, MALLORY, "POST", path, body)[0]

    for words in (FORGED, LONG):
        for key in ("name", "task", "type", "temp_dir", "log", "worktree", "transcript"):
            ask("/v1/agents", {"name": "odd", key: words})
    assert ask("/v1/agents", {"name": "hers", "pid": process.pid, "temp_dir": str(place)}) == 201
    for words in (FORGED, LONG):
        for key in ("note", "tool", "asks"):
            ask("/v1/agents/hers/beat", {key: words})
        ask("/v1/hold", {"targets": ["hers"], "reason": words})
        ask("/v1/unhold", {"targets": ["hers"]})
        ask("/v1/kill", {"targets": [words[:300]], "reason": words})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
        told = world.agents()["hers"]["agent_id"]
        speaker.sendto(f"WATCHDOG=1\nSTATUS={FORGED}".encode("utf-8", "replace"), str(world.runtime / "notify" / told))
    assert ask("/v1/kill", {"targets": ["hers"], "force": True, "reason": FORGED}) == 200
    process.wait()


def test_no_line_of_the_log_file_is_a_users(world: World) -> None:
    world.start()
    attack(world)
    world.stop()
    lines = world.log.read_bytes().decode().splitlines()
    assert any("forged" in line for line in lines), "its words are there"
    for line in lines:
        told = json.loads(line)
        assert told["event"] in CATALOGUE and "forged" not in told and "FORGED" not in told
        assert dangerous(line) == []
        assert len(line) < 32_768


def test_no_field_of_the_journal_is_a_users(world: World) -> None:
    directory = world.dir / "journal"
    directory.mkdir()
    received: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journald:
        journald.bind(str(directory / "socket"))
        journald.settimeout(0.2)
        over = threading.Event()

        def receive() -> None:
            while not over.is_set():
                try:
                    received.append(journald.recv(1 << 20))
                except OSError:  # nothing within its time, or the test has failed
                    continue

        receiving = threading.Thread(target=receive)
        receiving.start()
        world.log.touch()
        found = world.log.stat()
        script = (
            f"mount -t tmpfs x /run && mkdir -p /run/systemd/journal && mount --bind {directory} /run/systemd/journal"
        )
        world.start(
            prefix=("unshare", "--mount", "--propagation", "private", "sh", "-c", f'{script} && exec "$0" "$@"'),
            wait=False,
            JOURNAL_STREAM=f"{found.st_dev}:{found.st_ino}",
        )
        wait_for(lambda: any(b"EVENT=daemon.ready" in one for one in received), "it is ready")
        attack(world)
        world.stop()
        over.set()
        receiving.join()
    assert any(b"forged" in one for one in received), "its words are there"
    for one in received:
        fields = parsed(one)
        assert fields["EVENT"] in CATALOGUE
        assert fields["SYSLOG_IDENTIFIER"] == "agent-watchdogd"
        assert "FORGED" not in fields
        for key, value in fields.items():
            assert re.fullmatch(r"[A-Z][A-Z0-9_]*", key)
            assert dangerous(value) == [] and len(value) < 32_768


def parsed(data: bytes) -> dict[str, Any]:
    """By systemd.io/JOURNAL_NATIVE_PROTOCOL; a field that comes twice fails."""
    fields: dict[str, str] = {}
    while data:
        head, _, rest = data.partition(b"\n")
        key, equals, value = head.partition(b"=")
        if not equals:
            size = int.from_bytes(rest[:8], "little")
            value, rest = rest[8 : 8 + size], rest[9 + size :]
        assert key.decode() not in fields, key
        fields[key.decode()] = value.decode()
        data = rest
    return fields
