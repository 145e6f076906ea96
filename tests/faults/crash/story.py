"""The scenario that is told again and again: stall, kill, cleanup; and the end state that it must always come to.

A deaf agent with a deaf grandchild in a session of its own, a worktree, a temp dir and a task falls silent. A second
agent beats on and writes down every signal that it gets. The hook of the test takes effect once for each run id,
however often it is run: so config/doc/cleanup.md asks for it.
"""

import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.crash.failpoints import Effect, Plan, effects
from tests.world import World, alive, git, make_repository, make_world, pids_with, wait_for

MAIN = "tests.faults.crash.failpoints"
ROOT = Path(__file__).parents[3]
TIMES: dict[str, dict[str, Any]] = {
    "sweep": {"interval_seconds": 0.3},
    "stall": {"after_seconds": 2, "start_limit_seconds": 60},
    "kill": {"grace_seconds": 0.6, "verify_seconds": 60},
    "registry": {"url": ""},
}
HOOK = """
[[hook]]
name = "once"
command = ["/bin/sh", "-c", "echo $AGENT_WATCHDOG_RUN >> {seen}; mkdir -p {done}/$AGENT_WATCHDOG_RUN"]
[[hook]]
name = "worktree"
run = "worktree"
[[hook]]
name = "temp_dir"
run = "temp_dir"
"""


@dataclass(frozen=True)
class End:
    """How it ended: all that must be equal, whatever happened to the daemon on the way."""

    rows: dict[str, Any]
    files: list[str]
    refs: str
    hooks: list[str]
    alive: dict[str, bool]
    witnessed: list[str]
    strangers: list[int]  # who got a signal and was not of the agent's tree


