"""`doctor`: each finding by what was seen, and the looks themselves on this machine."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAM
from tests.world import World, git, make_repository, make_world, wait_for
from watchdog.cli import doctor, trash_usage
from watchdog.cli.diagnosis import CHECKS, attention, diagnose
from watchdog.cli.doctor import _last_words, _user_daemons
from watchdog.cli.seen import Seen, has_systemd
from watchdog.config.paths import places_for
from watchdog.errors import RegistryUnavailable
from watchdog.registry.registry import Registry
from watchdog.registry.sqlite import WAL_ROOM
from watchdog.telemetry.catalogue import CATALOGUE

_CAPS = "-dac_override,-dac_read_search"  # with which root may use what has mode 000
BOUND = () if os.geteuid() else ("setpriv", f"--bounding-set={_CAPS}", f"--inh-caps={_CAPS}")


def place(mode: int, uid: int = 0) -> os.stat_result:
    """What lstat() says of it."""
    return os.stat_result((mode, 1, 1, 1, uid, 0, 0, 0, 0, 0))


WELL: dict[str, Any] = {
    "status": {"interval_seconds": 10, "mode": "enforce", "uid": 0, "log": {"target": "x", "lost": 0}},
    "places": {"/run/agent-watchdog": place(0o40755)},
}

FINDINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "two packages": ({"distributions": ["agent-watchdogd", "watchdog"]}, "fault", "also holds watchdog"),
    "a trap": ({"socket": "/s", "socket_problem": "/x belongs to uid 7"}, "fault", "/s: /x belongs to uid 7"),
    "no daemon": ({"status": None, "silence": "refused"}, "fault", "no daemon: refused"),
    "no daemon, as its registry is shut": (
        {"status": None, "silence": "refused", "places": {"/s/r.db": place(0o100444)}, "last_words": "read-only"},
        "fault",
        "no daemon: refused; the last one ended with: read-only",
    ),
    "a shut directory": ({"places": {"/r": place(0o40000)}}, "fault", "/r has mode 0000: the daemon's own uid"),
    "two daemons": ({"others": ["/run/x"]}, "warn", "another daemon answers at /run/x"),
    "an agent of another daemon": (
        {"status": {"elsewhere": [{"name": "a", "holder": "root's daemon (pid 7, /s)", "socket": "/s"}]}},
        "warn",
        "a is watched by root's daemon (pid 7, /s), not by this daemon",
    ),
    "an agent that another daemon knows": ({"left_to_us": {"/x": ["a"]}}, "warn", "the daemon at /x knows a, too"),
    "a user's daemon beside root's": (
        {"user_daemons": [(1000, "/x", 2)]},
        "warn",
        "uid 1000 has a daemon of its own (/x) beside 2 agents of that user here",
    ),
    "no sweep": ({"sweep_age": 99.0}, "fault", "the last sweep was 99 s ago; one is due every 10 s"),
    "observing": ({"status": {"mode": "observe"}}, "warn", "the daemon only observes"),
    "a bad file": ({"config": ["f: kil: unknown key"]}, "fault", "f: kil: unknown key"),
    "a file of which nothing is known": ({"config_unknown": "no answer"}, "fault", "not be checked: no answer"),
    "keys that wait": ({"status": {"config_waiting": ["daemon.host"]}}, "fault", "not in force: daemon.host"),
    "a refused reload": ({"status": {"config_problems": ["f: kil"]}}, "fault", "the last reload was refused: f: kil"),
    "an error of its own": (
        {"status": {"troubles": [{"event": "x.y", "what": "it failed", "meaning": "m", "todo": "t", "count": 2}]}},
        "fault",
        "it failed (2 times, the last at",
    ),
    "an agent that lives on": (
        {"status": {"unkillable": [{"agent_id": "1", "name": "alpha", "why": "frozen: sh[7]"}]}},
        "fault",
        "alpha cannot be killed: frozen: sh[7]",
    ),
    "a hold on all": (
        {"status": {"holds": [{"agent_id": None, "reason": "upgrade", "by_uid": 0}, {"agent_id": "a", "by_uid": 0}]}},
        "fault",
        "all agents are held: upgrade (by uid 0)",
    ),
    "a mass stall": (
        {"status": {"lasting_doubts": ["3 of 4 fell silent"]}},
        "fault",
        "kills for silence: 3 of 4 fell silent",
    ),
    "a registry that is away": ({"status": {"registry_problem": "FULL"}}, "fault", "registry cannot be used: FULL"),
    "a registry that was damaged": (
        {"status": {"registry_problem": "SQLITE_CORRUPT; the file is damaged: restart the daemon"}},
        "fault",
        "the file is damaged: restart",
    ),
    "containers": ({"containers": ["docker"]}, "warn", "docker is here: what agents run in containers is not watched"),
    "a process that hangs": (
        {"status": {"unreadable": [{"pid": 7, "file": "/proc/7/stat", "uid": 1000}]}},
        "fault",
        "reads of files of uid 1000 hang (/proc/7/stat): process 7",
    ),
    "a process that hangs, of an agent": (
        {"status": {"unreadable": [{"pid": 7, "file": "/proc/7/stat", "uid": 1000, "agent": "alpha"}]}},
        "fault",
        "reads of files of uid 1000 hang (/proc/7/stat): process 7 (agent alpha)",
    ),
    "agents that cannot be judged": ({"status": {"verdicts": {"unknown": 2}}}, "fault", "2 agents cannot be judged"),
    "a shared service": (
        {"status": {"shared_services": [{"pid": 7, "uid": 5, "name": "codex app-server", "agents": 2, "silent": 1}]}},
        "warn",
        "codex app-server of uid 5 (process 7) works for the sessions of 2 agents",
    ),
    "a shared service that hangs": (
        {"status": {"shared_services": [{"pid": 7, "uid": 5, "name": "codex app-server", "agents": 2, "silent": 2}]}},
        "warn",
        "(process 7) hangs, perhaps",
    ),
    "a shared service of nobody's": (
        {"status": {"shared_services": [{"pid": 7, "uid": 5, "name": "x", "agents": 0, "silent": 0}]}},
        "warn",
        "x of uid 5 (process 7) works for no session that is known",
    ),
    "a full disk": ({"status": {"log": {"target": "/l", "error": "No space"}}}, "fault", "/l cannot be written"),
    "a full disk with a reserve": (
        {"status": {"disk_reserve": {"/s/reserve": {"bytes": 7, "disk_full": True}}}},
        "fault",
        "the disk of /s is full; 7 bytes",
    ),
    "a limited user": (
        {"status": {"limited": [{"uid": 1000, "why": "too many requests", "refused": 7, "since": "now"}]}},
        "fault",
        "uid 1000 is limited: too many requests; 7 times since now",
    ),
    "a hung directory": ({"status": {"waits_for": {"/x": 9}}}, "fault", "no answer from /x for 9 s"),
    "a hung look": ({"unanswered": ["/y"]}, "fault", "/y does not answer"),
    "lines lost": ({"status": {"log": {"target": "/l", "lost": 3}}}, "warn", "3 lines of the log were lost"),
    "a failed unit": ({"unit": ("enabled", "failed")}, "fault", "agent-watchdog.service has failed"),
    "no unit": ({"unit": ("disabled", "inactive"), "status": None}, "warn", "agent-watchdog.service is disabled"),
    "no bus": ({"bus": False}, "fault", "no system bus does"),
    "no linger": ({"uid": 5, "linger": False, "status": None}, "warn", "lingering is off"),
    "a closed python": ({"interpreter_closed": "/x", "interpreter": "/x/p"}, "fault", "cannot execute /x/p"),
    "hidden processes": ({"uid": 5, "hidepid": "invisible"}, "warn", "hidepid=invisible"),
    "no pressure": ({"pressure": False}, "warn", "/proc/pressure is not there"),
    "a slip": (
        {"config_warnings": ["f: roots[0]: /x is not a directory"]},
        "warn",
        "f: roots[0]: /x is not a directory",
    ),
    "no pidfd": ({"features": {"pidfd_open": False}}, "fault", "gives no pidfd (pidfd_open)"),
    "no signal by pidfd": ({"features": {"pidfd_send_signal": False}}, "fault", "no pidfd (pidfd_send_signal)"),
    "no Landlock": ({"features": {"landlock": False}}, "warn", "no Landlock"),
    "no seccomp": ({"features": {"seccomp": False}}, "warn", "no filter of system calls"),
    "no mounts": ({"features": {"mount_id": False}}, "fault", "/proc does not say on which mount"),
    "an open state": ({"places": {"/s": place(0o40770)}}, "fault", "/s has mode 0770 and owner uid 0"),
    "somebody else's state": ({"places": {"/s": place(0o40700, 7)}}, "fault", "/s has mode 0700 and owner uid 7"),
    "a link": ({"places": {"/s": place(0o120777)}}, "fault", "/s has mode 0777"),
    "a state to look into": ({"places": {"/s": place(0o40755)}, "private": ("/s",)}, "warn", "/s has mode 0755"),
    "Debian 12's kernel": ({"kernel": (6, 1)}, "warn", "Linux 6.1 has no inode for a pidfd"),
    "an exit status unknown": ({"kernel": (6, 12)}, "warn", "does not report the exit status"),
    "no groups": ({"own_cgroup": "none: no v2"}, "warn", "agents get no cgroup of their own (no v2)"),
    "few descriptors": ({"open_files": 256}, "warn", "only 256 descriptors"),
    "no git": ({"git": None}, "fault", "git is not on PATH"),
    "a big registry": ({"registry_bytes": 3 << 30}, "warn", "the registry has 3.0 GiB"),
    "a registry that somebody reads for long": (
        {"wal_bytes": 93 << 20, "wal_readers": [7]},
        "warn",
        "the registry's write-ahead log has 93 MiB",
    ),
    "full trash": ({"trash_bytes": 50 << 30, "trash": ["/tmp/t"]}, "warn", "trash holds 50.0 GiB in /tmp/t"),
}


@pytest.mark.parametrize(("seen", "severity", "what"), FINDINGS.values(), ids=FINDINGS)
def test_each_finding_says_what_to_do(seen: dict[str, Any], severity: str, what: str) -> None:
    """And stands alone: the same sight raises no second alarm (no daemon is one fault, whatever the unit is)."""
    found = [f for f in diagnose(Seen(**{**WELL, **seen})) if what in f.what]

    assert [f.severity for f in found] == [severity]
    assert found[0].meaning
    assert found[0].todo


@pytest.mark.parametrize("seen", [seen for seen, _, _ in FINDINGS.values() if seen.get("status")])
def test_what_status_calls_attention_is_a_fault_of_doctor(seen: dict[str, Any]) -> None:
    """A4: a mass stall was exit status 1 of `status` and 0 of `doctor`. One thing has one weight."""
    looked = Seen(**{**WELL, **seen})
    found = attention(looked)
    assert {one.severity for one in found} <= {"fault"}
    assert {one.what for one in found} <= {one.what for one in diagnose(looked) if one.severity == "fault"}


def test_a_read_that_hangs_is_told_with_its_agent_and_the_command() -> None:
    """A3: the finding named process 7698, not its agent, and no command."""
    hung = [
        {"pid": pid, "file": f"/proc/{pid}/stat", "uid": 1000, "agent": name} for pid, name in ((7, "a"), (8, None))
    ]
    (found,) = attention(Seen(status={"unreadable": hung}))
    assert found.what.endswith("process 7 (agent a), 8")
    assert "agent-watchdog kill a" in found.todo


def test_the_remedy_of_what_cannot_be_killed_names_the_agent() -> None:
    """A5: `do:` gave an id of 32 characters. Two of one name are told apart by theirs."""
    alive = [{"agent_id": str(number), "name": name, "why": "frozen"} for number, name in enumerate("abb")]
    found = [one.todo.partition("kill ")[2].split()[0] for one in attention(Seen(status={"unkillable": alive}))]
    assert found == ["a", "1", "2"]


def test_a_doubt_of_the_daemons_has_its_limit() -> None:
    """A4: nothing but one event said that a mass stall holds back no kill for longer than 15 minutes."""
    (found,) = attention(Seen(status={"lasting_doubts": ["3 of 4 fell silent"], "hold_max_seconds": 900}))
    assert "each agent's for 15m at most" in found.meaning


def test_the_first_remedy_is_the_one_that_helps() -> None:
    """To start a daemon that cannot start is none."""
    gone = {**WELL, "status": None, "silence": "refused", "places": {}}
    shut = {"/s/r.db": place(0o100444)}
    for seen, first in (
        ({}, "systemctl start"),
        ({"last_words": "its port is taken"}, "correct that, then systemctl start"),
        ({"config": ["f: kil"], "last_words": "f: kil"}, "correct the configuration (below), then systemctl start"),
        ({"places": shut, "last_words": "read-only"}, "chmod 600 /s/r.db, then systemctl start"),
    ):
        found = next(one for one in diagnose(Seen(**{**gone, **seen})) if one.what.startswith("no daemon"))
        assert found.todo.startswith(first)


def test_a_command_is_for_the_daemon_that_is_meant() -> None:
    """B3: `--user` for a user's unit; a daemon that does not run is started, one that runs reads its file again."""
    bad = {"config": ["f: kil: unknown key"]}
    gone: dict[str, Any] = {**bad, "status": None, "silence": "refused", "places": {}}
    damaged = "SQLITE_CORRUPT; the file is damaged: restart the daemon"
    for seen, what, todo in (
        ({**gone, "uid": 5}, "f: kil", "then systemctl --user start agent-watchdog (where it is not"),
        (gone, "f: kil", "then systemctl start agent-watchdog (where it is not"),
        (bad, "f: kil", "check it with agent-watchdogd --check, then agent-watchdog reload"),
        ({"status": {"uid": 5, "config_waiting": ["a.b"]}}, "changed, but", "systemctl --user restart agent-watchdog"),
        ({"status": {"uid": 0, "config_waiting": ["a.b"]}}, "changed, but", "systemctl restart agent-watchdog"),
        ({"status": {"uid": 5, "registry_problem": damaged}}, "the registry", "systemctl --user restart agent-watch"),
    ):
        (found,) = (one for one in diagnose(Seen(**{**WELL, **seen})) if one.what.startswith(what))
        assert todo in found.todo


