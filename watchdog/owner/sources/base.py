"""The contract of sources: another program's own registry of its agents, read and, one entry at a time, put in order.

A source
1. finds the agents in the registry now (`discover`), as values; it decides nothing and signals no process;
2. opens read-only (SQLite: `mode=ro`, a busy timeout of 1 s) and again at each look: the file may have been replaced.
   It follows no link in the last part of a path, reads regular files alone, and only so much of them;
3. passes over what it does not understand, and raises only when the whole cannot be read (OSError, OwnerCallFailed);
   tells at most `MOST_TOLD`, the living first, so that more of them than are watched are reported;
4. writes one entry's end (`forget`) in the format and by the locking of the program itself: in one transaction, or a
   file beside it and a rename that keeps mode and owner. All outside of that entry stays byte for byte as it is. A
   layout that is not understood is left alone;
5. tells what of it cannot be read now (a file half written, damaged, closed) as an entry that is `unread`, and never
   leaves it out: the agents in it are neither gone nor silent;
6. compares before it writes: an entry whose token is another is another run's, and stays as it is.

An entry is the word of the uid that owns the file. Which process it means is asked of the kernel, by the daemon.

Tests: tests/owner/sources/test_agent_relay.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from watchdog.core.source_entries import MOST_TOLD, Became, Entry, EntryEnd, Kind


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What `forget` did, and in which words it is reported."""

    became: Became
    message: str


Discover = Callable[[str], list[Entry]]
Forget = Callable[[str, str, str, EntryEnd], Forgotten]


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of registry. Both functions may raise OSError and OwnerCallFailed; both may be called again.

    `discover(path)`; `forget(path, key, token, end)`, None where an entry is never ours to put in order. Both work in a
    process that sees nothing but what `kind` names.
    """

    kind: Kind
    discover: Discover
    forget: Forget | None = None


def living_first(entries: list[Entry]) -> list[Entry]:
    """As many as one look may report: first what cannot be read, last the ended ones that there is room for."""
    return sorted(entries, key=lambda one: (not one.unread, not one.living))[:MOST_TOLD]
