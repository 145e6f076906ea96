"""Removes the remains of an ended agent from foreign registries, at a person's request.

Its entries were closed by a hook when it ended. Remains (a registered name, messages, a resumable row) have the same
key and belong to no living process: each registry is read again, and written by compare-and-set.
"""

from datetime import datetime

from watchdog.core.source_entries import Entry, EntryEnd, end_json, entry_of
from watchdog.errors import OwnerCallFailed
from watchdog.helpers.pool import HelperPool
from watchdog.registry.rows import AgentRow

_SECONDS = 30.0


async def remove_entries(
    helpers: HelperPool, row: AgentRow, by: str, now: datetime, *, resumable: bool, with_messages: bool
) -> list[str]:
    """The result for each registry that listed the agent, as text; errors are included.

    `by`: who asked for it. `now` replaces the time of its end if that is unknown.
    """
    told = []
    at = now if row.completed_at is None else row.completed_at
    reason = row.error_message or row.status.value
    end = EntryEnd(
        row.status.value, reason, by, at.timestamp(), row.exit_code, resumable=resumable, with_messages=with_messages
    )
    for place in row.registration.entries:
        uid, where = row.registration.owner_uid, {"kind": place.kind, "path": place.path}
        try:
            there = [
                entry_of(one) for one in await helpers.call_in_fresh_helper(uid, "source_discover", where, _SECONDS)
            ]
            entry = next((one for one in there if one.key == place.key), None)
            if entry is None or _lives(entry):
                told.append(
                    f"{place.kind}: {'nothing left' if entry is None else 'kept, it belongs to another run now'}"
                )
                continue
            args = {**where, "key": place.key, "token": entry.token, "end": end_json(end)}
            done = await helpers.call_in_fresh_helper(uid, "source_forget", args, _SECONDS)
            told.append(f"{place.kind}: {done['message']}")
        except (OwnerCallFailed, ValueError) as error:
            told.append(f"{place.kind}: {error}")
    return told


def _lives(entry: Entry) -> bool:
    """Whether a process may belong to it: then it is left to the sweep."""
    return entry.living and entry.pid is not None
