"""Names that somebody else takes first in a directory for everybody (L1).

At f87b3bd a user's `.agent-watchdog-trash-0` in a cleanup root kept every temp dir of root there ("is not this uid's
own"), and any file at /tmp/agent-watchdog-UID kept that user's daemon from starting (exit 73, UnsafeDirectory).
Siblings that were found: `run` without a daemon (its notify socket and its report), and root's daemon, which looks for
those reports in that directory. All of them now use another name beside it that only that uid can have made.
"""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.world import BIN, World, alive, make_world, wait_for

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a squatter of another uid"),
]
SQUATTER, VICTIM = 12011, 12012


def squat_directory(place: Path) -> None:
    place.mkdir(mode=0o700)


def squat_file(place: Path) -> None:
    place.touch()


def squat_link(place: Path) -> None:
    place.symlink_to("/etc")


def squat_dangling(place: Path) -> None:
    place.symlink_to("/nowhere/at/all")


KINDS = (squat_directory, squat_file, squat_link, squat_dangling)


@pytest.fixture(params=KINDS, ids=lambda squat: squat.__name__)
def squat(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    """What lies there, the squatter's."""

    def put(place: Path) -> None:
        request.param(place)
        os.chown(place, SQUATTER, SQUATTER, follow_symlinks=False)

    return put


@pytest.fixture
def world() -> Iterator[World]:
    """Root's daemon with a cleanup root for everybody."""
    for made in make_world():
        root = made.dir / "root"
        root.mkdir()
        root.chmod(0o1777)
        made.dir.chmod(0o755)
        made.configure(cleanup={"roots": [str(root)]})
        yield made


def test_a_squatted_trash_keeps_no_temp_dir(world: World, squat: Callable[[Path], None]) -> None:
    """Removed by way of another trash beside it, which is gone afterwards; the outcome says whose the name was."""
    root = world.dir / "root"
    theirs = root / ".agent-watchdog-trash-0"
    squat(theirs)
    temp = root / "work"
    temp.mkdir(mode=0o700)
    (temp / "file").write_text("x")
    world.start()
    agent = world.registered("tidy", "sleep", "600", temp_dir=str(temp))

    world.cli("kill", "tidy")

    agent.wait()
    (run,) = [run for run in world.story("tidy")["cleanup"] if run["hook"] == "temp_dir"]
    assert (run["status"], temp.exists()) == ("done", False), run
    assert f"uid {SQUATTER}'s, is no private directory of uid 0" in run["message"]
    assert {path.name for path in root.iterdir()} == {theirs.name}
    assert os.lstat(theirs).st_uid == SQUATTER


class Victim:
    """A user without $XDG_RUNTIME_DIR."""

    def __init__(self, directory: Path) -> None:
        self.home = directory / "victim"
        self.home.mkdir(mode=0o700)
        os.chown(self.home, VICTIM, VICTIM)
        self.environ = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(self.home)}
        self.started: list[subprocess.Popen[Any]] = []

    def start(self, *command: str, **more: Any) -> subprocess.Popen[str]:
        who: dict[str, Any] = {"user": VICTIM, "group": VICTIM, "extra_groups": [], "cwd": self.home}
        process = subprocess.Popen(command, env=self.environ, text=True, stdin=subprocess.DEVNULL, **who, **more)
        self.started.append(process)
        return process

    def cli(self, *words: str) -> str:
        process = self.start(str(BIN / "agent-watchdog"), *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
        return said


USUAL = Path(f"/tmp/agent-watchdog-{VICTIM}")


def theirs() -> list[Path]:
    """The victim's own directories beside the usual one."""
    return sorted(Path("/tmp").glob(f".agent-watchdog-{VICTIM}-*"))


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    with_everybody = Path(f"/tmp/aw-squat-{os.getpid()}")
    with_everybody.mkdir(mode=0o755)
    made = Victim(with_everybody)
    try:
        yield made
    finally:
        for process in made.started:
            process.kill()
            process.wait()
        for place in (USUAL, *theirs()):
            if place.is_symlink() or place.is_file():
                place.unlink()
            elif place.exists():
                shutil.rmtree(place)
        shutil.rmtree(with_everybody)


@pytest.mark.xdist_group("squatted-tmp")
def test_a_squatted_runtime_directory_keeps_no_daemon_from_its_user(
    victim: Victim, squat: Callable[[Path], None], tmp_path: Path
) -> None:
    """It starts beside it and says so once; client, `run` and an agent's beats find it; a fake of others does not
    count; it is found, too, when the squatter has gone."""
    squat(USUAL)
    fake = Path(f"/tmp/.agent-watchdog-{VICTIM}-0000000000000000")
    fake.mkdir(mode=0o755)
    os.chown(fake, SQUATTER, SQUATTER)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(fake / "control.sock"))
        log = tmp_path / "log"
        with log.open("wb") as out:
            daemon = victim.start(str(BIN / "agent-watchdogd"), stderr=out)
        wait_for(lambda: '"daemon.ready"' in log.read_text() or daemon.poll() is not None, "the daemon is ready")
        assert daemon.poll() is None, log.read_text()
        taken = [json.loads(line) for line in log.read_text().splitlines() if '"daemon.runtime_dir_taken"' in line]
        assert len(taken) == 1
        assert f"belongs to uid {SQUATTER}" in taken[0]["why"]
        (own,) = [path for path in theirs() if path != fake]
        assert (own.stat().st_uid, stat.S_IMODE(own.stat().st_mode)) == (VICTIM, 0o700)

        assert str(own) in victim.cli("status")
        victim.start(
            str(BIN / "agent-watchdog"), "run", "--name", "well", "--", "sh", "-c", "agent-watchdog beat; sleep 600"
        )
        wait_for(lambda: json.loads(victim.cli("list", "--json"))["agents"], "it is watched")
        wait_for(lambda: json.loads(victim.cli("list", "--json"))["agents"][0]["beats"], "it is heard")
        USUAL.rmdir() if USUAL.is_dir() and not USUAL.is_symlink() else USUAL.unlink()
        assert str(own) in victim.cli("status")
        shutil.rmtree(fake)


