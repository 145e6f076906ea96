"""A host that is overloaded, a disk that is full, other users and namespaces."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cgroups import scratch
from tests.verdicts.scenes.everyday import dies, lives
from tests.verdicts.stage import Actor, Stage, scene
from tests.world import World, wait_for
from watchdog.probes.host_pressure import LOAD

NOBODY = 65534
AFTER = 3.0
TABLES: dict[str, dict[str, Any]] = {"stall": {"after_seconds": AFTER}}

# -- eight programs that spin, on two cores

HOGS = 8
SPIN = "while True: pass"
CAP = 30  # seconds that a hold of the daemon's own lasts at most


@contextmanager
def hogs() -> Iterator[None]:
    """Until the kernel says that tasks wait for a CPU most of the time; ended afterwards."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(HOGS * (os.cpu_count() or 2) // 2)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
            process.wait()


@contextmanager
def busy_for_a_while(_: World) -> Iterator[dict[str, Any]]:
    """The limits of this scene are shorter than the load average's minute: eight hogs on an idle machine take 42 s."""
    with hogs():
        wait_for(lambda: os.getloadavg()[0] >= (LOAD + 1) * (os.cpu_count() or 1), "the load average has it", 150)
    yield {}


def overloaded(stage: Stage) -> None:
    """Case C8: one whose beats come late, and a mute one, while the host is pressed; then the pressure is over."""
    with hogs():
        stage.world.wait_event("hold.started", reason="pressure")
        late, held = stage.rows[1].name, len(stage.world.events())
        wait_for(lambda: stage.world.story(late)["agent"]["silence_seconds"] > AFTER + 1, f"{late} is late")
        time.sleep(2)
        assert not [e for e in stage.world.events()[held:] if e["event"] == "kill.requested"]
        # Before the pressure is over: no hold protects one that is silent then.
        (stage.world.dir / "turn").touch()
        wait_for(lambda: stage.world.story(late)["agent"]["silence_seconds"] < AFTER, f"{late} beats again")


LOADED = [
    lives("beats", "C8: 8 hogs on 2 cores: beats", "beat=0.5"),
    lives("starved", "C8: 8 hogs on 2 cores: its beats come late, it waits for a CPU", "beat=0.5/4 for=turn beat=0.5"),
    lives("idle", "C8: 8 hogs on 2 cores: idle", "state=idle", silent=AFTER + 2),
    dies("mute", "C8: 8 hogs on 2 cores: mute", "beat=0.5/4", AFTER),
]

# -- a quota that starves those who work


@contextmanager
def quota(world: World) -> Iterator[dict[str, Any]]:
    """A cgroup with 2 % of a core, linked at `quota` in the world."""
    with scratch("cpu") as group:
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("2000")
        (world.dir / "quota").symlink_to(group)
        yield {}


def throttled(stage: Stage) -> None:
    """They have spoken; from now on they share 2 % of a core."""
    for pid, _ in stage.born.values():
        (stage.world.dir / "quota" / "cgroup.procs").write_text(str(pid))


THROTTLED = [
    lives("works", "C8: works on at a quota of 2 % of a core", "busy=1", silent=AFTER + 4, told={"agent.late": 1}),
    dies("mute", "C8: mute at a quota of 2 % of a core", "beat=0.4/4", AFTER),
]

# -- a full disk


@contextmanager
def small_disks(world: World) -> Iterator[dict[str, Any]]:
    """The registry's, and one for heartbeat files."""
    (world.dir / "beats").mkdir()
    places = [(world.state, "64m"), (world.dir / "beats", "64k")]
    for place, size in places:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", str(place)]
        subprocess.run(mount, check=True)
    try:
        yield {}
    finally:
        for place, _ in places:
            subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place: Path) -> Path:
    """Not a byte is left."""
    blob = place / "blob"
    with blob.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            return blob


def disk_full(stage: Stage) -> None:
    """Registry and heartbeat files cannot be written for a while (case C7)."""
    for name in ("writes", "writes-mute"):
        wait_for(lambda name=name: stage.world.story(name)["agent"]["beats"], f"{name} has beaten")  # type: ignore[misc]
    blobs = [fill(stage.world.state), fill(stage.world.dir / "beats")]
    stage.world.wait_event("disk.reserve_used")
    stage.world.wait_event("kill.finished", name="mute")  # the registry has a reserve
    time.sleep(3 * AFTER)
    assert {event["name"] for event in stage.world.events() if event["event"] == "kill.requested"} == {"mute"}
    for blob in blobs:
        blob.unlink()


