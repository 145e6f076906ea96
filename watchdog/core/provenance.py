"""Whether the process that has a pid now is the one that a row of a foreign registry means. Pure.

A row tells a number, and perhaps when that was written down. The number may have passed on since (a process that began
later), or may never have been of this machine's pids: a row that came out of a container names whoever has that number
here, and so does one that somebody made up. Those have been there before their row.
"""

from dataclasses import dataclass
from enum import StrEnum

SLACK = 1.0  # seconds: registries that keep whole ones round either way
OLDER = 10.0  # seconds that an agent may have run before its row says that it started


class Named(StrEnum):
    """Whom a row means by its pid."""

    IT = "it"
    PERHAPS = "perhaps"  # nothing tells
    ANOTHER = "another"  # one that had the number before
    STRANGER = "stranger"  # one that was there before the row


@dataclass(frozen=True, slots=True)
class Told:
    """When, by a row, in epoch seconds. `since`: its pid stood there at the latest; `started`: it began, by its word.

    The `_local` ones are the same words read in another zone, where they do not say in which they were written.
    """

    since: float | None = None
    since_local: float | None = None
    started: float | None = None
    started_local: float | None = None


def named(
    told: Told, began: float, *, came: float | None, first: float, leads: bool, zone: float | None
) -> tuple[Named, str]:
    """Whom it means, and why not that process.

    `began`: when the process did, in epoch seconds. `came`: the row came after that, as we saw; None: it was there when
    we began to look. `first`: when we saw it first. `leads`: the process leads a session of its own. `zone`: seconds by
    which its words differ from what they mean, as its heartbeats show; None: not known.
    """
    readings = [when for when in (told.started, told.started_local) if when is not None]
    if zone is not None and told.started is not None:
        readings = [told.started + zone]
    if readings and began < min(readings) - OLDER:
        return Named.STRANGER, f"is {min(readings) - began:.0f} s older than its row"
    before = first if came is None and told.since is None else came
    if not readings and before is not None and leads and began < before - OLDER:
        return Named.STRANGER, f"was there {before - began:.0f} s before its row came, in a session of its own"
    if told.since is None:
        return Named.PERHAPS, "its registry tells neither when nor which process"
    if began <= told.since + SLACK or (zone is not None and began <= told.since + zone + SLACK):
        return Named.IT, ""
    if zone is None and told.since_local is not None and began <= told.since_local + SLACK:
        if came is not None:
            return Named.IT, ""
        return Named.PERHAPS, "its registry does not tell in which zone it writes times"
    return Named.ANOTHER, "began after the entry was written"


def zone_of(heartbeat: float, now: float) -> float:
    """By how much a heartbeat that was written just now differs from now: a zone has quarters of an hour."""
    return 900.0 * round((now - heartbeat) / 900.0)
