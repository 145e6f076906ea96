"""A hostile user's programs: hostile.py MODE SOCKET WORD... (standard library only: it runs as other uids).

    churn SOCKET CLIENTS SECONDS     register an agent and remove it, by so many clients at once
    volley SOCKET VERB COUNT         POST /agents or /remove of so many agents, all of them before the first answer
    restore SOCKET CLIENTS SECONDS   GET /restore, likewise
    read SOCKET CLIENTS SECONDS TARGET  GET a target, likewise
    beats SOCKET CLIENTS SECONDS     heartbeats over HTTP for one agent, likewise
    names SOCKET CLIENTS SECONDS     POST /kill with 256 targets that are nobody's names, likewise
    noise SOCKET CLIENTS SECONDS     what is no HTTP, likewise
    knock SOCKET CLIENTS SECONDS     connect and leave, likewise
    leave SOCKET COUNT               register so many agents whose processes end by themselves
    hoard SOCKET COUNT               register so many agents and keep them
    connect SOCKET COUNT             open so many connections, and keep them until stdin ends
    flood SOCKET COUNT SECONDS       register so many agents, and write to their notify sockets without pause
    halt SOCKET                      stop each helper of one's own uid as soon as it can be signalled, until stdin ends
    falter SOCKET                    likewise, but let it go on after a second, for a moment, and stop it again
    one SOCKET METHOD PATH BODY      one request; prints status and answer
    hold SOCKET COUNT SECONDS        register so many agents; hold and unhold all of them with a reason of 1,000 letters

Prints `ready` when it begins, and at the end a JSON object: how often each HTTP status came, "refused" for none.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any


def ask(path: str, method: str, target: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """Status and answer; 0 where the daemon hung up or did not take the connection."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    return said(path, head.encode() + content)


def said(path: str, request: bytes) -> tuple[int, dict[str, Any]]:
    """The same for any bytes."""
    got = b""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as speaker:
        speaker.settimeout(60)
        speaker.connect(path)
        with suppress(BrokenPipeError):  # whoever hangs up unread has said why before
            speaker.sendall(request)
        while piece := speaker.recv(65536):
            got += piece
    answered, _, content = got.partition(b"\r\n\r\n")
    with suppress(ValueError, IndexError):
        return int(answered.split()[1]), json.loads(content or b"{}")
    return 0, {}


