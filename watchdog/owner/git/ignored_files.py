"""Classifies ignored files in a worktree: rebuildable ones, and a person's work, such as `.env` or a database.

`DIRECTORIES` and `FILES` list what is rebuildable (config/doc/cleanup.md); an operator adds to them by
`cleanup.rebuildable`, and directories with a CACHEDIR.TAG (bford.info/cachedir) count too. Everything else is work: git
does not have it, and there may be no other copy. Links, empty files and empty directories hold nothing. A file with the
same name and content as in the main checkout is a copy.

Read-only.
"""

import fnmatch
import json
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from watchdog.owner import paths

_BUILD = ("package.json", "pyproject.toml", "setup.py", "CMakeLists.txt", "Makefile", "meson.build", "build.gradle*")
# Name of an ignored directory -> files that confirm its purpose: next to it, or (`/`) in it; (): none needed.
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
ROOM = 12_000  # bytes of names per kind in a container's record


@dataclass(slots=True)
class Ignored:
    """The ignored files of one tree, by relative path. `work`: there is no other known copy."""

    work: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)  # copies of files in the main checkout
    rebuildable: list[str] = field(default_factory=list)  # only directories

    def bounded(self) -> "Ignored":
        """As much as fits into a record; a copy that does not fit counts as work."""
        copies, rest = _within(self.copies)
        work, _ = _within([*self.work, *rest])
        return Ignored(work, copies, _within(self.rebuildable)[0])

    def told(self) -> str:
        """The first names of the work."""
        return told(self.work)


def told(names: Sequence[str]) -> str:
    """The first few names, as text."""
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
    """Classify the files below `top` except the paths `known` to git, tracked or untracked.

    `main`: the main checkout, which may have copies; `more`: further rebuildable names. Raises OSError.
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
    """The main checkout of a repository with the usual layout; None for another layout."""
    top, name = os.path.split(common)
    return top if name == ".git" else None


def same(one: str, other: str) -> bool:
    """Whether both are regular files, not links, with the same content."""
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
                    return not os.path.samestat(first, second)  # one file with two names is not a copy
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
