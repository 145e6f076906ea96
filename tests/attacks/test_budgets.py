"""One user holds back everybody's kills (M1), or fills root's disk (H2). Each was seen to succeed at f87b3bd."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.world import World, alive, wait_for

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a system daemon and other uids"),
]

MALLORY, ALICE = 61011, 61012  # uids that nobody has

# What the attacker runs, with the standard library alone. It beats no limit on the number of its requests: whoever is
# told to come again later does.
HOSTILE = r"""
import json, os, secrets, socket, subprocess, sys, threading, time

PATH, ACT, *WORDS = sys.argv[1:]


def ask(method, target, body=None):
    while True:
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(120)
            s.connect(PATH)
            text = json.dumps(body or {}).encode()
            head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(text)}\r\n\r\n"
            s.sendall(head.encode() + text)
            got = b""
            while piece := s.recv(65536):
                got += piece
        head, _, content = got.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if status not in (429, 503):
            return status, content
        time.sleep(0.1)


def agent(name, **body):
    process = subprocess.Popen(["sleep", "1000"], env={"WORLD": os.environ["WORLD"]})
    status, content = ask("POST", "/v1/agents", {"name": name, "pid": process.pid, **body})
    assert status == 201, content
    return json.loads(content)["agent_id"]


def silent(count, word):
    ids = [agent(f"m{n}", stall_after_seconds=3) for n in range(int(count))]
    for one in ids if word == "beats" else ():
        assert ask("POST", f"/v1/agents/{one}/beat")[0] in (200, 204)


# Sixteen of it side by side, so often together or for a minute; how often each status was answered.
def at_once(work, often):
    end, statuses = time.monotonic() + 60, {}

    def repeat(thread):
        turn = 0
        while turn < int(often) / 16 and time.monotonic() < end:
            turn += 1
            status = work(thread, turn)
            statuses[status] = statuses.get(status, 0) + 1

    threads = [threading.Thread(target=repeat, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(statuses), flush=True)


def hold(count, often):
    names = [f"m{n}" for n in range(int(count))]
    for name in names:
        agent(name)

    def work(thread, turn):
        ask("POST", "/v1/unhold", {"targets": names})
        return ask("POST", "/v1/hold", {"targets": names, "reason": secrets.token_hex(REASON)})[0]

    at_once(work, often)


def register(often):
    long = ("/" + "x" * 99) * LONG

    def work(thread, turn):
        name = f"m{thread}-{turn}"
        paths = {key: f"{long}/{key}/{name}" for key in ("beat_file", "log", "transcript")}
        status = ask("POST", "/v1/agents", {"name": name, **paths})[0]
        ask("POST", "/v1/remove", {"targets": [name], "reason": secrets.token_hex(REASON)})
        return status

    at_once(work, often)


def fill(place):
    with open(f"{place}/blob{os.getpid()}", "ab", 0) as out:
        full = False
        while True:
            try:
                out.write(b"x" * 4096)
            except OSError:
                if not full:
                    print("full", flush=True)
                full = True
                time.sleep(0.001)  # whatever is freed is taken at once


# As long as this daemon takes them.
taken = [n for n in (1024, 500) if ask("POST", "/v1/kill", {"targets": ["nobody"], "reason": "x" * n})[0] != 400]
REASON = taken[0] // 2
LONG = 9 if REASON == 250 else 39
{"silent": silent, "hold": hold, "register": register, "fill": fill}[ACT](*WORDS)
print("done", flush=True)
time.sleep(1000)
"""


class Hostile:
    """One user's program, which does as told and stays until the world ends."""

    def __init__(self, world: World, uid: int, *words: str) -> None:
        self.out = world.dir / "hostile"
        self.read = 0
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                ["/usr/bin/python3", "-I", "-c", HOSTILE, world.socket, *words],
                env={"WORLD": str(world.dir), "PATH": os.environ["PATH"]},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=out,
                user=uid,
                group=uid,
                extra_groups=[],
                start_new_session=True,
            )
        world.started.append(self.process)

    def line(self) -> str:
        """What it prints next."""
        lines = wait_for(lambda: self.out.read_text().split("\n")[self.read : -1], "the attacker's next line", 120)
        self.read += 1
        return lines[0]


