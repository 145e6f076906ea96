"""A small flag parser for `run` and `beat`: argparse costs 0.5 MB in each resident `run` and 4 ms in each beat."""

from watchdog.errors import BadRequest

Values = dict[str, list[str]]


def read_flags(arguments: list[str], takes: dict[str, bool]) -> tuple[Values, list[str]]:
    """Split arguments into flags and the rest, which begins after `--` or with the first word that is not a flag.

    `takes` maps each flag to whether it takes a value; `--flag VALUE` and `--flag=VALUE` mean the same. Raises
    BadRequest, naming the flag.
    """
    values: Values = {}
    index = 0
    while index < len(arguments):
        word = arguments[index]
        index += 1
        if word == "--":
            break
        if not word.startswith("-") or word == "-":
            index -= 1
            break
        flag, equals, value = word.partition("=")
        if flag not in takes:
            raise BadRequest(f"unknown option {flag}")
        if takes[flag] and not equals:
            if index == len(arguments):
                raise BadRequest(f"{flag} needs a value")
            value = arguments[index]
            index += 1
        elif equals and not takes[flag]:
            raise BadRequest(f"{flag} takes no value")
        values.setdefault(flag, []).append(value)
    return values, arguments[index:]


def one(values: Values, flag: str) -> str | None:
    """The value of a flag that is given at most once. Raises BadRequest."""
    found = values.get(flag)
    if found is None:
        return None
    if len(found) > 1:
        raise BadRequest(f"{flag} is given {len(found)} times")
    return found[0]
