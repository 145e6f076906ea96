"""Bodies of requests: unknown keys, wrong types and values out of range are refused, all at once, each with its key."""

import pytest
from aiohttp.test_utils import make_mocked_request

from watchdog.control import schemas
from watchdog.control.schemas import Body
from watchdog.errors import BadRequest


@pytest.mark.parametrize(
    ("kind", "raw", "body"),
    [
        (schemas.Reap, b"", schemas.Reap()),
        (schemas.Kill, b'{"targets": ["a"], "grace_seconds": 0}', schemas.Kill(targets=["a"], grace_seconds=0)),
        (schemas.Stop, b'{"targets": ["a"], "wait": false}', schemas.Stop(targets=["a"], wait=False)),
        (schemas.Change, b'{"exit_code": 0}', schemas.Change(exit_code=0)),
        (schemas.Hold, b"{}", schemas.Hold()),
        (schemas.Unhold, b'{"targets": []}', schemas.Unhold()),
    ],
)
def test_a_body_is_read_with_what_holds_where_it_says_nothing(kind: type[Body], raw: bytes, body: Body) -> None:
    """No body at all is an empty object."""
    assert schemas.parse(kind, raw) == body


@pytest.mark.parametrize(
    ("kind", "raw", "words"),
    [
        (schemas.Kill, b"{", "the body is not JSON: "),
        (schemas.Kill, b"{}", "targets: Field required"),
        (schemas.Kill, b'{"targets": []}', "targets: List should have at least 1 item"),
        (schemas.Kill, b'{"targets": ["a"], "grace": 1}', "grace: unknown key; known are children, cleanup, dry_run"),
        (schemas.Kill, b'{"targets": ["a"], "grace_seconds": -1}', "grace_seconds: .* (is -1)"),
        (schemas.Kill, b'{"targets": ["a"], "force": "yes"}', "force: .* (is 'yes')"),
        (schemas.Kill, b'{"targets": ["a"], "stall_after_seconds": 1e400}', "stall_after_seconds: "),
        (schemas.Stop, b'{"targets": [""]}', "targets.0: "),
        (schemas.Change, b"{}", "give exactly one of pid, exit_code, exit_signal, channel_lost"),
        (schemas.Change, b'{"pid": 42, "exit_code": 0}', "give exactly one of"),
        (schemas.Change, b'{"exit_signal": 65}', "exit_signal: .* (is 65)"),
        (schemas.Hold, b'{"for_seconds": 0}', "for_seconds: .* (is 0)"),
        (schemas.Purge, b'{"agent": "a", "yes": 1}', "yes: .* (is 1)"),
    ],
)
def test_what_is_no_such_body_is_refused_by_its_key(kind: type[Body], raw: bytes, words: str) -> None:
    """No number for a text, no 1 for true."""
    with pytest.raises(BadRequest) as caught:
        schemas.parse(kind, raw)
    begin, _, end = words.partition(".*")
    assert str(caught.value).startswith(begin), caught.value
    assert str(caught.value).endswith(end), caught.value


def test_all_faults_are_told_at_once() -> None:
    """One line each; a long value is not shown."""
    raw = b'{"targets": 7, "mood": 1, "reason": "' + b"x" * 501 + b'"}'
    with pytest.raises(BadRequest) as caught:
        schemas.parse(schemas.Stop, raw)
    lines = str(caught.value).splitlines()
    assert [line.partition(":")[0] for line in sorted(lines)] == ["mood", "reason", "targets"]
    assert all(len(line) < 150 for line in lines)


def test_a_secret_in_a_reason_is_hidden() -> None:
    """It goes into the log, the history and the task's row."""
    body = schemas.parse(schemas.Stop, b'{"targets": ["a"], "reason": "key sk-ant-a1b2c3d4e5f6a1b2c3d4e5f6"}')
    assert "a1b2c3" not in body.reason
    assert body.reason.startswith("key ")


@pytest.mark.parametrize("raw", [b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    """However deep it goes."""
    for read in (schemas.decoded, schemas.parse_registration):
        with pytest.raises(BadRequest):
            read(raw)


@pytest.mark.parametrize(
    ("query", "on"), [("", False), ("?all", True), ("?all=1", True), ("?all=true", True), ("?all=0", False)]
)
def test_a_switch_is_on_by_its_name_alone(query: str, on: bool) -> None:
    """Absent, it is off."""
    assert schemas.flag(make_mocked_request("GET", f"/v1/agents{query}"), "all") is on


def test_what_is_no_switch_or_number_is_refused() -> None:
    """A digit of another script is none here."""
    with pytest.raises(BadRequest, match="all: 'maybe' is neither 1 nor 0"):
        schemas.flag(make_mocked_request("GET", "/?all=maybe"), "all")
    assert schemas.number(make_mocked_request("GET", "/?after=12"), "after") == 12
    assert schemas.number(make_mocked_request("GET", "/"), "after", 3) == 3
    for value in ("-1", "1.0", "", "%D9%A3", "9" * 19):
        with pytest.raises(BadRequest, match="is not a whole number"):
            schemas.number(make_mocked_request("GET", f"/?after={value}"), "after")
