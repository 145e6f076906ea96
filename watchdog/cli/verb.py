"""Shared by all verbs: common flags, durations, and requests to the daemon."""

import argparse
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from watchdog.cli.output import warn
from watchdog.client import client, sockets
from watchdog.core.durations import seconds_of
from watchdog.errors import BadRequest

Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Json = dict[str, object]
QUICK = 10.0  # seconds for requests that are answered at once
MUTE = 5.0  # seconds after which it prints that it is still running; most orders take less
_WAITS = "still working; Ctrl-C ends only this wait"


def duration(text: str) -> float:
    """A duration argument, in seconds."""
    try:
        return seconds_of(text)
    except BadRequest as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def span(text: str) -> float:
    """The same, but not zero."""
    if not (seconds := duration(text)):
        raise argparse.ArgumentTypeError("must be more than 0")
    return seconds


def add_verb(verbs: Verbs, name: str, help_line: str, text: str, *, json: bool = True) -> argparse.ArgumentParser:
    """A verb's parser with --json and --socket; `text` is its help for the person on call."""
    parser = verbs.add_parser(
        name,
        help=help_line,
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    if json:
        parser.add_argument("--json", action="store_true", help="JSON for programs")
    # Also accepted after the verb; SUPPRESS, or its default would override the one before the verb.
    parser.add_argument("--socket", metavar="PATH", default=argparse.SUPPRESS, help="the daemon's control socket")
    return parser


def socket_of(arguments: argparse.Namespace) -> str:
    """The control socket to use."""
    return sockets.find_socket(arguments.socket)


def ask(
    arguments: argparse.Namespace,
    method: str,
    path: str,
    body: object | None = None,
    timeout: float = QUICK,
    waits: str = _WAITS,
) -> tuple[int, Json]:
    """Send one request; if it takes long, print `waits` meanwhile. Raises DaemonUnreachable, UnsafeDirectory."""
    with _saying(waits, arguments, timeout):
        return client.request(method, path, body, socket_path=socket_of(arguments), timeout=timeout)


@contextmanager
def _saying(words: str, arguments: argparse.Namespace, seconds: float) -> Iterator[None]:
    """After a while tell a person at a terminal that it is still running: a hook, helper or disk may take minutes."""
    if seconds <= QUICK or not sys.stderr.isatty() or getattr(arguments, "json", False):
        yield
        return
    timer = threading.Timer(MUTE, warn, [words])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
