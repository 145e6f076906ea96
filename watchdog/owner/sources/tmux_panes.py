"""Who sits in the panes of an owner's tmux servers, asked of the servers; nothing is typed, closed or started."""

import os
import subprocess
from dataclasses import dataclass

SECONDS = 2.0  # for one answer; a living server answers in 5 ms
_ASKED = "#{session_name}\t#{pane_pid}\t#{pane_id}\t#{window_id}\t#{pane_dead}"
_NONE = ("no server running on", "error connecting to")


@dataclass(frozen=True, slots=True)
class Pane:
    """One pane. `pid` is its first process; `dead`: that one has ended, and the pane was told to stay."""

    session: str
    pid: int
    pane: str
    window: str
    dead: bool


def panes(server: str) -> list[Pane] | None:
    """All panes of a server: a socket's path, or the name that `tmux -L` takes. None: it could not be asked.

    No server by that name means that it has no pane.
    """
    variables = {key: value for key, value in os.environ.items() if key not in ("TMUX", "TMUX_PANE")}
    option = "-S" if server.startswith("/") else "-L"
    try:
        ran = subprocess.run(
            ["tmux", option, server, "list-panes", "-a", "-F", _ASKED],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if ran.returncode:
        said = ran.stderr.decode("utf-8", "replace")
        return [] if said.startswith(_NONE) and "denied" not in said else None
    found = []
    for line in ran.stdout.decode("utf-8", "replace").splitlines():
        words = line.split("\t")
        if len(words) == 5 and words[1].isdigit():
            found.append(Pane(words[0], int(words[1]), words[2], words[3], words[4] == "1"))
    return found
