"""Changes other programs' JSON files in place: everything else keeps its bytes, order and comments.

Parsing a file and writing it again would change its layout, and so the diff that a person is shown and what a removal
leaves. So a member or element is inserted into the text, and cut out again.
"""

import json
import re
from dataclasses import dataclass, field

from watchdog.errors import BadRequest

_SPACE = re.compile(r"[ \t\r\n]*")
_SPACE_OR_COMMENT = re.compile(r"(?:[ \t\r\n]|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_ATOM = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_DECODER = json.JSONDecoder()
_INDENT = re.compile(r'\n([ \t]+)["\[{\]}]')


@dataclass(slots=True)
class Node:
    """One value and its place: `text[start:end]`. `begin`: the position of its key, or of itself."""

    value: object
    begin: int
    start: int
    end: int
    key: str | None = None
    children: list["Node"] = field(default_factory=list)

    def member(self, key: str) -> "Node | None":
        """The member of an object; of several with the same name the last, which is the one that counts."""
        return next((child for child in reversed(self.children) if child.key == key), None)


def parse(text: str, *, comments: bool = False) -> Node:
    """The tree of values and their places. Raises BadRequest, with line and column, for anything but a JSON object."""
    try:
        reader = _Reader(text, _SPACE_OR_COMMENT if comments else _SPACE)
        root = reader.value(reader.skip(1 if text.startswith("\ufeff") else 0))
        if reader.skip(root.end) != len(text):
            raise _Fault("more follows the end of the object", root.end)
    except _Fault as fault:
        line, column = text.count("\n", 0, fault.place) + 1, fault.place - text.rfind("\n", 0, fault.place)
        raise BadRequest(f"line {line}, column {column}: {fault}") from None
    except RecursionError:
        raise BadRequest("nested too deeply") from None
    if not isinstance(root.value, dict):
        raise BadRequest("is not a JSON object")
    return root


def with_child(text: str, node: Node, depth: int, value: object, key: str | None = None) -> str:
    """The text with one more member (`key`) or element at the end of an object or array that is `depth` levels deep."""
    new_line = "\r\n" if "\r\n" in text else "\n"
    pretty = "\n" in text.strip() or (depth == 0 and not node.children)
    found = _INDENT.search(text)
    unit = found.group(1) if found and pretty else "  "
    pad = [new_line + unit * (depth + level) for level in (0, 1)] if pretty else ["", ""]
    rendered = json.dumps(value, indent=unit if pretty else None, ensure_ascii=False).replace("\n", pad[1])
    if key is not None:
        rendered = f"{json.dumps(key, ensure_ascii=False)}: {rendered}"
    if node.children:
        place = node.children[-1].end
        return text[:place] + (f",{pad[1]}" if pretty else ", ") + rendered + text[place:]
    inner = text[node.start + 1 : node.end - 1]
    before, after = (inner.rstrip(), pad[0]) if inner.strip() else ("", inner if "\n" in inner else pad[0])
    return text[: node.start + 1] + before + pad[1] + rendered + after + text[node.end - 1 :]


def without_child(text: str, node: Node, child: Node) -> str:
    """The text without one member or element of `node`: undoes `with_child`."""
    at = node.children.index(child)
    if at > 0:
        return text[: node.children[at - 1].end] + text[child.end :]
    if len(node.children) > 1:
        return text[: child.begin] + text[node.children[1].begin :]
    before, after = text[node.start + 1 : child.begin], text[child.end : node.end - 1]
    rest = before.rstrip() + after if (before + after).strip() else ""
    return text[: node.start + 1] + rest + text[node.end - 1 :]


class _Fault(Exception):
    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


class _Reader:
    """A strict parser (RFC 8259) that records places."""

    def __init__(self, text: str, space: re.Pattern[str]) -> None:
        self._text = text
        self._space = space

    def skip(self, place: int) -> int:
        found = self._space.match(self._text, place)
        return found.end() if found else place

    def value(self, place: int) -> Node:
        match self._text[place : place + 1]:
            case "{":
                return self._members(place)
            case "[":
                return self._elements(place)
            case '"':
                text, end = self._string(place)
                return Node(text, place, place, end)
        atom = _ATOM.match(self._text, place)
        if atom is None:
            raise _Fault("a value was expected", place)
        return Node(json.loads(atom.group()), place, place, atom.end())

    def _string(self, place: int) -> tuple[str, int]:
        try:
            text, end = _DECODER.raw_decode(self._text, place)
        except json.JSONDecodeError as error:
            raise _Fault(error.msg.lower(), error.pos) from None
        return str(text), end

    def _members(self, start: int) -> Node:
        values: dict[str, object] = {}
        node = Node(values, start, start, start)
        place = self.skip(start + 1)
        while self._text[place : place + 1] != "}" or node.children:
            if self._text[place : place + 1] != '"':
                raise _Fault("a key in double quotes was expected", place)
            key, end = self._string(place)
            colon = self.skip(end)
            if self._text[colon : colon + 1] != ":":
                raise _Fault("':' was expected", colon)
            child = self.value(self.skip(colon + 1))
            child.key, child.begin = key, place
            node.children.append(child)
            values[key] = child.value
            place, over = self._next(child.end, "}")
            if over:
                break
        node.end = place + 1
        return node

    def _elements(self, start: int) -> Node:
        values: list[object] = []
        node = Node(values, start, start, start)
        place = self.skip(start + 1)
        while self._text[place : place + 1] != "]" or node.children:
            child = self.value(place)
            node.children.append(child)
            values.append(child.value)
            place, over = self._next(child.end, "]")
            if over:
                break
        node.end = place + 1
        return node

    def _next(self, end: int, closing: str) -> tuple[int, bool]:
        """The position of the next child or of the closing bracket."""
        place = self.skip(end)
        mark = self._text[place : place + 1]
        if mark == closing:
            return place, True
        if mark != ",":
            raise _Fault(f"',' or '{closing}' was expected", place)
        return self.skip(place + 1), False
