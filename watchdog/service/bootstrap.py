"""Entry of `agent-watchdogd`: signals put right before the rest is imported (half a second), without a collector.

A starter's blocked and ignored signals go over execve(2). With TERM blocked nothing but KILL ended the daemon, and with
SIGCHLD ignored no helper had an exit status (waitpid(2): ECHILD): every cleanup failed, three times each.

What is imported stays: looking through it for garbage took a fifth of the start. `start` switches the collector on when
all is there, and has it pass over that (gc.freeze): a scan of 1,000 agents' processes took half as long with it.
"""

import gc
import signal


def main() -> int:
    """Run the daemon; its exit status. Until `summons` takes SIGINT it ends us at once, like SIGTERM: no traceback."""
    gc.disable()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, and stays so until then
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from watchdog.service import main as start  # lazily: everything

    return start.leave(start.main())
