"""Runs a terminal's program (`tmux`, `wezterm`) so that nothing that it starts outlives its answer.

A hostile server can have tmux's client execute any program (MSG_SHELL, MSG_EXEC, MSG_LOCK of tmux-protocol.h, 3.3a).
Therefore:

1. A keeper process, forked for this one program, is the subreaper of all that it starts (`bounded_child`) and kills all
   of it when the program exits, when its time is over, or when the caller is gone.
2. The program leads a session without a controlling terminal, and has four descriptors: an empty or given stdin, pipes
   for stdout and stderr, and the server's socket.
3. It is judged by its exit, not by the end of its output: tmux's client passes its stdin and stdout to the server
   (MSG_IDENTIFY_STDIN, MSG_IDENTIFY_STDOUT), which may keep them open. The output is limited.
"""

import json
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from watchdog.owner import bounded_child, confinement

SOCKET = "/proc/self/fd/3"  # where the program finds the socket that it is to connect to
ERROR_LIMIT = 4096  # bytes of stderr that are kept
MISSING = 127  # exit status of a program that could not be executed, as in a shell
SLACK = bounded_child.END_LIMIT + 2.0  # seconds beyond the deadline that a keeper may take to kill everything


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The result. `status` None: it was late. `missing`: it could not be executed; `error` is the system's reason."""

    status: int | None = 0
    output: bytes = b""
    error: str = ""
    late: bool = False
    missing: bool = False


def run(
    argv: Sequence[str], variables: Mapping[str, str], socket: int, given: bytes, seconds: float, limit: int
) -> ClientResult:
    """Run the program to its end, at most `seconds`; keep `limit` bytes of its output.

    An incomplete answer also counts as late. May be called from any thread. Raises OSError if fork fails.
    """
    # WezTerm comes with launchers (AppImage, flatpak, scripts) that run other programs.
    fenced = confinement.only_runs("tmux") if argv[0] == "tmux" else None
    # Each descriptor is closed exactly once: its number may be reused by another thread.
    with ExitStack() as ours:
        with ExitStack() as theirs:
            answer, answering = bounded_child.pipe_pair()
            ours.callback(os.close, answer)
            theirs.callback(os.close, answering)
            asking, asker = bounded_child.pipe_pair()  # hangs up when this process is gone
            theirs.callback(os.close, asking)
            ours.callback(os.close, asker)
            keeper = os.fork()
            if not keeper:
                try:
                    _keep(argv, dict(variables), (socket, given, answering, asking), seconds, limit, fenced)
                finally:
                    os._exit(70)
        data = _read(answer, keeper, time.monotonic() + seconds + SLACK)
    head, _, output = data.partition(b"\n")
    try:
        return ClientResult(output=output, **json.loads(head))
    except (ValueError, TypeError):
        return ClientResult(late=True)


def _read(answer: int, keeper: int, deadline: float) -> bytes:
    """Read all from the keeper and reap it; kill it if even that takes too long."""
    data = bytearray()
    poll = select.poll()
    poll.register(answer, select.POLLIN)
    while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        got = os.read(answer, 1 << 20)
        if not got:
            break
        data += got
    else:
        os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)
    return bytes(data)


def _keep(
    argv: Sequence[str],
    variables: dict[str, str],
    wires: tuple[int, bytes, int, int],
    seconds: float,
    limit: int,
    fenced: Callable[[], object] | None,
) -> None:
    """The keeper's part. It has a single thread, so it must not take a lock that another thread held at the fork."""
    socket, given, answering, asking = wires
    bounded_child.become_subreaper()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # tmux's client may send it to its parent (MSG_DETACHKILL)
    _close_others({socket, answering, asking})
    socket = os.dup(socket)  # `bounded_child.start` needs low numbers
    stdin = bounded_child.input_file(given) if given else os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    (out, out_end), (err, err_end) = bounded_child.pipe_pair(), bounded_child.pipe_pair()

    def execute() -> None:
        try:
            if fenced is not None:
                fenced()
            os.execvpe(argv[0], list(argv), variables)  # noqa: S606 an argv, no shell wanted
        except OSError as error:
            os.write(2, (error.strerror or str(error)).encode())
            os._exit(MISSING)

    pid = bounded_child.start(execute, {0: stdin, 1: out_end, 2: err_end, 3: socket})
    bounded_child.close_all([stdin, out_end, err_end, socket])
    ran = bounded_child.supervise(pid, {out: limit, err: ERROR_LIMIT}, seconds, caller=asking, grace=0.0)
    status = None if ran.status is None else os.waitstatus_to_exitcode(ran.status)
    error = ran.output[err].decode("utf-8", "replace").strip()[:500]
    head = {"status": status, "late": status is None, "missing": status == MISSING, "error": error}
    data = memoryview(json.dumps(head).encode() + b"\n" + ran.output[out])
    while data:
        data = data[os.write(answering, data) :]
    os._exit(0)


def _close_others(kept: set[int]) -> None:
    """Close all other inherited descriptors: pipes of other threads' programs, and the daemon's."""
    last = -1
    for fd in [*sorted(kept), os.sysconf("SC_OPEN_MAX")]:
        os.closerange(last + 1, fd)
        last = fd
