"""The contract of sources: another program's registry of its agents is read, and single entries are closed.

A source
1. lists the agents in the registry (`discover`), as values; it decides nothing and signals no process;
2. opens read-only (SQLite: `mode=ro`, a busy timeout of 1 s) and afresh each time, as the file may have been replaced.
   It follows no link in the last part of a path, and reads only regular files, up to a limit;
3. skips what it does not understand, and raises only if nothing can be read (OSError, OwnerCallFailed); it returns at
   most `MOST_TOLD`, the living first, one more than are watched, so that the excess is reported;
4. records one entry's end (`forget`) in the format and with the locking of the program itself: in one transaction, or
   by a temporary file and a rename that keeps mode and owner. Everything outside that entry stays byte for byte the
   same. An unknown layout is left alone;
5. reports what cannot be read now (a half-written, damaged or inaccessible file) as an `unread` entry, and never omits
   it: the agents in it are neither gone nor silent;
6. compares before it writes: an entry with another token means another run, and stays as it is.

An entry is a statement of the uid that owns the file. The daemon asks the kernel which process it means.

Tests: tests/owner/sources/test_agent_relay.py.
"""

from collections.abc import Callable
from dataclasses import dataclass

from watchdog.core.source_entries import MOST_TOLD, Became, Entry, EntryEnd, Kind


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What `forget` did, and the message that reports it."""

    became: Became
    message: str


Discover = Callable[[str], list[Entry]]
Forget = Callable[[str, str, str, EntryEnd], Forgotten]


@dataclass(frozen=True, slots=True)
class Source:
    """One kind of registry. Both functions may raise OSError and OwnerCallFailed, and are repeatable.

    `discover(path)`; `forget(path, key, token, end)`, None if entries are never ours to close. Both run in a process
    that sees only what `kind` names.
    """

    kind: Kind
    discover: Discover
    forget: Forget | None = None


def living_first(entries: list[Entry]) -> list[Entry]:
    """The entries up to the limit: unreadable ones first, then living ones, then ended ones."""
    return sorted(entries, key=lambda one: (not one.unread, not one.living))[:MOST_TOLD]
