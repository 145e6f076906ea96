"""A lost channel is not silence: sockets, their directory or the way to the daemon vanish under living agents.

Everything that can be made again is made again within seconds, at the path in the agent's environment; where that is
impossible, the silence is the channel's fault. A stalled agent is still found (reports N01, P1, N08).
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.household import UID, household
from tests.world import World, alive, wait_for

TIMES: dict[str, dict[str, Any]] = {"log": {"level": "debug"}, "stall": {"after_seconds": 3, "start_limit_seconds": 30}}
LIMIT = 8  # sweeps that take longer than `after_seconds`
SPEAKERS = ("systemd-notify", "sdnotify", "beat")
KINDS = ("run", "registered")  # the maker of its socket: `run`, or the daemon
# A child that was itself written as a service, and reports about itself.
SERVICE = """
import os, socket, sys, time
words = sys.argv[1].encode().replace(b",", b"\\n")
out = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
while True:
    try:
        out.sendto(words, os.environ["NOTIFY_SOCKET"])
    except OSError:
        pass
    time.sleep(0.3)
"""


def beating(world: World, kind: str, by: str) -> str:
    """An agent that beats through that channel, received by the daemon; its name."""
    name = f"{kind}-{by}"
    command = world.script("agent.py", "witness", f"by={by}", "beat=0.5")
    if kind == "run":
        world.run(name, *command, options=("--stall-after", "3s"))
    else:
        world.registered(name, *command, stall_after_seconds=3)
    world.wait_event("agent.first_beat", name=name)
    return name


def beats(world: World, name: str) -> int:
    return int(world.agents()[name]["beats"])


def heard_and_alive(world: World, names: list[str]) -> None:
    """Each one's beats arrive again, and no agent is killed for the time in between."""
    wait_for(lambda: world.cli("list", check=False).returncode == 0, "the daemon can be asked again")
    before = {name: beats(world, name) for name in names}
    wait_for(lambda: all(beats(world, name) > before[name] + 1 for name in names), "all are heard again")
    world.wait_sweeps(LIMIT)
    assert {name: world.agents()[name]["status"] for name in names} == dict.fromkeys(names, "running")
    assert world.witnessed() == []
    assert world.signalled() == set()


def test_the_runtime_directory_goes_with_the_daemon_and_comes_with_the_next_one(world: World) -> None:
    """As `systemctl stop` and `start` do with the shipped unit."""
    world.configure(**TIMES)
    world.start()
    names = [beating(world, kind, by) for kind in KINDS for by in ("systemd-notify", "beat")]
    assert world.stop() == 0
    shutil.rmtree(world.runtime)
    world.runtime.mkdir(mode=0o700)
    world.start()
    heard_and_alive(world, names)


@pytest.mark.parametrize("gone", ["notify/*", "notify", "."])
def test_sockets_removed_under_a_running_daemon_are_made_again(world: World, gone: str) -> None:
    """For every channel; clients that connected once are received too."""
    world.configure(**TIMES)
    world.start()
    names = [beating(world, kind, by) for kind in KINDS for by in SPEAKERS]
    if gone == "notify/*":
        for path in (world.runtime / "notify").iterdir():
            path.unlink()
    else:
        shutil.rmtree(world.runtime / gone)
    heard_and_alive(world, names)


def test_a_stalled_agent_whose_socket_was_made_again_is_killed(world: World) -> None:
    """Its silence gets one fresh limit, and no more: a channel that works again is no excuse."""
    world.configure(**TIMES)
    world.start()
    command = world.script("agent.py", "beat=0.3/hush")
    world.run("run", *command, options=("--stall-after", "3s"))
    world.registered("registered", *command, stall_after_seconds=3)
    for name in KINDS:
        world.wait_event("agent.first_beat", name=name)
    (world.dir / "hush").touch()
    shutil.rmtree(world.runtime)
    world.wait_event("control.reopened")
    for name in KINDS:
        world.wait_status(name, "killed", seconds=30)


