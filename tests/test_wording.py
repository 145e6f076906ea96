"""Users read plain English: the worst idioms that this project once had stay out of its strings and documents.

Looked at are the strings of the package (docstrings are for maintainers) and of what man pages and tables are made of,
the documents, the shipped configuration and the list that `make` prints.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What is not said here -> what is said instead. Words of other programs, and of the shell, are not ours to choose.
IDIOMS: dict[str, str] = {
    r"anew": "again",
    r"nobody|somebody|everybody|anybody": "the noun: no agent, another user, a process, all agents",
    r"whom": "the noun: the agent that ..., the user whose ...",
    r"he|his|him|himself": "it (a process, an agent), they (a person)",
    r"mend(s|ed|ing)?": "repair, correct",
    r"(go|goes|going|went) on living|(agents|they) live on": "keep running",
    r"gone on with": "resumed, continued",
    r"(is|are|was|were|be|being) told( of)?(?! apart)|told (of|once)": "is reported, is logged",
    r"(is|are|was|were|be|being) ended": "is killed, is stopped",
    r"ends (nobody|the stalled)": "kills",
    r"passed on to another process": "been reused by another process",
    r"let(s)? (a signal )?not out": "blocked",
    r"; right: ": "; use ...",
    r"for want of": "for lack of",
    r"(not|none) of our making|not ours any more": "was not made by this daemon, belongs to another daemon",
    r"(put|puts|putting) in order": "clean up",
    r"(by|without|on) (its|a|his|their) (last )?word": "as it reported, without a report",
    r"(holds|watches|lives|has) (it|them) no more": "no longer ...",
    r"(be |is |are )?let go": "released",
    r"who (ends|beats|lives|asks|talks|dies|has ended|is paged|uses it|works on)": "the noun: the agent that ...",
    r"say(s)? so first": "the noun: report, log",
    r"may stand": "may be used, may precede",
    r"beside the bare limit": "compared with",
    r"hostile hands": "hostile input",
    r"agents? (that )?(only )?it knows": "listed only there",
    r"so far as is known": "as far as is known",
}
PATTERNS = {re.compile(rf"(?<![\w'`-])(?:{idiom})(?![\w-])" if idiom[0] != ";" else idiom): better
            for idiom, better in IDIOMS.items()}  # fmt: skip
DOCUMENTS = (
    *("README.md", "CHANGELOG.md", "systemd/README.md", "tests/README.md", "watchdog/DESIGN.md"),
    *("config/agent-watchdog.toml", "config/agent-watchdog.rules.yml", "Makefile"),
)
# Strings of the package, and those that are printed in man pages and tables.
SOURCES = ("watchdog/**/*.py", "systemd/*.py", "tests/manual.py", "tests/manual_text.py", "tests/documents.py")
# (file, idiom as found): the words of other programs.
FOREIGN: set[tuple[str, str]] = set()


def strings(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each string but docstrings; of an f-string what is written there."""
    tree = ast.parse(source)
    inside = {
        id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr | ast.Expr) for part in _parts(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            texts = [str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values]
            yield node.lineno, "".join(texts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.lineno, node.value


def _parts(node: ast.JoinedStr | ast.Expr) -> list[ast.expr]:
    return node.values if isinstance(node, ast.JoinedStr) else [node.value]


def idioms(text: str) -> Iterator[tuple[int, str, str]]:
    """(lines before it, what is said, what would be better) for each idiom in a text, also over the end of a line."""
    for pattern, better in PATTERNS.items():
        for found in pattern.finditer(text.replace("\n", " ")):
            yield text.count("\n", 0, found.start()), found[0], better


def findings(root: Path) -> list[str]:
    """`file:line: idiom; better: ...`, for each idiom that a user of that tree would read."""
    found: list[str] = []
    for pattern in SOURCES:
        for file in sorted(root.glob(pattern)):
            name = str(file.relative_to(root))
            for line, text in strings(file.read_text()):
                if " " in text:
                    found += [
                        f"{name}:{line + lines}: {said!r}; better: {better}" for lines, said, better in idioms(text)
                    ]
    for file in [*(root / name for name in DOCUMENTS), *sorted((root / "config/doc").glob("*.md"))]:
        name = str(file.relative_to(root))
        found += [f"{name}:{1 + lines}: {said!r}; better: {better}" for lines, said, better in idioms(file.read_text())]
    return found


def test_no_idiom_of_ours_puzzles_a_user() -> None:
    """Each finding says where, what, and which word is plain English."""
    found = findings(ROOT)

    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "nobody is ended meanwhile",
        "the configuration was read anew",
        "agents go\non living",
        "is no group of this machine; right: a name",
        "ended by the kernel for want of memory",
        "each one installs his own hooks",
    ],
)
def test_an_idiom_is_found(text: str) -> None:
    """Else the test above would pass for having looked at nothing."""
    assert list(idioms(text))


def test_docstrings_are_not_looked_at_and_parts_of_f_strings_are() -> None:
    """Comments and docstrings are read by maintainers; they are gone through by hand."""
    source = '"""anew"""\ndef f(x):\n    """anew"""\n    return f"begun {x} anew", "told"\n'

    assert [text for _, text in strings(source)] == ["begun {} anew", "told"]
