"""What root's daemon or a program of root's takes for its own, or for an agent's, and another user has chosen.

At 6e2b281 each of these worked: an order of root's hit an agent that had the beginning of another's id for a name; a
`run` of root's kept its socket and its reports in $XDG_RUNTIME_DIR of the user from whom root had come by `su`, who
could exchange them for links (of 256 reports the oldest is removed, by its path); and the number of a process that had
ended while it waited for its turn was moved into its agent's cgroup, whosoever it was by then.
"""

import asyncio
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.test_two_people import Person
from tests.world import BIN, World
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.own_cgroup import CgroupKind, CgroupPlacement
from watchdog.config.paths import places_for
from watchdog.control.routes.restore import chosen
from watchdog.core.agent import Policy, Registration, Status
from watchdog.errors import Ambiguous
from watchdog.processes import cgroups, identity
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.telemetry.logger import get_logger

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what another user chooses for it"),
]
ANN, BEN = 12001, 12002


def test_a_name_that_begins_like_anothers_id_takes_no_order_of_roots(world: World) -> None:
    """Both ways: neither is ended, and root is told which two these are. At 6e2b281 the one of that name was."""
    world.start()
    ann, ben = Person(world, "ann", ANN), Person(world, "ben", BEN)
    hers, _ = ann.registered("hers", "witness", "lease=600")
    his, _ = ben.registered(hers[:8], "witness", "lease=600")

    said = world.cli("kill", hers[:8], check=False)

    assert said.returncode != 0
    assert hers in said.stderr and his in said.stderr, said.stderr
    assert {one["status"] for one in world.agents().values()} == {"running"}
    assert ann.cli("kill", "hers")[0] == 0, "who sees her own alone is not disturbed"
    assert ben.cli("kill", hers[:8])[0] == 0


def test_no_id_of_a_task_that_another_has_taken_keeps_an_agent_from_being_watched(world: World) -> None:
    """Ids of tasks are guessed (1, 2, 3); at bc51ea4 one that another user's agent had ever had was refused for good.

    Nor does another user take one that waits for its next try: at bc51ea4 nobody had it then.
    """
    world.configure(kill={"task_status": "ready_for_retry"})
    world.start()
    ann, ben = Person(world, "ann", ANN), Person(world, "ben", BEN)
    assert ben.ask("POST", "/v1/agents", {"name": "squatter", "task": "1"})[0] == 201
    assert ben.cli("remove", "squatter")[0] == 0
    status, answer = ann.ask("POST", "/v1/agents", {"name": "hers", "task": "1"})
    assert status == 201
    assert "task 1 belongs to another user's agent" in str(answer["notes"])

    ann.registered("works", "witness", "lease=600", task="2")
    assert ann.cli("kill", "--force", "works")[0] == 0
    assert world.sql("SELECT status, assigned_agent FROM orchestrator_task WHERE task_id = '2'") == [
        ("ready_for_retry", None)
    ]
    assert ben.ask("POST", "/v1/agents", {"name": "thief", "task": "2"})[0] == 201
    assert world.sql("SELECT status FROM orchestrator_task WHERE task_id = '2'") == [("ready_for_retry",)]
    again = ann.ask("POST", "/v1/agents", {"name": "again", "task": "2"})[1]["agent_id"]
    assert world.sql("SELECT assigned_agent FROM orchestrator_task WHERE task_id = '2'") == [(again,)]


@pytest.mark.parametrize("link", ["settings.json", ""])
def test_root_installs_no_hooks_where_a_users_link_leads(tmp_path: Path, link: str) -> None:
    """With HOME of that user (`sudo -E`). At bc51ea4 a file of any name was made for root, or a JSON file changed."""
    home, victim = tmp_path / "home", tmp_path / "victim"
    victim.mkdir()
    home.mkdir()
    (home / ".claude").mkdir() if link else (home / ".claude").symlink_to(victim)
    if link:
        (home / ".claude" / link).symlink_to(victim / "chosen")
    for made in (home, *home.rglob("*")):
        os.chown(made, BEN, BEN, follow_symlinks=False)
    done = subprocess.run(
        [BIN / "agent-watchdog", "install-hooks", "claude"],
        env={**os.environ, "HOME": str(home), "CLAUDE_CONFIG_DIR": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, f"belongs to uid {BEN}" in done.stderr) == (78, True), done.stderr
    assert list(victim.iterdir()) == []


def test_nothing_of_roots_lies_in_the_runtime_directory_of_another(tmp_path: Path) -> None:
    """`su` keeps $XDG_RUNTIME_DIR. At 6e2b281 root's socket and report were there."""
    place = tmp_path / "user"
    place.mkdir(mode=0o700)
    os.chown(place, BEN, BEN)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(place)}
    run = (str(BIN / "agent-watchdog"), "run", "--name", "roots", "--", "sh", "-c", "echo $NOTIFY_SOCKET")

    said = subprocess.run(run, env=environ, capture_output=True, text=True, timeout=60, check=True).stdout
    reports = Path(said).parents[1] / "reports"
    [its] = [report for report in reports.iterdir() if said.strip() in report.read_text()]
    its.unlink()  # root's daemons would take its agent up

    assert said.startswith(("/run/", "/tmp/")), said
    assert not said.startswith(f"{place}/"), said
    assert list(place.iterdir()) == []
    assert not places_for(ANN, environ).runtime_dir.startswith(str(place)), "a user's daemon likewise"
    assert places_for(BEN, environ).runtime_dir == f"{place}/agent-watchdog"


def test_what_another_users_trash_says_is_not_restored_in_place_of_ones_own() -> None:
    """Ids and names there are that user's words. At 6e2b281 root's `restore` took the entry of the lower uid."""
    hers, his = ({"agent_id": "a" * 32, "name": "alpha", "owner_uid": uid} for uid in (BEN, ANN))
    for wanted in ("alpha", "a" * 32, "aaaa"):
        with pytest.raises(Ambiguous, match=rf"uid {ANN}.*uid {BEN}"):
            chosen(wanted, [his, hers], [])
        assert chosen(wanted, [his, hers], [], BEN) == hers, "from within her repository"
        assert chosen(wanted, [hers, hers], [], 0) == hers


@pytest.mark.skipif(cgroups.version_2() is None, reason="needs cgroup v2")
def test_a_number_that_has_passed_on_is_moved_nowhere(tmp_path: Path) -> None:
    """Its agent's process ended meanwhile. At 6e2b281 the stranger was in the cgroup of the agent."""

    async def story(stranger: int) -> str | None:
        registry = AsyncRegistry(Registry(f"sqlite:///{tmp_path}/registry.db").open())
        places = CgroupPlacement(Fleet(), registry, get_logger())
        if places.kind is not CgroupKind.LEAF:
            pytest.skip("needs a cgroup v2 that may be divided, and no systemd")
        found = identity.read_identity(stranger, identity.this_host(None))
        assert found is not None
        former = replace(found, start_ticks=found.start_ticks - 1, pidfd_inode=None)
        reg = Registration("d" * 32, "alpha", BEN, "here", identity.boot_id(), identity=former)
        await places.place(Agent(reg, Policy(), Status.RUNNING))
        registry.close()
        return cgroups.path_of(stranger)

    with subprocess.Popen(["sleep", "1000"]) as process:
        before = cgroups.path_of(process.pid)
        try:
            assert asyncio.run(story(process.pid)) == before
        finally:
            process.kill()
