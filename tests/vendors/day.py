"""A day in the life of a host, scaled: twenty sessions of the real programs, two daemons, operators.

Each session plays a seeded row of situations whose right verdict is known beforehand. What the daemons did is read from
their logs alone. The seed says what each session and each operator draws; how they interleave is the machine's.
"""

import os
import random
import re
import shlex
import signal
import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.household import UID, Household, Seat, household
from tests.vendors.ledger import Ledger, Verdict, moment, own_orders
from tests.vendors.model import Call, Model, Move, Refuse, Say, Stall
from tests.vendors.programs import Version
from tests.vendors.stage import configure, environment, serve_nap, words_of
from tests.vendors.steps import ASKS, BUSY, DIALOGS, HEADLESS, PANE, READY, YES
from tests.world import BIN, alive, environ_of, make_repository, started_at

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
UNTAKEN = (69, 75)  # exit statuses of a verb that no daemon took
WORDS = "alpha/bravo/charlie/delta/echo/foxtrot/golf/hotel/india/juliett/kilo/lima/mike/november/oscar/papa"
_BURST = "head -c 20000000 /dev/zero | sha256sum >/dev/null"


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
    draft: str = ""  # the script whose prompt stands unsent
    free: bool = False  # its shell commands need no yes


class Day:
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

    def play(self) -> Ledger:
        """The whole day."""
        threads = [threading.Thread(target=Session(self, index).run, daemon=True) for index in range(SESSIONS)]
        threads += [threading.Thread(target=Operator(self, whose).run, daemon=True) for whose in ("host", "user")]
        listener = threading.Thread(target=self.listen, daemon=True)
        listener.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(1.0, self.over + 900 - time.time()))
        self.look_for_others_dead()
        self.done.set()
        listener.join(30)
        return self.ledger

    def look_for_others_dead(self) -> None:
        """A signal to a process of another agent than the order names is a wrong kill, whatever came of it."""
        owner = {(pid, at): agent for agent in self.past for pid, at in agent.tree.items()}
        at_pid: dict[int, list[Agent]] = defaultdict(list)
        for (pid, _), agent in owner.items():
            at_pid[pid].append(agent)
        for name in list(self.by_name):
            for event in self.events(name, "kill.signal_sent"):
                for pid in event.get("pids", []):
                    owners = at_pid.get(pid, [])
                    if owners and all(agent.name != name for agent in owners):
                        self.note(f"pid {pid} of {[agent.name for agent in owners]} got a signal for {name}")

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


