"""Other programs' registries of agents. A new kind is a line in `core.source_entries.KINDS` and a module of its name
here with `discover`, and with `forget` if its entries are ours to close (`base` has the contract).

None of them decides about a process or signals one: the daemon asks the kernel which process an entry means.
"""

import os
from dataclasses import replace
from importlib import import_module
from typing import Any

from watchdog.core.source_entries import KINDS, Entry, end_of, entry_json
from watchdog.errors import OwnerCallFailed
from watchdog.owner import os_errors, parsing
from watchdog.owner.sources.base import Source

SOURCES = {
    kind: Source(where, module.discover, getattr(module, "forget", None))
    for kind, where in KINDS.items()
    for module in [import_module(f"{__name__}.{kind}")]
}


def source_discover(kind: str, path: str) -> list[dict[str, object]]:
    """The agents in that registry, and those whose beats cannot be written. Raises OwnerCallFailed."""
    source, place = _source(kind), os.path.expanduser(path)

    def look() -> list[dict[str, object]]:
        found = source.discover(place)
        if any(entry.promise is not None for entry in found):
            found = _heard(found, os.path.join(place, source.kind.written) if source.kind.written else place)
        return [entry_json(entry) for entry in found]

    found: Any = parsing.parsed(look, [parsing.place_of(place)], map(os.path.expanduser, source.kind.reads))
    return list(found)


def _heard(found: list[Entry], written: str) -> list[Entry]:
    """Mark the agents that cannot beat because their registry cannot be written."""
    try:
        why = os_errors.unwritable(written, rights=True)
        if not why and not os.path.isdir(written):  # a journal is made next to it
            why = os_errors.unwritable(os.path.dirname(written), rights=True)
    except OSError as error:
        why = str(error)
    if not why:
        return found
    return [one if one.unheard or one.promise is None else replace(one, unheard=why) for one in found]


def source_forget(kind: str, path: str, key: str, token: str, end: dict[str, object]) -> dict[str, object]:
    """A helper call: record the end of one entry. Raises OwnerCallFailed."""
    source, place = _source(kind), os.path.expanduser(path)
    forget = source.forget
    if forget is None:
        raise OwnerCallFailed("kept", f"an entry of {kind} is left to that program")
    how = end_of(end)

    def write() -> dict[str, object]:
        done = forget(place, key, token, how)
        return {"became": done.became, "message": done.message}

    removed = [*source.kind.removes, *(os.path.dirname(one) for one in how.temp)]
    done: Any = parsing.parsed(write, [parsing.place_of(place)], map(os.path.expanduser, source.kind.reads), removed)
    return dict(done)


def _source(kind: str) -> Source:
    if kind not in SOURCES:
        raise OwnerCallFailed("unknown_kind", f"there is no source {kind!r}; there are {', '.join(SOURCES)}")
    return SOURCES[kind]
