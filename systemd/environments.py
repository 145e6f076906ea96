"""Wheels, and environments built from them: exactly the files in the lock files, by hash, without network."""

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from places import SOURCE, Refused, Target, version

BUILD = ("hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers")  # to build our own wheel
# The packages that each extra adds to `requirements.lock`, with their dependencies.
EXTRAS = {
    "mcp": (
        *("anyio", "cffi", "click", "cryptography", "h11", "httpcore2", "httpx2", "jsonschema"),
        *("jsonschema-specifications", "mcp", "mcp-types", "opentelemetry-api", "pycparser", "pyjwt"),
        *("python-multipart", "referencing", "rpds-py", "sse-starlette", "starlette", "truststore", "uvicorn"),
    ),
    "postgres": ("psycopg", "psycopg-binary"),
}

LOOK = 5.0  # seconds to read the command lines of all processes; 300 take 0.05 s


def pins(lock: str, names: tuple[str, ...] = ()) -> str:
    """The entries of a lock file, with hashes: all of them, or those with the given names."""
    entries = re.split(r"\n(?=[a-z])", (SOURCE / lock).read_text())
    found = [entry for entry in entries if not names or re.split(r"==|\[", entry)[0] in names]
    return "\n".join(found) + "\n"


def run(*words: str | Path, cwd: Path | None = None) -> None:
    """Run a program that must succeed; its output is shown if it fails."""
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(map(str, words[:6]))} ...: exit {done.returncode}\n{done.stdout}")


class Tools:
    """A temporary environment with pip, which downloads, builds, and installs into other environments."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        run(sys.executable, "-m", "venv", directory / "tools")

    def pip(self, *words: str | Path, into: Path | None = None) -> None:
        """Run pip for this environment, or for another one (which then needs no pip)."""
        python = str(self.directory / "tools/bin/python")
        other = ["--python", str(into / "bin/python")] if into else []
        options = ["--quiet", "--disable-pip-version-check", "--no-input", *other]
        run(python, "-m", "pip", *options, *words, cwd=self.directory)

    def locked(self, text: str) -> list[str | Path]:
        """The options to install exactly these files, by hash."""
        file = Path(tempfile.mkstemp(".lock", dir=self.directory)[1])
        file.write_text(text)
        return ["--require-hashes", "--only-binary", ":all:", "-r", file]

    def download(self, wheels: Path) -> None:
        """Download all wheels for an installation here, and for building our own wheel; then build that one."""
        needed = pins("requirements.lock") + pins(
            "requirements-dev.lock", (*(name for names in EXTRAS.values() for name in names), *BUILD)
        )
        seen: dict[str, str] = {re.split(r"==|\[", entry)[0]: entry for entry in re.split(r"\n(?=[a-z])", needed)}
        self.pip("download", "-d", wheels, *self.locked("\n".join(seen.values())))
        self.build(wheels, wheels)

    def build(self, wheels: Path, into: Path) -> Path:
        """Build our own wheel from this checkout, always again: an old one would be installed unnoticed."""
        offline = ["--no-index", "--find-links", str(wheels)]
        self.pip("install", *offline, *self.locked(pins("requirements-dev.lock", BUILD)))
        for old in into.glob("agent_watchdogd-*.whl"):
            old.unlink()
        self.pip("wheel", "--no-deps", "--no-build-isolation", *offline, "-w", into, SOURCE)
        return next(into.glob("agent_watchdogd-*.whl"))


def build_environment(target: Target, wheels: Path, extras: str) -> str:
    """Create a new environment below `base`, complete and compiled, not in use yet; returns its path on the target."""
    environment = f"{target.layout.base}/env-{version()}-{time.strftime('%Y%m%d%H%M%S')}-{os.getpid()}"
    try:
        _fill(target, environment, wheels, extras)
    except BaseException:
        shutil.rmtree(target.path(environment), ignore_errors=True)
        raise
    return environment


def _fill(target: Target, environment: str, wheels: Path, extras: str) -> None:
    place = target.path(environment)
    with tempfile.TemporaryDirectory(prefix="agent-watchdog-install.") as scratch:
        tools = Tools(Path(scratch))
        if not any(wheels.glob("*.whl")):
            print("no wheels here (make wheels): downloading", flush=True)
            wheels = Path(scratch) / "wheels"
            tools.download(wheels)
        else:
            wheels = own_copy(wheels, Path(scratch) / "wheels")
        ours = tools.build(wheels, Path(scratch))
        run(sys.executable, "-m", "venv", "--without-pip", place)
        offline = ["--no-index", "--find-links", str(wheels), "--no-compile"]
        names = tuple(name for extra in extras.split() for name in EXTRAS[extra])
        more = pins("requirements-dev.lock", names) if names else ""
        tools.pip("install", *offline, *tools.locked(pins("requirements.lock") + more), into=place)
        tools.pip("install", *offline, "--no-deps", ours, into=place)
    # These files contain build paths of the interpreter or the environment, which must not end up in a package.
    for script in (place / "pyvenv.cfg", *(place / "bin").iterdir()):
        if not script.is_symlink():
            script.write_bytes(script.read_bytes().replace(os.fsencode(place), environment.encode()))
    staged = ["-s", target.destdir, "-p", "/"] if target.destdir else []  # the paths in tracebacks
    run(place / "bin/python", "-m", "compileall", "-q", *staged, place / "lib")
    run(place / "bin/python", "-c", "import watchdog.service.main, watchdog.cli.verbs", cwd=place)


def own_copy(wheels: Path, into: Path) -> Path:
    """Copy the wheels to where nobody else can replace one: pip checks the hash, and reopens the file to unpack it.

    The original directory may belong to the user who downloaded them. Anything but regular files is left out.
    """
    into.mkdir(0o700)
    for wheel in wheels.glob("*.whl"):
        descriptor = os.open(wheel, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as found:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                with (into / wheel.name).open("xb") as copy:
                    shutil.copyfileobj(found, copy)
    return into


@dataclass(frozen=True)
class User:
    """A running process that was started from an environment, such as a daemon or an agent's `run`."""

    pid: int
    uid: int
    words: list[str]

    @property
    def is_daemon(self) -> bool:
        """Whether it is a daemon, according to its command line."""
        return len(self.words) > 1 and self.words[1].endswith("/agent-watchdogd")


