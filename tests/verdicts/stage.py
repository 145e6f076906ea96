"""A scene with the real daemon, real agents that live by themselves, and short times."""

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.verdicts.table import LIVES, Came, Row, Scene, judged
from tests.world import World, make_world, started_at, wait_for
from watchdog.core.agent import ENDED

TIMES: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.5},
    "stall": {"after_seconds": 4, "start_limit_seconds": 60},
    "log": {"level": "debug"},
}
SPEAKS = ("beat=", "state=", "lease=", "say=WATCHDOG", "thread=", "busy=", "nest=")
ENDS_WITHIN = 90.0  # seconds for the last of those that are to be ended
SWEEPS = 4  # that must pass without a wish to end one that lives


@dataclass(frozen=True, kw_only=True)
class Actor(Row):
    """An agent by the words of tests/scripted_agents/agent.py. `{directory}` in words and body is the world's.

    `by_run`: started through `run`, with `options`; `in_pane`: by `run` in a tmux pane of its own; else as an
    orchestrator does it, registered with `body`. `prefix`: the command that starts it. `silent`: seconds of silence
    that one that lives has to show for itself at the end, so that its row says something.
    """

    words: str = "sleep"
    by_run: bool = False
    in_pane: bool = False
    options: tuple[str, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    silent: float = 0.0


class Stage:
    """One daemon and its actors."""

    def __init__(self, world: World, rows: Sequence[Actor]) -> None:
        self.world, self.rows = world, rows
        self.processes: dict[str, subprocess.Popen[Any]] = {}
        self.born: dict[str, tuple[int, str | None]] = {}

    def enter(self, rows: Sequence[Actor]) -> None:
        """All of these start, and those that speak have spoken."""
        for row in rows:
            words = row.words.replace("{directory}", str(self.world.dir)).split()
            command = (*row.prefix, *self.world.script("agent.py", *words))
            if row.in_pane:
                self.processes[row.name] = self.in_pane(row.name, command)
            elif row.by_run:
                self.processes[row.name] = self.world.run(row.name, *command, options=row.options)
            else:
                environ = {"BEAT_FILE": f"{self.world.dir}/{row.name}.beat"}
                body = json.loads(json.dumps(dict(row.body)).replace("{directory}", str(self.world.dir)))
                if "touch=" in row.words:
                    body["beat_file"] = environ["BEAT_FILE"]
                self.processes[row.name] = self.world.registered(row.name, *command, environ=environ, **body)
        for row in rows:
            if any(word in row.words for word in SPEAKS):
                self.world.wait_event("agent.first_beat", name=row.name)
        for name, agent in self.agents().items():
            if agent["pid"]:
                self.born[name] = (agent["pid"], started_at(agent["pid"]))

    def in_pane(self, name: str, command: Sequence[str]) -> subprocess.Popen[Any]:
        """Who starts a tmux server with one pane, in which `run` is; he ends at once."""
        run = shlex.join(("agent-watchdog", "run", "--name", name, "--", *command))
        tmux = ("tmux", "-S", str(self.world.dir / f"{name}.tmux"), "-f", "/dev/null")
        return self.world.spawn(*tmux, "new-session", "-d", run, SHELL="/bin/sh")

    def agents(self) -> dict[str, dict[str, Any]]:
        """What the daemon says of each, by name."""
        return {agent["name"]: agent for agent in self.world.ask("GET", "/v1/agents?all=1")[1]["agents"]}

    def settle(self) -> None:
        """Until all that should be ended are, and the others have been looked at often enough to be in doubt."""
        dying = {row.name for row in self.rows if row.right != LIVES}

        def ended() -> bool:
            agents = self.agents()
            return all(agents[name]["status"] in ENDED for name in dying)

        with suppress(AssertionError):  # which of them lives is told by its row
            wait_for(ended, f"{sorted(dying)} are ended", ENDS_WITHIN)
        for row in self.rows:
            if row.silent:
                end = time.monotonic() + 2 * row.silent + ENDS_WITHIN
                while self.world.story(row.name)["agent"]["silence_seconds"] < row.silent and time.monotonic() < end:
                    time.sleep(0.1)
            for event, times in (row.told or {}).items():
                if times:
                    with suppress(AssertionError):  # the same
                        self.world.wait_event(event, seconds=ENDS_WITHIN, name=row.name)
        self.world.wait_sweeps(SWEEPS)

    def came(self, row: Actor) -> Came:
        """By the log, and by the kernel: who is said to have been ended is dead, and nobody else."""
        mine = [event for event in self.world.events() if event.get("name") == row.name]
        called_off = {event["request_id"] for event in mine if event["event"] == "kill.withdrawn"}
        asked = [e for e in mine if e["event"] == "kill.requested" and e["request_id"] not in called_off]
        began = {event["event"]: event for event in reversed(mine)}
        first = began.get("agent.first_beat") or began["agent.registered"]
        seconds = between(first, asked[0]) if asked else None
        came = judged(
            row, asked[0]["reason"] if asked else None, seconds, lambda name: sum(e["event"] == name for e in mine)
        )
        pid, start = self.born.get(row.name, (0, None))
        lives = self.processes[row.name].poll() is None or (start is not None and started_at(pid) == start)
        wrong = [came.wrong] if came.wrong else []
        if lives is bool(asked):
            wrong.append(f"its process is {'alive' if lives else 'dead'}")
        silence = self.world.story(row.name)["agent"]["silence_seconds"]
        if not asked and silence < row.silent:
            wrong.append(f"it was in no doubt: silent for {silence:.1f} s")
        if row.right == LIVES and pid in self.world.signalled():
            wrong.append("it got a signal")
        return Came(came.what, "; ".join(wrong))


def between(first: dict[str, Any], second: dict[str, Any]) -> float:
    began, ended = (datetime.fromisoformat(event["ts"]) for event in (first, second))
    return (ended - began).total_seconds()


def scene(
    name: str,
    rows: Sequence[Actor],
    story: Callable[[Stage], None] | None = None,
    *,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    around: Callable[[World], AbstractContextManager[dict[str, Any]]] = lambda _: nullcontext({}),
    **how: Any,
) -> Scene:
    """All enter, what `story` does happens, and all settle.

    `tables`: sections and keys beside `TIMES`; `around`: what is there before the daemon starts and after
    it has ended; gives the daemon's environment.
    """
    settings = {**TIMES, **{table: {**TIMES.get(table, {}), **keys} for table, keys in (tables or {}).items()}}

    def play(_: Sequence[Row]) -> dict[str, Came]:
        with contextmanager(make_world)(**settings) as world, around(world) as environ:
            stage = Stage(world, rows)
            world.start(**environ)
            stage.enter(stage.rows)
            if story is not None:
                story(stage)
            stage.settle()
            return {row.name: stage.came(row) for row in stage.rows}

    return Scene(name, rows, play, **how)
