"""The layout of an installation, its manifest of installed files, and how files are written and removed."""

import contextlib
import hashlib
import json
import os
import stat
import tomllib
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent
UNIT = "agent-watchdog.service"


class Refused(Exception):
    """An error shown as one line without a traceback. Nothing was changed except what the message says."""


@dataclass(frozen=True)
class Layout:
    """All paths on the target, without DESTDIR."""

    base: str  # contains the environments, `bin` (a link into the current one) and the manifest
    binaries: str
    config: str
    files: dict[str, str]  # target -> source
    data: tuple[str, ...]  # data of the daemon that stays after an uninstall

    @property
    def manifest(self) -> str:
        """The path of the manifest: the list of installed files."""
        return f"{self.base}/manifest.json"


def host_layout(prefix: str) -> Layout:
    """The host's layout (FHS 3.0): the package in /opt, links to it in PREFIX. PREFIX=/usr is for distributions."""
    lib = "/usr/lib" if prefix == "/usr" else "/etc"  # systemd.unit(5): /etc is the administrator's
    files = {
        f"{lib}/systemd/system/{UNIT}": f"systemd/{UNIT}",
        f"{lib}/sysusers.d/agent-watchdog.conf": "systemd/sysusers.conf",
        f"{lib}/tmpfiles.d/agent-watchdog.conf": "systemd/tmpfiles.conf",  # noqa: S108 a directory of that name
        "/etc/logrotate.d/agent-watchdog": "config/logrotate.conf",
        **_for_shells_and_man(f"{prefix}/share"),
    }
    data = ("/var/lib/agent-watchdog", "/var/log/agent-watchdog")
    return Layout("/opt/agent-watchdog", f"{prefix}/bin", "/etc/agent-watchdog/agent-watchdog.toml", files, data)


def own_layout(home: str) -> Layout:
    """A user's layout below XDG directories; the user unit expects the environment in %h/.local/share."""

    def xdg(name: str, default: str) -> str:
        given = os.environ.get(name, "")
        return given.rstrip("/") if given.startswith("/") else f"{home}/{default}"

    config, data, state = (
        xdg("XDG_CONFIG_HOME", ".config"),
        xdg("XDG_DATA_HOME", ".local/share"),
        xdg("XDG_STATE_HOME", ".local/state"),
    )
    files = {f"{config}/systemd/user/{UNIT}": f"systemd/user/{UNIT}", **_for_shells_and_man(data)}
    return Layout(
        f"{home}/.local/share/agent-watchdog",
        f"{home}/.local/bin",
        f"{config}/agent-watchdog/agent-watchdog.toml",
        files,
        (f"{state}/agent-watchdog",),
    )


def _for_shells_and_man(share: str) -> dict[str, str]:
    pages = ("agent-watchdog.1", "agent-watchdog.toml.5", "agent-watchdog.7", "agent-watchdogd.8")
    documents = ("agents", "cleanup", "clients", "events", "examples", "hosts", "limits", "operating", "security")
    clients = ("agent_watchdog_client.py", "agent-watchdog-client.mjs", "agent-watchdog-client.d.mts")
    return {
        f"{share}/bash-completion/completions/agent-watchdog": "config/completions/agent-watchdog.bash",
        f"{share}/bash-completion/completions/agent-watchdogd": "config/completions/agent-watchdogd.bash",
        f"{share}/zsh/site-functions/_agent-watchdog": "config/completions/agent-watchdog.zsh",
        f"{share}/fish/vendor_completions.d/agent-watchdog.fish": "config/completions/agent-watchdog.fish",
        f"{share}/fish/vendor_completions.d/agent-watchdogd.fish": "config/completions/agent-watchdogd.fish",
        **{f"{share}/man/man{page[-1]}/{page}": f"config/man/{page}" for page in pages},
        **{f"{share}/doc/agent-watchdogd/{name}.md": f"config/doc/{name}.md" for name in documents},
        **{f"{share}/doc/agent-watchdogd/clients/{name}": f"config/clients/{name}" for name in clients},
    }


