"""What a registration request may contain, from any source, and the error for each fault."""

import dataclasses
import json
from typing import Any

import pytest

from watchdog.core.process import Listed
from watchdog.core.registration import CHECKS, RegistrationRequest, field_problem, registration_of
from watchdog.errors import BadRequest

FULL: dict[str, Any] = {
    "name": "alpha",
    "agent_id": "f" * 32,
    "pid": 42,
    "type": "claude",
    "tags": ["a", "b"],
    "task": "T-1: the first",
    "parent": "lead",
    "stall_after_seconds": 120,
    "interval_seconds": 60.0,
    "ttl_seconds": 1.5,
    "worktree": "/srv/tree",
    "temp_dir": "/tmp/x",
    "beat_file": "/tmp/x/beat",
    "log": "/tmp/x/log",
    "transcript": "/home/a/t.jsonl",
    "queued": False,
    "source": "run",
    "command": "claude",
    "notify_socket": "/run/user/1/agent-watchdog/notify/run-" + "0" * 32,
    "replace": True,
    "taken_from": "/run/agent-watchdog/control.sock",
}


def faults(**fields: object) -> list[str]:
    with pytest.raises(BadRequest) as caught:
        registration_of({"name": "alpha", **fields})
    return str(caught.value).splitlines()


def test_a_document_holds_a_request() -> None:
    """The document and the value have the same fields, except those that no document may set."""
    request = registration_of(json.loads(json.dumps(FULL)))
    assert {key: getattr(request, key) for key in FULL} == {**FULL, "tags": ("a", "b")}
    assert set(FULL) == set(CHECKS)
    assert {field.name for field in dataclasses.fields(RegistrationRequest)} - set(CHECKS) == {"entry"}
    assert registration_of({"name": "alpha"}) == RegistrationRequest("alpha")


def test_what_is_missing_or_unknown_is_named() -> None:
    """All faults at once, a line each."""
    with pytest.raises(BadRequest) as caught:
        registration_of({"nme": "alpha", "pid": "7", "entry": {}})
    known = ", ".join(sorted(CHECKS))
    assert str(caught.value).splitlines() == [
        "name: Field required",
        "pid: Input should be a valid integer (is '7')",
        f"nme: unknown key; known are {known}",
        f"entry: unknown key; known are {known}",
    ]
    no_objects: list[object] = [[], None, "alpha", 7]
    for document in no_objects:
        with pytest.raises(BadRequest, match="Input should be an object"):
            registration_of(document)


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("name", "all", "'all' is reserved: it is a kind of target; choose another name (is 'all')"),
        ("name", None, "Input should be a valid string (is None)"),
        ("agent_id", "f" * 31, f"String should match pattern '^[0-9a-f]{{32}}$' (is '{'f' * 31}')"),
        ("agent_id", "f" * 32 + "\n", f"String should match pattern '^[0-9a-f]{{32}}$' (is '{'f' * 32}\\n')"),
        ("pid", True, "Input should be a valid integer (is True)"),
        ("pid", 1, "must be the pid of an agent; 0, 1 and negative numbers are never one (is 1)"),
        ("pid", 4_194_305, "Input should be less than or equal to 4194304 (is 4194305)"),
        ("type", "a b", "must be 1 to 64 of A-Z a-z 0-9 . _ - (is 'a b')"),
        ("source", "", "must be 1 to 64 of A-Z a-z 0-9 . _ - (is '')"),
        ("task", "", "String should have at least 1 character (is '')"),
        ("task", "x" * 257, "String should have at most 256 characters"),
        ("parent", "a\x1b[2J", "must not contain control characters (is 'a\\x1b[2J')"),
        ("worktree", "srv", "must be an absolute path (is 'srv')"),
        ("worktree", "/a/../b", "must not contain '..'; give the path as realpath(1) prints it (is '/a/../b')"),
        ("log", "/a\nb", "must not contain a NUL, a newline or other control characters (is '/a\\nb')"),
        ("log", "/a\udcff", "must not contain a NUL, a newline or other control characters (is '/a\\udcff')"),
        ("log", "/" + "x" * 1024, "String should have at most 1024 characters"),
        ("notify_socket", "/" + "x" * 107, "Value should have at most 107 items after validation, not 108"),
        ("ttl_seconds", 0, "Input should be greater than 0 (is 0)"),
        ("ttl_seconds", False, "Input should be a valid number (is False)"),
        ("ttl_seconds", 2e9, "Input should be less than or equal to 1000000000 (is 2000000000.0)"),
        ("ttl_seconds", float("nan"), "Input should be a finite number (is nan)"),
        ("ttl_seconds", 10**400, "Input should be a finite number"),
        ("queued", 1, "Input should be a valid boolean (is 1)"),
        ("tags", "a", "Input should be a valid array (is 'a')"),
        ("tags", ["a"] * 33, "List should have at most 32 items after validation, not 33"),
    ],
)
def test_each_fault_is_said_with_its_key_and_the_value_if_that_is_short(key: str, value: object, fault: str) -> None:
    assert faults(**{key: value}) == [f"{key}: {fault}"]
    assert field_problem(key, value) == f"{key}: {fault}"


def test_each_invalid_tag_is_reported() -> None:
    assert faults(tags=["a", "b c", 7]) == [
        "tags.1: must be 1 to 64 of A-Z a-z 0-9 . _ - (is 'b c')",
        "tags.2: Input should be a valid string (is 7)",
    ]


def test_fields_that_contradict_each_other_are_said_when_each_alone_is_right() -> None:
    """A limit that one late beat would exceed; a queued agent that has started."""
    found = faults(stall_after_seconds=100, interval_seconds=60)
    assert found == [
        "stall_after_seconds: 100 is less than two beats of 60 s, so one late beat would end the agent; "
        "give at least 120, or leave it out"
    ]
    assert faults(queued=True, pid=42) == [
        "queued: an agent that has a pid has started; leave one of the two out",
    ]
    assert faults(queued=True, pid=42, ttl_seconds=0) == ["ttl_seconds: Input should be greater than 0 (is 0)"]


def test_a_value_is_checked_as_a_document_is() -> None:
    """It is also built from an entry of another program's registry, which another uid wrote."""
    entry = Listed("hcom", "/p", "k", "t")
    request = RegistrationRequest("alpha", pid=42, tags=("a",), entry=entry)
    assert request.entry is entry
    with pytest.raises(BadRequest, match="worktree: must be an absolute path"):
        dataclasses.replace(request, worktree="srv")
    with pytest.raises(BadRequest, match="name: 'a b' may hold only letters"):
        RegistrationRequest("a b")


def test_a_field_without_a_fault_has_no_problem() -> None:
    for key, value in FULL.items():
        assert field_problem(key, value) is None
    assert field_problem("task", None) is None
