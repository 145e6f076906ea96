"""A host for a day: two daemons, a user with all four programs and one home, and what the daemons say.

The times are a day's, scaled to half an hour.
"""

import os
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.household import UID, Household, Seat
from tests.vendors.ledger import Ledger, Verdict, moment
from tests.vendors.model import Model, Move
from tests.vendors.programs import Version
from tests.vendors.stage import configure, environment, serve_nap, words_of
from tests.world import BIN, make_repository

SESSIONS = 20
# A day of eight hours in half an hour would be 900 s in 56: but what the programs wait of themselves (a second and
# third try at their provider) is not scaled, and is to fit in.
AFTER = 45.0
BUSY_LIMIT = 60.0
WAIT = 60.0
HOLD = 60.0  # the most that the daemons' own holds keep an end back
START = 120.0
PAUSE = 25.0  # for who is asked to stop
PATIENCE = 150.0  # for the next screen of a program: the stage's own limit, of which no verdict follows
LOAD = 60.0  # for what the machine has to do beside this
STARTS, TURNS = 3, 7  # sessions that start, and that are in a turn, at once: two cores bear no more
HOST = "/run/agent-watchdog/control.sock"
USER = f"/run/user/{UID}/agent-watchdog/control.sock"


class Cut(Exception):
    """An operator ends this agent."""


class Died(Exception):
    """The agent is not there any more."""


class Broken(Exception):
    """The stage could not play it on."""


@dataclass
class Agent:
    """One life of a session's program. `ordered`: which operator's verb is on its way; `taken`: a daemon has it."""

    name: str
    program: str
    socket: str
    worktree: Path | None = None
    pane: bool = True
    process: subprocess.Popen[bytes] | None = None
    ordered: str = ""
    settled: threading.Event = field(default_factory=threading.Event)
    taken: bool = False
    held: float = 0.0  # seconds of operators' holds
    holding: bool = False  # one of them has its hand on it: the other's release would be of both
    tree: dict[int, str | None] = field(default_factory=dict)
    script: str = ""  # that it, or its subagent, plays now
    draft: str = ""  # the script whose prompt stands unsent
    free: bool = False  # its shell commands need no yes


