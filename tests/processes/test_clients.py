"""Who may be a client of a shared service, as the kernel shows it: real processes that are called `codex`."""

import os
import sys
from pathlib import Path

import pytest

from tests.processes.conftest import Family
from watchdog.core.services import CODEX
from watchdog.processes.clients import clients, service_at

CODE = "import os, time; os.write(1, b'up %d\\n' % os.getpid()); time.sleep(300)"


@pytest.fixture
def program(tmp_path: Path) -> str:
    """An interpreter by that name."""
    path = tmp_path / "codex"
    path.symlink_to(os.path.realpath(sys.executable))
    return str(path)


def test_a_client_its_place_and_its_session_are_seen(family: Family, program: str, tmp_path: Path) -> None:
    """Its own directory, or the one that it was told; what has its sessions in its own process is no client."""
    words = {"plain": "", "told": "--cd sub", "takes": "resume s-1", "alone": "--no-daemon", "execs": "exec go"}
    script = f'cd "{tmp_path}"; ' + "".join(
        f'"{program}" -c "{CODE.replace("up", name)}" {more} & ' for name, more in words.items()
    )
    main = family.start("bash", "-c", f"{script} exec sleep 300", env={}, session=True)
    pids = family.pids(main, set(words))
    seen = {one.chain[0][0]: one for one in clients(os.getuid()) if one.chain[0][0] in pids.values()}
    assert set(seen) == {pids["plain"], pids["told"], pids["takes"]}
    assert seen[pids["plain"]].directory == str(tmp_path)
    assert (seen[pids["told"]].directory, seen[pids["told"]].told) == (f"{tmp_path}/sub", True)
    assert seen[pids["takes"]].named == {"s-1"}
    assert main.pid in [pid for pid, _ in seen[pids["plain"]].chain]
    assert clients(os.getuid() + 54321) == ()


def test_a_service_is_known_by_its_pid(family: Family, program: str) -> None:
    """With its start, which tells it from a later process of that number; another one is none."""
    shared = family.start(program, "-c", CODE, "app-server", "--listen", "unix://", env={}, session=True)
    family.pids(shared, {"up"})
    found = service_at(shared.pid)
    assert found is not None
    assert found[0] == CODEX
    assert service_at(os.getpid()) is None
