"""What is asked of whose helper, and what is kept of each registry."""

import asyncio
from types import SimpleNamespace
from typing import Any

from watchdog.clock import Clock
from watchdog.fleet import Fleet
from watchdog.keys import Source
from watchdog.owner.sources.base import Entry, entry_json
from watchdog.sources import Sources


def test_the_usual_place_of_two_users_is_two_registries() -> None:
    """Each is his own: who stands in the second one's is no stranger in the first one's."""
    asked = dict[int, str]()

    async def call(uid: int, call: str, args: dict[str, Any], timeout: float) -> list[dict[str, object]]:
        asked[uid] = args["path"]
        return [entry_json(Entry(key="k", token=f"t{uid}", name=f"agent-of-{uid}", uid=uid))]

    settings = SimpleNamespace(sources=tuple(Source(kind="hcom", user=name) for name in ("root", "nobody")))
    desk = SimpleNamespace(settings=settings, fleet=Fleet(), clock=Clock(), host="host", boot_id="boot")
    sources = Sources(desk, SimpleNamespace(call=call))  # type: ignore[arg-type]
    asyncio.run(sources.look())

    assert asked == {0: "~root/.hcom", 65534: "~nobody/.hcom"}
    assert {(one["name"], one["owner_uid"]) for one in sources.shown()} == {
        ("agent-of-0", 0),
        ("agent-of-65534", 65534),
    }
