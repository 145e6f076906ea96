"""What git ignores in a worktree: what can be made again, and what is a person's work, such as `.env` or a database.

`DIRECTORIES` and `FILES` are the one list of what can be made again (config/doc/cleanup.md), beside what an
operator adds by `cleanup.rebuildable` and every directory that says so itself by a CACHEDIR.TAG
(bford.info/cachedir). Everything else is work: git does not have it, and perhaps there is no other copy. A link, an
empty file and an empty directory hold nothing. A file that lies in the main checkout under the same name, byte by
byte, is a copy.

It only looks.
"""

import fnmatch
import json
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from watchdog.owner import paths

_BUILD = ("package.json", "pyproject.toml", "setup.py", "CMakeLists.txt", "Makefile", "meson.build", "build.gradle*")
# Name of an ignored directory -> what shows that it is what its name says: a file beside it, or (`/`) in it; () none.
DIRECTORIES: dict[str, tuple[str, ...]] = {
    "node_modules": (),
    "bower_components": (),
    "__pycache__": (),
    ".pytest_cache": (),
    ".mypy_cache": (),
    ".ruff_cache": (),
    ".hypothesis": (),
    ".tox": (),
    ".nox": (),
    ".eggs": (),
    "*.egg-info": (),
    ".venv": ("/pyvenv.cfg",),
    "venv": ("/pyvenv.cfg",),
    "env": ("/pyvenv.cfg",),
    "htmlcov": (),
    ".nyc_output": (),
    ".next": (),
    ".nuxt": (),
    ".svelte-kit": (),
    ".astro": (),
    ".angular": (),
    ".turbo": (),
    ".parcel-cache": (),
    ".vite": (),
    ".cache": (),
    ".gradle": (),
    ".dart_tool": (),
    ".stack-work": (),
    "dist-newstyle": (),
    "zig-cache": (),
    ".zig-cache": (),
    "zig-out": (),
    "elm-stuff": (),
    "_build": ("mix.exs", "dune-project", "conf.py", "Makefile"),
    "CMakeFiles": (),
    "cmake-build-*": ("CMakeLists.txt",),
    "target": ("Cargo.toml", "pom.xml", "build.sbt"),
    "obj": ("*.csproj", "*.fsproj", "*.vbproj"),
    ".terraform": ("*.tf",),
    "build": _BUILD,
    "dist": _BUILD,
    "coverage": ("package.json",),
}
FILES = (
    *("*.pyc", "*.pyo", "*.o", "*.obj", "*.a", "*.so", "*.dylib", "*.class", "*.gcda", "*.gcno", "*.tsbuildinfo"),
    *(".coverage", ".coverage.*", "coverage.xml", "lcov.info", ".eslintcache", ".stylelintcache"),
    *(".DS_Store", "Thumbs.db", "desktop.ini", "npm-debug.log*", "yarn-debug.log*", "yarn-error.log*"),
)
TAG, SIGNATURE = "CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55"
ROOM = 12_000  # bytes of names of one kind in a container's record


@dataclass(slots=True)
class Ignored:
    """What git ignores in one tree, by path below it. `work`: nothing else has it, as far as is known."""

    work: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)  # of what lies in the main checkout
    rebuildable: list[str] = field(default_factory=list)  # directories alone

    def bounded(self) -> "Ignored":
        """As much of it as a record has room for; a copy that is not recorded is work."""
        copies, rest = _within(self.copies)
        work, _ = _within([*self.work, *rest])
        return Ignored(work, copies, _within(self.rebuildable)[0])

    def told(self) -> str:
        """The first names of the work."""
        return told(self.work)


def told(names: Sequence[str]) -> str:
    """The first few names, in words."""
    first = ", ".join(map(repr, names[:5]))
    return f"{first} and {len(names) - 5} more" if len(names) > 5 else first


def _within(names: Sequence[str]) -> tuple[list[str], list[str]]:
    used = 0
    for number, name in enumerate(names):
        used += len(json.dumps(name)) + 4
        if used > ROOM:
            return list(names[:number]), list(names[number:])
    return list(names), []


def look(top: str, known: Collection[str], main: str | None, more: Sequence[str] = ()) -> Ignored:
    """What lies below `top` beside the paths that are `known` to git, tracked or untracked.

    `main`: the main checkout, where copies may lie; `more`: further names of what can be made again. Raises OSError.
    """
    found, above = Ignored(), {os.path.dirname(path) for path in known}
    for path in list(above):
        while path := os.path.dirname(path):
            above.add(path)
    for place, names, files in paths.below(top, onerror=_raise):
        below = os.path.relpath(place, top)
        siblings = [*names, *files]
        for name in list(names):
            path = os.path.normpath(os.path.join(below, name))
            if os.path.islink(os.path.join(place, name)):
                names.remove(name)
            elif path not in above and _is_rebuildable(place, name, siblings, more):
                found.rebuildable.append(path)
                names.remove(name)
        for name in files:
            path = os.path.normpath(os.path.join(below, name))
            if path in known or path == ".git" or _fits(name, (*FILES, *more)):
                continue
            status = os.lstat(os.path.join(place, name))
            if stat.S_ISREG(status.st_mode) and status.st_size:
                (
                    found.copies if main and same(os.path.join(place, name), os.path.join(main, path)) else found.work
                ).append(path)
    found.work.sort()
    return found


def main_checkout(common: str) -> str | None:
    """The main checkout of a repository, where it lies as usual."""
    top, name = os.path.split(common)
    return top if name == ".git" else None


def same(one: str, other: str) -> bool:
    """Whether both are regular files with the same bytes; read through no link at their end."""
    try:
        fds = []
        try:
            for path in (one, other):
                fds.append(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
            first, second = (os.fstat(fd) for fd in fds)
            if not (stat.S_ISREG(first.st_mode) and stat.S_ISREG(second.st_mode)) or first.st_size != second.st_size:
                return False
            while True:
                data, others = (os.read(fd, 1 << 16) for fd in fds)
                if data != others:
                    return False
                if not data:
                    return not os.path.samestat(first, second)  # one file by two names is no copy
        finally:
            for fd in fds:
                os.close(fd)
    except OSError:
        return False


def _is_rebuildable(place: str, name: str, siblings: Collection[str], more: Sequence[str]) -> bool:
    if _fits(name, more) or _is_tagged(os.path.join(place, name)):
        return True
    for pattern, shown_by in DIRECTORIES.items():
        if fnmatch.fnmatchcase(name, pattern) and (
            not shown_by or any(_shows(place, name, siblings, sign) for sign in shown_by)
        ):
            return True
    return False


def _shows(place: str, name: str, siblings: Collection[str], sign: str) -> bool:
    if sign.startswith("/"):
        return os.path.isfile(os.path.join(place, name) + sign)
    return any(fnmatch.fnmatchcase(sibling, sign) for sibling in siblings)


def _is_tagged(directory: str) -> bool:
    try:
        fd = os.open(os.path.join(directory, TAG), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(fd, len(SIGNATURE)) == SIGNATURE
    except OSError:
        return False
    finally:
        os.close(fd)


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _raise(error: OSError) -> None:
    raise error
