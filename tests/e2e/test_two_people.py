"""Two people on one machine under the system's daemon: each acts on their own agents, root on all."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from tests.world import BIN, World, alive, make_world, pids_with, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a system daemon and two other uids")

PUBLIC = {"agent_id", "name", "owner_uid", "status", "verdict"}
SECRET = "the-secret-note"

# One request with the project's own client; prints status and answer as JSON.
ASK = """
import json, sys
from watchdog.client import client
method, path, body, socket = sys.argv[1:]
print(json.dumps(client.request(method, path, json.loads(body), socket_path=socket, timeout=20)))
"""
# One datagram; prints the error's name, or "sent".
SEND = """
import errno, socket, sys
try:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(sys.argv[2].encode(), sys.argv[1])
except OSError as error:
    print(errno.errorcode[error.errno])
else:
    print("sent")
"""

# Without pause into its own socket, until stdin is closed; or so many beats by a blocking client, each counted.
FLOOD = """
import socket, sys
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.setblocking(False)
out.connect(sys.argv[1])
print("flooding", flush=True)
while True:
    try:
        out.send(b"WATCHDOG=1")
    except BlockingIOError:
        continue
"""
BEATS = """
import socket, sys
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
out.connect(sys.argv[1])
for _ in range(int(sys.argv[2])):
    out.send(b"WATCHDOG=1")
"""


class Person:
    """One uid with its own home, runtime directory and temp directory, using the system's daemon."""

    def __init__(self, world: World, name: str, uid: int) -> None:
        self.world, self.name, self.uid = world, name, uid
        self.home = world.dir / name
        self.home.mkdir(mode=0o700)
        (self.home / "run").mkdir(mode=0o700)
        for path in (self.home, self.home / "run"):
            os.chown(path, uid, uid)
        self.environ = {**world.environ, "HOME": str(self.home), "XDG_RUNTIME_DIR": str(self.home / "run")}

    def start(self, *command: str, out: IO[bytes] | None = None, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command,
            env={**self.environ, **environ},
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=out or subprocess.PIPE,
            stderr=out or subprocess.PIPE,
            text=True,
            user=self.uid,
            group=self.uid,
            extra_groups=[],
            start_new_session=True,
        )
        self.world.started.append(process)
        return process

    def cli(self, *words: str) -> tuple[int, str]:
        """Exit status and all output of one run of the client."""
        process = self.start(str(BIN / "agent-watchdog"), *words)
        out, error = process.communicate(timeout=60)
        return process.returncode, out + error

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        process = self.start(sys.executable, "-c", ASK, method, path, json.dumps(body), self.world.socket)
        out, error = process.communicate(timeout=60)
        assert process.returncode == 0, error
        status, answer = json.loads(out)
        return status, answer

    def send(self, path: str, message: str) -> str:
        process = self.start(sys.executable, "-c", SEND, path, message)
        return process.communicate(timeout=60)[0].strip()

    def run(self, name: str, *words: str, options: tuple[str, ...] = ()) -> None:
        """Start an agent of tests/scripted_agents through `run`."""
        agent = self.world.script("agent.py", *words)
        command = [str(BIN / "agent-watchdog"), "run", "--name", name, *options, "--", *agent]
        with (self.world.dir / f"{self.name}-{name}.out").open("wb") as out:
            self.start(*command, out=out)

    def registered(self, name: str, *words: str, **body: Any) -> tuple[str, str]:
        """Start an agent as an orchestrator does; its id and its notify socket."""
        status, answer = self.ask("POST", "/v1/agents", {"name": name, **body})
        assert status == 201, answer
        with open(os.devnull, "wb") as out:
            process = self.start(*self.world.script("agent.py", *words), out=out, **answer["env"])
        assert self.ask("PATCH", f"/v1/agents/{answer['agent_id']}", {"pid": process.pid})[0] == 200
        return answer["agent_id"], answer["env"]["NOTIFY_SOCKET"]


