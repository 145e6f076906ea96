"""`install-hooks`: have a vendor's program report its sessions; shows a diff, and keeps everything else in the file."""

import argparse
import contextlib
import difflib
import os
import re
import stat
import sys

from watchdog.cli.output import clean, say, say_json
from watchdog.cli.vendor_settings import FILES, HookFile, command_for
from watchdog.cli.verb import Verbs, add_verb
from watchdog.errors import BadRequest, ConfigError, DaemonBusy

_HELP = """\
Have Claude Code, Codex, Gemini CLI or opencode call `agent-watchdog beat --from VENDOR` at the events of a session:
it then sends beats, declares its tools, reports when it waits for you or is idle, and obeys `stop`. The program itself
is not changed.

    agent-watchdog install-hooks claude --dry-run     # what would change
    agent-watchdog install-hooks claude
    agent-watchdog install-hooks claude --uninstall

Only for you: the file is below your home (or where CLAUDE_CONFIG_DIR, CODEX_HOME, GEMINI_CLI_HOME, XDG_CONFIG_HOME
point). Your other hooks stay. A file that cannot be parsed is left alone. Running this again changes nothing.
"""
_LARGEST = 8 << 20  # bytes


def add_verbs(verbs: Verbs) -> None:
    """Add the parser of `install-hooks`."""
    parser = add_verb(verbs, "install-hooks", "have a vendor's program beat by its own hooks", _HELP)
    parser.add_argument("vendor", choices=sorted(FILES), metavar="VENDOR", help=f"one of {', '.join(sorted(FILES))}")
    parser.add_argument("--uninstall", action="store_true", help="take them out again, and nothing else")
    parser.add_argument("--dry-run", action="store_true", help="only show what would change")
    parser.set_defaults(call=install_hooks)


def install_hooks(arguments: argparse.Namespace) -> int:
    """Show the changes, then make them. Raises ConfigError for a file that cannot be used."""
    file = FILES[arguments.vendor]
    named = file.path(os.environ)
    path = os.path.realpath(named)  # a settings file that is a link stays one
    for place in (named, path):
        _refuse_foreign(place)
    before, status = _read(path)
    try:
        after = file.removed(before) if arguments.uninstall else file.installed(before, _command(file))
    except BadRequest as error:
        raise ConfigError([f"{path}: {error}; nothing was changed"]) from None
    done = "unchanged" if after == before else "uninstalled" if arguments.uninstall else "installed"
    diff = _diff(before, after, path)
    notes = list(file.notes) if done == "installed" else []
    if os.geteuid() == 0 and done == "installed":
        notes.append(f"These are root's own hooks; every other user of {file.vendor} here runs this for themselves.")
    if re.search(r'"disableAllHooks"\s*:\s*true', after or ""):
        notes.append("disableAllHooks is set there: no hook runs.")
    if done != "unchanged" and not arguments.dry_run:
        _write(path, before, after, status)
    if arguments.json:
        told = {"vendor": file.vendor, "file": path, "action": done, "dry_run": arguments.dry_run}
        say_json({**told, "diff": diff, "notes": notes})
        return 0
    sys.stdout.write("".join(clean(line) + "\n" for line in diff.splitlines()))
    say(f"{clean(path)}: {'would be ' if arguments.dry_run and done != 'unchanged' else ''}{done}")
    for note in notes:
        say(note)
    return 0


def _command(file: HookFile) -> str:
    """The hook's command: ourselves, by the path used for this call (a link survives an update)."""
    own = os.path.abspath(sys.argv[0])
    if os.path.basename(own) != "agent-watchdog":
        own = os.path.join(os.path.dirname(sys.executable), "agent-watchdog")
    return command_for(file.vendor, own)


def _refuse_foreign(path: str) -> None:
    """Raise ConfigError if another user owns a directory or link on the path.

    With a user's HOME (`sudo -E`) root would write to wherever that user's links lead.
    """
    parts = path.split("/")
    for place in ("/".join(parts[:number]) or "/" for number in range(1, len(parts) + 1)):
        with contextlib.suppress(FileNotFoundError):
            found = os.lstat(place)
            if found.st_uid not in (0, os.geteuid()):
                why = f"{place} belongs to uid {found.st_uid}, who could redirect it; each user installs their own"
                raise ConfigError([f"{path}: {why} hooks (is HOME yours?)"])


def _read(path: str) -> tuple[str | None, os.stat_result | None]:
    """The file's text, None if it does not exist. Raises ConfigError if it is not ours to change."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None, None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError([f"{path}: is not a regular file"])
        if status.st_uid != os.geteuid():
            raise ConfigError([f"{path}: belongs to uid {status.st_uid}; each user installs their own hooks"])
        with open(descriptor, "rb", closefd=False) as file:
            content = file.read(_LARGEST + 1)
    finally:
        os.close(descriptor)
    if len(content) > _LARGEST:
        raise ConfigError([f"{path}: is larger than {_LARGEST} bytes"])
    try:
        return content.decode("utf-8"), status
    except UnicodeDecodeError as error:
        raise ConfigError([f"{path}: is not UTF-8 (byte {error.start}); nothing was changed"]) from None


def _diff(before: str | None, after: str | None, path: str) -> str:
    names = ("/dev/null" if before is None else path, "/dev/null" if after is None else path)
    lines = ((before or "").splitlines(), (after or "").splitlines())
    return "\n".join(difflib.unified_diff(*lines, *names, lineterm=""))


def _keep_group(descriptor: int, status: os.stat_result) -> int:
    """Give the new file the former one's group; return its mode. A group that we are not in gets no access."""
    mode = stat.S_IMODE(status.st_mode)
    try:
        os.fchown(descriptor, -1, status.st_gid)
    except PermissionError:
        return mode & ~stat.S_IRWXG
    return mode


def _write(path: str, before: str | None, after: str | None, status: os.stat_result | None) -> None:
    """Replace the file in one step, keeping mode and group; remove it if only our hooks were in it.

    Raises DaemonBusy ("try again") if it changed since it was read, ConfigError if it cannot be written.
    """
    directory = os.path.dirname(path)
    temporary = f"{path}.{os.getpid()}.new"
    try:
        os.makedirs(directory, 0o700, exist_ok=True)
        if after is not None:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(after.encode("utf-8"))
                if status is not None:
                    os.fchmod(descriptor, _keep_group(descriptor, status))
                file.flush()
                os.fsync(descriptor)
        if _read(path)[0] != before:
            raise DaemonBusy(f"{path} was changed by another process meanwhile; try again")
        if after is None:
            os.unlink(path)
        else:
            os.rename(temporary, path)
    except OSError as error:
        raise ConfigError([f"{path}: cannot be written: {error.strerror}"]) from None
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
