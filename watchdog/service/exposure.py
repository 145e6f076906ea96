"""Files readable by others that contain a secret or foreign text: for `--check` and `doctor`. Changes nothing.

1. The configuration with a password in it, and files beside it: backups, `.new`, files for EnvironmentFile=.
2. Drop-ins of our unit, which systemd wants readable, and whose Environment= `systemctl show` prints for all users.
3. Secrets among the arguments of a command: all users see them in /proc/PID/cmdline (proc(5)) while it runs.
4. A registry file and logs: they contain the notes and the commands of all agents.

A file is exposed when its mode lets others read it, or a group that is neither root's nor our own, and each directory
above lets them pass.
"""

import glob
import grp
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from watchdog.config.settings import Settings, sqlite_file
from watchdog.core.redaction import hide_secrets

DROP_INS = "/etc/systemd/system/agent-watchdog.service.d"
MOST_FILES = 100  # of one directory
MOST_BYTES = 1 << 20  # of one file


def exposed(settings: Settings) -> Iterator[str]:
    """One line each: `key: what; what to use`."""
    if settings.file is not None:
        yield from _configuration(settings.file)
    if os.geteuid() == 0:
        yield from _drop_ins(DROP_INS)
    for key, command in _commands(settings):
        if _has_secret(" ".join(command)):
            yield (
                f"{key}: a secret is among its arguments, which every user sees (ps) while it runs; use a file"
                " of mode 0600 that the command reads"
            )
    registry = sqlite_file(settings.registry_url)
    for key, path in [*_with_siblings("registry.url", registry), *_with_siblings("log.file", settings.log.file)]:
        if (readers := _readers(path)) is not None:
            yield f"{key}: {readers} may read {path}, which holds notes and commands of agents; run chmod go-r"


def _configuration(file: str) -> Iterator[str]:
    """The file and the plain files beside it."""
    directory = os.path.dirname(os.path.abspath(file))
    try:
        names = sorted(os.listdir(directory))[:MOST_FILES]
    except OSError:
        names = []
    stem = os.path.basename(file).removesuffix(".toml")
    kinds = (".env", ".environment", ".conf")
    beside = [f"{directory}/{name}" for name in names if name.startswith(stem) or name.endswith(kinds)]
    for path in dict.fromkeys([os.path.abspath(file), *beside]):
        readers = _readers(path)
        if readers is not None and _has_secret(_text(path)):
            yield f"{readers} may read {path}, and a password or token is in it; run chmod 0600 {path}"


def _drop_ins(directory: str) -> Iterator[str]:
    for path in sorted(glob.glob(f"{glob.escape(directory)}/*.conf"))[:MOST_FILES]:
        told = [line for line in _text(path).splitlines() if line.strip().startswith("Environment=")]
        if _has_secret("\n".join(told)):
            yield (
                f"{path}: a secret is in Environment=, which `systemctl show` shows every user; use"
                " EnvironmentFile= with a file of mode 0600, or LoadCredential="
            )


def _commands(settings: Settings) -> Iterable[tuple[str, Iterable[str]]]:
    yield "notify.command", settings.notify.command
    yield "kill.nudge_command", settings.kill.nudge_command
    for number, policy in enumerate(settings.config.policy):
        yield f"policy[{number}].nudge_command", policy.nudge_command or ()
    for hook in settings.hooks:
        yield f"hook {hook.name!r}: command", hook.command or ()


def _with_siblings(key: str, path: str) -> list[tuple[str, str]]:
    """SQLite's own files beside the database; rotated logs."""
    return [(key, one) for one in sorted(glob.glob(f"{glob.escape(path)}*"))[:MOST_FILES]] if path else []


def _has_secret(text: str) -> bool:
    return hide_secrets(text) != text


def _text(path: str) -> str:
    """The beginning of a plain file; empty for anything else, and for an unreadable one."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        text = os.read(descriptor, MOST_BYTES).decode("utf-8", "replace")
    finally:
        os.close(descriptor)
    # Comments show examples: the shipped file explains a URL with a password.
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith(("#", ";")))


def _readers(path: str) -> str | None:
    """Who else may read this plain file, as text."""
    try:
        found = os.lstat(path)
        above = [directory.stat() for directory in Path(os.path.abspath(path)).parents]
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    if found.st_mode & stat.S_IROTH and all(one.st_mode & stat.S_IXOTH for one in above):
        return f"every user (mode {stat.S_IMODE(found.st_mode):04o})"
    group = found.st_gid
    if not found.st_mode & stat.S_IRGRP or group in (0, os.getegid()):
        return None
    if not all(one.st_mode & (stat.S_IXGRP if one.st_gid == group else stat.S_IXOTH) for one in above):
        return None
    return f"group {_group_name(group)} (mode {stat.S_IMODE(found.st_mode):04o})"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
