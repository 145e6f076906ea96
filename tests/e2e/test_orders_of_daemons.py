"""Every order in which a host's and a user's daemon are started, stopped, crash, are upgraded and are removed.

A generated table: which daemon registers two agents, then what happens to either daemon. One agent beats all the time,
one has just fallen silent. In each case the beating one lives, gets no signal, and belongs to one daemon in the end;
the other is killed by one of them, unless no daemon is left.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.household import Household, Seat, household
from tests.world import alive, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a host's daemon and another uid's")
UP = ("stop", "crash", "upgrade", "remove")  # what may happen to a running daemon; to one that does not run: "start"
# In the default run; the others are marked `faults`.
SHARE = {"host: start user, crash host, start host"}


@dataclass(frozen=True)
class Row:
    """The daemon that registers the agents, and the following acts."""

    taker: str
    acts: tuple[tuple[str, str], ...]  # (act, daemon)

    def __str__(self) -> str:
        return f"{self.taker}: " + ", ".join(f"{what} {whom}" for what, whom in self.acts)


def rows() -> Iterator[Row]:
    """All possible orders of two acts; and those in which the first daemon returns after the other took over."""
    for taker, other in (("host", "user"), ("user", "host")):
        for first, after_one in _acts({taker: True, other: False}):
            for second, after_two in _acts(after_one):
                yield Row(taker, (first, second))
                if not after_two[taker] and after_two[other]:
                    yield Row(taker, (first, second, ("start", taker)))


def _acts(up: dict[str, bool]) -> Iterator[tuple[tuple[str, str], dict[str, bool]]]:
    for name, runs in up.items():
        for act in UP if runs else ("start",):
            yield (act, name), {**up, name: act in ("start", "upgrade")}


def _do(home: Household, act: str, seat: Seat) -> None:
    world = seat.world
    if act == "crash":
        world.crash()
    elif act != "start":
        assert world.stop() == 0
    if act in ("upgrade", "remove"):  # systemd removes the runtime directory of a unit that is stopped
        shutil.rmtree(f"{home.root}{seat.runtime}")
    if act in ("start", "upgrade"):
        seat.start()


def _marked(row: Row) -> object:
    return pytest.param(row, id=str(row), marks=() if str(row) in SHARE else (pytest.mark.faults,))


def test_the_table_is_whole() -> None:
    """The rows named in the default run exist."""
    names = [str(row) for row in rows()]
    assert len(names) == len(set(names))
    assert set(names) >= SHARE


@pytest.mark.parametrize("row", [_marked(row) for row in rows()])
def test_an_agent_has_one_daemon_in_every_order(row: Row) -> None:
    """See the top of this file."""
    with household() as home:
        seats = {"host": home.host, "user": home.user}
        taker = seats[row.taker]
        taker.start()
        script = home.user.world.script
        home.user.start_agent("well", *script("agent.py", "witness", "beat=0.4"), options=("--stall-after", "4s"))
        home.user.start_agent("mute", *script("agent.py", "beat=0.3/hush"), options=("--stall-after", "4s"))
        for name in ("well", "mute"):
            taker.world.wait_event("agent.first_beat", name=name)
        # `run` lets an agent begin, and beat, even if the daemon does not answer its registration of the pid at once.
        wait_for(lambda: all(one["pid"] for one in taker.agents().values()), "its pid is told")
        pids = {name: int(one["pid"]) for name, one in taker.agents().items()}
        (home.user.world.dir / "hush").touch()

        up = {row.taker}
        for act, whom in row.acts:
            _do(home, act, seats[whom])
            up = up | {whom} if act in ("start", "upgrade") else up - {whom}

        living = [seats[name] for name in sorted(up)]
        if living:
            wait_for(lambda: not alive(pids["mute"]), "the silent one is ended", 90)
            wait_for(lambda: [name for seat in living for name in seat.held()] == ["well"], "it has one daemon", 90)
            holder = next(seat for seat in living if seat.held())
            before = holder.agents()["well"]["beats"]
            wait_for(lambda: holder.agents()["well"]["beats"] > before + 2, "it is heard")
            holder.world.wait_sweeps(12)  # longer than the allowed silence
        assert alive(pids["well"])
        assert home.user.world.witnessed() == []
        assert home.signalled() <= {pids["mute"]}
        ended = sum(seat.world.count("kill.finished", name="mute") for seat in seats.values())
        assert ended == 1 if living else ended <= 1
