"""Changes one row of a list in the text of a YAML file, for programs whose registry is YAML.

A YAML document that is written again looks different: quotes, line breaks, comments. So ruamel.yaml locates a value,
only that value is replaced, and the new text is parsed again: if the result is not the intended one, nothing is
changed.
"""

import functools
import re
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from watchdog.errors import OwnerCallFailed

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9 _./()%+-]*[A-Za-z0-9_./()%+-]|[A-Za-z]")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def load(text: str) -> Any:
    """The parsed document. Raises OwnerCallFailed."""
    try:
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        raise OwnerCallFailed("not_understood", f"no YAML: {str(error)[:200]}") from None


@functools.lru_cache(maxsize=2)
def load_again(text: str) -> Any:
    """The same, cached and read-only: 200 sessions take 0.8 s, and are usually unchanged."""
    return load(text)


def with_members(text: str, listed: str, name: str, members: Mapping[str, object]) -> str:
    """The text in which the row `name` of the list `listed` has these members; new ones follow its `status`.

    Raises OwnerCallFailed if there is not exactly one such row, or the text does not allow it.
    """
    wanted = load(text)
    try:
        rows = [row for row in wanted[listed] if row["name"] == name]
        (number,) = (index for index, row in enumerate(wanted[listed]) if row["name"] == name)
        rows[0].update(members)
        row = _node(YAML().compose(text), listed, number)
        new = _edited(text, row, members)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OwnerCallFailed("not_understood", f"its YAML has no row of its own for {name}: {error}") from None
    if load(new) != wanted:
        raise OwnerCallFailed("not_understood", f"the YAML row of {name} cannot be changed at its place")
    return new


def _node(document: Node, listed: str, number: int) -> MappingNode:
    """The row's node. Raises KeyError, TypeError."""
    sequence = {key.value: value for key, value in document.value}[listed]
    if not isinstance(sequence, SequenceNode) or not isinstance(sequence.value[number], MappingNode):
        raise TypeError("it is no list of mappings")
    row: MappingNode = sequence.value[number]
    return row


def _edited(text: str, row: MappingNode, members: Mapping[str, object]) -> str:
    """Replace the values from the last to the first, so that earlier positions stay valid."""
    there = {key.value: (key, value) for key, value in row.value}
    key, status = there["status"]
    at, fresh = status.end_mark.index, {name: value for name, value in members.items() if name not in there}
    if row.flow_style:
        added = "".join(f", {name}: {_scalar(value)}" for name, value in fresh.items())
    else:
        line_end = text.find("\n", at)
        at = len(text) if line_end < 0 else line_end
        new_line = "\r\n" if "\r\n" in text else "\n"
        at -= text[:at].endswith("\r")
        indent = new_line + " " * key.start_mark.column
        added = "".join(f"{indent}{name}: {_scalar(value)}" for name, value in fresh.items())
    changes = [(at, at, added)]
    for name, value in members.items():
        if name in there:
            own, node = there[name]
            if not isinstance(node, ScalarNode):
                raise TypeError(f"{name} is no single value")
            begin, end = node.start_mark.index, node.end_mark.index
            if begin < end:
                changes.append((begin, end, _scalar(value)))
            else:  # an empty value, whose position may be where the next member begins
                colon = text.index(":", own.end_mark.index) + 1
                changes.append((colon, colon, " " + _scalar(value)))
    for begin, end, new in sorted(changes, reverse=True):
        text = text[:begin] + new + text[end:]
    return text


def _scalar(value: object) -> str:
    """The value as the program's own library writes it on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int):
        return str(value)
    word = str(value)
    if _PLAIN.fullmatch(word) and word.lower() not in _WORDS:
        return word
    return "'" + word.replace("'", "''") + "'"
