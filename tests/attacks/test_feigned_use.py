"""A user who makes it look as if a process of theirs used the places of others, so that none is ever put in order.

At 6db03c2 one process did that for every temp dir and worktree of the host, root's too, also where it could not even
pass to them: by a variable of its environment, and by whatever lay at the same name in a mount namespace of its own.
"""

import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.owner.repositories import context
from watchdog.core import hooks
from watchdog.core.hooks import HookOutcome
from watchdog.owner import occupancy, session_dirs
from watchdog.owner.git import git_processes
from watchdog.owner.hooks.temp_dir import temp_dir
from watchdog.processes.occupants import OccupiedPlace, users_of

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other people's processes"),
]
ALICE, MALLORY = 12120, 12121
PYTHON = os.path.realpath(sys.executable)  # where /tmp is another one, what the project has there is away
READY = "print('ready', flush=True); sys.stdin.read()"
# In a mount namespace of its own /tmp is another one, where it may call its directories as it likes.
ELSEWHERE = "mount -t tmpfs none /tmp && mkdir -p {0} && cd / && exec {1} -I -c {2!r}"
# The same, and what lies there by that name is handed to a process that has never left the host's namespace.
HANDED = """
import os, shlex, socket, sys
place, handing = sys.argv[1:]
ours, theirs = socket.socketpair()
if os.fork() == 0:
    theirs.set_inheritable(True)
    words = shlex.join([sys.executable, "-I", "-c", handing, place, str(theirs.fileno())])
    words = f"mount -t tmpfs none /tmp && mkdir -p {place} && exec {words}"
    os.execvp("unshare", ["unshare", "-Urm", "sh", "-c", words])
_, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
os.fchdir(fd)
print("ready", flush=True)
sys.stdin.read()
"""
HANDING = """
import os, socket, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [fd])
"""
# Calls memory of its own as a file of theirs would be called (prctl(2), PR_SET_VMA_ANON_NAME).
NAMED = """
import ctypes, mmap, sys
memory = mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
name = f"x {sys.argv[1]}/x".encode()
ctypes.CDLL(None).prctl(0x53564D41, 0, ctypes.c_ulong(at), ctypes.c_ulong(4096), name)
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def alices() -> Iterator[Path]:
    """A temp dir of hers that nobody else may pass to, where temp dirs lie."""
    made = Path(f"/tmp/alices-{os.getpid()}-{time.monotonic_ns()}")
    made.mkdir(mode=0o700)
    (made / "file").write_text("hers\n")
    yield made
    subprocess.run(["rm", "-rf", made], check=False)


@contextmanager
def mallorys(*argv: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        argv,
        user=MALLORY,
        group=MALLORY,
        extra_groups=(),
        env={"PATH": os.environ["PATH"], **environment},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def to_the_daemon(place: Path) -> str | None:
    """Whom root's daemon sees in a temp dir of hers."""
    told = occupancy.place(str(place))
    assert told is not None
    lies = str(told["path"]), ALICE, str(told["device"]), str(told["inside"]), None
    where = OccupiedPlace(
        *lies, open=bool(told["open"]), by_name=True, writable=bool(told["writable"]), enter=bool(told["enter"])
    )
    return users_of((where,), frozenset({os.getpid()})).get(where.path)


def to_the_helper(place: Path) -> str | None:
    """Whom root's own helper sees in one of root's."""
    return occupancy.occupant(str(place), by_name=True)


def elsewhere(place: Path, code: str) -> list[str]:
    return ["unshare", "-Urm", "sh", "-c", ELSEWHERE.format(place, PYTHON, code)]


TRICKS: dict[str, Callable[[Path], list[str]]] = {
    "cwd": lambda place: elsewhere(place, f"import os, sys; os.chdir('{place}'); {READY}"),
    "open file": lambda place: elsewhere(place, f"import sys; f = open('{place}/x', 'w'); {READY}"),
    "mapped file": lambda place: elsewhere(
        place,
        f"import mmap, os, sys; f = open('{place}/x', 'w+b'); f.write(bytes(4096)); f.flush();"
        f" m = mmap.mmap(f.fileno(), 0); os.closerange(3, 50); {READY}",
    ),
    "socket": lambda place: elsewhere(
        place, f"import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('{place}/s'); s.listen(); {READY}"
    ),
    "handed on": lambda place: [PYTHON, "-I", "-c", HANDED, str(place), HANDING],
    "overlay": lambda place: [  # of what lay at that name there when it was mounted
        *("unshare", "-Urm", "sh", "-c"),
        f"mount -t tmpfs none /mnt && mkdir /mnt/m && mount -t tmpfs none /tmp"
        f" && mkdir -p {place} /tmp/other && mount -t overlay -o lowerdir={place}:/tmp/other none /mnt/m"
        f" && umount -l /tmp && cd / && exec {PYTHON} -I -c {f'import sys; {READY}'!r}",
    ],
    "bind": lambda place: ["unshare", "-Urm", "sh", "-c", f"mount --bind {place} /mnt && echo ready && exec cat"],
    "called so": lambda place: [PYTHON, "-I", "-c", NAMED, str(place)],
}


