"""What is not to be shown: in logs, errors and answers."""

import re

# To the last @ of the word: a password that was not percent-encoded may hold / and @.
_PASSWORD = re.compile(r"(://[^/\s:@'\"]*:)[^\s'\"]+@")
_QUERY = re.compile(r"([?&](?:password|passwd|pwd|sslpassword)=)[^&\s'\"]+", re.IGNORECASE)


def hide_password(text: str) -> str:
    """The text with `***` for the password of each URL in it (RFC 3986, section 3.2.1), in its query too."""
    return _QUERY.sub(r"\1***", _PASSWORD.sub(r"\1***@", text))
