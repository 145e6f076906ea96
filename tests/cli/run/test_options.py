"""What `run` was asked for: taken as it is meant, or refused by the name of the option; and the body it registers."""

import os
from pathlib import Path

import pytest

from watchdog.cli.run.options import Options, parse_options
from watchdog.core.names import name_problem
from watchdog.errors import BadRequest

ID = "ab12" + "0" * 28


@pytest.fixture(autouse=True)
def _within_no_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENT_WATCHDOG_ID", raising=False)


def parsed(*words: str) -> Options:
    options = parse_options(list(words), ID)
    assert options is not None
    return options


def test_help_is_no_call() -> None:
    """Also beside other options; but not among the command's own."""
    assert parse_options(["--name", "a", "--help"], ID) is None
    assert parse_options(["-h"], ID) is None
    assert parsed("sh", "-h").command == ["sh", "-h"]


def test_a_program_without_a_name_gets_one() -> None:
    """Its own, and a suffix of its id."""
    name = parsed("/usr/bin/claude").name
    assert name_problem(name) is None
    assert name.startswith("claude")
    assert name.endswith("ab12")


def test_what_was_not_said_is_not_sent() -> None:
    """The daemon's own defaults hold."""
    assert parsed("--name", "a", "/bin/sh").registration(None) == {
        "agent_id": ID,
        "name": "a",
        "source": "run",
        "command": "sh",
    }


def test_what_was_said_is_sent_in_seconds_and_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links are followed here, as the caller sees them; later nobody follows any."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tree").mkdir()
    (tmp_path / "link").symlink_to("tree")
    words = ["--tag", "x", "--tag", "y", "--stall-after", "1.5m", "--ttl=2h", "--worktree", "link", "--replace"]
    body = parsed(*words, "--", "sh").registration("/run/s")
    real = os.path.realpath(tmp_path)
    assert (body["tags"], body["stall_after_seconds"], body["ttl_seconds"]) == (["x", "y"], 90.0, 7200.0)
    assert (body["worktree"], body["notify_socket"], body["replace"]) == (f"{real}/tree", "/run/s", True)


def test_a_temp_dir_of_ours_is_made_and_another_is_a_path(tmp_path: Path) -> None:
    """`auto` is no directory of that name."""
    assert (parsed("--temp-dir", "auto", "sh").auto_temp_dir, parsed("--temp-dir", "auto", "sh").temp_dir) == (
        True,
        None,
    )
    named = parsed("--temp-dir", str(tmp_path), "sh")
    assert (named.auto_temp_dir, named.temp_dir) == (False, os.path.realpath(tmp_path))


def test_the_parent_is_the_agent_in_whose_environment_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless another is named; an empty variable is none."""
    monkeypatch.setenv("AGENT_WATCHDOG_ID", "b" * 32)
    assert parsed("sh").parent == "b" * 32
    assert parsed("--parent", "c", "sh").parent == "c"
    monkeypatch.setenv("AGENT_WATCHDOG_ID", "")
    assert parsed("sh").parent is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no command given"),
        (["--name", "a"], "no command given"),
        ([""], "the command is empty"),
        (["--name", "all", "sh"], "--name 'all' "),
        (["--name", "", "sh"], "--name '' "),
        (["--name", "a", "--name", "b", "sh"], "--name is given 2 times"),
        (["--stall-after", "90", "sh"], "--stall-after: "),
        (["--ttl", "0s", "sh"], "--ttl: must be more than 0"),
        (["--log", "", "sh"], "--log needs a path"),
        (["--task", "\udcff", "sh"], "--task: is not UTF-8"),
        (["--log", "/tmp/\udcff", "sh"], "--log: is not UTF-8"),
        (["--nope", "sh"], "unknown option --nope"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_the_options_name(words: list[str], said: str) -> None:
    """Before anything is started."""
    with pytest.raises(BadRequest) as caught:
        parse_options(words, ID)
    assert str(caught.value).startswith(said)


def test_a_path_that_leads_to_bytes_is_refused(tmp_path: Path) -> None:
    """The link is text, and where it leads is none."""
    odd = tmp_path / "\udcff"
    odd.mkdir()
    (tmp_path / "link").symlink_to(odd)
    with pytest.raises(BadRequest, match="--worktree: its real path is not UTF-8"):
        parsed("--worktree", str(tmp_path / "link"), "sh")


def test_a_directory_that_is_gone_needs_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can say what a relative one means."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadRequest, match="the current directory is gone"):
        parsed("--log", "x", "sh")


def test_a_command_that_is_no_text_is_told_printable_and_short() -> None:
    """It is shown by `list`; the program itself gets its bytes."""
    body = parsed("--name", "a", "/bin/" + "\udcff" * 100).registration(None)
    command = str(body["command"])
    command.encode()
    assert len(command) <= 64
