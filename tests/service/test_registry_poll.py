"""Orders committed by other programs: found at the next poll, which reads the registry only if it was written."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.control.office import Recorder as Kept
from watchdog.agents.fleet import Fleet
from watchdog.agents.holds import Holds
from watchdog.registry.async_registry import AsyncRegistry
from watchdog.registry.kill_request_queries import KillRequestQueries
from watchdog.registry.registry import Registry
from watchdog.service.registry_poll import RegistryPoll
from watchdog.service.stored_orders import StoredOrders

NOBODY: Any = cast("Any", None)


class Counted(KillRequestQueries):
    """Counts the polls of orders."""

    looks = 0

    def open_requests(self, host: str) -> Any:
        """One poll."""
        self.looks += 1
        return super().open_requests(host)


def test_a_registry_without_new_commits_is_not_read_again(tmp_path: Path) -> None:
    """Another's commit is found by the next poll; while any order is open there, each poll reads."""

    async def story() -> None:
        opened = Registry(f"sqlite:///{tmp_path}/registry.db").open()
        opened.kills = kills = Counted(opened.engines)
        registry, holds, log = AsyncRegistry(opened), Holds(), Kept()
        registrar = cast("Any", SimpleNamespace(fleet=Fleet(), registry=registry, host="h"))
        orders = StoredOrders(NOBODY, registrar, holds, NOBODY, log)
        poll = RegistryPoll(registrar, holds, orders, log)

        async def looks(count: int = 3) -> int:
            before = kills.looks
            for _ in range(count):
                await poll.poll()
            return kills.looks - before

        def by_hand(statement: str) -> None:
            with closing(sqlite3.connect(tmp_path / "registry.db", isolation_level=None)) as other:
                other.execute(statement)

        try:
            assert await looks() == 1
            by_hand(
                "INSERT INTO operator_hold (host, reason, by_uid, created_at)"
                " VALUES ('h', 'by hand', 0, '2030-01-01 00:00:00.000000')"
            )
            assert await looks() == 3, "a hold is on"
            assert len(holds.ids()) == 1
            by_hand("UPDATE operator_hold SET ended_at = '2030-01-01 00:00:01.000000'")
            assert await looks() == 1
            assert not holds.ids()
        finally:
            registry.close()

    asyncio.run(story())
