"""`agent-watchdogd --check`: do the configured files and programs exist, safe from changes by other users?

A problem keeps the daemon from starting, or gives control to another user. Anything else is a warning.

Tests: tests/test_config_hostile.py, tests/config/test_salvage.py.
"""

import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from shutil import which

from watchdog.concurrency.threads import NSS, noted
from watchdog.config.schema import DEFAULT_HOOKS, KillSection, SourceSection
from watchdog.config.settings import Settings, sqlite_file
from watchdog.core.hooks import BUILT_IN
from watchdog.core.vendors import EXIT_KEYS
from watchdog.errors import ConfigError
from watchdog.host.instance_lock import user_of_registry
from watchdog.service.exposure import exposed
from watchdog.service.obstacles import obstacles

_NUMBERS = {5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}
_ENTRY = re.compile(r": (source\[\d+\])[.:]")
NOBODY = 65534  # in a user namespace, the owner of files of users outside


def problems(settings: Settings) -> list[str]:
    """What would fail, or give control to another user, one line each: `file: key: what; what to use`.

    Then problems outside the file: `path: what; do: ...`.
    """
    found = [
        f"{key}: {words}" for key, program in _programs(settings) if (words := _changeable_program(program)) is not None
    ]
    for key, directory in (("state_dir", settings.state_dir), ("runtime_dir", settings.runtime_dir)):
        with noted(directory):
            words = _cannot_be_made(directory)
        found += [f"daemon.{key}: {directory} cannot be made: {words}"] if words is not None else []
    with noted(registry := sqlite_file(settings.registry_url)):
        found += _registry(settings, registry)
    return [*(f"{where(settings)}: {words}" for words in found), *obstacles(settings)]


def about(complaints: Iterable[str]) -> set[str]:
    """The [[source]] entries that complaints are about: without the faulty key such an entry names another place."""
    found = (_ENTRY.search(words) for words in complaints if ": unknown key" not in words)
    return {entry[1] for entry in found if entry is not None}


def _registry(settings: Settings, registry: str) -> Iterator[str]:
    if settings.config.registry.url and registry and not os.path.isdir(os.path.dirname(registry)):
        yield f"registry.url: there is no directory {os.path.dirname(registry)}; use one that exists"
    if (pid := user_of_registry(settings)) is not None:
        yield (
            f"registry.url: another daemon (pid {pid}) uses {registry}; each would kill the other's agents;"
            " use a separate file for each daemon"
        )
    if not registry:
        yield from _database(settings.registry_url)


def _log(log: str) -> Iterator[str]:
    if os.path.islink(log) or os.path.isdir(log) or _is_socket(log):
        kind = "a socket" if _is_socket(log) else "a link or a directory"
        yield f"log.file: {log} is {kind}; the log goes to stderr meanwhile; use a file"
    elif log and not os.access(log if os.path.exists(log) else os.path.dirname(log), os.W_OK):
        yield f"log.file: {log} cannot be written by uid {os.geteuid()}; the log goes to stderr meanwhile"


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except OSError:
        return False


def warnings(settings: Settings) -> list[str]:
    """Probable mistakes that stop nothing."""
    found = [f"{key}: {words}" for key, name in _programs(settings) if (words := _missing_program(name)) is not None]
    if settings.file and not settings.config.model_fields_set:
        found.append("says nothing: a start takes all defaults; a reload keeps what it said before")
    with noted(settings.log.file):
        found += _log(settings.log.file)
    if "roots" in settings.cleanup.model_fields_set:
        found += [
            f"cleanup.roots[{number}]: {root} is not a directory here; no temp dir can lie in it"
            for number, root in enumerate(settings.cleanup.roots)
            if not _is_directory(root)
        ]
    named = settings.config.source or ()  # a user's own shipped one is read as soon as it exists
    found += [f"source[{number}].{words}" for number, one in enumerate(named) for words in _source(one)]
    config = settings.config
    lists = {"kill.spare": config.kill.spare} | {
        f"policy[{number}].spare": policy.spare or () for number, policy in enumerate(config.policy)
    }
    shipped = KillSection().spare
    found += [
        f"{key}: yours replaces the shipped names; not among them: {', '.join(left)}; such a program is"
        " killed with the agent that started it, even if others use it; list those that you want, too"
        for key, mine in lists.items()
        if mine and (left := [name for name in shipped if name not in mine])
    ]
    found += [
        f"policy[{number}].match.type: {kind!r} is not {kind.lower()!r}, as such agents are registered"
        for number, policy in enumerate(config.policy)
        if (kind := policy.match.type or "") not in EXIT_KEYS and kind.lower() in EXIT_KEYS
    ]
    run = {hook.run for hook in settings.hooks}
    if settings.hooks and (left := [hook.name for hook in DEFAULT_HOOKS if hook.run not in run]):
        found.append(
            f"hook: yours replace the {_NUMBERS.get(len(BUILT_IN), len(BUILT_IN))} shipped ones; not among them:"
            f" {', '.join(left)};"
            f" so these stay: {', '.join(BUILT_IN[name].leaves for name in left)}; list those that you want, too"
            f""" ([[hook]], name = "{left[0]}", run = "{left[0]}")"""
        )
    return [f"{where(settings)}: {words}" for words in [*found, *exposed(settings)]]


