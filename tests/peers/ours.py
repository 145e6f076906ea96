"""What this daemon does in the situations of the comparison: each function makes one, ends it, tells what it saw.

The agents stand in registries as hcom and agent-relay write them (tests/owner/sources), so that all columns mean the
same; the retry wrapper is registered as an orchestrator does it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.owner.sources.hcom_home import HcomHome
from tests.owner.sources.relay_home import RelayHome
from tests.world import World, alive, make_world, wait_for

STUBBORN = "(trap '' TERM; exec sleep 1000) & echo $! > {}; wait"  # a shell around what ignores TERM
ESCAPED = "setsid sh -c 'echo $$ > {}; exec sleep 1000' & wait"


@dataclass(frozen=True, slots=True)
class Ours:
    """A running daemon and the two registries that it looks at."""

    world: World
    hcom: HcomHome
    relay: RelayHome

    def launch(self, name: str, *command: str, background: int = 1, **row: Any) -> "subprocess.Popen[bytes]":
        """An agent as hcom starts one, headless: its row, and a process with the id that hcom gave it."""
        process_id = str(uuid.uuid4())
        process = self.world.spawn(*command, HCOM_PROCESS_ID=process_id)
        self.hcom.add(name, process_id, pid=process.pid, background=background, created_at=time.time(), **row)
        self.world.wait_status(f"{row['tag']}-{name}" if "tag" in row else name, "running")
        return process

    def behind(self, name: str, script: str) -> tuple["subprocess.Popen[bytes]", int]:
        """One behind a wrapper: the wrapper, and the pid of what the script starts."""
        file = self.world.dir / f"{name}.pid"
        wrapper = self.launch(name, "bash", "-c", script.format(file))
        wait_for(lambda: file.exists() and file.read_text().strip(), "its pid")
        return wrapper, int(file.read_text())

    def row(self, name: str) -> bool:
        """Whether hcom still lists it."""
        return bool(self.hcom.database.execute("SELECT 1 FROM instances WHERE name = ?", (name,)).fetchone())

    def ended(self, name: str) -> str:
        """The reason in the one event of its end."""
        (data,) = wait_for(lambda: [data for who, data in self.hcom.told() if who == name], f"{name} has ended")
        return str(data["reason"])


@contextlib.contextmanager
def running() -> Iterator[Ours]:
    """One of them."""
    for world in make_world():
        (world.dir / "bin").mkdir()
        world.environ["PATH"] = f"{world.dir / 'bin'}:{world.environ['PATH']}"
        hcom, relay = HcomHome(world.dir), RelayHome(world.dir)
        with world.config.open("a") as config:
            for kind, root in (("hcom", hcom.root), ("agent_relay", relay.root)):
                config.write(f'[[source]]\nkind = "{kind}"\npath = "{root}"\n')
        world.start()
        yield Ours(world, hcom, relay)
        hcom.database.close()
        relay.database.close()


def stubborn(ours: Ours) -> str:
    """Killed whole, and said so."""
    wrapper, agent = ours.behind("stubborn", STUBBORN)
    done = ours.world.cli("kill", "stubborn")
    assert not alive(agent)
    assert not alive(wrapper.pid)
    return f"dead, exit {done.returncode}: {done.stdout.strip().splitlines()[0]}"


def escaped(ours: Ours) -> str:
    """A grandchild in a session of its own."""
    _, agent = ours.behind("escaped", ESCAPED)
    ours.world.cli("kill", "escaped")
    assert not alive(agent)
    return "dead"


def reused(ours: Ours) -> str:
    """The pid of the row is an innocent's, and no identity was noted."""
    innocent = ours.world.spawn("sleep", "1000")
    ours.hcom.add("reused", pid=innocent.pid, background=1, created_at=time.time() - 3600)
    reason = ours.ended("reused")
    assert alive(innocent.pid)
    assert innocent.pid not in ours.world.signalled()
    told = ours.world.wait_event("source.ghost", name="reused")
    return f"innocent lives; row closed ({reason}): {told['why'].split(';')[0].replace(str(innocent.pid), 'PID')}"


def zombie(ours: Ours) -> str:
    """Its main process is dead, and nobody has fetched its status."""
    process = ours.launch("zombie", "sleep", "1000")
    began = time.monotonic()
    process.send_signal(signal.SIGKILL)
    ours.world.wait_status("zombie", "failed", "completed")
    took = time.monotonic() - began
    assert Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    assert took < 5
    return f"dead at once; row closed ({ours.ended('zombie')})"


