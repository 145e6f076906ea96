"""What was told of an agent, so that each condition is told once."""

from dataclasses import dataclass, field

MOST_WORDS = 5  # of one kind in which others' words stand, told of the present condition of an agent


@dataclass(slots=True)
class Told:
    """Of its present condition, of what did not count, and of what is told once while this daemon runs."""

    events: set[str] = field(default_factory=set)  # of the present condition, told once
    refused: set[str] = field(default_factory=set)  # messages about it that did not count, each told once
    needed_human: bool = False  # told, and not answered yet
    recovering: bool = False  # it was late, and is well for no word of its own: what it says next is its recovery
    expiry_told: bool = False
    cap_told: bool = False
    untouchable_told: bool = False

    def first(self, key: str, kind: str = "") -> bool:
        """Whether this is to be told: not yet told of the present condition.

        `kind`: what keys begin with that hold another's words, of which there may be any number: five are told.
        """
        if key in self.events or (kind and sum(one.startswith(kind) for one in self.events) >= MOST_WORDS):
            return False
        self.events.add(key)
        return True

    def first_refusal(self, key: str, kind: str) -> bool:
        """Whether this is to be told, as `first`; what does not count has nothing to do with its condition."""
        if key in self.refused or sum(one.startswith(kind) for one in self.refused) >= MOST_WORDS:
            return False
        self.refused.add(key)
        return True

    def begin_condition(self) -> None:
        """What was said of the former condition may be said again."""
        self.events.clear()

    def human(self, *, needed: bool) -> None:
        """It was told that it waits for a human, or that it does not any more."""
        self.needed_human = needed

    def recover(self, *, later: bool) -> None:
        """Its recovery is told with its next word (`later`), or is told."""
        self.recovering = later

    def expiry(self, *, told: bool = True) -> None:
        """It was told that its time is nearly up."""
        self.expiry_told = told

    def cap(self) -> None:
        """It was told that it asked for too much."""
        self.cap_told = True

    def untouchable(self) -> None:
        """It was told that nothing is done as its owner."""
        self.untouchable_told = True
