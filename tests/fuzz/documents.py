"""What is fed to a target: bytes, for the most part documents that nearly make sense; and the loop with its share of
the time.

Whatever once made a target fail lies in `seeds/TARGET/` and is fed first, each time.
"""

import json
import os
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

SEEDS = Path(__file__).parent / "seeds"
TARGETS = 10  # that share the time
SECONDS = float(os.environ.get("FUZZ_SECONDS", "120"))
BATCH = 100  # examples of one run of hypothesis, which has no limit of time of its own

# Where parsers break: depth, size, other kinds of numbers, other kinds of text.
ODD: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e308, 2**31, 2**63, 2**64, 10**400, -(10**400), float("nan"), float("inf")),
    *("", "\0", "\x1b[2J", "\u202e", "\ud800", "a" * 5000, "/etc/passwd", "../../x", "-", "$(id)", "1", "*", "%s%n"),
    *([], {}, [[]], {"": ""}, [None], "0123456789abcdef" * 2, "all", "1e999", "2026-01-01T00:00:00Z"),
)
ODD_TEXTS: tuple[bytes, ...] = (
    b"",
    b"null",
    b"[" * 20_000,
    b'{"a":' * 6_000,
    b'{"a": ' + b"1" * 5000 + b"}",
    b'{"a": 1e999, "a": -1e999}',
    b'"\\ud800"',
    b"\xff\xfe{}",
    b"\xef\xbb\xbf{}",
    b"{" + b'"k":1,' * 10_000 + b'"k":1}',
)


def values(keys: Sequence[str], words: Sequence[str] = ()) -> st.SearchStrategy[object]:
    """Any JSON value; its objects have mostly these keys, its texts are often these words."""
    leaves = st.one_of(st.sampled_from(ODD), st.integers(), st.floats(), st.text(max_size=40))
    if words:
        leaves = st.one_of(st.sampled_from(words), leaves)
    key = st.one_of(st.sampled_from(keys), st.text(max_size=8)) if keys else st.text(max_size=8)
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(key, inner, max_size=12), max_leaves=20
    )


def objects(keys: Sequence[str], words: Sequence[str] = ()) -> st.SearchStrategy[object]:
    """An object with some of these keys."""
    return st.dictionaries(st.sampled_from(keys), values(keys, words), max_size=len(keys))


def nearly(whole: dict[str, object], words: Sequence[str] = ()) -> st.SearchStrategy[object]:
    """A document that is right, with one or two of its values exchanged."""
    one = st.tuples(st.sampled_from(sorted(whole)), values(sorted(whole), words))
    return st.lists(one, max_size=2).map(lambda changes: {**whole, **dict(changes)})


def texts(value: st.SearchStrategy[object]) -> st.SearchStrategy[bytes]:
    """Such values as JSON, whole or cut or with a byte changed; and what is none."""
    whole = value.map(lambda one: json.dumps(one).encode())
    return st.one_of(
        whole,
        st.builds(lambda text, at: text[: at % (len(text) + 1)], whole, st.integers(0, 10_000)),
        st.builds(_changed, whole, st.integers(0, 10_000), st.integers(0, 255)),
        st.sampled_from(ODD_TEXTS),
        st.binary(max_size=200),
    )


def _changed(text: bytes, at: int, byte: int) -> bytes:
    where = at % len(text)
    return text[:where] + bytes([byte]) + text[where + 1 :]


def fuzz(target: str, strategy: st.SearchStrategy[bytes], check: Callable[[bytes], None], share: float = 1.0) -> None:
    """Feed the seeds, then new documents for as long as this target's share of the time lasts.

    A failure is told with its smallest document, which belongs into `seeds/TARGET/` as a file.
    """
    for path in sorted((SEEDS / target).glob("*")):
        check(path.read_bytes())
    until = time.monotonic() + SECONDS / TARGETS * share
    while time.monotonic() < until:
        run = settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )(given(strategy)(check))
        seed(random.getrandbits(64))(run)()
