"""What an agent that was ended leaves switched on at the terminal, switched off: `run` holds it still.

A program that draws its own screen switches the line discipline to keys one by one (no ICANON or no ECHO), and back
when it ends. Where the terminal is still like that after a death, and was not before, the program could not put it in
order: the kernel's part gets its former settings, and the emulator what every such program says when it ends well.
Nothing is written for any other program. Each sequence leaves a terminal alone that did not have that mode on
(xterm's ctlseqs; tried with tmux 3.3a).
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
    b"\x1b[?2026l"  # output is shown again as it comes
    b"\x1b[?1000l\x1b[?1001l\x1b[?1002l\x1b[?1003l\x1b[?1005l\x1b[?1006l\x1b[?1015l\x1b[?1016l"  # the mouse
    b"\x1b[?1004l\x1b[?2004l\x1b[?2031l"  # focus, pasted text, colours: none is reported any more
    b"\x1b[<u\x1b[>4m\x1b[?1l\x1b>"  # keys as they were: kitty's protocol, xterm's other keys, cursor and keypad
    b"\x1b7\x1b[?1049l"  # the normal screen; a program that was in it keeps its cursor, as that is saved right before
    b"\x1b7\x1b[r\x1b8"  # the whole of it scrolls; else the cursor would go to its first line
    b"\x1b[4l\x1b[?7h\x0f\x1b(B\x1b[m\x1b[?25h\x1b[0 q"  # no insertion, long lines wrap, plain letters, the cursor
)


class Screen:
    """Our controlling terminal as it was before the agent had it; of none nothing is kept or done."""

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
        """After the agent's end, as waitpid(2) tells it: a program that ends well means what it leaves (`stty`)."""
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
            termios.tcflush(terminal, termios.TCIFLUSH)  # what the mouse said meanwhile would be typed into the shell
        except (OSError, termios.error):
            pass  # it takes nothing just now (Ctrl-S)
        finally:
            os.close(terminal)


def _open() -> int:
    return os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)


def _switched_off(before: "list[Any]", left: "list[Any]") -> bool:
    return bool(before[_LFLAG] & _KEYS & ~left[_LFLAG])


def _is_ours(terminal: int) -> bool:
    """Whether our group has the terminal now, or none has: another group may draw there by now."""
    foreground = os.tcgetpgrp(terminal)
    if foreground == os.getpgid(0):
        return True
    try:
        os.getsid(foreground)
    except ProcessLookupError:
        return True  # the group that an agent of its own job control had
    return False
