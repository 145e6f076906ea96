"""`agent-watchdog run -- CMD`: starts an agent, waits for it, and exits as it exits.

The wrapper should be unnoticeable: same session and process group (so the shell's job control works), same exit status.
Besides, it registers the agent with the daemon, passes on its messages, and reports how it ended.

There are no threads and no signal handlers. All signals are blocked, and the loop waits for them with sigtimedwait(2),
which reports the sender (a Python handler gets only the number): what the terminal sent to the whole group has already
reached the agent, what a process sent to us has not. The sockets use SIGIO (O_ASYNC, fcntl(2)), so that one call waits
for everything. It costs no descriptor and no `select`.
"""

import fcntl
import os
import sys
import time
from _collections_abc import Callable

from watchdog.cli.run import child, wrapper_signals
from watchdog.cli.run.inbox import LOOK_SECONDS, Inbox, open_inbox
from watchdog.cli.run.link import Link
from watchdog.cli.run.options import HELP, Options, is_utf8, parse_options
from watchdog.cli.run.prctl import become_subreaper, set_name
from watchdog.cli.run.report import Report
from watchdog.cli.run.screen import Screen
from watchdog.client.sockets import find_socket, other_sockets
from watchdog.errors import BadRequest, CannotStart, DaemonUnreachable, WatchdogError

REGISTER_SECONDS = 2.0  # after which the agent starts in any case
RELEASE_SECONDS = 1.0  # that the agent's exec waits for the daemon
REPORT_SECONDS = 1.0  # that the report of the end may delay our own exit
DOUBTFUL_SECONDS = 3.0  # the same if the daemon may have registered the agent without knowing its pid
BACKSTOP_SECONDS = 10.0  # without SIGIO from the kernel beats are delayed, not lost
# Our own faults are not waited for; the kernel kills a process that has them blocked.
_OUR_OWN = {
    wrapper_signals.SIGSEGV,
    wrapper_signals.SIGBUS,
    wrapper_signals.SIGFPE,
    wrapper_signals.SIGILL,
    wrapper_signals.SIGTRAP,
    wrapper_signals.SIGSYS,
}
# SIGPIPE stays ignored, as in Python: blocked, it would be queued for us, with ourselves as its sender.
_AWAITED = (
    wrapper_signals.valid_signals()
    - _OUR_OWN
    - {wrapper_signals.SIGKILL, wrapper_signals.SIGSTOP, wrapper_signals.SIGPIPE}
)


def main(arguments: list[str]) -> int:
    """Run one agent to its end; return its exit status, 64 for an invalid call, 127 and 126 as in shells."""
    try:
        options = parse_options(arguments, os.urandom(16).hex())
        if options is None:
            sys.stdout.write(HELP)
            return 0
        return Wrapper(options).run()
    except WatchdogError as error:
        _say(str(error) + ("; see --help" if isinstance(error, BadRequest) else ""))
        return error.exit_code
    except OSError as error:
        _say(str(error))
        return CannotStart.exit_code


