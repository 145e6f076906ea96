"""Many agents that fell silent together: the cause may be the daemon, or something that all of them need. Pure.

A user's silent agents delay kills of that user's agents; kills of all users' agents are delayed only by a number of
silent agents that no single user can produce.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from watchdog.core.agent import Verdict
from watchdog.core.decision import DOUBT_LIMIT, Look
from watchdog.core.witnesses import Witness, comes_back, cut_off, heard

ROOT = 0  # the silence of root's agents is not an attack on other users
# An agent that is idle, waits for a human or is on a lease is no evidence that the others could have beaten.
_TELLS_NOTHING = frozenset({Verdict.GONE, Verdict.WAITING, Verdict.UNKNOWN})


@dataclass(slots=True)
class _Tally:
    """How many of one user's agents that promised beats are silent."""

    silent: int = 0
    among: int = 0
    missed: int = 0  # of the silent: late, or beyond their own interval; the others may still beat

    @property
    def part(self) -> float:
        return self.silent / self.among if self.among else 0.0


def mass_stalls(
    looks: Iterable[Look],
    count: int,
    fraction: float,
    others: Mapping[int, int] | None = None,
    killed: Iterable[int] = (),
    limit: timedelta = DOUBT_LIMIT,
) -> dict[int | None, str]:
    """The reasons to suspect a common cause, by the user whose agents they protect; key None: all users' agents.

    A user's agents are protected when at least `count`, and at least `fraction`, of those that promised beats are
    silent. A late first beat counts as silence; so does an agent killed for silence so recently that it may belong to
    the same stall (`killed`, by user). An agent whose kill has been due for `limit` fell silent at another time: a
    ladder without a kill, or a hold, keeps such agents for days. `others`: by user, agents that promised beats and are
    not silent.

    All users' agents are protected when that many are silent even with any one user except root left out, of at least
    two users: otherwise the agents of one user could delay the kills of all. Each user has one vote in the fraction:
    otherwise one user's many healthy agents could outvote the silence of all others.
    """
    tallies: dict[int, _Tally] = defaultdict(_Tally)
    users = set(others or ())
    for look in looks:
        users.add(look.owner)
        if not look.promised or look.judgement.verdict in _TELLS_NOTHING:
            continue
        tallies[look.owner].among += 1
        tallies[look.owner].silent += _late(look) and look.doomed_for < limit
    for owner in killed:
        tallies[owner].among += 1
        tallies[owner].silent += 1
    for owner, number in (others or {}).items():
        tallies[owner].among += number
    found: dict[int | None, str] = {}
    for owner, tally in tallies.items():
        if tally.silent >= count and tally.silent >= fraction * tally.among:
            whose = "" if users | {owner} == {owner} else f" of uid {owner}"
            found[owner if whose else None] = _mass(tally.silent, tally.among, whose)
    if None not in found and _all_suspect(tallies, count, fraction):
        number, among = sum(one.silent for one in tallies.values()), sum(one.among for one in tallies.values())
        found[None] = _mass(number, among, f" of {len(tallies)} users")
    return found


def _late(look: Look) -> bool:
    return look.judgement.overdue or look.judgement.verdict in (Verdict.LATE, Verdict.STALLED)


def _all_suspect(tallies: Mapping[int, _Tally], count: int, fraction: float) -> bool:
    """Whether the silence is widespread even with any one user left out."""
    silent = {owner: tally for owner, tally in tallies.items() if tally.silent}
    if len(silent) < 2:
        return False
    agents, voices = sum(one.silent for one in silent.values()), sum(one.part for one in silent.values())
    return all(
        agents - out.silent >= count and voices - out.part >= fraction * (len(tallies) - 1)
        for owner, out in silent.items()
        if owner != ROOT
    )


def _mass(silent: int, among: int, whose: str) -> str:
    return (
        f"mass stall: {silent} of {among} agents{whose} fell silent together; the cause may be this host or the daemon"
    )


