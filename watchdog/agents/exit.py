"""How an agent's main process ended, and the source of that information.

Tests: tests/kill/test_close.py, tests/agents/test_oom.py.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class Exit:
    """All fields are empty while the process lives, and may stay so: only the kernel and `run` know."""

    ended: bool = False  # its pidfd became readable
    code: int | None = None
    signal: int | None = None
    source: str = ""  # the source, if neither the kernel nor `run` at once; or why the exit status is unknown

    @property
    def known(self) -> bool:
        return self.code is not None or self.signal is not None

    def seen(self) -> None:
        """Its pidfd has become readable."""
        self.ended = True

    def learn(self, code: int | None, signal: int | None) -> None:
        """Reported by the kernel, or by `run` at once; a source that was recorded before is kept."""
        self.code, self.signal = code, signal

    def read(self, code: int | None, signal: int | None, source: str) -> None:
        """Read from a written report; `source` names it."""
        self.code, self.signal, self.source = code, signal, source

    def unknown(self, why: str) -> None:
        """The exit status is not known yet, for this reason."""
        self.source = why

    def reported_at_once(self) -> None:
        """`run` reported it while we waited for it."""
        self.source = ""