@pytest.mark.parametrize(
    ("problem", "todo"),
    [
        (
            'PostgreSQL on this host, w: connection to server on socket "/t/.s.PGSQL.5432" failed: No',
            "-h /t -p 5432 sh",
        ),
        ("PostgreSQL db.example:5433, w: Connection refused", "pg_isready -h db.example -p 5433 shows; start it"),
        ("PostgreSQL on this host, w: terminating connection due to administrator", "running? pg_isready shows; start"),
        ('PostgreSQL h, w: FATAL: password authentication failed for user "me"', "correct user, password and"),
        ("PostgreSQL h, w: sorry, too many clients already", "raise its max_connections"),
        ("PostgreSQL h, w: could not extend file: No space left on device", "make room on the server's disk"),
        ("PostgreSQL h, w: cannot execute UPDATE in a read-only transaction", "the server only reads"),
        ("/s/r.db: SQLITE_FULL: database or disk is full", "make room on its disk (df -h /s)"),
        ("/s/r.db: SQLITE_READONLY: attempt to write", "make /s/r.db writable (chmod 600"),
        ("/s/r.db: SQLITE_CANTOPEN: unable to open", "let the daemon's uid open /s/r.db (chmod 600"),
        (
            "/s/r.db: the file was removed or replaced; put it back",
            "put /s/r.db back; the daemon goes on by itself; or",
        ),
        ("/s/r.db: SQLITE_IOERR: disk I/O error", "look at the disk of /s/r.db"),
    ],
)
def test_a_registry_that_is_away_has_the_remedy_of_its_kind(problem: str, todo: str) -> None:
    """B2: "make room, put the file back, or repair the server" was said of each."""
    for written in {problem, problem.replace("/s/r.db", "sqlite:////s/r.db")}:  # by its path, or by its URL
        (found,) = attention(Seen(status={"registry_problem": f"registry {written}"}))
        assert todo in found.todo
        assert ("PostgreSQL" in problem) is not ("/s" in found.todo)
        assert "goes on by itself" in found.todo


