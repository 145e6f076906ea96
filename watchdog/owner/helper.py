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
from collections.abc import Callable
from typing import Any

from watchdog.core.model import HookContext, HookOutcome, HookResult
from watchdog.errors import OwnerCallFailed, PathRefused, WatchdogError
from watchdog.owner import contained
from watchdog.owner.command import run_command, run_notice
from watchdog.owner.hooks import BUILT_IN, base

LINE_LIMIT = 1 << 20  # bytes, both ways
CALLS_LIMIT = 64  # threads; beyond, the daemon is told to come again
RESULT_LIMIT = 262_144  # bytes of a built-in hook's answer

Call = Callable[..., object]


def ping() -> dict[str, object]:
    """Who answers."""
    return {"pid": os.getpid(), "uid": os.geteuid()}


def beat_file(path: str) -> dict[str, object]:
    """The stamps of a file whose mtime is the beat. It is only looked at, never opened: a FIFO would not let us go."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OwnerCallFailed("not_regular", f"{path} is no regular file")
    return {
        "mtime_ns": status.st_mtime_ns,
        "ctime_ns": status.st_ctime_ns,  # a rewrite with the same mtime is still a beat
        "size": status.st_size,
        "inode": status.st_ino,
        "device": status.st_dev,
    }


CALLS: dict[str, Call] = {"ping": ping, "beat_file": beat_file}


def built_in_hook(name: str, context: HookContext, settings: base.CleanupSettings) -> HookResult:
    """Run one built-in hook here and now; whatever it raises is `failed`."""
    try:
        return BUILT_IN[name](context, settings)
    except OSError as error:
        what = errno.errorcode.get(error.errno or 0, "OSError")
        return base.failed(f"{error.strerror or error} ({what}) at {error.filename!r}", reason=what)
    except Exception as error:  # noqa: BLE001 one hook's fault must not take the answer with it
        return base.failed(f"{type(error).__name__}: {error}", reason="fault")


def contained_hook(name: str, context: HookContext, settings: base.CleanupSettings, seconds: float) -> HookResult:
    """Run one built-in hook in a child below the deadline."""
    if name not in BUILT_IN:
        return base.failed(f"there is no built-in hook {name!r}; there are {', '.join(sorted(BUILT_IN))}")
    result_pipe, end = contained.pipe_pair()
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def work() -> None:
        answer = json.dumps(base.result_json(built_in_hook(name, context, settings))).encode()
        while answer:
            answer = answer[os.write(3, answer) :]

    try:
        pid = contained.start(work, {0: null, 1: null, 2: null, 3: end})
        contained.close_all([end, null])
        ran = contained.supervise(pid, {result_pipe: RESULT_LIMIT}, seconds, caller=0)
    finally:
        contained.close_all([result_pipe])
    if ran.late:
        return HookResult(HookOutcome.TIMEOUT, f"ended after {seconds:g} s", {"processes_not_ended": ran.survivors})
    try:
        return base.result_of(json.loads(ran.output[result_pipe]))
    except ValueError:
        return base.failed(f"the hook's process ended with wait status {ran.status} and no answer")


def hook(run: str, context: dict[str, Any], settings: dict[str, Any], timeout_seconds: float) -> dict[str, object]:
    """The call for a built-in hook."""
    values = base.context_of(context), base.settings_of(settings)
    return base.result_json(contained_hook(run, *values, timeout_seconds))


def command_hook(command: list[str], context: dict[str, Any], timeout_seconds: float) -> dict[str, object]:
    """The call for a command hook."""
    return base.result_json(run_command(command, base.context_of(context), timeout_seconds, caller=0))


def notify_command(command: list[str], name: str, event: str, timeout_seconds: float) -> dict[str, object]:
    """The call for the command of `[notify]`."""
    return base.result_json(run_notice(command, name, event, timeout_seconds, caller=0))


ALONE: dict[str, Call] = {**CALLS, "hook": hook, "command_hook": command_hook, "notify_command": notify_command}


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
