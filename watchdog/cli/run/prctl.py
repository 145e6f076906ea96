"""prctl(2) for `run`. The standard library does not have it, and `ctypes` would cost each wrapper 0.5 MB.

`_ctypes` is the C half of `ctypes`; in an interpreter built without it these functions do nothing, and `run` works
without them: orphans of the agent then go to init, and the agent outlives a killed wrapper.
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
    """Have `ps` show our own name instead of the interpreter's."""
    return prctl(SET_NAME, b"agent-watchdog")


def become_subreaper() -> bool:
    """Make orphans of the agent our children, so that the tree stays connected."""
    return prctl(SET_CHILD_SUBREAPER, 1)


def die_with_parent() -> bool:
    """Have the kernel kill this process when its parent dies (cleared when it executes a set-uid program)."""
    return prctl(SET_PDEATHSIG, SIGKILL)


def leave_core(wanted: bool) -> bool:
    """Whether the kernel may write a core file of this process; not when we die of the agent's signal.

    Not by RLIMIT_CORE, which the kernel ignores if core_pattern is a pipe (core(5)).
    """
    return prctl(SET_DUMPABLE, int(wanted))
