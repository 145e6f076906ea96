"""Attacks that f87b3bd held against, and that no test played before; the others' tests are named in `table`."""

import asyncio
import contextlib
import gzip
import json
import os
import socket
import sqlite3
import subprocess
import sys
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.owner.repositories import Repository, context, git, own_config
from tests.systemd.machine import ROOT
from tests.world import World, make_world, pids_with
from watchdog.core import hooks as hooks_
from watchdog.core.hooks import HookOutcome
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.owner.hooks.worktree import worktree

sys.path.insert(0, str(ROOT / "systemd"))
from environments import Tools
from places import Refused

pytestmark = pytest.mark.attacks

SECRET = "hunter2-in-the-clear"
ODD = "\x1b[2J\x1b]0;owned\x07\r\n\x00\u202e\u2066\u200f\x9b31m\ud800\ue000"


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world(log={"level": "debug"})


def raw(world: World, request: bytes) -> bytes:
    """All that the daemon answers."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(world.socket)
        connection.sendall(request)
        received = b""
        while piece := connection.recv(65536):
            received += piece
    return received


def test_a_compressed_body_is_no_bomb(world: World) -> None:
    """60 KiB that are 60 MB: refused as too long, and never whole in memory."""
    world.start()
    assert world.daemon is not None
    body = gzip.compress(b"[" + b" " * 60_000_000 + b"]")
    assert len(body) < 64 * 1024
    head = "POST /v1/agents HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Encoding: gzip\r\n"
    head += f"Content-Length: {len(body)}"
    before = peak(world.daemon.pid)
    for _ in range(5):
        assert raw(world, head.encode() + b"\r\n\r\n" + body).split()[1] == b"400"
    assert peak(world.daemon.pid) - before < 20_000
    assert [event for event in world.events() if event["level"] == "error"] == []


def peak(pid: int) -> int:
    """The most memory that a process has had, in KiB (proc(5), VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))


