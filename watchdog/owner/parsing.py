"""What parses foreign data, in a child of its own: no program is run by it, no network, and only its places are seen.

Such a child cannot look at other processes (`confinement`), nor run a terminal's client. What it has to know of them it
asks the process that started it, by the functions that are marked `outside`: these are called there.
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

LIMIT = 4 << 20  # bytes of one message between the two
_CHANNEL = 3

P = ParamSpec("P")
T = TypeVar("T")
_OUTSIDE: dict[str, Callable[..., object]] = {}
_asking: list[Callable[[str, tuple[object, ...]], object]] = []  # in such a child: how it asks


def outside(function: Callable[P, T]) -> Callable[P, T]:
    """Called in the process that may look, wherever it is called. Arguments and result are plain JSON values.

    It may raise OwnerCallFailed; whatever else it raises arrives as that.
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
    """What `work` returns, as JSON, from a child that may use `places` alone, read in `reads` and remove in `removed`.

    For a process with one thread. Raises OwnerCallFailed: what `work` raises, with the code that the helper would give
    it; `lost` when the child ended without an answer (its memory or CPU time was used up).
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
    """In the child."""
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
    """Answer its questions until it says its result; None when it ends without."""
    with channel.makefile("rb") as lines:
        while line := lines.readline(LIMIT):
            try:
                said = json.loads(line)
                if "ask" not in said:
                    return dict(said)
                told: dict[str, object] = {"result": _OUTSIDE[said["ask"]](*said["args"])}
            except Exception as error:  # noqa: BLE001 it is foreign by now: whatever it asks, we go on
                told = as_error(error)
            try:
                channel.sendall(json.dumps(told).encode() + b"\n")
            except OSError:
                return None
    return None


def as_error(error: Exception) -> dict[str, object]:
    """What a helper answers for it: a code and words."""
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
    """The directory that a registered path means: itself, or the one that its file lies in (with SQLite's others)."""
    return path if os.path.isdir(path) else os.path.dirname(path) or "/"
