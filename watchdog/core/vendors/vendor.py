"""What is known of one agent program: a plain value, as a vendor hook loads all of these at each event.

The `stop` of each says what makes the vendor end its agent's turn and start no tool, as JSON for stdout; None where
nothing can.

Tests: tests/core/test_vendors.py.
"""

from collections.abc import Callable, Mapping

Answer = dict[str, object] | None
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # of a conversation
NOTHING_ENDS = frozenset({"SessionEnd", "Notification", "Interrupt", "PreCompress"})  # events of which no answer counts


def halt(reason: str) -> dict[str, object]:
    """Ends the turn."""
    return {"continue": False, "stopReason": reason}


def denied(event: str, reason: str) -> dict[str, object]:
    """Refuses a tool call."""
    return {"hookEventName": event, "permissionDecision": "deny", "permissionDecisionReason": reason}


def _halts(event: str, reason: str) -> Answer:
    return None if event in NOTHING_ENDS else halt(reason)


class Vendor:
    """One agent program. `name` is also the type of its agents, and what its program is called."""

    __slots__ = (
        *("name", "exit_keys", "events", "stop", "prompted", "for_persons", "without", "takes_directory", "paths"),
        *("markers", "shell_tool", "shell_limit", "many_sessions", "tells_file", "hides_answers"),
        *("conversation", "resume"),
    )

    def __init__(
        self,
        name: str,
        *,
        exit_keys: tuple[str, ...],
        events: Mapping[str, str] | None = None,
        stop: Callable[[str, str], Answer] = _halts,
        prompted: frozenset[str] = frozenset(),
        for_persons: frozenset[str] = frozenset(),
        without: frozenset[str] = frozenset(),
        takes_directory: bool = False,
        paths: tuple[str, ...] = (),
        markers: tuple[str, ...] = (),
        shell_tool: str = "",
        shell_limit: str = "",
        many_sessions: bool = False,
        tells_file: bool = False,
        hides_answers: bool = False,
        conversation: str = "",
        resume: str = "",
    ) -> None:
        self.name = name
        # How it is told to leave at its prompt, as tmux(1) names keys. Where Ctrl-C twice does it, that is better than
        # words: in a dialog it says no, where Enter says yes.
        self.exit_keys = exit_keys
        self.events = {} if events is None else events  # of its hooks, each with its kind in `core.vendor_hooks`
        self.stop = stop  # of an event's name and a reason
        self.prompted = prompted  # options of a command line that hold a first prompt
        self.for_persons = for_persons  # words for a session that a person goes on with
        self.without = without  # words that need no prompt from a person
        self.takes_directory = takes_directory  # its first word may be the directory that it works in
        # Part of the path of its script, or of the program itself, where its own name says nothing
        # (`.../versions/2.1.197`).
        self.paths = paths
        self.markers = markers  # what it puts into the environment of what it starts, another value for each run
        self.shell_tool = shell_tool  # the tool whose calls may carry their time limit,
        self.shell_limit = shell_limit  # and the variable with the usual one
        self.many_sessions = many_sessions  # one process may have many at once
        self.tells_file = tells_file  # its hooks tell of the session's file, which `core.session_states` can read
        self.hides_answers = hides_answers  # its hooks do not tell that a person has said yes
        self.conversation = conversation  # the whole path of a conversation's file: directory, id
        self.resume = resume  # the command that takes a conversation up again
