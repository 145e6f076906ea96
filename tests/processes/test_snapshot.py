"""What is kept of a tree when a verdict falls: enough to understand, nothing private, never too much."""

import dataclasses
import json
import os
import socket
from typing import Any, cast

import pytest

from tests.processes.conftest import Family, known
from tests.world import wait_for
from watchdog.core.process import TreeMember
from watchdog.processes import procfs, snapshot


def member(pid: int, name: str = "x") -> TreeMember:
    return TreeMember(known(pid), os.getpid(), os.getuid(), name, "S", "descent")


def entries(found: dict[str, object]) -> list[dict[str, Any]]:
    return cast("list[dict[str, Any]]", found["processes"])


def test_a_process_is_described_without_arguments_or_environment(family: Family) -> None:
    """Name, program, state, times and sizes; what was said on the command line or in the environment stays there."""
    child = family.start("sh", "-c", "echo up; read x # hunter2", env={"TOKEN": "hunter3"})
    family.line(child)
    found = snapshot.snapshot([member(child.pid)])
    (entry,) = entries(found)
    assert entry["pid"] == child.pid and entry["ppid"] == os.getpid()
    assert entry["program"] == "sh" and entry["threads"] == 1 and entry["rss_bytes"] > 0
    assert 0 <= entry["age_seconds"] < 60
    assert "hunter" not in json.dumps(found)


@pytest.mark.parametrize(
    "title", ["TOKEN=hunter2", "postgres://bob:hunter2@db/x", "sk-ant-api03-hunter2hunter2hunter2", "token hunter2"]
)
def test_a_title_that_a_program_gave_itself_shows_no_secret(family: Family, title: str) -> None:
    """setproctitle(3) writes over argv[0]; only the first word of it is taken, and that may be a secret."""
    child = family.start("bash", "-c", f"echo up; exec -a '{title}' sleep 300")
    family.line(child)
    wait_for(lambda: procfs.read(f"/proc/{child.pid}/cmdline").startswith(title.encode()), "it has that title")
    wait_for(lambda: procfs.stat(child.pid).state == "S", "it is not starting any more")
    found = snapshot.snapshot([member(child.pid)])
    assert "program" in entries(found)[0]
    assert "hunter" not in json.dumps(found)


def test_listening_ports_are_named(family: Family) -> None:
    """A server that an agent left behind is recognised by its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        (entry,) = entries(snapshot.snapshot([member(os.getpid())]))
        assert server.getsockname()[1] in entry["ports"]


def test_a_process_that_is_gone_is_said_so(family: Family) -> None:
    """Also when the number belongs to another process by now."""
    child = family.start("sleep", "300")
    gone = member(child.pid)
    reused = dataclasses.replace(
        gone, identity=dataclasses.replace(gone.identity, start_ticks=gone.identity.start_ticks - 1)
    )
    (entry,) = entries(snapshot.snapshot([reused]))
    assert entry["gone"] is True
    child.kill()
    child.wait()
    (entry,) = entries(snapshot.snapshot([gone]))
    assert entry["gone"] is True


def test_a_failed_read_is_told(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture with a hole, not an exception."""
    child = family.start("sleep", "300")
    seen = member(child.pid)
    real = procfs.read

    def hide(path: str, *, dir_fd: int | None = None, limit: int = 1 << 20) -> bytes:
        if path.endswith(hidden[0]):
            raise PermissionError(13, "Permission denied")
        return real(path, dir_fd=dir_fd, limit=limit)

    monkeypatch.setattr(procfs, "read", hide)
    hidden = [""]
    for hidden[0], key in (("/stat", "stat"), ("/wchan", "wchan"), ("/cmdline", "program")):
        (entry,) = entries(snapshot.snapshot([seen]))
        assert entry["failed"] == {key: "Permission denied"}


def test_a_large_tree_stays_small(family: Family) -> None:
    """At most 64 processes and 16 KiB; the rest is counted."""
    child = family.start("sleep", "300")
    for name in ("x", "\x01" * 15, "ü" * 15):
        many = [member(child.pid, name)] * 300
        found = snapshot.snapshot(many)
        kept = len(entries(found))
        assert 0 < kept <= 64 and found["omitted"] == 300 - kept
        assert len(json.dumps(found)) <= 16 * 1024
    assert snapshot.snapshot([]) == {"processes": [], "omitted": 0}