class Wrapper:
    """One agent and its state; `run` does everything."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.control = find_socket(options.socket)
        self.mark: str | None = None  # inside the temp dir that we made
        self.pid = 0
        self.status: int | None = None  # of waitpid(2), once the agent has exited
        self.stopped = False  # as last reported by waitpid(2)
        self.terminal = child.has_terminal()
        self.screen = Screen()
        self.inbox: Inbox | None = None
        self.flush_upstream: Callable[[], None] | None = None  # below a service manager
        self.watchdog_usec: str | None = None
        self.lost = False  # it was reported to the daemon that the notify socket is gone
        self.report: Report | None = None
        self.link: Link
        self.mask: set[int] = set()

    def run(self) -> int:
        """Register, start, report the pid, release, pass messages on, report the exit, and exit likewise."""
        self.mask = wrapper_signals.pthread_sigmask(wrapper_signals.SIG_BLOCK, _AWAITED)
        children_ignored = (
            wrapper_signals.signal(wrapper_signals.SIGCHLD, wrapper_signals.SIG_DFL) == wrapper_signals.SIG_IGN
        )  # otherwise there is no status
        self._prepare()
        try:
            replaces = self.options.replace  # the agent must not start before the one that it replaces is gone
            self._turn_until(lambda: self.link.settled, self.link.patience if replaces else REGISTER_SECONDS)
            self._refused_or_warned()
            start = self._started(children_ignored)
            self.pid = start.pid
            self.link.tell_pid(start.pid)
            self._turn_until(lambda: self.link.settled or self.status is not None, RELEASE_SECONDS)
            start.release()
            self._turn_until(lambda: self.status is not None, None)
            assert self.status is not None
            self.screen.put_back(self.status)
            self._report(start.error())
        finally:
            self.link.close()
            if self.inbox is not None:
                self.inbox.close()
        return child.end_like(self.status)

    def _started(self, children_ignored: bool) -> child.Start:
        """Start the agent without releasing it. If the system cannot, that is reported to the daemon: 71 (EX_OSERR)."""
        try:
            return child.Start(
                self.options.command,
                child.environment_for(self._marks()),
                self.mask,
                lead=not self.terminal,
                ignore_children=children_ignored,
                watchdog_usec=self.watchdog_usec,
            )
        except OSError as error:
            self.link.tell_end({"exit_code": CannotStart.exit_code})
            self._turn_until(lambda: self.link.settled, DOUBTFUL_SECONDS if self.link.owes else REPORT_SECONDS)
            self._remove_temp_dir()
            reason = error.strerror
            raise CannotStart(f"cannot start {self.options.command[0]}: {reason} (ulimit -n, -u)") from None

    def _prepare(self) -> None:
        options = self.options
        set_name()
        become_subreaper()
        if options.auto_temp_dir:
            self._make_temp_dir()
        look_every = (
            LOOK_SECONDS if options.stall_after is None else max(0.5, min(LOOK_SECONDS, options.stall_after / 4))
        )
        upstream = None
        if os.environ.get("NOTIFY_SOCKET"):
            from watchdog.cli.run.upstream import open_upstream, watchdog_of_unit  # lazily: few are units

            upstream, self.watchdog_usec = open_upstream(), watchdog_of_unit()
        if upstream is not None:
            self.flush_upstream = upstream.flush
        pass_on = None if upstream is None else upstream.pass_on
        self.inbox = open_inbox(self.control, options.agent_id, pass_on, look_every)
        body = options.registration(None if self.inbox is None else self.inbox.path)
        find = lambda: find_socket(options.socket)  # noqa: E731
        self.link = Link(find, lambda: other_sockets(options.socket), _send_sigio, body)
        if self.inbox is None:
            _say(f"{options.name}: no directory for its notify socket; it cannot beat by sd_notify")
        else:
            told = options.socket or os.environ.get("AGENT_WATCHDOG_SOCKET")
            self.report = Report(self.inbox.path, body, find_socket(options.socket) if told else None)
            _send_sigio(self.inbox.fileno())

    def _make_temp_dir(self) -> None:
        base = os.path.realpath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108  a new directory of our own, 0700
        path = f"{base}/agent-watchdog-{self.options.name}-{os.urandom(4).hex()}"
        self.mark = f"{path}/.agent-watchdog"
        if not is_utf8(path):
            raise BadRequest("--temp-dir auto: $TMPDIR is not UTF-8")
        try:
            os.mkdir(path, 0o700)
            try:
                with open(self.mark, "x") as mark:
                    mark.write(self.options.agent_id + "\n")
            except OSError:
                self._remove_temp_dir()
                raise
        except OSError as error:
            raise CannotStart(f"--temp-dir auto: {path}: {error.strerror}") from None
        self.options.temp_dir = path

    def _remove_temp_dir(self) -> None:
        """Remove the one that we made if no agent is started."""
        if self.mark is None:
            return
        try:
            if os.path.lexists(self.mark):
                os.unlink(self.mark)
            os.rmdir(os.path.dirname(self.mark))
        except OSError:
            pass  # the daemon's cleanup was faster

    def _refused_or_warned(self) -> None:
        """Before the start: exit if the registration was refused; a missing daemon is only a warning."""
        name = self.options.name
        if self.link.refusal is not None:
            self._remove_temp_dir()
            raise self.link.refusal
        if not self.link.registered:
            reason = self.link.unreachable or f"no answer within {REGISTER_SECONDS:g} s"
            if self.options.replace:
                self._remove_temp_dir()
                raise DaemonUnreachable(f"--replace: a former {name} cannot be killed ({reason}); not started")
            if self.link.busy:
                _say(f"{name}: the daemon cannot register it yet ({reason}); tried again until it does")
            else:
                _say(f"{name}: no daemon at {self.control} ({reason}); not watched until one is there")
        if self.options.worktree is not None and not os.path.isdir(self.options.worktree):
            _say(f"{name}: --worktree {self.options.worktree} does not exist yet")
        if os.path.basename(self.options.command[0]) == "codex":
            from watchdog.core.services import shares_service  # lazily: most agents do not need it

            if shares_service(self.options.command):
                _say(f"{name}: codex shares an app server with your other sessions, which is not killed with it;")
                _say(f"{name}: codex --no-daemon has a process of its own")
        if self.options.stall_after is None:
            _say(
                f"{name}: never killed for silence before its first beat; with --stall-after silence counts from now on"
            )

    def _marks(self) -> dict[str, str]:
        marks = {"AGENT_WATCHDOG_ID": self.options.agent_id, "AGENT_WATCHDOG_SOCKET": self.link.home or self.control}
        if self.inbox is not None:
            marks["NOTIFY_SOCKET"] = self.inbox.path
        if self.mark is not None:
            marks["TMPDIR"] = os.path.dirname(self.mark)
        return marks

    def _turn_until(self, done: Callable[[], bool], seconds: float | None) -> None:
        """The loop: signals, then the agent's messages, then the daemon; until `done` or the deadline."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while True:
            now = time.monotonic()
            follow = keep = None
            if self.inbox is not None:
                if self.status is None:
                    follow = self.inbox.follow(self.pid, now)
                    keep = self._keep(self.inbox, now)
                for words in self.inbox.words(self.pid):
                    self.link.hear(words, now)
            if self.flush_upstream is not None:
                self.flush_upstream()
            self.link.step(now)
            if done() or (deadline is not None and now >= deadline):
                return
            due = [now + BACKSTOP_SECONDS, deadline, follow, keep, self.link.next_step(now)]
            wait = max(0.0, min(moment for moment in due if moment is not None) - now)
            if self.inbox is not None and self.inbox.more:
                wait = 0.0
            info = wrapper_signals.sigtimedwait(_AWAITED, wait)
            while info is not None:
                self._take(info)
                info = wrapper_signals.sigtimedwait(_AWAITED, 0)

    def _keep(self, inbox: Inbox, now: float) -> float:
        """Keep the notify socket at its path; if that is impossible, report it to the daemon."""
        again = inbox.keep(now, _send_sigio)
        if inbox.lost != self.lost:
            self.lost = inbox.lost
            self.link.tell_lost(inbox.lost)
        return again

    def _take(self, info: wrapper_signals.struct_siginfo) -> None:
        number, from_kernel = info.si_signo, info.si_code > 0  # sigaction(2): SI_USER, SI_TKILL, SI_QUEUE are <= 0
        if number == wrapper_signals.SIGCHLD:
            self._reap()
        elif number == wrapper_signals.SIGIO and from_kernel:
            pass  # only a wake-up
        elif self.status is not None:
            pass  # the signal that killed the agent reached us too; we exit as it did
        elif not self.pid:
            child.die_of(number)  # no agent yet to forward it to
            wrapper_signals.pthread_sigmask(wrapper_signals.SIG_BLOCK, _AWAITED)
        elif number == wrapper_signals.SIGCONT:
            # The group has got it already; a program that handles it might notice a second one, which may also be late:
            # the next Ctrl-Z may have stopped the agent again, without our knowing yet.
            news = self._reap()
            if self.status is None and (not self._shares_group() or (self.stopped and not news)):
                self._forward(number)
        elif self._is_for_agent(number, from_kernel, info.si_pid):
            self._forward(number)

    def _is_for_agent(self, number: int, from_kernel: bool, sender: int) -> bool:
        if from_kernel:
            # The kernel sends SIGHUP only to the session's leader, everything else from a terminal to the group.
            return number == wrapper_signals.SIGHUP and (not self._shares_group() or os.getsid(0) == os.getpid())
        # `kill 0` by the agent's own tree has reached the agent if it is in our group.
        return not (self._shares_group() and child.descends_from(sender, self.pid))

    def _shares_group(self) -> bool:
        """Whether signals to our group reach the agent: not without a terminal, nor if the agent is a shell."""
        return os.getpgid(self.pid) == os.getpgid(0)

    def _forward(self, number: int) -> None:
        try:  # noqa: SIM105  contextlib costs memory
            os.kill(self.pid, number)
        except PermissionError:
            pass  # it runs as another uid now; a sender who may signal it does not need us

    def _reap(self) -> bool:
        """Reap the agent and orphans of its tree. Whether the agent's state changed."""
        news = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            except ChildProcessError:
                return news
            if not pid:
                return news
            if pid != self.pid:
                continue
            news = True
            self.stopped = os.WIFSTOPPED(status)
            if self.stopped and self.terminal:
                child.stop_like(pid, os.WSTOPSIG(status))
            elif not self.stopped and not os.WIFCONTINUED(status):
                self.status = status

    def _report(self, error: int | None) -> None:
        assert self.status is not None
        if error is not None:
            _say(f"cannot run {self.options.command[0]}: {os.strerror(error)}")
        end: dict[str, object] = {"exit_code": os.waitstatus_to_exitcode(self.status)}
        if os.WIFSIGNALED(self.status):
            end = {"exit_signal": os.WTERMSIG(self.status)}
        written = self.report is not None and self.link.refusal is None
        unwritten = self.report.write(end, self.link.home) if self.report is not None and written else None
        self.link.tell_end(end)
        self._turn_until(lambda: self.link.settled, DOUBTFUL_SECONDS if self.link.owes else REPORT_SECONDS)
        if self.report is not None and self.link.knows_end:
            self.report.remove()
        elif unwritten is not None:
            _say(
                f"{self.options.name}: how it ended could not be reported to a daemon, nor recorded for one"
                f" ({unwritten})"
            )
        complaint = self.link.complaint or (str(self.link.refusal) if self.link.refusal is not None else None)
        if complaint is not None:
            _say(f"{self.options.name}: {complaint}")
        if self.link.end_ordered and self.link.home is not None and os.isatty(2):
            self._say_who_killed(self.link.home)

    def _say_who_killed(self, home: str) -> None:
        """A person at this terminal would otherwise see `Terminated` alone; a file or a pipe is the agent's own."""
        from watchdog.cli.run.killed import killed_line  # lazily: most agents end by themselves

        name, named = self.options.name, self.options.socket is not None
        line = killed_line(name, self.options.agent_id, home, named=named)
        if line is not None:
            _say(line)


def _send_sigio(descriptor: int) -> None:
    """Have the kernel send us SIGIO when the descriptor is readable."""
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_ASYNC)


def _say(message: str) -> None:
    """Print one line for a person; only before the agent starts and after it has exited, as the screen is its own.

    Reasons and notes in it come from others: control characters are escaped.
    """
    if not message.isprintable():
        from watchdog.cli.output import clean  # lazily: rarely needed

        message = clean(message)
    try:  # noqa: SIM105  contextlib costs memory
        os.write(2, f"agent-watchdog run: {message}\n".encode("utf-8", "backslashreplace"))
    except OSError:
        pass  # stderr is closed
