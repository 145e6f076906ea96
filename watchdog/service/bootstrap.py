"""Entry of `agent-watchdogd`: resets signals before the rest is imported (half a second), with garbage collection off.

Signals that the parent process blocked or ignored stay so across execve(2). With TERM blocked only KILL ended the
daemon, and with SIGCHLD ignored no helper had an exit status (waitpid(2): ECHILD): every cleanup failed, three times
each.

Imported modules stay: collecting garbage among them took a fifth of the start. `main` enables the collector when
everything is loaded, and excludes that (gc.freeze): a scan of 1,000 agents' processes took half as long with it.
"""

import gc
import signal


def main() -> int:
    """Run the daemon; returns its exit status.

    Until `signal_flags` handles SIGINT it kills us at once: no traceback.
    """
    gc.disable()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # otherwise it is ignored, and stays so until then
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    from watchdog.service import main as start  # lazily: everything

    return start.leave(start.main())