@pytest.mark.parametrize("seen", [to_the_daemon, to_the_helper])
@pytest.mark.parametrize("trick", TRICKS)
def test_what_only_has_the_name_of_a_place_is_no_use_of_it(
    alices: Path, trick: str, seen: Callable[[Path], str | None]
) -> None:
    with mallorys(*TRICKS[trick](alices)):
        assert seen(alices) is None


@pytest.mark.parametrize("seen", [to_the_daemon, to_the_helper])
@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_variable_is_use_of_a_place_only_where_its_user_may_make_files(
    alices: Path, mode: int, seen: Callable[[Path], str | None]
) -> None:
    alices.chmod(mode)
    with mallorys(PYTHON, "-I", "-c", f"import sys; {READY}", TMPDIR=str(alices / "x")) as process:
        found = seen(alices)
        assert (found is not None and f"process {process.pid} " in found) is (mode == 0o777)


@contextmanager
def set_uid(name: str, **environment: str) -> Iterator[int]:
    """Root's by its uids, Mallory's by its name and its environment: as `su` is while it asks for a password."""
    place = Path(f"/var/tmp/set-uid-{os.getpid()}")
    place.mkdir()
    program = place / name
    try:
        shutil.copy("/bin/cat", program)
        program.chmod(0o4755)
        with subprocess.Popen(
            [program], env=environment, user=MALLORY, group=MALLORY, extra_groups=(),
            cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        ) as process:  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(b"ready\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"ready\n"
            assert os.stat(f"/proc/{process.pid}").st_uid == 0
            yield process.pid
            process.stdin.close()
    finally:
        shutil.rmtree(place)


def test_a_set_uid_program_says_what_its_caller_says(alices: Path) -> None:
    with set_uid("su", TMPDIR=str(alices)):
        assert (to_the_daemon(alices), to_the_helper(alices)) == (None, None)


def test_a_set_uid_program_is_no_git_at_work(alices: Path) -> None:
    """It kept the lock that a dead git of root's had left, for ever: called git, with GIT_DIR in its environment."""
    subprocess.run(["git", "init", "-q", alices], check=True)
    with set_uid("git", GIT_DIR=str(alices / ".git")) as pid:
        assert str(pid) not in {git.pid for git in git_processes.at_work()}


def test_an_id_that_another_user_carries_is_no_living_session(alices: Path) -> None:
    """It kept the temp dir of a dead session of Claude Code, and its files from `purge`."""
    session = str(uuid.uuid4())
    with mallorys("sh", "-c", "echo ready; exec cat", session, SESSION=session), set_uid("x", SESSION=session):
        assert session not in session_dirs.living().ids


def test_a_temp_dir_of_roots_goes_whatever_is_feigned(alices: Path) -> None:
    """All at once, by the hook itself."""
    with (
        mallorys(*TRICKS["cwd"](alices), X=str(alices)),
        mallorys(*TRICKS["socket"](alices)),
        mallorys(*TRICKS["handed on"](alices)),
    ):
        result = temp_dir(context(temp_dir=str(alices)), hooks.CleanupSettings())
    assert result.outcome is HookOutcome.DONE, result.message
    assert not alices.exists()


def test_who_really_sits_there_is_seen(alices: Path) -> None:
    """Also by a bind mount in a namespace of its own, where the place has another name."""
    alices.chmod(0o755)
    code = f"import os, sys; os.chdir('/mnt'); {READY}"
    words = f"mount --bind {alices} /mnt && exec {PYTHON} -I -c {code!r}"
    with mallorys("unshare", "-Urm", "sh", "-c", words) as process:
        for seen in (to_the_daemon, to_the_helper):
            found = seen(alices)
            assert found is not None and f"process {process.pid} " in found
