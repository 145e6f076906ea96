"""Secrets in text from others are hidden, and the text around them is not."""

import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog.core.redaction import HIDDEN, SECRETS, hide_secrets

LETTERS = st.text(string.ascii_letters + string.digits, min_size=36, max_size=36)
# One example of each kind, `{}` is what must not be seen.
EXAMPLES = {
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
    "header": "Authorization: Basic {}",
    "bearer": "curl with bearer {}",
    "named": "DB_PASSWORD={}",
    "option": "psql --password {}",
    "anthropic, openai": "sk-ant-api03-{}",
    "github": "ghp_{}",
    "gitlab": "glpat-{}",
    "slack": "xoxb-{}",
    "google": "AIza{}",
    "hugging face": "hf_{}",
    "npm, pypi": "npm_{}",
    "stripe": "sk_live_{}",
    "telegram": "12345678:AA{}",
    "json web token": "eyJhbGciOiJI.{}.x",
}
MORE = (
    "export OPENAI_API_KEY={}",
    'config: {{"api_key": "{}", "model": "x"}}',
    "password: {}",
    "the token = '{}'",
    "github_pat_{}",
    "postgresql://bob:{}@db/x",
    "https://x/?password={}&a=b",
    "AGE-SECRET-KEY-1{}",
    "X-Api-Key: {}",
    "Cookie: {}",
)


def test_each_kind_has_an_example() -> None:
    """Kinds in capitals only are in `test_what_has_a_form_of_its_own`."""
    assert set(EXAMPLES) | {"aws", "age"} == set(SECRETS)


@pytest.mark.parametrize("example", [*EXAMPLES.values(), *MORE])
@settings(max_examples=20)
@given(secret=LETTERS, before=st.text(" ab:=\"'/\n", max_size=8), after=st.text(" ab,\"'\n", max_size=8))
def test_a_secret_is_hidden_whatever_stands_around_it(example: str, secret: str, before: str, after: str) -> None:
    """And hiding it again changes nothing."""
    text = f"{before} {example.format(secret)} {after}"
    hidden = hide_secrets(text)

    assert secret not in hidden
    assert HIDDEN in hidden
    assert hide_secrets(hidden) == hidden
    assert hidden.startswith(f"{before} ")


def test_what_has_a_form_of_its_own() -> None:
    """An id of AWS, an age key: capitals only."""
    assert hide_secrets("use AKIAIOSFODNN7EXAMPLE now") == f"use {HIDDEN} now"
    assert hide_secrets("AGE-SECRET-KEY-1QQQQQQQQQQQQQQQQQQQQ") == HIDDEN


@pytest.mark.parametrize(
    "text",
    [
        "reading src/tokens.py, 120 tokens left",
        "commit 0f3b9c2d4e5f60718293a4b5c6d7e8f901234567 passed",
        "asked for a password and waits",
        "https://example.org/a/b?x=1 answered 200",
        "the secret is out",
        "running task-1234 in /tmp/sk-test",
        "",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    """Text that only mentions secrets is shown."""
    assert hide_secrets(text) == text


@given(st.text(max_size=400))
def test_hiding_twice_is_hiding_once(text: str) -> None:
    """For any text."""
    once = hide_secrets(text)
    assert hide_secrets(once) == once


@pytest.mark.parametrize("piece", ["password", "a", "-----BEGIN PRIVATE KEY-----", "sk-", "token=", "bearer ", "x."])
def test_no_words_take_long(piece: str) -> None:
    """4,096 bytes, the longest possible note, as a worst case for the patterns."""
    text = (piece * 4096)[:4096]
    began = time.process_time()
    hide_secrets(text)
    assert time.process_time() - began < 0.5
