"""Removes sockets and cgroups that daemons of this host made for agents whose rows are closed.

Tests: tests/reaper/test_reaper.py.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from watchdog.agents.fleet import Fleet
from watchdog.agents.own_cgroup import CgroupPlacement
from watchdog.concurrency import threads
from watchdog.core import hooks
from watchdog.core.agent import ENDED
from watchdog.core.hooks import HookResult
from watchdog.processes import cgroups
from watchdog.reaper.events import ReapEvents
from watchdog.reaper.leftovers import Leftover
from watchdog.registry.async_registry import AsyncRegistry

PATIENCE = 5.0  # seconds to list the directory of the notify sockets


class OwnLeftovers:
    """Finds and removes them. `notify`: the directory of our notify sockets."""

    def __init__(
        self, fleet: Fleet, registry: AsyncRegistry, placement: CgroupPlacement, events: ReapEvents, notify: str
    ) -> None:
        self._fleet = fleet
        self._registry = registry
        self._placement = placement
        self._events = events
        self._notify = notify

    async def look(self) -> list[Leftover]:
        """Sockets and cgroups whose agent's row is closed: a daemon died before it removed them."""
        try:
            names = await threads.call(self._notify, partial(os.listdir, self._notify), PATIENCE)
        except (OSError, threads.Unanswered) as error:  # Unanswered also while another round is listing it
            self._events.trouble("the look for sockets", error)
            names = []
        sockets = {name: os.path.join(self._notify, name) for name in names}
        found = []
        for kind, places, act in (
            ("notify", sockets, os.unlink),
            ("cgroup", self._placement.leaves(), cgroups.remove),
        ):
            left = [agent_id for agent_id in places if self._fleet.get(agent_id) is None]
            for row in await self._registry.read(self._registry.agents.by_ids, left[:1000]):
                if row.status in ENDED and self._fleet.get(row.agent_id) is None:
                    what, reg = places[row.agent_id], row.registration
                    why = f"was made for agent {reg.name}, which is {row.status}"
                    one = Leftover(kind, what, reg.owner_uid, row.agent_id, why, "remove", reg.name)
                    found.append(replace(one, act=partial(self._remove, row.agent_id, partial(act, what))))
        return found

    async def _remove(self, agent_id: str, remove: Callable[[], object], by: str) -> HookResult:
        if self._fleet.get(agent_id) is not None:
            return hooks.kept("its agent lives")
        with contextlib.suppress(FileNotFoundError):
            if remove() is False:
                return hooks.kept("it is in use")
        return hooks.done("removed")
