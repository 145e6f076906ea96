"""kitty and WezTerm: found, read, typed into, closed, and what is told when they do not close a pane.

No program of kitty's is run: only WezTerm's can be missing.

The terminal is a stand-in with the remote control that both document (`fake_terminal`); kitty itself, where it and Xvfb
are installed, is asked in the last test. No test has seen a real WezTerm.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.owner import fake_terminal
from tests.owner.tmux_servers import Servers, child_of, command_of, end, pane_with
from tests.world import alive, started_at, wait_for
from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import panes
from watchdog.owner.terminals.base import pane_json

WRAPPED = "exec bash -c 'sleep 1000; exec sh'"
PROGRAMS = ("kitty", "wezterm")


class Fake:
    """One terminal of the stand-in, with its client on PATH."""

    def __init__(self, program: str, directory: Path) -> None:
        self.program, self.socket = program, str(directory / "t")
        script = directory / "wezterm"
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_terminal.__file__} "$@"\n')
        script.chmod(0o755)
        named = {"KITTY_LISTEN_ON": f"unix:{self.socket}", "WEZTERM_UNIX_SOCKET": self.socket}
        environ = {**os.environ, **named, "KITTY_LISTEN_ON" if program == "wezterm" else "WEZTERM_UNIX_SOCKET": ""}
        argv = [sys.executable, fake_terminal.__file__, "serve", self.socket]
        self.server = subprocess.Popen(argv, env=environ, stdin=subprocess.DEVNULL)
        wait_for(self._listens, "it listens")

    def _listens(self) -> bool:
        try:
            return self.windows() == []
        except OSError:
            return False

    def open(self, command: str) -> tuple[str, int]:
        """A new window: its number and the pid of its first process, once that is its own."""
        told = fake_terminal.ask(self.socket, call="open", argv=["sh", "-c", command])
        wait_for(lambda: command_of(told["pid"]).startswith(("sleep", "bash", "script")), "it is there")
        return str(told["number"]), told["pid"]

    def windows(self) -> list[str]:
        return [str(one["number"]) for one in fake_terminal.ask(self.socket, call="list")]

    def mode(self, mode: str) -> None:
        Path(f"{self.socket}.mode").write_text(mode)

    def calls(self, call: str) -> int:
        return Path(f"{self.socket}.calls").read_text().split().count(call)

    def close(self) -> None:
        for number in self.windows():
            fake_terminal.ask(self.socket, call="close", number=int(number))
        self.server.kill()
        self.server.wait()


@pytest.fixture(params=PROGRAMS)
def fake(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    with tempfile.TemporaryDirectory(prefix="aw-f", dir="/tmp") as directory:
        fake = Fake(request.param, Path(directory))
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        try:
            yield fake
        finally:
            fake.close()


def lines_of(pid: int, pane: dict[str, object]) -> list[str]:
    """What it shows; nothing where the terminal's client, a Python here, took too long on a loaded host."""
    try:
        lines = panes.pane_screen(pid, int(started_at(pid) or 0), pane)["lines"]
    except OwnerCallFailed as error:
        assert "did not answer" in str(error)
        return []
    assert isinstance(lines, list)
    return lines


def test_a_window_is_found_read_typed_into_and_closed(fake: Fake) -> None:
    """Each by its number; its neighbour stays."""
    neighbour, _ = fake.open("exec sleep 1000")
    number, first = fake.open("exec bash -c 'read word; echo got $word; sleep 1000; exec sh'")
    found = pane_with(first)
    assert (found.terminal, found.pane, found.pid, found.own) == (fake.program, number, first, True)
    assert found.server_pid == fake.server.pid

    ticks = int(started_at(first) or 0)
    assert panes.type_keys(first, ticks, ["bye \\n", "Enter"]) == {"terminal": fake.program, "pane": number}
    wait_for(lambda: "got bye n" in lines_of(first, pane_json(found)) or None, "it read the line")

    agent = child_of(first)
    known = pane_with(agent)
    end(agent)
    closed = panes.close(known)
    assert (closed.outcome, closed.retry) == ("done", ""), closed.message
    assert fake.windows() == [neighbour]
    assert panes.close(known).outcome == "gone"