class Host:
    """The host, and all that goes on there."""

    def __init__(self, home: Household, versions: Sequence[Version], seed: str, minutes: float) -> None:
        self.home, self.seed, self.ledger = home, seed, Ledger()
        self.versions = {version.vendor: version for version in versions}
        self.scripts: dict[str, Sequence[Move]] = {}
        self.model = Model(self.scripts, longest=3600)
        self.dir = home.user.world.dir
        self.minutes, self.over = minutes, time.time() + minutes * 60
        self.starting, self.turning = threading.Semaphore(STARTS), threading.Semaphore(TURNS)
        self.by_name: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self.live: dict[str, Agent] = {}
        self.past: list[Agent] = []
        self.interrupted: list[float] = []  # when a daemon went, or all were held: each begins silence anew
        self.idle_daemons = 0.0  # seconds that a daemon was away, or held all
        self.lock, self.number = threading.Lock(), 0
        self.seats = {"host": threading.Lock(), "user": threading.Lock()}
        self.done = threading.Event()
        self.loads: list[float] = []
        self.prepare()

    # -- the place

    def prepare(self) -> None:
        """A user with a home, the four programs in it, and both daemons."""
        world = self.home.user.world
        for name in ("h", "w", "wt"):
            (self.dir / name).mkdir()
        home = self.dir / "h"
        self.places = [self.dir / f"w/s{index:02}" for index in range(SESSIONS)]
        for place in self.places:
            place.mkdir()
        make_repository(self.dir / "repo")
        path = ":".join(
            [*(version.path for version in self.versions.values()), str(BIN), "/usr/local/bin:/usr/bin:/bin"]
        )
        world.environ = {
            "PATH": path,
            "HOME": str(home),
            "USER": "day",
            "LOGNAME": "day",
            "SHELL": "/bin/bash",
            "LANG": "C.UTF-8",
            "TERM": "xterm-256color",
            "WORLD": str(self.dir),
            "TMPDIR": str(world.temporary),
            "XDG_RUNTIME_DIR": f"/run/user/{UID}",
        }
        for vendor in self.versions:
            world.environ |= environment(vendor, self.model.url)
            configure(vendor, home, self.model.url, self.places)
            serve_nap(vendor, home, self.dir)
        for at in (self.dir, *self.dir.rglob("*")):
            if not at.is_symlink():
                os.chown(at, UID, UID)
        self.write_configuration("host", 8)
        self.write_configuration("user", 8)
        for seat in (self.home.host, self.home.user):
            seat.start()
        for vendor in self.versions:
            done = self.home.user.cli("install-hooks", vendor)
            assert done.returncode == 0, done.stderr

    def write_configuration(self, whose: str, prompt: float) -> None:
        """Of one daemon."""
        seat = self.seat(whose)
        seat.configure(
            sweep={"interval_seconds": 1.0},
            stall={
                "after_seconds": AFTER,
                "start_limit_seconds": START,
                "busy_limit_seconds": BUSY_LIMIT,
                "wait_limit_seconds": WAIT,
                "prompt_limit_seconds": prompt,
            },
            kill={"grace_seconds": 4, "stop_pause_seconds": PAUSE, "max_per_minute": 10},
            hold={"mass_stall_count": 3, "cpu_pressure_percent": 90, "max_seconds": HOLD},
            log={"level": "info"},
        )
        with seat.world.config.open("a") as config:
            for kind in self.versions:
                config.write(f'[[policy]]\nmatch = {{ type = "{kind}" }}\nafter_seconds = {AFTER}\n')

    def seat(self, whose: str) -> Seat:
        return self.home.host if whose == "host" else self.home.user

    # -- what the daemons say

    def listen(self) -> None:
        """Their logs, by agent, until the day is done."""
        read = {"host": 0, "user": 0}
        while not self.done.wait(0.5):
            for whose in read:
                events = self.seat(whose).world.events()
                for event in events[read[whose] :]:
                    if name := event.get("name"):
                        self.by_name[name].append({**event, "daemon": whose})
                    if event["event"] in (
                        "sweep.failed",
                        "job.failed",
                        "kill.failed",
                        "control.failed",
                        "daemon.failed",
                    ):
                        self.note(f"{whose}: {event['event']} {event.get('exception', event.get('why', ''))}")
                read[whose] = len(events)
            if int(time.time()) % 10 == 0:
                self.loads.append(float(Path("/proc/loadavg").read_text().split()[0]))

    def note(self, words: str) -> None:
        with self.lock:
            self.ledger.notes.append(words[:600])

    def events(self, name: str, event: str) -> list[dict[str, Any]]:
        return [each for each in list(self.by_name[name]) if each["event"] == event]

    def why(self, name: str) -> str:
        """What both daemons tell of that agent."""
        said = []
        for seat, socket in ((self.home.host, HOST), (self.home.user, USER)):
            with suppress(subprocess.TimeoutExpired):
                done = seat.cli("why", "--socket", socket, name)
                said.append(f"-- {socket}\n{done.stdout}{done.stderr}")
        return "\n".join(said)

    def verdict(self, agent: Agent, situation: str, *, must_end: bool, ended: bool, seconds: float = 0) -> None:
        right = must_end == ended
        one = Verdict(
            agent.name, agent.program, situation, must_end, ended, "" if right else self.why(agent.name), seconds
        )
        with self.lock:
            self.ledger.verdicts.append(one)
        came = f"{situation}: {'ended' if ended else 'lived'}" + (f" after {seconds:.0f} s" if seconds else "")
        wrong = "" if right else f" {'WRONG KILL' if ended else 'MISSED'}\n{one.why}"
        print(f"{time.strftime('%H:%M:%S')} {agent.name}, {came}{wrong}", flush=True)

    # -- the terminal

    def tmux(self, *words: str) -> str:
        """As root: its server lets root in, and three programs fewer are started for each look."""
        command = ("tmux", "-S", str(self.dir / "tmux"), "-f", "/dev/null", *words)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
        return done.stdout

    def look_for_others_dead(self) -> None:
        """A signal to a process of another agent than the order names is a wrong kill, whatever came of it."""
        boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        tick = os.sysconf("SC_CLK_TCK")
        began: dict[int, list[tuple[float, str]]] = defaultdict(list)  # of each pid, as numbers come again
        for agent in self.past:
            for pid, ticks in agent.tree.items():
                if ticks is not None:
                    began[pid].append((boot + int(ticks) / tick, agent.name))
        for name in list(self.by_name):
            for event in self.events(name, "kill.signal_sent"):
                for pid in event.get("pids", []):
                    older = [one for one in began[pid] if one[0] <= moment(event)]
                    if older and max(older)[1] != name:
                        self.note(f"pid {pid} of {max(older)[1]} got a signal for {name}, or its number came again")

    def close(self) -> None:
        self.done.set()
        self.model.close()
        here = str(self.dir).encode()
        with suppress(subprocess.TimeoutExpired):
            self.tmux("kill-server")
        for path in Path("/proc").glob("[0-9]*"):
            if here in words_of(int(path.name)) and int(path.name) != os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(int(path.name), signal.SIGKILL)
