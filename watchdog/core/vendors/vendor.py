"""What is known of one agent program: a plain class, as a vendor hook loads all of them at each event.

`stop` returns the answer that makes the vendor end its agent's turn and start no tool, as JSON for stdout; None: none
does.

Tests: tests/core/test_vendors.py.
"""

from collections.abc import Callable, Mapping

Answer = dict[str, object] | None
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"  # a conversation's id
NOTHING_ENDS = frozenset({"SessionEnd", "Notification", "Interrupt", "PreCompress"})  # events whose answer is ignored


def halt(reason: str) -> dict[str, object]:
    """An answer that ends the turn."""
    return {"continue": False, "stopReason": reason}


def denied(event: str, reason: str) -> dict[str, object]:
    """An answer that denies a tool call."""
    return {"hookEventName": event, "permissionDecision": "deny", "permissionDecisionReason": reason}


def _halts(event: str, reason: str) -> Answer:
    return None if event in NOTHING_ENDS else halt(reason)


class Vendor:
    """One agent program. `name` is also the type of its agents and the name of its program."""

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
        # How to exit at its prompt, in tmux(1)'s key names. Ctrl-C twice, where it works, is better than typed words:
        # in a dialog it means no, where Enter means yes.
        self.exit_keys = exit_keys
        self.events = {} if events is None else events  # its hook events with their kinds in `core.vendor_hooks`
        self.stop = stop  # takes an event's name and a reason
        self.prompted = prompted  # command-line options that give a first prompt
        self.for_persons = for_persons  # subcommands for a session that a person continues
        self.without = without  # subcommands that need no prompt from a person
        self.takes_directory = takes_directory  # its first argument may be its working directory
        # Parts of the path of its script or program, whose own name says nothing (`.../versions/2.1.197`).
        self.paths = paths
        self.markers = markers  # variables in the environment of what it starts, with a different value in each run
        self.shell_tool = shell_tool  # the tool whose calls may carry a time limit,
        self.shell_limit = shell_limit  # and the variable with the default limit
        self.many_sessions = many_sessions  # one process may have many sessions at once
        self.tells_file = tells_file  # its hooks name the session's file, which `core.session_states` can parse
        self.hides_answers = hides_answers  # its hooks do not report that a person has said yes
        self.conversation = conversation  # pattern of the full path of a conversation's file; groups: directory, id
        self.resume = resume  # the command that resumes a conversation
