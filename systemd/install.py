"""`make install | uninstall | wheels`: installs an environment of our own and the files that belong to it.

Root, and packagers who use DESTDIR, get the host's layout; other users get a layout below their XDG directories. A new
environment is built beside the existing one and activated by one rename(2), so an interrupted install leaves a working
one. `manifest.json` lists the installed files: upgrades and uninstalls touch nothing else.
"""

import contextlib
import fcntl
import hashlib
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from checks import room, tell_who_runs, would_start
from environments import EXTRAS, Tools, build_environment, drop_environments, users_of
from places import SOURCE, UNIT, Refused, Target, host_layout, own_layout, refuse_foreign, version

COMMANDS = ("agent-watchdog", "agent-watchdogd")


def booted() -> bool:
    """Whether systemd is this host's init (sd_booted(3))."""
    return os.path.isdir("/run/systemd/system")


class Manager:
    """systemctl for the host or for one user; does nothing with DESTDIR or without a running systemd."""

    def __init__(self, target: Target) -> None:
        self.scope = [] if os.geteuid() == 0 else ["--user"]
        self.present = not target.destdir and self._runs()

    def _runs(self) -> bool:
        if shutil.which("systemctl") is None:
            return False
        if os.geteuid() == 0:
            return booted()
        return self._ask("list-units").returncode == 0

    def _ask(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["systemctl", *self.scope, *words], capture_output=True, text=True, check=False)

    def running(self) -> bool:
        """Whether the service runs, or is being restarted after a failure."""
        state = self._ask("show", "--property=ActiveState", "--value", UNIT).stdout.strip() if self.present else ""
        return state in ("active", "activating", "reloading")

    def main_pid(self) -> int:
        """The pid of the service, or 0."""
        said = self._ask("show", "--property=MainPID", "--value", UNIT).stdout.strip() if self.present else ""
        return int(said) if said.isdigit() else 0

    def do(self, *words: str) -> bool:
        """Run one systemctl command; does nothing without a manager. Returns whether it succeeded."""
        return not self.present or self._ask(*words).returncode == 0

    def last_words(self) -> str:
        """The last log lines of the service."""
        words = ["journalctl", *self.scope, "--quiet", "--output=cat", "--lines=8", f"--unit={UNIT}"]
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def install(target: Target, wheels: Path, extras: str) -> None:
    """Install, or upgrade an existing installation, which may be running."""
    layout, about = target.layout, target.manifest["about"]
    if unknown := set(extras.split()) - EXTRAS.keys():
        raise Refused(f"EXTRAS={extras}: unknown: {', '.join(sorted(unknown))}; there is: {', '.join(EXTRAS)}")
    wanted = extras or about.get("extras", "")
    links = {f"{layout.binaries}/{name}": f"{layout.base}/bin/{name}" for name in COMMANDS}
    contents = {name: (SOURCE / source).read_bytes() for name, source in layout.files.items()}
    new = {name: hashlib.sha256(text).hexdigest() for name, text in contents.items()}
    new |= {name: f"-> {to}" for name, to in links.items()}
    known = target.manifest["files"]
    for name in new.keys() - known.keys():
        if target.sum_of(name) not in ("", new[name]):
            raise Refused(f"{target.path(name)} is there and was not put there by us; move it away first")
    before = target.path(f"{layout.base}/bin")
    if before.exists() and not before.is_symlink():
        raise Refused(f"{before} is there and was not put there by us; move it away first")
    for name in [*new, layout.config]:
        target.refuse_foreign_parents(name)  # before building, which takes minutes
    room(target)
    manager = Manager(target)
    runs, service = manager.running(), manager.main_pid()
    if not target.destdir:
        tell_who_runs(target, service)
    environment = build_environment(target, wheels, wanted)
    try:
        if not target.destdir and target.sum_of(layout.config) != target.manifest["config"].get("sum"):
            would_start(target, environment, service, runs=runs)  # an unedited one is replaced by the shipped one
    except BaseException:
        shutil.rmtree(target.path(environment), ignore_errors=True)
        raise
    former = os.readlink(before) if before.is_symlink() else ""
    about |= {"version": version(), "extras": wanted}
    target.manifest["files"] = {**new, **known}  # correct after a crash in the middle, too
    target.save()
    for name, text in contents.items():
        if target.sum_of(name) not in ("", known.get(name), new[name]):
            os.replace(target.path(name), target.path(f"{name}.edited"))
            print(
                f"{target.path(name)} was edited: your version is kept as {name}.edited (use a drop-in: systemctl edit)"
            )
        target.put(name, text)
    for name, to in links.items():
        target.put(name, b"", link=to)
    for name in known.keys() - new.keys():
        target.remove(name)
    target.manifest["files"] = new
    put_config(target)
    target.put(f"{layout.base}/bin", b"", link=f"{os.path.basename(environment)}/bin")
    target.save()
    if manager.present and os.geteuid() == 0:
        subprocess.run(["systemd-sysusers", *(name for name in new if "/sysusers.d/" in name)], check=False)
    restart(target, manager, former)
    drop_environments(target)
    say_what_next(target, manager, new_here=not known)