class Session:
    """One of the twenty: a program in a pane or headless, started again whenever it has ended."""

    def __init__(self, day: Day, index: int) -> None:
        self.day, self.index = day, index
        vendors = list(day.versions)
        self.vendor = vendors[index % len(vendors)]
        self.random = random.Random(f"{day.seed} session {index}")
        self.place = day.places[index]
        self.lives = 0

    def run(self) -> None:
        """Until the day is over."""
        time.sleep(self.index * min(6.0, self.day.minutes * 60 / 3 / SESSIONS))  # they come to work one after another
        while time.time() < self.day.over:
            pane = self.random.random() < 0.7
            agent = self.agent(pane=pane)
            began = time.time()
            self.day.live[agent.name] = agent
            situation = ["start"]
            try:
                if pane:
                    self.in_a_pane(agent, situation)
                else:
                    self.headless(agent, situation)
            except Cut:
                self.cut(agent, situation[0])
            except (Died, Broken, subprocess.TimeoutExpired) as error:
                self.broke(agent, situation[0], error, began)
            except Exception as error:
                self.day.note(f"script: {agent.name}, {situation[0]}: {error!r}")
                self.day.ledger.broken.append(f"{agent.name}, {situation[0]}: {error!r}")
            finally:
                self.end(agent)

    # -- a life

    def agent(self, *, pane: bool) -> Agent:
        self.lives += 1
        name = f"s{self.index:02}-{self.vendor}-{self.lives}"
        socket = self.random.choice((HOST, USER))
        agent = Agent(name, self.vendor, socket, pane=pane)
        if self.random.random() < 0.3:
            agent.worktree = self.day.dir / "wt" / name
            add = ("git", "-C", str(self.day.dir / "repo"), "worktree", "add", "-q", "-b", name, str(agent.worktree))
            self.as_user(*add)
        self.day.ledger.agents += 1
        self.day.past.append(agent)
        return agent

    def as_user(self, *command: str) -> str:
        seat = self.day.home.user
        done = subprocess.run(
            [*seat.prefix, "env", "-C", str(self.place), *command],
            env=seat.world.environ,
            capture_output=True,
            text=True,
            timeout=120,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise Broken(f"{command[:3]}: {done.stderr[-200:]}")
        return done.stdout

    def through_run(self, agent: Agent, command: Sequence[str]) -> list[str]:
        words = [str(BIN / "agent-watchdog"), "run", "--name", agent.name, "--task", f"task-{agent.name}"]
        if agent.worktree:
            words += ["--worktree", str(agent.worktree)]
        return [*words, "--", *command]

    def launch(self, agent: Agent, command: Sequence[str]) -> None:
        words = self.through_run(agent, command)
        seat = self.day.home.user
        if agent.pane:
            told = shlex.join(["env", f"AGENT_WATCHDOG_SOCKET={agent.socket}", *words])
            tmux = ("tmux", "-S", str(self.day.dir / "tmux"), "-f", "/dev/null")
            made = ("new-session", "-d", "-s", agent.name, "-x", "130", "-y", "45", "-c", str(self.place), told)
            self.as_user(*tmux, *made)
            return
        with (self.day.dir / f"{agent.name}.out").open("wb") as out:
            agent.process = subprocess.Popen(
                [*seat.prefix, "env", "-C", str(self.place), *words],
                env={**seat.world.environ, "AGENT_WATCHDOG_SOCKET": agent.socket},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        seat.world.started.append(agent.process)

    def lives_on(self, agent: Agent) -> bool:
        if agent.process is not None:
            return agent.process.poll() is None
        return not self.day.events(agent.name, "agent.ended") and bool(
            self.day.tmux("list-panes", "-t", f"={agent.name}:", "-F", "#{pane_pid}").strip()
        )

    def remember(self, agent: Agent) -> None:
        """Its processes, by the mark in their environment."""
        ids = {e.get("agent_id") for e in self.day.events(agent.name, "agent.registered")} - {None}
        for path in Path("/proc").glob("[0-9]*"):
            pid = int(path.name)
            if environ_of(pid).get("AGENT_WATCHDOG_ID") in ids:
                agent.tree[pid] = started_at(pid)

    def check(self, agent: Agent) -> None:
        if agent.ordered:
            raise Cut

    def until(self, agent: Agent, look: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
        """Raises Cut, Died, Broken."""
        deadline = time.time() + seconds
        while not look():
            self.check(agent)
            if not self.lives_on(agent):
                if look():
                    return
                raise Died(what)
            if time.time() > deadline:
                raise Broken(f"{what}: {self.screen(agent)[-500:] if agent.pane else ''}")
            time.sleep(1.5)

    def rest(self, agent: Agent, seconds: float) -> None:
        """Time goes by. Raises Cut, Died."""
        deadline = time.time() + seconds
        while time.time() < deadline:
            self.check(agent)
            if self.day.events(agent.name, "agent.ended"):
                raise Died("at rest")
            time.sleep(1)
        if not self.lives_on(agent):
            raise Died("at rest")

    # -- its pane

    def screen(self, agent: Agent) -> str:
        shown = self.day.tmux("capture-pane", "-p", "-t", f"={agent.name}:")
        return "\n".join(line.rstrip() for line in shown.splitlines() if line.strip())

    def until_screen(self, agent: Agent, pattern: str) -> None:
        self.until(agent, lambda: re.search(pattern, self.screen(agent)), f"{pattern!r} is shown")

    def until_gone(self, agent: Agent, pattern: str) -> None:
        self.until(agent, lambda: not re.search(pattern, self.screen(agent)), f"{pattern!r} is shown no more")

    def keys(self, agent: Agent, *keys: str) -> None:
        for key in keys:
            self.check(agent)
            self.day.tmux("send-keys", "-t", f"={agent.name}:", *key.split())

    def write(self, agent: Agent, words: str) -> None:
        self.check(agent)
        self.day.tmux("send-keys", "-t", f"={agent.name}:", "-l", "--", words)
        self.until_screen(agent, re.escape(words[-14:]))

    def prompt(self, agent: Agent, script: str) -> None:
        self.write(agent, f"please play:{script}")
        self.keys(agent, "Enter")
        self.until(agent, lambda: self.day.model.played(script), f"the model is asked to play {script}")

    def script(self, kind: str, *moves: Move) -> str:
        """A name of its own for each, as a model refuses a script so many times."""
        with self.day.lock:
            self.day.number += 1
            name = f"{kind}-{self.day.number}"
        self.day.scripts[name] = moves
        return name

    # -- what it plays

    def in_a_pane(self, agent: Agent, situation: list[str]) -> None:
        agent.free = self.vendor != "gemini" or self.random.random() < 0.5
        more: dict[str, tuple[str, ...]] = {
            "claude": ("--allowedTools", "Bash,Agent,mcp__slow__nap"),
            "gemini": ("--yolo",) if agent.free else (),
        }
        began = time.time()
        with self.day.starting:
            self.launch(agent, (*PANE[self.vendor], *more.get(self.vendor, ())))
            self.until_screen(agent, READY[self.vendor])
        self.lived(agent, "start", began)
        for _ in range(self.random.randint(2, 6)):
            if time.time() > self.day.over:
                break
            situation[0], must_end, play = self.random.choice(self.situations(agent))
            began = time.time()
            if must_end:
                self.hangs(agent, situation[0], play)
                return
            play(agent)
            self.lived(agent, situation[0], began)
        situation[0] = "leaves"
        began = time.time()
        self.leave(agent)
        self.lived(agent, "leaves", began)

    def lived(self, agent: Agent, situation: str, began: float) -> None:
        orders = own_orders(self.day.by_name[agent.name], began, time.time())
        self.day.verdict(agent, situation, must_end=False, ended=bool(orders))
        if orders:
            raise Died("ended wrongly")
        self.remember(agent)

    def situations(self, agent: Agent) -> list[tuple[str, bool, Callable[[Agent], None]]]:
        """What this program can be in, and whether it must be ended."""
        found: list[tuple[str, bool, Callable[[Agent], None]]] = [
            ("waits for a prompt", False, lambda a: self.rest(a, AFTER + 15)),
            ("a draft in its prompt", False, self.draft),
            ("Esc in a turn", False, self.escape),
            ("tries again after errors", False, self.retry),
            ("answers at length", False, self.stream),
            ("a stream that hangs", True, lambda a: self.prompt(a, self.script("stall", Stall()))),
            ("no answer at all", True, lambda a: self.prompt(a, self.script("mute", Stall(mute=True)))),
        ]
        if self.vendor != "gemini" or not agent.free:
            found.append(("a permission dialog", False, self.dialog))
            found.append(("a permission dialog", False, self.dialog))
        if agent.free:
            found += [
                ("works", False, self.work),
                ("works", False, self.work),
                ("a long tool with activity", False, self.long_tool),
                ("a subagent works", False, self.subagent),
                ("a tool that hangs", True, self.tool_hangs),
            ]
            if self.vendor in ("claude", "codex"):
                found.append(("a subagent hangs", True, self.subagent_hangs))
        if self.vendor == "claude":
            found.append(("a command in the background", False, self.background))
        if self.vendor == "codex":
            found.append(("a command beyond its yield", False, self.beyond_its_yield))
        return found

    def until_said(self, agent: Agent, word: str) -> None:
        self.until_screen(agent, re.escape(word))
        self.until_gone(agent, BUSY)

    def turn(self, agent: Agent, kind: str, *moves: Move, seconds: float = 0) -> None:
        """A whole turn, to its last word."""
        with self.day.turning:
            self.check(agent)
            over = f"over{self.random.randrange(10**6)}"
            script = self.script(kind, *moves, Say(over))
            self.prompt(agent, script)
            self.until(
                agent, lambda: self.day.model.played(script) > len(moves), f"{kind} is played", PATIENCE + seconds
            )
            self.until_said(agent, over)

    def shell(self, command: str) -> Call:
        more = {"yield_time_ms": 600_000} if self.vendor == "codex" else {}
        return Call("shell", command, more)

    def sleeps(self) -> list[Move]:
        """Commands that take together longer than silence may last."""
        found: list[Move] = []
        total = 0
        while total < AFTER * 1.3:
            steps = self.random.randint(1, 6)
            total += steps * 5
            found.append(self.shell(f"for i in $(seq {steps}); do sleep 5; done"))
        return found

    def work(self, agent: Agent) -> None:
        self.turn(agent, "work", *self.sleeps(), seconds=AFTER * 2)

    def long_tool(self, agent: Agent) -> None:
        seconds = int(AFTER) + 20
        command = f"for i in $(seq {seconds}); do {_BURST}; sleep 0.9; done"
        self.turn(agent, "busy", self.shell(command), seconds=seconds * 2)

    def retry(self, agent: Agent) -> None:
        status = 429 if self.vendor == "gemini" else self.random.choice((429, 529))
        over = f"over{self.random.randrange(10**6)}"
        script = self.script("retry", Refuse(status, 2, Say(over), retry_after=3 if status == 429 else 0))
        with self.day.turning:
            self.prompt(agent, script)
            self.until_said(agent, over)

    def stream(self, agent: Agent) -> None:
        over = f"over{self.random.randrange(10**6)}"
        script = self.script("long", Say(f"{WORDS}/{over}", len(WORDS.split("/")) * 3 + 3))
        with self.day.turning:
            self.prompt(agent, script)
            self.until(agent, lambda: re.search(BUSY, self.screen(agent)), "it is at work", 30)
            self.rest(agent, 50)
            self.until_gone(agent, BUSY)

    def subagent(self, agent: Agent) -> None:
        part = self.script("part", *self.sleeps(), Say("Done."))
        with self.day.turning:
            self.prompt(agent, self.script("sub", Call("agent", f"play:{part}"), Say("It is begun.")))
            length = len(self.day.scripts[part])
            asked = self.day.model.played
            self.until(agent, lambda: asked(part) >= length, "the subagent's work is done", PATIENCE + AFTER * 2)
            self.rest(agent, 10)
            self.until_gone(agent, BUSY)

    def background(self, agent: Agent) -> None:
        self.turn(agent, "background", Call("shell", "sleep 20", {"run_in_background": True}))
        self.rest(agent, AFTER)

    def beyond_its_yield(self, agent: Agent) -> None:
        self.turn(agent, "yield", Call("shell", "sleep 30"))
        self.rest(agent, AFTER)

    def dialog(self, agent: Agent) -> None:
        made = f"made-{self.random.randrange(10**6)}.txt"
        call = Call("write", made)
        if ASKS[self.vendor] == "escalated":
            more = {"sandbox_permissions": "require_escalated", "justification": "May I?"}
            call = Call("shell", f"touch {made}", more)
        over = f"over{self.random.randrange(10**6)}"
        self.prompt(agent, self.script("ask", call, Say(over)))
        self.until_screen(agent, DIALOGS[self.vendor])
        self.rest(agent, AFTER + 10)
        if self.random.random() < 0.6:
            self.keys(agent, YES[self.vendor])
            self.until(agent, (self.place / made).exists, "it is written")
            self.until_said(agent, over)
        else:
            self.keys(agent, "Escape")
            self.until_screen(agent, READY[self.vendor])
            self.until_gone(agent, BUSY)
            self.rest(agent, AFTER)

    def draft(self, agent: Agent) -> None:
        script = self.script("draft", Say("The draft was sent."))
        agent.draft = script
        words = f"please play:{script} but"
        self.write(agent, words)
        self.rest(agent, AFTER + 10)
        self.keys(agent, f"-N {len(words) + 4} BSpace")
        self.until_gone(agent, re.escape(words[-14:]))
        agent.draft = ""

    def escape(self, agent: Agent) -> None:
        script = self.script("slow", Say(WORDS, 100))
        with self.day.turning:
            self.prompt(agent, script)
            self.until_screen(agent, BUSY)
            self.rest(agent, self.random.uniform(2, 8))
            self.keys(agent, "Escape")
            if self.vendor == "opencode":
                self.until_screen(agent, "again to interrupt")
                self.keys(agent, "Escape")
            self.until_gone(agent, BUSY)
        self.rest(agent, AFTER + 15)

    def tool_hangs(self, agent: Agent) -> None:
        names = {"claude": "mcp__slow__nap", "codex": "nap", "gemini": "mcp_slow_nap", "opencode": "slow_nap"}
        nap: Move = Call(names[self.vendor], more={"seconds": 1500})
        if self.vendor in ("codex", "gemini") and self.random.random() < 0.5:
            nap = self.shell("sleep 1500")
        self.prompt(agent, self.script("hang", nap, Say("Never.")))

    def subagent_hangs(self, agent: Agent) -> None:
        part = self.script("stall", Stall())
        self.prompt(agent, self.script("sub", Call("agent", f"play:{part}"), Say("It is begun.")))
        self.until(agent, lambda: self.day.model.played(part), "the subagent asks the model")

    # -- headless

    def headless(self, agent: Agent, situation: list[str]) -> None:
        over = Say("The end.")
        seconds = int(AFTER) + 20
        names = {"claude": "mcp__slow__nap", "codex": "nap", "gemini": "mcp_slow_nap", "opencode": "slow_nap"}
        part = self.script("part", *self.sleeps(), Say("Done."))
        busy = self.shell(f"for i in $(seq {seconds}); do {_BURST}; sleep 0.9; done")
        choices: list[tuple[str, bool, tuple[Move, ...]]] = [
            ("works, headless", False, (*self.sleeps(), over)),
            ("works, headless", False, (*self.sleeps(), over)),
            ("a long tool with activity, headless", False, (busy, over)),
            ("tries again after errors, headless", False, (Refuse(429, 2, over, retry_after=3),)),
            ("a stream that hangs, headless", True, (Stall(),)),
            ("no answer at all, headless", True, (Stall(mute=True),)),
            ("a tool that hangs, headless", True, (Call(names[self.vendor], more={"seconds": 1500}), over)),
        ]
        if self.vendor != "codex":  # its `exec` ends with its turn, and its subagents with it
            choices.append(("a subagent works, headless", False, (Call("agent", f"play:{part}"), over)))
        situation[0], must_end, moves = self.random.choice(choices)
        script = self.script("headless", *moves)
        command = [
            word.format(f"please play:{script}").replace("Bash,Agent", "Bash,Agent,Task")
            for word in HEADLESS[self.vendor]
        ]
        began = time.time()
        with self.day.turning:
            with self.day.starting:
                self.launch(agent, command)
                self.until(agent, lambda: self.day.model.played(script), f"the model is asked to play {script}")
            if not must_end:
                self.until(agent, lambda: not self.lives_on(agent), "it ends by itself", PATIENCE + AFTER * 3)
                self.ended_by_itself(agent, situation[0], began)
                return
        self.hangs(agent, situation[0], lambda _: None)

    def ended_by_itself(self, agent: Agent, situation: str, began: float) -> None:
        time.sleep(2)  # the log is read twice a second
        self.check(agent)
        self.lived(agent, situation, began)

    # -- its end

    def hangs(self, agent: Agent, situation: str, play: Callable[[Agent], None]) -> None:
        """It hangs for real: the daemons must find it, whatever the operators do meanwhile."""
        began = time.time()
        play(agent)
        hung = time.time()
        self.remember(agent)
        day = self.day
        held, away = agent.held, day.idle_daemons

        def deadline() -> float:
            anew = sum(at > began for at in day.interrupted)
            more = AFTER * min(anew, 4) + (agent.held - held) + (day.idle_daemons - away)
            return hung + max(AFTER, WAIT if "subagent" in situation else 0) + BUSY_LIMIT + HOLD + LOAD + more

        while not (orders := own_orders(day.by_name[agent.name], began, time.time())):
            if agent.ordered:
                raise Cut
            if not self.lives_on(agent):
                time.sleep(2)
                if not own_orders(day.by_name[agent.name], began, time.time()):
                    raise Died("while it hung")
                continue
            if time.time() > deadline():
                day.verdict(agent, situation, must_end=True, ended=False)
                return
            time.sleep(1)
        took = moment(orders[0]) - hung
        if moment(orders[0]) - began < AFTER - 2:
            day.verdict(agent, f"{situation}, ended too early", must_end=False, ended=True)
            return
        self.remember(agent)
        gone = self.gone(agent, 60)
        day.verdict(agent, situation, must_end=True, ended=gone, seconds=took)

    def gone(self, agent: Agent, seconds: float) -> bool:
        """The whole of what was seen of it ends; a daemon that was killed meanwhile goes on with it."""
        deadline = time.time() + seconds + self.day.idle_daemons
        while left := [pid for pid, at in agent.tree.items() if at and alive(pid) and started_at(pid) == at]:
            if time.time() > deadline:
                self.day.note(
                    f"{agent.name}: {len(left)} of {len(agent.tree)} processes live: {[words_of(p)[:60] for p in left]}"
                )
                return False
            time.sleep(0.5)
        return True

    def cut(self, agent: Agent, situation: str) -> None:
        """An operator's verb: it must end, and nobody else's order may have come before."""
        agent.settled.wait(200)
        verb = agent.ordered
        if not agent.taken:
            self.day.ledger.cut[f"{verb}, not taken"] += 1
            return
        self.day.ledger.cut[verb] += 1
        deadline = time.time() + 120
        while time.time() < deadline and not self.day.events(agent.name, "agent.ended"):
            time.sleep(1)
        ended = bool(self.day.events(agent.name, "agent.ended")) and self.gone(agent, 30)
        self.day.verdict(agent, f"an operator's {verb}", must_end=True, ended=ended)
        if agent.draft and self.day.model.played(agent.draft):
            self.day.note(f"{agent.name}: {verb} sent its draft")

    def broke(self, agent: Agent, situation: str, error: Exception, began: float) -> None:
        """No verdict, unless somebody ordered its end."""
        time.sleep(2)
        counted = any(one.agent == agent.name and one.ended and not one.must_end for one in self.day.ledger.verdicts)
        orders = own_orders(self.day.by_name[agent.name], began, time.time())
        if orders and not counted:
            self.day.verdict(agent, situation, must_end=False, ended=True)
            return
        if counted:
            return
        tail = ""
        if not agent.pane:
            tail = (self.day.dir / f"{agent.name}.out").read_text(errors="replace")[-300:]
        ends = [(e.get("to_status"), e.get("why")) for e in self.day.events(agent.name, "agent.ended")]
        words = f"{agent.name}, {situation}: {type(error).__name__} {error} {ends} {tail}"
        self.day.ledger.broken.append(words)
        print(f"BROKEN: {words}", flush=True)
        for name in list(self.day.by_name):
            for event in self.day.events(name, "kill.signal_sent"):
                if name != agent.name and set(event.get("pids", [])) & set(agent.tree) and moment(event) > began:
                    self.day.verdict(agent, f"{situation}, with {name}", must_end=False, ended=True)
                    return

    def leave(self, agent: Agent) -> None:
        """As a person does it; or the terminal is closed."""
        if self.random.random() < 0.7:
            if self.vendor == "opencode":
                self.write(agent, "/exit")
                self.keys(agent, "Enter")
            else:
                self.keys(agent, "C-c", "C-c")
            with suppress(Broken, Died):
                self.until(agent, lambda: self.day.events(agent.name, "agent.ended"), "it ends", 30)
        self.day.tmux("kill-session", "-t", f"={agent.name}")
        time.sleep(2)

    def end(self, agent: Agent) -> None:
        """Whatever still lives of it, so that the next one comes to a tidy place."""
        self.day.live.pop(agent.name, None)
        with suppress(subprocess.TimeoutExpired):
            if agent.pane:
                self.day.tmux("kill-session", "-t", f"={agent.name}")
            elif agent.process is not None and agent.process.poll() is None:
                agent.process.terminate()


class Operator:
    """One of two people at work: `host` with root's rights, `user`."""

    def __init__(self, day: Day, whose: str) -> None:
        self.day, self.whose = day, whose
        self.random = random.Random(f"{day.seed} operator {whose}")

    def run(self) -> None:
        acts: dict[str, tuple[int, Callable[[], None]]] = {
            "hold": (4, self.hold),
            "stop": (3, lambda: self.end("stop")),
            "kill": (2, lambda: self.end("kill")),
            "cancel": (2, lambda: self.end("cancel")),
            "restore": (3, self.restore),
            "reload": (3, self.reload),
            "restart by TERM": (2, lambda: self.restart(by_kill=False)),
            "restart by KILL": (2, lambda: self.restart(by_kill=True)),
            "hold all": (1 if self.whose == "host" else 0, self.hold_all),
        }
        while not self.day.done.wait(self.random.uniform(8, 25)) and time.time() < self.day.over:
            name = self.random.choices(list(acts), [weight for weight, _ in acts.values()])[0]
            try:
                acts[name][1]()
            except Exception as error:
                self.day.note(f"script: operator {self.whose}, {name}: {error!r}")

    def count(self, act: str) -> None:
        with self.day.lock:
            self.day.ledger.acts[f"{act} ({self.whose})"] += 1

    def target(self) -> Agent | None:
        found = [agent for _, agent in sorted(self.day.live.items()) if not agent.ordered]
        return self.random.choice(found) if found else None

    def verb(self, agent: Agent, *words: str) -> int:
        """To the daemon that has it, which may be the other one by now; root's client speaks to root's alone."""
        sockets = [agent.socket, HOST if agent.socket == USER else USER]
        code = 69
        for socket in sockets:
            seat = self.day.home.host if socket == HOST and self.whose == "host" else self.day.home.user
            code = self.command(seat, words[0], "--socket", socket, *words[1:])
            if code not in (1, *UNTAKEN):
                break
        return code

    def command(self, seat: Seat, *words: str) -> int:
        command = [*seat.prefix, str(BIN / "agent-watchdog"), *words]
        done = subprocess.run(
            command, env=seat.world.environ, cwd=seat.world.dir, capture_output=True, text=True, timeout=180
        )
        return done.returncode

    def end(self, verb: str) -> None:
        agent = self.target()
        if agent is None or not self.day.events(agent.name, "agent.registered"):
            return
        agent.ordered = verb
        try:
            code = self.verb(agent, verb, f"task-{agent.name}" if verb == "cancel" else agent.name)
        finally:
            given = {"kill": "operator"}.get(verb, "stop")
            time.sleep(1)
            agent.taken = any(e["reason"] == given for e in self.day.events(agent.name, "kill.requested"))
            agent.settled.set()
        if agent.taken:
            self.count(verb)
        elif code not in UNTAKEN:
            self.day.note(f"{verb} {agent.name}: exit {code}, and no order")

    def hold(self) -> None:
        """For a while, and let go before it is over, or not."""
        agent = self.target()
        if agent is None or agent.holding:
            return
        agent.holding = True
        try:
            self.hold_one(agent)
        finally:
            agent.holding = False

    def hold_one(self, agent: Agent) -> None:
        seconds = self.random.randint(10, 40)
        agent.held += seconds + 5  # before the act: a deadline that it moves is asked all the time
        began = time.time()
        if self.verb(agent, "hold", agent.name, "--for", f"{seconds}s") != 0:
            return
        since = time.time()
        self.count("hold")
        if self.random.random() < 0.5:
            time.sleep(self.random.uniform(3, seconds - 4))
            until = time.time()
            self.verb(agent, "unhold", agent.name)
            self.count("release")
        else:
            until = began + seconds
            time.sleep(max(0.0, until - time.time()))
        if orders := own_orders(self.day.by_name[agent.name], since, until - 1):
            self.day.verdict(agent, f"held, and ended by the {orders[0]['daemon']}", must_end=False, ended=True)

    def hold_all(self) -> None:
        """Root: the host's daemon ends nobody."""
        seconds = self.random.randint(8, 20)
        if self.command(self.day.home.host, "hold", "--socket", HOST, "--for", f"{seconds}s") == 0:
            self.day.idle_daemons += seconds
            self.count("hold all")

    def restore(self) -> None:
        """A worktree that went to the trash comes back as it was."""
        ended = [a for a in self.day.past if a.worktree and self.day.events(a.name, "agent.ended")]
        trashed = [a for a in ended if not a.worktree.exists()] if ended else []  # type: ignore[union-attr]
        if not trashed:
            return
        agent = self.random.choice(trashed)
        assert agent.worktree is not None
        code = self.verb(agent, "restore", "--repository", str(self.day.dir / "repo"), agent.name)
        readme = agent.worktree / "README"
        if code == 0 and readme.exists() and readme.read_text() == "hello\n":
            self.count("restore")
        elif code not in UNTAKEN:
            self.day.note(f"restore {agent.name}: exit {code}, {'there' if readme.exists() else 'not there'}")

    def reload(self) -> None:
        whose = self.random.choice(("host", "user"))
        with self.day.seats[whose]:
            self.day.write_configuration(whose, self.random.choice((6, 8, 10)))
            daemon = self.day.seat(whose).world.daemon
            assert daemon is not None
            daemon.send_signal(signal.SIGHUP)
        self.count(f"reload {whose}'s daemon")

    def restart(self, *, by_kill: bool) -> None:
        """It is away for a moment, or long enough for the other to take over."""
        whose = self.random.choice(("host", "user"))
        away = self.random.choice((0.0, 1.0, 3.0, 16.0))
        began = time.time()
        with self.day.seats[whose]:
            seat = self.day.seat(whose)
            if by_kill:
                seat.world.crash()
            else:
                code = seat.world.stop()
                if code != 0:
                    self.day.note(f"{whose}'s daemon ended with {code}")
            self.day.interrupted.append(time.time())
            time.sleep(away)
            seat.start()
            self.day.interrupted.append(time.time())
            self.day.idle_daemons += time.time() - began
        self.count(f"restart {whose}'s daemon by {'KILL' if by_kill else 'TERM'}")


@contextmanager
def day(versions: Sequence[Version], seed: str, minutes: float) -> Iterator[Day]:
    """A day, torn down afterwards."""
    with household("day") as home:
        made = Day(home, versions, seed, minutes)
        try:
            yield made
        finally:
            made.close()


def story(made: Day) -> list[str]:
    """Lines for the report."""
    ledger = made.ledger
    loads = made.loads or [0.0]
    acts = ", ".join(f"{act} {count}" for act, count in sorted(ledger.acts.items()))
    return [
        f"seed {made.seed}, {made.minutes:g} minutes, {SESSIONS} sessions, load {min(loads):.0f} to {max(loads):.0f}",
        ledger.summary(),
        f"operators: {acts}",
        "",
        *ledger.matrix(),
        "",
        *(f"{'WRONG KILL' if one.ended else 'MISSED'}: {one.agent}, {one.situation}" for one in ledger.wrong),
        *(f"note: {words}" for words in ledger.notes),
        *(f"not played: {words}" for words in ledger.broken),
    ]
