"""The calls to owners' helpers, and the state kept of each registry."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from watchdog.agents.agent import Agent
from watchdog.agents.fleet import Fleet
from watchdog.clock import Clock
from watchdog.config.schema import SourceSection
from watchdog.core.process import Listed
from watchdog.core.source_entries import Entry, entry_json
from watchdog.discovery.importer import SourceImporter
from watchdog.discovery.stale_entries import StaleEntries
from watchdog.processes import identity


def importer(
    call: Callable[..., Awaitable[object]],
    *sources: SourceSection,
    fleet: Fleet | None = None,
    told: list[dict[str, Any]] | None = None,
    **registrar: Any,
) -> SourceImporter:
    """One that calls helpers through `call`.

    `told` collects the events; `registrar` replaces methods of the registrar.
    """

    def event(name: str, /, **fields: Any) -> None:
        assert told is not None, f"{name} is reported: {fields}"
        told.append({"event": name, **fields})

    def keep_entries(agent: Agent, entries: tuple[Listed, ...]) -> asyncio.Future[bool]:
        agent.amend(replace(agent.reg, entries=entries))
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        written.set_result(True)
        return written

    async def holder_of(*_: object) -> None:
        return None

    settings, clock, recorder = SimpleNamespace(sources=sources, observe=False), Clock(), SimpleNamespace(event=event)
    here = {
        "fleet": Fleet() if fleet is None else fleet,
        "host": "host",
        "boot_id": identity.boot_id(),
        "keep_entries": keep_entries,
    }
    owners = SimpleNamespace(call=call)
    parts: Any = (
        settings,
        clock,
        SimpleNamespace(**here | registrar),
        StaleEntries(cast("Any", None), clock, cast("Any", settings), cast("Any", owners), cast("Any", recorder)),
        SimpleNamespace(holder_of=holder_of),
        owners,
        recorder,
    )
    return SourceImporter(*parts)


def test_the_usual_place_of_two_users_is_two_registries() -> None:
    """Each belongs to its user: an agent in the second one is no stranger to the first."""
    asked = dict[int, str]()

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        asked[uid] = args["path"]
        return [entry_json(Entry(key="k", token=f"t{uid}", name=f"agent-of-{uid}", uid=uid))]

    sources = importer(call, *(SourceSection(kind="hcom", user=name) for name in ("root", "nobody")))
    asyncio.run(sources.look())

    assert asked == {0: "~root/.hcom", 65534: "~nobody/.hcom"}
    assert {(one["name"], one["owner_uid"]) for one in sources.shown()} == {
        ("agent-of-0", 0),
        ("agent-of-65534", 65534),
    }


def test_a_registry_that_is_named_twice_is_read_once() -> None:
    """A read would count twice, and an entry that was being replaced would be missing in both."""
    asked = list[str]()

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        asked.append(args["path"])
        return []

    named = tuple(SourceSection(kind="hcom", path=path) for path in ("/srv/a", "/srv/a", "/srv/b"))
    asyncio.run(importer(call, *named).look())

    assert asked == ["/srv/a", "/srv/b"]
