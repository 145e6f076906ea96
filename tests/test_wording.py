"""Plain English: the worst idioms that this project once had stay out of its strings, documents and source text.

For users: the strings of the package and of the sources of man pages and tables, the documents, the shipped
configuration and the list that `make` prints. For maintainers: docstrings, comments and test names of the files in
`PLAIN`.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Mapping
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
# The same for docstrings, comments and test names, where also "check", "beat" and "report" have their standard words.
SOURCE_IDIOMS: dict[str, str] = {
    r"anew": "again",
    r"nobody|somebody|everybody|anybody": "the noun: no agent, another user, a process, all agents",
    r"whom": "the noun: the agent that ..., the user whose ...",
    r"he|his|him|himself": "it (a process, an agent), they (a person)",
    r"(is|are|was|were|be|being) told(?! apart)": "is reported, is logged; gets",
    r"(is|are|was|were|be|being) ended": "is killed, is stopped, has exited",
    r"for want of": "for lack of",
    r"(so long as|of its own accord|the same is true of)": "while; by itself; the same applies to",
    r"mend(s|ed|ing)?": "repair, correct",
    r"(go|goes|went|gone) on": "continue, resume, keep running",
    r"let(s)? go": "release",
    r"(put|puts|putting) in order": "clean up",
    r"what is no": "an invalid ..., another file than ...",
    r"(its|their|last|next) (own )?words?": "beat, message, report",
    r"(a|each|the next|the last|the first|two) looks?": "check, sweep, scan, read",
}
WHO = re.compile(r"(?:^|[.:;] )[Ww]ho (?=(?:is|was|has|had|may|[a-z]+s)\b)")
SOURCE_PATTERNS = {re.compile(rf"(?<![\w'`-])(?:{idiom})(?![\w-])"): better for idiom, better in SOURCE_IDIOMS.items()}
SOURCE_PATTERNS[WHO] = "the noun: an agent that ..., a user that ..."
_FOLDERS = ("agents", "discovery", "host", "intake", "probes", "service", "sweep", "telemetry")
# The package, and the folders of tests that were gone through. A folder that becomes clean is added.
PLAIN = (
    "watchdog/**/*.py",
    *(f"tests/{folder}/**/*.py" for folder in _FOLDERS),
    "tests/e2e/**/*.py",
)
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


def explanations(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring, comment and name of a test function (as a text of words)."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (text := ast.get_docstring(node)) is not None:
                yield node.body[0].lineno, text
            if not isinstance(node, ast.Module) and node.name.startswith("test_"):
                yield node.lineno, node.name.removeprefix("test_").replace("_", " ")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def idioms(text: str, patterns: Mapping[re.Pattern[str], str] = PATTERNS) -> Iterator[tuple[int, str, str]]:
    """(lines before it, the idiom, a better wording) for each idiom in a text, also across the end of a line."""
    for pattern, better in patterns.items():
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


def source_findings(root: Path) -> list[str]:
    """The same for each idiom that a maintainer of that tree would read."""
    found: list[str] = []
    for pattern in PLAIN:
        for file in sorted(root.glob(pattern)):
            for line, text in explanations(file.read_text()):
                for lines, said, better in idioms(text, SOURCE_PATTERNS):
                    found.append(f"{file.relative_to(root)}:{line + lines}: {said!r}; better: {better}")
    return found


def test_no_idiom_of_ours_puzzles_a_user() -> None:
    """Each finding gives the place, the idiom, and a plain wording."""
    found = findings(ROOT)

    assert not found, "\n".join(found)


def test_no_idiom_of_ours_puzzles_a_maintainer() -> None:
    """The same for docstrings, comments and test names, in the folders that were gone through."""
    found = source_findings(ROOT)

    assert not found, "\n".join(found)


def test_each_pattern_of_folders_matches_files() -> None:
    """Otherwise a renamed folder would drop out unnoticed."""
    assert [pattern for pattern in PLAIN if next(ROOT.glob(pattern), None) is None] == []


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
    """Otherwise the test above would pass without having read anything."""
    assert list(idioms(text))


@pytest.mark.parametrize(
    "source",
    [
        '"""Who beats is not killed."""',
        'def f():\n    """One line.\n\n    The agent goes\n    on.\n    """',
        "x = 1  # asked at the next look",
        "# read anew",
        "def test_who_beats_lives():\n    pass",
        "async def test_nobody_is_signalled():\n    pass",
    ],
)
def test_an_idiom_in_the_source_text_is_found(source: str) -> None:
    """In docstrings of each kind, comments and test names."""
    assert [found for _, text in explanations(source) for found in idioms(text, SOURCE_PATTERNS)]


@pytest.mark.parametrize(
    "text",
    ["two look-alikes", "the owner, who has rights", "prompts that can be told apart", "the `his` column", "his-name"],
)
def test_plain_text_is_no_idiom(text: str) -> None:
    """False alarms would make the list useless."""
    assert not list(idioms(text, SOURCE_PATTERNS))


def test_strings_and_source_text_are_separate() -> None:
    """Of an f-string the written parts count; docstrings and comments count only for maintainers."""
    source = '"""one"""\ndef f(x):\n    """two"""\n    return f"begun {x} anew", "told"  # three\n'

    assert [text for _, text in strings(source)] == ["begun {} anew", "told"]
    assert sorted(text for _, text in explanations(source)) == ["one", "three", "two"]
