"""What was seen of an agent from outside: evidence that it works, with its age and its source. Pure.

It delays a verdict and never renews a promise. Missing data is no evidence, neither for the agent nor against it.
"""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum

from watchdog.core.agent import Registration
from watchdog.core.verdict import span

ZERO = timedelta()


class Trust(StrEnum):
    """What vouches for an observation, the most trusted first."""

    KERNEL = "the kernel's word"
    AGENT = "its own word"
    OTHER = "another agent's word"
    OWNER = "seen by its owner's helper"


@dataclass(frozen=True, slots=True)
class Probe:
    """How one kind of activity is observed."""

    trust: Trust
    call: str | None = None  # the call to the owner's helper, and the module in probes/ that parses its answer
    threshold: float = 0.0  # the smallest measure that counts as work, if not every change does
    named_by: str | None = None  # the registration field with its path; if that is empty there is nothing to observe
    unseen: str = ""  # what `why` says when none was seen, if it is always checked

    def path(self, registration: Registration) -> str | None:
        """The path that was registered for it."""
        named: str | None = None if self.named_by is None else getattr(registration, self.named_by)
        return named


class ActivityKind(StrEnum):
    """Kinds of activity, in the order in which `why` shows them. A new probe is one line here."""

    probe: Probe

    def __new__(cls, name: str, probe: Probe) -> "ActivityKind":
        """Make a member from its name and its probe."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.probe = probe
        return made

    # As a share of one core; an idle Node program with timers uses under 1 %.
    CPU = "cpu", Probe(Trust.KERNEL, threshold=0.05)
    # Bytes per second, read and written by all processes together, including terminals and sockets. A spinner that is
    # drawn ten times a second writes 1 to 5 kB/s; a download of 1 Mbit/s is 250 kB/s read and written.
    IO = "io", Probe(Trust.OWNER, call="moved", threshold=50_000)
    TRANSCRIPT = "transcript", Probe(Trust.OWNER, call="stamp", named_by="transcript")
    LOG = "log", Probe(Trust.OWNER, call="stamp", named_by="log")
    PANE = "pane", Probe(Trust.OWNER, call="pane_shows")
    CHILD = "child", Probe(Trust.OTHER, unseen="none at work")


@dataclass(slots=True)
class Sight:
    """One observation; `age` is the time watched since then."""

    text: str
    age: timedelta = ZERO

    def say(self, text: str) -> None:
        """Change the description of the same observation."""
        self.text = text

    def watch(self, passed: timedelta) -> None:
        """Add watched time to its age."""
        self.age += passed


@dataclass(slots=True)
class ObservedActivity:
    """The last sight of each kind, and why the last check of a kind failed."""

    seen: dict[ActivityKind, Sight] = field(default_factory=dict)
    failed: dict[ActivityKind, str] = field(default_factory=dict)
    prompt: Sight | None = None  # what its pane asks a person for, and since when; not activity
    unprompted: str | None = None  # why an agent that has not beaten yet may be waiting for its first prompt

    def see(self, kind: ActivityKind, text: str) -> None:
        """Record activity seen now."""
        self.seen[kind] = Sight(text)

    def looked(self, kind: ActivityKind, failure: str | None = None) -> None:
        """Record that a check worked, or why it failed."""
        if failure is None:
            self.failed.pop(kind, None)
        else:
            self.failed[kind] = failure

    def asks(self, prompt: Sight | None) -> None:
        """Record what its pane asks a person for (None: nothing)."""
        self.prompt = prompt

    def may_be_unprompted(self, why: str | None) -> None:
        """Record why it may be waiting for its first prompt (None: no such reason)."""
        self.unprompted = why

    def copy(self) -> "ObservedActivity":
        """A copy whose ages are independent of this one."""
        seen = {kind: replace(sight) for kind, sight in self.seen.items()}
        return replace(self, seen=seen, prompt=None if self.prompt is None else replace(self.prompt))

    def watch(self, passed: timedelta) -> None:
        """Add watched time to all ages."""
        for sight in self.seen.values():
            sight.watch(passed)
        if self.prompt is not None:
            self.prompt.watch(passed)

    def best(self, believed: timedelta) -> str | None:
        """The most recent sight younger than `believed`, as text; or None."""
        fresh = min(self.seen.values(), key=lambda sight: sight.age, default=None)
        if fresh is None or fresh.age >= believed:
            return None
        return fresh.text if fresh.age < timedelta(seconds=1) else f"{fresh.text} {span(fresh.age)} ago"
