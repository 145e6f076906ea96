"""Which conversation a file holds, the command that resumes it, and invalid data."""

import json

import pytest

from watchdog.core.conversations import Conversation, conversation_json, conversation_of, kept_in

ID = "01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    ("path", "vendor", "base"),
    [
        (f"/home/a/.claude/projects/-w-x/{ID}.jsonl", "claude", "/home/a/.claude"),
        (f"/home/a/.codex/sessions/2026/11/30/rollout-2026-11-30T10-00-00-{ID}.jsonl", "codex", "/home/a/.codex"),
        (f"/g/antigravity-cli/conversations/{ID}.db-wal", "agy", "/g/antigravity-cli"),
    ],
)
def test_a_file_of_each_program_names_its_conversation(path: str, vendor: str, base: str) -> None:
    """By the full path: a longer name, or one in another directory, is another file."""
    assert kept_in(path, "/w") == Conversation(vendor, ID, base, "/w")
    for other in (f"{path}.bak", path.replace(ID, ID[:-1]), path.removeprefix("/")):
        assert kept_in(other) is None


def test_no_path_keeps_no_conversation() -> None:
    """None was registered."""
    assert kept_in(None) is None


def test_the_command_begins_where_its_program_was_started() -> None:
    """A directory's name may contain shell metacharacters."""
    assert Conversation("codex", ID).resume == f"codex resume {ID}"
    assert Conversation("claude", ID, directory="/w/a b;c").resume == f"cd '/w/a b;c' && claude --resume {ID}"


def test_a_conversation_comes_back_as_it_was_sent() -> None:
    """Through JSON, as between helper and daemon."""
    for one in (Conversation("agy", ID), Conversation("claude", ID, "/b", "/d")):
        assert conversation_of(json.loads(json.dumps(conversation_json(one)))) == one


@pytest.mark.parametrize(
    "data",
    [None, [], {}, {"vendor": "vi", "id": ID}, {"vendor": "claude", "id": "x; rm"}, {"vendor": "claude", "id": 7}],
)
def test_invalid_data_is_no_conversation(data: object) -> None:
    """It may come from another uid or an edited row, and the id goes into a command."""
    assert conversation_of(data) is None


@pytest.mark.parametrize("path", ["relative", "/a\nb", 7, "/" + "x" * 5000])
def test_an_invalid_path_is_left_out(path: object) -> None:
    """The conversation itself is still known."""
    told = {"vendor": "claude", "id": ID, "base": path, "directory": path}
    assert conversation_of(told) == Conversation("claude", ID)
