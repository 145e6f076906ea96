"""How an agent's main process ended, and from whom that is known.

Tests: tests/kill/test_close.py, tests/agents/test_oom.py.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Exit:
    """All of it is empty while the process lives, and may stay so: nobody but the kernel and `run` knows."""

    ended: bool = False  # its pidfd said so
    code: int | None = None
    signal: int | None = None
    told: str = ""  # by whom, if not by the kernel or `run` at once; or why nobody knows it

    @property
    def known(self) -> bool:
        return self.code is not None or self.signal is not None

    def seen(self) -> None:
        """The pidfd has become readable."""
        self.ended = True

    def learn(self, code: int | None, signal: int | None) -> None:
        """The kernel, or `run` at once, says so; nothing said before of who told it is changed."""
        self.code, self.signal = code, signal

    def read(self, code: int | None, signal: int | None, told: str) -> None:
        """Somebody wrote that down."""
        self.code, self.signal, self.told = code, signal, told

    def unknown(self, why: str) -> None:
        """Nobody knows it yet, and why."""
        self.told = why

    def told_at_once(self) -> None:
        """`run` said it while it was waited for."""
        self.told = ""
