"""Terminals as a way to another uid, or to a process that outlives its deadline (C1b and its siblings).

The attacker is a uid without a name; the victim is root, or, where only containment is asked for, whoever runs the
tests. The daemon is left out: these are the helper's calls, at which each attack ends.
"""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.attacks import hostile_terminal
from tests.owner.tmux_servers import Servers
from tests.world import alive, started_at, wait_for
from watchdog.errors import OwnerCallFailed
from watchdog.owner.sources import agent_sessions
from watchdog.owner.terminals import panes

pytestmark = [
    pytest.mark.attacks,
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed"),
]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
ATTACKER = 54321
PROGRAM = hostile_terminal.__file__
TRIES = 150  # on f87b3bd the first 3 to 40 were enough


class Attacker:
    """Programs that run as a uid, and a directory of that uid's."""

    def __init__(self, uid: int, directory: Path, stack: ExitStack) -> None:
        self.uid, self.dir, self._stack = uid, directory, stack
        self.dir.mkdir()
        os.chown(self.dir, uid, uid)
        self.dir.chmod(0o755)

    def start(self, *argv: str, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
        user = self.uid if os.geteuid() == 0 else None
        child = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, user=user, group=user, env=env, cwd="/")
        self._stack.callback(_end, child)
        return child

    def program(self, *words: str) -> subprocess.Popen[str]:
        """One of `hostile_terminal`'s, once it is ready."""
        child = self.start(sys.executable, PROGRAM, *words)
        assert child.stdout is not None
        assert child.stdout.readline()
        return child

    def script(self, name: str, text: str) -> str:
        path = self.dir / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)


def _end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    if child.stdout is not None:
        child.stdout.close()


@pytest.fixture
def attacker() -> Iterator[Attacker]:
    """A stranger, where root runs the tests."""
    with _attacker(ATTACKER) as made:
        yield made


@contextmanager
def _attacker(uid: int) -> Iterator[Attacker]:
    with ExitStack() as stack:
        place = Path(stack.enter_context(_temporary()))
        yield Attacker(uid, place / "own", stack)


