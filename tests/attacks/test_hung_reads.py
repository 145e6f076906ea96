"""H1: a user blinds the daemon with a process whose files cannot be read (`config/doc/security.md`).

The attacker's process hangs in an execve that waits for a file system in user space: each read of its stat line hangs
with it. Here a FIFO is bound over it in the daemon's mount namespace, which has the same shape (`tests.faults.hung`).

At f87b3bd each of these succeeded: `last_sweep` stood still, `kill --force` of a bystander got no answer within 100 s,
SIGTERM did not end the daemon, a registration waited for ever, a dead agent's place was never cleaned up.
"""

import os
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.hung import PREFIX, hanging
from tests.world import World, alive, wait_for

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts, and processes of another uid"),
]

ATTACKER = 65534
SWEEPS = 5.0  # seconds for three sweeps of half a second each
KILL = 5.0  # seconds for an order of root's, with the start of its client
END = 10.0  # seconds for SIGTERM


def theirs(world: World, count: int = 1, uid: int = ATTACKER) -> list[int]:
    """Processes of the attacker."""
    made = []
    for _ in range(count):
        process = subprocess.Popen(
            ["sleep", "1000"], user=uid, group=ATTACKER, extra_groups=(), cwd="/", start_new_session=True
        )
        world.started.append(process)
        made.append(process.pid)
    return made


def registered(world: World, pids: list[int], **body: object) -> None:
    """As the attacker's agents."""
    for number, pid in enumerate(pids):
        status, answer = world.ask("POST", "/v1/agents", {"name": f"theirs-{number}", "pid": pid, **body})
        assert status == 201, answer
        assert world.agents()[f"theirs-{number}"]["owner_uid"] == ATTACKER


def watched(world: World) -> None:
    """Two agents of root's: one to be killed, one that stalls."""
    world.registered("bystander", "sleep", "1000", stall_after_seconds=3600)
    world.registered("stalls", *world.script("agent.py", "beat=0.2/3", "sleep"), stall_after_seconds=4)
    world.wait_event("agent.first_beat", name="stalls")
    world.wait_sweeps(2)