def test_a_squatted_place_hides_no_report_in_another(tmp_path: Path) -> None:
    """Root's daemon has each user's helper look in all of that user's places. Seen: one that it might not enter ended
    the look, and made `status` and the log of the daemon complain of a stranger's directory."""
    tmp_path.chmod(0o755)
    for above in list(tmp_path.parents)[: len(tmp_path.parents) - 2]:
        above.chmod(above.stat().st_mode | 0o111)
    places = [tmp_path / name / "reports" for name in ("squatted", "own", "shut")]
    for place, uid in zip(places, (SQUATTER, VICTIM, VICTIM), strict=True):
        place.mkdir(parents=True, mode=0o700)
        for made in (place.parent, place):
            os.chown(made, uid, uid)
    report = places[1] / ("a" * 32)
    report.write_text('{"end": {}}')
    os.chown(report, VICTIM, VICTIM)
    places[0].parent.chmod(0o700)
    places[2].parent.chmod(0)
    ask = "from watchdog.owner.run_reports import end_reports; print(json.dumps(end_reports(sys.argv[1:], [])))"
    code = f"import json, sys; {ask}"
    words = [sys.executable, "-c", code, *map(str, places)]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(words, user=VICTIM, group=VICTIM, extra_groups=(), cwd=root, capture_output=True, check=True)
    told = json.loads(done.stdout)
    assert told["reports"] == {str(report): {"end": {}}}
    assert list(told["problems"]) == [str(places[2])], "its own that is shut is told of"


@pytest.mark.xdist_group("squatted-tmp")
def test_a_run_without_a_daemon_finds_the_same_place(
    victim: Victim, squat: Callable[[Path], None], tmp_path: Path
) -> None:
    """Its notify socket lies where the daemon's sockets come to lie later."""
    squat(USUAL)
    run = victim.start(
        str(BIN / "agent-watchdog"), "run", "--name", "early", "--", "sleep", "600", stderr=subprocess.DEVNULL
    )
    (own,) = wait_for(theirs, "its directory")
    wait_for(lambda: list(own.glob("notify/*")), "its notify socket")
    assert alive(run.pid)

    log = tmp_path / "log"
    with log.open("wb") as out:
        victim.start(str(BIN / "agent-watchdogd"), stderr=out)
    wait_for(lambda: '"agent.registered"' in log.read_text(), "it was registered")
    assert theirs() == [own]
    assert (own / "control.sock").is_socket()
