"""A leftover is reported once, and again when it came back; a problem is reported once."""

from typing import Any

from tests.control.office import Recorder
from watchdog.clock import Clock
from watchdog.reaper.events import ReapEvents
from watchdog.reaper.leftovers import Leftover
from watchdog.telemetry.logger import EventLogger


class Bound(Recorder):
    """Also records what is logged with bound facts."""

    def bind(self, **fields: object) -> EventLogger:
        return self


def test_each_leftover_and_each_trouble_is_reported_once() -> None:
    nothing: Any = None
    log = Bound()
    events = ReapEvents(nothing, Clock(), log)
    one = Leftover("temp_dir", "/tmp/x", 1000, None, "left", "keep")
    for _ in range(2):
        events.found(one)
        events.trouble("the look for sockets", "gone")
    assert [event["event"] for event in log.events] == ["reap.found", "reap.trouble"]
    events.keep([])
    events.found(one)
    assert [event["event"] for event in log.events][2:] == ["reap.found"]
