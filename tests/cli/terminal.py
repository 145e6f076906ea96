"""A person at a terminal: an interactive bash on a pty of its own, typed to and read from; and what one verb draws."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.world import BIN


class Terminal:
    """One pty and the bash that leads the session on it. Echo is off: what is read was written by programs."""

    def __init__(self, environment: Mapping[str, str], directory: Path) -> None:
        self.master, slave = os.openpty()
        self.text = ""
        self.bash = subprocess.Popen(
            # A suite in a script's background (`make test &`) has SIGINT and SIGQUIT ignored; at a terminal they count.
            ["env", "--default-signal", "setsid", "--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=directory,
            env={**environment, "PS1": "", "PS2": "", "PROMPT_COMMAND": "", "TERM": "dumb", "HISTFILE": ""},
        )
        os.close(slave)
        self.type("stty -echo; echo begin")
        self.expect("\nbegin")  # not the echo of what was typed

    def type(self, line: str) -> None:
        """One line and Enter."""
        self.press(line + "\n")

    def press(self, keys: str) -> None:
        """Keys as they are; `\\x03` is Ctrl-C, `\\x1a` Ctrl-Z."""
        os.write(self.master, keys.encode())

    def expect(self, text: str, seconds: float = 60.0) -> str:
        """Read until `text` has come; what came before it. What follows it is kept for the next time."""
        deadline = time.monotonic() + seconds
        while text not in self.text:
            left = deadline - time.monotonic()
            assert left > 0, f"{text!r} did not come within {seconds} s; the terminal has {self.text!r}"
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode(errors="replace").replace("\r\n", "\n")
                except OSError:  # EIO: nobody has the other end open any more
                    raise AssertionError(f"{text!r} did not come; the terminal ended with {self.text!r}") from None
        before, _, self.text = self.text.partition(text)
        return before

    def resize(self, rows: int, columns: int) -> None:
        """As a person does with the window's corner."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def hang_up(self) -> None:
        """Close the window."""
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        """End what is left."""
        if self.master >= 0:
            self.hang_up()
        try:
            self.bash.wait(5)
        except subprocess.TimeoutExpired:
            self.bash.send_signal(signal.SIGKILL)
            self.bash.wait()


@contextmanager
def a_terminal(environment: Mapping[str, str], directory: Path) -> Iterator[Terminal]:
    """A terminal for the length of a `with`."""
    terminal = Terminal(environment, directory)
    try:
        yield terminal
    finally:
        terminal.close()


def drawn(environment: dict[str, str], *words: str, columns: int = 80) -> str:
    """What a terminal of that width gets."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [str(BIN / "agent-watchdog"), *words],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "NO_COLOR": "", **environment},
    )
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 65536):
            text += piece
    except OSError:  # EIO: the other side is closed
        pass
    os.close(ours)
    assert process.wait(60) == 0
    return text.decode().replace("\r\n", "\n")
