"""A user whose agent's process runs a setuid program: it stays that user's agent, and reaches nothing of root's.

Played with a Python that is setuid root, paused where sudo, su and passwd pass by within milliseconds. Rows C1a, C2 and
M3 of the table, and their siblings. "At f87b3bd": what was seen there by these same tests.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_two_people import Person
from tests.setuid import Leashed, leashed, wait_uids
from tests.world import World, alive, wait_for

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a system daemon, setuid programs and other uids"),
]

ANN, BEN = 12001, 12002
DEAF = "import os, signal, time; signal.signal(15, signal.SIG_IGN); {become}; time.sleep(1000)"
WHOLE_ROOT = DEAF.format(become="os.setresuid(0, 0, 0)")


@pytest.fixture
def settings() -> dict[str, dict[str, Any]]:
    return {"kill": {"grace_seconds": 0.5, "verify_seconds": 5}, "log": {"level": "debug"}}


@pytest.fixture
def ann(world: World) -> Person:
    return Person(world, "ann", ANN)


def register(ann: Person, process: Leashed, name: str = "hers", **body: Any) -> str:
    status, answer = ann.ask("POST", "/v1/agents", {"name": name, "pid": process.pid, **body})
    assert status == 201, answer
    return str(answer["agent_id"])


def beat_meanwhile(world: World, ann: Person, process: Leashed, agent: str) -> int:
    """Each way in which an agent speaks: HTTP, whose status comes back, and a datagram that is root's to the kernel."""
    status, _ = ann.ask("POST", f"/v1/agents/{agent}/beat", {})
    socket = str(world.runtime / "notify" / agent)
    process.do(f"import socket; socket.socket(1, 2).sendto(b'WATCHDOG=1', {socket!r})")
    world.wait_sweeps(2)
    return status


def hook_as(world: World, path: Path) -> None:
    """A command hook that writes down as whom it runs for `hers`: root's daemon may take in what another has left."""
    path.touch()
    path.chmod(0o666)
    with world.config.open("a") as config:
        config.write('[[hook]]\nname = "who"\non = ["failed", "killed", "completed"]\n')
        config.write(f'command = ["/bin/sh", "-c", "! grep -q hers || id -u >> {path}"]\n')


@pytest.mark.parametrize("whole", [False, True], ids=["setuid program", "root whole"])
def test_a_beat_in_the_middle_of_sudo_makes_no_agent_of_roots(world: World, ann: Person, whole: bool) -> None:
    """C1a. At f87b3bd, with root as its real uid, the beat was refused (403) and made the agent root's all the same."""
    hook_as(world, seen := world.dir / "seen")
    world.start()
    with leashed(world.dir, ANN) as process:
        agent = register(ann, process)
        process.exec_setuid()
        if whole:
            process.do("os.setresuid(0, 0, 0)")
        heard = beat_meanwhile(world, ann, process, agent)

        assert world.count("agent.owner_changed") == 0
        assert heard == 204
        assert world.agents()["hers"]["owner_uid"] == ANN
        story = world.story("hers")
        assert f"its owner is uid {ANN}" in story["agent"]["untouchable"]
        assert [event["event"] for event in story["events"]].count("agent.untouchable") == 1
        assert world.count("agent.untouchable", name="hers") == 1

        world.crash()  # nor does the next daemon take it for root's
        world.start()
        beat_meanwhile(world, ann, process, agent)
        assert world.agents()["hers"]["owner_uid"] == ANN
        process.process.kill()
        process.process.wait(20)
        world.wait_status("hers", "failed", "completed")
    assert seen.read_text() == f"{ANN}\n"


def test_a_user_has_no_directory_of_roots_removed(world: World, ann: Person) -> None:
    """C2. At f87b3bd the directory was gone when the time to live was over."""
    roots = world.dir / "roots"
    (roots / "precious").mkdir(parents=True)
    roots.chmod(0o700)
    world.configure(cleanup={"roots": [str(world.dir)]}, log={"level": "debug"}, kill={"grace_seconds": 0.5})
    world.start()
    with leashed(world.dir, ANN) as process:
        agent = register(ann, process, temp_dir=str(roots), ttl_seconds=4)
        process.sudo()
        beat_meanwhile(world, ann, process, agent)
        process.process.kill()
        process.process.wait(20)
        world.wait_status("hers", "killed", "failed", "completed")
    assert (roots / "precious").is_dir()
    [run] = [run for run in world.story("hers")["cleanup"] if run["hook"] == "temp_dir"]
    assert run["status"] != "done", run


def test_nothing_is_done_as_root_for_a_process_in_the_middle_of_sudo(world: World, ann: Person) -> None:
    """Nudges, logs, transcripts, beat files. At f87b3bd the nudge command ran as root, and root's log was told."""
    seen = world.dir / "nudged"
    seen.touch()
    seen.chmod(0o666)
    secret = world.dir / "secret.log"
    secret.write_text("root's own line\n")
    secret.chmod(0o600)
    policy = {"ladder": ["warn", "nudge", "kill"], "warn_pause_seconds": 0.5, "nudge_pause_seconds": 0.5}
    with world.config.open("a") as config:
        config.write(f'[[policy]]\nmatch = {{ name = "hers" }}\nladder = {policy["ladder"]!r}\n'.replace("'", '"'))
        config.write("warn_pause_seconds = 0.5\nnudge_pause_seconds = 0.5\n")
        config.write(f'nudge_command = ["/bin/sh", "-c", "id -u >> {seen}"]\n')
    world.start()
    with leashed(world.dir, ANN) as process:
        agent = register(ann, process, log=str(secret), stall_after_seconds=2)
        process.sudo()
        beat_meanwhile(world, ann, process, agent)
        nudged = world.wait_event("agent.nudged", name="hers")
        wait_for(lambda: world.story("hers")["requests"], "its kill")
        story = world.story("hers")
    assert seen.read_text() == ""
    assert "its owner is uid" in nudged["why"]
    assert "root's own line" not in str(story)


