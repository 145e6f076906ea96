"""A user has root wait for the cleanup of an agent that is dead: its owner stops, or hangs, the helper that cleans.

At 0fc025f each of these worked: root's `kill`, `stop` and `remove` had no answer within 100 s. An answer waited for the
hooks through all of their deadlines and tries, and an owner may stop its helper as it likes.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.attacks.test_admission import Attack
from tests.e2e.test_two_people import Person
from tests.world import World, alive, git, make_repository, wait_for
from watchdog.control.views.results import OTHERS

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other people's processes"),
]
MALLORY, ANN = 12100, 12001
BEYOND = 6.0  # seconds for what an order takes beside: the end, the answers of helpers, and the start of two clients
NAP = f"1000.{os.getpid()}"  # seconds for which a hook sleeps: no other test's does
HOOK = f"""
[[hook]]
name = "naps"
on = ["killed", "stopped", "failed", "completed"]
command = ["sh", "-c", "exec sleep {NAP}"]
"""


@pytest.fixture
def settings() -> dict[str, dict[str, Any]]:
    return {"stall": {"after_seconds": 60, "start_limit_seconds": 600}}


class Mallory:
    """A user with an agent in a worktree, and a way to have whoever cleans it wait."""

    def __init__(self, world: World, way: str) -> None:
        if way == "a hook that sleeps":
            with world.config.open("a") as config:
                config.write(HOOK)
        world.start()
        self.world, self.way = world, way
        self.person = Person(world, "mallory", MALLORY)
        self.tree = self.person.home / "tree"
        repository = make_repository(self.person.home / "repository")
        git(repository, "worktree", "add", "-q", "-b", "work", str(self.tree))
        self.fifo = repository / ".git/config"
        for directory, names, files in os.walk(self.person.home):
            for name in [*names, *files, "."]:
                os.lchown(os.path.join(directory, name), MALLORY, MALLORY)
        self.person.registered("hers", "sleep", worktree=str(self.tree))
        self.pid = world.agents()["hers"]["pid"]

    @contextmanager
    def at_it(self) -> Iterator[None]:
        """While the attack is on."""
        attack = Attack(self.world)
        if self.way == "a read that hangs":
            self.fifo.unlink()
            os.mkfifo(self.fifo)
            os.chown(self.fifo, MALLORY, MALLORY)
        elif self.way in ("halt", "falter"):
            attack.begin(MALLORY, self.way)
            attack.ready()
        try:
            yield
        finally:
            attack.ended()


@pytest.fixture(params=["halt", "falter", "a read that hangs", "a hook that sleeps"])
def mallory(world: World, request: pytest.FixtureRequest) -> Mallory:
    return Mallory(world, request.param)


def answered(world: World, *words: str) -> "subprocess.CompletedProcess[str]":
    """What root is told, soon."""
    began = time.monotonic()
    done = world.cli(*words, check=False)
    took = time.monotonic() - began
    print(f"{words}: {took:.1f} s, exit {done.returncode}: {done.stdout}{done.stderr}")
    assert took < OTHERS + BEYOND, f"{done.stdout}{done.stderr}"
    return done


def goes_on(mallory: Mallory, done: "subprocess.CompletedProcess[str]") -> None:
    """It is dead, and the answer says so, what is left, and where to look."""
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert not alive(mallory.pid)
    assert "its cleanup goes on (" in done.stdout
    left = "naps" if mallory.way == "a hook that sleeps" else "git_locks"
    assert left in done.stdout.partition("goes on (")[2].partition(")")[0]
    assert "): agent-watchdog why hers" in done.stdout
    assert mallory.world.agents()["hers"]["status"] == "ending"


def test_a_kill_is_answered_when_the_death_is_proved(world: World, mallory: Mallory) -> None:
    """Again, too, while the cleanup goes on; and an agent of another user's in the same order has its cleanup told."""
    Person(world, "ann", ANN).registered("anns", "sleep")
    with mallory.at_it():
        goes_on(mallory, answered(world, "kill", "hers", "--force"))
        goes_on(mallory, answered(world, "kill", "hers"))
        done = answered(world, "kill", "hers", "anns", "--force")
        assert done.returncode == 0
        if mallory.way != "a hook that sleeps":  # that one sleeps for everybody
            world.wait_status("anns", "killed")
        assert "hers" in done.stdout and "anns" in done.stdout


def test_a_stop_is_answered_likewise(world: World, mallory: Mallory) -> None:
    with mallory.at_it():
        goes_on(mallory, answered(world, "stop", "hers"))


def test_a_remove_says_that_it_is_dead_and_not_removed_yet(world: World, mallory: Mallory) -> None:
    with mallory.at_it():
        os.kill(mallory.pid, signal.SIGKILL)
        done = answered(world, "remove", "hers")
        assert done.returncode == 1
        assert "hers is dead, but not removed yet: its cleanup goes on (" in done.stderr


def test_who_ended_by_itself_is_told_of_likewise(world: World, mallory: Mallory) -> None:
    with mallory.at_it():
        os.kill(mallory.pid, signal.SIGKILL)
        wait_for(lambda: world.agents()["hers"]["status"] == "ending", "its row is being closed")
        goes_on(mallory, answered(world, "kill", "hers"))
