"""Which processes were stopped on purpose: held by a debugger, or stopped from its terminal. Pure.

SIGSTOP from an unknown sender is none of these: an agent that was stopped so is silent, as any. Which signal it was
the kernel tells until its parent has asked (wait(2)). A shell asks at once, says "Stopped" and takes its terminal
back: from then on it is only known that a person was informed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

TERMINAL = {  # what a terminal, or a shell's job control, stops a job with (termios(3), setpgid(2))
    "SIGTSTP": "it is stopped in its terminal, by Ctrl-Z",
    "SIGTTIN": "it is stopped in the background of its terminal, from which it reads",
    "SIGTTOU": "it is stopped in the background of its terminal, to which it writes",
}


@dataclass(frozen=True, slots=True)
class StopState:
    """What the kernel says of one process that does not run. `signal`: the name of what stopped it; empty: unknown.

    `in_front`: its terminal, if it has one, is its own process group's now (tcgetpgrp(3)).
    """

    state: str
    tracer: int = 0
    signal: str = ""
    has_terminal: bool = False
    in_front: bool = False


def halt(stops: Mapping[int, StopState], main: int | None, tree: Collection[int]) -> str | None:
    """Why an agent is not to be expected to speak, in words, by those of its processes that are stopped.

    A debugger that belongs to its own tree is its own doing.
    """
    for pid, stop in stops.items():
        if stop.state == "t" and stop.tracer > 0 and stop.tracer not in tree:
            whom = "it" if pid == main else f"its process {pid}"
            return f"a debugger (process {stop.tracer}) holds {whom}"
    stop = stops.get(main or 0, StopState(""))
    if stop.state != "T" or not stop.has_terminal:
        return None
    if not stop.signal and not stop.in_front:
        return "it is stopped in its terminal, and its shell knows of it"
    return TERMINAL.get(stop.signal)
