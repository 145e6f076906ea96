"""Resets terminal modes that a killed agent left on; its `run` still has the terminal.

A full-screen program turns off ICANON or ECHO, and restores them when it exits. If they are still off after its death,
and were not before, the program could not restore the terminal: then the kernel's settings are restored, and the
emulator gets the sequences that such programs send at a normal exit. Nothing is written for other programs. Each
sequence has no effect on a terminal that did not have that mode on (xterm's ctlseqs; tried with tmux 3.3a).
"""

import os
import termios
from os import WIFEXITED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_LFLAG = 3  # of tcgetattr's list
_KEYS = termios.ICANON | termios.ECHO
RESET = (
    b"\x1b[?2026l"  # end synchronized output
    b"\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # the mouse
    b"\x1b[?1004l\x1b[?2004l\x1b[?2031l"  # no reports of focus, paste or colours
    b"\x1b[<u\x1b[>4m\x1b[?1l\x1b>"  # normal keys: kitty's protocol, xterm's modifyOtherKeys, cursor keys, keypad
    b"\x1b7\x1b[?1049l"  # the normal screen; if it was active the cursor stays, as it is saved right before
    b"\x1b7\x1b[r\x1b8"  # reset the scroll region without moving the cursor
    b"\x1b[4l\x1b[?7h\x0f\x1b(B\x1b[m\x1b[?25h\x1b[0 q"  # no insert mode, line wrap, plain characters, cursor visible
)


class Screen:
    """Our controlling terminal as it was before the agent started; does nothing if there is none."""

    def __init__(self) -> None:
        self._before: list[Any] | None = None
        try:
            terminal = _open()
        except OSError:
            return
        try:
            self._before = termios.tcgetattr(terminal)
        except termios.error:
            pass
        finally:
            os.close(terminal)

    def put_back(self, status: int) -> None:
        """Restore after the agent's end (`status` of waitpid(2)), unless it exited normally: that may be meant
        (`stty`).
        """
        if self._before is None or (WIFEXITED(status) and os.waitstatus_to_exitcode(status) == 0):
            return
        try:
            terminal = _open()
        except OSError:
            return  # hung up
        try:
            left = termios.tcgetattr(terminal)
            if not _switched_off(self._before, left) or not _is_ours(terminal):
                return
            termios.tcsetattr(terminal, termios.TCSANOW, self._before)  # SIGTTOU is blocked
            os.write(terminal, RESET)
            termios.tcflush(terminal, termios.TCIFLUSH)  # pending mouse reports would be typed into the shell
        except (OSError, termios.error):
            pass  # output is stopped (Ctrl-S)
        finally:
            os.close(terminal)


def _open() -> int:
    return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)


def _switched_off(before: "list[Any]", left: "list[Any]") -> bool:
    return bool(before[_LFLAG] & _KEYS & ~left[_LFLAG])


def _is_ours(terminal: int) -> bool:
    """Whether our group is in the foreground, or none: another group may be using the terminal by now."""
    foreground = os.tcgetpgrp(terminal)
    if foreground == os.getpgid(0):
        return True
    try:
        os.getsid(foreground)
    except ProcessLookupError:
        return True  # the group of an agent with its own job control is gone
    return False