@pytest.mark.faults
def test_where_no_socket_can_be_made_the_silence_is_the_channels_fault(world: World) -> None:
    """A file is in the place of the directory: channel_lost, no agent is killed; found again, judged again."""
    world.configure(**TIMES)
    world.start()
    names = [beating(world, kind, "systemd-notify") for kind in KINDS]
    notify = world.runtime / "notify"
    shutil.rmtree(notify)
    notify.touch()
    for name in names:
        world.wait_event("agent.channel_lost", name=name)
    world.wait_sweeps(LIMIT)
    for name in names:
        told = world.story(name)["agent"]
        assert (told["channel_lost"], told["status"], told["verdict"]) == (True, "running", "late")
        assert "its heartbeats could not reach the daemon" in world.cli("why", name).stdout
        assert world.wait_event("agent.socket_blocked", name=name)["why"].startswith(f"{notify}/")
    status = world.cli("status", check=False)
    assert status.returncode == 1 and f"heartbeats of {names[0]} cannot reach the daemon" in status.stdout
    assert "do: move away what the line names" in world.cli("doctor", check=False).stdout
    notify.unlink()
    heard_and_alive(world, names)
    assert "cannot reach the daemon" not in world.cli("status", check=False).stdout
    assert not any(world.story(name)["agent"]["channel_lost"] for name in names)


def test_a_directory_in_the_place_of_a_socket_is_moved_aside(world: World) -> None:
    """Of a registered agent and of one of `run`: both are received again, and the directory's content is kept."""
    world.configure(**TIMES)
    world.start()
    names = [beating(world, kind, "systemd-notify") for kind in KINDS]
    notify = world.runtime / "notify"
    sockets = list(notify.iterdir())
    assert len(sockets) == len(names)
    for socket in sockets:
        socket.unlink()
        (socket / "x").mkdir(parents=True)
    wait_for(lambda: all(socket.is_socket() for socket in sockets), "they are made again")
    heard_and_alive(world, names)
    assert all((world.runtime / f"{socket.name}.aside" / "x").is_dir() for socket in sockets)
    assert not any(world.story(name)["agent"]["channel_lost"] for name in names)


def test_a_stalled_agent_of_run_is_killed_once_its_socket_is_back(world: World) -> None:
    """The agent fell silent meanwhile: once the socket is found again, even without a beat, it is judged."""
    world.configure(**TIMES)
    world.start()
    world.run("mute", *world.script("agent.py", "beat=0.3/hush"), options=("--stall-after", "3s"))
    world.wait_event("agent.first_beat", name="mute")
    notify = world.runtime / "notify"
    shutil.rmtree(notify)
    notify.touch()
    (world.dir / "hush").touch()
    world.wait_event("agent.channel_lost", name="mute")
    notify.unlink()
    world.wait_status("mute", "killed", seconds=30)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: to become a user whom modes bind")
@pytest.mark.parametrize("closed", ["runtime", "dir"])
def test_a_runtime_directory_that_was_closed_for_a_moment_works_again(world: World, closed: str) -> None:
    """Case O2: chmod 000 and back, also of its parent: the socket was still there, but unreachable."""
    world.configure(**TIMES)
    uid = 12001
    for path in (world.dir, world.runtime, world.state, world.config):
        os.chown(path, uid, uid)
    world.start(prefix=("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"))
    place = getattr(world, closed)
    place.chmod(0)
    world.wait_event("control.lost")
    place.chmod(0o700)
    world.wait_event("control.reopened")
    status = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "agent-watchdog", "status")
    assert world.spawn(*status).wait(60) in (0, 1), "its 1 is a verdict: of what was closed a moment ago"


WORDS = (
    "WATCHDOG_USEC=1000000",
    "EXTEND_TIMEOUT_USEC=36000000000",
    "STOPPING=1,STATUS=bye,READY=1,MAINPID=1,WATCHDOG=trigger,WATCHDOG_USEC=1000000",
)


