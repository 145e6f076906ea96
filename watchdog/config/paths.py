"""Where things lie: by uid, by XDG, or as systemd says; and the check that a directory is really ours.

It never repairs a directory that looks wrong: that one may be another user's trap.
"""

import contextlib
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from watchdog.client.sockets import fallbacks, runtime_directory
from watchdog.concurrency import threads
from watchdog.errors import UnsafeDirectory

NAME = "agent-watchdog"


@dataclass(frozen=True, slots=True)
class Paths:
    """The default paths of one uid's daemon."""

    uid: int
    config_file: str
    state_dir: str
    runtime_dir: str


def places_for(uid: int, environ: Mapping[str, str]) -> Paths:
    """Root has the host's places (systemd may name others), any other user their own.

    A user's $STATE_DIRECTORY is not used: systemd before 254 names ~/.config there. Relative XDG paths are ignored, as
    the XDG specification says. Raises UnsafeDirectory for a uid without a home.
    """
    if uid == 0:
        return Paths(
            uid,
            f"/etc/{NAME}/{NAME}.toml",
            _first(environ.get("STATE_DIRECTORY")) or f"/var/lib/{NAME}",
            _first(environ.get("RUNTIME_DIRECTORY")) or f"/run/{NAME}",
        )
    home = _absolute(environ.get("HOME")) or _home(uid)
    runtime = runtime_directory(uid, environ.get("XDG_RUNTIME_DIR", ""))
    return Paths(
        uid,
        f"{_absolute(environ.get('XDG_CONFIG_HOME')) or f'{home}/.config'}/{NAME}/{NAME}.toml",
        f"{_absolute(environ.get('XDG_STATE_HOME')) or f'{home}/.local/state'}/{NAME}",
        f"{runtime}/{NAME}" if runtime else fallbacks(uid)[0],
    )


def squatted(runtime_dir: str) -> str | None:
    """Whose file took the usual name in /tmp, so that this directory beside it is used; in words."""
    directory, name = os.path.split(runtime_dir)
    usual = f"{directory}/{NAME}-{os.geteuid()}"
    if not name.startswith(f".{NAME}-{os.geteuid()}-"):
        return None
    try:
        return f"{usual} belongs to uid {os.lstat(usual).st_uid}"
    except OSError:
        return f"{usual} was taken when it was made"


def ensure_directories(state_dir: str, runtime_dir: str) -> None:
    """Make both, or check them. Raises UnsafeDirectory.

    Others must reach their notify sockets in root's runtime directory, but state directories are private.
    """
    ensure_directory(state_dir, 0o700)
    ensure_runtime(runtime_dir)


def ensure_runtime(path: str) -> None:
    """The runtime directory alone. Raises UnsafeDirectory."""
    ensure_directory(path, 0o755 if os.geteuid() == 0 else 0o700)


def notify_directory(runtime_dir: str) -> str:
    """Where the daemon's notify sockets lie, made if need be: others may pass to their own one, and list none.

    What else lies there is moved aside: nobody's agent is heard with it.
    """
    path = os.path.join(runtime_dir, "notify")
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
        move_aside(path, runtime_dir)
    os.makedirs(path, exist_ok=True)
    os.chmod(path, 0o711 if os.geteuid() == 0 else 0o700)
    return path


def make_way(path: str, directory: str) -> None:
    """Let nothing lie where a socket of ours is to be bound: what is stale goes, a directory is moved aside.

    Raises OSError.
    """
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    except (IsADirectoryError, PermissionError):  # unlink(2): EISDIR, POSIX's EPERM
        if os.path.islink(path) or not os.path.isdir(path):
            raise
        move_aside(path, directory)


def move_aside(path: str, directory: str) -> str:
    """Rename what lies where a socket or a directory of ours belongs into `directory`, both in our runtime directory.

    Nothing is removed, whatever it is. Returns where it lies; raises OSError, for a mount point say.
    """
    number, free = 0, os.path.join(directory, f"{os.path.basename(path)}.aside")
    while os.path.lexists(free):
        number += 1
        free = os.path.join(directory, f"{os.path.basename(path)}.aside-{number}")
    os.rename(path, free)
    return free


def ensure_directory(path: str, mode: int) -> None:
    """Make a directory (parents too), or check one that is there: ours, no link, not writable by other users.

    Raises UnsafeDirectory, also when it cannot be made.
    """
    made = False
    with _named(path):
        os.makedirs(os.path.dirname(path), 0o755 if os.geteuid() == 0 else 0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            made = True
    _look(path, mode, made=made)


def _look(path: str, mode: int, *, made: bool) -> None:
    with _named(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            raise UnsafeDirectory(f"{path}: belongs to uid {found.st_uid}; use uid {os.geteuid()}")
        if made:
            os.fchmod(descriptor, mode)  # whatever the umask is
        elif found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise UnsafeDirectory(
                f"{path}: mode {stat.S_IMODE(found.st_mode):04o}, others may write there; use {mode:04o}"
            )
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _named(path: str) -> Iterator[None]:
    try:
        yield
    except NotADirectoryError:
        raise UnsafeDirectory(f"{path}: a link or a file; use a directory of uid {os.geteuid()}") from None
    except OSError as error:
        raise UnsafeDirectory(f"{path}: cannot be used: {error.strerror}") from None


def _first(paths: str | None) -> str | None:
    """systemd separates several directories by colons."""
    return _absolute(paths.split(":")[0]) if paths else None


def _absolute(path: str | None) -> str | None:
    return path.rstrip("/") if path and path.startswith("/") else None


def _home(uid: int) -> str:
    try:
        with threads.noted(threads.NSS):
            return pwd.getpwuid(uid).pw_dir
    except KeyError:  # a uid that only a container knows
        raise UnsafeDirectory(f"uid {uid} has no home directory; set HOME, or XDG_STATE_HOME") from None