def test_the_kill_of_an_agent_ends_nobody_whom_its_owner_could_not(world: World, ann: Person) -> None:
    """M3: not by its owner's order, not by the daemon's own; root's order ends it. At f87b3bd the child was dead."""
    world.start()
    for name, ttl in (("ordered", None), ("expires", 3.0)):
        with leashed(world.dir, ANN) as process:
            kept = process.child(WHOLE_ROOT, setuid=True)
            wait_uids(kept, 0, 0, 0, 0)
            other = process.child(DEAF.format(become="pass"), setuid=True)  # as passwd: its real uid is its caller's
            wait_uids(other, ANN, 0, 0, 0)
            register(ann, process, name, **({} if ttl is None else {"ttl_seconds": ttl}))
            if ttl is None:
                code, text = ann.cli("kill", name)
                assert code == 77, text
            told = world.wait_event("kill.unkillable", name=name)
            assert told["why"].startswith("not_permitted"), told
            assert f"uid {ANN} may not signal all of it, root can" in told["why"]
            assert alive(kept)
            assert not alive(other)
            assert not alive(process.pid)
            world.wait_status(name, "unkillable")  # what is told comes before it is written down
            assert kept not in world.signalled()

            world.cli("kill", name)
            assert not alive(kept)
            world.wait_status(name, "killed", "completed", "failed")


def test_what_lives_in_a_namespace_of_the_owners_is_the_owners_to_end(world: World, ann: Person) -> None:
    """A rootless container: its processes have sub-uids, and their user's kill ends them."""
    world.start()
    with leashed(world.dir, ANN) as process:
        code = (
            "import ctypes, os, sys, time; libc = ctypes.CDLL(None); libc.unshare(0x10000000); libc.prctl(4, 1)\n"
            "while open('/proc/self/uid_map').read() == '': time.sleep(0.01)\n"
            "os.setresuid(5, 5, 5); time.sleep(1000)"
        )
        inside = process.child(code)
        ours = os.readlink("/proc/self/ns/user")
        wait_for(lambda: os.readlink(f"/proc/{inside}/ns/user") != ours, "its namespace")
        Path(f"/proc/{inside}/uid_map").write_text(f"0 {ANN} 1\n1 1200000 1000\n")
        wait_uids(inside, *[1200004] * 4)
        register(ann, process)
        assert ann.cli("kill", "hers")[0] == 0
        assert not alive(inside)
    assert world.count("kill.unkillable") == 0


def test_what_root_started_and_dropped_is_ended_whole_by_the_daemon(world: World, ann: Person) -> None:
    """What it left of root's too, as root gave all of it into our care; not by an order of the user it dropped to."""
    world.start()
    for name, ttl in (("expires", 6.0), ("ordered", None)):
        with leashed(world.dir, 0) as process:
            left = process.child(DEAF.format(become="pass"))
            body: dict[str, Any] = {} if ttl is None else {"ttl_seconds": ttl}
            assert world.ask("POST", "/v1/agents", {"name": name, "pid": process.pid, **body})[0] == 201
            process.do(f"os.setresuid({ANN}, {ANN}, {ANN})")
            world.wait_event("agent.owner_changed", name=name, uid=ANN)
            if ttl is None:
                code, text = ann.cli("kill", name)
                assert code == 77, (text, [e for e in world.events() if e["event"].startswith("kill")], alive(left))
                assert alive(left)
                world.cli("kill", name)
            world.wait_status(name, "killed", "completed", "failed")
            assert not alive(left)


def test_an_older_registry_gives_no_agent_back_to_root(world: World, ann: Person) -> None:
    """It dropped since that copy of the registry was made; in the middle of sudo its process looks like root's."""
    if world.server is not None:
        pytest.skip("the registry is no file here")
    world.start()
    with leashed(world.dir, 0) as process:
        assert world.ask("POST", "/v1/agents", {"name": "hers", "pid": process.pid})[0] == 201
        world.cli("hold", "hers")
        process.do(f"os.setresuid({ANN}, {ANN}, {ANN})")
        world.wait_event("agent.owner_changed", name="hers", uid=ANN)
        process.sudo()
        assert world.stop() == 0
        world.sql("UPDATE agent_lifecycle SET owner_uid = 0, dropped = 0")
        world.start()
        world.wait_sweeps(2)
        assert world.agents()["hers"]["owner_uid"] == ANN
        assert world.sql("SELECT owner_uid, dropped FROM agent_lifecycle") == [(ANN, 1)]


def test_su_passes_no_agent_on(world: World, ann: Person) -> None:
    """Its process is another user's by now: who can neither beat for it nor end it, and gets none of its places."""
    world.start()
    ben = Person(world, "ben", BEN)
    with leashed(world.dir, ANN) as process:
        agent = register(ann, process)
        process.sudo()
        process.do(f"os.setresuid({BEN}, {BEN}, {BEN})")
        world.wait_sweeps(2)
        heard = ann.ask("POST", f"/v1/agents/{agent}/beat", {})[0]
        assert world.agents()["hers"]["owner_uid"] == ANN
        assert heard == 204
        assert ben.ask("POST", f"/v1/agents/{agent}/beat", {})[0] == 403
        assert ben.cli("kill", "hers")[0] == 77
        assert ann.cli("kill", "hers")[0] == 77, "ben's process is not hers to end"
        assert alive(process.pid)
