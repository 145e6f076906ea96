"""Text from others, in the daemon's own process or a client's: understood, or refused by name; nothing else comes out.

A datagram, a configuration file, a vendor's event, what a `run` wrote down, a helper's answer.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzz.documents import fuzz, nearly, objects, texts, values
from watchdog.config import settings as config
from watchdog.config.paths import Paths
from watchdog.config.schema import Config
from watchdog.control.schemas import decoded
from watchdog.core import vendor_hooks
from watchdog.core.beat import beat_in, beat_of_json, beat_to_json
from watchdog.core.registration import registration_of
from watchdog.core.sd_notify import parse_datagram
from watchdog.errors import BadRequest, ConfigError, PathRefused
from watchdog.owner.git import worktree_trash
from watchdog.owner.run_reports import end_report
from watchdog.probes import exit_report

pytestmark = pytest.mark.fuzz

FIELDS = (
    *("WATCHDOG=1", "READY=1", "STOPPING=1", "STATUS=", "WATCHDOG_USEC=", "EXTEND_TIMEOUT_USEC=", "FDSTORE=1"),
    *("X_AGENT_STATE=", "X_AGENT_TOOL=", "X_AGENT_NOTE=", "X_AGENT_PROGRESS=", "X_AGENT_SILENT_FOR=", "MAINPID=1"),
)


def lines() -> st.SearchStrategy[bytes]:
    """Fields of sd_notify(3), and what looks like them."""
    value = st.one_of(st.binary(max_size=30), st.integers().map(lambda n: str(n).encode()), st.just(b"9" * 5000))
    line = st.builds(lambda field, text: field.encode() + text, st.sampled_from(FIELDS), value)
    return st.lists(st.one_of(line, st.binary(max_size=20)), max_size=8).map(b"\n".join)


def test_a_datagram_is_a_beat_or_nothing() -> None:
    def check(data: bytes) -> None:
        parse_datagram(data)
        for main in (True, False):
            try:
                beat = beat_in(data, main)
            except BadRequest:
                continue
            if beat is not None:
                json.dumps(beat_to_json(beat), allow_nan=False)

    fuzz("datagrams", lines(), check)


BEAT = (
    "state",
    "note",
    "progress",
    "silent_for_seconds",
    "tool",
    "tool_limit_seconds",
    "age_seconds",
    "asks",
    "session",
)


def test_the_body_of_a_beat_is_a_beat_or_a_bad_request() -> None:
    def check(data: bytes) -> None:
        try:
            beat, _ = beat_of_json(decoded(data))
        except BadRequest:
            return
        json.dumps(beat_to_json(beat), allow_nan=False)

    fuzz("beats", texts(objects(BEAT, ("working", "idle", "waiting", "blocked", "done"))), check)


SECTIONS = tuple(Config.model_fields)
KEYS = tuple(key for field in Config.model_fields.values() for key in getattr(field.annotation, "model_fields", {}))

TABLE_KEYS = ("name", "on", "run", "command", "match", "type", "kind", "path", "user")


def toml() -> st.SearchStrategy[bytes]:
    """Sections with keys that are known, and values that fit or do not."""
    value = st.one_of(
        values(KEYS).map(lambda one: json.dumps(one).encode()),
        st.sampled_from((b"1979-05-27T07:32:00Z", b"0x1F", b"inf", b"nan", b"'''x", b"[[", b"{a=1}", b"9" * 5000)),
        st.binary(max_size=20),
    )
    line = st.builds(lambda key, text: key.encode() + b" = " + text, st.sampled_from((*KEYS, *TABLE_KEYS)), value)
    head = st.sampled_from(SECTIONS).flatmap(
        lambda name: st.sampled_from((f"[{name}]".encode(), f"[[{name}]]".encode()))
    )
    return st.lists(st.one_of(head, line, line), max_size=12).map(b"\n".join) | st.binary(max_size=100)


def test_a_configuration_holds_or_its_faults_are_told() -> None:
    def check(data: bytes) -> None:
        try:
            found = config.parse(data, "f.toml")
            places = Paths(os.geteuid(), "/c", "/s", "/r")
            settings = config.settings_of(found, "f.toml", places)
        except ConfigError as error:
            assert error.problems
            assert all(problem.startswith(("f.toml: ", "defaults: ")) for problem in error.problems)
            return
        settings.policy_of("claude", "a", ("t",))

    fuzz("configuration", toml(), check)


EVENT = (
    *("hook_event_name", "session_id", "transcript_path", "cwd", "tool_name", "tool_input", "tool_use_id", "source"),
    *("reason", "message", "notification_type", "agent_id", "error", "timeout", "background_tasks", "type", "status"),
)
NAMES = tuple({name for events in vendor_hooks._EVENTS.values() for name in events})


def test_a_vendors_event_says_something_or_nothing() -> None:
    def check(data: bytes) -> None:
        try:
            event = decoded(data)
        except BadRequest:
            return
        if not isinstance(event, dict):
            return
        for vendor in vendor_hooks._EVENTS:
            vendor_hooks.begins(vendor, event)
            for main in (True, False):
                words = vendor_hooks.words_of_event(vendor, event, {}, main=main)
                if words is not None:
                    json.dumps(words)
            json.dumps(vendor_hooks.session_of(vendor, event))
            json.dumps(vendor_hooks.stop_answer(vendor, event, "enough"))

    fuzz("vendor_events", texts(objects(EVENT, (*NAMES, "Bash", "AskUserQuestion"))), check)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="aw-f") as name:
        yield Path(name)


REPORT = (
    "end",
    "exit_code",
    "exit_signal",
    "ended_at",
    "registration",
    "boot_id",
    "socket",
    "name",
    "agent_id",
    "source",
)
AGENT = "0123456789abcdef" * 2


def test_a_report_of_run_tells_an_end_or_is_refused(directory: Path) -> None:
    """The file by its helper, its words by the daemon."""
    file = directory / AGENT

    def check(data: bytes) -> None:
        file.write_bytes(data)
        try:
            report = end_report(str(file))
            exit_report.source_of(exit_report.end_of(report))
        except (PathRefused, BadRequest):
            return
        try:
            registration_of(report.get("registration"))
        except BadRequest:
            return

    right: dict[str, object] = {"end": {"exit_code": 0}, "ended_at": 1.5, "registration": {"name": "a"}, "boot_id": "b"}
    fuzz("reports", texts(nearly(right) | objects(REPORT, ("run", AGENT))), check)


MANIFEST = ("agent_id", "path", "branch", "head", "entry", "common", "trashed_at", "name", "refs", "keep_hours")


def test_a_manifest_of_the_trash_is_understood_or_passed_over(directory: Path) -> None:
    file = directory / worktree_trash.MANIFEST
    container = os.open(directory, os.O_PATH | os.O_DIRECTORY)

    def check(data: bytes) -> None:
        file.write_bytes(data)
        manifest = worktree_trash.manifest_in(container)
        if manifest is not None:
            assert "/" not in manifest.entry
            json.dumps(manifest.keep_hours, allow_nan=False)

    try:
        right: dict[str, object] = {**dict.fromkeys(MANIFEST, "x"), "refs": {}, "keep_hours": 1}
        fuzz("manifests", texts(nearly(right) | objects(MANIFEST, ("/x", "f" * 40, AGENT))), check)
    finally:
        os.close(container)
