"""Clocks that tests move by hand."""

from watchdog.clock import Clock


class Later(Clock):
    """Hours that pass when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.at = 1000.0

    def mono(self) -> float:
        return self.at
