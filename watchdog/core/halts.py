"""Which processes were stopped on purpose: by a debugger, or from their terminal. Pure.

SIGSTOP from an unknown sender is not among them: an agent that it stopped counts as silent. The kernel reports which
signal it was until the parent has asked (wait(2)). A shell asks at once, prints "Stopped" and takes its terminal back:
from then on it is only known that a person was informed.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

TERMINAL = {  # signals by which a terminal or a shell's job control stops a job (termios(3), setpgid(2))
    "SIGTSTP": "it is stopped in its terminal, by Ctrl-Z",
    "SIGTTIN": "it is stopped in the background of its terminal, from which it reads",
    "SIGTTOU": "it is stopped in the background of its terminal, to which it writes",
}


@dataclass(frozen=True, slots=True)
class StopState:
    """What the kernel says about a stopped process. `signal`: the name of the signal that stopped it; empty: unknown.

    `in_front`: its process group is the foreground group of its terminal (tcgetpgrp(3)).
    """

    state: str
    tracer: int = 0
    signal: str = ""
    has_terminal: bool = False
    in_front: bool = False


def halt(stops: Mapping[int, StopState], main: int | None, tree: Collection[int]) -> str | None:
    """Why no beat can be expected of an agent some of whose processes are stopped, as text; None: no such reason.

    A debugger in its own tree does not count: the agent started it.
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
