"""Hides secrets in logs, errors, responses, and stored text of agents.

A secret is recognised by what precedes it (a key's name, a scheme) or by its issuer's format. One without a known
format and without a name in front looks like any other word, and is not found.
"""

import re
from functools import lru_cache

HIDDEN = "***"

# To the last @ of the word: a password that was not percent-encoded may hold / and @.
_PASSWORD = re.compile(r"(://[^/\s:@'\"]*:)[^\s'\"]+@")
_QUERY = re.compile(r"([?&](?:password|passwd|pwd|sslpassword)=)[^&\s'\"]+", re.IGNORECASE)

# kind -> pattern; a group is kept. Each is linear: no nested repetition.
SECRETS = {
    "private key": (
        r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?s:.){0,8192}?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)"
    ),
    "header": (
        r"(\b(?:proxy-)?authorization['\"]?\s{0,4}[:=]\s{0,4}['\"]?(?:(?:bearer|basic|token|digest)\s{1,4})?)"
        r"[^\s'\",]+"
    ),
    "bearer": r"(\bbearer\s{1,4})[\w.~+/=-]{8,}",
    "named": (
        r"((?<![A-Za-z0-9])[\w.-]{0,40}(?:password|passwd|passphrase|pwd|secret|token|api[_-]?key|apikey|access[_-]?key"
        r"|private[_-]?key|secret[_-]?key|credentials?|cookie)s?['\"]?\s{0,4}(?:=|:(?!//))\s{0,4})"
        r"(?:\"[^\"\n]{1,4096}\"?|'[^'\n]{1,4096}'?|[^\s'\",;&]+)"
    ),
    "option": r"(--?[\w-]{0,30}(?:password|passwd|secret|token|api-?key)\s{1,4})(?!-)[^\s'\"]+",
    "anthropic, openai": r"\bsk-[\w-]{16,}",
    "github": r"\b(?:gh[pousr]_\w{16,}|github_pat_\w{16,})",
    "gitlab": r"\bgl(?:pat|ptt|dt|rt|cbt)-[\w-]{16,}",
    "slack": r"\bxox[a-z]-[\w-]{8,}|\bxapp-[\w-]{8,}",
    "aws": r"\b(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}\b",
    "google": r"\bAIza[\w-]{30,}|\bya29\.[\w.-]{16,}|\bGOCSPX-[\w-]{16,}",
    "hugging face": r"\bhf_[A-Za-z0-9]{16,}",
    "npm, pypi": r"\bnpm_[A-Za-z0-9]{16,}|\bpypi-[\w-]{16,}",
    "stripe": r"\b[sr]k_(?:live|test)_\w{8,}",
    "telegram": r"\b\d{8,10}:AA[\w-]{32,}",
    "json web token": r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",
    "age": r"\bAGE-SECRET-KEY-1[A-Z0-9]{16,}",
}
_SECRETS = tuple(re.compile(pattern, re.IGNORECASE) for pattern in SECRETS.values())


def hide_password(text: str) -> str:
    """The text with `***` for the password of each URL in it (RFC 3986, section 3.2.1), also in its query."""
    if "://" not in text and "=" not in text:  # most log lines; searching with both patterns takes 6 µs
        return text
    return _QUERY.sub(rf"\1{HIDDEN}", _PASSWORD.sub(rf"\1{HIDDEN}@", text))


@lru_cache(1024)  # each sweep passes the same notes again; worst cases of 4 KiB take 20 ms
def hide_secrets(text: str) -> str:
    """The text with `***` for everything that looks like a secret: `SECRETS`, and passwords of URLs."""
    text = hide_password(text)
    for pattern in _SECRETS:
        text = pattern.sub(lambda found: (found[1] if found.re.groups else "") + HIDDEN, text)
    return text
