"""Exceptions raised on purpose. Each message says what is wrong, where, and what to use.

`exit_code` is the exit status of a command (sysexits.h); `http_status` and `code` are the answer on the control socket.
The resident `run` and `beat` import this file: nothing is imported here (`typing` alone is 0.7 MB of a wrapper).

Tests: tests/control/test_server.py, tests/cli/test_verbs.py.
"""


class WatchdogError(Exception):
    """An expected error; the message is written for a person on call."""

    exit_code: int = 1
    http_status: int = 500
    code: str = "internal_error"


class ConfigError(WatchdogError):
    """The configuration cannot be used; `problems` lists every fault found, one line each."""

    exit_code = 78

    def __init__(self, problems: list[str], rest: object = None) -> None:
        """`rest`: the settings (`config.Settings`) of the file without the faulty keys, if they are usable."""
        super().__init__("\n".join(problems))
        self.problems = problems
        self.rest = rest


class AlreadyRunning(WatchdogError):
    """Another daemon holds the runtime directory."""

    exit_code = 75


class NoDescriptors(WatchdogError):
    """The limit of open files is too low, or reached."""

    exit_code = 75


class UnsafeDirectory(WatchdogError):
    """A runtime or state directory is a link, belongs to another user, or is open to others."""

    exit_code = 78


class DaemonUnreachable(WatchdogError):
    """No daemon answers on the control socket."""

    exit_code = 69
    http_status = 503
    code = "unreachable"


class DaemonBusy(DaemonUnreachable):
    """A daemon is there but cannot serve us now (too many connections, no registry): try again later."""

    exit_code = 75


class CannotStart(WatchdogError):
    """The system did not let `run` start its agent (descriptors, processes, a directory): EX_OSERR."""

    exit_code = 71


class RegistryUnavailable(WatchdogError):
    """The database cannot be read or written now; no agent is judged by it. `full`: for lack of disk space."""

    exit_code = 75
    http_status = 503
    code = "registry_unavailable"
    full = False


class NoSpace(WatchdogError):
    """The disk is full, or a user has used up its share: only essential data is written."""

    exit_code = 75
    http_status = 507
    code = "no_space"


class TooMany(WatchdogError):
    """Its uid has the maximum number of connections; the same request is served when some have ended."""

    exit_code = 75
    http_status = 503
    code = "too_many_connections"


class Limited(WatchdogError):
    """Its user has used up its share of requests for now; the same request is served later."""

    exit_code = 75
    http_status = 429
    code = "limited"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        """`retry_after`: whole seconds after which it is worth trying again."""
        super().__init__(message)
        self.retry_after = retry_after


class BadRequest(WatchdogError):
    """An invalid request: names the key and what to use."""

    exit_code = 64
    http_status = 400
    code = "bad_request"


class AgentNotFound(WatchdogError):
    """No agent has that name, id or pid."""

    http_status = 404
    code = "agent_not_found"


class ProcessNotFound(WatchdogError):
    """There is provably no such process, or it belongs to no agent."""

    http_status = 404
    code = "process_not_found"


class ProcessHidden(WatchdogError):
    """The kernel refused to show it (hidepid, EPERM, no descriptors): nothing is known, so nothing is done."""

    exit_code = 75
    http_status = 503
    code = "unknown"


class Held(WatchdogError):
    """An operator's hold is on that agent."""

    http_status = 409
    code = "held"


class Ambiguous(WatchdogError):
    """Several living agents match; the message lists their ids."""

    http_status = 409
    code = "ambiguous"


class Conflict(WatchdogError):
    """Not possible in the present state (a name is taken, an agent has ended)."""

    http_status = 409
    code = "conflict"


class Elsewhere(WatchdogError):
    """Another daemon of this host watches that process: one agent, one daemon."""

    http_status = 421
    code = "elsewhere"


class RowRemoved(Conflict):
    """The agent's row was removed from the registry by another program."""


class Forbidden(WatchdogError):
    """The peer's uid, as the kernel reports it, may not do that."""

    exit_code = 77
    http_status = 403
    code = "permission_denied"


class NotYours(Forbidden, AgentNotFound):
    """Living agents of that name are other users'; the caller may mean an ended one of its own."""


class SignalRefused(WatchdogError):
    """A safety check blocked a signal; `reason` is one word for logs and evidence."""

    code = "protected"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PathRefused(WatchdogError):
    """A path that cleanup must not touch; `reason` is one word for logs."""

    code = "cleanup_failed"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class OwnerCallFailed(WatchdogError):
    """An owner's helper gave no result: missing evidence, never proof of anything.

    `reason` is one word: `late`, `lost`, `not_started`, `not_permitted`, `garbled`, `closed`, or the helper's own
    (`not_regular`, `refused`, `failed`, an errno's name such as `ENOENT`).
    """

    code = "owner_call_failed"

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
