"""Wheels, and environments made of them: exactly the files that the locks name, by hash, without network."""

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

BUILD = ("hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers")  # what makes our own wheel
# What each adds to `requirements.lock`, with all that it needs itself.
EXTRAS = {
    "mcp": (
        *("anyio", "cffi", "click", "cryptography", "h11", "httpcore2", "httpx2", "jsonschema"),
        *("jsonschema-specifications", "mcp", "mcp-types", "opentelemetry-api", "pycparser", "pyjwt"),
        *("python-multipart", "referencing", "rpds-py", "sse-starlette", "starlette", "truststore", "uvicorn"),
    ),
    "postgres": ("psycopg", "psycopg-binary"),
}

LOOK = 5.0  # seconds for what all processes say of themselves; 300 take 0.05


def pins(lock: str, names: tuple[str, ...] = ()) -> str:
    """The entries of a lock file, with hashes; all, or of those names."""
    entries = re.split(r"\n(?=[a-z])", (SOURCE / lock).read_text())
    found = [entry for entry in entries if not names or re.split(r"==|\[", entry)[0] in names]
    return "\n".join(found) + "\n"


def run(*words: str | Path, cwd: Path | None = None) -> None:
    """A program that must succeed; what it says is shown when it does not."""
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        raise Refused(f"{' '.join(map(str, words[:6]))} ...: exit {done.returncode}\n{done.stdout}")


class Tools:
    """A throw-away environment with pip, which downloads, builds and installs for others."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        run(sys.executable, "-m", "venv", directory / "tools")

    def pip(self, *words: str | Path, into: Path | None = None) -> None:
        """pip, for itself or for another environment (which then needs none)."""
        python = str(self.directory / "tools/bin/python")
        other = ["--python", str(into / "bin/python")] if into else []
        options = ["--quiet", "--disable-pip-version-check", "--no-input", *other]
        run(python, "-m", "pip", *options, *words, cwd=self.directory)

    def locked(self, text: str) -> list[str | Path]:
        """The options for exactly these files, by hash."""
        file = Path(tempfile.mkstemp(".lock", dir=self.directory)[1])
        file.write_text(text)
        return ["--require-hashes", "--only-binary", ":all:", "-r", file]

    def download(self, wheels: Path) -> None:
        """All that an installation here needs, and what builds our own wheel; then that one, too."""
        needed = pins("requirements.lock") + pins(
            "requirements-dev.lock", (*(name for names in EXTRAS.values() for name in names), *BUILD)
        )
        seen: dict[str, str] = {re.split(r"==|\[", entry)[0]: entry for entry in re.split(r"\n(?=[a-z])", needed)}
        self.pip("download", "-d", wheels, *self.locked("\n".join(seen.values())))
        self.build(wheels, wheels)

    def build(self, wheels: Path, into: Path) -> Path:
        """Our own wheel from this checkout, always anew: one of yesterday would be installed without a word."""
        offline = ["--no-index", "--find-links", str(wheels)]
        self.pip("install", *offline, *self.locked(pins("requirements-dev.lock", BUILD)))
        for old in into.glob("agent_watchdogd-*.whl"):
            old.unlink()
        self.pip("wheel", "--no-deps", "--no-build-isolation", *offline, "-w", into, SOURCE)
        return next(into.glob("agent_watchdogd-*.whl"))


def build_environment(target: Target, wheels: Path, extras: str) -> str:
    """A new one below `base`, complete and compiled, not in use yet; its path on the target."""
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
    # They name the interpreter, or the environment, by its path while building: a package would carry the builder's.
    for script in (place / "pyvenv.cfg", *(place / "bin").iterdir()):
        if not script.is_symlink():
            script.write_bytes(script.read_bytes().replace(os.fsencode(place), environment.encode()))
    staged = ["-s", target.destdir, "-p", "/"] if target.destdir else []  # what tracebacks will name
    run(place / "bin/python", "-m", "compileall", "-q", *staged, place / "lib")
    run(place / "bin/python", "-c", "import watchdog.service.main, watchdog.cli.verbs", cwd=place)


def own_copy(wheels: Path, into: Path) -> Path:
    """The wheels where nobody else can exchange one: pip compares its hash, and opens it again later to unpack it.

    They may lie in a directory of who downloaded them. What is no plain file is left out.
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
    """A living process that was started from an environment. The `run` beside an agent is one, too."""

    pid: int
    uid: int
    words: list[str]

    @property
    def is_daemon(self) -> bool:
        """As far as its own words say."""
        return len(self.words) > 1 and self.words[1].endswith("/agent-watchdogd")


def users_of(target: Target, environment: str) -> list[User]:
    """Who was started from there, by what each process says of itself; one that cannot be read is none.

    A user can make a read of its process hang for ever (an execve that waits for a file system of its own). So each
    process has a thread, and all together `LOOK` seconds.
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
        return  # it has ended


def _is_set_id(entry: Path) -> bool:
    """Whether its words are those of somebody who may be nobody there: of who started a set-uid program (sudo)."""
    try:
        return bool((entry / "exe").stat().st_mode & (stat.S_ISUID | stat.S_ISGID))
    except PermissionError:  # another user's, and we are not root
        return False


def drop_environments(target: Target) -> None:
    """Remove those that are not in use: not the current one, and nobody's who still runs from it."""
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