def put_config(target: Target) -> None:
    """Install a configuration file: keep an edited one, do not restore a deleted one; a new version goes beside it."""
    config, text = target.layout.config, (SOURCE / "config/agent-watchdog.toml").read_bytes()
    shipped, last, there = hashlib.sha256(text).hexdigest(), target.manifest["config"].get("sum"), target.sum_of(config)
    if there == last or (not there and last is None):
        target.put(config, text, mode=0o640)
        target.remove(f"{config}.new")
    elif there and there != shipped != last:
        target.put(f"{config}.new", text, mode=0o640)
        print(f"{target.path(config)} is yours and stays; the new one with its comments is {config}.new")
    target.manifest["config"]["sum"] = shipped


def restart(target: Target, manager: Manager, former: str) -> None:
    """Restart the service if it was running. If the new version does not start, restore and start the old one."""
    manager.do("daemon-reload")
    if not manager.running() or manager.do("restart", UNIT):
        return
    said, became = manager.last_words(), ""
    if former:
        target.put(f"{target.layout.base}/bin", b"", link=former)
        again = manager.do("restart", UNIT)
        became = "; the former one was put back and " + (
            "runs again" if again else "DOES NOT START EITHER: nothing is watched (agent-watchdog doctor)"
        )
    raise Refused(f"the new daemon did not start{became}; what it said:\n{said}")


def say_what_next(target: Target, manager: Manager, *, new_here: bool) -> None:
    """Print the next command. Enabling and starting a new service is the administrator's decision."""
    layout = target.layout
    print(
        f"installed {version()}: {layout.binaries}/agent-watchdog and agent-watchdogd, environment below {layout.base}"
    )
    if target.destdir:
        print(f"staged below {target.destdir}; on its host: systemd-sysusers, systemctl daemon-reload")
        return
    on_path = layout.binaries in os.environ.get("PATH", "").split(":")
    if not manager.present:
        program = "agent-watchdogd" if on_path else shlex.quote(f"{layout.binaries}/agent-watchdogd")
        print(f"no systemd here: {program} --daemonize")
    elif not manager.running():
        print(f"next: {' '.join(['systemctl', *manager.scope])} enable --now agent-watchdog")
    else:
        print(f"{UNIT} was restarted; agents and their state were kept")
    if os.geteuid():
        name = pwd.getpwuid(os.geteuid()).pw_name
        # A user's manager runs only while they are logged in, so check for the host's systemd.
        if booted() and not Path(f"/var/lib/systemd/linger/{name}").exists():
            print(f"so that it lives without a login:  loginctl enable-linger {name}")
        if not on_path:
            print(f"not on your PATH: {layout.binaries}")
    if new_here:
        print(f"configuration, all defaults: {layout.config}")


