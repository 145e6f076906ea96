"""Whose an agent is at this instant: its owner may have changed, be unsure, or leave it to another daemon."""

from dataclasses import dataclass

from watchdog.core.custody import Holder


@dataclass(slots=True)
class OwnerState:
    """By the last look at its process (`ownership`), and by what other daemons say (`discovery.custody`)."""

    dropping: int | None = None  # the user to whom its process has dropped from root, until that is committed
    untouchable: str | None = None  # why nothing is done as its owner
    unseen: str | None = None  # why that look failed
    elsewhere: Holder | None = None  # another daemon, whose it is

    def drops_to(self, uid: int | None) -> None:
        """Its process has dropped to that user (None: that is committed)."""
        self.dropping = uid

    def touchable(self, why_not: str | None) -> None:
        """Whether anything may be done as its owner."""
        self.untouchable = why_not

    def hidden(self, why: str | None) -> None:
        """Whose its process is cannot be seen (None: it can)."""
        self.unseen = why

    def held_by(self, holder: Holder | None) -> None:
        """It is that daemon's (None: ours)."""
        self.elsewhere = holder
