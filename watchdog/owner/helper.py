"""The helper: a process that runs as one owner's uid and answers the daemon's questions about that owner's files.

One JSON object a line on stdin, `{"id": n, "call": name, "args": {...}}`; one a line on stdout, `{"id": n, "ok": true,
"result": ...}` or `{"id": n, "ok": false, "error": code, "message": ...}`. Each call of the shared helper has a thread
of its own, so a path that hangs delays no other; answers come as they are ready. With `--alone` the helper does one
hook run and ends: it never touches a path itself but watches the child that does, and ends that child's tree at the
deadline or when the daemon has gone.

Started as `python -I -m watchdog.owner.helper`. It imports core, errors and the standard library only.
"""

import errno
import json
import os
import stat
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from watchdog.core.model import HookContext, HookOutcome, HookResult
from watchdog.core.redaction import hide_secrets
from watchdog.errors import OwnerCallFailed, PathRefused, WatchdogError
from watchdog.owner import contained, findings, hindrances, leftovers, proc_files
from watchdog.owner.command import run_command, run_notice
from watchdog.owner.conversations import conversation
from watchdog.owner.hooks import BUILT_IN, base
from watchdog.owner.purging import purge
from watchdog.owner.reports import end_report, end_report_done, end_reports
from watchdog.owner.restoring import restorable, restore
from watchdog.owner.sources import source_discover, source_forget
from watchdog.owner.terminals.panes import pane_find, pane_screen, type_keys
from watchdog.owner.terminals.showing import pane_shows

LINE_LIMIT = 1 << 20  # bytes, both ways; the daemon keeps to it in what it asks
CALLS_LIMIT = 64  # threads; beyond, the daemon is told to come again
TAIL, LINES, LINE = 16_384, 10, 200  # of a log: bytes that are read, lines and characters of a line that are told
RESULT_LIMIT = 262_144  # bytes of a built-in hook's answer

Call = Callable[..., object]


def ping() -> dict[str, object]:
    """Who answers."""
    return {"pid": os.getpid(), "uid": os.geteuid()}


