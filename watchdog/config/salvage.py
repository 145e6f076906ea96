"""Read as much as possible of a configuration file with syntax errors, to report its other errors as well.

tomllib stops at the first error. Here the file is split at its section headers, each section is parsed separately, and
lines that cannot be parsed are left out, so that all errors are reported at once. None of the values is ever used: a
file with an error is refused as a whole.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from watchdog.core.redaction import hide_secrets

MOST = 20  # lines left out; with more it is probably the wrong file
LARGEST = 64 << 10  # characters of a file that is examined; tomllib takes a second per MiB
_HEADER = re.compile(r"[ \t]*(\[\[?)[ \t]*([A-Za-z_][\w-]*)(.*)")
_WHOLE = re.compile(r"[ \t]*(\]\]?)[ \t]*(#.*)?$")
_KEY = re.compile(r"[ \t]*([A-Za-z0-9_-]+)[ \t]*[=.]")
_BARE = re.compile(r"[ \t]*([A-Za-z0-9_-]+)[ \t]*=[ \t]*([^\s\"'\[{#][^\"'#\\]*?)[ \t]*(?:#.*)?$")
_SECRET = re.compile(r"pass|secret|token|url|(?:^|_)key", re.I)
_SET = re.compile(r"""[ \t]*((?:[\w-]+|"[^"]*"|'[^']*')(?:[ \t]*\.[ \t]*(?:[\w-]+|"[^"]*"|'[^']*'))*)[ \t]*=""")
_LINE = re.compile(r"\(at line (\d+), column \d+\)")


@dataclass(slots=True)
class Salvaged:
    """`faults`: one line each, in file order. `unread`: keys (`section.key`) or whole sections that were left out."""

    data: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)


def salvage(text: str, first: str, sections: Mapping[str, bool]) -> Salvaged:
    """The readable rest of a file, and each syntax error. `first` is tomllib's message for the whole file.

    A malformed header still counts as one if it begins like one of `sections` (name -> whether it is a `[[list]]`).
    """
    found, seen = Salvaged(), dict[str, int]()
    if len(text) > LARGEST:
        found.faults.append(first)
        return found
    lines = text.split("\n")
    begins = [
        number
        for number, line in enumerate(lines)
        if (header := _HEADER.match(line)) and (_WHOLE.match(header[3]) or header[2] in sections)
    ]
    for begin, end in zip([0, *begins], [*begins, len(lines)], strict=True):
        _part(lines, begin, end, found, seen, sections)
    if not found.faults:  # an error of the whole file only, such as a table that a dotted key defined before
        found.faults.append(first)
    return found


def _part(
    lines: list[str], begin: int, end: int, found: Salvaged, seen: dict[str, int], sections: Mapping[str, bool]
) -> None:
    """One section, or the lines before the first one."""
    header = _HEADER.match(lines[begin]) if begin < end else None
    name, body = "", lines[begin:end]
    if header is not None:
        name, is_list = header[2], header[1] == "[["
        whole = _WHOLE.match(header[3])
        if whole is None and header[3].lstrip().startswith("."):
            found.unread.add(name)  # a nested table: not one of ours, parsed unchanged
        elif whole is None or (whole[1] == "]]") is not is_list:
            is_list = sections.get(name, is_list)
            right = f"[[{name}]]" if is_list else f"[{name}]"
            found.faults.append(f"not TOML: line {begin + 1} is not a section header; use {right}")
            body[0] = right
        if not is_list and name in seen and whole is not None:
            found.faults.append(
                f"not TOML: [{name}] is declared at lines {seen[name]} and {begin + 1}; use one [{name}],"
                " with the keys of both"
            )
        seen.setdefault(name, begin + 1)
    data = _read(body, begin, name, found)
    for key, value in data.items():
        former = found.data.get(key)
        if isinstance(former, dict) and isinstance(value, dict):
            former.update(value)
        elif isinstance(former, list) and isinstance(value, list):
            former.extend(value)
        else:
            found.data.setdefault(key, value)


