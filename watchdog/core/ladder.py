"""next_step(): the next move of one kill. Pure; the worker looks, asks, commits the intent, acts, and asks again.

TERM (and CONT, so that a stopped process can act on it) -> grace -> KILL -> look again until a look finds nothing new.
One monotonic deadline serves the whole tree.
"""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from watchdog.core.model import Polite


class Move(StrEnum):
    """What the worker does next."""

    TERM_MAIN = "term_main"
    TERM_REST = "term_rest"
    TERM_ALL = "term_all"
    KILL = "kill"
    WAIT = "wait"  # until an exit, or `Next.until`
    LOOK = "look"  # scan again: the last look was not the one that found nothing new
    VERIFIED = "verified"
    GIVE_UP = "give_up"  # unkillable


@dataclass(frozen=True, slots=True)
class Kill:
    """How far one kill has come. Instants are seconds of the daemon's monotonic clock.

    `main_alive` and `rest_alive` come from the last look and from pidfds since. `stable` says that the last look
    found no process that the one before did not know.
    """

    started: float
    grace: timedelta
    verify: timedelta
    polite: Polite = Polite.MAIN_FIRST
    force: bool = False
    main_alive: bool = True
    rest_alive: int = 0
    stable: bool = False
    main_termed: bool = False
    rest_termed: bool = False
    killing_since: float | None = None
    killed_until: float | None = None  # no further KILL before this instant: the last one is still being delivered


@dataclass(frozen=True, slots=True)
class Next:
    """A move, and for WAIT the instant at which to ask again."""

    move: Move
    until: float = 0.0


def next_step(kill: Kill, now: float) -> Next:
    """Say the next move.

    1. Nobody alive: a look that finds nothing new verifies it.
    2. In the end phase: KILL again whoever lives, until `verify` is over.
    3. Grace over, or force: the end phase begins.
    4. Else the polite phase: the main process first and the rest at half of the grace or when it has gone, or all.
    """
    alive = kill.main_alive or kill.rest_alive > 0
    if not alive:
        return Next(Move.VERIFIED if kill.stable else Move.LOOK)
    if kill.killing_since is not None:
        if now >= kill.killing_since + kill.verify.total_seconds():
            return Next(Move.GIVE_UP)
        if kill.killed_until is not None and now < kill.killed_until:
            return Next(Move.WAIT, kill.killed_until)
        return Next(Move.KILL)
    deadline = kill.started + kill.grace.total_seconds()
    if kill.force or now >= deadline:
        return Next(Move.KILL)
    if kill.polite is Polite.ALL:
        if not (kill.main_termed and kill.rest_termed):
            return Next(Move.TERM_ALL)
        return Next(Move.WAIT, deadline)
    if kill.main_alive and not kill.main_termed:
        return Next(Move.TERM_MAIN)
    half = kill.started + kill.grace.total_seconds() / 2
    if kill.rest_alive and not kill.rest_termed:
        if not kill.main_alive or now >= half:
            return Next(Move.TERM_REST)
        return Next(Move.WAIT, half)
    return Next(Move.WAIT, deadline)
