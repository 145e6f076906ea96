"""A registration request: the value, and the checks of its fields.

The rules are the same for all callers: a client over HTTP, an entry of another program's registry, the report of a
`run`. A field is one line in `RegistrationRequest` and one in `CHECKS`. Nothing here checks rights or processes.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

from watchdog.core.names import name_problem
from watchdog.core.process import Listed
from watchdog.errors import BadRequest

WORD_CHARACTERS = 64
PLAIN_CHARACTERS = 256  # each text is stored in the registry and logged
PATH_CHARACTERS = 1024
SOCKET_CHARACTERS = 107  # sun_path without its NUL, unix(7)
MOST_TAGS = 32
MOST_SECONDS = 1e9
PID_MAX = 4_194_304  # 2^22, the kernel's own limit on 64 bit (proc(5), pid_max)

_ID = re.compile(r"[0-9a-f]{32}")
_WORD = re.compile(rf"[A-Za-z0-9._-]{{1,{WORD_CHARACTERS}}}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_SHOWN = 80  # characters of a wrong value that an error shows
_HIGHEST = math.nextafter(math.inf, 0)  # the largest finite float; JSON may hold larger integers
_LOWEST = -_HIGHEST


@dataclass(frozen=True, slots=True)
class RegistrationRequest:
    """The request to register an agent, with the field names of the document (POST /agents).

    The constructor raises BadRequest that lists all faults, one line each. `replace` and `taken_from` are for the
    receiver: registering itself changes no other agent.
    """

    name: str
    agent_id: str | None = None  # 32 hexadecimal digits; None: the daemon makes one
    pid: int | None = None  # of its main process, if that runs already
    type: str = ""
    tags: tuple[str, ...] = ()
    task: str | None = None
    parent: str | None = None  # name, id or pid of a living agent of the same owner
    stall_after_seconds: float | None = None  # None: its type's policy decides
    interval_seconds: float | None = None  # its own interval between beats
    ttl_seconds: float | None = None
    worktree: str | None = None
    temp_dir: str | None = None
    beat_file: str | None = None
    log: str | None = None
    transcript: str | None = None
    queued: bool = False  # it has not been started, so no beat is expected yet
    source: str = "register"
    command: str | None = None  # the program's name, if the pid is not known yet; never a command line
    notify_socket: str | None = None  # owned by its `run`
    replace: bool = False  # kill the owner's living agent of that name first
    taken_from: str | None = None  # the socket of its former daemon, which is gone
    entry: Listed | None = None  # the foreign registry's entry or the session that it comes from; not in a document

    def __post_init__(self) -> None:
        if found := _faults({key: getattr(self, key) for key in CHECKS}):
            raise BadRequest("\n".join(found))


def registration_of(document: object) -> RegistrationRequest:
    """The request in a decoded JSON document. Raises BadRequest that lists all faults, one line each."""
    if not isinstance(document, dict):
        raise BadRequest("Input should be an object")
    if found := _faults(document):
        raise BadRequest("\n".join(found))
    tags = tuple(document.get("tags", ()))
    return RegistrationRequest(**{**document, "tags": tags})


def field_problem(key: str, value: object) -> str | None:
    """What is wrong with the value of one field, with the field's name; None: nothing."""
    return next(iter(_faults_of(key, value)), None)


def name_fault(value: str) -> str | None:
    """What is wrong with an agent's name; None: nothing. The same holds for the functions below."""
    problem = name_problem(value)
    return None if problem is None else f"{value!r} {problem}; choose another name"


def word_fault(value: str) -> str | None:
    """For one word: a tag, a source."""
    return None if _WORD.fullmatch(value) else f"must be 1 to {WORD_CHARACTERS} of A-Z a-z 0-9 . _ -"


def type_fault(value: str) -> str | None:
    """For an agent's type: a word, or empty."""
    return word_fault(value) if value else None


def plain_fault(value: str) -> str | None:
    """For a text on one line."""
    return "must not contain control characters" if _CONTROL.search(value) else None


def path_fault(value: str) -> str | None:
    """For a path; checks only its characters."""
    if not value.startswith("/"):
        return "must be an absolute path"
    if _CONTROL.search(value):
        return "must not contain a NUL, a newline or other control characters"
    if ".." in value.split("/"):
        return "must not contain '..'; give the path as realpath(1) prints it"
    return None


def pid_fault(value: int) -> str | None:
    """For an agent's pid."""
    return None if value > 1 else "must be the pid of an agent; 0, 1 and negative numbers are never one"


# -- a whole document

Check = Callable[[object], str | None]


