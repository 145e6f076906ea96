"""Root's shell in a user's tree, root's job with a user's temp dir as TMPDIR, mounts: root's daemon keeps all."""

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.e2e.test_two_people import Person
from tests.world import World, make_world, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a system daemon and another uid")
TREE = """
export GIT_CONFIG_GLOBAL=/dev/null
git init -q -b main repo && cd repo && git config user.name t && git config user.email t@example.org
echo one >file && git add -A && git commit -qm one && git worktree add -q ../wt -b wt && mkdir ../t
"""


@pytest.fixture
def world() -> Iterator[World]:
    """The system's daemon: other users may reach its sockets, and nothing else."""
    for made in make_world(stall={"after_seconds": 3, "start_limit_seconds": 60}):
        made.dir.chmod(0o755)
        made.runtime.chmod(0o755)
        made.configure(cleanup={"roots": [str(made.dir)]})
        yield made


def test_a_place_that_another_uid_uses_stays(world: World) -> None:
    """Cases P11 and P18. When those processes are gone, `reap` finds the tree unused and unchanged, and moves it."""
    ann = Person(world, "ann", 12001)
    with ann.start("sh", "-ec", TREE) as made:
        told = made.communicate(timeout=60)
    assert made.returncode == 0, told
    tree, temp = ann.home / "wt", ann.home / "t"
    shell = subprocess.Popen(["sleep", "1000"], cwd=tree)
    job = subprocess.Popen(["sleep", "1000"], env={**os.environ, "TMPDIR": str(temp)})
    world.started += [shell, job]
    world.start()

    ann.run("alpha", "beat=0.3", "exit=0", options=("--worktree", str(tree), "--temp-dir", str(temp)))
    agent = wait_for(lambda: world.agents()["alpha"], "it is registered")
    world.cli("kill", agent["agent_id"], check=False)

    hook = world.wait_event("cleanup.hook_finished", name="alpha", hook="worktree")
    assert (hook["outcome"], f"process {shell.pid} of uid 0 has its cwd" in hook["message"]) == ("kept", True), hook
    hook = world.wait_event("cleanup.hook_finished", name="alpha", hook="temp_dir")
    assert (hook["outcome"], f"process {job.pid} of uid 0 names it" in hook["message"]) == ("kept", True), hook
    assert tree.is_dir() and temp.is_dir()
    shell.kill()
    shell.wait()
    world.cli("reap")
    wait_for(lambda: not tree.exists(), "nobody uses it any more")


def test_a_place_that_the_kernel_uses_stays(world: World) -> None:
    """Root's container with the user's tree as its volume, root's loop device on a file in the user's temp dir."""
    ann = Person(world, "ann", 12001)
    with ann.start("sh", "-ec", TREE) as made:
        told = made.communicate(timeout=60)
    assert made.returncode == 0, told
    tree, temp = ann.home / "wt", ann.home / "t"
    volume = f"mount --bind {tree} /mnt && cd / && echo ready && exec sleep 1000"
    container = subprocess.Popen(
        ["unshare", "-m", "--propagation", "private", "sh", "-c", volume], cwd="/", stdout=subprocess.PIPE, text=True
    )
    world.started.append(container)
    assert container.stdout is not None
    with container.stdout as ready:
        assert ready.readline() == "ready\n"
    (temp / "disk").write_bytes(bytes(1 << 20))
    asked = ["losetup", "--find", "--show", str(temp / "disk")]
    device = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    try:
        world.start()
        ann.run("alpha", "beat=0.3", "exit=0", options=("--worktree", str(tree), "--temp-dir", str(temp)))
        agent = wait_for(lambda: world.agents()["alpha"], "it is registered")
        world.cli("kill", agent["agent_id"], check=False)

        hook = world.wait_event("cleanup.hook_finished", name="alpha", hook="worktree")
        words = f"{tree} is mounted at /mnt, where process {container.pid} of uid 0 lives"
        assert (hook["outcome"], words in hook["message"]) == ("kept", True), hook
        hook = world.wait_event("cleanup.hook_finished", name="alpha", hook="temp_dir")
        words = f"the loop device {os.path.basename(device)} has its file at {temp}/disk"
        assert (hook["outcome"], words in hook["message"]) == ("kept", True), hook
        assert tree.is_dir() and temp.is_dir()
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
    container.kill()
    container.wait()
    world.cli("reap")
    wait_for(lambda: not tree.exists(), "nothing uses it any more")
