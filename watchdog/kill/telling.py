"""What an order says of its attempts: each thing once, however often what cannot be ended is tried again."""

import os

from watchdog.agents.history import Chronicle
from watchdog.kill.order import Order
from watchdog.telemetry.logger import Log

MOST_LEFT = 20  # rows of history that one order gets for what it could not end, whatever changes with each attempt


class Telling:
    """The words of one order."""

    def __init__(self, order: Order, chronicle: Chronicle, log: Log) -> None:
        """`log` has the agent bound."""
        self._order = order
        self._chronicle = chronicle
        self._log = log.bind(request_id=order.request_id)

    def signal(self, name: str, pids: list[int]) -> None:
        """A signal of that name went out to these."""
        why = f"{name} to {len(pids)} process{'' if len(pids) == 1 else 'es'}"
        facts = {"request_id": self._order.request_id, "pids": pids[:64]}
        if self._order.first(f"{name} {pids}"):
            self._chronicle.tell("kill.signal_sent", self._order.agent, why, f"daemon {os.getpid()}", facts)

    def refused(self, pid: int, why: str) -> None:
        """The guard, or the kernel, let no signal out to this one."""
        if self._order.first(f"refused {pid} {why}"):
            self._log.event("kill.refused", pid=pid, why=why)

    def left(self, reason: str, alive: list[str]) -> bool:
        """An attempt left these alive; how it went becomes the order's outcome. True when the history should have it.

        The log is told once; the history again when it is something else than before, also before a restart.
        """
        order = self._order
        why = f"{reason}: {', '.join(sorted(alive)[:8])}"
        if reason == "not_permitted" and order.sender is not None:
            why += f"; uid {order.sender} may not signal all of it, root can (agent-watchdog kill)"
        former, message = (order.outcome or {}).get("message"), f"not ended, {why}"
        order.outcome = {
            "success": False,
            "error": "permission_denied" if reason == "not_permitted" else "kill_failed",
            "agent_id": order.agent.agent_id,
            "message": message,
        }
        if order.first("unkillable"):
            self._log.event("kill.unkillable", why=why)
        if message == former or order.left >= MOST_LEFT or not order.first(message):
            return False
        order.left += 1
        return True
