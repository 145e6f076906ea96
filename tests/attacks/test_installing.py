"""`make install`, `uninstall` and `wheels` by root where another user owns a directory on the way (L5).

At f87b3bd `install` wrote through a foreign-owned directory below DESTDIR: its owner could lead each file elsewhere by
a link. Siblings that were found: `uninstall` removed through one, links below DESTDIR led out of it,
directories that anybody may write to, and pip downloading into a foreign WHEELS directory, where a link of the name of
a wheel is written through.
"""

import contextlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.systemd.machine import ROOT

sys.path.insert(0, str(ROOT / "systemd"))
import environments
from environments import build_environment, users_of
from install import uninstall
from places import Layout, Refused, Target

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a directory of another uid"),
]
OTHER = 12021
PYTHON = "/opt/x/env-1/bin/python"
LAYOUT = Layout("/opt/x", "/usr/local/bin", "/etc/x/x.toml", {}, ())


def staged(tmp_path: Path, *, uid: int = 0, mode: int = 0o755, directory: str = "usr") -> Target:
    """A staged tree in which one directory is somebody else's."""
    top = tmp_path / "stage"
    (top / directory).mkdir(parents=True)
    (top / directory).chmod(mode)
    os.chown(top / directory, uid, uid)
    return Target(LAYOUT, str(top))


@pytest.mark.parametrize(("uid", "mode"), [(OTHER, 0o755), (0, 0o777)])
def test_nothing_is_put_through_a_directory_that_another_may_write_to(tmp_path: Path, uid: int, mode: int) -> None:
    target = staged(tmp_path, uid=uid, mode=mode)
    with pytest.raises(Refused, match="replace"):
        target.put("/usr/local/bin/x", b"x")
    assert list((tmp_path / "stage/usr").iterdir()) == []


def test_nothing_is_put_through_a_link_of_another(tmp_path: Path) -> None:
    target = staged(tmp_path)
    victim = tmp_path / "stage/victim"
    victim.mkdir()
    link = tmp_path / "stage/usr/local"
    link.symlink_to(victim)
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    with pytest.raises(Refused, match=f"uid {OTHER}"):
        target.put("/usr/local/bin/x", b"x")
    assert list(victim.iterdir()) == []


def test_nothing_is_put_outside_of_a_staged_tree(tmp_path: Path) -> None:
    """Not even by a link of root's own; one that stays inside (/lib of a merged /usr) is fine."""
    target = staged(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "stage/etc").symlink_to(outside)
    with pytest.raises(Refused, match="leads out"):
        target.put("/etc/x/x.toml", b"x")
    assert list(outside.iterdir()) == []
    (tmp_path / "stage/lib").symlink_to("usr")
    target.put("/lib/x", b"x")
    assert (tmp_path / "stage/usr/x").read_bytes() == b"x"


def test_nothing_is_removed_through_a_directory_of_another(tmp_path: Path) -> None:
    target = staged(tmp_path)
    target.put("/usr/local/bin/x", b"x")
    os.chown(tmp_path / "stage/usr/local", OTHER, OTHER)
    with pytest.raises(Refused, match=f"uid {OTHER}"):
        target.remove("/usr/local/bin/x")
    assert (tmp_path / "stage/usr/local/bin/x").exists()


def test_a_directory_of_root_and_a_group_is_fine(tmp_path: Path) -> None:
    """/usr/local of older Debians; a sticky one, as /tmp is; each file is root's with its mode, whatever the umask."""
    target = staged(tmp_path, mode=0o2775)
    before = os.umask(0)
    try:
        target.put("/usr/local/bin/x", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "stage/usr/local/bin/x").stat().st_mode) == 0o644


