"""The helper: a process that runs as one owner's uid and serves the daemon's calls about that owner's files.

One JSON object per line on stdin, `{"id": n, "call": name, "args": {...}}`; one per line on stdout, `{"id": n, "ok":
true, "result": ...}` or `{"id": n, "ok": false, "error": code, "message": ...}`. Each call of the shared helper has a
child of its own (simple file checks have a thread in one common child), so a path that hangs delays no other call, and
a call that uses up its memory or CPU time fails alone; answers come as they are ready. With `--alone` the helper serves
one call, such as a hook run, and exits: it never touches a path itself but supervises the child that does, and kills
that child's tree at the deadline or when the daemon is gone. With `--command` likewise for a program of the operator or
the owner.

Started as `python -I -m watchdog.owner.helper`; by root with `--become=UID:GID:GROUPS`. It imports core, errors and the
standard library only. Its restrictions are in `confinement`. For a command it only prevents the owner from tracing the
helper: the command itself belongs to them, and may use the network and run anything.

Tests: tests/helpers/test_pool.py, tests/fuzz/test_helper_protocol.py.
"""

import json
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from watchdog.client import custody
from watchdog.core import findings, hooks
from watchdog.core.hooks import HookContext, HookOutcome, HookResult
from watchdog.core.redaction import hide_secrets
from watchdog.errors import OwnerCallFailed
from watchdog.owner import bounded_child, confinement, environments, os_errors, proc_files, whereabouts
from watchdog.owner.command_hook import run_command, run_notice
from watchdog.owner.conversations import conversation
from watchdog.owner.credentials import refuse_foreign
from watchdog.owner.finders import finders
from watchdog.owner.git.restore import restorable, restore
from watchdog.owner.hooks import BUILT_IN
from watchdog.owner.occupancy import place
from watchdog.owner.parsing import as_error
from watchdog.owner.purge import purge
from watchdog.owner.run_reports import end_report, end_report_done, end_reports
from watchdog.owner.session_states import session_state, turn_state
from watchdog.owner.sites import site
from watchdog.owner.sources import source_discover, source_forget
from watchdog.owner.terminals.pane_content import first_prompt, pane_shows
from watchdog.owner.terminals.panes import pane_find, pane_screen, type_keys

LINE_LIMIT = 1 << 20  # bytes in either direction; the daemon keeps to it too
CALLS_LIMIT = 64  # threads, and children; beyond that the answer is `busy`, and the daemon retries
TAIL, LINES, LINE = 16_384, 10, 200  # of a log: bytes read, lines returned, characters per line
RESULT_LIMIT = 262_144  # bytes of a built-in hook's answer

Call = Callable[..., object]


def ping() -> dict[str, object]:
    """The helper's pid and uid."""
    return {"pid": os.getpid(), "uid": os.geteuid()}