def victim(world: World, name: str = "victim") -> int:
    """A stalled agent of root's: it has beaten once, and is to be killed 3 s later. Its pid."""
    process = world.registered(name, "sleep", "1000", stall_after_seconds=3)
    assert world.ask("POST", f"/v1/agents/{name}/beat", {})[0] in (200, 204)
    return process.pid


# -- M1


@pytest.mark.parametrize("word", ["beats", "starts"])
def test_one_users_silent_agents_hold_back_no_kill_of_roots(world: World, word: str) -> None:
    """M1: 30 agents of mallory fall silent at once, and root's one with them.

    At f87b3bd: `mass stall: 31 of 31 agents fell silent together` held root's for `hold.max_seconds` (15 min). The
    sibling: they promise a beat and never make one, which counts as silence, too.
    """
    world.configure(
        hold={"mass_stall_count": 3, "mass_stall_fraction": 0.5, "max_seconds": 900},
        stall={"after_seconds": 3, "start_limit_seconds": 3},
    )
    world.start()
    world.registered("other", "sleep", "1000")
    assert Hostile(world, MALLORY, "silent", "30", word).line() == "done"
    world.wait_event("hold.started", reason="mass_stall")
    pid = victim(world)
    world.wait_event("kill.finished", name="victim")
    assert not alive(pid)
    assert world.count("kill.held", name="victim") == 0
    doubts = world.json("status")["doubts"]
    assert len(doubts) == 1, doubts
    assert f"of uid {MALLORY} " in doubts[0]
    mine = world.story("m29")["agent"]
    assert mine["status"] == "running", "its own are held back"
    assert any("mass stall" in line for line in mine["outlook"])


def test_one_users_kills_use_up_no_budget_of_roots(world: World) -> None:
    """M1, the other half (by reasoning then, played now): the kills that a minute may have go to mallory's agents.

    At f87b3bd: root's was held, `the budget of kills per minute is used up`, until a minute after the first of them.
    """
    world.configure(kill={"max_per_minute": 4})
    world.start()
    assert Hostile(world, MALLORY, "silent", "30", "beats").line() == "done"
    wait_for(lambda: world.count("kill.requested") >= 4, "mallory's use up the budget")
    wait_for(lambda: world.count("kill.held") >= 10, "and more of them wait")
    pid = victim(world)
    world.wait_event("kill.finished", name="victim")
    assert not alive(pid)
    assert world.count("kill.held", name="victim") == 0


# -- H2


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@pytest.mark.parametrize("words", [("hold", "100", "64"), ("register", "640")], ids=["hold", "register"])
def test_one_user_fills_neither_registry_nor_log(world: World, words: tuple[str, ...]) -> None:
    """H2: hold and unhold of one's own agents with the longest reason, or register and remove with the longest paths.

    At f87b3bd, in 20 s: registry +114 MB and log +93 MB. Here a part of that, with a share of 1 MB. What root asks
    meanwhile is done and told, and the history of root's agents is whole.
    """
    world.configure(registry={"megabytes_per_user": 1} if has_shares() else {})
    world.start()
    pid = world.registered("roots", "sleep", "1000").pid
    for number in range(20):
        world.cli("hold", "roots", "--reason", f"number {number}")
    attack = Hostile(world, MALLORY, *words)
    statuses = json.loads(attack.line())
    assert attack.line() == "done"
    grown, logged = size(world.state / "registry.db"), size(world.log)
    print(f"{words}: {statuses}, registry {grown / 1e6:.1f} MB, log {logged / 1e6:.1f} MB")
    assert grown < 8e6, statuses
    assert logged < 1e6

    if has_shares():
        world.wait_event("registry.share_trimmed", uid=MALLORY)

        def within() -> bool:
            texts = "SELECT sum(length(why) + length(evidence)) FROM lifecycle_event"
            found = world.sql(f"{texts} WHERE owner_uid = {MALLORY}")
            return (found[0][0] or 0) <= 1 << 20

        wait_for(within, "its share")
    assert world.cli("kill", "roots", check=False).returncode == 1, "it is held"
    world.cli("unhold", "roots")
    world.cli("kill", "roots")
    assert not alive(pid)
    world.wait_event("kill.finished", name="roots")
    story = [event["event"] for event in world.story("roots")["events"]]
    assert story.count("hold.started") == 20
    if words[0] == "hold":
        world.wait_event("log.limited", seconds=120, uid=MALLORY)


