"""What is kept of callers, with the bounds that keep it small."""

from types import SimpleNamespace
from typing import Any

import pytest

from tests.clocks import Later
from watchdog.control import callers as kept
from watchdog.control.callers import Callers, Talk
from watchdog.core.peer import Peer
from watchdog.errors import Limited
from watchdog.telemetry.metrics import Metrics


def made(**admission: object) -> tuple[Callers, list[str], Later]:
    """Callers with that admission; the routes of the refusals that were logged; the clock."""
    routes: list[str] = []
    recorder: Any = SimpleNamespace(event=lambda event, **facts: routes.append(facts["route"]))
    shares: Any = SimpleNamespace(**admission)
    clock = Later()
    return Callers(shares, Metrics(), recorder, clock), routes, clock


def test_a_refusal_is_counted_each_time_and_logged_once_a_minute() -> None:
    callers, routes, clock = made()
    for _ in range(3):
        callers.deny(Peer(1000, 1000, 1), "/v1/kill/x", "not yours")
    callers.deny(Peer(1001, 1001, 1), "/kill", "not yours")
    assert routes == ["/kill", "/kill"], "one of each user"
    clock.at += kept.DENIED_EVERY
    callers.deny(Peer(1000, 1000, 1), "/kill", "not yours")
    assert len(routes) == 3
    assert b'denied_total{route="/kill"} 5.0' in callers.metrics.text()


def test_a_user_that_owes_too_much_may_name_no_more_targets() -> None:
    """Admins pay nothing."""
    callers, _, _ = made(owes=lambda uid: 60.0, refused=lambda *_: None, user_of=lambda uid: uid)
    with pytest.raises(Limited):
        callers.charge_named(Peer(1000, 1000, 1), 2)
    callers.charge_named(Peer(1000, 1000, 1), 1)
    callers.charge_named(Peer(0, 0, 1, admin=True), 99)


def test_the_sessions_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_TALKS", 2)
    callers, _, _ = made()
    for number in range(4):
        callers.remember((1000, str(number), 1, 1), Talk(str(number)))
    assert [talk.agent_id for talk in callers.talks.values()] == ["2", "3"]
