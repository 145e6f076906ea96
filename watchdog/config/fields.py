"""The types of configuration values: each check states which values are valid. No sections, no files."""

import difflib
import grp
import ipaddress
import os
import pwd
import re
from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from watchdog.concurrency.threads import NSS, noted
from watchdog.core.hooks import BUILT_IN
from watchdog.core.kill import Step
from watchdog.core.names import name_problem
from watchdog.telemetry.catalogue import CATALOGUE, UNTOLD

DRIVERS = ("sqlite", "sqlite+pysqlite", "postgres", "postgresql", "postgresql+psycopg")  # registry.engines knows these


def _absolute(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError("must be an absolute path")
    if not path.isprintable():
        raise ValueError("must be printable: no line end, no NUL")
    return f"/{os.path.normpath(path).lstrip('/')}" if path else path  # normpath keeps two leading slashes


def _address(value: str) -> str:
    """An IP address of this machine: names would make the daemon wait for DNS."""
    if value and split_address(value) is None:
        raise ValueError("must be HOST:PORT, as in 127.0.0.1:9477 or [::1]:9477; no DNS name")
    return value


def split_address(value: str) -> tuple[str, int] | None:
    """Split HOST:PORT; None if it has another form. `localhost` is 127.0.0.1."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([0-9.]+|localhost)):([0-9]{1,5})", value)
    if found is None or not 0 < int(found[3]) < 65_536:
        return None
    try:
        host = ipaddress.IPv6Address(found[1]) if found[1] else ipaddress.IPv4Address(_LOCAL.get(found[2], found[2]))
    except ValueError:
        return None
    return str(host), int(found[3])


_LOCAL = {"localhost": "127.0.0.1"}


def _database(url: str) -> str:
    driver, colon, place = url.partition("://")
    if not url:
        return url
    if not colon or driver not in DRIVERS:
        raise ValueError("must be a URL of sqlite or postgresql, as in sqlite:////var/lib/x.db")
    try:
        urlsplit(url).port  # noqa: B018 a property that raises
    except ValueError:
        raise ValueError("must have a port of digits, or none, as in postgresql://user@host:5432/name") from None
    if driver.startswith("sqlite") and not place.startswith("//"):
        raise ValueError("must name an absolute file, as in sqlite:////var/lib/x.db")
    if driver.startswith("sqlite") and not plain_in_url(place):
        raise ValueError("must be printable, without ? (it takes no parameters) and %, as in sqlite:////var/lib/x.db")
    return url


def plain_in_url(path: str) -> bool:
    """Whether a path can stand in a SQLite URL unescaped: a ? would start the query, and %41 means A."""
    return path.isprintable() and not {"?", "%"} & set(path)


def _log_file(path: str) -> str:
    if path and not os.path.isdir(os.path.dirname(path)):
        raise ValueError(f"there is no directory {os.path.dirname(path)} on this machine")
    return path


def _climbing(ladder: tuple[Step, ...]) -> tuple[Step, ...]:
    right = tuple(step for step in Step if step in ladder)
    if ladder != right:
        raise ValueError(f"must be in order, each step once; use {[str(step) for step in right]}")
    return ladder


def _host(name: str) -> str:
    if not name.isprintable() or name != name.strip():
        raise ValueError("must be printable, without spaces around it: no line end, no NUL")
    if "@" in name:
        raise ValueError("must hold no @: agents of other hosts are NAME@HOST")
    return name


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one printable line: no line end, no tab")
    return text


def _command(words: tuple[str, ...]) -> tuple[str, ...]:
    if words and "/" in words[0] and not words[0].startswith("/"):
        raise ValueError(f"must begin with an absolute path, or a name on PATH: {words[0]!r} is neither")
    if any("\0" in word for word in words):
        raise ValueError("must hold no NUL")
    return words


def _group(name: str) -> str:
    if name:
        try:
            with noted(NSS):
                grp.getgrnam(name)
        except (KeyError, ValueError):
            raise ValueError("is not a group of this machine; use one that `getent group` lists") from None
    return name


def _account(name: str) -> str:
    if name:
        try:
            with noted(NSS):
                pwd.getpwnam(name)
        except (KeyError, ValueError):
            raise ValueError("is not a user of this machine; use one that `getent passwd` lists") from None
    return name


def _agent(name: str) -> str:
    if (problem := name_problem(name)) is not None:
        raise ValueError(f"matches no agent: a name {problem}; use one whole name, or a tag that several agents have")
    return name


def _whole(word: str) -> str:
    if not word.isprintable() or word != word.strip() or set("*?[]") & set(word):
        raise ValueError("must be one whole word; patterns are not supported")
    return word


def _program(name: str) -> str:
    if not name.isprintable() or set("/*?") & set(name):
        raise ValueError("must be a program's name as `ps -o comm` shows it: no path, no pattern")
    return name


def _event(name: str) -> str:
    if name not in CATALOGUE:
        raise ValueError(f"is not an event{suggest(name, CATALOGUE)}")
    if name in UNTOLD:
        raise ValueError(f"is an event that is never passed to the command; instead: {UNTOLD[name]}")
    return name


def _built_in_hook(name: object) -> str:
    if isinstance(name, str) and name in BUILT_IN:
        return name
    *most, last = map(repr, BUILT_IN)
    raise PydanticCustomError(
        "literal_error", "Input should be {expected}", {"expected": f"{', '.join(most)} or {last}"}
    )


Seconds = Annotated[float, Field(strict=True, ge=0.05, le=31_536_000, allow_inf_nan=False)]
SecondsOrZero = Annotated[float, Field(strict=True, ge=0, le=31_536_000, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
Path = Annotated[str, AfterValidator(_absolute)]
Command = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(max_length=100), AfterValidator(_command)]
Line = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_line)]
Keys = Annotated[tuple[Line, ...], Field(max_length=20)]
Host = Annotated[str, Field(max_length=255), AfterValidator(_host)]
Ladder = Annotated[tuple[Step, ...], Field(min_length=1), AfterValidator(_climbing)]
Database = Annotated[str, AfterValidator(_database)]
LogFile = Annotated[Path, AfterValidator(_log_file)]
Group = Annotated[str, AfterValidator(_group)]
Account = Annotated[str, AfterValidator(_account)]
Address = Annotated[str, AfterValidator(_address)]
Event = Annotated[str, AfterValidator(_event)]
BuiltInHook = Annotated[str, PlainValidator(_built_in_hook)]
AgentName = Annotated[str, AfterValidator(_agent)]
Type = Annotated[str, AfterValidator(_whole)]  # empty: agents without one
Tag = Annotated[str, Field(min_length=1), AfterValidator(_whole)]
Programs = tuple[Annotated[str, Field(min_length=1), AfterValidator(_program)], ...]


def suggest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or else the list of known words if that is short."""
    names = sorted(known)
    if close := difflib.get_close_matches(word, names, 1):
        return f"; did you mean {close[0]!r}?"
    return f"; use one of {', '.join(names)}" if 0 < len(names) <= 14 else ""
