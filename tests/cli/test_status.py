"""The one verdict of `status` on the watchdog itself."""

from watchdog.cli import status as health
from watchdog.cli.diagnosis import attention
from watchdog.cli.seen import Seen


def test_the_verdict_of_status_counts_what_another_daemon_watches_apart() -> None:
    """A1: "fine: 1 agent watched" of a daemon that watched none."""
    left = {"name": "a", "holder": "root's daemon (pid 7, /run/s)"}
    first = health._verdict({"agents": 2, "elsewhere": [left]}, [])
    assert first.startswith("fine: 1 agent watched, 1 by another daemon (root's daemon (pid 7, /run/s)), no sweep")


def test_a_hold_that_ends_by_itself_is_told_beside_the_verdict() -> None:
    """`list` showed it above all agents, and `status` was silent; it is no attention, as nothing is to be done."""
    first = health._verdict({"agents": 2, "doubts": ["the clock was set by +3h"]}, [])
    assert first.endswith("; kills for silence are held back: the clock was set by +3h")


def test_an_agent_that_cannot_be_judged_is_attention() -> None:
    """Its heartbeat file was a directory: unknown for six hours, and `status` was fine."""
    (found,) = attention(Seen(uid=0, status={"verdicts": {"healthy": 3, "unknown": 1}}, sweep_age=0))
    assert (found.what, "agent-watchdog list" in found.todo) == ("1 agent cannot be judged", True)
    assert attention(Seen(uid=0, status={"verdicts": {"healthy": 3}}, sweep_age=0)) == []
