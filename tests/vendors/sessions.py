"""One of the sessions of a day, and the situations that it plays, each with its right verdict."""

import random
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.vendors.host import (
    AFTER,
    BUSY_LIMIT,
    HOLD,
    HOST,
    LOAD,
    PATIENCE,
    SESSIONS,
    USER,
    WAIT,
    Agent,
    Broken,
    Cut,
    Died,
    Host,
)
from tests.vendors.ledger import moment, own_orders
from tests.vendors.model import Call, Move, Refuse, Say, Stall
from tests.vendors.stage import words_of
from tests.vendors.steps import ASKS, BUSY, DIALOGS, HEADLESS, PANE, READY, YES
from tests.world import BIN, alive, environ_of, started_at

WORDS = "alpha/bravo/charlie/delta/echo/foxtrot/golf/hotel/india/juliett/kilo/lima/mike/november/oscar/papa"
READS_AGAIN = 20.0  # seconds after which somebody looks whether a prompt was sent
_BURST = "head -c 20000000 /dev/zero | sha256sum >/dev/null"


class Session:
    """One of the twenty: a program in a pane or headless, started again whenever it has ended."""

    def __init__(self, host: Host, index: int) -> None:
        self.host, self.index = host, index
        vendors = list(host.versions)
        self.vendor = vendors[index % len(vendors)]
        self.random = random.Random(f"{host.seed} session {index}")
        self.place = host.places[index]
        self.lives = 0

    def run(self) -> None:
        """Until the day is over."""
        time.sleep(self.index * min(6.0, self.host.minutes * 60 / 3 / SESSIONS))  # they come to work one after another
        while time.time() < self.host.over:
            pane = self.random.random() < 0.7
            agent = self.agent(pane=pane)
            began = time.time()
            self.host.live[agent.name] = agent
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
                self.host.note(f"script: {agent.name}, {situation[0]}: {error!r}")
                self.host.ledger.broken.append(f"{agent.name}, {situation[0]}: {error!r}")
            finally:
                self.end(agent)

    # -- a life

    def agent(self, *, pane: bool) -> Agent:
        self.lives += 1
        name = f"s{self.index:02}-{self.vendor}-{self.lives}"
        socket = self.random.choice((HOST, USER))
        agent = Agent(name, self.vendor, socket, pane=pane)
        if self.random.random() < 0.3:
            agent.worktree = self.host.dir / "wt" / name
            add = ("git", "-C", str(self.host.dir / "repo"), "worktree", "add", "-q", "-b", name, str(agent.worktree))
            self.as_user(*add)
        self.host.ledger.agents += 1
        self.host.past.append(agent)
        return agent

    def as_user(self, *command: str) -> str:
        seat = self.host.home.user
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
        seat = self.host.home.user
        if agent.pane:
            told = shlex.join(["env", f"AGENT_WATCHDOG_SOCKET={agent.socket}", *words])
            tmux = ("tmux", "-S", str(self.host.dir / "tmux"), "-f", "/dev/null")
            made = ("new-session", "-d", "-s", agent.name, "-x", "130", "-y", "45", "-c", str(self.place), told)
            self.as_user(*tmux, *made)
            return
        with (self.host.dir / f"{agent.name}.out").open("wb") as out:
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
        return not self.host.events(agent.name, "agent.ended") and bool(
            self.host.tmux("list-panes", "-t", f"={agent.name}:", "-F", "#{pane_pid}").strip()
        )

    def remember(self, agent: Agent) -> None:
        """Its processes, by the mark in their environment."""
        ids = {e.get("agent_id") for e in self.host.events(agent.name, "agent.registered")} - {None}
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
            if self.host.events(agent.name, "agent.ended"):
                raise Died("at rest")
            time.sleep(1)
        if not self.lives_on(agent):
            raise Died("at rest")

    # -- its pane

    def screen(self, agent: Agent) -> str:
        shown = self.host.tmux("capture-pane", "-p", "-t", f"={agent.name}:")
        return "\n".join(line.rstrip() for line in shown.splitlines() if line.strip())

    def until_screen(self, agent: Agent, pattern: str) -> None:
        self.until(agent, lambda: re.search(pattern, self.screen(agent)), f"{pattern!r} is shown")

    def until_gone(self, agent: Agent, pattern: str) -> None:
        self.until(agent, lambda: not re.search(pattern, self.screen(agent)), f"{pattern!r} is shown no more")

    def keys(self, agent: Agent, *keys: str) -> None:
        for key in keys:
            self.check(agent)
            self.host.tmux("send-keys", "-t", f"={agent.name}:", *key.split())

    def write(self, agent: Agent, words: str) -> None:
        self.check(agent)
        self.host.tmux("send-keys", "-t", f"={agent.name}:", "-l", "--", words)
        self.until_screen(agent, re.escape(words[-14:]))

    def prompt(self, agent: Agent, script: str) -> None:
        agent.script = script
        self.write(agent, f"please play:{script}")
        pressed = float("-inf")

        def sent() -> bool:
            nonlocal pressed
            if self.host.model.played(script):
                return True
            if time.time() - pressed > READS_AGAIN and f"play:{script}" in self.screen(agent):
                self.keys(agent, "Enter")  # of a busy machine Gemini CLI takes a key that comes with others for a paste
                pressed = time.time()
            return False

        self.until(agent, sent, f"the model is asked to play {script}")

    def script(self, kind: str, *moves: Move) -> str:
        """A name of its own for each, as a model refuses a script so many times."""
        with self.host.lock:
            self.host.number += 1
            name = f"{kind}-{self.host.number}"
        self.host.scripts[name] = moves
        return name

    # -- what it plays

    def in_a_pane(self, agent: Agent, situation: list[str]) -> None:
        agent.free = self.vendor != "gemini" or self.random.random() < 0.5
        more: dict[str, tuple[str, ...]] = {
            "claude": ("--allowedTools", "Bash,Agent,mcp__slow__nap"),
            "gemini": ("--yolo",) if agent.free else (),
        }
        began = time.time()
        with self.host.starting:
            self.launch(agent, (*PANE[self.vendor], *more.get(self.vendor, ())))
            self.until_screen(agent, READY[self.vendor])
        self.lived(agent, "start", began)
        for _ in range(self.random.randint(2, 6)):
            if time.time() > self.host.over:
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
        orders = own_orders(self.host.by_name[agent.name], began, time.time())
        self.host.verdict(agent, situation, must_end=False, ended=bool(orders))
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
        with self.host.turning:
            self.check(agent)
            over = f"over{self.random.randrange(10**6)}"
            script = self.script(kind, *moves, Say(over))
            self.prompt(agent, script)
            self.until(
                agent, lambda: self.host.model.played(script) > len(moves), f"{kind} is played", PATIENCE + seconds
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
        with self.host.turning:
            self.prompt(agent, script)
            self.until_said(agent, over)

    def stream(self, agent: Agent) -> None:
        over = f"over{self.random.randrange(10**6)}"
        script = self.script("long", Say(f"{WORDS}/{over}", len(WORDS.split("/")) * 3 + 3))
        with self.host.turning:
            self.prompt(agent, script)
            self.until_screen(agent, rf"{over}\s+50")  # the last second: Codex shows no more beside its words
            self.until_gone(agent, BUSY)

    def subagent(self, agent: Agent) -> None:
        part = self.script("part", *self.sleeps(), Say("Done."))
        with self.host.turning:
            self.prompt(agent, self.script("sub", Call("agent", f"play:{part}"), Say("It is begun.")))
            length = len(self.host.scripts[part])
            asked = self.host.model.played
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
        with self.host.turning:
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
        if (
            self.vendor == "gemini" and self.random.random() < 0.5
        ):  # Codex goes on without its answer after half a minute
            nap = self.shell("sleep 1500")
        self.prompt(agent, self.script("hang", nap, Say("Never.")))

    def subagent_hangs(self, agent: Agent) -> None:
        part = self.script("stall", Stall())
        self.prompt(agent, self.script("sub", Call("agent", f"play:{part}"), Say("It is begun.")))
        self.until(agent, lambda: self.host.model.played(part), "the subagent asks the model")
        agent.script = part

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
        script = agent.script = self.script("headless", *moves)
        command = [
            word.format(f"please play:{script}").replace("Bash,Agent", "Bash,Agent,Task")
            for word in HEADLESS[self.vendor]
        ]
        began = time.time()
        with self.host.turning:
            with self.host.starting:
                self.launch(agent, command)
                self.until(agent, lambda: self.host.model.played(script), f"the model is asked to play {script}")
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
        day = self.host
        held, away = agent.held, day.idle_daemons
        # Claude Code takes a call of an MCP tool to the background after two minutes, and rests.
        claude = self.vendor == "claude" and "tool" in situation
        rests = WAIT if "subagent" in situation or claude else 0.0

        def deadline() -> float:
            # A daemon that begins anew knows neither since when it hangs nor since when its end is held back.
            begun = max([hung, *(at for at in day.interrupted if at > began)])
            more = (agent.held - held) + (day.idle_daemons - away)
            return begun + AFTER + rests + BUSY_LIMIT + HOLD + LOAD + more

        while not (orders := own_orders(day.by_name[agent.name], began, time.time())):
            if agent.ordered:
                raise Cut
            if not self.lives_on(agent):
                time.sleep(2)
                if not own_orders(day.by_name[agent.name], began, time.time()):
                    raise Died("while it hung")
                continue
            if (agent.script, 1) in day.model.asked and not rests:
                raise Broken("it did not hang: the model was asked to go on")
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
        deadline = time.time() + seconds + self.host.idle_daemons
        while left := [pid for pid, at in agent.tree.items() if at and alive(pid) and started_at(pid) == at]:
            if time.time() > deadline:
                self.host.note(
                    f"{agent.name}: {len(left)} of {len(agent.tree)} processes live: {[words_of(p)[:60] for p in left]}"
                )
                return False
            time.sleep(0.5)
        return True

    def cut(self, agent: Agent, situation: str) -> None:
        """An operator's verb: it must end, and no other caller's order may have come before."""
        agent.settled.wait(200)
        verb = agent.ordered
        if not agent.taken:
            self.host.ledger.cut[f"{verb}, not taken"] += 1
            return
        self.host.ledger.cut[verb] += 1
        deadline = time.time() + 120
        while time.time() < deadline and not self.host.events(agent.name, "agent.ended"):
            time.sleep(1)
        ended = bool(self.host.events(agent.name, "agent.ended")) and self.gone(agent, 30)
        self.host.verdict(agent, f"an operator's {verb}", must_end=True, ended=ended)
        if agent.draft and self.host.model.played(agent.draft):
            self.host.note(f"{agent.name}: {verb} sent its draft")

    def broke(self, agent: Agent, situation: str, error: Exception, began: float) -> None:
        """No verdict, unless somebody ordered its end."""
        time.sleep(2)
        counted = any(one.agent == agent.name and one.ended and not one.must_end for one in self.host.ledger.verdicts)
        orders = own_orders(self.host.by_name[agent.name], began, time.time())
        if orders and not counted:
            self.host.verdict(agent, situation, must_end=False, ended=True)
            return
        if counted:
            return
        tail = ""
        if not agent.pane:
            tail = (self.host.dir / f"{agent.name}.out").read_text(errors="replace")[-300:]
        ends = [(e.get("to_status"), e.get("why")) for e in self.host.events(agent.name, "agent.ended")]
        words = f"{agent.name}, {situation}: {type(error).__name__} {error} {ends} {tail}"
        self.host.ledger.broken.append(words)
        print(f"BROKEN: {words}", flush=True)
        for name in list(self.host.by_name):
            for event in self.host.events(name, "kill.signal_sent"):
                if name != agent.name and set(event.get("pids", [])) & set(agent.tree) and moment(event) > began:
                    self.host.verdict(agent, f"{situation}, with {name}", must_end=False, ended=True)
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
                self.until(agent, lambda: self.host.events(agent.name, "agent.ended"), "it ends", 30)
        self.host.tmux("kill-session", "-t", f"={agent.name}")
        time.sleep(2)

    def end(self, agent: Agent) -> None:
        """Whatever still lives of it, so that the next one comes to a tidy place."""
        self.host.live.pop(agent.name, None)
        with suppress(subprocess.TimeoutExpired):
            if agent.pane:
                self.host.tmux("kill-session", "-t", f"={agent.name}")
            elif agent.process is not None and agent.process.poll() is None:
                agent.process.terminate()
