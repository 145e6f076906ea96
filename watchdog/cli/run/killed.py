"""What `run` says at a terminal when its agent was killed through the watchdog: by which order, why, and where to look.

The shell says `Terminated` and no more. One question to the daemon, after the report of the end, and only where the
answer to that report shows that an order was open or that the agent's row is closed: a plain exit costs nothing.
"""

import os
import shlex

from watchdog.client.client import request
from watchdog.errors import WatchdogError

SECONDS = 1.0  # for the answer: a line that only explains is worth no longer wait
_BY_ITSELF = ("gone", "lost")
_UNSIGNALLED = ("", "asked", "program", "keys", "looked")  # steps of an order before its first signal


def killed_line(name: str, agent_id: str, control: str, *, named: bool) -> str | None:
    """The line; None where no order of the watchdog has signalled that agent, or no answer says so.

    `control` is the socket of its daemon; `named`: the user named one, and needs to name it again.
    """
    try:
        code, answer = request("GET", f"/v1/agents/{agent_id}", socket_path=control, timeout=SECONDS)
    except (WatchdogError, OSError, ValueError):
        return None
    orders = answer.get("requests")
    order = orders[-1] if code == 200 and isinstance(orders, list) and orders else None
    if not isinstance(order, dict) or order.get("reason") in _BY_ITSELF:
        return None
    if str(order.get("step") or "") in _UNSIGNALLED:
        return None
    return f"{name} was {_how(order)}; the whole story: {_why_command(name, control if named else None)}"


def _how(order: dict[str, object]) -> str:
    options, by = order.get("options"), str(order.get("by"))
    why = str(options.get("why") or order.get("reason")) if isinstance(options, dict) else str(order.get("reason"))
    if by == "daemon":
        return f"killed by the daemon: {why}"
    deed = "stopped" if order.get("reason") == "stop" else "killed"
    return f"{deed}: {why}" if by in why else f"{deed} by {by}: {why}"


def _why_command(name: str, control: str | None) -> str:
    socket = "" if control is None else f"--socket {shlex.quote(os.path.abspath(control))} "
    return f"agent-watchdog {socket}why {name}"