class Target:
    """The file system to install into (DESTDIR or the real one), and its manifest."""

    def __init__(self, layout: Layout, destdir: str) -> None:
        self.layout = layout
        self.destdir = destdir.rstrip("/")
        self.manifest: dict[str, dict[str, str]] = {"files": {}, "config": {}, "dirs": {}, "about": {}}
        if self.path(layout.manifest).exists():
            self.manifest |= json.loads(self.path(layout.manifest).read_text())

    def path(self, target: str) -> Path:
        """The present path of a target path, with DESTDIR."""
        return Path(self.destdir + target)

    def make_parents(self, target: str) -> None:
        """Create missing directories and record them. Raises Refused if another user could replace one."""
        for parent in reversed(Path(target).parents):
            place = self.path(str(parent))
            refuse_foreign(place, within=self.destdir)
            if not place.is_dir():
                self.manifest["dirs"][str(parent)] = ""  # recorded first: a signal may kill us right after mkdir
                place.mkdir(0o755)

    def put(self, target: str, content: bytes, *, mode: int = 0o644, link: str = "") -> None:
        """Write a file (or a link) by one rename, so that it is never visible half-written."""
        self.make_parents(target)
        place = self.path(target)
        beside = place.with_name(f".{place.name}.{os.getpid()}")
        beside.unlink(missing_ok=True)  # left by a killed install
        if link:
            beside.symlink_to(link)
        else:
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with open(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)
                file.write(content)
        os.replace(beside, place)

    def sum_of(self, target: str) -> str:
        """A file's digest, a link's target, or an empty string if there is nothing."""
        place = self.path(target)
        if place.is_symlink():
            return f"-> {os.readlink(place)}"
        return hashlib.sha256(place.read_bytes()).hexdigest() if place.is_file() else ""

    def save(self) -> None:
        """Write the manifest."""
        self.put(self.layout.manifest, (json.dumps(self.manifest, indent=1) + "\n").encode())

    def remove_directories(self) -> None:
        """Remove the directories that we created, if they are empty."""
        for directory in sorted(self.manifest["dirs"], key=len, reverse=True):
            with contextlib.suppress(OSError):  # not empty, or already gone
                self.path(directory).rmdir()

    def remove(self, target: str) -> None:
        """Remove a file or link, if it exists. Raises Refused like `make_parents`."""
        self.refuse_foreign_parents(target)
        self.path(target).unlink(missing_ok=True)

    def refuse_foreign_parents(self, target: str) -> None:
        """Raises Refused if a parent directory belongs to another user, or could be replaced by one."""
        for parent in reversed(Path(target).parents):
            refuse_foreign(self.path(str(parent)), within=self.destdir)


def refuse_foreign(place: Path, within: str = "") -> None:
    """Raises Refused for a directory, or a link to one, that another user owns or may write to, or that leads outside.

    That user could redirect or replace files that we write there. Directories of root and of our own uid are fine, even
    if they are group-writable (/usr/local is root:staff 2775 on some hosts) or world-writable with the sticky bit
    (/tmp).
    """
    try:
        found = place.lstat()
    except FileNotFoundError:
        return
    if found.st_uid not in _TRUSTED:
        raise Refused(
            f"{place} belongs to uid {found.st_uid}, who could replace what is put there; its owner must be uid 0"
        )
    if stat.S_ISLNK(found.st_mode):
        real = place.resolve()
        if within and not real.is_relative_to(Path(within).resolve()):
            raise Refused(f"{place} is a link that leads out of {within}, to {real}; use a directory")
        for above in (*reversed(real.parents), real):
            if above.is_relative_to(Path(within or "/").resolve()):
                refuse_foreign(above, within)
    elif not stat.S_ISDIR(found.st_mode):
        raise Refused(f"{place} is not a directory")
    elif found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise Refused(
            f"{place} has mode {stat.S_IMODE(found.st_mode):04o}, so other users could replace what is put there"
        )


def _trusted() -> frozenset[int]:
    """Root and our own uid; in a user namespace also the overflow uid of unmapped users (user_namespaces(7))."""
    with open("/proc/self/uid_map") as mapped:
        whole = mapped.read().split() == ["0", "0", "4294967295"]
    return frozenset({0, os.geteuid()} | (set() if whole else {65534}))


_TRUSTED = _trusted()


def version() -> str:
    """The version of this checkout."""
    return str(tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["version"])
