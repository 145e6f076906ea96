"""What is not /proc hangs: a call to it never returns. Sweeps, kills and answers go on, and the daemon ends when told.

The story of each row: two agents; the hang begins; one of them falls silent, the other is killed by an order; `status`
names what hangs; SIGTERM; a second start. Where the registry hangs nobody may be killed, and both are told so in time.
"""

import fcntl
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.hanging import Hanging
from tests.faults.registry.detour import detour
from tests.faults.registry.postgresql import make_site
from tests.faults.table import Row, Run
from tests.world import World, alive, make_world, wait_for
from watchdog.registry.async_registry import HUNG
from watchdog.service.exit_timer import LIMIT

MARGIN = 5.0  # seconds of a loaded machine: until SIGTERM is taken up, and until the end is seen
GAP = HUNG + MARGIN  # seconds between two sweeps at most: one waits for the registry, once
SYSTEMD = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs x /run && mkdir -p /run/systemd/system && exec "$@"', "sh")


@dataclass(frozen=True)
class Hang:
    """One kind. `said`: what `status` shows of it (in which key, which words); None: nothing of ours waits for it."""

    name: str
    how: str
    begin: Callable[[World, Hanging], None]
    said: tuple[str, str] | None
    recorded: bool = True  # the registry works
    logged: bool = True  # and so does the log
    hook: bool = False  # what is killed has a hook, and so needs a helper


def outlast(hang: Hang, run: Run) -> None:
    """The whole story, once."""
    with ExitStack() as held:
        world = held.enter_context(contextmanager(make_world)())
        file = {} if hang.logged else {"file": str(world.log)}
        world.configure(log={"level": "debug", **file})
        hanging = Hanging(world.dir)
        hanging.start(world)
        live_on(world, hang, hanging, run)
        hanging.take_away()
        started_again(world)


def live_on(world: World, hang: Hang, hanging: Hanging, run: Run) -> None:
    """From two agents that beat to the end of the daemon."""
    options = ("--temp-dir", "auto") if hang.hook else ()
    world.run("mute", *world.script("agent.py", "beat=0.3/still"), options=options)
    world.run("bystander", *world.script("agent.py", "beat=0.3"))
    for name in ("mute", "bystander"):
        world.wait_event("agent.first_beat", name=name)
    pids = {name: agent["pid"] for name, agent in world.agents().items()}
    before = len(world.events())
    hang.begin(world, hanging)
    (world.dir / "still").touch()
    began = time.monotonic()
    if hang.recorded:
        wait_for(lambda: not alive(pids["mute"]), "the silent agent is killed")
        run.note(f"stall found and killed after {time.monotonic() - began:.1f} s (limit 3 s)")
        timed(run, lambda: world.cli("kill", "bystander"), 10.0, "for a kill")
    else:
        wait_for(lambda: verdict(world, "mute") == "stalled", "the stall is found")
        run.note(f"stall found after {time.monotonic() - began:.1f} s (limit 3 s)")
        done = timed(run, lambda: world.cli("kill", "bystander", check=False), HUNG, "until a kill is refused")
        assert "registry" in done.stderr + done.stdout, done
        assert alive(pids["bystander"]), "killed without an intent on the disk"
    if hang.said is not None:
        key, words = hang.said
        wait_for(lambda: words in str(world.json("status")[key]), f"{words} in {key} of `status`")
    if hang.logged:
        ended = [event for event in world.events()[before:] if event["event"] == "sweep.finished"]
        times = [datetime.fromisoformat(event["ts"]).timestamp() for event in ended]
        gap = max(later - earlier for earlier, later in itertools.pairwise(times))
        run.note(f"{gap:.1f} s between two sweeps at most (interval 0.5 s)")
        assert gap <= GAP
    terminate(world, run)


def terminate(world: World, run: Run) -> None:
    """SIGTERM: it ends in time, with 0."""
    assert world.daemon is not None
    began = time.monotonic()
    world.daemon.send_signal(signal.SIGTERM)
    assert world.daemon.wait(LIMIT + MARGIN) == 0, world.log.read_text()[-2000:]
    run.note(f"ended {time.monotonic() - began:.1f} s after TERM (limit {LIMIT:g} s)")


def started_again(world: World) -> None:
    """Nothing of the former daemon is in the way of the next one."""
    world.start()
    assert world.stop() == 0


def timed(run: Run, do: Callable[[], subprocess.CompletedProcess[str]], limit: float, what: str) -> Any:
    began = time.monotonic()
    done = do()
    took = time.monotonic() - began
    run.note(f"{took:.1f} s {what}")
    assert took <= limit + MARGIN
    return done


def verdict(world: World, name: str) -> object:
    return next(one["verdict"] for one in world.json("list")["agents"] if one["name"] == name)


# -- what hangs


def stop_helpers(world: World, _: Hanging) -> None:
    """Each helper is stopped as soon as it is there, until the daemon has ended; the reader is none."""
    daemon = world.daemon
    assert daemon is not None
    children = Path(f"/proc/{daemon.pid}/task")

    def stop() -> None:
        while daemon.poll() is None:
            for file in children.glob("*/children"):
                with suppress(OSError):
                    for pid in map(int, file.read_text().split()):
                        if b"watchdog.owner.helper" in Path(f"/proc/{pid}/cmdline").read_bytes():
                            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.01)

    threading.Thread(target=stop, daemon=True).start()


