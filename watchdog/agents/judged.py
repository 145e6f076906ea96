"""What the looks at an agent have made of it: its verdict and the line that gave it."""

from dataclasses import dataclass
from datetime import timedelta

from watchdog.core.agent import Verdict
from watchdog.core.process import Presence
from watchdog.core.verdict import Judgement, span


@dataclass(slots=True)
class Judged:
    """By the last look, and what it has to be compared with."""

    verdict: Verdict | None = None
    line: str = ""
    presence: Presence = Presence.ALIVE
    hangs: str | None = None  # which file of its main process did, then
    beats_judged: int = 0  # its count then
    renewed_judged: int = 0  # the same of `renewed`: one more since then makes the verdict old
    scan_age: timedelta | None = None  # of a copy that is shown: how old what is known of its processes is
    doomed_since: float | None = None  # monotonic instant from which on its silence asks for its end
    first_look: bool = True

    def hung(self, path: str | None) -> None:
        """Reading that file of its main process hangs (None: none does)."""
        self.hangs = path

    def saw(self, presence: Presence) -> None:
        """What the kernel says of its main process."""
        self.presence = presence

    def remember(self, judgement: Judgement, now: float, beats: int, renewed: int) -> None:
        """Remember a verdict."""
        self.verdict, self.line = judgement.verdict, judgement.line
        self.beats_judged, self.renewed_judged = beats, renewed
        if judgement.verdict is not Verdict.STALLED and not judgement.overdue:
            self.doomed_since = None
        elif self.doomed_since is None:
            self.doomed_since = now
        if judgement.verdict not in (Verdict.LATE, Verdict.STALLED):
            self.first_look = False

    def begin_anew(self) -> None:
        """Nothing of its silence asks for its end any more."""
        self.doomed_since = None

    def shown(self, judgement: Judgement, since: timedelta, beats: int) -> None:
        """Of a copy: what its ages of now make of its verdict. `since`: the last look.

        A verdict that only time has changed is for a look, which tells it; a word since then counts at once.
        """
        spoke = beats != self.beats_judged
        if judgement.verdict is self.verdict or (spoke and judgement.verdict in (Verdict.HEALTHY, Verdict.WAITING)):
            self.verdict, self.line = judgement.verdict, judgement.line
        elif self.verdict is not Verdict.HEALTHY and self.line:
            self.line += f" ({span(since)} ago)"

    def scanned_before(self, age: timedelta) -> None:
        """Of a copy: so old is what is known of its processes."""
        self.scan_age = age

    def restore(self, verdict: Verdict | None, beats: int) -> None:
        """What an earlier daemon made of it and told, after so many beats."""
        self.verdict, self.beats_judged = verdict, beats

    def written(self, verdict: Verdict | None, line: str) -> None:
        """Of one that nobody looks at here: what its row says."""
        self.verdict, self.line = verdict, line