def one_by_one(
    looks: Iterable[Look],
    settled: Iterable[Witness],
    count: int,
    fraction: float,
    killed: Iterable[tuple[int, timedelta]] = (),
    limit: timedelta = DOUBT_LIMIT,
    users: Iterable[int] = (),
) -> dict[int | None, tuple[str, bool]]:
    """Mass stalls of agents that beat at different phases, so that one is late long before the others; keys as above.

    For each user, the agent that fell silent last and is due to be killed is compared with its witnesses: all that
    were not heard since it can have been cut off count as silent with it, and so do those `killed` for silence within
    its limit (user, and how long ago). It waits until they are heard, or are late themselves. That only delays kills
    of its own user's agents. `users`: those that have agents. Each value is the reason, and whether it is evident: so
    many have missed their own interval, rather than merely had no time to beat.
    """
    looks, killed = list(looks), list(killed)
    suspects: dict[int, Look] = {}
    for look in looks:
        if look.ending and look.witness is not None and look.doomed_for < limit:
            other = suspects.get(look.owner)
            if other is None or other.witness is None or look.witness.quiet < other.witness.quiet:
                suspects[look.owner] = look
    settled = list(settled) if suspects else []
    everybody = {*users, *(look.owner for look in looks)}
    found: dict[int | None, tuple[str, bool]] = {}
    for owner, suspect in suspects.items():
        tallies = _witnessed(suspect, looks, settled, killed, limit)
        own = tallies[owner]
        alone = everybody == {owner}
        if own.silent >= count and own.silent >= fraction * own.among:
            words = _unheard(own.silent, own.among, "" if alone else f" of uid {owner}")
            evident = own.missed >= count and own.missed >= fraction * own.among
            found[None if alone else owner] = words, evident
        elif _all_suspect(tallies, count, fraction):
            number, among = sum(one.silent for one in tallies.values()), sum(one.among for one in tallies.values())
            found[owner] = _unheard(number, among, f" of {len(tallies)} users"), True
    return found


def lingering(
    looks: Iterable[Look], over: Mapping[int | None, timedelta], limit: timedelta = DOUBT_LIMIT
) -> set[int | None]:
    """The users for which a mass stall that ended as long ago as `over` says still protects an agent.

    When most agents are heard again, the last ones have not had the time: each is given one interval.
    """
    found: set[int | None] = set()
    for look in looks:
        if look.ending and look.witness is not None and look.doomed_for < limit:
            users = (user for user in (look.owner, None) if user in over)
            found |= {user for user in users if over[user] < comes_back(look.witness)}
    return found


def _witnessed(
    suspect: Look, looks: list[Look], settled: list[Witness], killed: list[tuple[int, timedelta]], limit: timedelta
) -> dict[int, _Tally]:
    """By user, how many agents are silent with the suspect, among those whose silence would be evidence."""
    tallies: dict[int, _Tally] = defaultdict(_Tally)
    silent = suspect.witness
    if silent is None:
        return tallies
    fell = Counter(owner for owner, ago in killed if ago <= silent.after)
    since = cut_off(silent, again=suspect.owner in fell)

    def count(owner: int, *, is_silent: bool, missed: bool, number: int = 1) -> None:
        tallies[owner].among += number
        tallies[owner].silent += number * is_silent
        tallies[owner].missed += number * (is_silent and missed)

    def ask(other: Witness) -> None:
        was_heard = heard(other, silent, since)
        if was_heard is not None:
            count(other.owner, is_silent=not was_heard, missed=other.quiet > comes_back(other))

    for look in looks:
        if _late(look):
            if look.promised:
                count(look.owner, is_silent=look.doomed_for < limit, missed=True)
        elif look.witness is not None and look.judgement.verdict not in _TELLS_NOTHING:
            ask(look.witness)
    for witness in settled:
        ask(witness)
    for owner, number in fell.items():
        count(owner, is_silent=True, missed=True, number=number)
    return tallies


def _unheard(silent: int, among: int, whose: str) -> str:
    return (
        f"mass stall: {silent} of {among} agents{whose} are late, or were not heard since the last of them"
        " fell silent; the cause may be this host or the daemon"
    )
