"""Whether the process that has a pid now is the one that a row of a foreign registry means. Pure.

A row gives a pid, and perhaps when that was written down. The pid may have been reused since (a process that began
later), or may never have been of this machine's pids: a row that came out of a container names whoever has that number
here, and so does one that was made up. Those have been there before their row.
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
class ToldTime:
    """When, by a row, in epoch seconds. `since`: its pid stood there at the latest; `started`: it began, by its word.

    The `_local` ones are the same words read in another zone, where they do not say in which they were written. The
    `_ahead` ones are those that lie ahead as they are read, and mean nothing until it is known by how much.
    """

    since: float | None = None
    since_local: float | None = None
    started: float | None = None
    started_local: float | None = None
    since_ahead: float | None = None
    started_ahead: float | None = None

    def moved(self, zone: float | None) -> tuple[float | None, float | None]:
        """Since when and when it began, by the zone that its heartbeats show; None where nothing tells."""
        if zone is None:
            return None, None
        since = self.since_ahead if self.since is None else self.since
        started = self.started_ahead if self.started is None else self.started
        return (None if since is None else since + zone), (None if started is None else started + zone)

    def latest(self, zone: float | None) -> float | None:
        """The last moment at which its pid can have been written there; None: nothing tells."""
        if zone is not None:
            return self.moved(zone)[0]
        return None if self.since is None else max(self.since, self.since_local or self.since)

    def by_start(self, began: float) -> float | None:
        """By how much its words differ, where a process that began then is the one: not at all, or as in its own zone.

        None: nothing tells.
        """
        if self.since is not None and began <= self.since + SLACK:
            return 0.0
        words = self.since_ahead if self.since is None else self.since
        if words is not None and self.since_local is not None and began <= self.since_local + SLACK:
            return zone_of(words, self.since_local)
        return None


def named(
    told: ToldTime, began: float, *, came: float | None, first: float, leads: bool, zone: float | None
) -> tuple[Named, str]:
    """Whom it means, and why not that process.

    `began`: when the process did, in epoch seconds. `came`: the row came after that, as we saw; None: it was there when
    we began to look. `first`: when we saw it first. `leads`: the process leads a session of its own. `zone`: seconds by
    which its words differ from what they mean, as its heartbeats show; None: not known.
    """
    since, started = told.moved(zone)
    readings = [when for when in (told.started, told.started_local) if when is not None]
    if started is not None:
        readings = [started]
    if readings and began < min(readings) - OLDER:
        return Named.STRANGER, f"is {min(readings) - began:.0f} s older than its row"
    before = first if came is None and told.since is None else came
    if not readings and before is not None and leads and began < before - OLDER:
        return Named.STRANGER, f"was there {before - began:.0f} s before its row came, in a session of its own"
    if any(when is not None and began <= when + SLACK for when in (told.since, since)):
        return Named.IT, ""
    if zone is None and told.since_local is not None and began <= told.since_local + SLACK:
        if came is not None:
            return Named.IT, ""
        return Named.PERHAPS, "its registry does not say in which zone it writes times"
    if told.since is None and since is None:
        return Named.PERHAPS, "its registry says neither when nor which process"
    return Named.ANOTHER, "began after the entry was written"


def zone_of(heartbeat: float, now: float) -> float:
    """By how much a heartbeat that was written just now differs from now: a zone has quarters of an hour."""
    return 900.0 * round((now - heartbeat) / 900.0)
