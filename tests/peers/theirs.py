"""The same situations with the real hcom and agent-relay and agents that they have started; told, never asserted.

A pid that another has by now is made by pointing the entry at a bystander. agent-relay's `agents:kill` ends those alone
whom its dashboard has spawned: the entry in `workers.json` that this would have written is written here.
"""

import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.peers import tools
from tests.world import World, alive, wait_for

# What both start as `claude`: it writes its pid, and does what `mode` beside it says.
CLAUDE = """#!/bin/bash
here=$(dirname "$0")
if [ "$1" = "--version" ]; then echo "2.1.100 (Claude Code)"; exit 0; fi
echo $$ > "$here/pid"
case "$(cat "$here/mode")" in
stubborn) trap '' TERM HUP ;;
escaped) setsid sh -c "echo \\$\\$ > $here/escaped; exec sleep 1000" & ;;
esac
while :; do echo tick; sleep 1; done
"""
NOT = "-"


class Theirs:
    """A home of their own; what is started in it carries this world's mark."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bin = world.dir / "bin"
        self.bin.mkdir()
        (self.bin / "claude").write_text(CLAUDE)
        (self.bin / "claude").chmod(0o755)
        self.project = world.dir / "project"
        (self.project / ".git").mkdir(parents=True)  # by which agent-relay knows the root of a project
        kept = {key: value for key, value in world.environ.items() if not key.startswith(("TMUX", "HCOM", "CLAUDE"))}
        self.environ = {
            **kept,
            "HCOM_DIR": str(world.dir / "hcom"),
            "PATH": f"{self.bin}:{tools.HCOM_PROGRAM.parent}:{tools.RELAY_PROGRAM.parent}:/usr/bin:/bin",
            "RUST_BACKTRACE": "0",
            "AGENT_RELAY_TELEMETRY_DISABLED": "1",
            "TERM": "xterm",
        }

    def call(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """One run of a command of theirs."""
        return subprocess.run(
            words,
            env=self.environ,
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )

    def agent(self, mode: str, start: Callable[[], str]) -> tuple[str, int]:
        """Start an agent of that mode; its name and the pid of the fake `claude`."""
        (self.bin / "mode").write_text(mode)
        for told in ("pid", "escaped"):
            (self.bin / told).unlink(missing_ok=True)
        name = start()
        wait_for(lambda: (self.bin / "pid").exists() and (self.bin / "pid").read_text().strip(), "its agent runs", 60)
        return name, int((self.bin / "pid").read_text())

    def escaped(self) -> int:
        """The pid that parted from it."""
        file = self.bin / "escaped"
        wait_for(lambda: file.exists() and file.read_text().strip(), "its child runs")
        return int(file.read_text())


# -- hcom


class Hcom(Theirs):
    """Headless agents, as `hcom claude --headless` starts them."""

    def start(self, mode: str, *options: str) -> tuple[str, int]:
        """One agent; its base name, and its pid."""

        def launch() -> str:
            done = self.call("hcom", "claude", *(options or ("--headless",)), "--json")
            assert done.stdout, done.stderr
            return str(json.loads(done.stdout)["names"][0])

        return self.agent(mode, launch)

    def sql(self, statement: str, *values: object) -> list[tuple[object, ...]]:
        """On its database."""
        database = sqlite3.connect(self.world.dir / "hcom/hcom.db", isolation_level=None, timeout=10)
        try:
            return database.execute(statement, values).fetchall()
        finally:
            database.close()

    def kill(self, name: str) -> str:
        """What it says, and its exit status."""
        done = self.call("hcom", "kill", name)
        lines = (done.stdout.strip() or done.stderr.strip() or "nothing").splitlines()
        return f"says {lines[0]!r}, exit {done.returncode}"

    def lists(self, name: str) -> bool:
        """Whether it has a row."""
        return bool(self.sql("SELECT 1 FROM instances WHERE name = ?", name))

    def pointed_at(self, name: str, pid: int) -> None:
        """Its entry names that process, and no identity."""
        self.sql("UPDATE instances SET pid = ?, launch_context = '{}' WHERE name = ?", pid, name)


def lives(pid: int, seconds: float = 4.0) -> str:
    """Whether that process is there when all that was sent has had its time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and alive(pid):
        time.sleep(0.05)
    return "alive" if alive(pid) else "dead"


