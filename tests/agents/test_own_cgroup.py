"""Whatever goes wrong while an agent gets its own cgroup, the agent goes without, and that is reported."""

import asyncio
import gc
import os
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from watchdog.agents import own_cgroup
from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.agents.own_cgroup import CgroupKind, CgroupPlacement
from watchdog.core.agent import Policy, Registration, Status
from watchdog.processes import identity
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.registry import Registry
from watchdog.telemetry.logger import get_logger


def test_an_error_of_our_own_is_reported_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No other code sees it: the task's result is awaited nowhere."""

    def broken(*_: object) -> None:
        raise ValueError("no such leaf")

    monkeypatch.setattr(own_cgroup, "_into_leaf", broken)

    async def story() -> None:
        unheard: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        registry = AsyncRegistry(Registry(f"sqlite:///{tmp_path}/registry.db").open())
        places = CgroupPlacement(Fleet(), registry, get_logger())
        places.kind = CgroupKind.LEAF
        with subprocess.Popen(["sleep", "1000"]) as process:
            found = identity.read_identity(process.pid, identity.this_host(None))
            reg = Registration(
                "a" * 32, "alpha", os.getuid(), "here", identity.boot_id(), identity=found, created_at=datetime.now(UTC)
            )
            await places.place(Agent(reg, Policy(), Status.RUNNING))
            process.kill()
        await asyncio.sleep(0)
        gc.collect()
        assert not unheard
        registry.close()

    asyncio.run(story())
    assert [r.msg["why"] for r in caplog.records if isinstance(r.msg, dict) and r.msg["event"] == "cgroup.refused"] == [
        "ValueError: no such leaf"
    ]
