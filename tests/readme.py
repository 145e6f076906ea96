"""The README's table of log events, from the catalogue. `python -m tests.readme` writes it anew (`make events`)."""

import logging
from pathlib import Path

from watchdog.catalogue import CATALOGUE

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- events: generated from watchdog/catalogue.py by `make events`; do not edit -->\n"
END = "<!-- end of events -->"


def table() -> str:
    """One row an event, in the catalogue's order."""
    rows = [
        f"| `{event}` | {logging.getLevelName(entry.level).lower()} | {entry.text} |"
        for event, entry in CATALOGUE.items()
    ]
    return "\n".join(["| event | level | meaning |", "| --- | --- | --- |", *rows]) + "\n"


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
