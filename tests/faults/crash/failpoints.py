"""The daemon with a failpoint: `python -m tests.faults.crash.failpoints PLAN.json --config ...`.

An effect is what cannot be taken back: a commit of the registry, a signal, a hook run, a write to a cgroup, and in a
hook's own process whatever it changes on disk. Each is written to the trace before it is done; at the one that the plan
names the daemon is killed or stopped, right before it or right after it. The package itself knows nothing of this: the
few functions through which all effects go are wrapped before its `main` is called.
"""

import json
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

CHANGES = frozenset({"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink"})  # sys.audit events
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Effect:
    """The `count`th effect of that name since the daemon's (or the helper's) start."""

    name: str
    count: int

    def __str__(self) -> str:
        return f"{self.name} #{self.count}"


@dataclass(frozen=True)
class Plan:
    """Where the trace goes, and where the daemon gets which signal; without `at` nothing happens to it."""

    trace: str
    at: Effect | None = None
    after: bool = False
    signal: str = "SIGKILL"

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(asdict(self)))
        return path

    @classmethod
    def read(cls, path: str) -> "Plan":
        stored = json.loads(Path(path).read_text())
        at = stored.pop("at")
        return cls(at=Effect(**at) if at else None, **stored)


def effects(trace: Path) -> list[tuple[Effect, int | None]]:
    """What a trace tells, in order; for a signal the pid that it went to."""
    counts: Counter[tuple[str, str]] = Counter()
    found = []
    for line in trace.read_text().splitlines() if trace.exists() else ():
        process, name, pid = line.split("\t")
        counts[process, name] += 1
        found.append((Effect(name, counts[process, name]), int(pid) if pid else None))
    return found


