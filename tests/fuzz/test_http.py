"""Every route of the control socket, with bodies, queries and heads that nearly make sense.

The daemon answers each with success or a 4xx in JSON, within seconds; never with a 500, a traceback, or silence.
"""

import json
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st

from tests.control.office import Office, make_office
from tests.fuzz.documents import fuzz, objects, texts
from watchdog.control.server import ROUTES
from watchdog.core.registration import CHECKS

pytestmark = pytest.mark.fuzz

KEYS = (
    *CHECKS,
    *("targets", "reason", "force", "children", "dry_run", "grace_seconds", "cleanup", "silent_for_seconds", "go"),
    *("stall_after_seconds", "seconds", "until", "by", "wait", "with_messages", "yes", "place", "id", "exit_code"),
    *("exit_signal", "state", "note", "progress", "tool", "tool_limit_seconds", "age_seconds", "asks", "agent"),
)
WORDS = ("known", "all", "stalled", "orphans", "tag:t", "task:T", "1", "register", "run", "claude", "working", "idle")
ANSWER_SECONDS = 10.0


@pytest.fixture(scope="module")
def office() -> Iterator[Office]:
    """The real application with one agent that lives."""
    for made in make_office():
        made.register("known", tags=["t"], task="T")
        yield made


def requests() -> st.SearchStrategy[bytes]:
    """METHOD PATH?QUERY, an empty line, and the body."""
    query = st.dictionaries(
        st.sampled_from(("all", "tag", "name", "after", "agent", "place", "all_hosts", "x")),
        st.sampled_from((*WORDS, "", "-1", "9" * 30, "%00", "%ff", "%E2%80%AE", "..%2f..", "a" * 300)),
        max_size=3,
    ).map(lambda found: "&".join(f"{key}={value}" for key, value in found.items()))
    agent = st.sampled_from(("known", "nobody", "%00", "..", "%2e%2e%2f", "1", "a" * 300, "%F0%9F%98%80", "@", "x@y"))
    route = st.sampled_from([(method, path) for method, path, *_ in ROUTES])
    line = st.builds(
        lambda one, who, asked: f"{one[0]} /v1{one[1].replace('{agent_id}', who)}?{asked}".encode(), route, agent, query
    )
    return st.builds(lambda head, body: head + b"\n\n" + body, line, texts(objects(KEYS, WORDS)))


def answer_to(office: Office, raw: bytes) -> bytes:
    """All that comes until the daemon hangs up."""
    received = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(office.socket_path)
        try:
            connection.sendall(raw)
            while piece := connection.recv(65536):
                received += piece
        except (BrokenPipeError, ConnectionResetError):
            pass
    return received


def sound(office: Office, received: bytes) -> None:
    """What holds of each answer."""
    head, _, content = received.partition(b"\r\n\r\n")
    status = int(head.split()[1])
    assert status < 500, received[:2000]
    if content and b"application/json;" in head:
        said = json.loads(content)
        assert status < 300 or {"error", "message"} <= said.keys()
    assert [event for event in office.log.events if event["event"] == "control.failed"] == []


def test_any_body_for_any_route(office: Office) -> None:
    def check(data: bytes) -> None:
        head, _, body = data.partition(b"\n\n")
        begun = time.monotonic()
        length = f"Host: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        sound(office, answer_to(office, head + b" HTTP/1.1\r\n" + length + body))
        assert time.monotonic() - begun < ANSWER_SECONDS

    fuzz("http_bodies", requests(), check, share=2)


HEADERS = (
    *(b"Content-Length: 5", b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Host: x", b"Host: y"),
    *(b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Content-Encoding: gzip", b"Expect: x"),
    *(b"Content-Encoding: deflate", b"Content-Encoding: br", b"Content-Encoding: zstd", b"Upgrade: websocket"),
    *(b"Connection: upgrade", b"Connection: close", b"X: \x00", b": x", b"A" * 9000 + b": x", b"Range: bytes=0-"),
    *(
        b"If-None-Match: *",
        b"Cookie: a=\xff",
        b"Content-Type: multipart/form-data; boundary=x",
        b"Expect: 100-continue",
    ),
)


def heads() -> st.SearchStrategy[bytes]:
    """Whole requests, byte by byte."""
    line = st.sampled_from(
        (b"POST /v1/agents HTTP/1.1", b"GET /v1/status HTTP/1.0", b"GET http://x/v1/status HTTP/1.1", b"PRI * HTTP/2.0")
    ) | st.binary(max_size=60)
    body = (
        st.sampled_from((b"", b"{}", b"5\r\nhello\r\n0\r\n\r\n", b"zz\r\n", b"\x1f\x8b\x08\x00", b"-1\r\n"))
        | st.binary()
    )
    fields = st.lists(st.sampled_from(HEADERS) | st.binary(max_size=40), max_size=6)
    return st.builds(lambda one, more, rest: b"\r\n".join((one, *more)) + b"\r\n\r\n" + rest, line, fields, body)


def test_any_head(office: Office) -> None:
    """An answer below 500, or a hang-up without one; the next client is served, and nothing is an error of ours."""

    def check(data: bytes) -> None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(office.socket_path)
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                received = connection.recv(65536)
            except (BrokenPipeError, ConnectionResetError):
                received = b""
        if received.startswith((b"HTTP/1.1 ", b"HTTP/1.0 ")):
            assert int(received.split()[1]) < 500, received[:2000]
        assert [event for event in office.log.events if event["event"] == "control.failed"] == []

    fuzz("http_heads", heads(), check)
    assert office.ask("GET", "/v1/status")[0] == 200