def _is_directory(path: str) -> bool:
    with noted(path):
        return os.path.isdir(path)


def _cannot_be_made(directory: str) -> str | None:
    """Why a start could not make this missing directory."""
    above = directory
    while not os.path.lexists(above) and above != "/":
        above = os.path.dirname(above)
    if above == directory:
        return None
    if not os.path.isdir(above):
        return f"{above} is not a directory"
    return None if os.access(above, os.W_OK | os.X_OK) else f"uid {os.geteuid()} may not write to {above}"


def _database(url: str) -> Iterator[str]:
    """Errors in a server's address, as far as they can be found without connecting."""
    from watchdog.registry.engines import Engines  # 0.3 s, which no other check needs

    try:
        Engines(url).close()
    except ConfigError as error:
        yield from error.problems


def _source(source: SourceSection) -> Iterator[str]:
    """Why a registry cannot be read. Its program may make it later, so a running daemon does not report this."""
    with noted(NSS):
        uid = pwd.getpwnam(source.user).pw_uid if source.user else os.geteuid()
    if os.geteuid() and uid != os.geteuid():
        yield f"user: only root's daemon can read another user's files ({source.user!r}); omit it, or use root's daemon"
        return
    path = os.path.expanduser(source.place())
    try:
        with noted(path):
            os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        yield f"path: {path} is not there (yet); no agent of {source.kind} is known until it is"
    except OSError:
        pass  # its owner may access it


def where(settings: Settings) -> str:
    """The file, or text where there is none."""
    return settings.file or "no file, all defaults"


def _programs(settings: Settings) -> Iterator[tuple[str, str]]:
    for hook in settings.hooks:
        if hook.command:
            yield f"hook {hook.name!r}: command", hook.command[0]
    if settings.kill.nudge_command:
        yield "kill.nudge_command", settings.kill.nudge_command[0]
    for number, policy in enumerate(settings.config.policy):
        if policy.nudge_command:
            yield f"policy[{number}].nudge_command", policy.nudge_command[0]
    if settings.notify.command:
        yield "notify.command", settings.notify.command[0]


def _missing_program(name: str) -> str | None:
    with noted(_sought(name)):
        found = which(name)
        there = os.path.lexists(name)
    if found:
        return None
    if not os.path.isabs(name):
        return f"{name} is not on the daemon's PATH; use its absolute path"
    if there:
        return f"{name} is not a file that uid {os.geteuid()} can execute; run chmod +x, and open each directory to it"
    return f"{name} does not exist; use the path of a program that does"


def _changeable_program(name: str) -> str | None:
    with noted(_sought(name)):
        found = which(name)
        words = None if found is None else _changeable(found)
    if words is None:
        return None
    return f"{words}: others could change what runs; run chmod go-w, and make root its owner, or uid {os.geteuid()}"


def _sought(name: str) -> str:
    return name if "/" in name else f"{name} on PATH ({os.environ.get('PATH', os.defpath)})"


def _changeable(program: str) -> str | None:
    """How another user could replace this program, as text. A link is as safe as the directories of both ends."""
    real = os.path.realpath(program)
    status = os.stat(real)
    # A user's own group has no other member; root's may.
    others = stat.S_IWOTH | (stat.S_IWGRP if os.geteuid() == 0 or status.st_gid != os.getegid() else 0)
    if status.st_mode & others or status.st_uid not in (0, os.geteuid(), NOBODY):
        return f"{real} has mode {stat.S_IMODE(status.st_mode):04o} and owner uid {status.st_uid}"
    for directory in dict.fromkeys([*Path(os.path.abspath(program)).parents, *Path(real).parents]):
        mode = directory.stat().st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            return f"{real} lies below {directory}, which has mode {stat.S_IMODE(mode):04o}"
    return None