def stamp(path: str) -> dict[str, object]:
    """The attributes that show whether a file was changed. It is never opened: a FIFO would block.

    `unwritable`: why no beat can be written to it now, if so.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OwnerCallFailed("not_regular", f"{path} is not a regular file")
    return {
        "unwritable": os_errors.unwritable(path, rights=False),
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,  # a rewrite with the same mtime is still a beat
        "size": status.st_size,
        "inode": status.st_ino,
        "device": status.st_dev,
    }


def last_lines(path: str) -> list[str]:
    """The last lines of a text file, at most ten, truncated, and without what `hide_secrets` recognises.

    A line or a private key that begins before the part that is read is left out: half a secret is not recognised.
    """
    stamp(path)  # opening a file that is not regular may block or have side effects
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size - TAIL)
        text = os.pread(file.fileno(), TAIL, start).decode("utf-8", "replace")
    if start:
        text = text.partition("\n")[2]
    text = hide_secrets(text).rpartition("PRIVATE KEY-----")[2]
    return [line[:LINE] for line in text.splitlines() if line.strip()][-LINES:]


def daemon_of(pid: int, start_ticks: int, sockets: list[str], but: str) -> dict[str, Any] | None:
    """The daemon that holds that process, as `client.custody` finds it."""
    return custody.daemon_of(pid, start_ticks, sockets, but, environments.of(pid))


def moved(processes: list[list[int]]) -> dict[str, int]:
    """Bytes that each of these processes (pid and start ticks) has read and written so far, of any kind (proc(5), io).

    A process that is gone or unreadable is left out.
    """
    found = {}
    for pid, start_ticks in processes:
        try:
            counts = dict(line.split(b": ") for line in proc_files.read(pid, "io").splitlines())
            fields = proc_files.read(pid, "stat").rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[19]) == start_ticks:  # the pid has not been reused
            found[str(pid)] = int(counts[b"rchar"]) + int(counts[b"wchar"])
    return found


def real_path(path: str) -> str:
    """The canonical name of a path. Nothing is opened."""
    return os.path.realpath(path)


IN_PLACE: dict[str, Call] = {"ping": ping}  # cannot hang
# A fork costs 1.5 ms, a thread 0.1 ms: a host has hundreds of beat files, checked in each sweep. These parse nothing.
LOOKS: dict[str, Call] = {"stamp": stamp, "last_lines": last_lines, "moved": moved, "real_path": real_path}
CALLS: dict[str, Call] = {
    "conversation": conversation,
    "place": place,
    "site": site,
    "daemon_of": daemon_of,
    "session_state": session_state,
    "turn_state": turn_state,
    "source_discover": source_discover,
    "source_forget": source_forget,
    "pane_find": pane_find,
    "pane_screen": pane_screen,
    "pane_shows": pane_shows,
    "first_prompt": first_prompt,
    "end_report": end_report,
    "end_reports": end_reports,
    "end_report_done": end_report_done,
}


def guarded(work: Callable[[], HookResult]) -> HookResult:
    """Run it in this process; any exception becomes a `failed` result."""
    try:
        return work()
    except OSError as error:
        word, words = os_errors.explain(error)
        place = "" if error.filename is None else f" at {error.filename!r}"
        return hooks.failed(f"left as it is{place}: {words}", reason=word)
    except Exception as error:  # noqa: BLE001 a hook's exception must still give an answer
        return hooks.failed(f"{type(error).__name__}: {error}", reason="fault")


def built_in_hook(name: str, context: HookContext, settings: hooks.CleanupSettings) -> HookResult:
    """Run one built-in hook in this process."""
    return guarded(lambda: BUILT_IN[name](context, settings))


def contained_work(
    work: Iterable[object], seconds: float, limit: int
) -> tuple[bounded_child.ChildResult, bytes, str | None]:
    """Run `work` in a child with a deadline; return what it yields as lines of JSON, at most `limit` bytes.

    Also returns the last path that it touched. If it raises, the last line is the error's text without a newline, and
    the wait status is not 0.
    """
    result_pipe, end = bounded_child.pipe_pair()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    board = bounded_child.input_file(b"")

    def tell(data: bytes) -> None:
        _write(3, data)

    def in_the_child() -> None:
        whereabouts.tell(4)
        try:
            for one in work:
                tell(json.dumps(one).encode() + b"\n")
        except Exception as error:  # noqa: BLE001 reported to the helper, which continues
            tell(f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").replace(b"\n", b" "))
            os._exit(1)

    try:
        pid = bounded_child.start(in_the_child, {0: null, 1: null, 2: null, 3: end, 4: board})
        bounded_child.close_all([end, null])
        ran = bounded_child.supervise(pid, {result_pipe: limit}, seconds, caller=0)
        place = whereabouts.read(board)
    finally:
        bounded_child.close_all([result_pipe, board])
    return ran, ran.output[result_pipe], place


def contained_result(work: Callable[[], HookResult], seconds: float) -> HookResult:
    """The result of `work`, run in a child with a deadline."""
    ran, answer, _ = contained_work((hooks.result_json(do()) for do in (work,)), seconds, RESULT_LIMIT)
    if ran.late:
        return HookResult(HookOutcome.TIMEOUT, f"ended after {seconds:g} s", {"processes_not_ended": ran.survivors})
    try:
        return hooks.result_of(json.loads(answer))
    except ValueError:
        return hooks.failed(f"the hook's process ended with wait status {ran.status} and no answer")


def hook(run: str, context: dict[str, Any], settings: dict[str, Any], timeout_seconds: float) -> dict[str, object]:
    """The call for a built-in hook."""
    if run not in BUILT_IN:
        return hooks.result_json(hooks.failed(f"there is no built-in hook {run!r}; there are {', '.join(BUILT_IN)}"))
    values = hooks.context_of(context), hooks.settings_of(settings)
    return hooks.result_json(contained_result(lambda: built_in_hook(run, *values), timeout_seconds))


def reap_look(settings: dict[str, Any], known: dict[str, Any], timeout_seconds: float) -> dict[str, object]:
    """Leftovers of dead agents in this owner's directories; each kind has a share of the time, in a child of
    its own.
    """
    values = hooks.settings_of(settings), findings.known_of(known)
    kinds = list(finders.FINDERS)
    found: list[object] = []
    problems = []
    for kind in kinds:
        seconds = timeout_seconds / len(kinds)
        lines = (findings.finding_json(one) for one in finders.look(kind, *values))
        ran, answer, place = contained_work(lines, seconds, LINE_LIMIT // (2 * len(kinds)))
        *whole, last = answer.split(b"\n")
        found += [json.loads(line) for line in whole]
        if ran.late:
            where = "" if place is None else f", at work in {hooks.printable(place)}"
            problems.append(f"{kind}: ended after {seconds:g} s{where}; what it had found by then counts")
        elif ran.status != 0:
            problems.append(f"{kind}: {last.decode('utf-8', 'replace') or f'wait status {ran.status}'}"[:500])
    return {"findings": found, "problems": problems}


def reap_act(
    finding: dict[str, Any], settings: dict[str, Any], known: dict[str, Any], timeout_seconds: float
) -> dict[str, object]:
    """Act on one finding."""
    values = findings.finding_of(finding), hooks.settings_of(settings), findings.known_of(known)
    return hooks.result_json(contained_result(lambda: guarded(lambda: finders.act(*values)), timeout_seconds))


def command_hook(command: list[str], context: dict[str, Any], timeout_seconds: float) -> dict[str, object]:
    """The call for a command hook."""
    return hooks.result_json(run_command(command, hooks.context_of(context), timeout_seconds, caller=0))


def notify_command(command: list[str], name: str, event: str, timeout_seconds: float) -> dict[str, object]:
    """The call for the command of `[notify]`."""
    return hooks.result_json(run_notice(command, name, event, timeout_seconds, caller=0))


COMMANDS: dict[str, Call] = {"command_hook": command_hook, "notify_command": notify_command}
ALONE: dict[str, Call] = {
    **IN_PLACE,
    **LOOKS,
    **CALLS,
    "hook": hook,
    "reap_look": reap_look,
    "reap_act": reap_act,
    "type_keys": type_keys,
    "restorable": restorable,
    "restore": restore,
    "purge": purge,
}


def answer(calls: dict[str, Call], request: dict[str, Any]) -> dict[str, object]:
    """Serve one call. Any exception becomes an error answer."""
    number = request.get("id")
    try:
        call, args = calls[request["call"]], request.get("args", {})
        refuse_foreign(args)
        return {"id": number, "ok": True, "result": call(**args)}
    except Exception as error:  # noqa: BLE001 one call's exception must not affect the others
        return {"id": number, "ok": False, **as_error(error)}


class _Answers:
    """Writes whole lines to a descriptor; the helper's own is stdout, which accidental prints cannot reach.

    `first`: merged into the first answer.
    """

    def __init__(self, fd: int, first: dict[str, object] | None = None) -> None:
        self._fd = fd
        self._first = dict(first or {})
        self._lock = threading.Lock()

    def write(self, reply: dict[str, object]) -> None:
        """Write one answer; one that is too long is replaced by an error."""
        with self._lock:
            reply, self._first = reply | self._first, {}
            data = json.dumps(reply).encode() + b"\n"
            if len(data) > LINE_LIMIT:
                short = {"id": reply["id"], "ok": False, "error": "too_long", "message": f"{len(data)} bytes"}
                data = json.dumps(short).encode() + b"\n"
            _write(self._fd, data)


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _own_stdout() -> int:
    """A descriptor for answers; stdout itself is redirected to /dev/null."""
    fd = os.dup(1)
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    return fd


def _request(line: bytes) -> dict[str, Any]:
    """Parse a request. Raises ValueError for anything else: if the daemon breaks the protocol, the helper exits."""
    request = json.loads(line)
    if not isinstance(request, dict):
        raise ValueError("a request is one JSON object")
    return request


def look_on() -> None:
    """The child for simple checks: a thread for each, so that one that hangs delays no other. It starts no programs."""
    confinement.limit(confinement.PARSER_BYTES, confinement.WORK_SECONDS)
    confinement.filter_calls(execute=False, sockets=False)
    answers = _Answers(1)
    slots = threading.BoundedSemaphore(CALLS_LIMIT)

    def one(request: dict[str, Any]) -> None:
        try:
            answers.write(answer(LOOKS, request))
        finally:
            slots.release()

    with open(0, "rb", buffering=65536, closefd=False) as lines:
        while line := lines.readline(LINE_LIMIT):
            request = _request(line)
            if not slots.acquire(blocking=False):
                answers.write(_busy(request))
                continue
            # A daemon thread: one that hangs must not keep this process alive when the helper is gone.
            threading.Thread(target=one, args=(request,), daemon=True).start()
    os._exit(0)


def _busy(request: dict[str, Any]) -> dict[str, object]:
    return {"id": request.get("id"), "ok": False, "error": "busy", "message": "too many calls hang"}


@dataclass(slots=True)
class _Child:
    """A child process: for one call (`number`), or for all simple checks, whose answers are passed on line by line."""

    pid: int
    output: int
    number: object = None
    requests: int | None = None  # only for simple checks: the descriptor for requests
    data: bytearray = field(default_factory=bytearray)


class _SharedState:
    """The shared helper: it has one thread, parses none of the owner's data, and starts children that do."""

    def __init__(self, answers: _Answers) -> None:
        self._answers = answers
        self._children: dict[int, _Child] = {}  # by the descriptor of their answers
        self._looks: _Child | None = None
        self._poll = select.poll()
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def serve(self) -> None:
        """Serve until stdin ends. The children die with this process (PR_SET_PDEATHSIG)."""
        bounded_child.become_subreaper()
        pending = bytearray()
        requests: deque[bytes] = deque()
        self._poll.register(0, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd != 0:
                    self._hear(self._children[fd])
                    continue
                data = os.read(0, 65536)
                if not data:
                    return
                pending += data
                *whole, rest = pending.split(b"\n")
                pending = rest
                requests.extend(map(bytes, whole))
            while requests:
                self._take(_request(requests.popleft()))

    def _take(self, request: dict[str, Any]) -> None:
        name = request.get("call")
        if name in IN_PLACE:
            self._answers.write(answer(IN_PLACE, request))
        elif name in LOOKS:
            self._look(request)
        elif len(self._children) > CALLS_LIMIT:
            self._answers.write(_busy(request))
        else:
            self._call(request)

    def _call(self, request: dict[str, Any]) -> None:
        output, end = bounded_child.pipe_pair()

        def work() -> None:
            confinement.limit(confinement.PARSER_BYTES, confinement.PARSER_SECONDS)
            _Answers(3).write(answer(CALLS, request))

        pid = bounded_child.start(work, {0: self._null, 1: self._null, 3: end})
        self._start(_Child(pid, output, request.get("id")), end)

    def _look(self, request: dict[str, Any]) -> None:
        if self._looks is None:
            output, end = bounded_child.pipe_pair()
            reading, writing = bounded_child.pipe_pair()
            pid = bounded_child.start(look_on, {0: reading, 1: end})
            os.close(reading)
            self._looks = _Child(pid, output, requests=writing)
            self._start(self._looks, end)
        assert self._looks.requests is not None
        try:
            _write(self._looks.requests, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:  # it has exited, by a signal from the owner
            self._answers.write({"id": request.get("id"), "ok": False, "error": "lost", "message": "it has ended"})

    def _start(self, child: _Child, end: int) -> None:
        os.close(end)
        self._children[child.output] = child
        self._poll.register(child.output, select.POLLIN)

    def _hear(self, child: _Child) -> None:
        """Read from a child; when it exits, pass on its one answer, or report that there is none."""
        data = os.read(child.output, 65536)
        child.data += data
        if child is self._looks:
            *whole, rest = child.data.split(b"\n")
            child.data = rest
            for line in whole:
                self._hand_on(bytes(line), None, "")
        if data and len(child.data) <= LINE_LIMIT + 1:
            return
        self._poll.unregister(child.output)
        del self._children[child.output]
        os.close(child.output)
        status = bounded_child.end(child.pid)
        bounded_child.end_strays([one.pid for one in self._children.values()])
        if child is self._looks:
            raise SystemExit(f"the process for looks {bounded_child.how(status)}")  # the daemon starts another helper
        self._hand_on(bytes(child.data).removesuffix(b"\n"), child.number, bounded_child.how(status))

    def _hand_on(self, line: bytes, number: object, how: str) -> None:
        """Pass on a child's answer. Anything else it writes is dropped: by now it may be running the owner's code."""
        try:
            reply = json.loads(line)
            if how and reply["id"] != number:
                raise ValueError("another's answer")
        except (ValueError, KeyError, TypeError, RecursionError):
            reply = {"id": number, "ok": False, "error": "lost", "message": f"the process of this call {how}"}
        self._answers.write(reply)


def main() -> None:
    """Serve until stdin ends; with `--alone` or `--command`, one request."""
    options = sys.argv[1:]
    os.chdir("/")
    os.umask(0o077)
    for option in options:
        if not option.startswith("--become="):
            continue
        uid, gid, groups = option.removeprefix("--become=").split(":")
        confinement.become(
            int(uid), int(gid), [int(one) for one in groups.split(",") if one], bounded="--command" not in options
        )
    confinement.hide()
    answers = _Answers(_own_stdout(), _confine(options))
    if "--alone" in options or "--command" in options:
        bounded_child.become_subreaper()
        with open(0, "rb", buffering=0, closefd=False) as stdin:
            line = stdin.readline(LINE_LIMIT)
        if line:
            answers.write(answer(COMMANDS if "--command" in options else ALONE, _request(line)))
        return
    _SharedState(answers).serve()
    os._exit(0)


def _confine(options: list[str]) -> dict[str, object]:
    """Drop what this helper does not need; return what the host cannot enforce, for the first answer."""
    if "--command" in options:
        return {}
    alone = "--alone" in options
    confinement.seal(confinement.ROOT_WORKS if alone else confinement.ROOT_LOOKS)
    if alone:
        confinement.limit(confinement.WORK_BYTES, confinement.WORK_SECONDS)
    lacking = confinement.lacking()
    if not confinement.filter_calls():
        lacking.setdefault("seccomp", "the kernel refuses the filter")
    return {"lacking": lacking} if lacking else {}


if __name__ == "__main__":
    main()
