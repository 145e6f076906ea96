"""config/agent-watchdog.toml, which is generated: every key of `config.schema` with its default and its reason.

The reason of a key is the comment above it in the schema; what is said of a list ([[hook]], [[policy]], [[source]]) is
the comment at the head of its class. Hooks and sources describe themselves in their own tables.
"""

import ast
import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import get_args

from pydantic import BaseModel

from watchdog.config import schema
from watchdog.config.schema import DEFAULT_HOOKS, SHIPPED_POLICIES, USERS_SOURCES, Config
from watchdog.core.hooks import BUILT_IN
from watchdog.core.source_entries import KINDS

FILE = Path(__file__).parent.parent / "config/agent-watchdog.toml"
WIDTH = 118
HEAD = """\
# agent-watchdog.toml: every key with its default, and the reason for it.
#
# Lines "#key = value" are the defaults; remove the "#" to change one. The section headers are here already, each
# once: write your keys below them, not at the end of the file. The daemon refuses to start with an unknown key;
# `agent-watchdogd --check` reports all problems at once. An empty string selects the default for this host and user.
# The file is the one of --config or of $AGENT_WATCHDOG_CONFIG; else root's daemon reads
# /etc/agent-watchdog/agent-watchdog.toml, a user's $XDG_CONFIG_HOME/agent-watchdog/agent-watchdog.toml (~/.config).
# Whoever can write it decides what runs with other users' rights: only its owner (root, or that user) may.
"""
# What the comments of the schema may name in braces.
WORDS = {
    "hooks": ", ".join(f'"{name}"' for name in BUILT_IN),
    "kinds": "; ".join(f'"{name}" ({kind.place})' for name, kind in KINDS.items() if not kind.told_of),
    "places": "; ".join(f"${k.variable}, else {k.path}" for k in KINDS.values() if k.variable and k.path),
    "told_of": "; ".join(f'"{name}" ({kind.place})' for name, kind in KINDS.items() if kind.told_of),
}


def model_of(section: str) -> type[BaseModel]:
    """The model of a section, or of one entry of a list."""
    annotation = Config.model_fields[section].annotation
    while not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        annotation = get_args(annotation)[0]
    return annotation


def comments(model: type[BaseModel]) -> dict[str, list[str]]:
    """The comment above each key in the source; "" has the one at the head of the class, which stands alone."""
    lines = inspect.getsource(schema).splitlines()
    (node,) = (one for one in ast.parse("\n".join(lines)).body if getattr(one, "name", "") == model.__name__)
    assert isinstance(node, ast.ClassDef)

    def above(line: int) -> list[str]:
        first = line - 1
        while lines[first - 1].lstrip().startswith("#"):
            first -= 1
        return [one.strip() for one in lines[first : line - 1]]

    found = {
        one.target.id: above(one.lineno)
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    head = int(node.body[0].end_lineno or 0) + 1  # below the docstring and an empty line
    end = head
    while lines[end].strip().startswith("#"):
        end += 1
    found[""] = [] if lines[end].strip() else [one.strip() for one in lines[head:end]]
    return found


def written(value: object) -> str:
    """A value in TOML."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, str):
        return json.dumps(str(value), ensure_ascii=False)
    return str(int(value)) if isinstance(value, int | float) and value == int(value) else str(value)


def section_of(name: str) -> str:
    """One section with its keys."""
    model = model_of(name)
    reasons, lines = comments(model), [f"[{name}]"]
    for key, field in model.model_fields.items():
        lines += [*reasons[key], f"#{key} = {written(field.get_default())}"]
    return "\n".join(lines) + "\n"


def filled(lines: list[str]) -> list[str]:
    """Comments with the words of the tables; a paragraph that has some is broken into lines anew."""
    kept: list[str] = []
    last = len(lines)
    for place, line in enumerate(lines):
        if re.search(r"\{(\w+)\}", line):
            last = next((n for n, one in enumerate(lines) if n > place and one.startswith("#   ")), last)
            words = " ".join(one.removeprefix("# ") for one in lines[place:last]).format_map(WORDS)
            broken = textwrap.wrap(words, WIDTH - 2, break_long_words=False, break_on_hyphens=False)
            return [*kept, *(f"# {one}" for one in broken), *filled(lines[last:])]
        kept.append(line)
    return kept


def table(name: str, entry: BaseModel) -> list[str]:
    """One entry of a list."""
    lines = [f"#[[{name}]]"]
    for key in sorted(type(entry).model_fields, key=lambda one: one not in ("name", "run")):
        value = getattr(entry, key)
        if isinstance(value, BaseModel):
            inside = ", ".join(f"{k} = {written(v)}" for k, v in value.model_dump(exclude_none=True).items())
            lines.append(f"#{key} = {{ {inside} }}")
        elif value is not None:
            lines.append(f"#{key} = {written(value)}")
    return lines


def list_of(name: str) -> str:
    """A list: what is said of it, then the entries that are there without the file."""
    lines = filled(comments(model_of(name))[""])
    shipped: dict[str, tuple[BaseModel, ...]] = {
        "hook": DEFAULT_HOOKS,
        "policy": SHIPPED_POLICIES,
        "source": USERS_SOURCES,
    }
    for entry in shipped[name]:
        if name == "hook":
            about = BUILT_IN[str(getattr(entry, "run", ""))].about
            lines += [f"# {about[0].upper()}{about[1:]}."]
        lines += table(name, entry)
    return "\n".join(lines) + "\n"


def text() -> str:
    """The whole file."""
    lists = {name for name, field in Config.model_fields.items() if "tuple" in str(field.annotation)}
    parts = [list_of(name) if name in lists else section_of(name) for name in Config.model_fields]
    return "\n".join([HEAD, *parts])


def main() -> None:
    FILE.write_text(text())


if __name__ == "__main__":
    main()