def is_not_blind(world: World) -> None:
    """It sweeps, kills, finds a stall, and ends when it is told to."""
    began = time.monotonic()
    world.wait_sweeps(3, SWEEPS)
    done = world.cli("kill", "bystander", "--force", check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert time.monotonic() - began < SWEEPS + KILL
    assert "silent for" in world.wait_status("stalls", "killed", seconds=30)["why"]
    began = time.monotonic()
    assert world.stop() == 0
    assert time.monotonic() - began < END


@pytest.mark.parametrize("file", ["stat", "environ"])
def test_one_process_that_hangs_blinds_nobody(file: str) -> None:
    """An agent of the attacker's; stat hangs on 6.18, environ on older kernels."""
    with hanging(log={"level": "debug"}) as (world, hung):
        watched(world)
        pids = theirs(world)
        if file == "environ":  # which is read once of each program, and only of users that have agents
            hung.hang(pids, [file])
        registered(world, pids)
        if file == "stat":
            world.wait_sweeps(2)
            hung.hang(pids, [file])
        is_not_blind(world)


def test_a_process_that_is_nobodys_agent_blinds_nobody() -> None:
    """It need not even be registered: each scan reads all processes. A sibling of H1."""
    with hanging(log={"level": "debug"}) as (world, hung):
        watched(world)
        hung.hang(theirs(world))
        is_not_blind(world)


def test_two_hundred_blind_nobody() -> None:
    """They hold a thread each, once; none of the daemon's."""
    with hanging(log={"level": "debug"}) as (world, hung):
        watched(world)
        hung.hang(theirs(world, 200))
        is_not_blind(world)


def test_more_than_there_are_threads_for_keep_no_agent_of_others_from_being_watched() -> None:
    """Of three uids: two users that work together, or one and its sub-uids.

    Seen at bc51ea4: root's new agent was refused ("its stat hangs"), and one that `run` started stayed without a pid.
    """
    with hanging(log={"level": "debug"}) as (world, hung):
        watched(world)
        hung.hang(pid for uid in range(ATTACKER - 2, ATTACKER + 1) for pid in theirs(world, 180, uid))
        world.cli("kill", "bystander", "--force")
        wait_for(lambda: len(world.json("status")["unreadable"]) >= 540, "all hang")
        world.registered("mine", "sleep", "1000")
        world.run("ran", "sleep", "1000")
        wait_for(lambda: world.agents()["ran"]["pid"], "its pid")


def test_reads_that_take_long_and_never_hang_hold_up_nobody() -> None:
    """A sibling of H1: each read takes as long as one may that does not count as hanging (`reader_main.PATIENCE`).

    Seen at bc51ea4: such a process was registered by five reads for which the event loop waited; one user with 12
    clients had root's `kill` take 11.8 s and a mere `status` 1.9.
    """
    with hanging(log={"level": "debug"}) as (world, hung):
        watched(world)
        pids = theirs(world, 16)
        lines = {pid: Path(f"/proc/{pid}/stat").read_bytes() for pid in pids}
        fifos = hung.hang(pids)
        over = threading.Event()

        def breathe(pid: int) -> None:
            while not over.is_set():
                writer = os.open(fifos[pid], os.O_WRONLY)  # waits for a reader
                time.sleep(0.09)
                with suppress(BrokenPipeError):
                    os.write(writer, lines[pid])
                os.close(writer)
                time.sleep(0.005)  # the next reader opens it anew

        def attempt(pid: int) -> None:
            for number in range(3):  # of two that read a FIFO one sees the end of the other's line, and is refused
                world.ask("POST", "/v1/agents", {"name": f"slow-{pid}-{number}", "pid": pid})

        breathing = [threading.Thread(target=breathe, args=(pid,)) for pid in pids]
        trying = [threading.Thread(target=attempt, args=(pid,)) for pid in pids]
        for thread in (*breathing, *trying):
            thread.start()
        took = []
        while any(thread.is_alive() for thread in trying):
            began = time.monotonic()
            assert world.ask("GET", "/v1/status")[0] == 200
            took.append(time.monotonic() - began)
        over.set()
        hung.release(pids)
        for thread in breathing:
            thread.join()
        assert max(took) < 1.0


def test_one_that_hangs_is_not_let_in_and_delays_no_registration() -> None:
    """Ten of them try at once, and root registers meanwhile. A sibling of H1: the event loop itself read them."""
    with hanging(log={"level": "debug"}) as (world, hung):
        pids = theirs(world, 10)
        hung.hang(pids)
        trying = [
            subprocess.Popen(
                ["agent-watchdog", "register", "--name", f"hung-{pid}", "--pid", str(pid)],
                env=world.environ,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            for pid in pids
        ]
        began = time.monotonic()
        process = world.registered("mine", "sleep", "1000")
        assert time.monotonic() - began < KILL
        assert alive(process.pid)
        assert [one.wait(30) for one in trying] == [75] * len(pids)  # EX_TEMPFAIL
        assert set(world.agents()) == {"mine"}


def test_the_start_of_the_next_daemon_is_not_blinded_either() -> None:
    """It takes up the attacker's agent, whose process hangs before anything of it was read."""
    with hanging(log={"level": "debug"}) as (world, _):
        pids = theirs(world)
        registered(world, pids)
        world.wait_sweeps(2)
        world.crash()
        # The next one starts in a namespace in which it hangs already.
        fifo = world.dir / "before"
        os.mkfifo(fifo, 0o666)
        script = f'mount -n --bind {fifo} /proc/{pids[0]}/stat && exec "$@"'
        world.start(prefix=("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"))
        watched(world)
        wait_for(lambda: world.agents()["theirs-0"]["verdict"] == "unknown", "it is neither dead nor stale")
        is_not_blind(world)
        assert alive(pids[0])


def test_no_cleanup_of_others_waits_for_it() -> None:
    """The helper that looks who uses a place opens the maps of all processes. A sibling of H1, in root's own helper."""
    with hanging(log={"level": "debug"}) as (world, hung):
        place = world.dir / "temp"
        place.mkdir()
        with world.config.open("a") as config:
            config.write(f'[cleanup]\nroots = ["{world.dir}"]\n')
        world.stop()
        world.start(prefix=PREFIX)
        process = world.registered("cleaned", "sleep", "1000", temp_dir=str(place))
        world.wait_sweeps(2)
        hung.hang(theirs(world, 20), ["maps", "environ", "cmdline", "status", "stat", "mountinfo"])
        world.cli("kill", "cleaned")
        assert not alive(process.pid)
        wait_for(lambda: not place.exists(), "its temp dir is removed", seconds=30)


def test_an_agent_that_hangs_is_killed_by_its_pidfd() -> None:
    """Also by root's order alone, with what it started, which hangs too."""
    with hanging(log={"level": "debug"}) as (world, hung):
        code = "import subprocess, time; subprocess.Popen(['sleep', '1000']); time.sleep(1000)"
        process = world.registered("tree", "python3", "-c", code)
        child = wait_for(lambda: _children(process.pid), "its child")
        world.cli("kill", "tree", "--dry-run")  # looks at its tree: the first scan may have come before the child
        wait_for(lambda: len(world.story("tree")["agent"]["members"]) == 2, "both were seen")
        hung.hang([process.pid, *child], ["stat", "environ", "status", "cgroup"])
        done = world.cli("kill", "tree", "--force", check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        assert not any(map(alive, [process.pid, *child]))


def _children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as children:
        return [int(word) for word in children.read().split()]
