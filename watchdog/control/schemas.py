"""The bodies of requests. Strict: an unknown key, a wrong type or a value out of range is refused, all faults at once.

Durations are seconds and say so in their names. Nothing here decides about rights. The rules of a registration are
`core.registration`'s, as not only HTTP requests hold one.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Annotated, TypeVar

from aiohttp import web
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from watchdog.core.redaction import hide_secrets
from watchdog.core.registration import (
    PATH_CHARACTERS,
    PID_MAX,
    PLAIN_CHARACTERS,
    RegistrationRequest,
    path_fault,
    pid_fault,
    plain_fault,
    registration_of,
    word_fault,
)
from watchdog.errors import BadRequest

T = TypeVar("T")


def _checked(fault_of: Callable[[T], str | None]) -> AfterValidator:
    """What refuses a value by a rule of `core.registration`."""

    def check(value: T) -> T:
        fault = fault_of(value)
        if fault is not None:
            raise ValueError(fault)
        return value

    return AfterValidator(check)


Word = Annotated[str, _checked(word_fault)]
Plain = Annotated[str, Field(min_length=1, max_length=PLAIN_CHARACTERS), _checked(plain_fault)]
# Each is kept in the registry and shown in lines of the log: long enough for people, too short to fill a disk with.
Text = Annotated[str, Field(max_length=500)]
Why = Annotated[Text, AfterValidator(hide_secrets)]  # goes into log, history and the task row
Path = Annotated[str, Field(max_length=PATH_CHARACTERS), _checked(path_fault)]
Pid = Annotated[int, Field(le=PID_MAX), _checked(pid_fault)]
Seconds = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]
Targets = Annotated[list[Plain], Field(max_length=256)]


class Body(BaseModel):
    """What all bodies share."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Change(Body):
    """PATCH /agents/ID."""

    pid: Pid | None = None
    exit_code: Annotated[int, Field(ge=0, le=255)] | None = None
    exit_signal: Annotated[int, Field(ge=1, le=64)] | None = None
    channel_lost: bool | None = None

    @model_validator(mode="after")
    def _something(self) -> "Change":
        if sum(one is not None for one in (self.pid, self.exit_code, self.exit_signal, self.channel_lost)) != 1:
            raise ValueError("give exactly one of pid, exit_code, exit_signal, channel_lost")
        return self


class Speak(Body):
    """POST /sessions/beat."""

    session: Annotated[Plain, Field(max_length=128)]
    pid: Pid  # of the service below which its hook runs
    type: Word
    cwd: Annotated[str, Field(max_length=4096)] = ""
    fresh: bool = False  # it begins now
    begins: bool = False  # it, or its turn, begins at a person's request
    beat: dict[str, object] = {}


class Act(Body):
    """What every act on targets takes."""

    targets: Annotated[Targets, Field(min_length=1)]
    reason: Why = ""


class Stop(Act):
    """POST /stop and /cancel."""

    children: bool = False
    go: bool = False  # also for a group, from within an agent's tree
    wait: bool = True
    dry_run: bool = False


class Kill(Stop):
    """POST /kill."""

    force: bool = False
    grace_seconds: Annotated[float, Field(ge=0, le=86400, allow_inf_nan=False)] | None = None
    stall_after_seconds: Seconds | None = None
    cleanup: bool = True


class Remove(Act):
    """POST /remove."""

    with_messages: bool = False
    dry_run: bool = False


class Purge(Body):
    """POST /purge."""

    agent: Plain
    yes: bool = False


class Reap(Body):
    """POST /reap."""

    dry_run: bool = False


class Hold(Body):
    """POST /hold; no targets: all agents."""

    targets: Targets = []
    reason: Why = ""
    for_seconds: Seconds | None = None


class Unhold(Body):
    """POST /unhold; no targets: the hold on all agents."""

    targets: Targets = []


B = TypeVar("B", bound=Body)


def parse(kind: type[B], raw: bytes) -> B:
    """Read a body. Raises BadRequest that lists every fault, one line each, with its key."""
    try:
        return kind.model_validate_json(raw or b"{}")
    except ValidationError as error:
        known = ", ".join(sorted(kind.model_fields))
        raise BadRequest("\n".join(_fault(fault, known) for fault in error.errors(include_url=False))) from None


def parse_registration(raw: bytes) -> RegistrationRequest:
    """Read the body of POST /agents. Raises BadRequest that lists every fault, one line each, with its key."""
    try:
        document: object = from_json(raw or b"{}")
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: Invalid JSON: {error}") from None
    return registration_of(document)


def _fault(fault: object, known: str) -> str:
    """One line: the key, what is wrong, what would be right."""
    assert isinstance(fault, dict)
    key = ".".join(str(part) for part in fault["loc"])[:80]
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        message = f"unknown key; known are {known}"
    if fault["type"] == "json_invalid":
        return f"the body is not JSON: {message}"
    shown = repr(fault["input"])
    if key and fault["type"] not in ("missing", "extra_forbidden") and len(shown) <= 80:
        message = f"{message} (is {shown})"
    return f"{key}: {message}" if key else message


MAX_BODY = 64 * 1024


BODY_SECONDS = 10.0


async def read_body(request: web.Request) -> bytes:
    """The whole body. Raises BadRequest when it is too long, broken, or does not come; ConnectionError: client gone."""
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await request.read()
    except TimeoutError:
        raise BadRequest(f"the body did not come within {BODY_SECONDS:g} s") from None
    except web.HTTPRequestEntityTooLarge:
        raise BadRequest(f"the body is longer than {MAX_BODY} bytes") from None
    except web.RequestPayloadError as error:  # a chunk without a size, a Content-Encoding that it does not have
        raise BadRequest(f"the body cannot be read: {' '.join(str(error).split())}") from None


def decoded(raw: bytes) -> object:
    """The JSON value of a body; an empty body is an empty object."""
    try:
        value: object = json.loads(raw or b"{}")
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON: {error}") from None
    return value


def flag(request: web.Request, key: str) -> bool:
    """A query key that is a switch: `?all`, `?all=1`, `?all=true`; off when absent, `0` or `false`."""
    value = request.query.get(key)
    if value is None or value in ("0", "false", "no"):
        return False
    if value in ("", "1", "true", "yes"):
        return True
    raise BadRequest(f"{key}: {value!r} is neither 1 nor 0")


def number(request: web.Request, key: str, default: int = 0) -> int:
    """A query key that is a whole number >= 0."""
    value = request.query.get(key, str(default))
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise BadRequest(f"{key}: {value!r} is not a whole number")
    return int(value)


def gone(request: web.Request) -> bool:
    """Whether the client hung up: aiohttp does not notify a handler that only waits."""
    return request.transport is None or request.transport.is_closing()
