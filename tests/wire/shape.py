"""Pure: what stays of an answer when everything is taken out that differs from run to run or is English.

Keys, types, nulls and constants stay. Times keep their format, ids and paths their place, lists of objects one object
for each kind. Text written for people becomes "<text>".
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

# English, whatever it says; a value with a space in it is English, too.
PROSE = frozenset(
    [
        "action_hint",
        "detail",
        "error_message",
        "finding",
        "first",
        "headline",
        "hint",
        "last",
        "means",
        "message",
        "next",
        "note",
        "outlook",
        "problem",
        "problems",
        "remedy",
        "said",
        "says",
        "summary",
        "text",
        "title",
        "tool",
        "what",
        "why",
        "word",
        "words",
    ]
)
# Numbers that the machine or the moment decides. `seconds$`: how long something took or has lasted.
VARIES = re.compile(
    r"(^|_)p?(pid|pids|uid|gid|id|ids|inode|ticks|bytes|percent|share|load|cpu|rss|descriptors|fds)$"
    r"|^(seq|at|after_id|ago|looks|late_looks|sweeps|watched|port|members|processes|threads|beats_total)$"
    r"|seconds$|^seconds_|^looks_"
)
# Of these in `VARIES` the value is decided by who asked or by the configuration.
CONSTANT = re.compile(r"^(stall_after|after|interval|ttl|grace|timeout|tool_limit|for)_seconds$")
# What only the machine decides, down to whether there is anything.
HOST = frozenset(
    [
        "boot_id",
        "cgroup",
        "doubts",
        "hostname",
        "limited",
        "own_cgroup",
        "subuid_problems",
        "troubles",
        "unreadable",
        "version",
    ]
)
OTHERS = frozenset(["findings", "shared_services"])  # of agents and servers that are not of this story
MOMENT = frozenset(["channel_lost"])  # true or false, as it comes
KINDS = ("event", "hook", "kind", "name", "signal")  # keys that tell what sort of object one of a list is

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
_ID = re.compile(r"\b[0-9a-f]{16,32}\b|(?<=-)[0-9a-f]{8}$")
_SHORT_ID = re.compile(r"[0-9a-f]{8}")


def shape(value: Any, known: Mapping[str, str] | None = None, key: str = "") -> Any:
    """The part of a JSON value that must not change. `known`: strings of this run (directories, names of the host)
    and what stands for them."""
    known = known or {}
    if isinstance(value, Mapping):
        return {_placed(str(name), known): shape(value[name], known, str(name)) for name in sorted(value)}
    if key in OTHERS:
        return "<host>"
    if isinstance(value, list):
        return _list([(one, shape(one, known, key)) for one in value])
    if key in HOST:
        return "<host>"
    if isinstance(value, str):
        return "<text>" if key in PROSE and value else _text(value, known)
    if isinstance(value, bool) or value is None:
        return "<bool>" if key in MOMENT and value is not None else value
    if VARIES.search(key) and not CONSTANT.search(key):
        return "<float>" if isinstance(value, float) else "<int>"
    return value


def _placed(value: str, known: Mapping[str, str]) -> str:
    for word in sorted(known, key=len, reverse=True):
        value = value.replace(word, known[word])
    return _ID.sub("<id>", value)


def _text(value: str, known: Mapping[str, str]) -> str:
    value = _placed(value, known)
    if _TIME.fullmatch(value):
        return re.sub(r"\d", "0", value)
    if re.fullmatch(r"uid \d+", value):
        return "uid <int>"
    if re.search(r"\s", value):
        return "<text>"
    if _SHORT_ID.fullmatch(value):
        return "<id>"
    return "<path>" if value.startswith("/") else value


def _list(pairs: Iterable[tuple[Any, Any]]) -> Any:
    """Objects: one for each kind, with what differs inside a kind side by side. Else each different value once."""
    pairs = list(pairs)
    if not pairs or not all(isinstance(one, Mapping) for one, _ in pairs):
        return [json.loads(text) for text in sorted({json.dumps(shaped, sort_keys=True) for _, shaped in pairs})]
    kinds: dict[str, Any] = {}
    for one, shaped in pairs:
        name = next((f"{key}={shaped[key]}" for key in KINDS if isinstance(one.get(key), str)), "each")
        kinds[name] = merged(kinds[name], shaped) if name in kinds else shaped
    return {f"[{name}]": kinds[name] for name in sorted(kinds)}


def merged(one: Any, other: Any) -> Any:
    """Two shapes as one: keys that only one of them has get a "?", values that differ stand side by side."""
    if one == other and type(one) is type(other):
        return one
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        both: dict[str, Any] = {}
        for key in sorted({*_bare(one), *_bare(other)}):
            here, there = (next((m[k] for k in (key, f"{key}?") if k in m), _NONE) for m in (one, other))
            optional = key not in one or key not in other
            both[f"{key}?" if optional else key] = (
                there if here is _NONE else here if there is _NONE else merged(here, there)
            )
        return both
    return {"either": sorted({*_either(one), *_either(other)})}


_NONE = object()


def _bare(shaped: Mapping[str, Any]) -> set[str]:
    return {key.removesuffix("?") for key in shaped}


def _either(shaped: Any) -> list[str]:
    if isinstance(shaped, Mapping) and list(shaped) == ["either"]:
        return list(shaped["either"])
    return [json.dumps(shaped, sort_keys=True)]


def unrepeated(shaped: Any, known: Mapping[str, Any]) -> Any:
    """With "as in GET /agents" in place of each object that stands there already, by the same name."""
    if not isinstance(shaped, Mapping):
        return shaped
    return {
        key: "as in GET /agents" if key in known and known[key] == value else unrepeated(value, known)
        for key, value in shaped.items()
    }


def leaves(value: Any, path: str = "") -> dict[str, str]:
    """Each place in a record and what stands there, for a comparison that names places."""
    if isinstance(value, Mapping) and value:
        return {k: v for key in value for k, v in leaves(value[key], f"{path} · {key}" if path else key).items()}
    return {path: json.dumps(value, sort_keys=True)}


def differences(recorded: Any, now: Any) -> list[str]:
    """One line for each place where the two differ."""
    before, after = leaves(recorded), leaves(now)
    lines = []
    for path in sorted({*before, *after}):
        if path not in after:
            lines.append(f"{path}: gone (recorded: {before[path]})")
        elif path not in before:
            lines.append(f"{path}: new ({after[path]}), not recorded")
        elif before[path] != after[path]:
            lines.append(f"{path}: {_changed(before[path], after[path])}")
    return lines


def _changed(before: str, after: str) -> str:
    """Of two lists what is only in one of them, unless they differ by their order alone."""
    old, new = json.loads(before), json.loads(after)
    if isinstance(old, list) and isinstance(new, list):
        gone, come = [one for one in old if one not in new], [one for one in new if one not in old]
        told = [f"{json.dumps(found)} {words}" for found, words in ((gone, "gone"), (come, "new")) if found]
        if told:
            return ", ".join(told)
    return f"recorded {before}, now {after}"