def harness(ours: Ours) -> str:
    """What the wrapper wraps dies, the wrapper lives on."""
    name = f"Harness{os.getpid()}"
    path = ours.world.dir / "relay.sock"
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))
    wrapper = ours.relay.wrapper(name, "sleep 60", "--socket", str(path))
    ours.world.started.append(wrapper)
    ours.relay.connected(name)
    ours.world.wait_status(name, "running")
    wrapped = int(Path(f"/proc/{wrapper.pid}/task/{wrapper.pid}/children").read_text().split()[0])
    known = f"SELECT 1 FROM agent_lifecycle WHERE entries LIKE '%\"pid\":{wrapped},%'"
    wait_for(lambda: ours.world.sql(known), "what it wraps is known")
    began = time.monotonic()
    os.kill(wrapped, signal.SIGKILL)
    wait_for(lambda: not alive(wrapper.pid), "the wrapper is ended")
    took = time.monotonic() - began
    wait_for(lambda: f'"{name}"' not in (ours.relay.team / "connected-agents.json").read_text(), "it is not connected")
    wait_for(lambda: not path.exists(), "its socket is gone")
    told = ours.world.wait_event("agent.crashed", name=name)
    assert "another process" not in told["why"]
    assert took < 5
    return "noticed within a sweep; wrapper ended; not among the connected"


def registry(ours: Ours) -> str:
    """Its row while the kill goes on, and afterwards."""
    _, agent = ours.behind("listed", STUBBORN)
    killing = subprocess.Popen(["agent-watchdog", "kill", "listed"], env=ours.world.environ, stdout=subprocess.DEVNULL)
    with killing:
        looks = 0
        while killing.poll() is None:
            if not ours.row("listed"):
                assert not alive(agent)
                break
            looks += alive(agent)
            time.sleep(0.02)
    reason = ours.ended("listed")
    assert looks > 5  # the grace period at least
    assert not ours.row("listed")
    return f"row gone after proved death, event kept ({reason})"


def twice(ours: Ours) -> str:
    """Two kills in a row."""
    ours.launch("twice", "sleep", "1000")
    ours.world.cli("kill", "twice")
    again = ours.world.cli("kill", "twice", check=False)
    assert again.returncode == 0
    return f"exit 0: {again.stdout.strip().splitlines()[0]}"


def no_pid(ours: Ours) -> str:
    """hcom lists it, and no pid is known."""
    ours.hcom.add("nopid", created_at=time.time())
    wait_for(lambda: "nopid" in ours.world.agents(), "it is shown")
    done = ours.world.cli("kill", "nopid", check=False)
    assert done.returncode == 1
    assert "hcom stop nopid" in done.stderr
    return f"refused, exit 1: {done.stderr.strip().splitlines()[0].replace(str(ours.hcom.root), 'DIR')}"


def pane_missing(ours: Ours) -> str:
    """hcom noted a pane that is not there, of a tmux server that is not there."""
    noted = json.dumps({"pane_id": "%77", "terminal_preset": "tmux"})
    agent = ours.launch("paned", "sleep", "1000", background=0, launch_context=noted)
    done = ours.world.cli("kill", "paned", check=False)
    assert not alive(agent.pid)
    assert done.returncode == 1
    (command,) = [line.strip() for line in (done.stdout + done.stderr).splitlines() if "kill-pane" in line][:1]
    return f"dead, exit 1: {command}"


def retry(ours: Ours) -> str:
    """A wrapper that starts its child again when it ends."""
    file = ours.world.dir / "starts"
    loop = f"for n in 1 2 3; do echo $n >> {file}; sleep 1000; done"
    wrapper = ours.world.registered("retry", "bash", "-c", loop)
    wait_for(file.exists, "its child was started")
    ours.world.cli("kill", "retry", "--force")
    assert not alive(wrapper.pid)
    starts = len(file.read_text().split())
    assert starts == 1
    return "wrapper and child dead, nothing restarted"


Scenario = Callable[[Ours], str]

SCENARIOS: dict[str, Scenario] = {
    "TERM-ignoring agent behind a wrapper (headless)": stubborn,
    "setsid grandchild": escaped,
    "reused pid, no identity recorded": reused,
    "target is a zombie": zombie,
    "harness dead, wrapper alive": harness,
    "registry after the kill": registry,
    "pane missing": pane_missing,
    "two kills in a row": twice,
    "no tracked pid": no_pid,
    "KILL of a retry child": retry,
}
