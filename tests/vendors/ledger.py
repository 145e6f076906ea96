"""What came of a day: each situation with its right verdict, known beforehand, and what the daemons did in it.

Pure: nothing here looks at a process. A situation that the stage could not play, or that an operator cut short, is no
verdict, but an order to end somebody in it still is one.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from tests.tables import aligned

# What the daemon orders by itself for a verdict. The other reasons are an operator's word, or that it is gone already.
OF_ITS_OWN = frozenset({"stalled", "expired", "lingering", "failed_to_start"})
SLACK = 2.0  # seconds: a hook starts before the model is asked, and the two clocks are read by different programs


def moment(event: Mapping[str, Any]) -> float:
    """When a line of the log was written, Unix time."""
    return datetime.fromisoformat(event["ts"]).timestamp()


def own_orders(events: Iterable[Mapping[str, Any]], since: float, until: float) -> list[Mapping[str, Any]]:
    """Orders of the daemons' own in that time, of one agent's events; what was called off before a signal is none."""
    events = list(events)
    withdrawn = {event.get("request_id") for event in events if event["event"] == "kill.withdrawn"}
    return [
        event
        for event in events
        if event["event"] == "kill.requested"
        and event["reason"] in OF_ITS_OWN
        and event.get("request_id") not in withdrawn
        and since <= moment(event) <= until
    ]


@dataclass(frozen=True)
class Verdict:
    """One situation of one agent, and what came of it."""

    agent: str
    program: str
    situation: str
    must_end: bool
    ended: bool
    why: str = ""
    seconds: float = 0.0  # from the beginning of a hang to the order

    @property
    def right(self) -> bool:
        return self.must_end == self.ended


@dataclass
class Ledger:
    """All that came."""

    verdicts: list[Verdict] = field(default_factory=list)
    cut: Counter[str] = field(default_factory=Counter)  # situations that an operator ended
    broken: list[str] = field(default_factory=list)  # that the stage could not play, with what it waited for
    acts: Counter[str] = field(default_factory=Counter)  # of operators
    notes: list[str] = field(default_factory=list)  # what is to be looked at, and no verdict on an agent
    undecided: list[str] = field(default_factory=list)  # sessions and operators that did not come to their end
    agents: int = 0

    @property
    def wrong(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if not verdict.right]

    def counts(self, verdicts: Sequence[Verdict]) -> tuple[int, int, int, int]:
        """Lived rightly, killed wrongly, ended rightly, missed."""
        found = Counter((verdict.must_end, verdict.ended) for verdict in verdicts)
        return found[False, False], found[False, True], found[True, True], found[True, False]

    def matrix(self) -> list[str]:
        """By program and situation, and in all."""
        head = (
            "program",
            "situation",
            "lived rightly",
            "wrong kill",
            "ended rightly",
            "missed",
            "seconds to the order",
        )
        keys = sorted({(one.program, one.must_end, one.situation) for one in self.verdicts})
        rows = [
            (key[0], key[2], *self._cells([v for v in self.verdicts if (v.program, v.must_end, v.situation) == key]))
            for key in keys
        ]
        return aligned([head, *rows, ("all", "", *self._cells(self.verdicts))])

    def _cells(self, verdicts: Sequence[Verdict]) -> tuple[str, ...]:
        took = sorted(verdict.seconds for verdict in verdicts if verdict.must_end and verdict.ended and verdict.seconds)
        spread = f"{took[0]:.0f} / {median(took):.0f} / {took[-1]:.0f}" if took else ""
        return *map(str, self.counts(verdicts)), spread

    def summary(self) -> str:
        """In one sentence."""
        lived, killed, ended, missed = self.counts(self.verdicts)
        return (
            f"{len(self.verdicts)} verdicts on {self.agents} agents: {lived} lived rightly, {ended} were ended "
            f"rightly, {killed} wrong kills, {missed} missed stalls; {sum(self.cut.values())} situations cut short by "
            f"operators, {len(self.broken)} that the stage could not play"
        )