class Points:
    """All effects of one process pass here."""

    def __init__(self, plan: Plan, daemon: int, *, begin: str = "", hold: Callable[[], object] = int) -> None:
        """Effects count from the one named `begin` on; `hold`: what we do once the daemon got its signal."""
        self._plan = plan
        self._daemon = daemon
        self._begin = begin
        self._hold = hold
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def effect(self, name: str, pid: int | None = None) -> Iterator[None]:
        """Around one effect."""
        if not name.startswith(self._begin):
            yield
            return
        with self._lock:
            self._begin = ""
            self._counts[name] += 1
            here = Effect(name, self._counts[name]) == self._plan.at
        if here and not self._plan.after:
            self._strike()
        self._write(f"{os.getpid()}\t{name}\t{pid or ''}\n")
        yield
        if here and self._plan.after:
            self._strike()

    def _write(self, line: str) -> None:
        """Open for each line: a hook's process closes every descriptor that it was not given."""
        trace = os.open(self._plan.trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(trace, line.encode())
        os.close(trace)

    def _strike(self) -> None:
        os.kill(self._daemon, signal.Signals[self._plan.signal])
        self._hold()


def in_the_daemon(plan: str) -> None:
    """Wrap commits, signals, hook runs and writes to cgroups of this process, and give its helpers failpoints too."""
    from sqlalchemy.engine.default import DefaultDialect

    from watchdog.core.hooks import HookContext, HookResult, HookSpec
    from watchdog.helpers import pool
    from watchdog.registry import async_registry

    points = Points(Plan.read(plan), os.getpid(), begin="commit open_request")
    writing = threading.local()
    run: Any = async_registry._Write.run
    commit: Any = DefaultDialect.do_commit
    run_hook, send = pool.HelperPool.run_hook, signal.pidfd_send_signal

    def named_run(write: Any) -> None:
        writing.name = write_name(write.call)
        run(write)
        writing.name = None

    def do_commit(dialect: Any, connection: Any) -> None:
        name = getattr(writing, "name", None)
        if name is None:  # a read
            commit(dialect, connection)
            return
        with points.effect(f"commit {name}"):
            commit(dialect, connection)

    async def hook(own: pool.HelperPool, spec: HookSpec, context: HookContext) -> HookResult:
        with points.effect(f"hook {spec.name}"):
            return await run_hook(own, spec, context)

    def signalled(pidfd: int, number: int, *rest: Any) -> None:
        with points.effect(f"signal {signal.Signals(number).name}", pid_behind(pidfd)):
            send(pidfd, number, *rest)

    def cgroups(event: str, arguments: tuple[Any, ...]) -> None:
        if (event == "open" and arguments[2] & WRITING) or event in CHANGES:
            path = str(arguments[0])
            if path.startswith("/sys/fs/cgroup/"):
                with points.effect(f"cgroup {event} {os.path.basename(path)}"):
                    pass

    # Each write is a transaction of its own: every state that a group could leave, and those between.
    async_registry.TOGETHER = 1
    setattr(async_registry._Write, "run", named_run)  # noqa: B010 - mypy refuses the plain assignment
    setattr(DefaultDialect, "do_commit", do_commit)  # noqa: B010
    setattr(pool.HelperPool, "run_hook", hook)  # noqa: B010
    signal.pidfd_send_signal = signalled
    setattr(pool, "HELPER", ("-I", os.path.abspath(__file__), "--helper", plan, str(os.getpid())))  # noqa: B010
    sys.addaudithook(cgroups)


def in_a_helper(plan: Plan, daemon: int) -> None:
    """What a built-in hook changes on disk. Once the daemon has been struck, nothing more: the helper ends the hook."""
    from watchdog.core.hooks import CleanupSettings, HookContext, HookResult
    from watchdog.owner import helper

    points = Points(plan, daemon, hold=signal.pause)
    built_in, name = helper.built_in_hook, ""

    def changes(event: str, arguments: tuple[Any, ...]) -> None:
        if not name or arguments[:1] == (plan.trace,):
            return
        words = event if event in CHANGES else ""
        if event == "open" and not isinstance(arguments[0], int) and arguments[2] & WRITING:
            words = "write"
        if words:
            with points.effect(f"{name}: {words} {masked(arguments[0])}"):
                pass

    def hook(which: str, context: HookContext, settings: CleanupSettings) -> HookResult:
        nonlocal name
        name = which
        result = built_in(which, context, settings)
        name = ""
        return result

    setattr(helper, "built_in_hook", hook)  # noqa: B010
    sys.addaudithook(changes)


def write_name(call: Any) -> str:
    """A write of the registry by its method, and by the word that tells it from others of the method."""
    name, arguments = call.func.__name__, call.args
    words: dict[str, Callable[[], object]] = {
        "save_step": lambda: arguments[1],
        "transition": lambda: arguments[2],
        "claim_agent": lambda: arguments[3],
        "close_agent": lambda: arguments[1].status,
        "add_event": lambda: arguments[0],
        "open_run": lambda: arguments[2],
        "finish_run": lambda: arguments[0].rpartition("/")[2],
        "finish_request": lambda: arguments[1],
        "save_sweep": lambda: f"of {len(arguments[0])}",
    }
    return f"{name} {words.get(name, str)()}".strip()


def masked(path: object) -> str:
    """The last part of a path, without what differs from run to run."""
    return re.sub(r"[0-9a-f]{8,}", "ID", os.path.basename(str(path)))


def pid_behind(pidfd: int) -> int:
    """The process that a pidfd is of (proc(5), /proc/PID/fdinfo)."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        if line.startswith("Pid:"):
            return int(line.split()[1])
    raise LookupError(f"{pidfd} is not a pidfd")


def main() -> int:
    """The daemon, or (by path, isolated) a helper of it."""
    if sys.argv[1] == "--helper":
        in_a_helper(Plan.read(sys.argv[2]), int(sys.argv[3]))
        from watchdog.owner import helper

        helper.main()
        return 0
    plan = sys.argv.pop(1)
    in_the_daemon(plan)
    from watchdog.service.main import main as start

    return start()


if __name__ == "__main__":
    sys.exit(main())