def never_read(run: Run) -> None:
    """The log is a FIFO whose reader has stopped reading: full after 4 KB."""
    with contextmanager(make_world)() as world:
        fifo = world.dir / "log.fifo"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
        world.configure(log={"level": "debug", "file": str(fifo)})
        try:
            world.start(wait=False)
            wait_for(lambda: world.cli("status", check=False).returncode in (0, 1), "it answers")
            world.run("mute", *world.script("agent.py", "beat=0.3/still"))
            world.run("bystander", *world.script("agent.py", "beat=0.3"))
            wait_for(lambda: len([a for a in world.json("list")["agents"] if a["verdict"] == "healthy"]) == 2, "beats")
            wait_for(lambda: "its reader has stopped" in str(world.json("status")["log"]), "the FIFO is full")
            pid = world.agents()["mute"]["pid"]
            (world.dir / "still").touch()
            wait_for(lambda: not alive(pid), "the silent agent is killed")
            timed(run, lambda: world.cli("kill", "bystander"), 10.0, "for a kill")
            terminate(world, run)
        finally:
            os.close(reader)
        world.configure()
        started_again(world)


def programs_of_systemd(run: Run) -> None:
    """A root's daemon of a host with systemd, whose `systemd-run`, `systemctl` and `busctl` never answer."""
    with contextmanager(make_world)(log={"level": "debug"}) as world:
        fakes = world.dir / "fakes"
        fakes.mkdir()
        for name in ("systemd-run", "systemctl", "busctl"):
            (fakes / name).write_text("#!/bin/sh\nexec sleep 1000\n")
            (fakes / name).chmod(0o755)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(world.dir / "notify"))
            path = f"{fakes}:{world.environ['PATH']}"
            world.start(prefix=SYSTEMD, PATH=path, NOTIFY_SOCKET=str(world.dir / "notify"))
            hang = Hang("", "", lambda *_: None, None, hook=True)
            live_on(world, hang, Hanging(world.dir), run)
            assert world.count("cgroup.refused") == 1
        started_again(world)


def silent_postgresql(run: Run) -> None:
    """The way to the server takes bytes and passes nothing on."""
    server = run.fixture("server")
    with contextmanager(make_world)(log={"level": "debug"}) as world, detour(server.dir) as way:
        site = make_site(world, server, way)

        def begin(*_: object) -> None:
            way.silent = True

        hang = Hang("", "", begin, ("registry_problem", "timeout expired"), recorded=False)
        world.configure(registry={"url": site.url}, log={"level": "debug"})
        world.start()
        live_on(world, hang, Hanging(world.dir), run)
        way.silent = False
        started_again(world)


def reload(world: World, hanging: Hanging) -> None:
    """SIGHUP, while the file does not open."""
    assert world.daemon is not None
    hanging.begin("path", world.config)
    world.daemon.send_signal(signal.SIGHUP)


HANGS = (
    Hang(
        "the registry's disk takes no fsync",
        "fsync(2) in the state directory never returns",
        lambda world, hanging: hanging.begin("fsync", world.state),
        ("registry_problem", "no answer within"),
        recorded=False,
    ),
    Hang(
        "the registry's disk takes no write",
        "pwrite(2) in the state directory never returns",
        lambda world, hanging: hanging.begin("write", world.state),
        ("registry_problem", "no answer within"),
        recorded=False,
    ),
    Hang(
        "the state directory",
        "each call with a path in it never returns",
        lambda world, hanging: hanging.begin("path", world.state),
        ("registry_problem", "no answer within"),
        recorded=False,
    ),
    Hang(
        "the runtime directory",
        "each call with a path in it never returns",
        lambda world, hanging: hanging.begin("path", world.runtime),
        ("waits_for", "runtime directory"),
    ),
    Hang(
        "NSS",
        "getpwuid_r(3), getgrnam_r(3), getgrouplist(3) never return",
        lambda _, hanging: hanging.begin("nss"),
        ("waits_for", "NSS"),
        hook=True,
    ),
    Hang(
        "NSS, for the groups of a user",
        "getgrouplist(3) alone never returns, which CPython calls with the interpreter's lock held",
        lambda _, hanging: hanging.begin("groups"),
        ("waits_for", "NSS"),
        hook=True,
    ),
    Hang(
        "the start of a program",
        "execve(2) of a child never returns",
        lambda _, hanging: hanging.begin("exec"),
        ("waits_for", "start of a program"),
        hook=True,
    ),
    Hang(
        "the helpers of an owner",
        "each is stopped (SIGSTOP) as soon as it is started",
        stop_helpers,
        None,
        hook=True,
    ),
    Hang(
        "the file of the log",
        "write(2) to it never returns",
        lambda world, hanging: hanging.begin("write", world.log),
        ("log", "its reader has stopped"),
        logged=False,
    ),
    Hang(
        "the configuration file at a reload",
        "open(2) of it never returns",
        reload,
        ("config_problems", "config.toml: no answer within 10 s"),
    ),
)
END = "sweeps go on, a stall is found, an order is carried out or refused in time, TERM is obeyed, a second start works"
ROWS = [
    *(Row(f"hangs: {hang.name}", hang.how, END, partial(outlast, hang), alike=True) for hang in HANGS),
    Row("hangs: the log's reader", "a FIFO that nobody empties", END, never_read),
    Row("hangs: systemd", "its programs never answer, as on a bus that is stuck", END, programs_of_systemd, root=True),
    Row("hangs: PostgreSQL", "a server that goes silent in the middle of its work", END, silent_postgresql),
]
