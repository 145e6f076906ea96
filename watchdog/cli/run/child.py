"""Start the agent, watch it stop and exit, and stop and exit likewise. Nothing here contacts the daemon.

Signals go to the agent's plain pid: it is our own child that was not reaped yet, so the pid cannot have been reused.
"""

import os
import time
from _collections_abc import Collection
from _socket import AF_UNIX, SOCK_STREAM, socketpair
from errno import EACCES, ENOENT, ENOEXEC, ENOTDIR

from watchdog.cli.run import wrapper_signals
from watchdog.cli.run.prctl import die_with_parent, leave_core

NOT_FOUND, NOT_EXECUTABLE = 127, 126  # as in shells
MOMENT = 0.5  # seconds; before a kill the daemon stops a tree for tens of milliseconds: a shell need not know
_NOT_FOR_AGENTS = ("WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


class Start:
    """A child that waits until `release` before it executes the command; `error` tells why it could not."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        mask: Collection[int],
        *,
        lead: bool,
        ignore_children: bool = False,
        watchdog_usec: str | None = None,
    ) -> None:
        """Fork. `mask` and `ignore_children` (SIGCHLD): as at our start; `lead`: in a session of its own.

        `watchdog_usec`: what the unit whose main process we are expects (WatchdogSec=), passed only to that child.
        """
        # One pair for both directions, as descriptors may be scarce: the go-ahead, and the errno; exec closes it.
        self._ours, theirs = socketpair(AF_UNIX, SOCK_STREAM)
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            self._ours.close()
            theirs.close()
            raise
        if self.pid == 0:
            try:
                self._ours.close()
                die_with_parent()
                if os.getppid() == parent:  # otherwise the parent died before the line above
                    _restore(mask, lead, ignore_children)
                    if watchdog_usec is not None:
                        environment |= {"WATCHDOG_USEC": watchdog_usec, "WATCHDOG_PID": str(os.getpid())}
                    if theirs.recv(1) == b"!":
                        number = _execute(command, environment)
                        theirs.send(str(number).encode())
                        os._exit(NOT_FOUND if number in (ENOENT, ENOTDIR) else NOT_EXECUTABLE)
            finally:
                os._exit(NOT_FOUND)
        theirs.close()

    def release(self) -> None:
        """Let the child execute the command."""
        try:  # noqa: SIM105  contextlib costs memory
            self._ours.send(b"!")
        except BrokenPipeError:
            pass  # it died while waiting

    def error(self) -> int | None:
        """After the child's exit: the errno with which the command could not be executed; None: it was executed."""
        try:
            told = self._ours.recv(8)
        except ConnectionResetError:
            told = b""  # it died before it read the go-ahead
        self._ours.close()
        return int(told) if told else None


def environment_for(agent: dict[str, str]) -> dict[str, str]:
    """Our own environment with the agent's marks, without what a service manager meant only for us.

    Above all WATCHDOG_USEC: a child's library would beat by timer, even if the agent hangs. Only if the unit's own
    WatchdogSec= asks for it is it passed on (`upstream`), as without us.
    """
    environment = {key: value for key, value in os.environ.items() if key not in _NOT_FOR_AGENTS}
    environment.update(agent)
    return environment


def has_terminal() -> bool:
    """Whether we have a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def proc_stat(pid: int) -> tuple[str, int] | None:
    """State letter and parent's pid from /proc/PID/stat (proc(5)); None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return fields[0].decode(), int(fields[1])


def descends_from(pid: int, ancestor: int) -> bool:
    """Whether `pid` is `ancestor` or descends from it, as far as is still visible."""
    for _ in range(64):
        if pid == ancestor:
            return True
        found = proc_stat(pid) if pid > 1 else None
        if found is None:
            return False
        pid = found[1]
    return False


def stop_like(agent_pid: int, number: int) -> None:
    """Stop as the agent did, so that the shell that waits for us takes its terminal back; return when continued.

    Only if a shell waits: our parent is in our session and another group. Otherwise no process would continue us. While
    we are stopped a forked watcher continues us when the agent runs again, or exits, without our being notified.
    """
    parent = os.getppid()
    try:
        if os.getsid(parent) != os.getsid(0) or os.getpgid(parent) == os.getpgid(0):
            return
    except OSError:
        return
    if number == wrapper_signals.SIGSTOP:
        time.sleep(MOMENT)
    found = proc_stat(agent_pid)
    if found is None or found[0] not in "tT":
        return
    watcher = _watcher(agent_pid)
    if number == wrapper_signals.SIGSTOP:
        os.kill(os.getpid(), number)
    else:
        before = wrapper_signals.signal(number, wrapper_signals.SIG_DFL)
        os.kill(os.getpid(), number)  # while blocked: merges with one that the terminal sent to the group
        wrapper_signals.pthread_sigmask(wrapper_signals.SIG_UNBLOCK, {number})  # here we stop
        wrapper_signals.pthread_sigmask(wrapper_signals.SIG_BLOCK, {number})
        wrapper_signals.signal(number, before)
    os.kill(watcher, wrapper_signals.SIGKILL)
    os.waitpid(watcher, 0)


def end_like(status: int) -> int:
    """The exit status for us; does not return if the agent died of a signal: then we die of the same."""
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    die_of(os.WTERMSIG(status))
    return 128 + os.WTERMSIG(status)


def die_of(number: int) -> None:
    """Die of that signal's default action, without a core file. Returns if that does not kill."""
    leave_core(False)
    if number not in (wrapper_signals.SIGKILL, wrapper_signals.SIGSTOP):
        wrapper_signals.signal(number, wrapper_signals.SIG_DFL)
    os.kill(os.getpid(), number)
    wrapper_signals.pthread_sigmask(wrapper_signals.SIG_UNBLOCK, {number})
    leave_core(True)


def _restore(mask: Collection[int], lead: bool, ignore_children: bool) -> None:
    """In the child: restore what Python and we changed; other ignored signals stay ignored, as after any exec."""
    if lead:
        os.setsid()
    for number in (wrapper_signals.SIGPIPE, wrapper_signals.SIGXFSZ):
        wrapper_signals.signal(number, wrapper_signals.SIG_DFL)
    if ignore_children:
        wrapper_signals.signal(wrapper_signals.SIGCHLD, wrapper_signals.SIG_IGN)
    wrapper_signals.pthread_sigmask(wrapper_signals.SIG_SETMASK, mask)


def _execute(command: list[str], environment: dict[str, str]) -> int:
    """execvp(3), including its rule for scripts without a #! line. Returns the most informative errno."""
    name = command[0]
    directories = [""] if "/" in name else os.get_exec_path(environment)
    worst = ENOENT
    for directory in directories:
        path = f"{directory}/{name}" if directory else name
        if not directory and "/" not in name:
            path = f"./{name}"  # an empty entry of PATH is the current directory
        try:
            os.execve(path, command, environment)  # noqa: S606  running what we were given is what `run` is for
        except OSError as error:
            if error.errno == ENOEXEC:
                os.execve("/bin/sh", ["/bin/sh", path, *command[1:]], environment)  # noqa: S606  see above
            # A directory in PATH that we may not search does not count (another user's ~/bin, kept by su).
            if error.errno not in (ENOENT, ENOTDIR) and os.path.lexists(path):
                worst = error.errno or EACCES
    return worst


def _watcher(agent_pid: int) -> int:
    """Fork a process that continues us as soon as the agent is no longer stopped; return its pid."""
    wrapper = os.getpid()
    watcher = os.fork()
    if watcher:
        return watcher
    try:
        die_with_parent()
        wrapper_signals.pthread_sigmask(wrapper_signals.SIG_SETMASK, ())
        while os.getppid() == wrapper:
            found = proc_stat(agent_pid)
            if found is None or found[0] not in "tT":
                os.kill(wrapper, wrapper_signals.SIGCONT)
            time.sleep(0.25)  # Linux notifies only the parent of a continued process
    finally:
        os._exit(0)
