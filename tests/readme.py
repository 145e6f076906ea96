"""The README's generated tables: events and figures, vendors' versions. `python -m tests.readme` writes them anew."""

import logging
from pathlib import Path

from tests.vendors.programs import PROGRAMS
from watchdog.telemetry.catalogue import CATALOGUE
from watchdog.telemetry.metrics import FIGURES, PREFIX

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- events: generated from watchdog/telemetry/catalogue.py and metrics.py by `make events`; do not edit -->\n"
END = "<!-- end of events -->"
VERSIONS_BEGIN = "<!-- versions: generated from tests/vendors/programs.py by `make events`; do not edit -->\n"
VERSIONS_END = "<!-- end of versions -->"


def table() -> str:
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


def block(text: str, begin: str = BEGIN, end: str = END) -> str:
    """What stands between the marks."""
    _, found, rest = text.partition(begin)
    inside, closed, _ = rest.partition(end)
    assert found and closed, "the README has lost the marks around a table"
    return inside


def main() -> None:
    text = README.read_text()
    text = text.replace(BEGIN + block(text), BEGIN + table())
    tried = VERSIONS_BEGIN + block(text, VERSIONS_BEGIN, VERSIONS_END)
    README.write_text(text.replace(tried, VERSIONS_BEGIN + versions()))


if __name__ == "__main__":
    main()
