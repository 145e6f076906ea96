"""The agent's notify socket: whose datagrams count, and where it may lie."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from watchdog.cli.run.inbox import Inbox, open_inbox

ROOT = os.getuid() == 0


def send(path: str, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(data, path)


def send_as(uid: int, path: str) -> None:
    """A WATCHDOG=1 by a process of another uid."""
    program = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'WATCHDOG=1', sys.argv[1])"
    interpreter = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
    subprocess.run([interpreter, "-I", "-S", "-c", program, path], user=uid, group=uid, extra_groups=[], check=True)


def test_a_flood_gets_its_turn_and_no_more(runtime: Path) -> None:
    """Signals come in between, however fast another process writes."""
    inbox = Inbox(str(runtime / "n"))
    try:
        send(inbox.path, b"WATCHDOG=1")
        assert list(inbox.words(os.getpid())) == [{"state": "working", "promises": True}]
        assert not inbox.more
        assert list(inbox.words(os.getpid())) == []
    finally:
        inbox.close()
    assert not (runtime / "n").exists()


def test_counts_what_is_no_message(runtime: Path) -> None:
    """Too long, not UTF-8: dropped."""
    inbox = Inbox(str(runtime / "n"))
    try:
        for data in (b"A=" + b"x" * 5000, b"\xff", b"WATCHDOG=1\0"):
            send(inbox.path, data)
        assert list(inbox.words(os.getpid())) == []
        assert inbox.refused == 3
    finally:
        inbox.close()


def test_takes_no_descriptor_that_it_is_sent(runtime: Path) -> None:
    """A barrier ends when its message is read; to close(2) one of a dead file system would hold us for ever."""
    inbox = Inbox(str(runtime / "n"))
    read, write = os.pipe()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(inbox.path)
            socket.send_fds(sender, [b"WATCHDOG=1\nBARRIER=1"], [write] * 20)
        os.close(write)
        before = len(os.listdir("/proc/self/fd"))
        words = inbox.words(os.getpid())
        assert next(words) == {"state": "working", "promises": True}
        assert len(os.listdir("/proc/self/fd")) == before
        assert os.read(read, 1) == b"", "the other end is closed everywhere"
    finally:
        os.close(read)
        inbox.close()


@pytest.mark.skipif(not ROOT, reason="needs root to become another uid")
def test_another_uid_is_refused_unless_the_agent_runs_as_it_by_now(runtime: Path) -> None:
    """`exec gosu` changes the agent's uid in the same process: its beats must still come, and no other agent's."""
    os.chmod(runtime, 0o755)
    inbox = Inbox(str(runtime / "n"))
    agent = subprocess.Popen(["sleep", "60"], user=65534, group=65534, extra_groups=[])
    try:
        assert inbox.follow(os.getpid(), 1.0) == pytest.approx(1.01), "the agent is root's"
        with pytest.raises(subprocess.CalledProcessError):
            send_as(65534, inbox.path)
        assert inbox.follow(agent.pid, 1.005) == pytest.approx(1.01), "it is not looked at so soon"
        assert inbox.follow(agent.pid, 1.01) is None
        send_as(65534, inbox.path)
        assert list(inbox.words(agent.pid)) == [{"state": "working", "promises": True}]
        with pytest.raises(subprocess.CalledProcessError):
            send_as(65533, inbox.path)
        assert inbox.follow(os.getpid(), 99.0) is None, "for good"
    finally:
        agent.kill()
        agent.wait()
        inbox.close()


def test_lies_beside_the_control_socket_where_that_directory_is_ours(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made 0700; nobody else may write there, to root's neither."""
    inbox = open_inbox(str(runtime / "agent-watchdog" / "control.sock"), "f" * 32)
    assert inbox is not None
    try:
        directory, name = os.path.split(inbox.path)
        assert directory == str(runtime / "agent-watchdog" / "notify")
        assert re.fullmatch("run-f{8}[0-9a-f]{24}", name)
        assert os.stat(os.path.dirname(inbox.path)).st_mode & 0o7777 == 0o700
        assert os.stat(inbox.path).st_mode & 0o7777 == 0o600
    finally:
        inbox.close()


def test_lies_in_our_own_runtime_directory_where_the_daemons_is_not_ours(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link, and a directory that others can write, are not trusted either."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    (runtime / "open").mkdir()
    (runtime / "open").chmod(0o777)
    (runtime / "link").symlink_to(runtime / "agent-watchdog")
    for name in ("open", "link"):
        inbox = open_inbox(str(runtime / name / "control.sock"), "e" * 32)
        assert inbox is not None
        inbox.close()
        assert inbox.path.startswith(str(runtime / "agent-watchdog" / "notify"))
