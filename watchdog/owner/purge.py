"""Moves the files of one conversation to the trash, each by its exact path, or reports what keeps them.

1. They are found by the program's known layout; only full names with the full id match.
2. It is refused while a process carries that id, is a Claude Code with an unknown session, or has one of the files
   open; and for anything that is not this uid's own plain file or directory, reached without links.
3. All are checked before any is moved. Then each is renamed into `.agent-watchdog-trash-UID/` in the program's own
   directory: on the same file system, so nothing is copied and nothing is half moved. Only its owner empties it.

A second run finds nothing, which is not an error.

Tests: tests/owner/test_conversations.py.
"""

import contextlib
import glob
import os
import stat
import time

from watchdog.core.conversations import Conversation, conversation_of
from watchdog.errors import OwnerCallFailed, PathRefused
from watchdog.owner import occupancy, paths, session_dirs, trash
from watchdog.owner.conversations import start_of
from watchdog.owner.sources import claude

Opened = tuple[int, str]  # a directory, and a name in it


def purge(conversation: dict[str, object], dry_run: bool) -> dict[str, object]:
    """The paths that were (or would be) moved, and the trash. Raises OwnerCallFailed, PathRefused, OSError."""
    told = conversation_of(conversation)
    if told is None:
        raise OwnerCallFailed("bad_request", f"{conversation} is not a conversation that is known here")
    base = told.base or _usual(told)
    found = [path for path in _places(base, told) if os.path.lexists(path)]
    _refuse_living(base, told, found)
    place = os.path.join(base, trash.beside_name(base))
    with contextlib.ExitStack() as held:
        opened = [_opened(held, base, path) for path in found]
        if found and not dry_run:
            place = _move(base, told, found, opened)
    return {"paths": found, "trash": place}


def _usual(told: Conversation) -> str:
    """Its program's default directory."""
    home = os.path.expanduser("~")
    match told.vendor:
        case "claude":
            return os.path.join(home, ".claude")
        case "codex":
            return os.path.join(home, ".codex")
        case _:
            return os.path.join(home, ".gemini/antigravity-cli")


def _places(base: str, told: Conversation) -> list[str]:
    """The paths of its files; for Claude Code also its subagents', in a directory of the same name next to it."""
    top = glob.escape(base)
    match told.vendor:
        case "claude":
            return sorted(glob.glob(f"{top}/projects/*/{told.id}.jsonl") + glob.glob(f"{top}/projects/*/{told.id}"))
        case "codex":
            days = glob.glob(f"{top}/sessions/[0-9][0-9][0-9][0-9]/[0-9][0-9]/[0-9][0-9]/rollout-*-{told.id}.jsonl")
            return sorted(days)
        case _:
            files = [f"{base}/conversations/{told.id}.db{end}" for end in ("", "-wal", "-shm")]
            return [*files, f"{base}/brain/{told.id}"]


def _refuse_living(base: str, told: Conversation, found: list[str]) -> None:
    for entry in claude.discover(base) if told.vendor == "claude" else []:
        with contextlib.suppress(OSError):  # gone
            if entry.conversation == told.id and entry.pid is not None and start_of(entry.pid) == entry.ticks:
                raise OwnerCallFailed(
                    "in_use", f"kept: process {entry.pid} is in conversation {told.id}; stop it first"
                )
    living = session_dirs.living()
    if told.id in living.ids:
        raise OwnerCallFailed("in_use", f"kept: a process is in conversation {told.id}; stop it first")
    if told.vendor == "claude" and living.unknown is not None:
        raise OwnerCallFailed("in_use", f"kept: {living.unknown}")
    for path in found:
        user = occupancy.occupant(os.path.realpath(path))
        if user is not None:
            raise OwnerCallFailed("in_use", f"kept: {user}")


def _opened(held: contextlib.ExitStack, base: str, path: str) -> Opened:
    """Its directory and name, reached without links. Raises PathRefused for what may not be moved."""
    parent, name = paths.open_parent(path, base)
    held.callback(os.close, parent)
    _refuse_strange(parent, name, path)
    return parent, name


def _move(base: str, told: Conversation, found: list[str], opened: list[Opened]) -> str:
    """Rename each into a new directory in the trash; return its path."""
    top = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        container = trash.use_trash(top, lambda bin_: _into(bin_, told, found, opened))
        return os.path.join(base, trash.beside_name(top), container)
    finally:
        os.close(top)


def _into(bin_: int, told: Conversation, found: list[str], opened: list[Opened]) -> str:
    name = f"{told.vendor}-{told.id}-{time.time_ns()}"
    os.mkdir(name, trash.PRIVATE, dir_fd=bin_)
    container = paths.step(bin_, name)
    try:
        trash.write_json(container, "origin.json", {"conversation": told.id, "paths": found})  # before anything moves
        for number, (parent, last) in enumerate(opened):
            try:
                os.rename(last, f"{number}-{last}", src_dir_fd=parent, dst_dir_fd=container)
            except OSError as error:
                words = f"{number} of {len(opened)} are in the trash ({name}), {found[number]} is not: {error.strerror}"
                raise OwnerCallFailed("failed", words) from error
            trash.sync(parent)
    finally:
        os.close(container)
    return name


def _refuse_strange(parent: int, name: str, path: str) -> None:
    """Raise PathRefused unless it is a plain file or directory of this uid's own."""
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if status.st_uid != os.geteuid():
        raise PathRefused("not_yours", f"{path} belongs to uid {status.st_uid}")
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise PathRefused("not_plain", f"{path} is neither a file nor a directory")