def test_a_registry_that_another_process_locks_is_named_in_the_remedy(tmp_path: Path) -> None:
    """The message has the registry's URL: the remedy was `the disk of the file`, and of a full one `df -h .`."""
    file = tmp_path / "registry.db"
    registry = Registry(f"sqlite:///{file}", busy_timeout=timedelta(milliseconds=20)).open()
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(RegistryUnavailable) as failure:
            registry.probe()
    registry.close()
    (found,) = attention(Seen(status={"registry_problem": str(failure.value)}))
    assert found.todo.startswith(f"end the transaction that has {file} locked (lsof {file} names")


def test_a_full_disk_is_told_as_it_is_for_this_daemon() -> None:
    """B4: a user's own daemon refuses that user nothing; the log's disk keeps no registration out."""
    said = {"bytes": 8 << 20, "disk_full": True}
    for uid, path, what, meaning in (
        (5, "/s/reserve", "the disk of /s is full; 8 MiB", "kills, registrations, holds and the log live on"),
        (0, "/s/reserve", "the disk of /s is full; 8 MiB", "of users who are not admins are refused"),
        (0, "/var/l.log.reserve", "the disk of /var is full; 8 MiB", "the registry is elsewhere"),
    ):
        (found,) = attention(Seen(uid=5, status={"uid": uid, "disk_reserve": {path: said}}))
        assert what in found.what
        assert meaning in found.meaning
        assert f"df -h {os.path.dirname(path)})" in found.todo


