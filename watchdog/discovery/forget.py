"""What foreign registries still keep of an agent that has ended: taken out of them when a person asks for it.

At its end its entries were closed by a hook. What is left (a registered name, messages, a row that could be resumed)
belongs to the same key and to nobody's living process: each registry is read anew, and written by compare-and-set.
"""

from watchdog.control.context import ControlContext, Json
from watchdog.core.source_entries import Entry, EntryEnd, end_json, entry_of
from watchdog.errors import OwnerCallFailed
from watchdog.registry.rows import AgentRow

_SECONDS = 30.0


async def remove_entries(
    desk: ControlContext, row: AgentRow, by: str, *, resumable: bool, with_messages: bool
) -> list[str]:
    """What was done in each registry in which the agent stood, in words; a fault is one of them."""
    told = []
    at = desk.now() if row.completed_at is None else row.completed_at
    reason = row.error_message or row.status.value
    end = EntryEnd(
        row.status.value, reason, by, at.timestamp(), row.exit_code, resumable=resumable, with_messages=with_messages
    )
    for place in row.registration.entries:
        uid, where = row.registration.owner_uid, {"kind": place.kind, "path": place.path}
        try:
            there = [entry_of(one) for one in await desk.ask_owner(uid, "source_discover", dict(where), _SECONDS)]
            entry = next((one for one in there if one.key == place.key), None)
            if entry is None or _lives(entry):
                told.append(f"{place.kind}: {'nothing left' if entry is None else 'kept, it means another run by now'}")
                continue
            args: Json = {**where, "key": place.key, "token": entry.token, "end": end_json(end)}
            told.append(f"{place.kind}: {(await desk.ask_owner(uid, 'source_forget', args, _SECONDS))['message']}")
        except (OwnerCallFailed, ValueError) as error:
            told.append(f"{place.kind}: {error}")
    return told


def _lives(entry: Entry) -> bool:
    """Whether somebody may stand behind it: then it is the sweep's affair."""
    return entry.living and entry.pid is not None
