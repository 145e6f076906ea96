"""The real programs of the vendors, of pinned versions and of the newest, each in a directory of its own.

`python -m tests.vendors.programs [pinned]` installs what is missing below $VENDORS by npm, and writes down what is
there and what could not be had. Scripts of packages run as the user without rights that later runs the programs.
"""

import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

DIRECTORY = Path(os.environ.get("VENDORS", f"/tmp/agent-watchdog-vendors-{os.geteuid()}"))
AS_USER = ("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--") if os.geteuid() == 0 else ()
PINNED, NEWEST = "pinned", "newest"
_URL = re.compile(r"\w+://\S+")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
# Where Debian's node is too old for a program, it has this one beside it.
_OWN_NODE = f"node-linux-{'arm64' if platform.machine() == 'aarch64' else 'x64'}"
_OWN_NODE_VERSION = "20.8.0"
_SECONDS = 900  # for one package: 400 MB


@dataclass(frozen=True)
class Program:
    """One vendor's. `pinned`: the version that the rows were written for."""

    vendor: str
    title: str
    package: str
    pinned: str
    node: int = 0  # the oldest that its script runs on


PROGRAMS = {
    one.vendor: one
    for one in (
        Program("claude", "Claude Code", "@anthropic-ai/claude-code", "2.1.332"),
        Program("codex", "Codex", "@openai/codex", "0.171.0"),
        Program("gemini", "Gemini CLI", "@google/gemini-cli", "0.61.0", node=20),
        Program("opencode", "opencode", "opencode-ai", "1.18.33"),
    )
}


@dataclass(frozen=True)
class Version:
    """One version of one program, and why it is tried; `lacks`: why it is not there."""

    vendor: str
    number: str
    why: tuple[str, ...]
    lacks: str = ""

    @property
    def path(self) -> str:
        """The directories of its command, and of a node of its own."""
        return _path(_home(self.vendor, self.number))

    @property
    def told(self) -> str:
        return f"{self.number} ({', '.join(self.why)})"


def _home(vendor: str, number: str) -> Path:
    return DIRECTORY / f"{vendor}-{number}"


def _path(home: Path) -> str:
    return f"{home}/node_modules/.bin:{home}/node_modules/{_OWN_NODE}/bin"


def versions() -> list[Version]:
    """What the last installation found, by program; without one only the pinned ones are known, and not there."""
    try:
        rows = json.loads((DIRECTORY / "versions.json").read_text())
    except FileNotFoundError:
        rows = [
            {"vendor": one.vendor, "number": one.pinned, "why": [PINNED], "lacks": "not installed: make vendors"}
            for one in PROGRAMS.values()
        ]
    return [Version(row["vendor"], row["number"], tuple(row["why"]), row["lacks"]) for row in rows]


def install(wanted: tuple[str, ...]) -> list[Version]:
    """Install what is not there yet; each version that is wanted, also one that could not be had."""
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    if os.stat(DIRECTORY).st_uid != os.geteuid():
        sys.exit(f"{DIRECTORY} is somebody else's; name another in $VENDORS")
    found = []
    for program in PROGRAMS.values():
        numbers = {program.pinned: [PINNED]}
        if NEWEST in wanted:
            newest = _npm("view", program.package, "version")
            number = newest.stdout.strip()
            if newest.returncode == 0 and _VERSION.fullmatch(number):
                numbers.setdefault(number, []).append(NEWEST)
            else:
                numbers["?"] = [NEWEST]
        for number, why in numbers.items():
            lacks = "npm does not say which it is" if number == "?" else _install(program, number)
            found.append(Version(program.vendor, number, tuple(why), lacks))
    rows = [{"vendor": v.vendor, "number": v.number, "why": v.why, "lacks": v.lacks} for v in found]
    (DIRECTORY / "versions.json").write_text(json.dumps(rows, indent=1))
    return found


def _install(program: Program, number: str) -> str:
    """Why that version cannot be had; empty: it is there and starts."""
    home = _home(program.vendor, number)
    if not _lacks(program, number):
        return ""
    home.mkdir(exist_ok=True)
    done = _npm(
        *("install", "--prefix", str(home), "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"),
        f"{program.package}@{number}",
        *([f"{_OWN_NODE}@{_OWN_NODE_VERSION}"] if _node() < program.node else []),
    )
    if done.returncode:
        said = _URL.sub("its registry", " ".join(done.stderr.split()))
        return f"npm ended with {done.returncode}: {said[:200]}"
    if AS_USER:
        subprocess.run(["chown", "-R", "65534:65534", str(home)], check=True)
    with _home_of_user() as environ:
        _npm("rebuild", "--prefix", str(home), as_user=AS_USER, environ=environ)
    return _lacks(program, number)


def _lacks(program: Program, number: str) -> str:
    """Why it does not start, as a user without rights; empty: it says that it is that version."""
    home = _home(program.vendor, number)
    command = [str(home / "node_modules/.bin" / program.vendor), "--version"]
    with _home_of_user() as environ:
        environ["PATH"] = f"{_path(home)}:{environ['PATH']}"
        try:
            done = subprocess.run([*AS_USER, *command], env=environ, capture_output=True, text=True, timeout=120)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"it does not start: {error}"
    said = " ".join(f"{done.stdout} {done.stderr}".split())[:200]
    return "" if done.returncode == 0 and number in done.stdout else f"it ends with {done.returncode}: {said}"


def _node() -> int:
    """The first number of this machine's node."""
    try:
        said = subprocess.run(["node", "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return int(said.removeprefix("v").partition(".")[0] or 0)


@contextmanager
def _home_of_user() -> Iterator[dict[str, str]]:
    """The environment of a user with an empty home directory."""
    with tempfile.TemporaryDirectory(prefix="aw-") as home:
        os.chmod(home, 0o777)
        yield {"PATH": os.environ["PATH"], "HOME": home}


def _npm(
    *words: str, as_user: tuple[str, ...] = (), environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [*as_user, "npm", *words]
    try:
        return subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(words, 1, "", str(error))


if __name__ == "__main__":
    for one in install((PINNED,) if PINNED in sys.argv[1:] else (PINNED, NEWEST)):
        print(f"{PROGRAMS[one.vendor].title} {one.told}: {one.lacks or 'is there'}")
