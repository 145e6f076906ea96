"""What lies in the repository, and what is promised about it."""

import importlib
import importlib.metadata
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.manual import everything
from tests.world import wait_for

ROOT = Path(__file__).parent.parent
TOP = {
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "config",
    "pyproject.toml",
    "requirements-dev.lock",
    "requirements.lock",
    "systemd",
    "tests",
    "watchdog",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Where this was written and where packages came from is nobody's business; the parts keep this file out of its own net.
FORBIDDEN = (
    "/wo" + "rk/",
    "/ro" + "ot/",
    "pypi." + "org/simple",
    "files.python" + "hosted",
    "fa" + "cts/",
)


def tracked() -> list[str]:
    """Files under version control; root's clone may be read by somebody else (git calls that dubious)."""
    done = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    if done.returncode != 0:
        pytest.skip("not a clone: git lists no files here")
    return [name for name in done.stdout.split("\0") if name]


def texts() -> Iterator[tuple[str, str]]:
    for name in tracked():
        yield name, (ROOT / name).read_text(encoding="utf-8")


def requirement(line: str) -> str:
    """The normalised name of a requirement (packaging.python.org, name normalization)."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=;~! ]", line)[0]).lower()


def test_the_top_level_is_as_agreed() -> None:
    """A newcomer sees a dozen names, each of which the README names; what else there is begins with a dot."""
    top = {name.split("/")[0] for name in tracked()}

    assert {name for name in top if not name.startswith(".")} == TOP
    assert {name for name in top if name.startswith(".")} == {".ci", ".gitignore", ".pre-commit-config.yaml"}


def test_nothing_tells_where_it_was_written() -> None:
    """No path of a builder's machine and no registry's address in any file."""
    design = re.compile(r"(?<!watchdog/)DESIGN" + r"\.md")  # ours lies in the package; another one is not here
    found = [f"{name}: {word}" for name, text in texts() for word in FORBIDDEN if word in text]
    found += [f"{name}: {word}" for name, text in texts() for word in design.findall(text)]

    assert not found


@pytest.mark.parametrize("lock", ["requirements.lock", "requirements-dev.lock"])
def test_locks_pin_by_hash_and_hold_no_address(lock: str) -> None:
    """pip takes them from whatever index it is configured for, and refuses what is not the same file."""
    lines = (ROOT / lock).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith((" ", "#"))]

    assert pins
    assert all(re.match(r"[a-z0-9._-]+(\[[a-z,]+\])?==[^ ]+( ; [^\\]+)? \\$", pin) for pin in pins), pins
    assert sum("--hash=sha256:" in line for line in lines) >= len(pins)
    assert not [line for line in lines if "://" in line]


def test_every_dependency_has_its_reason() -> None:
    """Each direct one, of an extra too, has a line in the design; and each line is a dependency."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    wanted = {requirement(line) for line in [*PROJECT["dependencies"], *extras]}
    section = (ROOT / "watchdog/DESIGN.md").read_text().split("\n## Dependencies\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| ")][2:]

    assert {row[0].strip() for row in rows} == wanted
    assert all(len(row[1].strip()) > 15 for row in rows)


def test_every_dependency_is_locked() -> None:
    """The lock for running holds the direct dependencies, the one for working the extras too."""
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    for lock, lines in (
        ("requirements.lock", PROJECT["dependencies"]),
        ("requirements-dev.lock", [*PROJECT["dependencies"], *extras]),
    ):
        locked = {requirement(line) for line in (ROOT / lock).read_text().splitlines() if "==" in line}
        assert {requirement(line) for line in lines} <= locked


def needed_by(name: str, known: set[str]) -> set[str]:
    """Every package that one needs here, without the known ones."""
    found: set[str] = set()
    for line in importlib.metadata.requires(name) or []:
        wanted = Requirement(line)
        package = canonicalize_name(wanted.name)
        if package not in known | found and (wanted.marker is None or wanted.marker.evaluate({"extra": ""})):
            found |= {package} | needed_by(package, known | found | {package})
    return found


def test_an_extra_is_installed_with_all_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make install EXTRAS=...` takes exact pins alone: what is not named would be missing."""
    monkeypatch.syspath_prepend(ROOT / "systemd")
    extras = importlib.import_module("environments").EXTRAS
    base = {requirement(line) for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line}

    assert set(extras) == set(PROJECT["optional-dependencies"])
    for names in extras.values():
        for name in names:
            assert needed_by(name, base) <= set(names), name


def test_the_licence_is_the_one_that_is_promised() -> None:
    """MIT, as pyproject.toml says."""
    licence = (ROOT / "LICENSE").read_text()

    assert PROJECT["license"] == "MIT"
    assert licence.startswith("MIT License\n\nCopyright (c) 2026 agent-watchdogd contributors\n")


def test_man_pages_and_completions_are_what_the_programs_know() -> None:
    """Every verb, option and key is in them: they are made from the parsers and the configuration file."""
    stale = [path.name for path, text in everything().items() if path.read_text() != text]

    assert not stale, "make events"


def test_an_installation_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """Not even a directory: nobody would know whose it is."""
    done = subprocess.run(
        ["make", "-C", ROOT, "install", f"DESTDIR={tmp_path}/new", "EXTRAS=nonsense"],
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode != 0
    assert "EXTRAS=nonsense: unknown: nonsense" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_an_installation_that_is_told_to_end_leaves_nothing(tmp_path: Path, number: int) -> None:
    """As soon as it has made something."""
    new = tmp_path / "new"
    installer = subprocess.Popen(
        [sys.executable, "-sB", ROOT / "systemd/install.py", "install"],
        env={**os.environ, "DESTDIR": str(new), "EXTRAS": "", "WHEELS": str(tmp_path / "none")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for((new / "opt/agent-watchdog").is_dir, "it has begun")
    os.kill(installer.pid, number)

    assert installer.wait(60) == 128 + number
    assert list(tmp_path.iterdir()) == []


def test_what_uninstall_says_to_paste_removes_nothing_else(tmp_path: Path) -> None:
    """A path with a space in it is one word: `rm -r` of its halves would take what is somebody's."""
    place = tmp_path / "staged here"
    data = place / "var/lib/agent-watchdog"
    data.mkdir(parents=True)
    manifest = place / "opt/agent-watchdog/manifest.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text('{"files": {"/usr/local/bin/agent-watchdog": ""}}')

    done = subprocess.run(
        ["make", "-C", ROOT, "uninstall", f"DESTDIR={place}"], capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "rm -r" in line)
    assert shlex.split(line.partition(":")[2]) == ["rm", "-r", str(data)]
    assert data.is_dir()
