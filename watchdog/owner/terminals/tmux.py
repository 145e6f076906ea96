"""Types into the tmux pane that a process of ours sits in, and into no other.

The process names its server and pane itself (TMUX, TMUX_PANE in its first environment), and the server must agree: it
is the one that was named, by pid; the pane's own process is the agent or above it; the agent's terminal is the
pane's, and the agent is what runs in its foreground. A pane that shows something else, or that a person scrolls in, is
left alone: what is typed would reach a shell, an editor or a dialog. All of it is looked at anew before each key.
"""

import os
import re
import subprocess
import time

from watchdog.errors import OwnerCallFailed

SECONDS = 2.0  # for one word to the server; a living one answers in 5 ms
BETWEEN = 0.2  # seconds between two keys: programs take what comes at once for a paste, and Enter for a part of it
_KEY = re.compile(r"(?:[CMS]-)+\S+|Enter|Escape|Tab|Space|BSpace|Up|Down|Left|Right|Home|End")
_ASKED = "|".join(
    f"#{{{name}}}"
    for name in (
        "pid",
        "pane_id",
        "pane_pid",
        "pane_dead",
        "pane_in_mode",
        "pane_synchronized",
        "pane_input_off",
        "pane_tty",
    )
)


def type_keys(pid: int, start_ticks: int, keys: list[str]) -> dict[str, object]:
    """Type words and keys as tmux(1) names them (`Enter`, `C-c`) into the pane that process sits in.

    Raises OwnerCallFailed: `no_pane` where it sits in none; `left` when the pane is in another use, before the first
    key or between two; `tmux` when the server does not answer.
    """
    pane = ""
    for number, key in enumerate(keys):
        if number:
            time.sleep(BETWEEN)
        socket, pane = _pane_of(pid, start_ticks, pane)
        word = ["-t", pane, key] if _KEY.fullmatch(key) else ["-t", pane, "-l", "--", key]
        _tmux(socket, "send-keys", *word)
    return {"pane": pane}


def _pane_of(pid: int, start_ticks: int, known: str) -> tuple[str, str]:
    """The server's socket and the pane's id, both verified. `known`: the pane of the key before."""
    variables = _environment(pid)
    socket, _, rest = variables.get("TMUX", "").partition(",")
    server, pane = rest.partition(",")[0], variables.get("TMUX_PANE", "")
    if not socket.startswith("/") or not re.fullmatch(r"%\d+", pane):
        raise OwnerCallFailed("no_pane", "it sits in no tmux pane")
    try:
        if os.stat(socket).st_uid != os.geteuid():
            raise OwnerCallFailed("no_pane", f"its tmux server is another user's ({socket})")
    except OSError as error:
        raise OwnerCallFailed("no_pane", f"its tmux server is gone ({socket}: {error.strerror})") from error
    said = _tmux(socket, "display-message", "-p", "-t", pane, _ASKED).strip().split("|")
    if len(said) != 8 or said[:2] != [server, pane] or (known and known != pane):
        raise OwnerCallFailed("no_pane", f"its tmux server has no such pane any more ({pane})")
    pane_pid, terminal = int(said[2]), os.stat(said[7]).st_rdev
    fields = _stat(pid)
    group, its_terminal, foreground = (int(fields[index]) for index in (2, 4, 5))
    if int(fields[19]) != start_ticks:
        raise OwnerCallFailed("left", f"pid {pid} has passed on to another process")
    if its_terminal != _packed(terminal) or not _is_above(pane_pid, pid):
        raise OwnerCallFailed("no_pane", f"it does not run in pane {pane} itself")
    if foreground != group:
        raise OwnerCallFailed("left", f"pane {pane} shows another program, which would get the keys")
    if any(flag not in ("0", "") for flag in said[3:7]):
        raise OwnerCallFailed("left", f"pane {pane} is scrolled in by somebody, coupled with others, or closed")
    return socket, pane


def _environment(pid: int) -> dict[str, str]:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            items = os.fsdecode(file.read(1 << 20)).split("\0")
    except OSError as error:
        raise OwnerCallFailed("no_pane", f"its environment cannot be read: {error.strerror}") from error
    return dict(item.split("=", 1) for item in items if item.startswith(("TMUX=", "TMUX_PANE=")))


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third, the state, on (proc(5))."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError as error:
        raise OwnerCallFailed("left", f"process {pid} has ended") from error


def _packed(device: int) -> int:
    """A device number as tty_nr has it: minor in bits 31 to 20 and 7 to 0, major in 15 to 8 (proc(5))."""
    major, minor = os.major(device), os.minor(device)
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def _is_above(ancestor: int, pid: int) -> bool:
    for _ in range(100):
        if pid == ancestor:
            return True
        if pid <= 1:
            return False
        pid = int(_stat(pid)[1])
    return False


def _tmux(socket: str, *words: str) -> str:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("TMUX")}
    try:
        ran = subprocess.run(
            ["tmux", "-S", socket, *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise OwnerCallFailed("tmux", f"the tmux server at {socket} did not answer in {SECONDS:g} s") from None
    except OSError as error:
        raise OwnerCallFailed("tmux", f"tmux cannot be run: {error.strerror}") from error
    if ran.returncode:
        raise OwnerCallFailed("tmux", f"tmux {words[0]}: {ran.stderr.decode('utf-8', 'replace').strip()[:200]}")
    return ran.stdout.decode("utf-8", "replace")