def test_the_meaning_of_an_error_is_words_alone() -> None:
    """B7: it began with the event's name, which is no word for who is paged (`status --json` has it)."""
    trouble = {"event": "cleanup.hook_failed", "what": "w", "meaning": CATALOGUE["cleanup.hook_failed"].text}
    (found,) = attention(Seen(status={"troubles": [trouble]}))
    assert found.meaning == "a cleanup hook failed or timed out on its last try, and is not done"


def test_one_place_has_one_remedy() -> None:
    """B6: `chmod u+rw` and then `go-rwx` for a file that wants 600: each gets the mode that the daemon gives it."""
    places = {
        "/s": place(0o40444, 5),
        "/s/registry.db": place(0o100444, 5),
        "/r": place(0o40000, 5),
        "/r/notify": place(0o40077, 5),
    }
    found = diagnose(
        Seen(**{**WELL, "uid": 5, "status": {"uid": 5}, "places": places, "private": ("/s", "/s/registry.db")})
    )
    assert [one.todo.rpartition("; then ")[2] for one in found if "chmod" in one.todo] == [
        "chmod 700 /r/notify",
        "chmod 700 /s",
        "chmod 600 /s/registry.db",
        "chmod 700 /r",
    ]
    roots = {"/r": place(0o40700 - 0o100), "/r/notify": place(0o40777), "/s": place(0o40777), "/x": place(0o40700, 7)}
    found = diagnose(Seen(**{**WELL, "places": roots, "private": ("/s",)}))
    assert sorted(one.todo.rpartition("; then ")[2] for one in found) == [
        "as root: chown 0 /x, then chmod 700 /x",
        "chmod 700 /s",
        "chmod 711 /r/notify",
        "chmod 755 /r",
    ]


def test_a_refused_reload_is_one_finding() -> None:
    """B3: three lines of `status` said that the last reload was refused."""
    said = [f"/f: a{number}: unknown key" for number in range(7)]
    (found,) = attention(Seen(status={"config_problems": said, "config": "/f"}))
    assert found.what == (
        "the last reload was refused: /f: a0: unknown key; a1: unknown key; a2: unknown key; a3: unknown key;"
        " a4: unknown key; and 2 more"
    )


NO_SYSTEMD = {"systemd": False, "unit": None, "bus": None, "linger": None}


