"""Where control sockets are, which of them to use, and whether a directory of sockets can be trusted.

Tests: tests/client/test_client.py, tests/e2e/test_finding_the_daemon.py.
"""

import os
import stat
from _socket import AF_UNIX, SOCK_CLOEXEC, SOCK_STREAM, socket

SYSTEM_SOCKET = "/run/agent-watchdog/control.sock"


def user_directories() -> list[str]:
    """Where a daemon of our uid with our environment would create its sockets; the most likely directory first."""
    own = fallbacks(os.getuid())
    runtime = runtime_directory(os.getuid(), os.environ.get("XDG_RUNTIME_DIR", ""))
    return own if runtime is None else [f"{runtime}/agent-watchdog", *own]


def own_sockets() -> list[str]:
    """The existing sockets of daemons of our own uid, whatever environment those were started with.

    pam_systemd(8) sets XDG_RUNTIME_DIR for logins only: cron, `su` and `sudo -u` start programs without it, or with
    another user's. So the directory that pam_systemd would name for us is searched as well.
    """
    uid = os.getuid()
    login = f"/run/user/{uid}"
    directories = user_directories()
    if os.path.isdir(login) and runtime_directory(uid, login) is not None:
        directories.insert(1, f"{login}/agent-watchdog")
    paths = [f"{directory}/control.sock" for directory in dict.fromkeys(directories)]
    return [path for path in paths if os.path.exists(path) and directory_problem(os.path.dirname(path)) is None]


def _answers(path: str) -> bool:
    """Whether a process listens there: a killed daemon leaves its socket behind."""
    connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC)
    connection.setblocking(False)
    try:
        connection.connect(path)
    except BlockingIOError:  # its backlog is full
        return True
    except OSError:
        return False
    finally:
        connection.close()
    return True


def runtime_directory(uid: int, told: str) -> str | None:
    """$XDG_RUNTIME_DIR if it belongs to that uid; None for a relative path, or one that others may write to.

    `su` keeps the variable (pam_systemd(8)): the directory then belongs to another user, who could replace our files by
    links.
    """
    path = told.rstrip("/")
    if not path.startswith("/") or (os.path.lexists(path) and not _is_directory_of(path, uid, closed_to=0o022)):
        return None
    return path


def fallbacks(uid: int) -> list[str]:
    """That uid's own directories for sockets in /tmp; if there is none, the one to create.

    Any user may take the usual name first. Then a name with a random suffix is used, and found again by what no other
    user can create there: a directory that this uid owns, with mode 0700.
    """
    usual = f"/tmp/agent-watchdog-{uid}"  # noqa: S108  refused unless it is that uid's own
    if _is_directory_of(usual, uid):
        return [usual]
    prefix = f".agent-watchdog-{uid}-"
    beside = [f"/tmp/{name}" for name in sorted(os.listdir("/tmp")) if name.startswith(prefix)]  # noqa: S108
    made = [path for path in beside if _is_directory_of(path, uid, closed_to=0o077)]
    if made:
        return made
    return [f"/tmp/{prefix}{os.urandom(8).hex()}" if os.path.lexists(usual) else usual]  # noqa: S108


def _is_directory_of(path: str, uid: int, closed_to: int = 0) -> bool:
    """Whether it is a directory (not a link) that this uid owns; `closed_to`: mode bits that must not be set."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == uid and not found.st_mode & closed_to


def find_socket(explicit: str | None = None) -> str:
    """The control socket to use: the given one, `$AGENT_WATCHDOG_SOCKET`, the user's, the system's (root: reversed).

    If there is none yet, the one that a daemon of our own uid would create.
    """
    told = explicit or os.environ.get("AGENT_WATCHDOG_SOCKET")
    if told:
        return os.path.abspath(told)
    there = _sockets()
    if os.getuid() == 0 and not (there and (there[0] == SYSTEM_SOCKET or _answers(there[0]))):
        return SYSTEM_SOCKET  # the host's daemon is missing, not a crashed one of root's own
    if there:
        return there[0]
    own = [f"{directory}/control.sock" for directory in user_directories()]
    return own[0] if len(own) == 1 or os.path.isdir(os.path.dirname(os.path.dirname(own[0]))) else own[1]


def other_sockets(explicit: str | None = None) -> list[str]:
    """Sockets of other daemons that an agent may register with if the daemon of `find_socket` is gone.

    None if the user named the socket; the one in an agent's environment was not named by a user.
    """
    inherited = os.environ.get("AGENT_WATCHDOG_SOCKET")
    if explicit or (inherited and not os.environ.get("AGENT_WATCHDOG_ID")):
        return []
    return _sockets()


def _sockets() -> list[str]:
    """The existing control sockets at their usual places, in directories that can be trusted.

    Our own uid's, then the host's (root: reversed); if there are several, the first one that answers comes first.
    """
    system = os.path.exists(SYSTEM_SOCKET) and directory_problem(os.path.dirname(SYSTEM_SOCKET)) is None
    of_host, own = [SYSTEM_SOCKET] if system else [], own_sockets()
    there = [*of_host, *own] if os.getuid() == 0 else [*own, *of_host]
    if len(there) > 1:
        first = next((path for path in there if _answers(path)), there[0])
        there.remove(first)
        there.insert(0, first)
    return there


def directory_problem(path: str, owners: tuple[int, ...] | None = None) -> str | None:
    """Why sockets in that directory cannot be trusted, or None. `owners`: uids that may own it (ours and root)."""
    try:
        found = os.lstat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a symbolic link"
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a directory"
    if found.st_uid not in (owners or (os.getuid(), 0)):
        return f"{path} belongs to uid {found.st_uid}"
    if found.st_mode & 0o022:
        return f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o})"
    return None
