"""Clocks that tests move by hand."""

from dataclasses import replace

from watchdog.clock import Clock, Instant


class Later(Clock):
    """Hours that pass when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 1000.0

    def now(self) -> Instant:
        return replace(super().now(), mono=self.at)

    def mono(self) -> float:
        return self.at
