"""A day in the life of a host, scaled: twenty sessions of the real programs, two daemons, operators.

Each session plays a seeded row of situations whose right verdict is known beforehand. What the daemons did is read from
their logs alone. The seed says what each session and each operator draws; how they interleave is the machine's.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.household import household
from tests.vendors.host import SESSIONS, Host
from tests.vendors.ledger import Ledger
from tests.vendors.operators import Operator
from tests.vendors.programs import Version
from tests.vendors.sessions import Session


def play(host: Host) -> Ledger:
    """The whole day."""
    threads = [
        threading.Thread(target=Session(host, index).run, name=f"session {index}", daemon=True)
        for index in range(SESSIONS)
    ]
    threads += [
        threading.Thread(target=Operator(host, whose).run, name=f"{whose}'s operator", daemon=True)
        for whose in ("host", "user")
    ]
    listener = threading.Thread(target=host.listen, daemon=True)
    listener.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(1.0, host.over + 900 - time.time()))
    host.ledger.undecided += [thread.name for thread in threads if thread.is_alive()]
    host.look_for_others_dead()
    host.done.set()
    listener.join(30)
    return host.ledger


@contextmanager
def day(versions: Sequence[Version], seed: str, minutes: float) -> Iterator[Host]:
    """A day, torn down afterwards."""
    with household("day") as home:
        host = Host(home, versions, seed, minutes)
        try:
            yield host
        finally:
            host.close()


def story(host: Host) -> list[str]:
    """Lines for the report."""
    ledger = host.ledger
    loads = host.loads or [0.0]
    acts = ", ".join(f"{act} {count}" for act, count in sorted(ledger.acts.items()))
    return [
        f"seed {host.seed}, {host.minutes:g} minutes, {SESSIONS} sessions, load {min(loads):.0f} to {max(loads):.0f}",
        ledger.summary(),
        f"operators: {acts}",
        "",
        *ledger.matrix(),
        "",
        *(f"{'WRONG KILL' if one.ended else 'MISSED'}: {one.agent}, {one.situation}" for one in ledger.wrong),
        *(f"UNDECIDED: {who} did not come to its end" for who in ledger.undecided),
        *(f"note: {words}" for words in ledger.notes),
        *(f"not played: {words}" for words in ledger.broken),
    ]
