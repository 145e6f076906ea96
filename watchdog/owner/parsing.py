"""Parses foreign data in a confined child: no programs, no network, and access only to the given directories.

Such a child can neither inspect other processes (`confinement`) nor run a terminal's client. For that it calls
functions marked `outside`, which run in the process that started it.
"""

import errno
import functools
import json
import os
import socket
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from watchdog.errors import OwnerCallFailed, PathRefused, WatchdogError
from watchdog.owner import bounded_child, confinement

LIMIT = 4 << 20  # bytes per message between the two
_CHANNEL = 3

P = ParamSpec("P")
T = TypeVar("T")
_OUTSIDE: dict[str, Callable[..., object]] = {}
_asking: list[Callable[[str, tuple[object, ...]], object]] = []  # in such a child: calls its parent


def outside(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that it always runs in the unconfined process. Arguments and result are plain JSON values.

    It may raise OwnerCallFailed; any other exception arrives as that.
    """
    name = f"{function.__module__}.{function.__qualname__}"
    _OUTSIDE[name] = function

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs, "by position only"
        return _asking[0](name, args) if _asking else function(*args)  # type: ignore[return-value,call-arg]

    return called


def parsed(
    work: Callable[[], object], places: Iterable[str], reads: Iterable[str] = (), removed: Iterable[str] = ()
) -> object:
    """The JSON result of `work`, run in a child that may only use `places`, read in `reads` and remove in `removed`.

    The calling process must have one thread. Raises OwnerCallFailed: for an exception of `work`, with the helper's code
    for it; `lost` when the child exited without an answer (its memory or CPU time was used up).
    """
    rules = list(confinement.parser_rules(places, reads, removed))
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with here:
        with there:
            pid = bounded_child.start(lambda: _work(work, rules), {_CHANNEL: there.fileno()})
        try:
            answer = _serve(here)
        finally:
            here.close()
            status = bounded_child.end(pid)
    if answer is None:
        raise OwnerCallFailed("lost", f"the process that parsed it {bounded_child.how(status)}")
    if "error" in answer:
        raise OwnerCallFailed(str(answer["error"])[:64], str(answer.get("message"))[:2000])
    return answer.get("result")


def _work(work: Callable[[], object], rules: list[tuple[str, int]]) -> None:
    """The child's part."""
    channel = socket.socket(fileno=_CHANNEL)
    lines = channel.makefile("rb")

    def ask(name: str, args: tuple[object, ...]) -> object:
        channel.sendall(json.dumps({"ask": name, "args": args}).encode() + b"\n")
        told = json.loads(lines.readline(LIMIT))
        if "error" in told:
            raise OwnerCallFailed(told["error"], told["message"])
        return told["result"]

    confinement.limit(confinement.PARSER_BYTES, confinement.PARSER_SECONDS)
    confinement.seal(confinement.ROOT_PARSES)
    confinement.fence(rules)
    confinement.filter_calls(execute=False)
    _asking[:] = [ask]
    try:
        said: dict[str, object] = {"result": work()}
    except Exception as error:  # noqa: BLE001 reported to the caller
        said = as_error(error)
    channel.sendall(json.dumps(said).encode() + b"\n")


def _serve(channel: socket.socket) -> dict[str, object] | None:
    """Serve its calls until it sends its result; None if it exits without one."""
    with channel.makefile("rb") as lines:
        while line := lines.readline(LIMIT):
            try:
                said = json.loads(line)
                if "ask" not in said:
                    return dict(said)
                told: dict[str, object] = {"result": _OUTSIDE[said["ask"]](*said["args"])}
            except Exception as error:  # noqa: BLE001 the child may be compromised: any message is survived
                told = as_error(error)
            try:
                channel.sendall(json.dumps(told).encode() + b"\n")
            except OSError:
                return None
    return None


def as_error(error: Exception) -> dict[str, object]:
    """A helper's answer for an exception: a code and a message."""
    if isinstance(error, OwnerCallFailed):
        code, message = error.reason, str(error)
    elif isinstance(error, PathRefused):
        code, message = "refused", str(error)
    elif isinstance(error, OSError):
        code, message = errno.errorcode.get(error.errno or 0, "OSError"), str(error)
    elif isinstance(error, MemoryError):
        code, message = "out_of_memory", "it needs more memory than a call may have"
    elif isinstance(error, KeyError | TypeError | ValueError):
        code, message = "bad_request", f"{type(error).__name__}: {error}"
    elif isinstance(error, WatchdogError):
        code, message = error.code, str(error)
    else:
        code, message = "failed", f"{type(error).__name__}: {error}"
    return {"error": code, "message": message}


def place_of(path: str) -> str:
    """The directory for a registered path: itself, or the directory of a file (which also holds SQLite's other
    files).
    """
    return path if os.path.isdir(path) else os.path.dirname(path) or "/"