@pytest.mark.parametrize("fake", ["wezterm"], indirect=True)
def test_a_secret_that_was_broken_at_the_edge_is_hidden_whole(fake: Fake) -> None:
    """WezTerm gives rows as they are shown, of 80 characters here."""
    rows = f"key=sk-ant-{'a1b2' * 17}x", "a1b2" * 20, "a1b2 end"
    assert len(rows[0]) == len(rows[1]) == 80
    _, first = fake.open(f'exec bash -c \'printf "%s\\n" begin {rows[0]} {rows[1]} "{rows[2]}"; exec sleep 1000\'')
    # No environment can be read while it goes on to its last program.
    wait_for(lambda: command_of(first).startswith("sleep"), "it has begun that")
    pane = pane_json(pane_with(first))
    lines = wait_for(lambda: (now := lines_of(first, pane)) and "end" in now[-1] and now, "it has spoken")
    assert lines == ["begin", "key=*** end"]


def test_a_key_that_has_no_bytes_is_not_typed_as_a_word(fake: Fake) -> None:
    """`C-Up` is a key of tmux's."""
    _, first = fake.open("exec bash -c 'read word; echo got $word; sleep 1000'")
    with pytest.raises(OwnerCallFailed, match="tmux pane alone"):
        panes.type_keys(first, int(started_at(first) or 0), ["C-Up"])
    assert fake.calls("write") == 0


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
@pytest.mark.parametrize("fake", ["kitty"], indirect=True)
def test_a_tmux_that_hangs_hides_no_kitty(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who its environment names is asked first."""
    _, first = fake.open("exec env -u TMUX sleep 1000")
    with Servers() as servers:
        servers.session("other", "exec sleep 1000")
        hung = int(servers.tmux("display-message", "-p", "#{pid}"))
        monkeypatch.setenv("TMUX_TMPDIR", str(servers.dir))
        monkeypatch.setattr(panes, "FINDING", 0.8)
        os.kill(hung, signal.SIGSTOP)
        try:
            assert pane_with(first).terminal == "kitty"
        finally:
            os.kill(hung, signal.SIGCONT)


def test_a_window_that_another_process_reads_gets_no_keys(fake: Fake) -> None:
    """Who has given itself another terminal sits in the window, and does not read from it."""
    _, first = fake.open("exec script -qc 'sleep 1000; :' /dev/null")
    agent = child_of(first)
    with pytest.raises(OwnerCallFailed, match="does not read from"):
        panes.type_keys(agent, int(started_at(agent) or 0), ["x"])
    end(agent)


# -- case I7


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        pytest.param("lies", "though {} says that it was closed", id="V1 done, without effect"),
        pytest.param("refuses", "({} refused close-window: not now\\?]0;x|ended with 1)", id="V2 refuses"),
        pytest.param("hangs", "did not answer in", id="V3 hangs"),
        pytest.param("garbage", "cannot be looked at", id="V5 lists what is no list"),
    ],
)
def test_a_close_that_closes_nothing_is_told_with_the_command(
    fake: Fake, mode: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second listing decides; one try, within a limit."""
    number, first = fake.open(WRAPPED)
    agent = child_of(first)
    known = pane_with(agent)
    end(agent)
    fake.mode(mode)
    monkeypatch.setattr(panes, "SECONDS", 1.5)
    monkeypatch.setattr(panes, "SETTLING", 0.3)

    began = time.monotonic()
    closed = panes.close(known)

    assert (closed.outcome, time.monotonic() - began < 30) == ("failed", True), closed.message  # a hang is for ever
    assert re.search(said.format(fake.program), closed.message), closed.message
    commands = {
        "kitty": f"kitty @ --to unix:{fake.socket} close-window --match id:{number}",
        "wezterm": f"WEZTERM_UNIX_SOCKET={fake.socket} wezterm cli kill-pane --pane-id {number}",
    }
    assert closed.retry == commands[fake.program]
    assert fake.calls("close") == (mode != "garbage")
    assert alive(first)


@pytest.mark.parametrize("fake", ["wezterm"], indirect=True)
def test_a_client_that_is_not_there_is_told_with_the_command(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """V4: the program was removed meanwhile."""
    number, first = fake.open(WRAPPED)
    agent = child_of(first)
    known = pane_with(agent)
    end(agent)
    monkeypatch.setattr(panes, "SETTLING", 0.3)
    monkeypatch.setenv("PATH", "/nowhere")

    closed = panes.close(known)

    assert closed.outcome == "failed"
    assert "wezterm cannot be run: No such file or directory" in closed.message
    assert closed.retry == f"WEZTERM_UNIX_SOCKET={fake.socket} wezterm cli kill-pane --pane-id {number}"
    assert (fake.calls("close"), alive(first)) == (0, True)


# -- kitty itself


@pytest.mark.faults
@pytest.mark.skipif(not shutil.which("kitty") or not shutil.which("Xvfb"), reason="kitty or Xvfb is not installed")
def test_kitty_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of a real kitty on a display of its own: found, read, typed into, closed."""
    for name in ("FINDING", "LOOKING", "SECONDS"):  # it draws in software here
        monkeypatch.setattr(panes, name, 20.0)
    reader, display = os.pipe()
    screen = subprocess.Popen(
        ["Xvfb", "-displayfd", str(display), "-screen", "0", "640x480x24"],
        pass_fds=[display],
        stderr=subprocess.DEVNULL,
    )
    os.close(display)
    with tempfile.TemporaryDirectory(prefix="aw-k", dir="/tmp") as directory, open(reader) as told:
        number = told.readline().strip()
        environ = {**os.environ, "DISPLAY": f":{number}", "LIBGL_ALWAYS_SOFTWARE": "1", "HOME": directory}
        options = ["allow_remote_control=yes", "update_check_interval=0", "confirm_os_window_close=0"]
        options.append(f"listen_on=unix:{directory}/k-{{kitty_pid}}")
        argv = ["kitty", "--config", "NONE", *(word for one in options for word in ("-o", one)), "sleep", "1000"]
        kitty = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            place = Path(directory)
            socket = wait_for(lambda: next((str(one) for one in place.glob("k-*")), None), "kitty listens")
            if kitty.poll() is not None:
                pytest.skip("kitty does not start here (no OpenGL)")
            control = ["kitty", "@", "--to", f"unix:{socket}"]
            words = "read word; echo got $word; sleep 1000; exec sh"
            launch = [*control, "launch", "bash", "-c", words]
            window = subprocess.run(launch, capture_output=True, text=True, check=True, timeout=40).stdout.strip()
            listed = json.loads(subprocess.run([*control, "ls"], capture_output=True, check=True, timeout=40).stdout)
            pids = {one["id"]: one["pid"] for outer in listed for tab in outer["tabs"] for one in tab["windows"]}
            first = pids[int(window)]

            found = pane_with(first)
            assert (found.terminal, found.pane, found.own, found.server_pid) == ("kitty", window, True, kitty.pid)
            panes.type_keys(first, int(started_at(first) or 0), ["bye", "Enter"])
            wait_for(lambda: "got bye" in lines_of(first, pane_json(found)) or None, "it read the line")
            agent = child_of(first)
            known = pane_with(agent)
            end(agent)
            closed = panes.close(known)
            assert closed.outcome == "done", closed.message
            assert panes.close(known).outcome == "gone"
            assert kitty.poll() is None
        finally:
            kitty.kill()
            kitty.wait()
            screen.kill()
            screen.wait()
