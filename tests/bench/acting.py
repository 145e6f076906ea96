"""What it costs to act: to notice an end, to beat, to end a crowd and prove it."""

import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench import peers
from tests.bench.crowd import Crowd, watched_crowd
from tests.bench.table import MISSING, NONE, QUICK, SETTINGS, Row, floor, spread
from tests.world import BIN, make_world
from watchdog.client.client import request

SIZES = (1, 10, 100, 500)
TARGETS = {(100, False): "0.2", (100, True): "2.3", (500, True): "2.6"}


def noticing() -> list[Row]:
    """From SIGKILL of one of 1,000 to the line of it in the log; the floor: to the line of epoll."""
    for world in make_world(**SETTINGS):
        world.start()
        crowd = watched_crowd(world, 1000)
        bare = floor("watch", crowd.pids)
        assert bare.stdout is not None
        time.sleep(3)
        ours, floors = [], []
        with world.log.open() as log:
            for pid in crowd.pids[: 20 if QUICK else 60]:
                log.seek(0, os.SEEK_END)
                began = time.monotonic()
                os.kill(pid, 9)  # it lives: it is ours, and nobody else ends it
                bare.stdout.readline()
                floors.append((time.monotonic() - began) * 1000)
                while "agent.gone" not in log.readline():
                    if time.monotonic() - began > 20:
                        break
                ours.append((time.monotonic() - began) * 1000)
                time.sleep(0.4)  # what follows an end (a look for leftovers) is over by then
        bare.kill()
        bare.communicate()
        crowd.close()
    return [("death to notice of one in 1,000: ms, median (max)", spread(ours), spread(floors), NONE, "2 (20)")]


def beat() -> list[Row]:
    """The whole process."""

    def timed(command: list[str], environ: dict[str, str]) -> str:
        took = []
        for _ in range(10 if QUICK else 100):
            began = time.monotonic()
            subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
            took.append((time.monotonic() - began) * 1000)
        return spread(took)

    for world in make_world(**SETTINGS):
        world.start()
        crowd = watched_crowd(world, 1)
        agent = world.ask("GET", "/v1/agents")[1]["agents"][0]["agent_id"]
        environ = {**world.environ, "AGENT_WATCHDOG_ID": agent, "NOTIFY_SOCKET": f"{world.runtime}/notify/{agent}"}
        ours = timed([str(BIN / "agent-watchdog"), "beat"], environ)
        bare = timed([sys.executable, "-IS", "-c", "pass"], environ)
        others = [f"systemd-notify {timed(['systemd-notify', '--no-block', 'WATCHDOG=1'], environ)}"]
        hcom = peers.there("hcom")
        others.append(f"hcom list {timed([hcom, 'list'], environ)}" if hcom else f"hcom: {MISSING}")
        hooks = _hooks(world.environ, 10 if QUICK else 100)
        crowd.close()
    return [
        ("one `beat`, whole process: ms, median (p99)", ours, bare, " · ".join(others), "20"),
        ("one vendor hook, whole process: ms, median (p99)", hooks, bare, NONE, "35"),
    ]


_AS_A_VENDOR = """
import subprocess, sys, time
event = b'{"hook_event_name": "PreToolUse", "cwd": "/srv/api", "tool_name": "Bash", "tool_input": {"timeout": 9000}}'
for _ in range(int(sys.argv[1]) + 1):
    began = time.monotonic()
    subprocess.run(sys.argv[2:], input=event)
    print((time.monotonic() - began) * 1000, flush=True)
"""


def _hooks(environ: dict[str, str], count: int) -> str:
    """Of a session that is known: as each tool costs it. Taken by a process that looks like the vendor's."""
    command = [str(BIN / "agent-watchdog"), "beat", "--from", "claude"]
    done = subprocess.run(
        ["claude", "-c", _AS_A_VENDOR, str(count), *command],
        executable=sys.executable,
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return spread([float(line) for line in done.stdout.split()][1:])  # the first one registered it


def killing(*, deaf: bool) -> list[Row]:
    """From the word to all proved dead, of crowds that obey TERM, or ignore it and have 2 s of grace."""
    rows: list[Row] = []
    for size in SIZES:
        for world in make_world(**SETTINGS):
            world.start()
            crowd = watched_crowd(world, size, deaf=deaf)
            time.sleep(1)
            began = time.monotonic()
            _, answer = request("POST", "/v1/kill", {"targets": ["all"]}, socket_path=world.socket, timeout=120)
            ours = time.monotonic() - began
            assert answer["agents_killed"] == size, answer
            crowd.close()
        other = Crowd(size, deaf=deaf)
        bare = float(floor("stop", other.pids).communicate()[0])
        other.close()
        words = "ignore TERM, grace 2 s" if deaf else "obey TERM"
        others = f"{_supervisord(size, deaf)} · {_hcom(size, deaf)}"
        figure = f"kill to proved dead s, {size} that {words}"
        rows.append((figure, f"{ours:.2f}", f"{bare:.3f}", others, TARGETS.get((size, deaf), NONE)))
    return rows


def _supervisord(size: int, deaf: bool) -> str:
    """From TERM to its own end, which comes when its processes have ended."""
    with tempfile.TemporaryDirectory() as directory:
        process = peers.supervisord(Path(directory), size, deaf=deaf)
        return f"supervisord: {MISSING}" if process is None else f"supervisord {peers.end(process):.2f}"


def _hcom(size: int, deaf: bool) -> str:
    """`hcom kill all` of processes that it knows as launched by it; it sends TERM and waits for nobody."""
    if peers.there("hcom") is None:
        return f"hcom: {MISSING}"
    with tempfile.TemporaryDirectory() as directory:
        crowd = Crowd(size, deaf=deaf, lead=True)
        held = [os.pidfd_open(pid) for pid in crowd.pids]
        began = time.monotonic()
        peers.hcom_kill(Path(directory), crowd.pids)
        left = _living(held, began + 5)
        took = time.monotonic() - began
        for pidfd in held:
            os.close(pidfd)
        crowd.close()
    return f"hcom kill says done, {left} live on" if left else f"hcom kill {took:.2f}"


def _living(pidfds: list[int], deadline: float) -> int:
    """How many have not ended at the deadline, or 0 as soon as all have."""
    poll, left = select.epoll(), set(pidfds)
    for pidfd in pidfds:
        poll.register(pidfd, select.EPOLLIN)
    while left and (seconds := deadline - time.monotonic()) > 0:
        for pidfd, _ in poll.poll(seconds):
            left.discard(pidfd)
            poll.unregister(pidfd)
    poll.close()
    return len(left)
