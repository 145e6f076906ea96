"""`doctor`: each finding by what was seen, and the looks themselves on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAM
from tests.world import World, git, make_repository, make_world, wait_for
from watchdog.cli import doctor, trashes
from watchdog.cli.diagnosis import CHECKS, attention, diagnose
from watchdog.cli.doctor import _last_words, _user_daemons
from watchdog.cli.seen import Seen
from watchdog.places import places_for
from watchdog.registry.sqlite import WAL_ROOM


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
        "the disk of /s/reserve is full; 7 bytes",
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
    "a slip": ({"config_warnings": ["f: roots[0]: /x is no directory"]}, "warn", "f: roots[0]: /x is no directory"),
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
    "an exit status unknown": ({"kernel": (6, 12)}, "warn", "does not tell the exit status"),
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
        ({"places": shut, "last_words": "read-only"}, "chmod u+rw /s/r.db, then systemctl start"),
    ):
        found = next(one for one in diagnose(Seen(**{**gone, **seen})) if one.what.startswith("no daemon"))
        assert found.todo.startswith(first)


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


def test_a_registry_that_cannot_be_written_is_named_without_a_daemon(world: World) -> None:
    """With the file, its mode and the command; so is a runtime directory that was shut, with a daemon that lives."""
    world.start()
    world.stop()
    registry = world.state / "registry.db"
    registry.chmod(0o444)
    done = world.cli("doctor", "--config", str(world.config), check=False)
    assert f"{registry} has mode 0444: the daemon's own uid may not use it" in done.stdout
    starts = "systemctl --user start" if os.geteuid() else "systemctl start"
    assert f"do: chmod u+rw {registry}, then {starts}" in done.stdout

    registry.chmod(0o600)
    world.start()
    world.runtime.chmod(0)
    try:
        done = world.cli("doctor", check=False)
        assert f"{world.runtime} has mode 0000" in done.stdout
        assert f"chmod u+rwx {world.runtime}" in done.stdout
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
def world() -> Iterator[World]:
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
    seen = Seen(config=["f: notify.command: /x has mode 0777 and owner uid 0: others could change what runs; right: y"])
    (finding,) = (one for one in diagnose(seen) if "notify.command" in one.what)
    assert "starts all the same" in finding.meaning
    file = tmp_path / "f.toml"
    file.write_text('[notify]\non = ["agent.ended"]\ncommand = ["/nowhere"]\n')
    file.chmod(0o600)
    seen = Seen()
    doctor._check_config(seen, str(file), None)
    assert seen.config == []
    assert "/nowhere is no program" in seen.config_warnings[0]


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

    found = trashes.find(world.socket, ["/nowhere"])

    assert found == sorted([str(beside), f"{repository}/.git/agent-watchdog/trash"])
    assert trashes.bytes_below(str(beside)) >= 100_000


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
    monkeypatch.setattr(trashes, "_ask", lambda _, path: answers[path])
    os.makedirs(place)
    try:
        for _ in range(1100):
            place += "/d"
            os.mkdir(place)
        (Path(place) / "index.lock").write_bytes(b"x" * 100_000)

        assert trashes.find("", ["/nowhere"]) == [str(area)]
        assert trashes.bytes_below(str(area)) >= 100_000
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