@pytest.fixture
def world() -> Iterator[World]:
    """The system's daemon: other users may reach its sockets, and nothing else."""
    for made in make_world(stall={"after_seconds": 3, "start_limit_seconds": 60}):
        made.dir.chmod(0o755)
        made.runtime.chmod(0o755)
        yield made


@pytest.fixture
def people(world: World) -> tuple[Person, Person]:
    return Person(world, "ann", 12001), Person(world, "ben", 12002)


@pytest.mark.faults
def test_neither_beats_for_registers_sees_or_kills_the_others(world: World, people: tuple[Person, Person]) -> None:
    """HTTP, verbs, datagrams: refused with 403 and 77, nothing disclosed, nothing changed, and root may do it all."""
    ann, ben = people
    world.start()
    ann.run("hers", "witness", "lease=600", options=("--task", "T-ann", "--tag", "anns", "--temp-dir", "auto"))
    world.wait_event("agent.first_beat", name="hers")
    told, daemons_socket = ann.registered("told", "witness", "lease=600", tags=["anns"])
    world.wait_event("agent.first_beat", name="told")
    assert ann.ask("POST", f"/v1/agents/{told}/beat", {"note": SECRET, "silent_for_seconds": 600})[0] == 204
    assert ann.ask("POST", "/v1/agents/hers/beat", {"note": SECRET, "silent_for_seconds": 600})[0] == 204
    ben.run("his", "witness", "lease=600")
    world.wait_event("agent.first_beat", name="his")
    before = world.agents()
    hers = before["hers"]
    assert {name: a["owner_uid"] for name, a in before.items()} == {"hers": 12001, "told": 12001, "his": 12002}

    # beat: by HTTP and verb
    for target in (told, hers["agent_id"], "told", "hers"):
        assert ben.ask("POST", f"/v1/agents/{target}/beat", {"state": "done"})[0] == 403
    assert ben.cli("beat", "--agent", "hers", "--state", "done")[0] == 0, "`beat` always exits 0"
    # register a process of hers, give one of her agents another process, become a child of hers, take her task
    assert ben.ask("POST", "/v1/agents", {"name": "stolen", "pid": hers["pid"]})[0] == 403
    assert ben.cli("register", "--name", "stolen", "--pid", str(hers["pid"]))[0] == 77
    assert ben.ask("PATCH", f"/v1/agents/{hers['agent_id']}", {"pid": before["his"]["pid"]})[0] == 403
    assert ben.ask("PATCH", f"/v1/agents/{hers['agent_id']}", {"exit_code": 0})[0] == 403
    assert ben.ask("POST", "/v1/agents", {"name": "child", "parent": hers["agent_id"]})[0] in (400, 403)
    status, thief = ben.ask("POST", "/v1/agents", {"name": "thief", "task": "T-ann"})
    assert (status, "another user's" in str(thief)) == (201, True), "it is watched, without her task"
    assert ben.cli("remove", "thief")[0] == 0
    # evidence
    for target in ("hers", "told", hers["agent_id"], str(hers["pid"])):
        assert ben.ask("GET", f"/v1/agents/{target}")[0] == 403
    assert ben.cli("why", "hers")[0] == 77
    shown = {a["name"]: a for a in json.loads(ben.cli("list", "--all", "--json")[1])["agents"]}
    assert set(shown["hers"]) == set(shown["told"]) == PUBLIC
    assert {"note", "temp_dir", "command", "pid"} <= set(shown["his"])
    for words in (("list", "--all"), ("list", "--all", "--json"), ("list", "--tag", "anns"), ("status",)):
        text = ben.cli(*words)[1]
        assert SECRET not in text and hers["temp_dir"] not in text and "T-ann" not in text, words
    code, text = ben.cli("events", "--json")
    assert code == 0 and before["his"]["agent_id"] in text
    assert hers["agent_id"] not in text and told not in text
    # kill
    for verb in ("kill", "stop", "remove"):
        for target in ("hers", "told", hers["agent_id"], str(hers["pid"]), "tag:anns", "task:T-ann"):
            assert ben.cli(verb, target)[0] == 77, (verb, target)
    assert ben.cli("kill", "--force", "hers", "told")[0] == 77
    for path in ("kill", "stop", "remove", "hold", "unhold"):
        status, answer = ben.ask("POST", f"/v1/{path}", {"targets": ["hers"]})
        assert status == 403 or answer["results"][0]["error"] == "permission_denied", answer
    assert ben.cli("kill", "stalled")[0] == 0
    # shared by all: a hold on all agents, and the configuration
    assert [ben.cli(verb)[0] for verb in ("hold", "unhold", "reload")] == [77, 77, 77]
    # none of it had an effect
    assert world.count("config.reloaded") == 0
    after = world.agents()
    assert set(after) == {"hers", "told", "his", "thief"}
    for name in ("hers", "told"):
        for key in ("status", "pid", "beats", "state", "note", "request_id", "exit_code"):
            assert after[name][key] == before[name][key], (name, key)
        assert alive(after[name]["pid"])
    assert world.witnessed() == []
    assert [world.count("kill.requested", name=name) for name in ("hers", "told")] == [0, 0]
    # her own datagrams are received, and root may see and kill everything
    assert ann.send(daemons_socket, "WATCHDOG=1\nX_AGENT_SILENT_FOR=600") == "sent"
    wait_for(lambda: world.agents()["told"]["beats"] > before["told"]["beats"], "her own word is heard")
    assert SECRET in world.cli("why", "hers").stdout
    assert world.agents()["hers"]["note"] == SECRET
    assert world.cli("kill", "hers").returncode == 0
    assert world.agents()["hers"]["status"] == "killed"


