"""The names that are written down somewhere: routes, verbs with their options, events, figures, keys and defaults.

Documents and completions are generated from the tables of the code, which other tests hold; the routes stand nowhere
but in the code, and are read there as text: wherever a method and a path stand beside each other.
"""

import ast
import itertools
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.wire.station import Station

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "watchdog"
Json = dict[str, Any]
METHODS = frozenset({"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"})


@cache
def routes() -> list[str]:
    """Every "METHOD /path" in the code, without /v1."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            inner = (
                node.elts if isinstance(node, ast.Tuple | ast.List) else node.args if isinstance(node, ast.Call) else []
            )
            words = [one.value if isinstance(one, ast.Constant) else None for one in inner]
            for method, path in itertools.pairwise(words):
                if method in METHODS and isinstance(path, str) and path.startswith("/"):
                    found.add(f"{method} {path.removeprefix('/v1')}")
    return sorted(found)


def options() -> Json:
    """The verbs and what each takes, as the completions for bash have them."""
    text = (ROOT / "config" / "completions" / "agent-watchdog.bash").read_text()
    found = {}
    for verb, words in re.findall(r'^ +"?([a-z-]*)"?\) words="([^"$]*)', text, re.MULTILINE):
        found[verb or "(before the verb)"] = sorted(word for word in words.split())
    daemon = (ROOT / "config" / "completions" / "agent-watchdogd.bash").read_text()
    found["agent-watchdogd"] = sorted(re.findall(r'-W "([^"]*)"', daemon)[0].split())
    return found


def events_and_figures() -> Json:
    """Name and level of each event, and each figure with its labels, from the table in the documents."""
    row = re.compile(r"^\| `([a-z_.]+(?:\{[a-z_,]+\})?)` \| (debug|info|warning|error|figure) \|", re.MULTILINE)
    documents = [*ROOT.glob("*.md"), *(ROOT / "config").rglob("*.md"), *PACKAGE.rglob("*.md")]
    return dict(sorted(pair for file in documents for pair in row.findall(file.read_text())))


def shipped() -> Json:
    """What config/agent-watchdog.toml has as defaults: its lines `#key = value`."""
    text = (ROOT / "config" / "agent-watchdog.toml").read_text()
    return tomllib.loads(re.sub(r"^#(?=[a-z_]+ = |\[\[)", "", text, flags=re.MULTILINE))


def refused(station: Station, defaults: Mapping[str, Any]) -> Json:
    """What `--check` says of files in which everything is wrong: keys, their defaults, the words each takes.

    In two halves, as it says no more than fifty things.
    """
    sections = sorted(defaults)
    found: Json = {}
    for half in (sections[::2], sections[1::2]):
        lines = ["nonsense = 1"]
        for section in half:
            keys = defaults[section]
            lines.append(f"[[{section}]]" if isinstance(keys, list) else f"[{section}]")
            lines += [f"{key} = {_wrong(key)}" for key in (keys[0] if isinstance(keys, list) else keys)]
            lines.append("nonsense = 1")
        station.config.write_text("\n".join(lines) + "\n")
        done = station.cli("--check", "--config", str(station.config), program="agent-watchdogd")
        assert done.returncode == 78, done
        for line in (done.stdout + done.stderr).splitlines():
            said = re.sub(r" \(at line \d+\)$", "", line)  # of the file that is made here
            place, _, words = said.rpartition(".toml: ")[2].partition(": ")
            found[place] = _of_fault(words)
    return dict(sorted(found.items()))


def _wrong(key: str) -> str:
    """A value that no key takes, of the type that has the words listed which it does take."""
    return '["nonsense"]' if key in ("ladder", "on") else '"nonsense"' if key in ("kind", "run") else "{}"


def _of_fault(words: str) -> Json:
    words = re.sub(r" \(at line \d+\)$", "", words)
    default = re.search(r" \(default: (.*)\)$", words)
    said: Json = {"default": default[1]} if default else {}
    words = words[: default.start()] if default else words
    names = re.findall(r"; use one of ([a-z_]+(?:, [a-z_]+)*)$", words)
    quoted = {*re.findall(r"'([a-z_]+)'", words)} - {"nonsense"}
    if names or quoted:
        said["takes"] = names[0].split(", ") if names else sorted(quoted)
    return said
