"""What is not to be shown: in logs, errors and answers."""

import re

_PASSWORD = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@")


def hide_password(text: str) -> str:
    """The text with `***` for the password of each URL in it (RFC 3986, section 3.2.1)."""
    return _PASSWORD.sub(r"\1***@", text)
