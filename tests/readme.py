"""The README's table of events and figures. `python -m tests.readme` writes it anew (`make events`)."""

import logging
from pathlib import Path

from watchdog.catalogue import CATALOGUE
from watchdog.metrics import FIGURES, PREFIX

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- events: generated from watchdog/catalogue.py and metrics.py by `make events`; do not edit -->\n"
END = "<!-- end of events -->"


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


def block(text: str) -> str:
    """What stands between the marks."""
    _, found, rest = text.partition(BEGIN)
    inside, closed, _ = rest.partition(END)
    assert found and closed, "the README has lost the marks around its table of events"
    return inside


def main() -> None:
    text = README.read_text()
    README.write_text(text.replace(BEGIN + block(text), BEGIN + table()))


if __name__ == "__main__":
    main()
