"""Owners whose helpers give no answer are reported differently from repositories that do not exist."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from watchdog.control.context import ControlContext
from watchdog.control.routes.restore import LOOK_SECONDS, OTHERS_SECONDS, Unheard, _of_owner
from watchdog.errors import OwnerCallFailed


@pytest.mark.parametrize(("named", "limit"), [(True, LOOK_SECONDS), (False, OTHERS_SECONDS)])
def test_an_owner_that_gave_no_answer_is_named_with_the_time_it_had(named: bool, limit: float) -> None:
    waited: list[float] = []

    async def read(*_: object) -> list[str]:
        return ["/a/repository/.git"]

    async def call_in_fresh_helper(uid: int, call: str, args: object, seconds: float) -> Any:
        waited.append(seconds)
        raise OwnerCallFailed("late", "no answer")

    registry = SimpleNamespace(read=read, leftovers=SimpleNamespace(trashes=None))
    owners = SimpleNamespace(call_in_fresh_helper=call_in_fresh_helper)
    context = cast("ControlContext", SimpleNamespace(registry=registry, host="here", helpers=owners))
    found, problems = asyncio.run(_of_owner(context, 1000, None, named=named))
    assert (found, waited) == ([], [limit])
    assert isinstance(problems[0], Unheard)
    assert problems[0].startswith(f"uid 1000: not searched: its helper gave no answer within {limit:g} s")
    assert ("--repository" in problems[0]) is not named
