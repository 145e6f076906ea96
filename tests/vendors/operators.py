"""People at work on a day: they hold, release, stop, kill, cancel, restore, reload, and restart the daemons."""

import random
import signal
import subprocess
import time
from collections.abc import Callable

from tests.household import Seat
from tests.vendors.host import HOST, USER, Agent, Host
from tests.vendors.ledger import own_orders
from tests.world import BIN

UNTAKEN = (69, 75)  # exit statuses of a verb that no daemon took


class Operator:
    """One of two people at work: `host` with root's rights, `user`."""

    def __init__(self, host: Host, whose: str) -> None:
        self.host, self.whose = host, whose
        self.random = random.Random(f"{host.seed} operator {whose}")

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
        while not self.host.done.wait(self.random.uniform(8, 25)) and time.time() < self.host.over:
            name = self.random.choices(list(acts), [weight for weight, _ in acts.values()])[0]
            try:
                acts[name][1]()
            except Exception as error:
                self.host.note(f"script: operator {self.whose}, {name}: {error!r}")

    def count(self, act: str) -> None:
        with self.host.lock:
            self.host.ledger.acts[f"{act} ({self.whose})"] += 1

    def target(self) -> Agent | None:
        found = [agent for _, agent in sorted(self.host.live.items()) if not agent.ordered]
        return self.random.choice(found) if found else None

    def verb(self, agent: Agent, *words: str) -> int:
        """To the daemon that has it, which may be the other one by now; root's client speaks to root's alone."""
        sockets = [agent.socket, HOST if agent.socket == USER else USER]
        code = 69
        for socket in sockets:
            seat = self.host.home.host if socket == HOST and self.whose == "host" else self.host.home.user
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
        if agent is None or not self.host.events(agent.name, "agent.registered"):
            return
        agent.ordered = verb
        try:
            code = self.verb(agent, verb, f"task-{agent.name}" if verb == "cancel" else agent.name)
        finally:
            given = {"kill": "operator"}.get(verb, "stop")
            time.sleep(1)
            agent.taken = any(e["reason"] == given for e in self.host.events(agent.name, "kill.requested"))
            agent.settled.set()
        if agent.taken:
            self.count(verb)
        elif code not in UNTAKEN:
            self.host.note(f"{verb} {agent.name}: exit {code}, and no order")

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
        if orders := own_orders(self.host.by_name[agent.name], since, until - 1):
            self.host.verdict(agent, f"held, and ended by the {orders[0]['daemon']}", must_end=False, ended=True)

    def hold_all(self) -> None:
        """Root: the host's daemon ends nobody."""
        seconds = self.random.randint(8, 20)
        if self.command(self.host.home.host, "hold", "--socket", HOST, "--for", f"{seconds}s") == 0:
            self.host.idle_daemons += seconds
            self.count("hold all")

    def restore(self) -> None:
        """A worktree that went to the trash comes back as it was."""
        ended = [a for a in self.host.past if a.worktree and self.host.events(a.name, "agent.ended")]
        trashed = [a for a in ended if not a.worktree.exists()] if ended else []  # type: ignore[union-attr]
        if not trashed:
            return
        agent = self.random.choice(trashed)
        assert agent.worktree is not None
        code = self.verb(agent, "restore", "--repository", str(self.host.dir / "repo"), agent.name)
        readme = agent.worktree / "README"
        if code == 0 and readme.exists() and readme.read_text() == "hello\n":
            self.count("restore")
        elif code not in UNTAKEN:
            self.host.note(f"restore {agent.name}: exit {code}, {'there' if readme.exists() else 'not there'}")

    def reload(self) -> None:
        whose = self.random.choice(("host", "user"))
        with self.host.seats[whose]:
            self.host.write_configuration(whose, self.random.choice((6, 8, 10)))
            daemon = self.host.seat(whose).world.daemon
            assert daemon is not None
            daemon.send_signal(signal.SIGHUP)
        self.count(f"reload {whose}'s daemon")

    def restart(self, *, by_kill: bool) -> None:
        """It is away for a moment, or long enough for the other to take over."""
        whose = self.random.choice(("host", "user"))
        away = self.random.choice((0.0, 1.0, 3.0, 16.0))
        began = time.time()
        with self.host.seats[whose]:
            seat = self.host.seat(whose)
            if by_kill:
                seat.world.crash()
            else:
                code = seat.world.stop()
                if code != 0:
                    self.host.note(f"{whose}'s daemon ended with {code}")
            time.sleep(away)
            seat.start()
            self.host.interrupted.append(time.time())
            self.host.idle_daemons += time.time() - began
        self.count(f"restart {whose}'s daemon by {'KILL' if by_kill else 'TERM'}")
