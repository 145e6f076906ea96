"""Limits that an agent would escape by a cgroup of its own. With systemd: tests/systemd/test_scopes.py."""

from pathlib import Path

import pytest

from watchdog.agents import cgroup_limits
from watchdog.processes import cgroups


def test_the_units_of_its_users_slice_do_not_count() -> None:
    assert cgroup_limits.units_of("/system.slice/ci.service", 1000) == ["system.slice", "ci.service"]
    assert cgroup_limits.units_of("/user.slice/user-1000.slice/session-3.scope", 1000) == ["session-3.scope"]
    assert cgroup_limits.units_of("/user.slice/user-7.slice/session-3.scope", 1000) == [
        "user-7.slice",
        "session-3.scope",
    ]
    assert cgroup_limits.units_of("/user.slice/user-1000.slice/user@1000.service/app.slice/x.service", 1000) == []
    assert cgroup_limits.units_of("/a.slice/a-b.slice/run-u1.service/below", 0) == [
        "a.slice",
        "a-b.slice",
        "run-u1.service",
    ]
    assert cgroup_limits.units_of("/", 0) == cgroup_limits.units_of("/lxc/--property=x.service y", 0) == []


@pytest.mark.parametrize(
    ("file", "text", "limited"),
    [
        ("memory.max", "max\n", False),
        ("memory.max", "1048576\n", True),
        ("cpu.max", "max 100000\n", False),
        ("cpu.max", "1000 100000\n", True),
        ("io.max", "", False),
        ("io.max", "8:0 rbps=1\n", True),
    ],
)
def test_limits_of_a_cgroup_and_of_those_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, limited: bool
) -> None:
    monkeypatch.setattr(cgroups, "_mounts", lambda: {"": cgroups.CgroupMount(str(tmp_path), "/")})
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a" / file).write_text(text)
    why = cgroup_limits.of_cgroups("/a/b")
    assert (why == f"it would leave the limits of /a ({file})") is limited
    assert (why is None) is not limited
