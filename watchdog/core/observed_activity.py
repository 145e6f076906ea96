"""What was seen of an agent from outside: evidence that it works, with its age and whose word it is. Pure.

It delays a verdict and never renews a promise. What is missing is no evidence, neither for the agent nor against it.
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from watchdog.core.verdict import span

ZERO = timedelta()


class Trust(StrEnum):
    """Whose word a signal is, the one that weighs most first."""

    KERNEL = "the kernel's word"
    AGENT = "its own word"
    OTHER = "another agent's word"
    OWNER = "seen by its owner's helper"


class ActivityKind(StrEnum):
    """What can be seen from outside."""

    CPU = "cpu"
    IO = "io"
    TRANSCRIPT = "transcript"
    LOG = "log"
    PANE = "pane"
    CHILD = "child"


TRUST = {
    ActivityKind.CPU: Trust.KERNEL,
    ActivityKind.IO: Trust.OWNER,
    ActivityKind.TRANSCRIPT: Trust.OWNER,
    ActivityKind.LOG: Trust.OWNER,
    ActivityKind.PANE: Trust.OWNER,
    ActivityKind.CHILD: Trust.OTHER,
}


@dataclass(slots=True)
class Sight:
    """One thing seen; `age` is the time watched since."""

    text: str
    age: timedelta = ZERO

    def say(self, text: str) -> None:
        """It is the same thing, in other words."""
        self.text = text

    def watch(self, passed: timedelta) -> None:
        """So much time was watched."""
        self.age += passed


@dataclass(slots=True)
class ObservedActivity:
    """The last sight of each kind, and why a kind could not be seen at the last look."""

    seen: dict[ActivityKind, Sight] = field(default_factory=dict)
    failed: dict[ActivityKind, str] = field(default_factory=dict)
    prompt: Sight | None = None  # what its pane asks a person for, and since when; no activity
    unprompted: str | None = None  # why one that has not spoken yet may only wait for its first prompt

    def see(self, kind: ActivityKind, text: str) -> None:
        """It was seen now."""
        self.seen[kind] = Sight(text)

    def looked(self, kind: ActivityKind, failure: str | None = None) -> None:
        """A look worked, or why it did not."""
        if failure is None:
            self.failed.pop(kind, None)
        else:
            self.failed[kind] = failure

    def asks(self, prompt: Sight | None) -> None:
        """Its pane asks a person for that (None: for nothing)."""
        self.prompt = prompt

    def may_be_unprompted(self, why: str | None) -> None:
        """It may only wait for its first prompt (None: nothing says so)."""
        self.unprompted = why

    def copy(self) -> "ObservedActivity":
        """One whose ages go on by themselves."""
        seen = {kind: replace(sight) for kind, sight in self.seen.items()}
        return replace(self, seen=seen, prompt=None if self.prompt is None else replace(self.prompt))

    def watch(self, passed: timedelta) -> None:
        """So much time was watched."""
        for sight in self.seen.values():
            sight.watch(passed)
        if self.prompt is not None:
            self.prompt.watch(passed)

    def best(self, believed: timedelta) -> str | None:
        """The freshest that is younger than `believed`, in words; or None."""
        fresh = min(self.seen.values(), key=lambda sight: sight.age, default=None)
        if fresh is None or fresh.age >= believed:
            return None
        return fresh.text if fresh.age < timedelta(seconds=1) else f"{fresh.text} {span(fresh.age)} ago"