@contextmanager
def _temporary() -> Iterator[str]:
    place = subprocess.run(["mktemp", "-d", "/tmp/aw-x.XXXXXX"], capture_output=True, text=True, check=True)
    path = place.stdout.strip()
    os.chmod(path, 0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def _on_a_terminal(*argv: str, env: dict[str, str], uid: int | None = None) -> Iterator[int]:
    """A process that leads a session on a pty of its own: its pid, once it is that program."""
    keyboard, terminal = os.openpty()
    if uid is not None:
        os.fchown(terminal, uid, -1)
    pid = os.fork()
    if not pid:
        try:
            os.login_tty(terminal)
            if uid is not None:
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            os.execve(argv[0], list(argv), env)
        finally:
            os._exit(70)
    os.close(terminal)
    try:
        name = os.path.basename(argv[0])
        wait_for(lambda: Path(f"/proc/{pid}/comm").read_text().strip() == name or None, "it runs")
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(keyboard)


def _ask(pid: int) -> str:
    """What the helper says of a process's pane, as its reason."""
    try:
        panes.pane_find(pid, int(started_at(pid) or 0), {})
    except OwnerCallFailed as error:
        return error.reason
    return "found"


# -- another uid


@needs_root
@pytest.mark.parametrize("victim", ["a process of root", "a set-uid program"])
def test_a_name_that_changes_between_look_and_use_makes_nobody_root(attacker: Attacker, victim: str) -> None:
    """C1b, and its sibling: the environment of a set-uid program is its caller's.

    f87b3bd: the program of the fake server ran as uid 0 in the first 40 questions, for both victims.
    """
    loot = attacker.dir / "loot"
    evil = attacker.script("evil", f"id -u >> {loot}; chmod 666 {loot}")
    fake, link = str(attacker.dir / "fake"), str(attacker.dir / "s")
    attacker.program("serve", fake, "shell", evil)
    with Servers() as servers:
        servers.session("root", "exec sleep 1000")
        attacker.program("flip", link, servers.socket(), fake)
        env = {"TMUX": f"{link},1,0", "PATH": os.environ["PATH"]}
        argv, uid = (
            (("/usr/bin/su", "root"), ATTACKER) if victim == "a set-uid program" else (("/bin/sleep", "99"), None)
        )
        with _on_a_terminal(*argv, env=env, uid=uid) as pid:
            for _ in range(TRIES):
                assert _ask(pid) != "found"
                assert not loot.exists(), f"ran as uid {loot.read_text()}"


@needs_root
def test_a_socket_of_ones_own_reached_through_a_strangers_directory_is_not_used(attacker: Attacker) -> None:
    """The link and the directory stand still: it is the way that cannot be trusted, not this moment's target.

    f87b3bd: root's client connected through the stranger's link.
    """
    with Servers() as servers:
        _, pid = servers.session("root", "exec sleep 1000")
        link = attacker.dir / "s"
        link.symlink_to(servers.socket())
        moved = attacker.dir / "tmux"
        os.rename(servers.socket(), moved)
        try:
            for place in (link, moved):
                told = {"terminal": "tmux", "server": str(place)}
                with pytest.raises(OwnerCallFailed) as caught:
                    panes.pane_find(pid, int(started_at(pid) or 0), told)
                assert caught.value.reason == "no_pane"
        finally:
            os.rename(moved, servers.socket())


@needs_root
def test_a_stale_row_whose_pid_is_a_strangers_by_now_leads_nowhere(attacker: Attacker, tmp_path: Path) -> None:
    """Sibling: rows of agent-sessions name a pid, and TMUX of that process named the server, without any check.

    f87b3bd: no race was needed; the program of the fake server ran as uid 0 at the first reading of root's registry.
    """
    loot = attacker.dir / "loot"
    evil = attacker.script("evil", f"id -u >> {loot}")
    fake = attacker.dir / "default"  # as the row's server is called
    attacker.program("serve", str(fake), "shell", evil)
    process = attacker.start("/bin/sleep", "99", env={"TMUX": f"{fake},1,0"})
    wait_for(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n" or None, "it runs")
    registry = tmp_path / "agent-sessions.yaml"
    registry.write_text(
        "tmux_sessions:\n- name: one-creator-claude\n  status: running\n  tmux_server: default\n"
        f"  pane: {{pid: {process.pid}, cmd: claude, cwd: /srv}}\n"
    )

    agent_sessions.discover(str(registry))

    assert not loot.exists(), f"ran as uid {loot.read_text()}"


@needs_root
@pytest.mark.parametrize("address", ["path", "abstract"])
def test_a_strangers_kitty_hears_nothing(attacker: Attacker, address: str) -> None:
    """Sibling: a socket whose owner is somebody else, by either kind of name; not one byte is sent."""
    place = str(attacker.dir / "k") if address == "path" else f"@aw-x-{os.getpid()}"
    code = (
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\np = sys.argv[1]\n"
        "s.bind('\\0' + p[1:] if p[0] == '@' else p)\ns.listen(9)\nprint('up', flush=True)\n"
        "while True:\n    print(len(s.accept()[0].recv(9)), flush=True)\n"
    )
    listener = attacker.start(sys.executable, "-c", code, place)
    assert listener.stdout is not None
    assert listener.stdout.readline()
    with _on_a_terminal("/bin/sleep", "99", env={"KITTY_LISTEN_ON": f"unix:{place}"}) as pid:
        assert _ask(pid) == "no_pane"
    listener.kill()
    listener.wait()
    assert set(listener.stdout.read().split()) <= {"0"}


@needs_root
def test_the_client_of_wezterm_connects_to_nobody_else(attacker: Attacker, tmp_path: Path) -> None:
    """Sibling: `wezterm cli` took the same path a second time. A stand-in notes whom it reaches.

    f87b3bd: it reached the stranger's socket in the first 20 questions.
    """
    noted = tmp_path / "noted"
    client = tmp_path / "wezterm"
    client.write_text(
        f"#!{sys.executable}\nimport os, socket, struct\ns = socket.socket(socket.AF_UNIX)\n"
        "s.connect(os.environ['WEZTERM_UNIX_SOCKET'])\n"
        "pid, uid, gid = struct.unpack('3i', s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))\n"
        f"open({str(noted)!r}, 'a').write(f'{{uid}}\\n')\nprint('[]')\n"
    )
    client.chmod(0o755)
    link, fake, own = str(attacker.dir / "w"), str(attacker.dir / "fake"), str(tmp_path / "own")
    attacker.program("serve", fake, "silent", "")
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        listener.bind(own)
        listener.listen(4096)
        tmp_path.chmod(0o755)
        patch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        attacker.program("flip", link, own, fake)
        with _on_a_terminal("/bin/sleep", "99", env={"WEZTERM_UNIX_SOCKET": link}) as pid:
            for _ in range(TRIES):
                assert _ask(pid) == "no_pane"
                assert not noted.exists() or str(ATTACKER) not in noted.read_text()
        with _on_a_terminal("/bin/sleep", "99", env={"WEZTERM_UNIX_SOCKET": own}) as pid:
            assert _ask(pid) == "no_pane"
        assert noted.read_text() == "0\n"


# -- a server of one's own uid, which is hostile


@contextmanager
def _hostile(deed: str, word: str = "") -> Iterator[tuple[int, Attacker]]:
    """A process whose TMUX names such a server: its pid."""
    with _attacker(os.geteuid()) as own:
        place = str(own.dir / "s")
        own.program("serve", place, deed, word)
        env = {"TMUX": f"{place},1,0", "TMUX_TMPDIR": "/nonexistent", "PATH": os.environ["PATH"]}
        with _on_a_terminal("/bin/sleep", "99", env=env) as pid:
            yield pid, own


@pytest.mark.parametrize("deed", ["shell", "exec", "lock"])
def test_a_program_that_a_server_has_started_ends_with_the_question(deed: str) -> None:
    """It leaves its session and its parent; the keeper of the client is its subreaper.

    f87b3bd: it lived on, as a child of init.
    """
    with _attacker(os.geteuid()) as made:
        noted = made.dir / "pid"
        sleeper = made.dir / "sleeper.py"
        sleeper.write_text(
            "import os, time\nos.fork() and os._exit(0)\nos.setsid()\n"
            f"open({str(noted)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"
        )
        word = made.script("evil", f"exec {sys.executable} {sleeper}")
        with _hostile(deed, word) as (pid, _):
            asked = _ask(pid)
        assert asked != "found"
        if noted.exists() and noted.read_text():  # else it was ended before it came so far
            assert not alive(int(noted.read_text()))
        assert not [one for one in _all_with(str(sleeper)) if alive(one)]


def _all_with(word: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return found


def test_a_server_cannot_hang_up_the_helper() -> None:
    """MSG_DETACHKILL has the client send HUP to its parent. f87b3bd: that was the helper, which died of it."""
    got: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: got.append(number))
    try:
        with _hostile("hangup") as (pid, _):
            assert _ask(pid) != "found"
    finally:
        signal.signal(signal.SIGHUP, before)
    assert got == []


def test_a_server_that_floods_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """f87b3bd: the helper's memory grew by all that came within the deadline, 440 to 660 MB in 2 s."""
    monkeypatch.setattr(panes, "FINDING", 2.0)
    with _hostile("floods") as (pid, _):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began = time.monotonic()
        assert _ask(pid) == "tmux"
        assert time.monotonic() - began < 10
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 40_000, f"grew by {grown} kB"


@pytest.mark.parametrize("deed", ["silent", "holds"])
def test_a_server_that_keeps_a_client_waiting_is_given_up(deed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It never answers; or it keeps the client's stdout open when the client is gone.

    f87b3bd: the second cost the whole deadline, though the client had ended in 10 ms.
    """
    monkeypatch.setattr(panes, "FINDING", 20.0 if deed == "holds" else 1.0)
    with _hostile(deed) as (pid, _):
        began = time.monotonic()
        assert _ask(pid) in ("tmux", "no_pane")
        assert time.monotonic() - began < 10
        assert not [one for one in _all_with("tmux\0-u\0-S") if _parent(one) == os.getpid()]


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


GOOD = "%1|{pid}|0|0|0|0|{tty}|80|24|@1|work"


@pytest.mark.parametrize(
    ("field", "word"),
    [
        ("%1", "%1\\x1b]0;owned\\x07"),
        ("%1", "-t"),
        ("80", "9" * 5000),
        ("80", "\\xb2"),
        ("@1", "@1; kill-server"),
        ("{tty}", "/tmp/x|y|z"),
        ("0|0|0|0", "0|0|0|0|0"),
    ],
)
def test_what_a_server_lists_is_taken_in_tmuxs_own_form_alone(field: str, word: str) -> None:
    """f87b3bd: each was taken for a pane; control characters went into its name, and into the command for people."""
    with _attacker(os.geteuid()) as own:
        place = str(own.dir / "s")
        env = {"TMUX": f"{place},1,0", "TMUX_TMPDIR": "/nonexistent", "PATH": os.environ["PATH"]}
        with _on_a_terminal("/bin/sleep", "99", env=env) as pid:
            tty = os.readlink(f"/proc/{pid}/fd/0")
            line = GOOD.replace(field, word, 1).format(pid=pid, tty=tty)
            own.program("serve", place, "lists", f"{line}\\n")
            assert _ask(pid) == "tmux"


def test_the_name_of_a_session_is_kept_without_control_characters() -> None:
    """It may hold anything but is shown to people."""
    with _attacker(os.geteuid()) as own:
        place = str(own.dir / "s")
        env = {"TMUX": f"{place},1,0", "TMUX_TMPDIR": "/nonexistent", "PATH": os.environ["PATH"]}
        with _on_a_terminal("/bin/sleep", "99", env=env) as pid:
            line = GOOD.format(pid=pid, tty=os.readlink(f"/proc/{pid}/fd/0"))
            own.program("serve", place, "lists", f"{line}\\x1b]0;owned\\x07{'x' * 500}\\n")
            found = panes.pane_find(pid, int(started_at(pid) or 0), {})
    assert found["session"] == f"work?]0;owned?{'x' * 186}"
    assert found["pane"] == "%1"
