"""sd_notify datagrams: which fields count, from which process, and how two messages are merged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog.core.agent import State
from watchdog.core.sd_notify import MAX_BYTES, MAX_SECONDS, STATES, Words, merge_words, parse_datagram, words_of


def test_states_are_those_of_the_model() -> None:
    """The plain tuple for `run` and the enum have the same values."""
    assert set(STATES) == {state.value for state in State}


@pytest.mark.parametrize("data", [b"", b"\xff=1", b"WATCHDOG=1\0", b"A=" + b"x" * MAX_BYTES, b"WATCHDOG", b"\n\n"])
def test_what_is_no_message_has_no_fields(data: bytes) -> None:
    """To be dropped and counted."""
    assert parse_datagram(data) == {}


def test_splits_lines_and_keeps_the_first_of_a_key() -> None:
    """As systemd does; values may hold `=`."""
    assert parse_datagram(b"WATCHDOG=1\nSTATUS=a=b\nWATCHDOG=2\nnonsense\n") == {"WATCHDOG": "1", "STATUS": "a=b"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"WATCHDOG": "1"}, {"state": "working", "promises": True}),
        ({"WATCHDOG": "1", "X_AGENT_STATE": "idle"}, {"state": "idle", "promises": True}),
        ({"X_AGENT_STATE": "waiting"}, {"state": "waiting", "promises": True}),
        ({"X_AGENT_PROGRESS": "12.5"}, {"progress": 12.5, "promises": True}),
        ({"X_AGENT_SILENT_FOR": "60"}, {"silent_for_seconds": 60.0, "promises": True}),
        ({"X_AGENT_SILENT_FOR": "0"}, {"silent_for_seconds": 0.0, "promises": True}),
        ({"X_AGENT_SILENT_FOR": "1e30"}, {"silent_for_seconds": MAX_SECONDS, "promises": True}),
        (
            {"X_AGENT_TOOL": "bash", "X_AGENT_TOOL_LIMIT": "9"},
            {"tool": "bash", "tool_limit_seconds": 9.0, "promises": True},
        ),
        ({"X_AGENT_TOOL": ""}, {"tool": "", "promises": True}),
        ({"X_AGENT_NOTE": "a\x1b[2Jb"}, {"note": "a [2Jb", "promises": True}),
    ],
)
def test_fields_that_promise_count_from_any_process_of_the_tree(
    fields: dict[str, str], words: dict[str, object]
) -> None:
    """They mean that the agent will keep beating."""
    assert words_of(fields, from_main=False) == words


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"READY": "1"}, {"promises": False}),
        ({"STATUS": "compiling"}, {"note": "compiling", "promises": False}),
        ({"STOPPING": "1"}, {"state": "done", "promises": False}),
        ({"READY": "1", "WATCHDOG": "1"}, {"state": "working", "promises": True}),
        ({"EXTEND_TIMEOUT_USEC": "5000000"}, {"silent_for_seconds": 5.0, "promises": True}),
        ({"WATCHDOG_USEC": "30000000"}, {"after_seconds": 30.0, "promises": True}),
        ({"STATUS": "s", "X_AGENT_NOTE": "n"}, {"note": "n", "promises": True}),
    ],
)
def test_a_services_own_words_count_from_the_main_process_alone(
    fields: dict[str, str], words: dict[str, object]
) -> None:
    """Many programs send READY=1 once and never again; a child that is a service sends STOPPING=1 about itself."""
    assert words_of(fields, from_main=True) == words
    alone = {"READY", "STATUS", "STOPPING", "EXTEND_TIMEOUT_USEC", "WATCHDOG_USEC"}
    assert (words_of(fields, from_main=False) is None) == (set(fields) <= alone)


@pytest.mark.parametrize("key", ["EXTEND_TIMEOUT_USEC", "WATCHDOG_USEC"])
def test_a_childs_own_limits_beside_its_heartbeat_are_not_the_agents(key: str) -> None:
    """A child service that beats sends WATCHDOG=1 and its own limit in one datagram: only the beat counts."""
    plain = words_of({"WATCHDOG": "1"}, from_main=False)
    assert words_of({"WATCHDOG": "1", key: "36000000000"}, from_main=False) == plain


@pytest.mark.parametrize(
    "fields",
    [
        {"BARRIER": "1"},
        {"MAINPID": "1"},
        {"WATCHDOG": "trigger"},
        {"WATCHDOG": "0"},
        {"X_AGENT_STATE": "busy"},
        {"X_AGENT_PROGRESS": "nan"},
        {"X_AGENT_PROGRESS": "1_0"},
        {"X_AGENT_SILENT_FOR": "-1"},
        {"X_AGENT_SILENT_FOR": "soon"},
        {"WATCHDOG_USEC": "0"},
        {"EXTEND_TIMEOUT_USEC": "infinity"},
    ],
)
def test_what_is_not_understood_is_no_word(fields: dict[str, str]) -> None:
    """Neither a beat nor an error."""
    assert words_of(fields, from_main=True) is None


def test_merging_keeps_what_the_later_word_does_not_speak_of() -> None:
    """A lease must survive a plain beat right after it; its remaining time counts from then on."""
    lease = words_of({"X_AGENT_STATE": "blocked", "X_AGENT_SILENT_FOR": "600"}, from_main=False)
    plain = words_of({"WATCHDOG": "1"}, from_main=False)
    assert lease is not None
    assert plain is not None
    assert merge_words(lease, plain, 100.0) == {"state": "working", "silent_for_seconds": 500.0, "promises": True}
    assert merge_words(lease, plain, 700.0)["silent_for_seconds"] == 0.0
    assert merge_words(plain, lease, 1.0) == lease


def test_merging_forgets_the_limit_of_a_tool_that_has_ended() -> None:
    """The next tool has its own."""
    tool = words_of({"X_AGENT_TOOL": "bash", "X_AGENT_TOOL_LIMIT": "60"}, from_main=False)
    ended = words_of({"X_AGENT_TOOL": ""}, from_main=False)
    assert tool is not None
    assert ended is not None
    assert merge_words(tool, ended, 1.0) == {"tool": "", "promises": True}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"X_AGENT_SIGN": "1"}, {"promises": False}),
        (
            {"X_AGENT_SIGN": "1", "X_AGENT_THREAD": "t", "X_AGENT_GOES_ON": "1"},
            {"thread": "t", "goes_on": True, "promises": False},
        ),
        (
            {"X_AGENT_SIGN": "1", "X_AGENT_THREAD": "t", "X_AGENT_TOOL": "Bash"},
            {"thread": "t", "tool": "Bash", "promises": False},
        ),
        ({"X_AGENT_STATE": "idle", "X_AGENT_GOES_ON": "1"}, {"state": "idle", "goes_on": True, "promises": True}),
        ({"X_AGENT_GOES_ON": "1"}, None),
    ],
)
def test_a_hooks_report_to_run_while_no_daemon_is_there(fields: dict[str, str], words: Words | None) -> None:
    """A sign of life promises nothing."""
    assert words_of(fields, from_main=False) == words


def test_merging_forgets_what_went_on_when_it_works_again() -> None:
    """It reports again what it leaves running."""
    rests: Words = {"state": "idle", "goes_on": True, "promises": True}
    works: Words = {"state": "working", "promises": True}
    assert merge_words(rests, works, 1.0) == works
    assert merge_words(works, rests, 1.0) == rests


def test_merging_keeps_a_promise() -> None:
    """READY=1 after WATCHDOG=1 takes nothing back."""
    promise = words_of({"WATCHDOG": "1"}, from_main=True)
    ready = words_of({"READY": "1"}, from_main=True)
    assert promise is not None
    assert ready is not None
    assert merge_words(promise, ready, 0.1)["promises"] is True


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_datagram_breaks_the_reader(data: bytes) -> None:
    """Whatever is sent."""
    words_of(parse_datagram(data), from_main=True)


KEYS = ["X_AGENT_PROGRESS", "X_AGENT_SILENT_FOR", "X_AGENT_TOOL_LIMIT", "WATCHDOG_USEC", "EXTEND_TIMEOUT_USEC"]


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), st.text(max_size=50) | st.floats().map(str) | st.integers().map(str)))
def test_every_number_that_passes_is_one_that_the_daemon_can_use(fields: dict[str, str]) -> None:
    """It is finite; durations are neither negative nor longer than a timedelta can be."""
    for key, value in (words_of(fields, from_main=True) or {}).items():
        if key.endswith("_seconds"):
            assert isinstance(value, float)
            assert 0 <= value <= MAX_SECONDS
