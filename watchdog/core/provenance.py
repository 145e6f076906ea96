"""Whether the process that has a pid now is the one that a foreign registry's row means. Pure.

A row gives a pid, and perhaps when that was written. The pid may have been reused since (the process began later), or
may never have been a pid of this machine: a row from a container, or a forged one, happens to name some process that
has that number here. Such a process usually is older than its row.
"""

from dataclasses import dataclass
from enum import StrEnum

SLACK = 1.0  # seconds: registries with whole seconds round either way
OLDER = 10.0  # seconds that an agent may have run before its row says that it started


class Named(StrEnum):
    """Which process a row means by its pid."""

    IT = "it"
    PERHAPS = "perhaps"  # no evidence
    ANOTHER = "another"  # an earlier process with that pid
    STRANGER = "stranger"  # this process is older than the row, which means another machine's or none


@dataclass(frozen=True, slots=True)
class ToldTime:
    """Times in a row, in epoch seconds. `since`: the pid was written by then; `started`: when the process began.

    The `_local` fields are the same texts read in the process's zone, if they name no zone. The `_ahead` fields hold
    times that are in the future as read, and mean nothing until the zone's offset is known.
    """

    since: float | None = None
    since_local: float | None = None
    started: float | None = None
    started_local: float | None = None
    since_ahead: float | None = None
    started_ahead: float | None = None

    def moved(self, zone: float | None) -> tuple[float | None, float | None]:
        """`since` and `started` with the zone offset that its heartbeats show; None where unknown."""
        if zone is None:
            return None, None
        since = self.since_ahead if self.since is None else self.since
        started = self.started_ahead if self.started is None else self.started
        return (None if since is None else since + zone), (None if started is None else started + zone)

    def latest(self, zone: float | None) -> float | None:
        """The latest time at which its pid can have been written; None: unknown."""
        if zone is not None:
            return self.moved(zone)[0]
        return None if self.since is None else max(self.since, self.since_local or self.since)

    def by_start(self, began: float) -> float | None:
        """The zone offset, in seconds, if the process that began at `began` is the one: 0, or that of its own zone.

        None: unknown.
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
    """Which process the row means, and, if not this one, why.

    `began`: start of the process, in epoch seconds. `came`: the row appeared after this time; None: it was there when
    we first read the registry. `first`: when we first saw the row. `leads`: the process leads a session of its own.
    `zone`: the offset of the row's times in seconds, as its heartbeats show; None: not known.
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
    """The offset of a heartbeat that was written just now: zones differ by quarters of an hour."""
    return 900.0 * round((now - heartbeat) / 900.0)
