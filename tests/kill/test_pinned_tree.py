"""Each process of a tree is held by a pidfd; what was stopped and is not killed goes on."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.kill.scene import DEAF, HOST, Scene, state
from tests.world import alive, wait_for
from watchdog.core.process import Identity, TreeMember
from watchdog.errors import RegistryUnavailable
from watchdog.kill import pinned_tree
from watchdog.processes import bounded, identity
from watchdog.processes.signals import Guard, SendResult, SignalTarget, send


def test_the_end_wakes_nobody_it_has_stopped(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_who_turns_out_to_be_anothers_after_he_was_stopped_goes_on(scene: Scene) -> None:
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
def test_nobody_stays_stopped_when_the_attempt_is_broken_off(scene: Scene, broken_off: BaseException) -> None:
    """The registry is away when KILL is to be committed; the daemon is told to stop."""
    agent = scene.python(DEAF + 'subprocess.Popen(["sleep", "1000"]); open("up", "w")\ntime.sleep(1000)')

    def fail() -> None:
        wait_for(lambda: {state(pid) for pid in scene.left()} == {"T"}, "both are stopped")
        raise broken_off

    scene.before["kill"] = fail
    with pytest.raises(type(broken_off)):
        scene.end(agent, force=True)

    assert len(scene.left()) == 2
    wait_for(lambda: {state(pid) for pid in scene.left()} == {"S"}, "all go on")


def test_who_ends_right_before_it_is_waited_for_is_not_waited_for(
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


def test_one_that_has_ended_before_it_is_taken_in_was_somebody_new(scene: Scene) -> None:
    """Q9: a look that found only such found somebody, and proves nothing."""
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