def test_without_systemd_no_remedy_is_a_command_of_its() -> None:
    """On a host or in a container without it, `systemctl start agent-watchdog` was all that a person was told."""
    for seen, _, _ in FINDINGS.values():
        if "linger" in seen or "unit" in seen or "bus" in seen:
            continue  # there is one
        said = " ".join(one.todo for one in diagnose(Seen(**{**WELL, **NO_SYSTEMD, **seen})))
        assert not re.search("systemctl|journalctl|loginctl|LimitNOFILE", said), said


def restart_line(**status: object) -> str:
    """The remedy, without systemd, for a daemon whose changed keys wait for a restart."""
    told = {"uid": 0, "pid": 7, "config": "/x y.toml", "config_waiting": ["a.b"], **status}
    (found,) = (one for one in diagnose(Seen(**{**WELL, **NO_SYSTEMD, "status": told})) if "changed" in one.what)
    return found.todo


def test_without_systemd_a_daemon_is_restarted_by_a_line_that_can_be_typed() -> None:
    """It ends the old one, waits for that, and starts the new one with the same file."""
    line = restart_line().removesuffix(" (agents keep running)")
    assert line.startswith("kill 7; while grep ")
    assert line.endswith("; agent-watchdogd --daemonize --config '/x y.toml'")
    assert subprocess.run(["sh", "-n", "-c", line], check=False).returncode == 0


def test_the_line_that_restarts_the_daemon_ends_where_nobody_reaps_it() -> None:
    """In a container whose first process reaps nothing, the ended daemon stays a zombie, which `kill -0` finds."""
    daemon = subprocess.Popen(["sleep", "600"])
    try:
        line = restart_line(pid=daemon.pid).partition("; agent-watchdogd")[0]
        wait = f"{line}; echo over"  # the child is not reaped while this runs
        assert subprocess.run(["sh", "-c", wait], check=False, capture_output=True, timeout=60).stdout == b"over\n"
    finally:
        daemon.kill()
        daemon.wait()


def test_a_daemon_that_is_the_first_process_of_a_container_is_not_to_be_killed() -> None:
    """`kill 1; ...; agent-watchdogd --daemonize (agents keep running)` ended the container, and all agents with it."""
    line = restart_line(pid=1)
    assert "kill" not in line and "keep running" not in line
    assert line.startswith("restart its container, whose first process it is (what runs in there ends with it")


def test_the_line_that_tries_a_pager_has_its_words_quoted_and_no_secret_of_the_file() -> None:
    """It can be typed; what a configuration keeps secret is shown nowhere, and then the line says what is missing."""
    trouble = {"event": "notify.failed", "what": "the command of [notify] failed for agent.told: exit status 3"}
    status = {"uid": 0, "config": "/f", "troubles": [trouble]}
    (found,) = attention(Seen(status=status, pager=["env", "-i", "HOME=/root", "/p", "a b", "it's"]))
    line = """echo '{"event": "agent.told"}' | env -i AGENT_WATCHDOG_EVENT=agent.told HOME=/root /p 'a b' 'it'"'"'s'"""
    assert found.todo.endswith(f"; to try it: {line}")

    (found,) = attention(Seen(status=status, pager=["env", "-i", "/p", "--token=0123456789abcdef0123"]))
    assert "0123456789abcdef" not in found.todo
    assert "; to try it (with the secret that /f has): echo " in found.todo
    (found,) = attention(Seen(uid=5, status=status, pager=["env", "-i", "/p"]))
    assert "; to try it as uid 0: echo " in found.todo


def test_a_daemon_that_cannot_be_reached_is_not_called_gone() -> None:
    """B1: its lock tells that it lives; nobody is told to start a second one. The file is not to blame for a mode."""
    shut = {**WELL, "uid": 5, "status": None, "silence": "/r/c: not permitted to connect", "socket": "/r/c"}
    shut |= {"places": {"/r": place(0o40000, 5)}, "config": ["/r: cannot be written by uid 5; do: chmod 700 /r"]}
    for seen, what, todo in (
        (
            {"living": 7},
            "the daemon (process 7) lives, but cannot be asked",
            "the daemon is then reached again by itself",
        ),
        ({}, "whether a daemon runs is not known", "then agent-watchdog status"),
        ({"living": 7, "places": {}, "config": []}, "the daemon (process 7) lives", "systemctl --user restart agent-w"),
        ({"places": {}, "config": []}, "whether a daemon runs is not known", "ask whoever runs the daemon"),
    ):
        found = diagnose(Seen(**{**shut, **seen}))
        assert found[0].what.startswith(what)
        assert todo in found[0].todo
        assert not [one for one in found if "no daemon" in one.what or " start agent-watchdog" in one.todo]
        assert not [one for one in found if one.what.startswith("/r: cannot be written")]


