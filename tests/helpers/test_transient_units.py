"""How a helper is started as a unit: confined where it does our work, and never for longer than its deadline."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from watchdog.helpers import transient_units as units
from watchdog.helpers.transient_units import Account

PERSON = Account(1000, 1000, known=True, environment={"HOME": "/home/a", "LANG": "C.UTF-8"})
WORK = ["/usr/bin/python3", "-m", "watchdog.owner.helper"]


def properties(argv: list[str]) -> dict[str, str]:
    """What the unit is told, by key; the last one of each, as systemd reads them."""
    told = [word.removeprefix("--property=") for word in argv if word.startswith("--property=")]
    return dict(line.split("=", 1) for line in told)


def test_no_unit_had_that_name_before() -> None:
    """A name of a former one could still be loaded."""
    names = {units.name_for(1000) for _ in range(100)}
    assert len(names) == 100
    assert all(name.startswith("agent-watchdog-helper-1000-") and name.endswith(".service") for name in names)


def test_the_command_stands_last_and_as_it_is() -> None:
    """Behind `--`: none of its words is an option of systemd-run's."""
    argv = units.start_argv("x.service", PERSON, [*WORK, "--property=User=root"], None)
    assert argv[0] == "systemd-run"
    assert argv[argv.index("--") + 1 :] == [*WORK, "--property=User=root"]
    assert {"--unit=x.service", f"--slice={units.SLICE}", "--setenv=HOME=/home/a", "--pipe", "--wait"} <= set(argv)


def test_work_of_ours_is_confined_and_an_owners_command_is_not() -> None:
    """A command may reach the network; what it leaves is ended with it all the same."""
    ours = properties(units.start_argv("x", PERSON, WORK, None))
    theirs = properties(units.start_argv("x", PERSON, [*WORK, "--command"], None))
    for told in (ours, theirs):
        assert told["KillMode"] == "control-group"
        assert told["NoNewPrivileges"] == "yes"
        assert "NOTIFY_SOCKET" in told["UnsetEnvironment"].split()
    assert ours["IPAddressDeny"] == "any"
    assert ours["CapabilityBoundingSet"] == units.BECOMES
    assert not {"IPAddressDeny", "CapabilityBoundingSet", "MemoryMax"} & set(theirs)


def test_roots_own_helper_keeps_what_it_reads_by_and_gets_no_uid_to_change() -> None:
    """Alone it may also change what is others'."""
    root = Account(0, 0, known=True, environment={})
    shared = properties(units.start_argv("x", root, WORK, None))["CapabilityBoundingSet"].split()
    alone = properties(units.start_argv("x", root, WORK, 60.0))["CapabilityBoundingSet"].split()
    assert not set(units.BECOMES.split()) & {*shared, *alone}
    assert set(alone) - set(shared) == {"CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_CHOWN"}


def test_a_lone_helper_ends_soon_after_its_deadline_whatever_becomes_of_us() -> None:
    """A shared one ends with its stdin."""
    assert properties(units.start_argv("x", PERSON, WORK, 60.0))["RuntimeMaxSec"] == f"{60 + units.AFTERWARDS:g}"
    assert "RuntimeMaxSec" not in properties(units.start_argv("x", PERSON, WORK, None))


def test_helpers_are_no_units_for_who_is_not_managed_or_not_root() -> None:
    """A user's own daemon is not closed in."""
    assert not units.usable(managed=False)
    assert units.usable(managed=True) == (os.geteuid() == 0 and os.path.isdir("/run/systemd/system"))


def children_called(name: str) -> list[int]:
    """Our children of that name, ended ones too."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread of others' may end now
            found += (task / "children").read_text().split()
    stats = {pid: Path(f"/proc/{pid}/comm") for pid in map(int, found)}
    return [pid for pid, comm in stats.items() if comm.exists() and comm.read_text().strip() == name]


@pytest.mark.parametrize("systemctl", [None, "exit 1", 'echo "$@" > "$0.told"', "exec sleep 1000"])
def test_an_end_raises_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, systemctl: str | None) -> None:
    """At the worst the unit ends by itself: no systemctl, one that refuses, one that hangs."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin" if systemctl else str(tmp_path))
    monkeypatch.setattr(units, "END_LIMIT", 1.0 if systemctl and "sleep" in systemctl else 60.0)
    if systemctl is not None:
        (tmp_path / "systemctl").write_text(f"#!/bin/sh\n{systemctl}\n")
        (tmp_path / "systemctl").chmod(0o755)

    async def ended() -> None:
        await units.end("x.service")
        async with asyncio.timeout(60):  # until the one that hung is reaped, as the daemon's loop does behind it
            while children_called("sleep"):
                await asyncio.sleep(0.01)

    asyncio.run(ended())
    if systemctl and "told" in systemctl:
        assert (tmp_path / "systemctl.told").read_text() == "kill --signal=KILL x.service\n"