def test_a_datagram_to_the_others_socket_is_no_beat(world: World, people: tuple[Person, Person]) -> None:
    """The file mode refuses it; and where the modes were opened, the kernel's credentials of the sender do."""
    ann, ben = people
    world.start()
    ann.run("hers", "lease=600")
    world.wait_event("agent.first_beat", name="hers")
    _, daemons_socket = ann.registered("told", "lease=600")
    world.wait_event("agent.first_beat", name="told")
    pid = world.agents()["hers"]["pid"]
    wrappers = wait_for(
        lambda: [
            word.partition("=")[2]
            for word in Path(f"/proc/{pid}/environ").read_text().split("\0")
            if word.startswith("NOTIFY_SOCKET=")
        ],
        "its socket",
    )[0]
    word = "WATCHDOG=1\nX_AGENT_STATE=done"

    assert ben.send(daemons_socket, word) == "EACCES"
    assert ben.send(wrappers, word) == "EACCES"
    for path in (daemons_socket, wrappers):
        directory = Path(path)
        directory.chmod(0o777)
        while (directory := directory.parent) != world.dir:
            directory.chmod(0o755)
    assert ben.send(daemons_socket, word) == "sent"
    assert ben.send(wrappers, word) == "sent"
    world.wait_event("beat.rejected", name="told")
    # Her own messages come after ben's on the same sockets: when they are received, ben's have been read.
    for name, path in (("told", daemons_socket), ("hers", wrappers)):
        assert ann.send(path, "WATCHDOG=1\nX_AGENT_STATE=idle") == "sent"
        wait_for(lambda name=name: world.agents()[name]["state"] == "idle", f"{name} is heard")  # type: ignore[misc] # bound
        assert world.agents()[name]["beats"] == 2