def test_the_daemon_behind_a_shut_runtime_directory_is_found(world: World) -> None:
    """By its state directory's lock; as root without the capability that passes any mode."""
    world.start()
    assert world.daemon is not None
    world.runtime.chmod(0)
    try:
        argv = [*BOUND, PROGRAM, "doctor", "--json", "--config", str(world.config)]
        done = subprocess.run(argv, env=world.environ, capture_output=True, text=True, timeout=100)
    finally:
        world.runtime.chmod(0o700)
    faults = [one for one in json.loads(done.stdout)["findings"] if one["severity"] == "fault"]
    words = " ".join(one["what"] for one in faults)

    assert f"the daemon (process {world.daemon.pid}) lives, but cannot be asked" in words
    assert "another daemon" not in words  # it is this one
    assert "config.toml" not in words
    assert all(str(world.runtime) in one["todo"] and "start" not in one["todo"].split("nothing")[0] for one in faults)


def test_users_daemons_are_found_without_a_word_to_them() -> None:
    """Root speaks at no path of a user's. A line of /proc/net/unix that is no listening daemon's does not count."""
    lines = [
        "Num       RefCount Protocol Flags    Type St Inode Path",
        "000000009f1c7e19: 00000002 00000000 00010000 0001 01 50657603 /run/user/1000/agent-watchdog/control.sock",
        "00000000b0e3e343: 00000003 00000000 00000000 0001 03 50659157 /run/user/1001/agent-watchdog/control.sock",
        "00000000736ec4a6: 00000002 00000000 00010000 0001 01 50659087 /run/agent-watchdog/control.sock",
        "00000000736ec4a7: 00000002 00000000 00010000 0001 01    59087 /tmp/agent-watchdog-1002/control.sock",
        "00000000736ec4a8: 00000002 00000000 00010000 0001 01 50659089 /tmp/run/user/7/agent-watchdog/control.sock",
    ]
    found = [(1000, "/run/user/1000/agent-watchdog/control.sock"), (1002, "/tmp/agent-watchdog-1002/control.sock")]
    assert _user_daemons("\n".join(lines) + "\n") == found


def test_the_last_words_are_those_of_the_last_start() -> None:
    """Of a journal with warnings, other lines, and a start in between that went well."""
    told = "agent-watchdogd: warning: x\nagent-watchdogd: one runs already\nagent.late name=alpha\n"
    assert _last_words(told) == "one runs already"
    assert _last_words(told + "daemon.ready pid=7\n") is None
    assert _last_words("") is None
    several = "agent-watchdogd: f: a\nagent-watchdogd: f: b\n"  # of one start
    assert _last_words(f"agent-watchdogd: former\nexited\n{several}exited\n") == "f: a"


def test_a_registry_that_cannot_be_written_is_named_without_a_daemon(world: World) -> None:
    """With the file, its mode and the command; so is a runtime directory that was shut, with a daemon that lives."""
    world.start()
    world.stop()
    registry = world.state / "registry.db"
    registry.chmod(0o444)
    done = world.cli("doctor", "--config", str(world.config), check=False)
    assert f"{registry} has mode 0444: the daemon's own uid may not use it" in done.stdout
    starts = "systemctl --user start" if os.geteuid() else "systemctl start"
    if not has_systemd(os.geteuid()):
        starts = f"agent-watchdogd --daemonize --config {world.config}"
    assert f"do: chmod 600 {registry}, then {starts}" in done.stdout

    world.start(wait=False, prefix=BOUND)
    assert world.daemon is not None
    assert world.daemon.wait(60) == 75
    (failed,) = (one for one in world.events() if one["event"] == "daemon.failed")
    assert failed["error"] == f"registry {registry}: Permission denied; run chmod 600 {registry}, 700 for its directory"

    registry.chmod(0o600)
    world.start()
    world.runtime.chmod(0)
    try:
        done = world.cli("doctor", check=False)
        assert f"{world.runtime} has mode 0000" in done.stdout
        assert f"do: chmod {'700' if os.geteuid() else '755'} {world.runtime}" in done.stdout
    finally:
        world.runtime.chmod(0o700)


def test_lingering_is_asked_of_who_has_a_daemon_of_his_own() -> None:
    """Root's goes on without a login and needs no user manager: neither he nor who uses it is told to linger."""
    for seen in ({"linger": False, "uid": 5}, {"own_cgroup": "none: no v2"}):
        assert "linger" not in str(diagnose(Seen(**{**WELL, **seen})))
    assert "enable-linger" in str(diagnose(Seen(**{**WELL, "own_cgroup": "none: no v2", "status": {"uid": 5}})))


def test_a_sound_machine_has_no_finding() -> None:
    """So that a finding means something; and every check is shown above to find something."""
    assert diagnose(Seen(**WELL)) == []
    met = {check for check in CHECKS for seen, _, _ in FINDINGS.values() if [*check(Seen(**{**WELL, **seen}))]}
    assert met == set(CHECKS)


@pytest.fixture
def world(nursery: None) -> Iterator[World]:
    yield from make_world()


def test_a_daemon_that_is_well_has_no_fault_of_its_own(world: World) -> None:
    """On this machine only what the machine itself lacks is warned of."""
    world.start()

    found = json.loads(world.cli("doctor", "--json", check=False).stdout)["findings"]

    words = " ".join(finding["what"] for finding in found)
    assert not any(word in words for word in ("no daemon", "sweep", "log ", "config", "also holds", "descriptors"))


