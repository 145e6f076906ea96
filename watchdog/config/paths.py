"""Default paths by uid, XDG or systemd, and the check that a directory is really ours.

A directory that looks wrong is never repaired: it may be another user's trap.
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
    """The default paths of a daemon of one uid."""

    uid: int
    config_file: str
    state_dir: str
    runtime_dir: str


def places_for(uid: int, environ: Mapping[str, str]) -> Paths:
    """The host's paths for root (systemd may name others); any other user's own ones.

    A user's $STATE_DIRECTORY is not used: systemd before 254 sets it below ~/.config. Relative XDG paths are ignored,
    as the XDG specification requires. Raises UnsafeDirectory for a uid without a home.
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
    """A message naming the owner of the file that took the usual name in /tmp, so that this directory is used."""
    directory, name = os.path.split(runtime_dir)
    usual = f"{directory}/{NAME}-{os.geteuid()}"
    if not name.startswith(f".{NAME}-{os.geteuid()}-"):
        return None
    try:
        return f"{usual} belongs to uid {os.lstat(usual).st_uid}"
    except OSError:
        return f"{usual} was taken when it was made"


def ensure_directories(state_dir: str, runtime_dir: str) -> None:
    """Create both directories, or check them. Raises UnsafeDirectory.

    Other users must reach their notify sockets in root's runtime directory; state directories are private.
    """
    ensure_directory(state_dir, 0o700)
    ensure_runtime(runtime_dir)


def ensure_runtime(path: str) -> None:
    """Create or check the runtime directory only. Raises UnsafeDirectory."""
    ensure_directory(path, 0o755 if os.geteuid() == 0 else 0o700)


def notify_directory(runtime_dir: str) -> str:
    """The directory of the notify sockets, created if missing: other users can reach their own, but list none.

    Anything else at that path is moved aside, as the daemon could not hear any agent otherwise.
    """
    path = os.path.join(runtime_dir, "notify")
    if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
        move_aside(path, runtime_dir)
    os.makedirs(path, exist_ok=True)
    os.chmod(path, 0o711 if os.geteuid() == 0 else 0o700)
    return path


def make_way(path: str, directory: str) -> None:
    """Clear the path for a socket of ours: remove a stale file, move a directory aside.

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
    """Move what is in the way of a socket or directory of ours into `directory`; both are in our runtime directory.

    Nothing is removed. Returns the new path. Raises OSError, for example for a mount point.
    """
    number, free = 0, os.path.join(directory, f"{os.path.basename(path)}.aside")
    while os.path.lexists(free):
        number += 1
        free = os.path.join(directory, f"{os.path.basename(path)}.aside-{number}")
    os.rename(path, free)
    return free


def ensure_directory(path: str, mode: int) -> None:
    """Create a directory and its parents, or check an existing one: ours, not a link, not writable by other users.

    Raises UnsafeDirectory, also if it cannot be created.
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
    """The first of several directories, which systemd separates by colons."""
    return _absolute(paths.split(":")[0]) if paths else None


def _absolute(path: str | None) -> str | None:
    return path.rstrip("/") if path and path.startswith("/") else None


def _home(uid: int) -> str:
    try:
        with threads.noted(threads.NSS):
            return pwd.getpwuid(uid).pw_dir
    except KeyError:  # a uid without an entry in passwd, as in containers
        raise UnsafeDirectory(f"uid {uid} has no home directory; set HOME, or XDG_STATE_HOME") from None