def test_a_child_service_reports_about_itself_only(world: World) -> None:
    """Its messages change neither state nor limits of a beating agent; the mute agent is stalled on time."""
    world.configure(**TIMES)
    world.start()
    names = {f"{kind}-{number}": words for kind in KINDS for number, words in enumerate(WORDS)}
    for name, words in names.items():
        child = f'"$PYTHON" -c "$SERVICE" {words} &'
        loop = 'while [ ! -e "$WORLD/hush" ]; do agent-watchdog beat; sleep 0.3; done; wait'
        command = ("sh", "-c", f"{child} {loop}")
        if name.startswith("run"):
            world.run(name, *command, options=("--stall-after", "3s"), SERVICE=SERVICE)
        else:
            world.registered(name, *command, environ={"SERVICE": SERVICE}, stall_after_seconds=3)
    for name in names:
        world.wait_event("agent.first_beat", name=name)
    world.wait_sweeps(LIMIT)
    pids = []
    for name in names:
        told = world.story(name)["agent"]
        assert (told["status"], told["state"], told["after_seconds"], told["lease_left_seconds"], told["note"]) == (
            "running",
            "working",
            3,
            0,
            None,
        ), name
        pids.append(told["pid"])
    (world.dir / "hush").touch()
    for name in names:
        world.wait_status(name, "killed")
    assert not any(map(alive, pids))


@pytest.mark.faults
def test_the_descriptors_of_run_and_daemon_stay_constant_when_sockets_are_removed_repeatedly(world: World) -> None:
    """Few former sockets are still read."""
    world.configure(**TIMES)
    world.start()
    assert world.daemon is not None
    run = world.run(
        "alpha", *world.script("agent.py", "by=systemd-notify", "beat=0.2"), options=("--stall-after", "3s")
    )
    world.registered("beta", *world.script("agent.py", "by=systemd-notify", "beat=0.2"), stall_after_seconds=3)
    for name in ("alpha", "beta"):
        world.wait_event("agent.first_beat", name=name)
    inside = world.runtime / "notify"

    def descriptors() -> int:
        return sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in (run.pid, world.daemon.pid if world.daemon else 0))

    counts = []
    for _ in range(8):
        before = list(inside.iterdir())
        for path in before:
            path.unlink()
        assert len(before) == 2
        wait_for(lambda: len(list(inside.iterdir())) == 2, "both are there again")
        counts.append(descriptors())
    assert counts[-1] - counts[0] <= 5, counts
    heard_and_alive(world, ["alpha", "beta"])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a user's /run/user that the user cannot make")
@pytest.mark.faults
def test_the_last_logout_removes_a_users_sockets() -> None:
    """logind wipes /run/user/UID under a living agent of the host's daemon: `run` reports it, and no agent is killed.

    At the next login the directory is there again, and with it the socket; an agent that fell silent is then judged.
    """
    with household() as home:
        home.host.start()
        script = home.user.world.script
        speaks = script("agent.py", "witness", "by=systemd-notify", "beat=0.5")
        home.user.start_agent("well", *speaks, options=("--stall-after", "3s"))
        home.user.start_agent("mute", *script("agent.py", "beat=0.3/hush"), options=("--stall-after", "3s"))
        world = home.host.world
        for name in ("well", "mute"):
            world.wait_event("agent.first_beat", name=name)
        (home.user.world.dir / "hush").touch()
        login = Path(f"{home.root}/run/user/{UID}")
        shutil.rmtree(login)
        for name in ("well", "mute"):
            world.wait_event("agent.channel_lost", name=name)
        world.wait_sweeps(LIMIT)
        assert {one["status"] for one in home.host.agents().values()} == {"running"}
        login.mkdir(mode=0o700)
        os.chown(login, UID, UID)
        before = home.host.agents()["well"]["beats"]
        wait_for(lambda: home.host.agents()["well"]["beats"] > before + 1, "it is heard again")
        world.wait_event("agent.ended", name="mute", status="killed")
        assert home.host.agents()["well"]["status"] == "running"
        assert home.user.world.witnessed() == []