def hcom_stubborn(hcom: Hcom) -> str:
    name, agent = hcom.start("stubborn", "-p", "hello")  # without the terminal proxy, which sends KILL after 5 s
    said = hcom.kill(name)
    return f"{said}; agent {lives(agent)}, {'listed' if hcom.lists(name) else 'no record left'}"


def hcom_escaped(hcom: Hcom) -> str:
    name, _ = hcom.start("escaped")
    pid = hcom.escaped()
    return f"{hcom.kill(name)}; grandchild {lives(pid)}"


def hcom_reused(hcom: Hcom) -> str:
    name, _ = hcom.start("plain")
    innocent = hcom.world.spawn("sleep", "1000")
    hcom.pointed_at(name, innocent.pid)
    return f"{hcom.kill(name)}; innocent {lives(innocent.pid)}"


def hcom_zombie(hcom: Hcom) -> str:
    name, _ = hcom.start("plain")
    zombie = hcom.world.spawn("sleep", "1000")
    zombie.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(zombie.pid), "it is a zombie")
    hcom.pointed_at(name, zombie.pid)
    return hcom.kill(name)


def hcom_harness(hcom: Hcom) -> str:
    name, agent = hcom.start("plain")
    began = time.monotonic()
    subprocess.run(["kill", "-9", str(agent)], check=True)
    while time.monotonic() < began + 45 and hcom.lists(name):
        hcom.call("hcom", "list")
        time.sleep(0.5)
    return f"listed after 45 s: {hcom.lists(name)}; row gone after {time.monotonic() - began:.0f} s"


def hcom_registry(hcom: Hcom) -> str:
    name, _ = hcom.start("plain")
    hcom.kill(name)
    (reason,) = hcom.sql(
        "SELECT json_extract(data, '$.reason') FROM events WHERE type = 'life' AND instance = ?"
        " AND json_extract(data, '$.action') = 'stopped'",
        name,
    )[0]
    left = len(list((hcom.world.dir / "hcom/.tmp/launch").glob(f"*{name}*.sh")))
    return f"row {'kept' if hcom.lists(name) else 'gone'}, event kept ({reason}), {left} launch script left"


def hcom_pane_missing(hcom: Hcom) -> str:
    name, _ = hcom.start("plain")
    noted = "json_set(launch_context, '$.pane_id', '%77', '$.terminal_preset', 'tmux')"
    effective = ", terminal_preset_effective = 'tmux', background = 0"
    hcom.sql(f"UPDATE instances SET launch_context = {noted}{effective} WHERE name = ?", name)
    done = hcom.call("hcom", "kill", name)
    command = [line for line in done.stderr.splitlines() if line.startswith("tmux kill-pane")]
    return f"exit {done.returncode}: {(command or ['nothing'])[0]}"


def hcom_twice(hcom: Hcom) -> str:
    name, _ = hcom.start("plain")
    hcom.kill(name)
    return hcom.kill(name)


def hcom_no_pid(hcom: Hcom) -> str:
    name, _ = hcom.start("plain")
    hcom.sql("UPDATE instances SET pid = NULL WHERE name = ?", name)
    (hcom.world.dir / "hcom/.tmp/launched_pids.json").write_text("{}")
    return hcom.kill(name)


# -- agent-relay