class Story:
    """One telling of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.trace = world.dir / "trace"
        self.effects: list[tuple[Effect, int | None]] = []
        self.repository = make_repository(world.dir / "repo")
        self.tree = world.dir / "wt"
        git(self.repository, "worktree", "add", "-q", str(self.tree), "-b", "work")
        git(self.repository, "branch", "merged", "work")
        world.configure(**TIMES)
        with world.config.open("a") as config:
            config.write(HOOK.format(seen=world.dir / "seen", done=world.dir / "done"))
        self.family: set[int] = set()

    def start(self, plan: Plan | None) -> None:
        """The daemon, with failpoints where there is a plan."""
        if plan is None:
            self.world.start()
            return
        path = plan.write(self.world.dir / "plan.json")
        self.world.start(daemon=(sys.executable, "-m", MAIN, str(path)), PYTHONPATH=str(ROOT))

    def agents(self) -> None:
        """The one that falls silent when it is told to (`hush`), with all that it has, and the bystander."""
        world = self.world
        world.run("well", *world.script("agent.py", "witness", "beat=0.2"), options=("--stall-after", "30s"))
        world.sql("INSERT INTO orchestrator_task (task_id, status, created_at) VALUES ('T-1', 'running', '2026-01-01')")
        self.wrapper = world.run(
            "mute",
            *world.script("agent.py", "deaf", "grandchild", "beat=0.1/hush"),
            options=("--worktree", str(self.tree), "--temp-dir", "auto", "--task", "T-1"),
        )
        self.agent_id = world.wait_event("agent.registered", name="mute")["agent_id"]

        def both() -> list[int] | None:
            return them if len(them := self.members()) == 2 else None

        self.family = set(wait_for(both, "the agent and its grandchild live"))
        for name in ("well", "mute"):
            world.wait_event("agent.first_beat", name=name)

    def hush(self) -> None:
        """From now on its time runs."""
        (self.world.dir / "hush").touch()

    def members(self) -> list[int]:
        """Living processes of the silent agent; its wrapper is none of them."""
        return [pid for pid in pids_with("AGENT_WATCHDOG_ID", self.agent_id) if pid != self.wrapper.pid]

    def died(self) -> bool:
        """Wait until the plan has killed the daemon, or its story has ended without that (False)."""
        daemon = self.world.daemon
        assert daemon is not None

        def look() -> str | None:
            if daemon.poll() is not None:
                return "died"
            return "ended" if self.closed() and self.world.count("agent.ended", name="mute") else None

        return wait_for(look, "the daemon dies or ends its story") == "died"

    def closed(self) -> bool:
        """Whether the last rows are written."""
        query = "SELECT (SELECT count(*) FROM kill_request WHERE status IN ('open', 'claimed')), status"
        return self.rows(f"{query} FROM agent_lifecycle WHERE name = 'mute'") == [(0, "killed")]

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Read what is committed."""
        path = f"file:{self.world.state}/registry.db?mode=ro"
        with closing(sqlite3.connect(path, uri=True, timeout=20)) as registry:
            return registry.execute(statement).fetchall()

    def end(self) -> End:
        """Wait until all is over, end the daemon, and look at what there is."""
        wait_for(self.closed, "the silent agent's row is closed")
        living = {"well": alive(self.world.story("well")["agent"]["pid"]), "mute": bool(self.members())}
        assert self.world.stop() == 0
        wait_for(lambda: self.wrapper.poll() is not None, "its wrapper ends as it ended")
        self.effects = effects(self.trace)
        signalled = self.world.signalled() | {pid for _, pid in self.effects if pid is not None}
        return End(
            rows=self._rows(),
            files=self._files(),
            refs=self._refs(),
            hooks=self.hooks(),
            alive=living,
            witnessed=self.world.witnessed(),
            strangers=sorted(signalled - self.family),
        )

    def hooks(self) -> list[str]:
        """The test's hooks that have taken effect for the silent agent."""
        return sorted(path.name for path in (self.world.dir / "done" / self.agent_id).glob("*"))

    def end_family(self) -> None:
        """Power off: the tree and its wrapper are no more."""
        for pid in self.family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.wrapper.kill()
        wait_for(lambda: not any(alive(pid) for pid in self.family), "all of it is dead")

    def copy_of_registry(self) -> Path:
        """The file as it is now: its beats are in it, or after a restart nothing is promised any more."""
        wait_for(lambda: self.rows("SELECT name FROM agent_lifecycle WHERE name = 'mute' AND promised"), "it promises")
        path = self.world.dir / "copy.db"
        source = f"file:{self.world.state}/registry.db?mode=ro"
        with closing(sqlite3.connect(source, uri=True)) as registry, closing(sqlite3.connect(path)) as copy:
            registry.backup(copy)
        return path

    def _rows(self) -> dict[str, Any]:
        """The five tables, without times, counts of tries, and the orders that were withdrawn before any signal.

        Who ended while no daemon was there may have an unknown exit status. A hook whose answer nobody was there to
        hear finds its work done when it is run again.
        """
        who = f"agent_id = '{self.agent_id}'"
        ((outcome,),) = self.rows(f"SELECT outcome FROM kill_request WHERE {who} AND status = 'done'")
        outcome = json.loads(outcome)
        assert outcome["exit_signal"] in (9, None)
        outcome["pid"] = outcome["pid"] in self.family
        outcome["processes"] = sorted(process["how"].partition(",")[0] for process in outcome["processes"])
        outcome["cleanup"] = [[run["hook"], _said(run["outcome"], run["message"])] for run in outcome["cleanup"]]
        for key in ("killed_at", "seconds_since_heartbeat", "exit_signal"):
            del outcome[key]
        events = self.rows(
            f"SELECT event, to_status, why FROM lifecycle_event WHERE {who} AND event IN"
            " ('agent.registered', 'agent.ended', 'kill.finished', 'cleanup.hook_finished') ORDER BY id"
        )
        runs = self.rows(f"SELECT hook, status, message, finished_at FROM cleanup_run WHERE {who} ORDER BY hook")
        return {
            table: self._plain(rows)
            for table, rows in {
                "agent_lifecycle": self.rows(
                    "SELECT name, status, exit_code, error_message, completed_at IS NOT NULL"
                    " FROM agent_lifecycle ORDER BY name"
                ),
                "orchestrator_task": self.rows("SELECT task_id, status, error_message FROM orchestrator_task"),
                "kill_request": [
                    *self.rows(
                        f"SELECT reason, status, step, finished_at IS NOT NULL FROM kill_request WHERE {who}"
                        " AND status != 'withdrawn'"
                    ),
                    outcome,
                ],
                "cleanup_run": [(hook, _said(how, words), finished is not None) for hook, how, words, finished in runs],
                "lifecycle_event": sorted((event, to, _said("", why)) for event, to, why in events),
            }.items()
        }

    def _plain(self, rows: object) -> Any:
        """Without numbers and names that are another's in each telling, and what a host that kept us waiting adds."""
        text = json.dumps(rows, sort_keys=True).replace(self.agent_id, "ID").replace(str(self.world.dir), "DIR")
        text = re.sub("; [0-9.hms]+ not counted: the daemon could not hear it", "", text)
        return json.loads(re.sub(r"[\d.]+(?= ?s\b| looks)|(?<=mute-)[0-9a-f]{8}", "N", text))

    def _refs(self) -> str:
        """What git says; its one commit has another name in each telling."""
        said = [git(self.repository, *words) for words in (("for-each-ref",), ("worktree", "list"), ("fsck",))]
        commit = git(self.repository, "rev-parse", "main").strip()
        text = "".join(said).replace(commit, "FIRST").replace(commit[:7], "FIRST")
        return re.sub(" +", " ", text.replace(str(self.world.dir), "DIR"))

    def _files(self) -> list[str]:
        """All that lies in the places that cleanup has to do with."""
        found = [
            str(path.relative_to(self.world.dir))
            for place in ("repo/.git/worktrees", "repo/.git/agent-watchdog", "wt", ".agent-watchdog-trash-*", "tmp")
            for top in self.world.dir.glob(place)
            for path in [top, *top.rglob("*")]
        ]
        return sorted(name.replace(self.agent_id, "ID") for name in found)


def _said(outcome: str, message: str) -> str:
    """What a built-in hook said of its work, whether it was this run's or the one before, which could not say it."""
    return re.sub(
        r"^(done|nothing)?:? ?(\w+: (done|nothing): )?.*( is not there| brings it back| bytes freed)$",
        "done",
        f"{outcome}: {message}",
    )


@contextmanager
def telling() -> Iterator[Story]:
    """One world, one story."""
    with contextmanager(make_world)() as world:
        yield Story(world)


def tell(at: Effect | None, *, after: bool = False) -> tuple[End, Story, bool]:
    """The whole story with the daemon killed at that effect, or nowhere. False: it never came to that effect."""
    with telling() as story:
        story.start(Plan(str(story.trace), at, after))
        story.agents()
        story.hush()
        struck = story.died()
        if struck:
            story.world.start()
        return story.end(), story, struck


@dataclass(frozen=True)
class Point:
    """Where the daemon is killed: right before or right after an effect."""

    at: Effect
    after: bool

    def __str__(self) -> str:
        return f"{'after' if self.after else 'before'} {self.at}"


def points(story: Story) -> list[Point]:
    """Before and after each effect up to the closing of the order.

    Without effects of sweeps, which come when they come. In a hook's process an effect is only announced: what is after
    it is before the next one.
    """
    found = [effect for effect, _ in story.effects]
    last = [effect.name for effect in found].index("commit close_agent killed")
    own = [one for one in found[: last + 1] if not one.name.startswith(("commit probe", "commit save_sweep"))]
    return [Point(one, after) for one in own for after in (False, True) if not (after and ": " in one.name)]
