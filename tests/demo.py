"""`make demo`: the README's story in under a minute, with real processes, a real daemon and a real git worktree.

Three agents, and times that are short (silence 4 s instead of 120 s): `healthy` beats, `stubborn` falls silent, ignores
TERM and has a child in a session of its own, `crashed` is killed by somebody else. Everything lies in one temporary
directory that is removed at the end. Exit status 0 only if each of them ended as it should.
"""

import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from tests.world import World, alive, git, make_repository, make_world, pids_with

LIMIT = 55.0  # seconds for all of it
TOLD = {
    "agent.registered": "after_seconds",
    "agent.late": "why",
    "agent.stalled": "why",
    "agent.gone": "why",
    "kill.requested": "why",
    "kill.signal_sent": "why",
    "kill.finished": "why",
    "cleanup.hook_finished": "message",
    "agent.ended": "status",
}


class Demo:
    """Tells what the daemon logs, checks what became of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.began = time.monotonic()
        self.told = 0
        self.wrong: list[str] = []

    def play(self) -> int:
        """The story; its exit status."""
        world = self.world
        repository = make_repository(world.dir / "repo")
        tree = world.dir / "wt-stubborn"
        git(repository, "worktree", "add", "-q", str(tree), "-b", "stubborn-work")
        self.title("the daemon looks every second; silence counts from 4 s on; TERM has 2 s until KILL")
        world.start()

        self.title("three agents begin:  agent-watchdog run --name NAME -- CMD")
        world.run("healthy", *world.script("agent.py", "beat=0.5"), options=("--stall-after", "4s"))
        options = ("--stall-after", "4s", "--task", "T-1", "--worktree", str(tree), "--temp-dir", "auto")
        world.run("stubborn", *world.script("stubborn.sh"), options=options, TMPDIR=str(world.dir))
        world.run("crashed", "sleep", "600")
        agents = {name: world.wait_status(name, "running") for name in ("healthy", "stubborn", "crashed")}
        self.command("list")

        self.title("somebody kills `crashed` (SIGKILL, as the kernel does when memory is short)")
        found_after = self.crash(agents["crashed"]["pid"])

        self.title("`stubborn` sends its last heartbeat about now")
        whole = agents["stubborn"]["agent_id"]
        temp_dir = Path(world.json("why", "stubborn")["agent"]["temp_dir"])
        processes = pids_with("AGENT_WATCHDOG_ID", whole)
        self.until("agent.ended", "stubborn")
        self.command("list", "--all")
        self.command("why", "stubborn")

        self.title("the outcome")
        ended = world.agents()
        trash = list((repository / ".git/agent-watchdog/trash").glob("*/tree/README"))
        self.check(f"crashed was found dead after {found_after:.2f} s", found_after < 1.0)
        self.check("its status says so: failed, by signal 9", ended["crashed"]["exit_signal"] == signal.SIGKILL)
        self.check(f"the {len(processes)} processes of stubborn are dead", not any(map(alive, processes)))
        self.check("nothing else carries its marker", not pids_with("AGENT_WATCHDOG_ID", whole))
        self.check("its temp dir is removed", not temp_dir.exists())
        self.check("its worktree is in the trash of the repository", not tree.exists() and len(trash) == 1)
        self.check("git does not list it any more", str(tree) not in git(repository, "worktree", "list"))
        self.check("its branch is still there", "stubborn-work" in git(repository, "branch"))
        self.check("healthy lives", alive(agents["healthy"]["pid"]) and ended["healthy"]["status"] == "running")

        self.title("`healthy` is ended by an operator:  agent-watchdog kill healthy")
        self.command("kill", "healthy", "--reason", "the demo is over")
        self.tell()
        self.check("healthy is ended", not alive(agents["healthy"]["pid"]))
        self.check("the daemon stops when it is told to", world.stop() == 0)
        print(
            f"\n{time.monotonic() - self.began:.0f} s; "
            + (f"WRONG: {self.wrong}" if self.wrong else "all as it should be")
        )
        return 1 if self.wrong else 0

    def crash(self, pid: int) -> float:
        """KILL from outside; seconds until the daemon said that it is gone."""
        pidfd = os.pidfd_open(pid)  # the process that `list` showed, whatever becomes of its number
        killed = time.monotonic()
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        self.world.wait_event("agent.gone", name="crashed")
        found = time.monotonic() - killed
        self.until("agent.ended", "crashed")
        return found

    def until(self, event: str, name: str) -> None:
        """Tell what happens until that has happened."""
        while not self.world.count(event, name=name):
            if time.monotonic() > self.began + LIMIT:
                raise SystemExit(f"not within {LIMIT:.0f} s: {event} of {name}\n{self.world.log.read_text()[-3000:]}")
            self.tell()
            time.sleep(0.05)
        self.tell()

    def tell(self) -> None:
        """Print what the daemon has logged since the last time."""
        events = self.world.events()
        for entry in events[self.told :]:
            if entry["event"] in TOLD:
                self.line(entry)
        self.told = len(events)

    def line(self, entry: dict[str, Any]) -> None:
        text = entry.get(TOLD[entry["event"]], "")
        if entry["event"] == "agent.registered":
            text = f"once it promises heartbeats, {text:g} s of silence are too long"
        elif "hook" in entry:
            text = f"{entry['hook']}: {entry['outcome']}; {text}"
        shown = f"{entry['event']:<22} {text}".replace(str(self.world.dir), "…")
        print(f"  {time.monotonic() - self.began:5.1f} s  {entry.get('name', ''):<9} {shown}", flush=True)

    def title(self, text: str) -> None:
        self.tell()
        print(f"\n== {text}", flush=True)

    def command(self, *words: str) -> None:
        """Run the client as a user would, and show it."""
        self.tell()
        print(f"\n$ agent-watchdog {' '.join(words)}")
        print(self.world.cli(*words).stdout.replace(str(self.world.dir), "…"), flush=True)

    def check(self, what: str, fine: bool) -> None:
        print(f"  {'ok   ' if fine else 'WRONG'}  {what}", flush=True)
        if not fine:
            self.wrong.append(what)


def main() -> int:
    signal.signal(signal.SIGTERM, _leave)
    times = {"sweep": {"interval_seconds": 1}, "kill": {"grace_seconds": 2, "verify_seconds": 10}}
    with contextmanager(make_world)(**times) as world:
        return Demo(world).play()


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