def many(clients: int, seconds: float, act: Callable[[int, int], Iterable[int]]) -> Counter[str]:
    """So many threads, each as fast as it is answered."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds

    def work(number: int) -> None:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            for status in act(number, turn):
                counts[str(status or "refused")] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    print("ready", flush=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def churn(path: str, clients: str, seconds: str) -> Counter[str]:
    uid = os.getuid()

    def act(number: int, turn: int) -> Iterator[int]:
        name = f"x{uid}-{number}-{turn}"
        status, _ = ask(path, "POST", "/v1/agents", {"name": name, "temp_dir": f"/tmp/{name}/{'p' * 200}"})
        yield status
        if status == 201:
            yield ask(path, "POST", "/v1/remove", {"targets": [name]})[0]

    return many(int(clients), float(seconds), act)


def volley(path: str, verb: str, count: str) -> Counter[str]:
    speakers: list[socket.socket] = []
    for number in range(int(count)):
        name = f"v{number}"
        body: dict[str, Any] = {"name": name} if verb == "agents" else {"targets": [name]}
        content = json.dumps(body).encode()
        head = f"POST /v1/{verb} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
        speaker = socket.socket(socket.AF_UNIX)
        speaker.connect(path)
        speaker.sendall(head.encode() + content)
        speakers.append(speaker)
    print("ready", flush=True)
    counts: Counter[str] = Counter()
    for speaker in speakers:
        counts[speaker.makefile("rb").readline().split()[1].decode()] += 1
    return counts


def restore(path: str, clients: str, seconds: str) -> Counter[str]:
    return many(int(clients), float(seconds), lambda number, turn: [ask(path, "GET", "/v1/restore?place=/tmp")[0]])


def read(path: str, clients: str, seconds: str, target: str) -> Counter[str]:
    return many(int(clients), float(seconds), lambda number, turn: [ask(path, "GET", target)[0]])


def beats(path: str, clients: str, seconds: str) -> Counter[str]:
    agent = ask(path, "POST", "/v1/agents", {"name": f"b{os.getuid()}"})[1]["agent_id"]
    target = f"/v1/agents/{agent}/beat"
    return many(int(clients), float(seconds), lambda number, turn: [ask(path, "POST", target, {"note": str(turn)})[0]])


def names(path: str, clients: str, seconds: str) -> Counter[str]:
    def act(number: int, turn: int) -> list[int]:
        targets = [f"nobody-{number}-{turn}-{one}" for one in range(256)]
        return [ask(path, "POST", "/v1/kill", {"targets": targets})[0]]

    return many(int(clients), float(seconds), act)


def noise(path: str, clients: str, seconds: str) -> Counter[str]:
    return many(int(clients), float(seconds), lambda number, turn: [said(path, b"nonsense\r\n\r\n")[0]])


def knock(path: str, clients: str, seconds: str) -> Counter[str]:
    def act(number: int, turn: int) -> list[int]:
        with suppress(OSError), socket.socket(socket.AF_UNIX) as speaker:
            speaker.connect(path)
            return [200]
        return [0]

    return many(int(clients), float(seconds), act)


def leave(path: str, count: str) -> dict[str, int]:
    statuses: Counter[str] = Counter()
    print("ready", flush=True)
    for number in range(int(count)):
        process = subprocess.Popen(["sleep", "1000"])
        body = {"name": f"l{os.getuid()}-{number}", "pid": process.pid}
        statuses[str(ask(path, "POST", "/v1/agents", body)[0])] += 1
        process.kill()
        process.wait()
    return statuses


def registered(
    path: str, count: int, begin: Callable[[dict[str, Any]], None] = lambda agent: None
) -> tuple[list[dict[str, Any]], Counter[str]]:
    """Agents of ours, each refused one tried again until the daemon says that there is no room."""
    agents: list[dict[str, Any]] = []
    counts: Counter[str] = Counter()
    while len(agents) < count:
        status, answer = ask(path, "POST", "/v1/agents", {"name": f"h{os.getuid()}-{len(agents)}"})
        counts[str(status or "refused")] += 1
        if status == 201:
            agents.append(answer)
            begin(answer)
        elif status == 409 or (status == 429 and "descriptors" in str(answer)) or status == 500:
            break
    return agents, counts


def hoard(path: str, count: str) -> dict[str, int]:
    print("ready", flush=True)
    agents, counts = registered(path, int(count))
    return {**counts, "agents": len(agents)}


def connect(path: str, count: str) -> Counter[str]:
    held: list[socket.socket] = []
    counts: Counter[str] = Counter()
    for _ in range(int(count)):
        speaker = socket.socket(socket.AF_UNIX)
        speaker.settimeout(10)
        with suppress(OSError):
            speaker.connect(path)
            held.append(speaker)
            speaker.sendall(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n")
    print("ready", flush=True)
    sys.stdin.read()
    for speaker in held:
        speaker.setblocking(False)
        try:
            speaker.recv(10)
            counts["cut"] += 1
        except BlockingIOError:
            counts["open"] += 1
        except OSError:
            counts["cut"] += 1
    return counts


def flood(path: str, count: str, seconds: str) -> dict[str, int]:
    speakers: list[socket.socket] = []

    def begin(agent: dict[str, Any]) -> None:
        speaker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        speaker.connect(agent["env"]["NOTIFY_SOCKET"])
        speaker.send(b"WATCHDOG=1")
        speakers.append(speaker)

    agents, counts = registered(path, int(count), begin)
    print("ready", flush=True)
    until, sent, refused = time.monotonic() + float(seconds), 0, 0
    while time.monotonic() < until:
        for speaker in speakers:
            try:
                speaker.send(b"WATCHDOG=1\nX_AGENT_PROGRESS=%d\nX_AGENT_NOTE=flood" % sent)
                sent += 1
            except OSError:
                refused += 1
    for speaker in speakers:
        speaker.settimeout(60)
        speaker.send(b"WATCHDOG=1\nX_AGENT_NOTE=the last word")
    return {**counts, "sent": sent, "full": refused, "agents": len(agents)}


def hold(path: str, count: str, seconds: str) -> Counter[str]:
    agents, counts = registered(path, int(count))
    targets = [agent["agent_id"] for agent in agents]
    print("ready", flush=True)
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        for route in ("hold", "unhold"):
            body = {"targets": targets, **({"reason": "r" * 1000} if route == "hold" else {})}
            counts[str(ask(path, "POST", f"/v1/{route}", body)[0])] += 1
    return counts


def halt(path: str) -> Counter[str]:
    """`path` is not used: a helper is found by its words, and is its owner's to signal."""
    halted: set[int] = set()
    print("ready", flush=True)
    while not select.select([0], [], [], 0.01)[0]:
        for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()} - halted:
            with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as words:
                if f"--become={os.getuid()}:".encode() in words.read():
                    os.kill(pid, signal.SIGSTOP)
                    halted.add(pid)
    _go_on(halted)
    return Counter({"halted": len(halted)})


def falter(path: str) -> Counter[str]:
    """`path` is not used."""
    halted: dict[int, float] = {}
    print("ready", flush=True)
    while not select.select([0], [], [], 0.01)[0]:
        for pid in {int(name) for name in os.listdir("/proc") if name.isdigit()} - halted.keys():
            with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as words:
                if f"--become={os.getuid()}:".encode() in words.read():
                    os.kill(pid, signal.SIGSTOP)
                    halted[pid] = time.monotonic()
        for pid, since in halted.items():
            if 0 < time.monotonic() - since - 1 < 10:
                halted[pid] = float("inf")
                with suppress(OSError):
                    os.kill(pid, signal.SIGCONT)
                    time.sleep(0.005)
                    os.kill(pid, signal.SIGSTOP)
    _go_on(halted)
    return Counter({"halted": len(halted)})


def _go_on(halted: Iterable[int]) -> None:
    """Let them see that their daemon has gone: one that is stopped would stay for ever."""
    for pid in halted:
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def one(path: str, method: str, target: str, body: str) -> tuple[int, dict[str, Any]]:
    return ask(path, method, target, json.loads(body))


def main() -> None:
    mode, *words = sys.argv[1:]
    print(json.dumps(globals()[mode](*words)), flush=True)


main()
