"""Queries to the owners' helpers beside the sweep, one at a time for each subject.

A helper that hangs on one path means missing evidence about that path alone: no other query waits for it, and the path
is tried again after a while.

Tests: tests/probes/test_output_growth.py, tests/probes/test_session_files.py, tests/probes/test_permission_prompts.py.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from watchdog.agents.agent import Agent
from watchdog.agents.ownership import owner_of
from watchdog.clock import Clock
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool

DEADLINE = 3.0  # seconds for one answer; then the helper is replaced
PATIENCE = 60.0  # seconds until a path on which two helpers in a row hung is tried again
AT_ONCE = 16  # queries of one owner; a helper refuses more than 64 calls at a time


@dataclass(slots=True)
class _Subject:
    """One subject of queries."""

    task: asyncio.Task[None] | None = None
    began: float = 0.0
    late: int = 0
    not_before: float = 0.0


class BackgroundQueries:
    """Sends queries, and passes each answer or failure to the caller's callbacks."""

    def __init__(self, helpers: HelperPool, clock: Clock) -> None:
        self._helpers = helpers
        self._clock = clock
        self._subjects: dict[Hashable, _Subject] = {}
        self._slots: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()  # kept while a query uses it

    def waiting(self, key: Hashable) -> float | None:
        """Seconds since the open query was sent; None: none is open."""
        subject = self._subjects.get(key)
        if subject is None or subject.task is None or subject.task.done():
            return None
        return self._clock.mono() - subject.began

    def ask(
        self,
        key: Hashable,
        agent: Agent,
        call: str,
        args: Mapping[str, object],
        answered: Callable[[Any], None],
        failed: Callable[[OwnerCallFailed], None],
    ) -> None:
        """Query the helper of the agent's owner, unless a query with that key is open or hung recently."""
        now = self._clock.mono()
        subject = self._subjects.setdefault(key, _Subject())
        if self.waiting(key) is None and now >= subject.not_before:
            subject.began = now
            subject.task = asyncio.create_task(
                self._ask(subject, agent, call, args, answered, failed), name=f"{call} for {key}"
            )

    async def _ask(
        self,
        subject: _Subject,
        agent: Agent,
        call: str,
        args: Mapping[str, object],
        answered: Callable[[Any], None],
        failed: Callable[[OwnerCallFailed], None],
    ) -> None:
        try:
            async with self._slots.setdefault(agent.reg.owner_uid, asyncio.Semaphore(AT_ONCE)):
                answer = await self._helpers.call(owner_of(agent), call, args, DEADLINE)
        except OwnerCallFailed as error:
            subject.late = subject.late + 1 if error.reason == "late" else 0
            if subject.late > 1:  # a single timeout may be due to another path or to the machine
                subject.not_before = self._clock.mono() + PATIENCE
            failed(error)
        else:
            subject.late = 0
            try:
                answered(answer)
            except (
                AttributeError,
                KeyError,
                TypeError,
                ValueError,
            ) as error:  # the helper is a process of that user and may answer anything
                failed(OwnerCallFailed("garbled", f"no answer to {call}: {error!r}"))

    def forget(self, key: Hashable) -> None:
        """No caller needs that subject any more."""
        subject = self._subjects.pop(key, None)
        if subject is not None and subject.task is not None:
            subject.task.cancel()

    async def close(self) -> None:
        """Cancel all open queries."""
        tasks = [subject.task for subject in self._subjects.values() if subject.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
