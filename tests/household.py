"""A host of its own for tests with two daemons: the host's, which is root's, and a user's, each at its usual place.

/run is a tmpfs in a private mount namespace, with /run/user/UID as a login makes it; the daemons, `run` and the clients
are the real ones, found by nobody's word but their own defaults.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.world import BIN, PATIENCE, World, make_world, wait_for

UID = 30_000 + os.getpid() % 30_000  # its places below /tmp are of no other test that runs beside this one
_PLACE = 'mount -t tmpfs -o mode=755 x /run && mkdir -p "/run/user/$1" && chown "$1:$1" "/run/user/$1" && '
_PLACE += 'chmod 700 "/run/user/$1" && { [ -z "$2" ] || mount --bind "$2" /etc/passwd; } && '
_PLACE += "echo made && exec sleep infinity"
_ASK = """
import json, sys
from watchdog.client.client import request
method, path, body, socket = json.loads(sys.argv[1])
print(json.dumps(request(method, path, body, socket_path=socket, timeout=30)))
"""
_OF_NOBODY = ("AGENT_WATCHDOG_SOCKET", "XDG_RUNTIME_DIR")


class Seat:
    """One daemon's place on the host: how it and its person's programs are started."""

    def __init__(self, world: World, inside: tuple[str, ...], uid: int, runtime: str) -> None:
        self.world, self.uid, self.runtime = world, uid, runtime
        become = ("setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups") if uid else ()
        self.prefix = (*inside, *become)
        world.environ = {key: value for key, value in world.environ.items() if key not in _OF_NOBODY}
        if uid:
            world.environ["XDG_RUNTIME_DIR"] = f"/run/user/{uid}"
        for path in (world.dir, world.state, world.runtime):
            os.chown(path, uid, uid)
        self.configure()

    def configure(self, **tables: Any) -> None:
        """Short times, and its usual runtime directory."""
        daemon = {"runtime_dir": self.runtime, "state_dir": str(self.world.state)}
        self.world.configure(**{"daemon": daemon, "log": {"level": "debug"}, **tables})
        os.chown(self.world.config, self.uid, self.uid)

    def start(self) -> None:
        self.world.start(prefix=self.prefix)

    def start_agent(self, name: str, *words: str, options: tuple[str, ...] = (), **environ: str) -> None:
        """An agent of tests/scripted_agents under `run`, in its person's name."""
        command = [str(BIN / "agent-watchdog"), "run", "--name", name, *options, "--", *words]
        self.spawn(*command, out=self.world.dir / f"{name}.out", **environ)

    def spawn(self, *command: str, out: Path | None = None, **environ: str) -> "subprocess.Popen[bytes]":
        with open(out or os.devnull, "wb") as stream:
            process = subprocess.Popen(
                [*self.prefix, *command],
                env={**self.world.environ, **environ},
                cwd=self.world.dir,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self.world.started.append(process)
        return process

    def cli(self, *words: str, without: tuple[str, ...] = (), **environ: str) -> "subprocess.CompletedProcess[str]":
        """One run of the client, by its person."""
        told = {key: value for key, value in {**self.world.environ, **environ}.items() if key not in without}
        command = [*self.prefix, str(BIN / "agent-watchdog"), *words]
        return subprocess.run(command, env=told, capture_output=True, text=True, timeout=PATIENCE, cwd=self.world.dir)

    def ask(self, method: str, path: str, body: object = None, socket: str = "") -> tuple[int, dict[str, Any]]:
        """One request to this daemon, or to the one at `socket`, by its person."""
        told = json.dumps([method, path, body, socket or f"{self.runtime}/control.sock"])
        done = subprocess.run(
            [*self.prefix, str(BIN / "python"), "-c", _ASK, told],
            env=self.world.environ,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            cwd=self.world.dir,
        )
        assert done.returncode == 0, done.stderr
        status, answer = json.loads(done.stdout)
        return status, answer

    def agents(self) -> dict[str, dict[str, Any]]:
        """What this daemon says of living agents and dead ones, by name; the newest of a name."""
        return {one["name"]: one for one in reversed(self.ask("GET", "/v1/agents?all")[1]["agents"])}

    def held(self) -> list[str]:
        """The agents that this daemon says it holds."""
        return sorted(one["name"] for one in self.ask("GET", "/v1/custody")[1]["held"])


class Household:
    """The host's daemon and a user's, and the agents of that user."""

    def __init__(self, host: World, user: World, inside: tuple[str, ...], root: str) -> None:
        """`root`: the file system of the host, seen from outside."""
        self.root = root
        self.host = Seat(host, inside, 0, "/run/agent-watchdog")
        self.user = Seat(user, inside, UID, f"/run/user/{UID}/agent-watchdog")

    def signalled(self) -> set[int]:
        return self.host.world.signalled() | self.user.world.signalled()


@contextmanager
def household(name: str = "") -> Iterator[Household]:
    """For the time of one test; needs root. `name`: what the user is called in this host's /etc/passwd."""
    with ExitStack() as held:
        host, user = (held.enter_context(contextmanager(make_world)()) for _ in range(2))
        host.dir.chmod(0o755)
        passwd = host.dir / "passwd" if name else None
        if passwd is not None:
            line = f"{name}:x:{UID}:{UID}::{user.dir}/h:/bin/bash\n"
            passwd.write_text(Path("/etc/passwd").read_text() + line)
            passwd.chmod(0o644)
        namespace = ["unshare", "--mount", "--propagation", "private"]
        namespace += ["sh", "-c", _PLACE, "sh", str(UID), str(passwd or "")]
        keeper = subprocess.Popen(namespace, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        try:
            assert keeper.stdout is not None
            assert keeper.stdout.readline() == "made\n"
            inside = ("nsenter", f"--mount=/proc/{keeper.pid}/ns/mnt", f"--wd={host.dir}")
            yield Household(host, user, inside, f"/proc/{keeper.pid}/root")
        finally:
            host.close()
            user.close()
            shutil.rmtree(f"/tmp/agent-watchdog-{UID}", ignore_errors=True)
            keeper.kill()
            keeper.communicate()


__all__ = ["UID", "Household", "Seat", "household", "wait_for"]