def dangerous(text: str) -> list[str]:
    """Characters that a terminal acts upon, or that turn the direction of text."""
    return [c for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")]


def test_no_words_of_others_reach_a_terminal_or_the_log_as_they_are(world: World) -> None:
    """In notes, tools, reasons, file and program names; refused or written out, in each view and in each line."""
    place = world.dir / f"odd{ODD.encode('utf-8', 'replace').decode().replace(chr(0), '')}"
    place.mkdir()
    program = place / "p\x1b[31m"
    program.symlink_to("/bin/sleep")
    world.start()
    body: dict[str, Any] = {"temp_dir": str(place), "log": str(place / "x"), "task": ODD, "tags": [ODD], "type": ODD}
    for key, value in body.items():
        status, answer = world.ask("POST", "/v1/agents", {"name": "odd", key: value})
        assert status == 400 or key in ("temp_dir", "log"), (key, answer)
        if status == 201:
            assert world.ask("POST", "/v1/stop", {"targets": [answer["agent_id"]], "reason": "x"})[0] == 200
    agent = world.registered("known", str(program), "600")
    for word in ("note", "tool", "asks"):
        world.ask("POST", "/v1/agents/known/beat", {word: ODD, "tool_limit_seconds": 60})
        world.ask("POST", "/v1/agents/known/beat", {word: ODD.replace("\x00", "").replace("\ud800", "")})
    world.ask("POST", "/v1/hold", {"targets": ["known"], "reason": ODD.replace("\x00", "").replace("\ud800", "")})
    assert world.ask("POST", f"/v1/agents/{ODD.encode('utf-8', 'replace').hex()}/beat", {})[0] == 404

    views = [world.cli(*words, check=False) for words in (["list"], ["why", "known"], ["status"], ["events"], ["reap"])]
    world.cli("unhold", "known", check=False)
    views.append(world.cli("kill", "known", "--reason", "enough", check=False))
    agent.wait()
    views += [world.cli(*words, check=False) for words in (["list", "--all"], ["why", "known"], ["events"])]

    for view in views:
        assert dangerous(view.stdout + view.stderr) == [], view.args
    for line in world.log.read_bytes().decode().splitlines():
        assert dangerous(line) == []
        json.loads(line)


def test_the_password_of_a_database_is_nowhere_to_be_read(world: World) -> None:
    """Not in a command line, the log, an error or `--check`: the server is away, which is said with its name."""
    world.registry_url = f"postgresql://wd:{SECRET}@127.0.0.1:1/wd?connect_timeout=1"
    world.configure()
    checked = subprocess.run(
        [str(Path(sys.executable).parent / "agent-watchdogd"), "--check", "--config", str(world.config)],
        capture_output=True,
        text=True,
        timeout=60,
        env=world.environ,
    )
    world.start(wait=False)
    assert world.daemon is not None
    seen = ""
    until = time.monotonic() + 10
    while world.daemon.poll() is None and time.monotonic() < until:
        for pid in pids_with("WORLD", str(world.dir)):
            with contextlib.suppress(OSError):
                seen += Path(f"/proc/{pid}/cmdline").read_text()
        time.sleep(0.05)
    assert SECRET not in checked.stdout + checked.stderr
    assert "agent-watchdogd" in seen
    assert SECRET not in seen
    assert "127.0.0.1" in world.log.read_text()
    assert SECRET not in world.log.read_text()


# -- foreign registries that are made to hinder whoever reads them

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


def bomb(path: Path) -> None:
    path.write_text(BOMB)


def endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def infinite_view(path: Path) -> None:
    rows = (
        "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
        " SELECT x AS name, x AS created_at, x AS agent_id FROM n"
    )
    with contextlib.closing(sqlite3.connect(path)) as made:
        for table in ("instances", "agents", "agent_lifecycle", "orchestrator_task"):
            made.execute(f"CREATE VIEW {table} AS {rows}")


def trigger(path: Path) -> None:
    """A write of ours would start it; a read starts none."""
    with contextlib.closing(sqlite3.connect(path)) as made:
        for table in ("instances", "agents", "agent_lifecycle", "orchestrator_task"):
            made.execute(f"CREATE TABLE {table} (name, created_at, agent_id, status)")
            made.execute(
                f"CREATE TRIGGER t_{table} AFTER UPDATE ON {table} BEGIN "
                "INSERT INTO instances WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) "
                "SELECT x, x, x, x FROM n; END"
            )
        made.commit()


FILES: dict[str, tuple[str, str]] = {
    "claude": ("", "sessions/1.json"),
    "agent_relay": ("", "connections.json"),
    "agent_sessions": ("agent_sessions.yaml", "agent_sessions.yaml"),
    "fleet_tasks": ("", "t1/status.json"),
    "hcom": ("", "hcom.db"),
    "orchestrator_db": ("o.db", "o.db"),
}


@pytest.mark.parametrize("hostile", [fifo, sparse, deep, bomb, endless, infinite_view, trigger])
@pytest.mark.parametrize("kind", FILES)
def test_a_hostile_registry_hinders_nobody(tmp_path: Path, kind: str, hostile: Callable[[Path], None]) -> None:
    """Read, refused or given up within the deadline of its call; the next question is answered all the same."""
    where, name = FILES[kind]
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    hostile(file)

    async def ask() -> float:
        owners = HelperPool()
        begun = time.monotonic()
        try:
            with contextlib.suppress(OwnerCallFailed):
                path = str(tmp_path / where).rstrip("/")
                found = await owners.call(os.geteuid(), "source_discover", {"kind": kind, "path": path}, 5.0)
                assert len(found) < 10_000
            taken = time.monotonic() - begun
            assert await owners.call(os.geteuid(), "ping", {}, 30.0) is not None
            return taken
        finally:
            await owners.close()

    assert asyncio.run(ask()) < 15


# -- what git would run for whoever asks it


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    config, place = tmp_path / "config", tmp_path / "place"
    config.mkdir()
    place.mkdir()
    own_config(monkeypatch, config)
    return Repository(place)


def test_no_program_that_a_worktree_names_is_run(repository: Repository) -> None:
    """hooksPath, fsmonitor, filters, textconv, external diff, ext::, aliases, pagers, editors, ssh, gpg."""
    path = repository.worktree()
    canary, script = repository.place / "canary", repository.place / "script"
    script.write_text(f"#!/bin/sh\necho $0 $* >>{canary}\ncat\n")
    script.chmod(0o755)
    hooks = repository.place / "hooks"
    hooks.mkdir()
    for name in ("post-index-change", "post-checkout", "reference-transaction", "pre-auto-gc", "post-rewrite"):
        (hooks / name).symlink_to(script)
    settings = {
        "core.hooksPath": str(hooks),
        "core.fsmonitor": str(script),
        "core.pager": str(script),
        "core.editor": str(script),
        "core.sshCommand": str(script),
        "core.askPass": str(script),
        "core.alternateRefsCommand": str(script),
        "credential.helper": f"!{script}",
        "diff.external": str(script),
        "diff.evil.textconv": str(script),
        "diff.evil.command": str(script),
        "filter.evil.clean": str(script),
        "filter.evil.smudge": str(script),
        "filter.evil.process": str(script),
        "filter.evil.required": "true",
        "merge.evil.driver": str(script),
        "gpg.program": str(script),
        "commit.gpgSign": "true",
        "protocol.ext.allow": "always",
        "remote.origin.url": f"ext::{script} %S",
        "remote.origin.uploadpack": str(script),
        "remote.origin.vcs": "evil",
        "uploadpack.packObjectsHook": str(script),
        "gc.auto": "1",
        **{f"alias.{name}": f"!{script}" for name in ("status", "worktree", "rev-parse", "for-each-ref", "ls-files")},
        **{f"pager.{name}": str(script) for name in ("status", "log", "diff", "worktree", "branch")},
    }
    for key, value in settings.items():
        git(repository.main, "config", key, value)
    (repository.main / ".git" / "info").mkdir(exist_ok=True)
    (repository.main / ".git" / "info" / "attributes").write_text("* filter=evil diff=evil merge=evil\n")
    os.utime(path / "file")
    canary.unlink(missing_ok=True)

    result = worktree(context(worktree=str(path)), hooks_.CleanupSettings())

    assert not canary.exists(), canary.read_text()
    assert result.outcome in (HookOutcome.DONE, HookOutcome.KEPT), result


# -- what a hostile environment would have `make install` fetch


def test_pip_installs_what_the_lock_says_whatever_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of another hash is refused, though a configuration of pip's offers it and asks for no hashes."""
    hostile = tmp_path / "hostile"
    hostile.mkdir()
    (hostile / "iniconfig-2.0.0-py3-none-any.whl").write_bytes(b"PK\x05\x06" + bytes(18))
    (tmp_path / "pip.conf").write_text(f"[global]\nfind-links = {hostile}\nno-index = true\nrequire-hashes = false\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_REQUIRE_HASHES", "0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(hostile))
    tools = Tools(tmp_path / "tools")
    lock = f"iniconfig==2.0.0 --hash=sha256:{'0' * 64}\n"
    with pytest.raises(Refused, match=r"HASHES|hash"):
        tools.pip("download", "-d", tmp_path / "into", *tools.locked(lock))
    assert not (tmp_path / "into").exists() or list((tmp_path / "into").iterdir()) == []
