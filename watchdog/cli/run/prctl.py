"""prctl(2) for `run`. The standard library has no call for it, and `ctypes` would cost each wrapper 0.5 MB.

`_ctypes` is the C half of `ctypes`; on an interpreter that was built without it nothing here is done, and `run` works
without: orphans of the agent then go to init, and the agent outlives a wrapper that is killed.
"""

from watchdog.cli.run.wrapper_signals import SIGKILL

SET_PDEATHSIG = 1  # <linux/prctl.h>
SET_DUMPABLE = 4
SET_NAME = 15
SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int | bytes) -> bool:
    """Set one option of the calling process; False when the kernel or the interpreter does not have it."""
    try:
        from _ctypes import call_function, dlopen, dlsym  # may be missing
    except ImportError:
        return False
    try:
        address = dlsym(dlopen("", 0), "prctl")
        return bool(call_function(address, (option, value, 0, 0, 0)) == 0)
    except OSError:
        return False


def set_name() -> bool:
    """`ps` shows us under our own name, though an interpreter was executed by its path."""
    return prctl(SET_NAME, b"agent-watchdog")


def become_subreaper() -> bool:
    """Orphans of the agent become our children, so that the tree stays one."""
    return prctl(SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    """The kernel kills the calling process when its parent ends (cleared when it executes a set-uid program)."""
    return prctl(SET_PDEATHSIG, SIGKILL)


def leave_core(wanted: bool) -> bool:
    """Whether the kernel may write a core file of us; not when we die of the agent's signal.

    Not RLIMIT_CORE: where core_pattern is a pipe the kernel does not heed it (core(5)).
    """
    return prctl(SET_DUMPABLE, int(wanted))
