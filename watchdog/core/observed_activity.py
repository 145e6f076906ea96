"""What was seen of an agent from outside: evidence that it works, with its age and whose word it is. Pure.

It delays a verdict and never renews a promise. What is missing is no evidence, neither for the agent nor against it.
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from watchdog.core.agent import Registration
from watchdog.core.verdict import span

ZERO = timedelta()


class Trust(StrEnum):
    """Whose word a signal is, the one that weighs most first."""

    KERNEL = "the kernel's word"
    AGENT = "its own word"
    OTHER = "another agent's word"
    OWNER = "seen by its owner's helper"


@dataclass(frozen=True, slots=True)
class Probe:
    """How one thing is observed."""

    trust: Trust
    call: str | None = None  # what the owner's helper is asked, and the module in probes/ that understands its answer
    threshold: float = 0.0  # from which measure on it is work, where not every change is
    named_by: str | None = None  # the field of the registration with its path; without one there is nothing to look at
    unseen: str = ""  # what is said where none was seen, if it is looked for at any time

    def path(self, registration: Registration) -> str | None:
        """The path that was registered for it."""
        named: str | None = None if self.named_by is None else getattr(registration, self.named_by)
        return named


class ActivityKind(StrEnum):
    """What can be seen from outside, in the order in which `why` shows it. A new probe is one line here."""

    probe: Probe

    def __new__(cls, name: str, probe: Probe) -> "ActivityKind":
        """A member is its name, and has its probe."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.probe = probe
        return made

    # Share of one core; an idle Node program with timers uses under 1 %.
    CPU = "cpu", Probe(Trust.KERNEL, threshold=0.05)
    # Bytes a second, read and written by all processes together, terminals and sockets among them. A spinner that is
    # drawn ten times a second writes 1 to 5 kB/s; a download of 1 Mbit/s is read and written with 250 kB/s.
    IO = "io", Probe(Trust.OWNER, call="moved", threshold=50_000)
    TRANSCRIPT = "transcript", Probe(Trust.OWNER, call="stamp", named_by="transcript")
    LOG = "log", Probe(Trust.OWNER, call="stamp", named_by="log")
    PANE = "pane", Probe(Trust.OWNER, call="pane_shows")
    CHILD = "child", Probe(Trust.OTHER, unseen="none at work")


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
