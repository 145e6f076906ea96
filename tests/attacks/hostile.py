"""A hostile user's programs: hostile.py MODE SOCKET WORD... (standard library only: it runs as other uids).

    churn SOCKET CLIENTS SECONDS     register an agent and remove it, by so many clients at once
    restore SOCKET CLIENTS SECONDS   GET /restore, likewise
    beats SOCKET CLIENTS SECONDS     heartbeats over HTTP for one agent, likewise
    hoard SOCKET COUNT               register so many agents and keep them
    connect SOCKET COUNT             open so many connections, and keep them until stdin ends
    flood SOCKET COUNT SECONDS       register so many agents, and write to their notify sockets without pause
    hold SOCKET COUNT SECONDS        register so many agents; hold and unhold all of them with a reason of 1,000 letters

Prints `ready` when it begins, and at the end a JSON object: how often each HTTP status came, "refused" for none.
"""

import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from contextlib import suppress


def ask(path, method, target, body=None):
    """Status and answer; 0 where the daemon hung up or did not take the connection."""
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n\r\n"
    got = b""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as speaker:
        speaker.settimeout(60)
        speaker.connect(path)
        speaker.sendall(head.encode() + content)
        while piece := speaker.recv(65536):
            got += piece
    head, _, content = got.partition(b"\r\n\r\n")
    with suppress(ValueError, IndexError):
        return int(head.split()[1]), json.loads(content or b"{}")
    return 0, {}


def many(clients, seconds, act):
    """So many threads, each as fast as it is answered."""
    counts, until = Counter(), time.monotonic() + seconds

    def work(number):
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


def churn(path, clients, seconds):
    uid = os.getuid()

    def act(number, turn):
        name = f"x{uid}-{number}-{turn}"
        status, _ = ask(path, "POST", "/v1/agents", {"name": name, "temp_dir": f"/tmp/{name}/{'p' * 200}"})
        yield status
        if status == 201:
            yield ask(path, "POST", "/v1/remove", {"targets": [name]})[0]

    return many(int(clients), float(seconds), act)


def restore(path, clients, seconds):
    return many(int(clients), float(seconds), lambda number, turn: [ask(path, "GET", "/v1/restore?place=/tmp")[0]])


def beats(path, clients, seconds):
    agent = ask(path, "POST", "/v1/agents", {"name": f"b{os.getuid()}"})[1]["agent_id"]
    target = f"/v1/agents/{agent}/beat"
    return many(int(clients), float(seconds), lambda number, turn: [ask(path, "POST", target, {"note": str(turn)})[0]])


def registered(path, count, begin=lambda agent: None):
    """Agents of ours, each refused one tried again until the daemon says that there is no room."""
    agents, counts = [], Counter()
    while len(agents) < count:
        status, answer = ask(path, "POST", "/v1/agents", {"name": f"h{os.getuid()}-{len(agents)}"})
        counts[str(status or "refused")] += 1
        if status == 201:
            agents.append(answer)
            begin(answer)
        elif status == 409 or (status == 429 and "descriptors" in str(answer)) or status == 500:
            break
    return agents, counts


def hoard(path, count):
    print("ready", flush=True)
    agents, counts = registered(path, int(count))
    return {**counts, "agents": len(agents)}


def connect(path, count):
    held, counts = [], Counter()
    for _ in range(int(count)):
        speaker = socket.socket(socket.AF_UNIX)
        speaker.settimeout(10)
        speaker.connect(path)
        held.append(speaker)
    for speaker in held:
        speaker.settimeout(0.2)
        try:
            counts["cut" if speaker.recv(10) in (b"", b"HTTP/1.1 5") else "open"] += 1
        except TimeoutError:
            counts["open"] += 1
        except OSError:
            counts["cut"] += 1
    print("ready", flush=True)
    sys.stdin.read()
    return counts


def flood(path, count, seconds):
    speakers = []

    def begin(agent):
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


def hold(path, count, seconds):
    agents, counts = registered(path, int(count))
    targets = [agent["agent_id"] for agent in agents]
    print("ready", flush=True)
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        for route in ("hold", "unhold"):
            body = {"targets": targets, **({"reason": "r" * 1000} if route == "hold" else {})}
            counts[str(ask(path, "POST", f"/v1/{route}", body)[0])] += 1
    return counts


def main():
    mode, *words = sys.argv[1:]
    print(json.dumps(globals()[mode](*words)), flush=True)


main()
