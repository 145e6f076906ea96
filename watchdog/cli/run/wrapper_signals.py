"""The signal functions of `run`, from `_signal`, the C half of `signal`; numbers are plain int.

`signal` itself makes enums of its numbers, and `enum` imports `functools` and `collections`: 0.7 MB in each wrapper.
"""

# typeshed knows only `signal`
from _signal import (  # type: ignore[import-not-found]
    SIG_BLOCK,
    SIG_DFL,
    SIG_IGN,
    SIG_SETMASK,
    SIG_UNBLOCK,
    SIGBUS,
    SIGCHLD,
    SIGCONT,
    SIGFPE,
    SIGHUP,
    SIGILL,
    SIGINT,
    SIGIO,
    SIGKILL,
    SIGPIPE,
    SIGSEGV,
    SIGSTOP,
    SIGSYS,
    SIGTRAP,
    SIGXFSZ,
    default_int_handler,
    getsignal,
    pthread_sigmask,
    signal,
    sigtimedwait,
    struct_siginfo,
    valid_signals,
)

__all__ = [
    "SIGBUS",
    "SIGCHLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGKILL",
    "SIGPIPE",
    "SIGSEGV",
    "SIGSTOP",
    "SIGSYS",
    "SIGTRAP",
    "SIGXFSZ",
    "SIG_BLOCK",
    "SIG_DFL",
    "SIG_IGN",
    "SIG_SETMASK",
    "SIG_UNBLOCK",
    "default_int_handler",
    "end_at_interrupt",
    "getsignal",
    "pthread_sigmask",
    "signal",
    "sigtimedwait",
    "struct_siginfo",
    "valid_signals",
]


def end_at_interrupt() -> None:
    """Let Ctrl-C kill this process at once, without a traceback; if it is ignored it stays so."""
    if getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, SIG_DFL)
