"""Root's daemon gets a directory's names from the owner's helper and checks, in one scan for all callers, its use."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from watchdog.cleanup.occupancy import Occupancy
from watchdog.helpers.pool import HelperPool
from watchdog.processes import bounded

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a helper of another uid, and its processes")
NOBODY = 65534


async def asked(owner: int, *paths: str) -> list[str | None]:
    owners = HelperPool()
    try:
        occupancy = Occupancy(owners)
        return await asyncio.gather(*(occupancy.user_of(owner, path) for path in paths))
    finally:
        await owners.close()


@needs_root
def test_roots_shell_in_nobodys_tree_is_seen(public: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case P11: a directory in use is reported; an unused and a missing one are not."""
    monkeypatch.setattr(bounded, "_bounds", None)
    used, free = public / "used", public / "free"
    for made in (used, free):
        made.mkdir()
        os.chown(made, NOBODY, NOBODY)
    with subprocess.Popen(["cat"], cwd=used, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as shell:
        found = asyncio.run(asked(NOBODY, str(used), str(free), str(public / "none")))
        assert found == [f"process {shell.pid} of uid 0 has its cwd at {used}", None, None]


@needs_root
def test_a_helper_that_says_nothing_of_use_keeps_the_place(tmp_path: Path) -> None:
    """A directory that cannot be checked counts as used: here the owner may not enter its parent."""
    closed = tmp_path / "closed"
    (closed / "wt").mkdir(parents=True)
    closed.chmod(0o700)
    (found,) = asyncio.run(asked(NOBODY, str(closed / "wt")))
    assert found is not None and "whether it is in use cannot be determined" in found


def test_a_users_daemon_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's daemon sees no more than that user's helper."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert asyncio.run(Occupancy(None).user_of(1000, str(tmp_path))) is None  # type: ignore[arg-type]