def _text(fault: Callable[[str], str | None], most: int | None = None, least: int = 0) -> Check:
    def check(value: object) -> str | None:
        if not isinstance(value, str):
            return "Input should be a valid string"
        if len(value) < least:
            return f"String should have at least {least} character"
        if most is not None and len(value) > most:
            return f"String should have at most {most} characters"
        return fault(value)

    return check


def _pid(value: object) -> str | None:
    if not isinstance(value, int) or isinstance(value, bool):
        return "Input should be a valid integer"
    if value > PID_MAX:
        return f"Input should be less than or equal to {PID_MAX}"
    return pid_fault(value)


def _seconds(value: object) -> str | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "Input should be a valid number"
    if not _LOWEST <= value <= _HIGHEST:  # also false for what is not a number (NaN)
        return "Input should be a finite number"
    if value > MOST_SECONDS:
        return f"Input should be less than or equal to {MOST_SECONDS:.0f}"
    return None if value > 0 else "Input should be greater than 0"


def _switch(value: object) -> str | None:
    return None if isinstance(value, bool) else "Input should be a valid boolean"


def _agent_id(value: str) -> str | None:
    return None if _ID.fullmatch(value) else "String should match pattern '^[0-9a-f]{32}$'"


_word = _text(word_fault)
_plain = _text(plain_fault, PLAIN_CHARACTERS, 1)
_path = _text(path_fault, PATH_CHARACTERS)


def _socket(value: object) -> str | None:
    fault = _path(value)
    if fault is None and isinstance(value, str) and len(value) > SOCKET_CHARACTERS:
        return f"Value should have at most {SOCKET_CHARACTERS} items after validation, not {len(value)}"
    return fault


CHECKS: Mapping[str, Check | None] = {  # None: a list of words
    "name": _text(name_fault),
    "agent_id": _text(_agent_id),
    "pid": _pid,
    "type": _text(type_fault),
    "tags": None,
    "task": _plain,
    "parent": _plain,
    "stall_after_seconds": _seconds,
    "interval_seconds": _seconds,
    "ttl_seconds": _seconds,
    "worktree": _path,
    "temp_dir": _path,
    "beat_file": _path,
    "log": _path,
    "transcript": _path,
    "queued": _switch,
    "source": _word,
    "command": _plain,
    "notify_socket": _socket,
    "replace": _switch,
    "taken_from": _socket,
}
_OPTIONAL = frozenset(field.name for field in fields(RegistrationRequest) if field.default is None)


def _faults(document: Mapping[str, object]) -> list[str]:
    """All faults of a document, a line each, in the order of its fields."""
    found = [] if "name" in document else ["name: Field required"]
    for key in CHECKS:
        if key in document:
            found += _faults_of(key, document[key])
    known = ", ".join(sorted(CHECKS))
    found += [f"{key[:_SHOWN]}: unknown key; known are {known}" for key in document if key not in CHECKS]
    return found or list(_faults_together(document))


def _faults_of(key: str, value: object) -> list[str]:
    if value is None and key in _OPTIONAL:
        return []
    check = CHECKS[key]
    if check is None:
        return _faults_of_list(key, value)
    fault = check(value)
    return [] if fault is None else [_line(key, fault, value)]


def _faults_of_list(key: str, value: object) -> list[str]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        return [_line(key, "Input should be a valid array", value)]
    if len(value) > MOST_TAGS:
        words = f"List should have at most {MOST_TAGS} items after validation, not {len(value)}"
        return [_line(key, words, value)]
    found = [(f"{key}.{number}", _word(one), one) for number, one in enumerate(value)]
    return [_line(where, fault, one) for where, fault, one in found if fault is not None]


def _line(key: str, fault: str, value: object) -> str:
    """The key, what is wrong, and the value if it is short."""
    shown = repr(value)
    return f"{key}: {fault} (is {shown})" if len(shown) <= _SHOWN else f"{key}: {fault}"


def _faults_together(document: Mapping[str, object]) -> list[str]:
    """Faults of fields in combination: the allowed silence must tolerate one lost beat; a queued agent has no pid."""
    after, interval = document.get("stall_after_seconds"), document.get("interval_seconds")
    if isinstance(after, int | float) and isinstance(interval, int | float) and after < 2 * interval:
        return [
            f"stall_after_seconds: {after:g} is less than two beats of {interval:g} s, so one late beat would end "
            f"the agent; give at least {2 * interval:g}, or leave it out"
        ]
    if document.get("queued") and document.get("pid") is not None:
        return ["queued: an agent that has a pid has started; leave one of the two out"]
    return []
