"""Who was stopped on purpose: held by a debugger, or stopped from its terminal. Pure.

SIGSTOP by nobody known is none of it: an agent that was stopped so is silent, as any.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

TERMINAL = {  # what a terminal, or a shell's job control, stops a job with (termios(3), setpgid(2))
    "SIGTSTP": "Ctrl-Z at its terminal stopped it",
    "SIGTTIN": "it was stopped in the background, as it reads from its terminal",
    "SIGTTOU": "it was stopped in the background, as it writes to its terminal",
}


@dataclass(frozen=True, slots=True)
class Stop:
    """What the kernel says of one process that does not run. `signal`: the name of what stopped it; empty: not told."""

    state: str
    tracer: int = 0
    signal: str = ""
    has_terminal: bool = False


def halt(stops: Mapping[int, Stop], main: int | None, tree: Collection[int]) -> str | None:
    """Why an agent is not to be expected to speak, in words, by those of its processes that are stopped.

    A debugger that belongs to its own tree is its own doing.
    """
    for pid, stop in stops.items():
        if stop.state == "t" and stop.tracer > 0 and stop.tracer not in tree:
            whom = "it" if pid == main else f"its process {pid}"
            return f"a debugger (process {stop.tracer}) holds {whom}"
    stop = stops.get(main or 0, Stop(""))
    if stop.state == "T" and stop.has_terminal and stop.signal in TERMINAL:
        return TERMINAL[stop.signal]
    return None
