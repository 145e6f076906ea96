"""One user takes what all share: descriptors, the registry's one writer, helpers, the loop's time, root's disk.

Rows H2 (holds), H3 and M2 of the review. Each test plays the attack with real processes of other uids and says what the
review saw at commit f87b3bd, or, without that word, what the test itself did there.
"""

import json
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.world import World, wait_for

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other people's processes"),
]

HOSTILE = Path(__file__).with_name("hostile.py")
MALLORY, VICTIM = 12100, 12050
SUB = 3_300_000_000  # the first of mallory's subordinate uids
DESCRIPTORS = 1024
# What one user may have: requests a second, and saved up; datagrams that are read a second.
RATE, BURST = 100, 400
DATAGRAMS = 512 / 0.2
NAP = f"1000.{os.getpid()}"  # seconds for which hooks sleep: no other test's do


@pytest.fixture
def settings() -> dict[str, dict[str, Any]]:
    return {"sweep": {"interval_seconds": 1}, "stall": {"after_seconds": 30, "start_limit_seconds": 600}}


def start(world: World, *, descriptors: int = 8192) -> None:
    subuid = world.dir / "subuid"
    subuid.write_text(f"{MALLORY}:{SUB}:65536\n")
    mount = f'mount --bind {subuid} /etc/subuid && ulimit -n {descriptors} && exec "$0" "$@"'
    world.start(prefix=("unshare", "--mount", "--propagation", "private", "sh", "-c", mount))


