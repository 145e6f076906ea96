"""A login shell, cron, `su` and `sudo -u` look for the user's daemon in different places, and find the same one.

Report N18.
"""

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.household import UID, Household, household
from tests.world import BIN, PATIENCE, wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another uid's daemon and its /run/user")
LOGIN = {"XDG_RUNTIME_DIR": f"/run/user/{UID}"}
# Environment of a program of the user's. `None`: empty, as under cron.
ELSEWHERE = {
    "cron": None,
    "another uid's directory, as su leaves it": "/run/user/0",
    "a directory that is not there": "/run/user/4711",
    "no absolute path": "run",
}


@pytest.fixture
def home() -> Iterator[Household]:
    with household() as made:
        os.mkdir(f"{made.root}/run/user/0", 0o700)
        yield made


def as_by(home: Household, told: str | None) -> None:
    """Programs that the user starts from now on have that XDG_RUNTIME_DIR."""
    home.user.world.environ.pop("XDG_RUNTIME_DIR", None)
    if told is not None:
        home.user.world.environ["XDG_RUNTIME_DIR"] = told


def usual(home: Household) -> dict[str, str]:
    """The runtime directory that the daemon itself chooses."""
    return {"state_dir": str(home.user.world.state), "runtime_dir": ""}


@pytest.mark.parametrize("how", ELSEWHERE)
def test_a_daemon_of_a_login_is_found_without_one(home: Household, how: str) -> None:
    """By `status`, `run`, `beat` and `doctor`; and no second daemon is started beside it."""
    home.user.start()
    as_by(home, ELSEWHERE[how])
    status = home.user.cli("status", "--json")
    assert status.returncode == 0, status.stderr
    doctor = home.user.cli("doctor").stdout
    assert "nothing is watched" not in doctor, doctor

    loop = "while :; do agent-watchdog beat; sleep 0.5; done"
    home.user.start_agent("alpha", "sh", "-c", loop, options=("--stall-after", "4s"))
    home.user.world.wait_event("agent.first_beat", name="alpha")
    beaten = home.user.cli("beat", "--agent", "alpha", "--note", "by hand", AGENT_WATCHDOG_DEBUG="1")
    assert (beaten.returncode, beaten.stderr) == (0, "")
    wait_for(lambda: home.user.agents()["alpha"]["note"] == "by hand", "it is heard")

    home.user.configure(daemon=usual(home))
    second = subprocess.run(
        [*home.user.prefix, str(BIN / "agent-watchdogd"), "--config", str(home.user.world.config)],
        env=home.user.world.environ,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert second.returncode == (78 if how == "a directory that is not there" else 75), second.stderr


def test_a_daemon_of_cron_is_found_from_a_login(home: Household) -> None:
    """It has its sockets below /tmp; an empty directory in /run/user belongs to no daemon."""
    as_by(home, None)
    home.user.configure(daemon=usual(home))
    home.user.start()
    as_by(home, LOGIN["XDG_RUNTIME_DIR"])
    os.mkdir(f"{home.root}/run/user/{UID}/agent-watchdog", 0o700)
    os.chown(f"{home.root}/run/user/{UID}/agent-watchdog", UID, UID)
    assert home.user.cli("status").returncode == 0


def test_a_socket_left_by_a_crash_hides_no_daemon(home: Household) -> None:
    """The one in /run/user is dead; the daemon that cron started lives."""
    home.user.start()
    home.user.world.crash()
    as_by(home, None)
    home.user.configure(daemon=usual(home))
    home.user.start()
    as_by(home, LOGIN["XDG_RUNTIME_DIR"])
    assert os.path.exists(f"{home.root}/run/user/{UID}/agent-watchdog/control.sock")
    assert home.user.cli("status").returncode == 0


def test_a_socket_left_by_a_crash_does_not_hide_the_hosts_daemon(home: Household) -> None:
    """The user's daemon is gone for good: clients reach the host's, also `run`."""
    home.user.start()
    home.user.world.crash()
    home.host.start()
    assert os.path.exists(f"{home.root}/run/user/{UID}/agent-watchdog/control.sock")
    assert home.user.cli("status").returncode == 0
    home.user.start_agent("alpha", *home.user.world.script("agent.py", "beat=0.5"))
    home.host.world.wait_event("agent.first_beat", name="alpha")


@pytest.mark.parametrize("spoilt", ["writable", "foreign", "link"])
def test_a_directory_that_others_may_change_is_skipped(home: Household, spoilt: str) -> None:
    """/run/user/UID counts only while it belongs to that uid, no other user may write there, and it is no link."""
    home.user.start()
    login = f"{home.root}/run/user/{UID}"
    match spoilt:
        case "writable":
            os.chmod(login, 0o777)
        case "foreign":
            os.chown(login, 0, 0)
            os.chmod(login, 0o755)
        case "link":
            os.rename(login, f"{login}-moved")
            os.symlink(f"{UID}-moved", login)
    as_by(home, None)
    assert home.user.cli("status").returncode == 69