def uninstall(target: Target) -> None:
    """Stop and disable the service, remove installed files that are unchanged, and print where the data is."""
    layout, known = target.layout, target.manifest["files"]
    manager = Manager(target)
    manager.do("disable", "--now", UNIT)
    environments = [f"{layout.base}/{path.name}" for path in target.path(layout.base).glob("env-*")]
    users = [user for environment in environments for user in users_of(target, environment)]
    daemons = [user for user in users if user.is_daemon]
    if mine := [str(user.pid) for user in daemons if user.uid in (0, os.geteuid())]:
        raise Refused(f"a daemon still runs from here; end it first: kill {' '.join(mine)}")
    for name in [*known, layout.config, *(f"{environment}/x" for environment in environments)]:
        target.refuse_foreign_parents(name)  # before anything is removed
    for name in known:
        target.remove(name)
        if name.endswith(f"/{UNIT}"):
            remove_dangling_wants(target.path(name))
    left = list(layout.data)
    if target.sum_of(layout.config) == target.manifest["config"].get("sum"):
        target.remove(layout.config)
    else:
        left.append(layout.config)
    target.remove(f"{layout.config}.new")
    target.remove(f"{layout.base}/bin")
    for environment in environments:
        shutil.rmtree(target.path(environment))
    target.remove(layout.manifest)
    target.remove_directories()
    manager.do("daemon-reload")
    left = [str(target.path(name)) for name in left if target.path(name).exists()]
    print("uninstalled; agents keep running, unwatched.")
    # Any user can give a process this name, so it does not block the uninstall.
    if theirs := sorted({user.uid for user in daemons}):
        print(f"what calls itself a daemon from here is still run by uid {', '.join(map(str, theirs))}")
    if left:
        print(f"left as they are yours:\n  {chr(10).join(left)}\nto remove them too:  rm -r {shlex.join(left)}")


def remove_dangling_wants(unit: Path) -> None:
    """Remove the links that `enable` created if no manager could disable the unit; other links stay."""
    for wants in unit.parent.glob("*.wants"):
        link = wants / unit.name
        if link.is_symlink() and not link.exists():
            link.unlink()
            with suppress(OSError):  # the directory holds links of other units, too
                wants.rmdir()


def check_interpreter() -> None:
    """Check that every user can execute this interpreter: helpers run with it under their owner's uid."""
    program = Path(sys.executable).resolve()
    for part in (program, *program.parents):
        if not part.stat().st_mode & 0o001:
            raise Refused(f"{program}: {part} is closed to other uids; use make install PYTHON=/usr/bin/python3")


def main(command: str) -> None:
    """Run one command. DESTDIR, PREFIX, WHEELS and EXTRAS are environment variables, set by make."""
    os.umask(0o022)
    destdir, extras = os.environ.get("DESTDIR", ""), os.environ.get("EXTRAS", "")
    wheels = Path(os.environ.get("WHEELS") or SOURCE / "wheels").absolute()
    if command == "wheels":
        for above in (*reversed(wheels.parents), wheels):
            refuse_foreign(above)  # pip writes to names that could be links to anywhere
        wheels.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="agent-watchdog-wheels.") as scratch:
            Tools(Path(scratch)).download(wheels)
        print(f"{wheels}: all that make install needs on a host without network, with this Python and architecture")
        return
    if destdir and not os.path.isabs(destdir):
        raise Refused(f"DESTDIR={destdir}: must be an absolute path")
    if os.geteuid() == 0 or destdir:
        prefix = os.environ.get("PREFIX") or "/usr/local"
        if not os.path.isabs(prefix):
            raise Refused(f"PREFIX={prefix}: must be an absolute path")
        layout = host_layout(prefix.rstrip("/"))
        check_interpreter()
    else:
        layout = own_layout(os.environ.get("HOME") or pwd.getpwuid(os.geteuid()).pw_dir)
    target = Target(layout, destdir)
    if command == "uninstall" and not target.manifest["files"]:
        raise Refused(f"nothing is installed here: there is no {target.path(layout.manifest)}")
    try:
        target.make_parents(layout.manifest)
        with one_at_a_time(target):
            install(target, wheels, extras) if command == "install" else uninstall(target)
    except BaseException:
        if not target.path(layout.manifest).exists():
            target.remove_directories()  # they are empty, and no manifest lists them
        raise


@contextlib.contextmanager
def one_at_a_time(target: Target) -> Iterator[None]:
    """Lock the directory of the environments with flock(2)."""
    base = target.path(target.layout.base)
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise Refused(f"another process is installing into {base}") from None
    finally:
        os.close(descriptor)


def broken_off(number: int, _frame: object) -> None:
    """Handle a termination signal: clean up as after any error; further signals are ignored."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


if __name__ == "__main__":
    for told in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(told, broken_off)
    try:
        main(sys.argv[1])
    except Refused as refused:
        sys.exit(f"make {sys.argv[1]}: {refused}")
