"""What is under way to end an agent, as far as everybody has to know it; the order itself is `kill.order`'s."""

import asyncio
from dataclasses import dataclass, field, replace

from watchdog.core.kill import StopAsked


@dataclass(slots=True)
class EndingState:
    """Empty while nobody wants it ended."""

    request_id: str | None = None
    ordering: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while an order to end it is committed
    asked: StopAsked | None = None
    lives_on: str | None = None  # what of it could not be killed, at the last attempt

    def begin(self, request_id: str) -> None:
        """That order is to end it."""
        self.request_id = request_id

    def over(self) -> None:
        """No order is open any more."""
        self.request_id = None

    def withdrawn(self) -> None:
        """It goes on, and is not asked to end any more."""
        self.request_id = self.asked = None

    def ask(self, asked: StopAsked) -> None:
        """From now on its beats are answered so."""
        self.asked = asked

    def heard(self) -> None:
        """A beat was answered so, to one who reads it."""
        if self.asked is not None:
            self.asked = replace(self.asked, heard=True)

    def survived(self, what: str) -> None:
        """That lives on after an attempt."""
        self.lives_on = what
