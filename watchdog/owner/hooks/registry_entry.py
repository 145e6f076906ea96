"""Closes the agent's entries in foreign registries as their own programs would, by `owner.sources`.

Runs last: a program that finds the entry closed may assume that everything is cleaned up. The agent is proved dead.
"""

import os
import signal
from dataclasses import replace

from watchdog.core import hooks
from watchdog.core.hooks import HookContext, HookResult
from watchdog.core.source_entries import Became, EntryEnd
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import SOURCES


def registry_entry(context: HookContext, settings: hooks.CleanupSettings) -> HookResult:
    """Close each entry by compare-and-set; one that now means another run stays. Raises OSError as the sources do."""
    if not context.registry_entry:
        return hooks.nothing("it is in no other program's registry")
    told, failed, became = [], [], set()
    for place in context.registry_entry:
        where = f"{place['kind']} {place['key']}"
        source = SOURCES.get(place["kind"])
        if source is None or source.forget is None:
            told.append(f"{where}: left to its own program")
            continue
        try:
            end = replace(end_of(context), temp=tuple(place.get("temp", ())))
            done = source.forget(os.path.expanduser(place["path"]), place["key"], place["token"], end)
        except OwnerCallFailed as error:
            failed.append(f"{where}: {error}")
        else:
            became.add(done.became)
            told.append(f"{where}: {done.message}")
    words = "; ".join([*failed, *told])
    if failed:
        return hooks.failed(words)
    if Became.CHANGED in became:
        return hooks.kept(words)
    return hooks.done(words) if Became.DONE in became else hooks.nothing(words)


def end_of(context: HookContext) -> EntryEnd:
    """The agent's end in the form that sources record."""
    number = context.exit_signal
    return EntryEnd(
        status=context.outcome.value,
        reason=context.why or context.reason,
        by=context.by,
        ended_at=context.ended_at,
        exit_code=context.exit_code,
        signal=None if number is None else _signal_name(number),
        task_status=context.task_status,
        resumable=context.resumable,
        conversation=context.conversation,
        with_messages=context.with_messages,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"  # a real-time one