def test_without_a_daemon_it_says_so_and_still_looks(world: World) -> None:
    """Exit status 1; the file is checked by the daemon's own --check; nothing in it moves a cursor."""
    world.config.write_text("[kil]\n")

    done = world.cli("doctor", "--config", str(world.config), check=False)

    assert done.returncode == 1
    assert "no daemon" in done.stdout
    assert f"{world.config}: kil: unknown key; did you mean 'kill'?" in done.stdout
    assert "do: " in done.stdout


def test_it_looks_where_a_daemon_of_ours_would_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O25: root's is the host's, whatever `sudo -E` has left of a user's environment; a user's goes by XDG."""
    for given in ({}, {"XDG_CONFIG_HOME": str(tmp_path), "XDG_STATE_HOME": f"{tmp_path}/s"}, {"XDG_STATE_HOME": "s"}):
        for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "STATE_DIRECTORY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {"HOME": str(tmp_path), **given}.items():
            monkeypatch.setenv(name, value)
        places = places_for(os.geteuid(), os.environ)
        assert (doctor._default_config(), doctor._default_state()) == (places.config_file, places.state_dir)
        assert (places.config_file == "/etc/agent-watchdog/agent-watchdog.toml") == (os.geteuid() == 0)


def test_a_check_that_gives_no_answer_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O17: nothing is known of the file then, which is not that nothing is wrong with it."""
    file = tmp_path / "f.toml"
    file.touch(0o600)
    seen = Seen()
    monkeypatch.setattr(doctor, "CHECK", 0.001)
    doctor._check_config(seen, str(file), None)
    assert "gave no answer within 0.001 s" in str(seen.config_unknown)
    assert not seen.config
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    doctor._check_config(seen, str(file), None)
    assert "cannot be run" in str(seen.config_unknown)


def test_a_look_that_hangs_is_a_finding(tmp_path: Path) -> None:
    """O17: at a place, a command, a daemon: whichever it is; the other looks go on."""
    os.mkfifo(tmp_path / "fifo")
    seen = Seen(**WELL)
    doctor._within(seen, "/place", lambda: os.close(os.open(tmp_path / "fifo", os.O_RDONLY)), 0.01)
    assert [one.severity for one in diagnose(seen) if one.what == "/place does not answer"] == ["fault"]
    os.close(os.open(tmp_path / "fifo", os.O_RDWR))  # its thread goes on


def test_what_the_daemon_starts_with_is_not_said_to_keep_it_from_starting(tmp_path: Path) -> None:
    """O13: a command that is not there is a warning, a program that others may change a fault of another kind."""
    seen = Seen(config=["f: notify.command: /x has mode 0777 and owner uid 0: others could change what runs; use y"])
    (finding,) = (one for one in diagnose(seen) if "notify.command" in one.what)
    assert "starts all the same" in finding.meaning
    file = tmp_path / "f.toml"
    file.write_text('[notify]\non = ["agent.ended"]\ncommand = ["/nowhere"]\n')
    file.chmod(0o600)
    seen = Seen()
    doctor._check_config(seen, str(file), None)
    assert seen.config == []
    assert "/nowhere does not exist; use the path of a program that does" in seen.config_warnings[0]
    for command, says in (
        (tmp_path, f"{tmp_path} is not a file that uid"),
        (file, f"{file} is not a file"),
        ("nosuch", "PATH"),
    ):
        file.write_text(f'[notify]\non = ["agent.ended"]\ncommand = ["{command}"]\n')
        doctor._check_config(seen, str(file), None)
        assert says in seen.config_warnings[0]


def test_a_bad_reload_and_a_stopped_daemon_are_found(world: World) -> None:
    """The file of the running daemon is the one that is looked at."""
    world.start()
    world.config.write_text("[kill]\ngrace_seconds = -1\n")

    done = world.cli("doctor", check=False)

    assert done.returncode == 1
    assert "kill.grace_seconds: -1 is wrong" in done.stdout


def test_a_registry_that_is_away_is_found_wherever_one_looks(world: World) -> None:
    """One line of the log told it once; who comes later asks `doctor` or `status`."""
    world.start()
    database = world.state / "registry.db"
    away = database.rename(world.state / "away.db")
    world.wait_event("registry.unavailable")

    assert "the registry cannot be used: registry" in world.cli("doctor", check=False).stdout
    wait_for(lambda: "the file was removed" in str(world.json("status")["registry_problem"]), "the next look says so")
    assert world.cli("status", check=False).stdout.startswith("ATTENTION: the registry cannot be used: registry")

    asked = world.cli("why", "nobody", check=False)
    assert asked.returncode == 75
    assert asked.stderr.splitlines()[-1] == "agent-watchdog: what to do: agent-watchdog doctor"

    away.rename(database)
    world.wait_event("registry.recovered")
    assert world.json("status")["registry_problem"] is None
    assert world.cli("status").stdout.startswith("fine: 0 agents watched, ")


