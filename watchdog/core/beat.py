"""Converts to and from `core.agent.Beat`: datagram fields, the body of `POST /v1/agents/ID/beat`, JSON for display."""

from datetime import timedelta
from functools import lru_cache

from watchdog.core.agent import Beat, State
from watchdog.core.names import name_problem
from watchdog.core.sd_notify import MAX_SECONDS, MAX_TEXT, STATES, parse_datagram, printable, words_of
from watchdog.errors import BadRequest

LONGEST_KEY = 160  # characters of a session's or a question's name; the longest of any vendor has 137
KEYS = (
    "state",
    "progress",
    "silent_for_seconds",
    "tool",
    "tool_limit_seconds",
    "note",
    "after_seconds",
    "transcript",
    "session",
    "session_ended",
    "asks",
    "answered",
    "thread",
    "goes_on",
    "type",
    "promises",
    "age_seconds",
)


@lru_cache(maxsize=128)
def beat_in(datagram: bytes, from_main: bool) -> Beat | None:
    """The beat in an sd_notify message, or None when it holds none. Raises BadRequest if it is not such a message.

    Cached: most beats equal the last one, and parsing costs ten times as much.
    """
    fields = parse_datagram(datagram)
    if not fields:
        raise BadRequest("not an sd_notify message of at most 4096 bytes")
    return beat_of(fields, from_main)


def beat_of(fields: dict[str, str], from_main: bool) -> Beat | None:
    """The beat in a datagram's fields, or None when they hold none. `from_main` as in `sd_notify.words_of`."""
    words = words_of(fields, from_main=from_main)
    return None if words is None else beat_of_json(words)[0]


def beat_of_json(body: object) -> tuple[Beat, timedelta]:
    """The beat in an HTTP body and its age; `{}` is a plain beat. Raises BadRequest.

    `age_seconds` comes from `run`, which keeps the last beat while the daemon is away. Leases and limits in the same
    body count from when the agent sent it.
    """
    if not isinstance(body, dict):
        raise BadRequest('a beat is a JSON object, for example {} or {"state": "working"}')
    unknown = sorted(str(key) for key in body if key not in KEYS)
    if unknown:
        raise BadRequest(f"{unknown[0]!r} is not a key of a beat; keys are {', '.join(KEYS)}")
    state = _text(body, "state")
    if state is not None and state not in STATES:
        raise BadRequest(f"state: {state!r} must be one of {', '.join(STATES)}")
    after = _duration(body, "after_seconds")
    if after is not None and not after:
        raise BadRequest("after_seconds: must be more than 0")
    promises = _flag(body, "promises")
    beat = Beat(
        state=None if state is None else State(state),
        progress=_number(body, "progress"),
        silent_for=_duration(body, "silent_for_seconds"),
        tool=_text(body, "tool"),
        tool_limit=_duration(body, "tool_limit_seconds"),
        note=_text(body, "note"),
        after=after,
        transcript=_path(body, "transcript"),
        agent_type=_kind(body, "type"),
        session=_text(body, "session", LONGEST_KEY),
        session_ended=_text(body, "session_ended", LONGEST_KEY),
        asks=_text(body, "asks", LONGEST_KEY),
        answered=_text(body, "answered", LONGEST_KEY),
        thread=_text(body, "thread", LONGEST_KEY),
        goes_on=_flag(body, "goes_on"),
        promises=True if promises is None else promises,
    )
    return beat, _duration(body, "age_seconds") or timedelta()


def beat_to_json(beat: Beat) -> dict[str, object]:
    """The body that `beat_of_json` reads; fields that were not said are left out."""
    said: dict[str, object | None] = {
        "state": None if beat.state is None else beat.state.value,
        "progress": beat.progress,
        "silent_for_seconds": None if beat.silent_for is None else beat.silent_for.total_seconds(),
        "tool": beat.tool,
        "tool_limit_seconds": None if beat.tool_limit is None else beat.tool_limit.total_seconds(),
        "note": beat.note,
        "after_seconds": None if beat.after is None else beat.after.total_seconds(),
        "transcript": beat.transcript,
        "type": beat.agent_type,
        "session": beat.session,
        "session_ended": beat.session_ended,
        "asks": beat.asks,
        "answered": beat.answered,
        "thread": beat.thread,
        "goes_on": beat.goes_on,
        "promises": beat.promises,
    }
    return {key: value for key, value in said.items() if value is not None}


def _text(body: dict[str, object], key: str, longest: int = MAX_TEXT) -> str | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, str):
        raise BadRequest(f"{key}: must be text")
    return printable(value[:longest])


def _path(body: dict[str, object], key: str) -> str | None:
    value = body.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > 4095 or not value.startswith("/") or not value.isprintable():
        raise BadRequest(f"{key}: must be an absolute path of printable characters")
    return value


def _kind(body: dict[str, object], key: str) -> str | None:
    value = _text(body, key)
    if value is not None and name_problem(value) is not None:
        raise BadRequest(f"{key}: {value!r} {name_problem(value)}")
    return value


def _flag(body: dict[str, object], key: str) -> bool | None:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise BadRequest(f"{key}: must be true or false")
    return value


def _number(body: dict[str, object], key: str) -> float | None:
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e300:
        raise BadRequest(f"{key}: must be a finite number")
    return float(value)


def _duration(body: dict[str, object], key: str) -> timedelta | None:
    seconds = _number(body, key)
    if seconds is None:
        return None
    if seconds < 0:
        raise BadRequest(f"{key}: must be 0 or more seconds")
    return timedelta(seconds=min(seconds, MAX_SECONDS))
