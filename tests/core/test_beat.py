"""A beat's forms: fields, JSON, value."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from watchdog.core.agent import Beat, State
from watchdog.core.beat import beat_in, beat_of, beat_of_json, beat_to_json
from watchdog.errors import BadRequest


def test_an_empty_object_is_a_plain_beat() -> None:
    """`curl -d {}` must suffice."""
    assert beat_of_json({}) == (Beat(), timedelta())


def test_fields_and_body_mean_the_same() -> None:
    """There is one conversion from words to a beat."""
    fields = {"X_AGENT_STATE": "waiting", "X_AGENT_SILENT_FOR": "60", "X_AGENT_PROGRESS": "3"}
    body = {"state": "waiting", "silent_for_seconds": 60, "progress": 3}
    assert beat_of(fields, from_main=False) == beat_of_json(body)[0]
    assert beat_of({"BARRIER": "1"}, from_main=True) is None


def test_a_message_is_read_according_to_its_sender() -> None:
    """Cached or not: the same bytes mean something else from a child than from the main process."""
    for _ in range(2):
        assert beat_in(b"STATUS=builds", True) == Beat(note="builds", promises=False)
        assert beat_in(b"STATUS=builds", False) is None
        with pytest.raises(BadRequest):
            beat_in(b"", True)


def test_the_age_is_told_beside_the_beat() -> None:
    """`run` passes on beats that were sent while the daemon was away."""
    assert beat_of_json({"age_seconds": 7}) == (Beat(), timedelta(seconds=7))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ([], "JSON object"),
        (None, "JSON object"),
        ({"silent_for": 3}, "'silent_for' is not a key of a beat"),
        ({"state": "busy"}, "state: 'busy' must be one of working"),
        ({"state": 1}, "state: must be text"),
        ({"progress": "3"}, "progress: must be a finite number"),
        ({"progress": True}, "progress: must be a finite number"),
        ({"progress": float("nan")}, "progress: must be a finite number"),
        ({"silent_for_seconds": -1}, "silent_for_seconds: must be 0 or more"),
        ({"after_seconds": 0}, "after_seconds: must be more than 0"),
        ({"transcript": "t.jsonl"}, "transcript: must be an absolute path"),
        ({"transcript": "/t\n"}, "transcript: must be an absolute path"),
        ({"type": "a b"}, "type: 'a b' may hold only letters"),
        ({"promises": "yes"}, "promises: must be true or false"),
        ({"age_seconds": "old"}, "age_seconds: must be"),
    ],
)
def test_says_which_key_is_wrong(body: object, said: str) -> None:
    """The error for a rejected beat names what would be accepted."""
    with pytest.raises(BadRequest, match=said):
        beat_of_json(body)


seconds = st.integers(0, 10**6).map(lambda n: timedelta(seconds=n))
text = st.text(st.characters(categories=["L", "N"]), max_size=50)
beats = st.builds(
    Beat,
    state=st.none() | st.sampled_from(State),
    progress=st.none() | st.integers(0, 10**6).map(float),
    silent_for=st.none() | seconds,
    tool=st.none() | text,
    tool_limit=st.none() | seconds,
    note=st.none() | text,
    after=st.none() | st.integers(1, 10**6).map(lambda n: timedelta(seconds=n)),
    transcript=st.none() | text.map(lambda name: f"/{name}"),
    agent_type=st.sampled_from([None, "claude"]),
    promises=st.booleans(),
)


@settings(deadline=None)
@given(beats)
def test_json_and_back_is_the_same_beat(beat: Beat) -> None:
    """Fields that were not said stay unset."""
    assert beat_of_json(beat_to_json(beat))[0] == beat