FILE = {"beat_file": "{directory}/beats/writes"}
FULL: list[Actor] = [
    lives("beats", "C7: the disk is full: beats", "beat=0.5"),
    lives("idle", "C7: the disk is full: idle", "state=idle", silent=AFTER + 2),
    lives(
        "writes",
        "C7: the disk is full: its heartbeat file cannot be written",
        "write=0.4@{directory}/beats/writes",
        body=FILE,
    ),
    dies("mute", "C7: the disk is full: mute meanwhile", "beat=0.4/3", AFTER),
    dies(
        "writes-mute",
        "C7: the disk is full: writes no more afterwards",
        "write=0.4/40@{directory}/beats/writes-mute",
        16.0,
        body={"beat_file": "{directory}/beats/writes-mute"},
    ),
]

# -- others, who may not speak for an agent

FORGE = """
import socket, sys, time
from watchdog.client import client
notify, control, agent, data = sys.argv[1:]
while True:
    try:
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(data.encode(), notify)
        print("sent", flush=True)
    except OSError as error:
        print(error, flush=True)
    try:
        path = f"/v1/agents/{agent}/beat"
        print(client.request("POST", path, {"state": "done"}, socket_path=control, timeout=5)[0], flush=True)
    except Exception as error:
        print(error, flush=True)
    time.sleep(0.3)
"""


def forged(stage: Stage) -> None:
    """Somebody else says that the mute one works and the healthy one is done."""
    os.chmod(stage.world.dir, 0o755)
    os.chmod(stage.world.runtime, 0o755)
    agents = stage.agents()
    for name, word in (("mute", "WATCHDOG=1"), ("beats", "X_AGENT_STATE=done")):
        agent_id = agents[name]["agent_id"]
        path = str(stage.world.runtime / "notify" / agent_id)
        stage.world.started.append(
            subprocess.Popen(
                [sys.executable, "-c", FORGE, path, stage.world.socket, agent_id, word],
                env={**stage.world.environ, "PYTHONPATH": str(Path.cwd())},
                user=NOBODY,
                group=NOBODY,
                stdout=subprocess.DEVNULL,
            )
        )


FORGED = [
    lives("beats", "another uid says it is done", "beat=0.4", told={"agent.lingering": 0}),
    dies("mute", "mute, and another uid beats for it", "beat=0.4/3", AFTER),
    lives("drops", "root started it, it drops to another uid and beats", f"beat=0.4/2 drop={NOBODY} beat=0.4"),
    dies("drops-mute", "root started it, it drops its uid and is mute", f"beat=0.4/2 drop={NOBODY} beat=0.4/2", AFTER),
]

# -- namespaces

TIME = ("unshare", "--time", "--boottime", "100000000", "--monotonic", "100000000", "--fork", "--kill-child")
PID = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
NAMESPACES = [
    actor
    for name, what, prefix in (("time", "a time", TIME), ("pid", "a pid", PID))
    for actor in (
        lives(f"{name}-beats", f"in {what} namespace of its own: beats", "beat=0.4", prefix=prefix, by_run=True),
        lives(f"{name}-notify", f"in {what} namespace, registered: beats", "by=systemd-notify beat=0.5", prefix=prefix),
        dies(f"{name}-mute", f"in {what} namespace of its own: mute", "beat=0.4/3", AFTER, prefix=prefix, by_run=True),
    )
]
SCENES = [
    scene(
        "8 hogs",
        LOADED,
        overloaded,
        tables={
            "stall": {"after_seconds": AFTER, "linger_seconds": 2},
            "hold": {"cpu_pressure_percent": 50, "max_seconds": CAP},
        },
        around=busy_for_a_while,
    ),
    scene("2 % of a core", THROTTLED, throttled, tables=TABLES, around=quota, root=True),
    scene("full disk", FULL, disk_full, tables=TABLES, around=small_disks, root=True),
    scene("forged", FORGED, forged, tables={"stall": {"after_seconds": AFTER, "linger_seconds": 1}}, root=True),
    scene("namespaces", NAMESPACES, tables=TABLES, root=True),
]