def test_stalled_agents_of_each_are_killed_and_cleaned_up_as_their_owner(
    world: World, people: tuple[Person, Person]
) -> None:
    """Beat, silence, kill of the whole tree, temp dir and hooks: all as the uid that started it."""
    traces = world.dir / "traces"
    traces.mkdir()
    traces.chmod(0o1777)
    with world.config.open("a") as config:
        config.write(
            f'[[hook]]\nname = "who"\ncommand = ["/bin/sh", "-c", "id -u > {traces}/$(id -u)"]\n'
            '[[hook]]\nname = "temp_dir"\nrun = "temp_dir"\n'
        )
    world.start()
    for person in people:
        person.run("same-name", "grandchild", "beat=0.3/hush", options=("--temp-dir", "auto", "--stall-after", "3s"))

    def both_beat() -> list[dict[str, Any]] | None:
        found = [agent for agent in world.json("list")["agents"] if agent["beats"] >= 2]
        return found if len(found) == 2 else None

    running = wait_for(both_beat, "both beat")
    family: list[int] = []
    temp_dirs: list[Path] = []
    for agent in running:
        uid = agent["owner_uid"]
        marked = wait_for(lambda a=agent: pids_with("AGENT_WATCHDOG_ID", a["agent_id"])[1:], "its child")  # type: ignore[misc] # bound
        family += [agent["pid"], *marked]
        assert {Path(f"/proc/{pid}").stat().st_uid for pid in [agent["pid"], *marked]} == {uid}
        temp_dirs.append(Path(agent["temp_dir"]))
        assert temp_dirs[-1].stat().st_uid == uid
        left = temp_dirs[-1] / "left"
        left.write_text("a file of theirs")
        os.chown(left, uid, uid)
    assert {agent["owner_uid"] for agent in running} == {12001, 12002}
    (world.dir / "hush").touch()

    def ended() -> list[dict[str, Any]] | None:
        agents = world.json("list", "--all")["agents"]
        return agents if [a["status"] for a in agents] == ["killed", "killed"] else None

    wait_for(ended, "both are ended")

    assert not any(alive(pid) for pid in family)
    assert not any(path.exists() for path in temp_dirs)
    assert {path.name: path.stat().st_uid for path in traces.iterdir()} == {"12001": 12001, "12002": 12002}
    assert all(path.read_text().strip() == path.name for path in traces.iterdir())


def test_places_of_another_user_named_by_an_agent_are_not_touched(world: World, people: tuple[Person, Person]) -> None:
    """ben's agent names ann's directory as temp dir and her file as heartbeat: without access, nothing is done."""
    ann, ben = people
    theirs = world.dir / "hers"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, ann.uid, ann.uid)
    (theirs / "work").write_text("hours of work\n")
    os.chown(theirs / "work", ann.uid, ann.uid)
    private = ann.home / "beat"
    private.write_text("")
    world.start()
    agent, _ = ben.registered("his", "sleep", temp_dir=str(theirs), beat_file=str(private), stall_after_seconds=3)
    world.wait_event("agent.beat_file_unread", name="his")
    os.utime(private)
    assert ben.cli("kill", agent)[0] == 0

    ended = world.wait_status("his", "killed")

    assert ended["beats"] == 0
    assert (theirs / "work").read_text() == "hours of work\n"
    finished = world.wait_event("cleanup.hook_finished", name="his", hook="temp_dir")
    assert finished["outcome"] in ("refused", "kept", "failed"), finished


def test_a_flood_of_another_users_own_socket_loses_none_of_two_hundred_beats(
    world: World, people: tuple[Person, Person]
) -> None:
    """Each agent has its own socket: ben floods one without pause, ann's 200 beats are all counted."""
    ann, ben = people
    world.start()
    _, his = ben.registered("flooder", "sleep")
    _, hers = ann.registered("steady", "sleep")
    flood = ben.start(sys.executable, "-c", FLOOD, his)
    assert flood.stdout is not None
    assert flood.stdout.readline() == "flooding\n"
    wait_for(lambda: world.agents()["flooder"]["beats"] > 0, "the flood arrives")

    beats = ann.start(sys.executable, "-c", BEATS, hers, "200")
    assert beats.communicate(timeout=60) == ("", "")

    wait_for(lambda: world.agents()["steady"]["beats"] >= 200, "all are heard")
    assert world.agents()["steady"]["beats"] == 200
    assert flood.poll() is None
    flood.kill()
    flood.communicate()
