"""Durations as written on a command line. Imported by `run` and `beat`, so it imports nothing but errors."""

from watchdog.errors import BadRequest

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds_of(text: str) -> float:
    """`90s`, `15m`, `2h`, `1d`, `1.5h` in seconds. Raises BadRequest, also for a number without a unit: it is
    ambiguous.
    """
    number, unit = text[:-1], text[-1:]
    if text.isascii() and text.isdigit():
        raise BadRequest(f"{text} has no unit; write {text}s for seconds, {text}m for minutes")
    if unit not in _UNITS or not number.isascii() or not number.replace(".", "", 1).isdigit():
        raise BadRequest(f"{text!r} is not a duration; write it like 90s, 15m, 2h or 1d")
    seconds = float(number) * _UNITS[unit]
    if seconds > 366 * _UNITS["d"]:
        raise BadRequest(f"{text} is longer than a year")
    return seconds
