"""The terminal panes of agents: found by the owners' helpers once each process is known, and stored with the agent.

A pane must be found while its agent lives, since its owner cannot be determined afterwards. Agents without a terminal
are skipped. The content of a pane is read once, before a kill.

Tests: tests/kill/test_evidence.py, tests/e2e/test_pane.py.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from watchdog.agents.agent import Agent
from watchdog.agents.ownership import owner_of
from watchdog.core.process import Identity
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.processes.table import has_terminal
from watchdog.registry.async_registry import AsyncRegistry

AT_ONCE = 8  # concurrent searches for panes
FINDING = 4.0  # seconds for one search
DEADLINE = 2.0  # seconds that the first signal may wait for a last screen
LINES, LINE = 40, 160  # as in the helper, which writes this text
LARGEST = 4096  # characters stored of a pane
KEYS = ("terminal", "server", "pane")  # fields of every pane


class Panes:
    """Finds panes and stores them."""

    def __init__(self, registry: AsyncRegistry, helpers: HelperPool) -> None:
        self._registry = registry
        self._helpers = helpers
        self._asking = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()

    def find(self, agent: Agent) -> None:
        """Start to find the pane of an agent whose process has become known. Does not wait."""
        main = agent.identity
        if main is None or _is_found(agent.reg.pane) or (agent.reg.its_pane is None and not has_terminal(main)):
            return
        task = asyncio.create_task(self._find(agent, main), name=f"pane of {agent.agent_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _find(self, agent: Agent, main: Identity) -> None:
        """A pane that cannot be found now is searched once more before a kill."""
        args = {"pid": main.pid, "start_ticks": main.start_ticks, "told": agent.reg.its_pane or {}}
        async with self._asking:
            with suppress(
                OwnerCallFailed, KeyError, TypeError, ValueError
            ):  # the helper is a process of that user and may answer anything
                self._keep(agent, await self._helpers.call(owner_of(agent), "pane_find", args, FINDING))

    async def last_screen(self, agent: Agent) -> dict[str, object] | None:
        """The present content of its pane, or why that is unknown; None: it has no terminal. Within `DEADLINE`."""
        main = agent.identity
        if main is None or (agent.reg.its_pane is None and not has_terminal(main)):
            return None
        args = {"pid": main.pid, "start_ticks": main.start_ticks, "pane": agent.reg.its_pane or {}}
        try:
            answer = await self._helpers.call(owner_of(agent), "pane_screen", args, DEADLINE)
            self._keep(agent, answer["pane"])
            lines = [str(line)[:LINE] for line in answer["lines"]][-LINES:]
        except OwnerCallFailed as error:
            return {"where": pane_text(agent.reg.its_pane), "screen": f"not known: {error}"[:LARGEST]}
        except (KeyError, TypeError, ValueError) as error:  # as above
            return {
                "where": pane_text(agent.reg.its_pane),
                "screen": f"not known: no answer of ours ({error!r})"[:LARGEST],
            }
        return {"where": pane_text(agent.reg.its_pane), "screen": lines or "it is empty"}

    def _keep(self, agent: Agent, found: Any) -> None:
        """Store the answer. Raises ValueError if it is not a pane."""
        pane = dict(found)
        if not all(isinstance(pane.get(key), str) for key in KEYS) or len(str(pane)) > LARGEST:
            raise ValueError("what the helper found is no pane")
        if pane != agent.reg.pane:
            agent.amend(replace(agent.reg, pane=pane))
            self._registry.ask(self._registry.agent_details.set_pane, agent.agent_id, pane).add_done_callback(
                lambda done: done.cancelled() or done.exception()
            )


def pane_text(pane: Mapping[str, object] | None) -> str | None:
    """A pane as text for people."""
    if pane is None:
        return None
    server = f" ({pane['server']})" if pane.get("server") else ""
    return f"{pane.get('terminal')} pane {pane.get('pane') or '?'}{server}"


def _is_found(pane: Mapping[str, object] | None) -> bool:
    """Whether the helper found it; otherwise it was only reported."""
    return pane is not None and "server_pid" in pane
