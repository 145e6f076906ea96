"""A user exchanges its directories while root's daemon ends agents and cleans up after them, as fast as it can.

An owner's own places are its helper's to open, with its own rights. What could be gained is in the cleanup of others:
of root's agents, whose places lie below a directory of the attacker's. It held when it was first tried.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.world import World, git, make_repository, wait_for

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other people's processes"),
]
MALLORY = 12100
AGENTS = 12
# Exchanges two names of its own without a pause until stdin ends; says how often.
SWAP = """
import ctypes, os, select, sys
libc, names, count = ctypes.CDLL(None, use_errno=True), [word.encode() for word in sys.argv[1:]], 0
print("ready", flush=True)
while not (count % 64 == 0 and select.select([0], [], [], 0)[0]):
    for number in range(0, len(names), 2):
        if libc.renameat2(-100, names[number], -100, names[number + 1], 2):
            raise OSError(ctypes.get_errno(), "renameat2")
        count += 1
print(count)
"""


@pytest.fixture
def settings() -> dict[str, dict[str, Any]]:
    return {"stall": {"after_seconds": 60, "start_limit_seconds": 600}, "kill": {"grace_seconds": 0.2}}


def filled(directory: Path) -> Path:
    directory.mkdir(parents=True)
    (directory / "precious").write_text("of root\n")
    return directory


@pytest.mark.parametrize("what", ["temp_dir", "worktree"])
def test_no_place_of_roots_is_cleaned_up_through_a_directory_that_is_exchanged(world: World, what: str) -> None:
    """`sub` is the attacker's directory with root's places in it, or a link to another directory of root's."""
    with world.config.open("a") as config:
        config.write(f'[cleanup]\nroots = ["{world.dir}"]\n')
    home, victim = world.dir / "mallory", world.dir / "victim"
    sub, link = home / "sub", home / "link"
    home.mkdir()
    sub.mkdir()
    repository = make_repository(world.dir / "repository")
    for number in range(AGENTS):
        if what == "worktree":
            git(repository, "worktree", "add", "-q", "-b", f"b{number}", str(sub / f"t{number}"))
        else:
            filled(sub / f"t{number}")
        filled(victim / f"t{number}")
    link.symlink_to(victim)
    for path in (home, sub, link):
        os.lchown(path, MALLORY, MALLORY)
    home.chmod(0o755)
    world.start()
    places: list[dict[str, Any]] = [{what: str(sub / f"t{number}")} for number in range(AGENTS)]
    agents = [world.registered(f"a{number}", "sleep", "1000", **place) for number, place in enumerate(places)]
    with subprocess.Popen(
        [sys.executable, "-I", "-c", SWAP, str(sub), str(link)],
        user=MALLORY,
        group=MALLORY,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as swapping:
        assert swapping.stdin is not None and swapping.stdout is not None
        try:
            assert swapping.stdout.readline() == "ready\n"
            for number in range(AGENTS):
                world.ask("POST", "/v1/kill", {"targets": [f"a{number}"], "force": True, "wait": False})
            ended = {"killed", "failed"}
            names = [f"a{number}" for number in range(AGENTS)]
            wait_for(lambda: all(world.agents()[name]["status"] in ended for name in names), "all have ended", 150)
        finally:
            swapping.stdin.close()
        print(
            "exchanged", swapping.stdout.read().strip(), [world.story(f"a{n}")["cleanup"][-1:] for n in range(AGENTS)]
        )
    for process in agents:
        process.wait()
    kept = [(victim / f"t{number}" / "precious").exists() for number in range(AGENTS)]
    assert all(kept), [run for number in range(AGENTS) for run in world.story(f"a{number}")["cleanup"]]