class Attack:
    """Programs of tests/attacks/hostile.py, by their uids."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.running: list[subprocess.Popen[str]] = []

    def begin(self, uid: int, mode: str, *words: object) -> None:
        """Start one."""
        process = subprocess.Popen(
            ["/usr/bin/python3", "-I", str(HOSTILE), mode, self.world.socket, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            user=uid,
            group=MALLORY,
            extra_groups=[],
            cwd="/",
            env={"WORLD": str(self.world.dir)},
        )
        self.running.append(process)

    def ready(self) -> None:
        """Wait until all have begun."""
        for process in self.running:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"

    def ended(self) -> list[dict[str, int]]:
        """Wait for all; how often each answer came."""
        found = []
        for process in self.running:
            with process:
                assert process.stdin is not None and process.stdout is not None
                process.stdin.close()  # at which `connect` and `halt` end
                process.wait(300)
                found.append(json.loads(process.stdout.read()))
        return found

    @property
    def on(self) -> bool:
        return all(process.poll() is None for process in self.running)


def ask_as(world: World, uid: int, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """One request of another uid."""
    done = subprocess.run(
        ["/usr/bin/python3", "-I", str(HOSTILE), "one", world.socket, method, path, json.dumps(body)],
        user=uid,
        group=uid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    status, answer = json.loads(done.stdout)
    return status, answer


def orders(world: World, attack: Attack, most: int = 200) -> list[float]:
    """Root registers a process and has it killed, again and again while the attack is on: the seconds of each."""
    took: list[float] = []
    while attack.on and len(took) < most:
        process = world.spawn("sleep", "1000")
        name = f"root{len(took)}"
        began = time.monotonic()
        status, answer = world.ask("POST", "/v1/agents", {"name": name, "pid": process.pid})
        assert status == 201, answer
        status, answer = world.ask("POST", "/v1/kill", {"targets": [name], "force": True})
        took.append(time.monotonic() - began)
        assert status == 200, answer
        process.wait()
    return took


def told(took: list[float]) -> str:
    """For whoever reads a failure."""
    return f"root's orders: {len(took)}, at most {max(took, default=0):.2f} s"


def admitted(counts: dict[str, int], *statuses: str) -> int:
    return sum(counts.get(status, 0) for status in statuses)


def limited(world: World) -> set[str]:
    """In what mallory was limited; `status` tells it until a minute after the last refusal."""
    return {event["kind"] for event in world.events() if event["event"] == "user.limited" and event["uid"] == MALLORY}


def test_the_subordinate_uids_of_one_user_exhaust_nothing(world: World) -> None:
    """H3. In the review of f87b3bd 20 sub-uids used up the descriptors; a victim's and root's failed."""
    start(world, descriptors=DESCRIPTORS)
    attack = Attack(world)
    for number in range(20):
        attack.begin(SUB + number, "hoard", 110)
    attack.ready()
    taken = sum(counts["agents"] for counts in attack.ended())

    status, answer = ask_as(world, VICTIM, "POST", "/v1/agents", {"name": "victim"})
    assert status == 201, answer
    process = world.spawn("sleep", "1000")
    assert world.ask("POST", "/v1/agents", {"name": "root", "pid": process.pid})[0] == 201
    assert world.ask("POST", "/v1/kill", {"targets": ["root"], "force": True})[0] == 200
    process.wait()
    assert taken <= DESCRIPTORS // 4
    assert "agents" in limited(world)
    assert world.count("user.limited", uid=MALLORY, kind="agents") == 1
    assert world.count("descriptors.exhausted") == 0


def test_the_connections_of_subordinate_uids_are_one_users(world: World) -> None:
    """H3. At f87b3bd the victim got no answer."""
    start(world, descriptors=DESCRIPTORS)
    attack = Attack(world)
    for number in range(40):
        attack.begin(SUB + number, "connect", 12)
    attack.ready()
    assert ask_as(world, VICTIM, "GET", "/v1/status")[0] == 200
    assert ask_as(world, VICTIM, "POST", "/v1/agents", {"name": "victim"})[0] == 201
    assert world.cli("status").returncode == 1, "it answers, and says that a user is limited"
    for process in attack.running:
        assert process.stdin is not None
        process.stdin.close()
    held = attack.ended()
    assert world.count("user.limited", uid=MALLORY, kind="connections") == 1
    assert sum(counts.get("open", 0) for counts in held) <= 40 * 12


def most_of(seconds: float) -> float:
    """The tokens that one user gets in so many seconds, when it has saved up all it can."""
    return BURST + RATE * (seconds + 2)


def test_what_root_asks_comes_before_what_thirty_clients_have_asked(world: World) -> None:
    """M2. In the review of f87b3bd root's kill went from 0.08 to 13.8 s while 30 clients registered and removed.

    Judged by what comes first, as seconds are the machine's to say as well: the daemon stands still until all have
    asked, root last of all. At f87b3bd root's was done last, too.
    """
    start(world)
    process = world.spawn("sleep", "1000")
    for verb, body, event in (
        ("agents", {"name": "roots", "pid": process.pid}, "agent.registered"),
        ("remove", {"targets": ["roots"], "force": True}, "kill.requested"),
    ):
        attack = Attack(world)
        with stopped(world):
            attack.begin(MALLORY, "volley", verb, 30)
            attack.ready()
            answer = asked(world, "agents" if verb == "agents" else "kill", body)
        assert answer().split()[1] in (b"200", b"201")
        assert attack.ended() in ([{"201": 30}], [{"200": 30}])
        order = world.sql(
            "SELECT name FROM lifecycle_event JOIN agent_lifecycle USING (agent_id)"
            f" WHERE event = '{event}' ORDER BY lifecycle_event.id"
        )
        print(verb, [name for (name,) in order])
        assert len(order) == 31
        assert order.index(("roots",)) <= 20, "so many of users' go into the transaction that is being written"
    process.wait()


@contextmanager
def stopped(world: World) -> Iterator[None]:
    """The daemon stands still meanwhile."""
    assert world.daemon is not None
    world.daemon.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        world.daemon.send_signal(signal.SIGCONT)


def asked(world: World, verb: str, body: object) -> Callable[[], bytes]:
    """Root's request is sent; what is given back waits for the answer."""
    content = json.dumps(body).encode()
    head = f"POST /v1/{verb} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    speaker = socket.socket(socket.AF_UNIX)
    speaker.settimeout(60)
    speaker.connect(world.socket)
    speaker.sendall(head.encode() + content)

    def answer() -> bytes:
        with speaker, speaker.makefile("rb") as lines:
            return lines.read()

    return answer


def test_restore_by_thirty_clients_starts_one_helper_at_a_time(world: World) -> None:
    """M2. In the review of f87b3bd root's orders took up to 5.8 s."""
    start(world)
    attack = Attack(world)
    attack.begin(MALLORY, "restore", 30, 8)
    attack.ready()
    most = 0
    while attack.on:
        most = max(most, len(helpers(world)))
        time.sleep(0.01)
    (counts,) = attack.ended()
    print(f"{counts}, helpers at a time: {most}")
    assert admitted(counts, "200") >= 1
    assert most <= 2, "one, and one that has answered and is about to end"
    assert counts.get("429", 0) > 0
    assert "requests" in limited(world)


def helpers(world: World) -> list[int]:
    """Processes of the daemon's that run as the attacker."""
    assert world.daemon is not None
    found = []
    for task in Path(f"/proc/{world.daemon.pid}/task").iterdir():
        try:
            children = (task / "children").read_text().split()
            found += [int(pid) for pid in children if os.stat(f"/proc/{pid}").st_uid == MALLORY]
        except OSError:
            continue
    return found