def has_shares() -> bool:
    """At f87b3bd there is no such key."""
    from watchdog.config.schema import RegistrySection

    return "megabytes_per_user" in RegistrySection.model_fields


@pytest.fixture
def disk(world: World) -> Iterator[Path]:
    """A small file system on which root's state is, and a directory of mallory's."""
    place = world.dir / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=755", "none", str(place)], check=True)
    try:
        world.state = place / "s"
        world.state.mkdir(mode=0o700)
        (place / "m").mkdir()
        os.chown(place / "m", MALLORY, MALLORY)
        world.configure()
        yield place
    finally:
        world.close()
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_on_a_full_disk_roots_kill_and_the_daemons_own_are_done(world: World, disk: Path) -> None:
    """H2: a program of mallory's fills the file system, and takes whatever is freed of it.

    At f87b3bd: root's `kill` failed with `SQLITE_FULL: database or disk is full` , its target lived,
    and no stalled agent was killed. Now the room in the write-ahead log and the reserve take their intents; users'
    optional writes are refused meanwhile; then all is as before.
    """
    world.configure(stall={"after_seconds": 3})
    world.start()
    target = world.registered("target", "sleep", "1000").pid
    mute = world.registered("mute", "sleep", "1000", stall_after_seconds=8).pid
    assert world.ask("POST", "/v1/agents/mute/beat", {})[0] in (200, 204)
    filler = Hostile(world, MALLORY, "fill", str(disk / "m"))
    assert filler.line() == "full"

    world.cli("kill", "target")
    assert not alive(target)
    world.wait_event("kill.finished", name="mute")
    assert not alive(mute)
    world.wait_event("disk.reserve_used")
    assert any(one["disk_full"] for one in world.json("status")["disk_reserve"].values())
    assert "disk" in world.cli("status").stdout
    doctor = world.cli("doctor", check=False).stdout
    assert f"the disk of {world.state} is full" in doctor
    refused = as_user(world, ALICE, "POST", "/v1/agents", {"name": "alices"})
    assert (refused[0], refused[1]["error"]) == (507, "no_space")
    assert world.ask("POST", "/v1/agents", {"name": "roots-next"})[0] == 201

    filler.process.kill()
    filler.process.wait()
    for blob in (disk / "m").iterdir():
        blob.unlink()
    world.wait_event("disk.reserve_restored")
    assert as_user(world, ALICE, "POST", "/v1/agents", {"name": "alices"})[0] == 201


ASK = """
import json, socket, sys
path, method, target, body = sys.argv[1:]
s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(path)
head = f"{method} {target} HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
s.sendall((head + body).encode())
got = b""
while piece := s.recv(65536):
    got += piece
head, _, content = got.partition(b"\\r\\n\\r\\n")
print(json.dumps([int(head.split()[1]), json.loads(content)]))
"""


def as_user(world: World, uid: int, method: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """One request of another uid."""
    done = subprocess.run(
        ["/usr/bin/python3", "-I", "-c", ASK, world.socket, method, path, json.dumps(body)],
        user=uid,
        group=uid,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=90,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    status, answer = json.loads(done.stdout)
    return status, answer
