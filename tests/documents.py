"""What stands in documents and is generated: events and figures, routes, vendors' versions, what can be made again.

`python -m tests.documents` (`make events`) writes it again. Each block stands between two marks, in one document.
"""

import logging
import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from tests.vendors.programs import PROGRAMS
from watchdog.control import schemas
from watchdog.control.server import ROUTES, Route
from watchdog.core.beat import KEYS
from watchdog.core.hooks import BUILT_IN
from watchdog.core.registration import RegistrationRequest
from watchdog.core.source_entries import KINDS
from watchdog.owner.git.ignored_files import DIRECTORIES, FILES
from watchdog.telemetry.catalogue import CATALOGUE
from watchdog.telemetry.metrics import FIGURES, PREFIX

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOC = ROOT / "config" / "doc"
# Every document that people read; the examples in each are run.
DOCUMENTS = (
    README,
    ROOT / "CHANGELOG.md",
    *sorted(DOC.glob("*.md")),
    ROOT / "systemd" / "README.md",
    ROOT / "tests" / "README.md",
    ROOT / "watchdog/DESIGN.md",
)


def events() -> str:
    """One row an event in the catalogue's order, then one a figure."""
    rows = [
        f"| `{event}` | {logging.getLevelName(entry.level).lower()} | {entry.text} | {entry.act} |"
        for event, entry in CATALOGUE.items()
    ]
    for name, figure in FIGURES.items():
        labels = f"{{{','.join(figure.labels)}}}" if figure.labels else ""
        rows.append(f"| `{PREFIX}{name}{labels}` | figure | {figure.text} | {figure.act} |")
    return "\n".join(["| event or figure | level | meaning | what to do |", "| --- | --- | --- | --- |", *rows]) + "\n"


def versions() -> str:
    """One row a program that is tried itself, in the version that each change is tried with."""
    rows = [f"| {one.title} | {one.pinned} | `{one.package}` |" for one in PROGRAMS.values()]
    return "\n".join(["| program | version | npm package |", "| --- | --- | --- |", *rows]) + "\n"


def keys_of(route: Route) -> str:
    """The keys of the body that a route takes: those of the schema that it names, or whose docstring names it."""
    method, path = route.method, route.path
    if route.body is not None:
        return ", ".join(f"`{key}`" for key in route.body.model_fields)
    if path.endswith("{agent_id}/beat"):
        return ", ".join(f"`{key}`" for key in KEYS)
    if (method, path) == ("POST", "/agents"):
        return ", ".join(f"`{field.name}`" for field in fields(RegistrationRequest) if field.name != "entry")
    name = f"{method} {path.replace('{agent_id}', 'ID')}"
    for one in vars(schemas).values():
        if isinstance(one, type) and issubclass(one, schemas.Body):
            named = re.split(r"[.;]", one.__doc__ or "")[0].replace(" and /", f", {method} /").split(", ")
            if name in named:
                return ", ".join(f"`{key}`" for key in one.model_fields)
    return ""


def routes() -> str:
    """One row a route, in the server's order, with the keys of its body."""
    rows = [f"| `{route.method} {route.path}` | {route.does} | {keys_of(route)} |" for route in ROUTES]
    return "\n".join(["| route | what it does | body |", "| --- | --- | --- |", *rows]) + "\n"


def rebuildable() -> str:
    """Directories, each with what has to be in or beside it, then files."""
    said = []
    for name, marks in DIRECTORIES.items():
        inside = [f"`{mark[1:]}`" for mark in marks if mark.startswith("/")]
        beside = [f"`{mark}`" for mark in marks if not mark.startswith("/")]
        where = (
            f" (with {' or '.join(inside)} in it)" if inside else f" (beside {' or '.join(beside)})" if beside else ""
        )
        said.append(f"`{name}`{where}")
    files = ", ".join(f"`{name}`" for name in FILES)
    return f"- the directories {', '.join(said)};\n- the files {files}.\n"


def hooks() -> str:
    """One row a built-in hook, in the order in which they run."""
    rows = [
        f"| `{name}` | {hook.about} | {', '.join(sorted(hook.on))} | {hook.timeout_seconds} s | {hook.retries} |"
        for name, hook in BUILT_IN.items()
    ]
    head = ["| hook | what it does | after the ends | deadline | retries |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *rows]) + "\n"


def sources() -> str:
    """One row a kind of registry."""
    rows = [f"| `{name}` | {kind.registry} | {kind.beat} |" for name, kind in KINDS.items()]
    return "\n".join(["| kind | registry | a beat is |", "| --- | --- | --- |", *rows]) + "\n"


# Name of a block -> the document that has it, from what it is made, and by what.
BLOCKS: dict[str, tuple[Path, str, Callable[[], str]]] = {
    "events": (DOC / "events.md", "watchdog/telemetry/catalogue.py and metrics.py", events),
    "versions": (DOC / "agents.md", "tests/vendors/programs.py", versions),
    "routes": (DOC / "agents.md", "watchdog/control/server.py and schemas.py", routes),
    "sources": (DOC / "agents.md", "watchdog/core/source_entries.py", sources),
    "hooks": (DOC / "cleanup.md", "watchdog/core/hooks.py", hooks),
    "rebuildable": (DOC / "cleanup.md", "watchdog/owner/git/ignored_files.py", rebuildable),
}


def marks(name: str) -> tuple[str, str]:
    """The lines before and after a block."""
    source = BLOCKS[name][1]
    return f"<!-- {name}: generated from {source} by `make events`; do not edit -->\n", f"<!-- end of {name} -->"


def block(name: str) -> str:
    """What the document has between the marks."""
    begin, end = marks(name)
    path = BLOCKS[name][0]
    _, found, rest = path.read_text().partition(begin)
    inside, closed, _ = rest.partition(end)
    assert found and closed, f"{path.name} has lost the marks around {name}"
    return inside


def main() -> None:
    for name, (path, _, made) in BLOCKS.items():
        begin, end = marks(name)
        path.write_text(path.read_text().replace(begin + block(name) + end, begin + made() + end))


if __name__ == "__main__":
    main()
