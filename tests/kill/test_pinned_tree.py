"""Each process of a tree is held by a pidfd, its cgroup is frozen; what was stopped and is not killed continues."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.cgroups import needs_v2, path_of, scratch
from tests.e2e.test_words import HOLDS_ITS_EXIT
from tests.kill.scene import DEAF, HOST, A, Scene, state
from tests.world import alive, wait_for
from watchdog.core.process import Identity, TreeMember, cgroup_names
from watchdog.errors import RegistryUnavailable, SignalRefused
from watchdog.kill import pinned_tree
from watchdog.processes import bounded, cgroups, identity
from watchdog.processes.signals import Guard, SendResult, SignalTarget, kill_cgroup, send
from watchdog.processes.survey import Trees


def test_the_end_phase_wakes_no_process_that_it_has_stopped(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that dies before its stopped children has the kernel continue them, with SIGHUP (setpgid(2))."""

    def slowly(
        member: Identity, sig: signal.Signals, guard: Guard, pidfd: int | None, look: SignalTarget
    ) -> SendResult:
        sent = send(member, sig, guard, pidfd, look)
        time.sleep(0.1)  # as in a large tree
        return sent

    monkeypatch.setattr(pinned_tree, "send", slowly)
    agent = scene.python(
        DEAF
        + """
if os.fork() == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, lambda *_: open("woken", "w"))
    open("up", "w")
    while True: time.sleep(100)
while True: time.sleep(100)
"""
    )
    assert scene.end(agent, force=True).reason is None
    assert scene.left() == []
    assert not (scene.dir / "woken").exists()


def test_a_process_that_turns_out_to_be_anothers_after_it_was_stopped_continues(scene: Scene) -> None:
    """A child registers as an agent of its own between STOP and KILL."""
    agent = scene.python(
        DEAF + 'child = subprocess.Popen(["sleep", "1000"]); print(child.pid, file=open("up", "w"))\ntime.sleep(1000)'
    )
    child = int(wait_for(lambda: scene.text("up").strip(), "the child's pid"))

    def register() -> None:
        wait_for(lambda: state(child) == "T", "it is stopped")
        scene.admit("b", child)

    scene.before["kill"] = register
    ended = scene.end(agent, force=True)

    assert (ended.reason, scene.left()) == (None, [child])
    wait_for(lambda: state(child) == "S", "it goes on")
    assert child not in [m.pid for m in ended.members]


@pytest.mark.parametrize("broken_off", [RegistryUnavailable("away"), asyncio.CancelledError()], ids=["registry", "end"])
def test_no_process_stays_stopped_when_the_attempt_is_broken_off(scene: Scene, broken_off: BaseException) -> None:
    """The registry is unavailable when KILL is to be committed; the daemon is stopped."""
    agent = scene.python(DEAF + 'subprocess.Popen(["sleep", "1000"]); open("up", "w")\ntime.sleep(1000)')

    def fail() -> None:
        wait_for(lambda: {state(pid) for pid in scene.left()} == {"T"}, "both are stopped")
        raise broken_off

    scene.before["kill"] = fail
    with pytest.raises(type(broken_off)):
        scene.end(agent, force=True)

    assert len(scene.left()) == 2
    wait_for(lambda: {state(pid) for pid in scene.left()} == {"S"}, "all go on")


def test_a_process_that_ends_right_before_the_wait_is_not_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred that obey TERM one or two do: the answer to `kill` would come when their grace is over."""
    agent = scene.python('open("up", "w"); time.sleep(1000)')
    wait = pinned_tree.PinnedTree.exit_or

    async def late(self: pinned_tree.PinnedTree, hurry: asyncio.Event, timeout: float) -> None:
        wait_for(lambda: agent.identity and not alive(agent.identity.pid), "it has ended")
        await wait(self, hurry, timeout)

    monkeypatch.setattr(pinned_tree.PinnedTree, "exit_or", late)
    began = time.monotonic()
    ended = scene.end(agent, grace=100)

    assert ended.reason is None
    assert time.monotonic() - began < 60, "the grace was waited for"


def test_one_that_has_ended_before_it_is_taken_in_was_a_new_process(scene: Scene) -> None:
    """A look that found only such processes proves nothing (case Q9: a relay of short-lived processes)."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        found = identity.read_identity(process.pid, HOST)
        process.kill()
    assert found is not None
    made = pinned_tree.PinnedTree(None, lambda: Guard(host=HOST), scene)
    assert made.admit(TreeMember(found, 1, os.getuid(), "sleep", "S", "marker"))
    assert made.all() == ()


@pytest.fixture(params=[True, False], ids=["pidfs", "no-pidfs"])
def inodes(request: pytest.FixtureRequest) -> Iterator[bool]:
    """As on this kernel, and as on one before 6.9, where a pidfd's inode tells nothing."""
    identity.use_pidfd_inodes(None if request.param else False)
    if request.param and not identity.pidfd_inodes_work():
        pytest.skip("this kernel has no pidfs (>= 6.9)")
    yield bool(request.param)
    identity.use_pidfd_inodes(None)