def test_who_reads_in_the_registry_for_long_is_named(world: World) -> None:
    """Case N16: its write-ahead log grows as long as somebody reads in it."""
    world.start()
    seen = Seen(status={"pid": world.daemon.pid if world.daemon else 0})
    reader = (
        "import sqlite3, sys; database = sqlite3.connect(sys.argv[1]); database.execute('BEGIN');"
        " database.execute('SELECT count(*) FROM lifecycle_event').fetchone(); print(flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", reader, str(world.state / "registry.db")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        doctor._look_at_wal(seen, str(world.state / "registry.db"))
        process.kill()
    assert process.pid in seen.wal_readers
    assert seen.wal_bytes == WAL_ROOM


def test_a_socket_in_somebody_else_s_directory_is_a_fault(tmp_path: Path) -> None:
    """Whoever may write there could answer in the daemon's place."""
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    environ = {**os.environ, "AGENT_WATCHDOG_SOCKET": str(open_to_all / "control.sock")}

    done = subprocess.run([PROGRAM, "doctor"], env=environ, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert "can be written by others (mode 0777)" in done.stdout


def test_trash_is_found_wherever_it_lies(world: World) -> None:
    """Beside a temp dir that lies below no root, and in the repository of a worktree that was moved away."""
    repository = make_repository(world.dir / "repo")
    tree, temp = world.dir / "tree", world.dir / "far" / "away" / "temp"
    git(repository, "worktree", "add", "-q", "-b", "work", str(tree))
    temp.mkdir(parents=True)
    beside = temp.parent / ".agent-watchdog-trash-0"
    beside.mkdir(mode=0o700)
    (beside / "left").write_bytes(b"x" * 100_000)
    elsewhere = world.dir / "elsewhere"
    elsewhere.mkdir()
    (temp.parent / ".agent-watchdog-trash-7").symlink_to(elsewhere)
    world.start()
    world.registered("alpha", "sleep", "600", worktree=str(tree), temp_dir=str(temp))
    world.cli("kill", "alpha", "--force")
    assert not tree.exists()

    found = trash_usage.find(world.socket, ["/nowhere"])

    assert found == sorted([str(beside), f"{repository}/.git/agent-watchdog/trash"])
    assert trash_usage.bytes_below(str(beside)) >= 100_000


def test_locks_that_were_moved_aside_are_trash_and_any_depth_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody deletes them, so a person has to hear of them."""
    area = tmp_path / ".git" / "agent-watchdog" / "locks"
    place = str(area / "a")
    answers = {
        "/v1/agents?all": {"agents": [{"agent_id": "a", "worktree": "/w", "completed_at": "then"}]},
        "/v1/agents/a": {"cleanup": [{"details": {"area": str(area / "a")}}, {"details": None}]},
    }
    monkeypatch.setattr(trash_usage, "_ask", lambda _, path: answers[path])
    os.makedirs(place)
    try:
        for _ in range(1100):
            place += "/d"
            os.mkdir(place)
        (Path(place) / "index.lock").write_bytes(b"x" * 100_000)

        assert trash_usage.find("", ["/nowhere"]) == [str(area)]
        assert trash_usage.bytes_below(str(area)) >= 100_000
    finally:  # pytest's own removal recurses
        subprocess.run(["rm", "-rf", str(area)], check=True)


def test_an_open_state_directory_is_a_fault_and_the_kernel_is_told(world: World) -> None:
    """While the daemon runs: it refuses such a place at its next start. `--json` has what the kernel offers."""
    world.start()
    world.state.chmod(0o777)

    done = world.cli("doctor", "--json", check=False)

    answer = json.loads(done.stdout)
    assert done.returncode == 1
    whats = [finding["what"] for finding in answer["findings"] if finding["severity"] == "fault"]
    assert f"{world.state} has mode 0777 and owner uid {os.geteuid()}" in whats
    offered = {"pidfd_open", "pidfd_send_signal", "mount_id", "openat2", "landlock", "seccomp"}
    assert set(answer["kernel"]) == {"release", *offered}
    assert answer["kernel"]["pidfd_open"] is answer["kernel"]["mount_id"] is True


def test_a_warning_of_the_file_is_no_fault(world: World) -> None:
    """A root that is not there stops nothing."""
    world.configure(cleanup={"roots": ["/tmp", f"{world.dir}/tpm"]})
    world.start()

    found = json.loads(world.cli("doctor", "--json", check=False).stdout)["findings"]

    (slip,) = [finding for finding in found if "tpm" in finding["what"]]
    assert slip["severity"] == "warn"


def test_a_daemon_that_is_stopped_is_called_so(world: World) -> None:
    """It "goes on watching", said doctor of one that got SIGSTOP, and offered a restart."""
    world.start()
    assert world.daemon is not None
    stat = Path(f"/proc/{world.daemon.pid}/stat")
    world.daemon.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: stat.read_text().split(") ")[1][0] == "T", "it is stopped")
        done = world.cli("doctor", "--config", str(world.config), check=False)
    finally:
        world.daemon.send_signal(signal.SIGCONT)
    assert f"the daemon (process {world.daemon.pid}) is stopped" in done.stdout
    assert f"do: kill -CONT {world.daemon.pid}\n" in done.stdout