def users_of(target: Target, environment: str) -> list[User]:
    """The processes that were started from an environment, by their command lines; unreadable ones are skipped.

    A user can make reading their process hang forever (an execve that waits for a user-controlled file system). So each
    process is read in its own thread, with `LOOK` seconds for all together.
    """
    found: list[User] = []
    started = [
        threading.Thread(target=_look, args=(entry, f"{target.path(environment)}/", found), daemon=True)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit()
    ]
    until = time.monotonic() + LOOK
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(max(0.0, until - time.monotonic()))
    return sorted(found, key=lambda user: user.pid)


def _look(entry: Path, beginning: str, found: list[User]) -> None:
    try:
        words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if words[0].startswith(beginning) and not _is_set_id(entry):
            line = re.search(r"^Uid:\s+(\d+)", (entry / "status").read_text(errors="replace"), re.MULTILINE)
            found.append(User(int(entry.name), int(line[1]) if line else -1, words))
    except OSError:
        return  # it has exited


def _is_set_id(entry: Path) -> bool:
    """Whether it is a set-uid program such as sudo, whose command line was chosen by another user."""
    try:
        return bool((entry / "exe").stat().st_mode & (stat.S_ISUID | stat.S_ISGID))
    except PermissionError:  # another user's process, and we are not root
        return False


def drop_environments(target: Target) -> None:
    """Remove unused environments: all but the current one and those that a process still runs from."""
    base = target.path(target.layout.base)
    current = os.path.dirname(os.readlink(base / "bin"))
    for old in base.glob("env-*"):
        if old.name == current:
            continue
        if users := users_of(target, f"{target.layout.base}/{old.name}"):
            pids = ", ".join(str(user.pid) for user in users)
            print(f"{old} stays until the next install, as {pids} still run{'s' if len(users) == 1 else ''} from it")
        else:
            shutil.rmtree(old)
