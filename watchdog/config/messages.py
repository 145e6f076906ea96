"""Messages for errors in the configuration file: the key, what is wrong, and what is valid."""

import re
from collections.abc import Iterable
from datetime import date, time
from typing import Any

from pydantic import BaseModel

from watchdog.config.fields import suggest
from watchdog.config.schema import Config
from watchdog.core.redaction import hide_password

# pydantic names Python's types; TOML has other names for them.
_WORDS = {
    "tuple_type": "a list",
    "string_type": "a text",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "too_short": "a list of at least one",
}


def explain(problem: dict[str, Any]) -> str:
    """One pydantic error as `key: what is wrong; it must be ...`."""
    place = problem["loc"]
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{_spelled(part)}" for part in place).removeprefix(".")
    model, default = _find(place)
    kind, given = problem["type"], problem.get("input")
    if kind == "extra_forbidden":
        return f"{key}: unknown key{suggest(str(place[-1]), model.model_fields)}"
    if kind == "missing":
        return f"{key}: is missing" + ("; give it a name" if key.endswith(".name") else "")
    message = str(problem["msg"]).removeprefix("Value error, ")
    message = _WORDS.get(kind, message.removeprefix("Input should be "))
    if kind != "value_error":
        message = f"{_shown(key, given)} is wrong; it must be {message}"
    elif not isinstance(given, dict):
        message = f"{_shown(key, given)} {message}"
    return message if not key else f"{key}: {message}" + (f" (default: {default!r})" if default is not None else "")


def _spelled(key: str) -> str:
    """The key, shortened, and quoted if TOML requires it (it may contain newlines and terminal escapes)."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", key) else repr(key[:100])


def _shown(key: str, given: object) -> str:
    """The given value, shortened to a line; of a database URL that may contain a password, only the scheme."""
    if key == "registry.url" and (
        "@" in str(given) or "?" in str(given)
    ):  # the password may be anywhere in a URL that cannot be parsed
        kind, colon, _ = str(given).partition("://")
        return repr(f"{kind}://…" if colon and kind.replace("+", "").isalnum() else "…")
    text = given.isoformat() if isinstance(given, date | time) else hide_password(repr(given))
    return text if len(text) <= 200 else f"{text[:200]}…"


def _find(place: tuple[int | str, ...]) -> tuple[type[BaseModel], object]:
    """The section of a key, and the key's default if TOML can express it."""
    model: type[BaseModel] = Config
    default: object = None
    keys = [part for part in place if isinstance(part, str)]
    for depth, key in enumerate(keys):
        field = model.model_fields.get(key)
        if field is None:
            break
        if depth == len(keys) - 1:
            value = field.get_default()
            default = str(value) if isinstance(value, str) else value if isinstance(value, int | float) else None
            break
        model = next(iter(_models(field.annotation)), model)
    return model, default or None


def _models(annotation: Any) -> Iterable[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from _models(part)
