"""A booted throw-away systemd: one machine per test file, driven from outside.

The machine is a container on an overlay of this one's root: the checkout and its environment are seen inside, what is
written inside is gone afterwards, /tmp and /run are fresh, no network. Tests run outside and ask it to run commands.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.world import wait_for

ROOT = Path(__file__).parents[2]
BOOT = Path(__file__).with_name("with-systemd.sh")
NOT_BOOTED = 69  # sysexits.h, EX_UNAVAILABLE
# What nspawn mounts anew: a checkout there is bound into the machine.
FRESH_INSIDE = ("/tmp/", "/run/", "/dev/shm/")


class Machine:
    """One booted systemd. `root` is its file system, seen from outside."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.root = Path(f"/proc/{leader}/root")

    def run(
        self,
        *argv: str | Path,
        user: str | int | None = None,
        environ: Mapping[str, str] | None = None,
        properties: tuple[str, ...] = (),
        check: bool = True,
        timeout: float = 60,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, in a service of its own, as root or as `user` (with that one's user manager)."""
        options = ("--wait", "--pipe", "--collect")
        done = self._transient(options, argv, user, environ, properties, timeout)
        assert not check or done.returncode == 0, f"{argv}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def start(
        self,
        unit: str,
        *argv: str | Path,
        user: str | int | None = None,
        environ: Mapping[str, str] | None = None,
        properties: tuple[str, ...] = (),
    ) -> None:
        """Start a command inside and let it live, as the service `unit`."""
        done = self._transient((f"--unit={unit}",), argv, user, environ, properties, 60)
        assert done.returncode == 0, f"{argv}: {done.stderr}"

    def _transient(
        self,
        options: tuple[str, ...],
        argv: tuple[str | Path, ...],
        user: str | int | None,
        environ: Mapping[str, str] | None,
        properties: tuple[str, ...],
        timeout: float,
    ) -> subprocess.CompletedProcess[str]:
        told = dict(environ or {})
        if user is not None:
            options += (f"--uid={user}",)
            uid = self.uid(user)
            bus = f"/run/user/{uid}"
            told = {"XDG_RUNTIME_DIR": bus, "DBUS_SESSION_BUS_ADDRESS": f"unix:path={bus}/bus", **told}
        options += tuple(f"--setenv={key}={value}" for key, value in told.items())
        options += tuple(f"--property={word}" for word in properties)
        return self.enter("systemd-run", "--quiet", "--service-type=exec", *options, "--", *argv, timeout=timeout)

    def enter(self, *argv: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command of systemd's own inside. It stays in our cgroup: what is tested belongs into `run`."""
        return subprocess.run(
            ["nsenter", "-t", str(self.leader), "-a", *map(str, argv)],
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )

    def systemctl(self, *words: str, check: bool = True) -> str:
        """`systemctl` of the system manager; its output."""
        done = self.enter("systemctl", *words)
        assert not check or done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def show(self, unit: str, *properties: str) -> dict[str, str]:
        """Properties of a unit."""
        lines = self.systemctl("show", unit, *(f"--property={name}" for name in properties)).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def journal(self, *matches: str) -> list[dict[str, Any]]:
        """The journal's entries that fit, oldest first."""
        done = self.enter("journalctl", "--output=json", "--all", "--no-pager", *matches)
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def events(self, unit: str = "agent-watchdog.service", *, field: str = "_SYSTEMD_UNIT") -> list[dict[str, Any]]:
        """What a daemon logged, oldest first: the fields of each event as they were before journald made them text."""
        entries = self.journal(f"{field}={unit}")
        return [{key.lower(): _value(value) for key, value in e.items()} for e in entries if "EVENT" in e]

    def wait_event(self, event: str, seconds: float = 90.0, after: int = 0, **fields: Any) -> dict[str, Any]:
        """The first such event of the system's daemon with those fields, behind the first `after` ones."""

        def look() -> dict[str, Any] | None:
            for entry in self.events()[after:]:
                if entry["event"] == event and all(entry.get(key) == value for key, value in fields.items()):
                    return entry
            return None

        try:
            return wait_for(look, f"{event} {fields}", seconds)
        except AssertionError as error:
            said = self.enter("journalctl", "--no-pager", "--lines=40", "--unit=agent-watchdog").stdout
            raise AssertionError(f"{error}\n{said}") from None

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """A file inside, with its directories."""
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def uid(self, user: str | int) -> int:
        """The uid of a user inside."""
        if isinstance(user, int):
            return user
        rows = (line.split(":") for line in (self.root / "etc/passwd").read_text().splitlines())
        return next(int(row[2]) for row in rows if row[0] == user)

    def add_user(self, name: str, *, linger: bool = False) -> int:
        """A normal user with a home, and with a user manager where `linger`. Returns the uid."""
        done = self.enter("useradd", "--create-home", "--shell=/bin/bash", name)
        assert done.returncode == 0, done.stderr
        uid = self.uid(name)
        if linger:
            done = self.enter("loginctl", "enable-linger", name)
            assert done.returncode == 0, done.stderr
            wait_for(lambda: (self.root / f"run/user/{uid}/bus").exists(), f"the user manager of {name}")
        return uid


def _value(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


@contextmanager
def booted() -> Iterator[Machine]:
    """Boot one, and power it off at the end. Skips the test where that cannot be done (a failure in CI)."""
    if os.geteuid() != 0:
        pytest.skip("needs root: only root boots a systemd")
    if shutil.which("systemd-nspawn") is None:
        pytest.skip("systemd-nspawn is not installed (Debian: apt install systemd-container dbus libpam-systemd)")
    environ = dict(os.environ)
    if str(ROOT).startswith(FRESH_INSIDE):
        environ["NSPAWN_ARGS"] = f"{environ.get('NSPAWN_ARGS', '')} --bind-ro={ROOT}".strip()
    container = subprocess.Popen(
        # A test run that is killed takes its machine along.
        ["setpriv", "--pdeathsig", "TERM", BOOT, "sleep", "infinity"],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environ,
    )
    assert container.stderr is not None
    with container:
        said = ""
        for line in container.stderr:
            said += line
            if found := re.search(r"^booted: .* leader (\d+)", line):
                break
        else:
            code = container.wait()
            assert code == NOT_BOOTED, f"exit {code}\n{said}"
            pytest.skip(f"a systemd could not be booted: {said}")
        machine = Machine(int(found[1]))
        try:
            wait_for(lambda: "active" in machine.systemctl("is-active", "wdtest-payload", check=False), "the payload")
            yield machine
        finally:
            machine.systemctl("stop", "wdtest-payload", check=False)  # at its end the script powers off
            container.wait(60)
