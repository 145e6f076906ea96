"""Exceptions raised on purpose. Each says what is wrong, where, and what would be right.

`exit_code` is what a command ends with (sysexits.h); `http_status` and `code` are what the control socket answers.
The resident `run` and `beat` import this file: nothing is imported here (`typing` alone is 0.7 MB of a wrapper).

Tests: tests/control/test_server.py, tests/cli/test_verbs.py.
"""


class WatchdogError(Exception):
    """Something expected went wrong; the message is written for the one who is paged at night."""

    exit_code: int = 1
    http_status: int = 500
    code: str = "internal_error"


class ConfigError(WatchdogError):
    """The configuration cannot be used; `problems` lists every fault found, one line each."""

    exit_code = 78

    def __init__(self, problems: list[str], rest: object = None) -> None:
        """`rest`: the settings (`config.Settings`) that the file would come to without these, where it would."""
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
    """A runtime or state directory is a link, belongs to somebody else, or is open to others."""

    exit_code = 78


class DaemonUnreachable(WatchdogError):
    """No daemon answers on the control socket."""

    exit_code = 69
    http_status = 503
    code = "unreachable"


class DaemonBusy(DaemonUnreachable):
    """A daemon is there and cannot serve us now (too many connections, no registry): the same may work later."""

    exit_code = 75


class CannotStart(WatchdogError):
    """The system did not let `run` start its agent (descriptors, processes, a directory): EX_OSERR."""

    exit_code = 71


class RegistryUnavailable(WatchdogError):
    """The database cannot be read or written just now; nobody is judged by it. `full`: for want of disk space."""

    exit_code = 75
    http_status = 503
    code = "registry_unavailable"
    full = False


class NoSpace(WatchdogError):
    """The disk is full, or a user has used up its share: what nothing depends on is not written."""

    exit_code = 75
    http_status = 507
    code = "no_space"


class TooMany(WatchdogError):
    """Its uid has as many connections as one may have; when some have ended the same request is served."""

    exit_code = 75
    http_status = 503
    code = "too_many_connections"


class Limited(WatchdogError):
    """Its user has had its share of requests for now; the same one is served later."""

    exit_code = 75
    http_status = 429
    code = "limited"

    def __init__(self, message: str, retry_after: int = 1) -> None:
        """`retry_after`: whole seconds after which it is worth trying again."""
        super().__init__(message)
        self.retry_after = retry_after


class BadRequest(WatchdogError):
    """A request that cannot be understood: names the key and what would be right."""

    exit_code = 64
    http_status = 400
    code = "bad_request"


class AgentNotFound(WatchdogError):
    """No agent has that name, id or pid."""

    http_status = 404
    code = "agent_not_found"


class ProcessNotFound(WatchdogError):
    """There is provably no such process, or it is no agent's."""

    http_status = 404
    code = "process_not_found"


class ProcessHidden(WatchdogError):
    """The kernel did not let us look (hidepid, EPERM, no descriptors): nothing is known, so nothing is done."""

    exit_code = 75
    http_status = 503
    code = "unknown"


class Held(WatchdogError):
    """An operator's hold is on that agent."""

    http_status = 409
    code = "held"


class Ambiguous(WatchdogError):
    """Several living agents fit; the message lists their ids."""

    http_status = 409
    code = "ambiguous"


class Conflict(WatchdogError):
    """The thing is in a state in which that cannot be done (a name taken, an agent that has ended)."""

    http_status = 409
    code = "conflict"


class Elsewhere(WatchdogError):
    """Another daemon of this host watches that process: one agent, one daemon."""

    http_status = 421
    code = "elsewhere"


class RowRemoved(Conflict):
    """Somebody removed the agent's row from the registry."""


class Forbidden(WatchdogError):
    """The kernel says that you are somebody who may not do that."""

    exit_code = 77
    http_status = 403
    code = "permission_denied"


class NotYours(Forbidden, AgentNotFound):
    """Living agents of that name are other users'; one's own that has ended may be meant."""


class SignalRefused(WatchdogError):
    """The guard did not let a signal out; `reason` is one word for logs and evidence."""

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