class Relay(Theirs):
    """A server of its own, and agents by `create-agent` in a terminal of their own."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.typing: dict[str, int] = {}

    def close(self) -> None:
        """Its terminals."""
        for descriptor in self.typing.values():
            os.close(descriptor)

    def up(self) -> None:
        """Start the server."""
        with (self.world.dir / "up.log").open("wb") as log:
            self.world.started.append(
                subprocess.Popen(
                    ["agent-relay", "up", "--no-dashboard"],
                    env=self.environ,
                    cwd=self.project,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
        wait_for(lambda: self.sockets(), "its server listens", 60)

    def sockets(self) -> list[Path]:
        """Where it listens."""
        return list((self.world.dir / ".agent-relay").glob("*/relay.sock"))

    @property
    def data(self) -> Path:
        """The data directory of this project."""
        return self.sockets()[0].parent

    def start(self, mode: str, name: str) -> tuple[int, int]:
        """One agent: the pids of its relay-pty and of the fake `claude`."""

        def create() -> str:
            command = f"exec agent-relay create-agent --skip-instructions -n {name} claude"
            never, self.typing[name] = os.pipe()  # nobody types
            self.world.started.append(
                subprocess.Popen(
                    ["script", "-qfc", command, "/dev/null"],
                    env=self.environ,
                    cwd=self.project,
                    stdin=never,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            os.close(never)
            return name

        _, agent = self.agent(mode, create)
        wait_for(lambda: name in self.connected(), "it is connected", 60)
        stat = Path(f"/proc/{agent}/stat").read_text().rpartition(")")[2].split()
        return int(stat[1]), agent

    def connected(self) -> list[str]:
        """Whom its server says to be connected."""
        try:
            return list(json.loads((self.data / "team/connected-agents.json").read_text())["agents"])
        except (OSError, ValueError):
            return []

    def spawned(self, name: str, pid: int | None) -> None:
        """The entry of one that the dashboard spawned."""
        one = {"name": name, "cli": "claude", "task": "", "spawnedAt": int((time.time() - 60) * 1000), "pid": pid}
        kept = {key: value for key, value in one.items() if value is not None}
        (self.data / "team/workers.json").write_text(json.dumps({"workers": [kept]}, indent=2))

    def kill(self, name: str) -> str:
        """What it says, and its exit status."""
        done = self.call("agent-relay", "agents:kill", name)
        lines = [line for line in (done.stdout + done.stderr).splitlines() if name in line]
        return f"says {(lines or ['nothing'])[-1].strip()!r}, exit {done.returncode}"


def relay_stubborn(relay: Relay) -> str:
    pty, agent = relay.start("stubborn", "Stubborn")
    relay.spawned("Stubborn", pty)
    return f"{relay.kill('Stubborn')}; agent {lives(agent)}"


def relay_escaped(relay: Relay) -> str:
    pty, _ = relay.start("escaped", "Escaped")
    relay.spawned("Escaped", pty)
    pid = relay.escaped()
    return f"{relay.kill('Escaped')}; grandchild {lives(pid)}"


def relay_reused(relay: Relay) -> str:
    innocent = relay.world.spawn("sleep", "1000")
    relay.spawned("Reused", innocent.pid)
    return f"{relay.kill('Reused')}; innocent {lives(innocent.pid)}"


def relay_zombie(relay: Relay) -> str:
    zombie = relay.world.spawn("sleep", "1000")
    zombie.send_signal(signal.SIGKILL)
    wait_for(lambda: not alive(zombie.pid), "it is a zombie")
    relay.spawned("Zombie", zombie.pid)
    return relay.kill("Zombie")


def relay_harness(relay: Relay) -> str:
    pty, agent = relay.start("plain", "Harness")
    subprocess.run(["kill", "-9", str(agent)], check=True)
    time.sleep(12)  # it looks each 10 s
    return f"after 12 s connected: {'Harness' in relay.connected()}, wrapper {'alive' if alive(pty) else 'dead'}"


def relay_registry(relay: Relay) -> str:
    pty, _ = relay.start("plain", "Listed")
    relay.spawned("Listed", pty)
    relay.kill("Listed")
    left = "Listed" in (relay.data / "team/workers.json").read_text()
    return f"workers.json {'unchanged' if left else 'without it'}"


def relay_twice(relay: Relay) -> str:
    process = relay.world.spawn("sleep", "1000")
    relay.spawned("Twice", process.pid)
    process.kill()
    process.wait()
    return relay.kill("Twice")


def relay_no_pid(relay: Relay) -> str:
    relay.spawned("NoPid", None)
    return relay.kill("NoPid")


# By the names in `ours.SCENARIOS`; `retry` is fleet's, and neither has a wrapper that starts anew.
HCOM: dict[str, Callable[[Hcom], str]] = {
    "stubborn": hcom_stubborn,
    "escaped": hcom_escaped,
    "reused": hcom_reused,
    "zombie": hcom_zombie,
    "harness": hcom_harness,
    "registry": hcom_registry,
    "pane_missing": hcom_pane_missing,
    "twice": hcom_twice,
    "no_pid": hcom_no_pid,
}
RELAY: dict[str, Callable[[Relay], str]] = {
    "stubborn": relay_stubborn,
    "escaped": relay_escaped,
    "reused": relay_reused,
    "zombie": relay_zombie,
    "harness": relay_harness,
    "registry": relay_registry,
    "twice": relay_twice,
    "no_pid": relay_no_pid,
}