def test_a_flood_on_250_sockets_delays_no_sweep_and_no_stall(world: World) -> None:
    """M2. At f87b3bd: sweeps of 2 to 7 s instead of 0.04, root's orders 20 to 37 s, a stall of 30 s ended after 57.

    Judged by how many of its datagrams were read. The last message of each flooded agent counts all the same.
    """
    start(world)
    attack = Attack(world)
    began = time.monotonic()
    attack.begin(MALLORY, "flood", 250, 15)
    attack.ready()
    stalling = world.registered("stalls", "sleep", "1000", stall_after_seconds=5)
    assert world.ask("POST", "/v1/agents/stalls/beat", {})[0] == 204
    world.wait_event("agent.stalled", name="stalls")
    took = orders(world, attack)
    (counts,) = attack.ended()
    seconds = time.monotonic() - began
    assert stalling.wait(60)
    print(f"{counts} in {seconds:.1f} s; {told(took)}")
    assert counts["full"] > 0 and counts["agents"] == 250
    waiting = 250 * (1 + int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text()))
    assert counts["sent"] <= waiting + DATAGRAMS * seconds
    assert "datagrams" in limited(world)

    def last_words() -> bool:
        agents = ask_as(world, MALLORY, "GET", "/v1/agents")[1]["agents"]
        mine = [agent for agent in agents if agent["name"].startswith(f"h{MALLORY}-")]
        return len(mine) == 250 and all(agent["note"] == "the last word" for agent in mine)

    wait_for(last_words, "the last message of each is read", 120)