def hang(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    """From now on a read of its stat line has not returned."""
    monkeypatch.setitem(bounded.skipped, (pid, "stat"), object())


def test_an_agent_whose_files_hang_is_killed_by_the_pidfd_that_was_pinned_before(
    scene: Scene, inodes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it started; where a process has no inode of its own the fleet's pidfd is all that there is."""
    agent = scene.python(DEAF + 'subprocess.Popen(["sleep", "1000"])\nopen("up", "w")\nwhile True: time.sleep(100)')
    assert agent.identity is not None
    agent.tree.pidfd = identity.pin(agent.identity)
    hang(monkeypatch, agent.identity.pid)
    ended = scene.end(agent, main_pidfd=agent.tree.pidfd)
    agent.tree.close()

    assert (ended.reason, scene.left()) == (None, [])
    assert agent.identity in {member.seen.identity for member in ended.members}
    assert len(ended.members) == 2


def test_one_that_was_never_pinned_is_sent_nothing(scene: Scene, inodes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that hung before any look at it: it lives on, and the tree is not called dead."""
    agent = scene.python(
        'child = subprocess.Popen(["sleep", "1000"])\nprint(child.pid, file=open("child", "w"))\nopen("up", "w")\n'
        "while True: time.sleep(100)"
    )
    child = int(wait_for(lambda: scene.text("child"), "its pid"))
    hang(monkeypatch, child)
    ended = scene.end(agent, verify=0.5)

    assert ended.reason == "unreadable"
    assert scene.left() == [child]
    assert child not in {pid for _, pids in scene.sent for pid in pids}
    monkeypatch.undo()
    assert scene.end(agent).reason is None
    assert scene.left() == []


DAEMON = """
def orphan(argv, environ):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(argv[0], argv, environ)
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def own() -> Iterator[str]:
    """The path of a cgroup as `run` makes it for the agent."""
    with scratch() as directory:
        yield f"{path_of(directory)}/{cgroup_names(A)[0]}"


@needs_v2
def test_its_own_cgroup_is_killed_as_a_whole(scene: Scene, own: str) -> None:
    """Also a daemon with its own environment: no marker, no parent and no session of the agent's."""
    agent = scene.python(
        DEAF
        + DAEMON
        + """
orphan(["/bin/sleep", "1000"], {"SCENE": os.environ["SCENE"]})
subprocess.Popen(["sleep", "1000"])
open("up", "w")
time.sleep(1000)
""",
        own,
    )
    ended = scene.end(agent)

    assert (ended.reason, scene.left(), len(ended.members)) == (None, [], 3)
    assert "stop" not in scene.steps
    assert scene.steps[-2:] == ["freeze", "kill"]
    assert cgroups.events(own) == cgroups.Events(populated=False, frozen=False)


@needs_v2
def test_with_a_foreign_member_in_it_each_is_ended_by_itself(scene: Scene, own: str) -> None:
    """Another agent lives in it, and is neither frozen nor killed."""
    agent = scene.python(
        DEAF
        + """
other = subprocess.Popen(["sh", "-c", "while :; do date +%s%N >> beats; sleep 0.01; done"])
print(other.pid, file=open("up", "w"))
time.sleep(1000)
""",
        own,
    )
    other = int(wait_for(lambda: scene.text("up").strip(), "the other's pid"))
    scene.admit("b", other)
    ended = scene.end(agent)

    assert (ended.reason, [m.pid for m in ended.members]) == (None, [agent.identity.pid if agent.identity else 0])
    assert "freeze" not in scene.steps
    assert alive(other)


@needs_v2
@pytest.mark.parametrize("step", ["freeze", "kill"])
def test_it_is_thawed_when_the_attempt_is_broken_off(scene: Scene, own: str, step: str) -> None:
    """Nothing stays frozen."""
    agent = scene.python(DEAF + 'open("up", "w"); time.sleep(1000)', own)

    def fail() -> None:
        assert cgroups.events(own).frozen is (step == "kill")
        raise RegistryUnavailable("away")

    scene.before[step] = fail
    with pytest.raises(RegistryUnavailable):
        scene.end(agent, force=True)

    assert cgroups.events(own) == cgroups.Events(populated=True, frozen=False)


@needs_v2
def test_a_process_that_joins_it_after_it_was_frozen_has_it_thawed(scene: Scene, own: str) -> None:
    """Another agent's process was moved into it: that one continues, the agent's own are killed one by one."""
    agent = scene.python(DEAF + 'subprocess.Popen(["sleep", "1000"]); open("up", "w"); time.sleep(1000)', own)
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            scene.admit("b", other.pid)
            scene.before["freeze"] = lambda: cgroups.move(other.pid, own)
            ended = scene.end(agent, force=True)

            assert (ended.reason, len(ended.members), scene.left()) == (None, 2, [])
            assert scene.steps == ["looked", "freeze", "stop", "kill"]
            assert other.poll() is None
            assert not cgroups.events(own).frozen
        finally:
            other.kill()


@needs_v2
def test_what_a_killed_daemon_had_frozen_is_ended(scene: Scene, own: str) -> None:
    """Its intent was to freeze."""
    agent = scene.python(DEAF + 'open("up", "w"); time.sleep(1000)', own)
    known = asyncio.run(scene.scanner.trees())[A]
    assert cgroups.freeze(own, 10)
    ended = scene.end(agent, grace=100, stopped=known)

    assert (ended.reason, scene.left()) == (None, [])
    assert not cgroups.events(own).frozen


@needs_v2
def test_a_cgroup_that_is_not_frozen_or_holds_others_is_not_killed(scene: Scene, own: str) -> None:
    """The one place that writes cgroup.kill asks by itself."""
    agent = scene.python('open("up", "w"); time.sleep(1000)', own)
    assert agent.identity is not None
    guard = Guard(HOST)
    for ours, still, reason in (
        (agent.identity, False, "not_frozen"),
        (replace(agent.identity, pid=agent.identity.pid + 1), True, "foreign"),
    ):
        (cgroups.freeze(own, 10) if still else cgroups.thaw(own))
        with pytest.raises(SignalRefused) as refusal:
            kill_cgroup(own, {ours: None}, guard)
        assert refusal.value.reason == reason
    protected = replace(guard, protected=frozenset({(agent.identity.pid, agent.identity.start_ticks)}))
    with pytest.raises(SignalRefused, match="belongs to another agent"):
        kill_cgroup(own, {agent.identity: None}, protected)
    assert alive(agent.identity.pid)
    assert kill_cgroup(own, {agent.identity: None}, guard) == frozenset({agent.identity.pid})


@needs_v2
def test_a_process_in_it_that_cannot_be_seen_is_not_taken_for_dead(
    scene: Scene, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hidepid=2 hides a child that runs as root from a user's own daemon; the cgroup shows that it exists."""
    agent = scene.python('open("up", "w"); time.sleep(1000)', own)
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            cgroups.move(other.pid, own)
            real = os.path.exists
            monkeypatch.setattr(os.path, "exists", lambda path: path != f"/proc/{other.pid}/stat" and real(path))
            ended = scene.end(agent)

            assert (ended.reason, ended.unseen, ended.alive) == ("not_permitted", (other.pid,), ())
            assert other.poll() is None
        finally:
            other.kill()
            other.wait()
    assert scene.end(agent).reason is None


@needs_v2
@pytest.mark.parametrize("main", [DEAF, ""], ids=["deaf", "obeys TERM"])
def test_what_forks_and_exits_all_the_time_does_not_outlive_its_cgroup(scene: Scene, own: str, main: str) -> None:
    """No look sees it, as each of its pids is gone before it is read; frozen it stands still."""
    agent = scene.python(
        f"""
if os.fork() == 0:
    {DEAF}
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if os.fork(): os._exit(0)
{main}
open("up", "w")
time.sleep(1000)
""",
        own,
    )
    ended = scene.end(agent)

    assert (ended.reason, scene.left()) == (None, [])
    assert not cgroups.events(own).populated


@needs_v2
@pytest.mark.parametrize(
    "look",
    [
        pytest.param(0.0, id="looks are quick"),
        pytest.param(1.0, id="a look takes longer than all of verify", marks=pytest.mark.faults),
    ],
)
def test_a_process_that_outlives_it_got_kill_and_is_not_reported_as_held_by_our_own_freezer(
    scene: Scene, own: str, look: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen once on a busy machine, where the time was over between the freeze and KILL: "frozen by cgroup ...; thaw it"
    told of one that a debugger held, and KILL had gone out to nobody.
    """
    agent = scene.python('open("up", "w"); time.sleep(1000)', own)
    assert agent.identity is not None
    holder = subprocess.Popen([sys.executable, "-c", HOLDS_ITS_EXIT, str(agent.identity.pid)], cwd=scene.dir)
    trees = scene.scanner.trees

    async def slowly() -> Trees:
        await asyncio.sleep(look)
        return await trees()

    monkeypatch.setattr(scene.scanner, "trees", slowly)
    try:
        wait_for((scene.dir / "traced").exists, "it is traced")
        for number in range(6):  # at another moment of a round each
            ended = scene.end(agent, grace=0.1, verify=0.4 + 0.05 * number)
            (member,) = ended.members
            assert (ended.reason, member.lives_on()) == ("traced", f"alive (held by a debugger, process {holder.pid})")
            assert "SIGKILL" in member.sent
    finally:
        holder.kill()
        holder.wait()
    assert scene.end(agent).reason is None