def _read(body: list[str], begin: int, name: str, found: Salvaged) -> dict[str, Any]:
    """The section's keys, without the lines that cannot be parsed."""
    for _ in range(MOST):
        try:
            return tomllib.loads("\n" * begin + "\n".join(body) + "\n")
        except tomllib.TOMLDecodeError as error:
            place = _LINE.search(str(error))
            keys = [number for number, line in enumerate(body) if _KEY.match(line)]
            # An unterminated string or list, which the last key begins, ends with its section.
            at = int(place[1]) - 1 - begin if place else keys[-1] if keys else -1
            words = _words(str(error), body, at, begin, name) if place else _unended(begin + at + 1)
            found.faults.append(f"not TOML: {words}")
            first = 1 if name else 0  # the header is never left out
            if not first <= at < len(body) or not body[at].strip() or len(found.faults) >= MOST:
                break
            key = _KEY.match(body[at])
            found.unread.add(f"{name}.{key[1]}" if key and name else name)
            body[at : at + 1 if place else None] = [""]
        except (RecursionError, ValueError) as error:
            found.faults.append(f"not TOML: {error}")
            break
    found.unread.add(name)
    return {}


def _words(error: str, body: list[str], at: int, begin: int, name: str) -> str:
    """tomllib's message for an error on a line, or a better one."""
    place = _LINE.search(error)
    if place is None or not 0 <= at < len(body):
        return error
    better = _bare(body[at])
    return _again(error, body, at, begin, name) or (f"{better} {place[0]}" if better else error)


def _bare(line: str) -> str | None:
    """For a value that would be valid TOML with quotes or without its unit: the line, and the remedy."""
    said = _BARE.match(line)
    if said is None or not _fails(line) or _fails(f'{said[1]} = "{said[2]}"'):
        return None
    key, value = said[1], said[2]
    if not re.search(r"[^\d\s]", value):
        return None  # two numbers: the meaning is unclear
    shown = "…" if _SECRET.search(key) or "@" in value or "?" in value else hide_secrets(value)
    right = f'a text needs quotes: {key} = "{shown}"'
    if value.lower() in ("true", "false"):
        right = f"{key} = {value.lower()}"
    elif re.fullmatch(r"[0-9.]+ ?[A-Za-z%]+", value):
        seconds = key.endswith("_seconds")
        right = "a number of seconds without a unit" if seconds else "a number without a unit, or a text in quotes"
    return f"{key} = {shown}; use {right}"


def _fails(line: str) -> bool:
    try:
        tomllib.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def line_of(text: str, key: str) -> int | None:
    """The line of a key such as `policy[0].match.type`, or of what contains it (`policy[0]`).

    None if it is missing, or if multi-line strings, which may look like keys, make the line uncertain.
    """
    found_parts = re.findall(r"\[(\d+)\]|([\w-]+)", key)
    place: list[str | int] = [int(index) if index else name for index, name in found_parts]
    if len(text) > LARGEST or '"""' in text or "'''" in text:
        return None
    above: list[str | int] = []
    counts: dict[str, int] = {}
    found, length = None, 0
    for number, line in enumerate(text.split("\n"), 1):
        header = re.match(r"[ \t]*(\[\[?)([^\]=]*)\]", line)
        if header is not None and _WHOLE.match(line[header.end() - 1 :]):
            names = _parts(header[2])
            if header[1] == "[[" and len(names) == 1:
                counts[names[0]] = counts.get(names[0], -1) + 1
            at: list[str | int] = [*names]
            if names and names[0] in counts:
                at.insert(1, counts[names[0]])
            above = at
        elif (said := _SET.match(line)) is not None:
            at = [*above, *_parts(said[1])]
        else:
            continue
        if at == place[: len(at)] and len(at) > max(length, min(len(place), 2) - 1):  # a header alone says too little
            found, length = number, len(at)
    return found


def _parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _again(error: str, body: list[str], at: int, begin: int, name: str) -> str | None:
    """For a key that an earlier line has set: both lines, and the remedy. tomllib reports only the second line."""
    if not error.startswith("Cannot overwrite a value") or not 0 <= at < len(body):
        return None
    key = body[at].partition("=")[0].strip()
    former = [line for line, text in enumerate(body[:at]) if "=" in text and text.partition("=")[0].strip() == key]
    if not former:
        return None
    whole = f"{name}.{key}" if name else key
    return f"{whole} is set at lines {begin + former[-1] + 1} and {begin + at + 1}; keep one of them"


def _unended(line: int) -> str:
    return f"what begins at line {line} is never closed (a quote or a bracket is missing)"
