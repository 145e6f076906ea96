"""What holds for all verbs: how they are called, what a wrong call ends with, and where their words go."""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, told
from tests.control.office import Office

VERBS = (
    *("run", "beat", "register", "list", "why", "events", "status"),
    *("kill", "stop", "cancel", "hold", "unhold", "remove", "purge"),
)


@pytest.mark.parametrize(
    "words",
    [[], ["dance"], ["list", "--nope"], ["kill"], ["kill", "a", "--grace", "10"], ["events", "--after", "x"], ["why"]],
    ids=" ".join,
)
def test_usage_errors_end_with_64(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Never 2: a vendor's hook runner would block the agent. The fault is named on stderr."""
    status, out, err = told(capsys, *words)
    assert (status, out) == (64, "")
    assert err.startswith("agent-watchdog: ")


def test_targets_may_stand_on_both_sides_of_a_flag(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse takes one row of them alone."""
    for name in ("alpha", "beta", "gamma"):
        office.register(name)
    assert told(capsys, "kill", "alpha", "--force", "beta", "--reason", "x", "gamma")[0] == 0
    assert [(name, options.force) for name, _, options, _ in office.worker.asked] == [
        ("alpha", True),
        ("beta", True),
        ("gamma", True),
    ]


def test_an_unknown_argument_leads_to_the_help_of_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """`list alpha`: the help of all verbs would not show what `list` takes."""
    status, _, err = told(capsys, "list", "alpha")

    assert (status, err) == (
        64,
        "agent-watchdog: unrecognized arguments: alpha\nusage: see agent-watchdog list --help\n",
    )


def test_help_and_version_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb has a help text that says more than its flags; exit 0."""
    status, out, _ = told(capsys, "--help")
    assert status == 0
    for verb in VERBS:
        assert f"\n    {verb} " in out, verb
        if verb not in ("run", "beat"):
            status, text, _ = told(capsys, verb, "--help")
            assert status == 0
            assert len(text.split("\n\n")[1]) > 60, verb
            assert "--json" in text
    status, out, _ = told(capsys, "--version")
    assert (status, out.split()[0]) == (0, "agent-watchdog")


def test_no_daemon_is_69(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A verb that cannot reach a daemon says where it looked."""
    tmp_path.chmod(0o700)
    for words in (["list"], ["kill", "alpha"], ["events", "--follow"], ["register", "--name", "a"]):
        status, _, err = told(capsys, "--socket", str(tmp_path / "control.sock"), *words)
        assert status == 69, words
        assert "control.sock" in err and "agent-watchdog doctor" in err


def test_a_directory_that_others_can_write_is_78(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The client trusts only a runtime directory that is its own uid's or root's."""
    tmp_path.chmod(0o777)
    assert told(capsys, "--socket", str(tmp_path / "control.sock"), "list")[0] == 78


def test_a_full_disk_below_stdout_is_told_in_one_line(office: Office) -> None:
    """74 (EX_IOERR), no traceback, neither at the write nor at exit."""
    office.register("alpha")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [PROGRAM, "--socket", office.socket_path, "list"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 74
    assert done.stderr == "agent-watchdog: [Errno 28] No space left on device\n"


def test_a_closed_pipe_ends_quietly(office: Office) -> None:
    """`list | head -1` is no error and no traceback."""
    for number in range(200):
        office.context.registry.history.add_event(
            "agent.late", None, "test", "x" * 2000 + str(number), office.context.now()
        )
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(PROGRAM)} events | head -n 1"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