@pytest.mark.parametrize("uids", [(MALLORY,), tuple(SUB + number for number in range(6))], ids=["uid", "sub-uids"])
def test_names_that_are_nobodys_cost_what_they_take(world: World, uids: tuple[int, ...]) -> None:
    """M2, a sibling: 256 targets in one request, each looked up in the registry three times. H3: by one user's uids.

    At f87b3bd, and still at bc51ea4, each of them was.
    """
    start(world)
    attack = Attack(world)
    began = time.monotonic()
    for uid in uids:
        attack.begin(uid, "names", 30 // len(uids), 5)
    attack.ready()
    took = orders(world, attack)
    counts = sum(map(Counter, attack.ended()), Counter[str]())
    seconds = time.monotonic() - began
    print(f"{dict(counts)} in {seconds:.1f} s; {told(took)}")
    assert took
    assert 0.5 * 256 * (admitted(counts, "200", "404") - 1) <= most_of(seconds), "one may leave a debt"
    assert "requests" in limited(world)


def test_what_is_no_http_costs_as_a_request_does(world: World) -> None:
    """M2, a sibling: it never comes to be a request, and was answered as often as it came, still at bc51ea4."""
    start(world)
    attack = Attack(world)
    began = time.monotonic()
    attack.begin(MALLORY, "noise", 30, 5)
    attack.ready()
    took = orders(world, attack)
    (counts,) = attack.ended()
    seconds = time.monotonic() - began
    print(f"{counts} in {seconds:.1f} s; {told(took)}")
    assert admitted(counts, "400") <= most_of(seconds)


def test_knocking_without_end_locks_nobody_out(world: World) -> None:
    """M2 and H3, a sibling: connect and leave, so that those who are to be let in wait behind a full backlog.

    At f87b3bd, and still at bc51ea4, root's client gave up at once: "too many connections waiting".
    """
    start(world)
    attack = Attack(world)
    for _ in range(3):
        attack.begin(MALLORY, "knock", 20, 8)
    attack.ready()
    took = orders(world, attack)
    counts = attack.ended()
    print(f"{counts}; {told(took)}")
    assert took
    assert ask_as(world, VICTIM, "GET", "/v1/status")[0] == 200
    assert "connections" in limited(world)


@pytest.mark.parametrize(
    ("uids", "held"),
    [(tuple(SUB + number for number in range(10)), 6), ((MALLORY, VICTIM), 8)],
    ids=["sub-uids", "two users"],
)
def test_hooks_that_hang_take_no_place_of_roots(world: World, uids: tuple[int, ...], held: int) -> None:
    """H3, a sibling: what is to be run after an agent's end has 16 places here, of which one uid had 8 at f87b3bd.

    Root's hook was not run while the others hung: at f87b3bd sub-uids were enough, at bc51ea4 it took two users. Four
    are root's; of the others one user, with all its sub-uids, has half, whoever comes next half of the rest.
    """
    done = world.dir / "done"
    with world.config.open("a") as config:
        config.write('[[hook]]\nname = "hangs"\non = ["failed", "killed", "completed", "stopped"]\n')
        config.write(f"command = ['sh', '-c', 'test $(id -u) -ne 0 || exec touch {done}; exec sleep {NAP}']\n")
    start(world, descriptors=256)
    attack = Attack(world)
    for uid in uids:
        attack.begin(uid, "leave", 20 // len(uids))
    attack.ready()
    assert sum(counts.get("201", 0) for counts in attack.ended()) == 20
    wait_for(lambda: world.count("agent.gone") == 20, "all of them have ended")
    wait_for(lambda: hanging(uids) >= held, "their hooks hang")

    roots = world.registered("roots", "sleep", "1000")
    assert world.ask("POST", "/v1/kill", {"targets": ["roots"], "wait": False})[0] == 200
    roots.wait()
    wait_for(done.exists, "root's hook", 30)
    assert hanging(uids) >= held


def hanging(uids: tuple[int, ...]) -> int:
    """How many hooks of theirs sleep."""
    found = 0
    for pid in (name for name in os.listdir("/proc") if name.isdigit()):
        try:
            asleep = Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\0%s\0" % NAP.encode()
            found += asleep and os.stat(f"/proc/{pid}").st_uid in uids
        except OSError:
            continue
    return found


def test_holding_and_lifting_without_end_needs_one_row_an_agent(world: World) -> None:
    """H2, its first half. In the review of f87b3bd: 200 agents, 20 s: 114 MB of registry and 93 MB of log."""
    start(world)
    attack = Attack(world)
    before = size(world)
    attack.begin(MALLORY, "hold", 100, 15)
    attack.ready()
    (counts,) = attack.ended()
    rows = world.sql("SELECT count(*) FROM operator_hold")[0][0]
    assert counts.get("200", 0) >= 2
    assert rows <= 100
    assert size(world) - before < 20_000_000


def size(world: World) -> int:
    files = [*world.state.glob("registry.db*"), world.log]
    return sum(path.stat().st_size for path in files if path.exists())


def test_heartbeats_over_http_are_never_refused_for_their_number(world: World) -> None:
    """A flood of them is taken a second late, and another user's request is served meanwhile."""
    start(world)
    attack = Attack(world)
    attack.begin(MALLORY, "beats", 30, 10)
    attack.ready()
    took: list[float] = []
    while attack.on:
        began = time.monotonic()
        assert ask_as(world, VICTIM, "GET", "/v1/status")[0] == 200
        took.append(time.monotonic() - began)
    (counts,) = attack.ended()
    assert set(counts) <= {"204", "503"}, "503: more than 32 connections"
    assert sorted(took)[len(took) // 2] < 5


def test_owners_that_stop_their_helpers_hold_a_look_for_what_can_be_restored_up_once(world: World) -> None:
    """Root's `restore` asks the helper of each owner. Seen at bc51ea4: one after the other, 30 s each."""
    start(world)
    owners = [MALLORY, *range(SUB, SUB + 4)]
    for uid in owners:
        coming = Attack(world)
        coming.begin(uid, "one", "POST", "/v1/agents", json.dumps({"name": f"a{uid}"}))
        coming.ended()
        world.sql(
            "INSERT INTO cleanup_run (run_id, agent_id, hook, status, attempts, message, details, started_at)"
            f" SELECT 'run-{uid}', agent_id, 'worktree', 'done', 1, '',"
            f""" '{{"trash":"/tmp/{uid}/agent-watchdog/trash/x/tree"}}', created_at"""
            f" FROM agent_lifecycle WHERE name = 'a{uid}'"
        )
    attack = Attack(world)
    for uid in owners:
        attack.begin(uid, "halt")
    attack.ready()
    began = time.monotonic()
    status, answer = world.ask("GET", "/v1/restore")
    assert time.monotonic() - began < 10
    assert status == 200
    assert len(answer["problems"]) == len(owners)
    assert all("its helper gave no answer within 5 s" in one for one in answer["unheard"])
    assert sum(count["halted"] for count in attack.ended())


def test_who_asks_for_much_pays_for_much(world: World) -> None:
    """Seen at bc51ea4: the story of an agent of 2,000 processes, half a megabyte, costs what any story costs.

    One user with 16 clients kept the loop busy for most of the time: root's `kill` took 1.7 s. Here it is the history.
    """
    start(world)
    coming = Attack(world)
    coming.begin(MALLORY, "one", "POST", "/v1/agents", json.dumps({"name": "much"}))
    coming.ended()
    agent = world.agents()["much"]["agent_id"]
    world.sql(
        "INSERT INTO lifecycle_event (at, agent_id, event, who, why, evidence, owner_uid)"
        f" SELECT created_at, agent_id, 'agent.told', 'uid {MALLORY}', hex(randomblob(200)), '{{}}', {MALLORY}"
        " FROM agent_lifecycle, (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
        f" SELECT i FROM n) WHERE agent_id = '{agent}'"
    )
    attack = Attack(world)
    attack.begin(MALLORY, "read", 20, 6, f"/v1/agents/{agent}")
    attack.ready()
    (answers,) = attack.ended()
    assert answers["200"] > 10
    assert answers["200"] < 60, "a megabyte each: 400 tokens, and 100 a second, are 30 of these and 3 more a second"
    assert answers["429"] > 0