def stamp(path: str) -> dict[str, object]:
    """What tells of a file whether it was changed. It is only looked at, never opened: a FIFO would not let us go.

    `full`: nothing more can be written to its file system.
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OwnerCallFailed("not_regular", f"{path} is no regular file")
    disk = os.statvfs(path)
    return {
        "full": disk.f_blocks > 0 and disk.f_bavail == 0,
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,  # a rewrite with the same mtime is still a beat
        "size": status.st_size,
        "inode": status.st_ino,
        "device": status.st_dev,
    }


def last_lines(path: str) -> list[str]:
    """The last lines of a text file, ten at most, each cut, and without what `hide_secrets` knows.

    A line that begins before what is read is left out, and so is a key that does: half a secret is known by nothing.
    """
    stamp(path)  # opening what is no regular file may block, or do something
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        start = max(0, size - TAIL)
        text = os.pread(file.fileno(), TAIL, start).decode("utf-8", "replace")
    if start:
        text = text.partition("\n")[2]
    text = hide_secrets(text).rpartition("PRIVATE KEY-----")[2]
    return [line[:LINE] for line in text.splitlines() if line.strip()][-LINES:]


def moved(processes: list[list[int]]) -> dict[str, int]:
    """Bytes that each of these processes (pid and start ticks) has read and written so far, to whatever (proc(5), io).

    Who is gone, or may not be looked at, is left out.
    """
    found = {}
    for pid, start_ticks in processes:
        try:
            counts = dict(line.split(b": ") for line in proc_files.read(pid, "io").splitlines())
            fields = proc_files.read(pid, "stat").rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[19]) == start_ticks:  # the number has not passed on
            found[str(pid)] = int(counts[b"rchar"]) + int(counts[b"wchar"])
    return found


CALLS: dict[str, Call] = {
    "ping": ping,
    "stamp": stamp,
    "last_lines": last_lines,
    "moved": moved,
    "conversation": conversation,
    "source_discover": source_discover,
    "source_forget": source_forget,
    "pane_find": pane_find,
    "pane_screen": pane_screen,
    "pane_shows": pane_shows,
    "end_report": end_report,
    "end_reports": end_reports,
    "end_report_done": end_report_done,
}


def guarded(work: Callable[[], HookResult]) -> HookResult:
    """Do it here and now; whatever it raises is `failed`."""
    try:
        return work()
    except OSError as error:
        word, words = hindrances.explain(error)
        place = "" if error.filename is None else f" at {error.filename!r}"
        return base.failed(f"left as it is{place}: {words}", reason=word)
    except Exception as error:  # noqa: BLE001 one hook's fault must not take the answer with it
        return base.failed(f"{type(error).__name__}: {error}", reason="fault")


def built_in_hook(name: str, context: HookContext, settings: base.CleanupSettings) -> HookResult:
    """Run one built-in hook here and now."""
    return guarded(lambda: BUILT_IN[name](context, settings))


def contained_work(work: Iterable[object], seconds: float, limit: int) -> tuple[contained.Ran, bytes]:
    """What `work` yields, each as a line of JSON, from a child below the deadline; at most `limit` bytes are kept.

    When it raises, the last line has its words instead, without an end, and the wait status is not 0.
    """
    result_pipe, end = contained.pipe_pair()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def tell(data: bytes) -> None:
        while data:
            data = data[os.write(3, data) :]

    def in_the_child() -> None:
        try:
            for one in work:
                tell(json.dumps(one).encode() + b"\n")
        except Exception as error:  # noqa: BLE001 told to the helper, which goes on
            tell(f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace").replace(b"\n", b" "))
            os._exit(1)

    try:
        pid = contained.start(in_the_child, {0: null, 1: null, 2: null, 3: end})
        contained.close_all([end, null])
        ran = contained.supervise(pid, {result_pipe: limit}, seconds, caller=0)
    finally:
        contained.close_all([result_pipe])
    return ran, ran.output[result_pipe]


def contained_result(work: Callable[[], HookResult], seconds: float) -> HookResult:
    """The result of a piece of work in a child below the deadline."""
    ran, answer = contained_work((base.result_json(do()) for do in (work,)), seconds, RESULT_LIMIT)
    if ran.late:
        return HookResult(HookOutcome.TIMEOUT, f"ended after {seconds:g} s", {"processes_not_ended": ran.survivors})
    try:
        return base.result_of(json.loads(answer))
    except ValueError:
        return base.failed(f"the hook's process ended with wait status {ran.status} and no answer")


def hook(run: str, context: dict[str, Any], settings: dict[str, Any], timeout_seconds: float) -> dict[str, object]:
    """The call for a built-in hook."""
    if run not in BUILT_IN:
        return base.result_json(base.failed(f"there is no built-in hook {run!r}; there are {', '.join(BUILT_IN)}"))
    values = base.context_of(context), base.settings_of(settings)
    return base.result_json(contained_result(lambda: built_in_hook(run, *values), timeout_seconds))


def reap_look(settings: dict[str, Any], known: dict[str, Any], timeout_seconds: float) -> dict[str, object]:
    """What dead agents have left in this owner's places; each kind has its share of the time, in a child of its own."""
    values = base.settings_of(settings), findings.known_of(known)
    kinds = list(leftovers.FINDERS)
    found: list[object] = []
    problems = []
    for kind in kinds:
        seconds = timeout_seconds / len(kinds)
        lines = (findings.finding_json(one) for one in leftovers.look(kind, *values))
        ran, answer = contained_work(lines, seconds, LINE_LIMIT // (2 * len(kinds)))
        *whole, last = answer.split(b"\n")
        found += [json.loads(line) for line in whole]
        if ran.late:
            problems.append(f"{kind}: ended after {seconds:g} s; what it had found by then counts")
        elif ran.status != 0:
            problems.append(f"{kind}: {last.decode('utf-8', 'replace') or f'wait status {ran.status}'}"[:500])
    return {"findings": found, "problems": problems}


def reap_act(
    finding: dict[str, Any], settings: dict[str, Any], known: dict[str, Any], timeout_seconds: float
) -> dict[str, object]:
    """Deal with one finding."""
    values = findings.finding_of(finding), base.settings_of(settings), findings.known_of(known)
    return base.result_json(contained_result(lambda: guarded(lambda: leftovers.act(*values)), timeout_seconds))


def command_hook(command: list[str], context: dict[str, Any], timeout_seconds: float) -> dict[str, object]:
    """The call for a command hook."""
    return base.result_json(run_command(command, base.context_of(context), timeout_seconds, caller=0))


def notify_command(command: list[str], name: str, event: str, timeout_seconds: float) -> dict[str, object]:
    """The call for the command of `[notify]`."""
    return base.result_json(run_notice(command, name, event, timeout_seconds, caller=0))


ALONE: dict[str, Call] = {
    **CALLS,
    "hook": hook,
    "reap_look": reap_look,
    "reap_act": reap_act,
    "command_hook": command_hook,
    "notify_command": notify_command,
    "type_keys": type_keys,
    "restorable": restorable,
    "restore": restore,
    "purge": purge,
}


def answer(calls: dict[str, Call], request: dict[str, Any]) -> dict[str, object]:
    """Do one call. Whatever it raises becomes an error answer."""
    number = request.get("id")
    try:
        call = calls[request["call"]]
        return {"id": number, "ok": True, "result": call(**request.get("args", {}))}
    except OwnerCallFailed as error:
        code, message = error.reason, str(error)
    except PathRefused as error:
        code, message = "refused", str(error)
    except OSError as error:
        code, message = errno.errorcode.get(error.errno or 0, "OSError"), str(error)
    except (KeyError, TypeError, ValueError) as error:
        code, message = "bad_request", f"{type(error).__name__}: {error}"
    except WatchdogError as error:
        code, message = error.code, str(error)
    except Exception as error:  # noqa: BLE001 one call's fault must not end the others'
        code, message = "failed", f"{type(error).__name__}: {error}"
    return {"id": number, "ok": False, "error": code, "message": message}


class _Answers:
    """Whole lines on the descriptor that was stdout; nothing that prints by accident gets in between."""

    def __init__(self) -> None:
        self._fd = os.dup(1)
        self._lock = threading.Lock()
        null = os.open("/dev/null", os.O_WRONLY)
        os.dup2(null, 1)
        os.close(null)

    def write(self, reply: dict[str, object]) -> None:
        """One answer; one that is too long is replaced by saying so."""
        data = json.dumps(reply).encode() + b"\n"
        if len(data) > LINE_LIMIT:
            short = {"id": reply["id"], "ok": False, "error": "too_long", "message": f"{len(data)} bytes"}
            data = json.dumps(short).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._fd, data) :]