def run(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-sB", str(ROOT / "systemd/install.py"), command],
        env={**os.environ, "EXTRAS": "", "DESTDIR": "", "WHEELS": "", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_commands_refuse_before_they_begin(tmp_path: Path) -> None:
    target = staged(tmp_path, uid=OTHER, directory="opt")
    done = run("install", DESTDIR=target.destdir)
    assert (done.returncode, f"belongs to uid {OTHER}" in done.stderr) == (1, True), done.stderr
    assert list((tmp_path / "stage/opt").iterdir()) == []

    wheels = tmp_path / "wheels"
    wheels.mkdir()
    os.chown(wheels, OTHER, OTHER)
    done = run("wheels", WHEELS=str(wheels))
    assert (done.returncode, f"belongs to uid {OTHER}" in done.stderr) == (1, True), done.stderr
    assert list(wheels.iterdir()) == []


def installed(tmp_path: Path) -> Target:
    """What an uninstall takes for an installation."""
    target = Target(LAYOUT, str(tmp_path / "stage"))
    target.put(PYTHON, b"")
    target.put("/usr/local/bin/x", b"x")
    target.manifest["files"] = {"/usr/local/bin/x": ""}
    target.save()
    return target


def called(target: Target, place: Path, uid: int) -> subprocess.Popen[bytes]:
    """A process of a user that calls itself a daemon of that installation."""
    place.chmod(0o755)
    script = place / "agent-watchdogd"
    script.write_text("import time\nprint(flush=True)\ntime.sleep(1000)\n")
    process = subprocess.Popen(
        [target.path(PYTHON), script],
        executable="/usr/bin/python3",
        user=uid,
        group=uid,
        extra_groups=(),
        cwd="/",
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


@pytest.mark.parametrize(("uid", "refused"), [(OTHER, False), (0, True)])
def test_no_user_keeps_an_installation(tmp_path: Path, uid: int, refused: bool) -> None:
    """By a process with the words of a daemon, which root was told to kill by its number; one of root's own does."""
    target = installed(tmp_path)
    with tempfile.TemporaryDirectory(dir="/tmp") as place, called(target, Path(place), uid) as process:
        try:
            with pytest.raises(Refused, match=f"kill {process.pid}") if refused else contextlib.nullcontext():
                uninstall(target)
        finally:
            process.kill()
    assert target.path("/opt/x/env-1").exists() is refused


def test_nobody_exchanges_a_wheel_after_its_hash_was_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """WHEELS may be a directory of whoever downloaded them; here each program that is run finds other bytes there."""
    wheels = tmp_path / "wheels"
    seen: list[dict[str, bytes]] = []
    wheels.mkdir()
    (wheels / "one-1-py3-none-any.whl").write_bytes(b"as locked")
    os.mkfifo(wheels / "two-1-py3-none-any.whl")
    os.chown(wheels, OTHER, OTHER)

    def ran(*words: object, cwd: Path | None = None) -> None:
        text = [str(word) for word in words]
        if "--find-links" in text:
            (wheels / "one-1-py3-none-any.whl").write_bytes(b"exchanged")
            place = Path(text[text.index("--find-links") + 1])
            seen.append({found.name: found.read_bytes() for found in place.iterdir() if found.is_file()})
        if "wheel" in text:
            Path(text[text.index("-w") + 1], "agent_watchdogd-0-py3-none-any.whl").touch()
        if "--without-pip" in text:
            Path(text[-1], "bin").mkdir(parents=True)
            Path(text[-1], "pyvenv.cfg").touch()

    monkeypatch.setattr(environments, "run", ran)
    build_environment(Target(LAYOUT, str(tmp_path / "stage")), wheels, "")
    assert len(seen) == 4
    assert all(found == {"one-1-py3-none-any.whl": b"as locked"} for found in seen)


def test_no_user_keeps_an_installation_by_a_set_uid_program(tmp_path: Path) -> None:
    """`sudo`, while it asks for a password, is root's by all its uids, and called what its caller likes."""
    target, program = installed(tmp_path), Path(f"/var/tmp/set-uid-{os.getpid()}")
    shutil.copy("/usr/bin/python3", program)
    try:
        program.chmod(0o4755)
        code = "import os, sys; os.setresuid(0, 0, 0); print(flush=True); sys.stdin.read()"
        with subprocess.Popen(
            [target.path(PYTHON), "-c", code, "/agent-watchdogd"], executable=program, user=OTHER, group=OTHER,
            extra_groups=(), cwd="/", env={}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            assert b"\nUid:\t0\t0\t0\t0\n" in Path(f"/proc/{process.pid}/status").read_bytes()
            assert users_of(target, "/opt/x/env-1") == []
            process.kill()
    finally:
        program.unlink()
    uninstall(target)
    assert not target.path("/opt/x/env-1").exists()


def test_a_process_that_cannot_be_read_holds_nothing_up(tmp_path: Path) -> None:
    """Each process of the host is looked at. Here a FIFO stands for a read that never returns (`tests.faults.hung`)."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    look = f"""if True:
        import os, sys
        sys.path.insert(0, {str(ROOT / "systemd")!r})
        import environments, places
        environments.LOOK = 1.0
        print(environments.users_of(places.Target(places.Layout("/opt/x", "", "", {{}}, ()), ""), "/opt/x/env-1"))
        """
    with subprocess.Popen(["sleep", "1000"], user=OTHER, group=OTHER, extra_groups=(), cwd="/") as process:
        try:
            script = f'mount -n --bind "{fifo}" /proc/{process.pid}/cmdline && exec "$0" -c "$1"'
            done = subprocess.run(
                ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, sys.executable, look],
                capture_output=True,
                text=True,
                timeout=30,
                check=False,
            )
        finally:
            process.kill()
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