def _requests() -> Any:
    """Requests, one a line, until the daemon closes the pipe. Raises ValueError for what is none."""
    with open(0, "rb", buffering=65536, closefd=False) as lines:
        while line := lines.readline(LINE_LIMIT):
            request = json.loads(line)
            if not isinstance(request, dict):
                raise ValueError("a request is one JSON object")
            yield request


def _serve(answers: _Answers) -> None:
    slots = threading.BoundedSemaphore(CALLS_LIMIT)

    def one(request: dict[str, Any]) -> None:
        try:
            answers.write(answer(CALLS, request))
        finally:
            slots.release()

    for request in _requests():
        if not slots.acquire(blocking=False):
            answers.write({"id": request.get("id"), "ok": False, "error": "busy", "message": "too many calls hang"})
            continue
        # A daemon thread: one that hangs must not keep us when the daemon has gone.
        threading.Thread(target=one, args=(request,), daemon=True).start()


def main() -> None:
    """Serve until stdin ends; with `--alone`, one request."""
    os.chdir("/")
    os.umask(0o077)
    answers = _Answers()
    if "--alone" in sys.argv[1:]:
        contained.become_subreaper()
        with open(0, "rb", buffering=0, closefd=False) as stdin:
            line = stdin.readline(LINE_LIMIT)
        if line:
            answers.write(answer(ALONE, json.loads(line)))
        return
    _serve(answers)
    os._exit(0)  # threads that hang are not waited for


if __name__ == "__main__":
    main()
