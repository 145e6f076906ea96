"""One tree is ended whole: real processes that fork, restart, stop, and turn out to be somebody else's."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cgroups import needs_v2, path_of, scratch
from tests.e2e.test_words import HOLDS_ITS_EXIT
from tests.processes.conftest import needs_root, pending
from tests.world import alive, pids_with, wait_for
from watchdog.agents.fleet import Agent, Fleet
from watchdog.clock import Clock
from watchdog.core.agent import Policy, Registration, Status
from watchdog.core.kill import KillStep, Polite
from watchdog.core.process import Identity, TreeMember, cgroup_names
from watchdog.errors import RegistryUnavailable, SignalRefused
from watchdog.kill import pinned_tree
from watchdog.kill.terminate import Grace, TerminationPlan, TerminationResult, TreeTermination
from watchdog.probes.process_scan import ProcessScanner
from watchdog.processes import bounded, cgroups, identity
from watchdog.processes.signals import Guard, SendResult, SignalTarget, kill_cgroup, send
from watchdog.processes.survey import Trees

HOST = identity.this_host(None)
A = f"a-{os.getpid()}"  # the agent: whoever carries another worker's marker is not its own
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Scene:
    """Agents that are real processes, and whatever they start; all that is left at the end is killed by pid."""

    def __init__(self, directory: Path, held: contextlib.ExitStack) -> None:
        self.dir = directory
        self.fleet = Fleet()
        executor = ThreadPoolExecutor(1)
        held.callback(executor.shutdown)
        self.scanner = ProcessScanner(self.fleet, executor, HOST)
        self.steps: list[str] = []
        self.graces: list[tuple[float, bool]] = []  # when each that was told of began, and whether of all
        self.sent: list[tuple[str, list[int]]] = []
        self.before: dict[str, Callable[[], None]] = {}
        self.started: list[subprocess.Popen[bytes]] = []

    def python(self, code: str, cgroup: str | None = None) -> Agent:
        """An agent that runs this code until it has made a file `up`; `cgroup`: its own, where it starts."""
        argv = [sys.executable, "-c", f"import os, signal, subprocess, sys, time\nsys.stdin.readline()\n{code}"]
        environ = {**os.environ, "AGENT_WATCHDOG_ID": A, "SCENE": str(self.dir)}
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, env=environ, cwd=self.dir, start_new_session=True)
        self.started.append(process)
        if cgroup is not None:
            cgroups.create(cgroup)
            cgroups.move(process.pid, cgroup)
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(b"go\n")
        wait_for(lambda: (self.dir / "up").exists(), "the agent is up")
        return self.admit(A, process.pid, cgroup)

    def admit(self, agent_id: str, pid: int, cgroup: str | None = None) -> Agent:
        found = identity.read_identity(pid, HOST)
        reg = Registration(agent_id, agent_id, os.getuid(), HOST, identity.boot_id(), identity=found, cgroup=cgroup)
        agent = Agent(reg, Policy(), Status.RUNNING)
        self.fleet.add(agent)
        return agent

    def text(self, name: str) -> str:
        """What the file holds; "" when it is not there."""
        path = self.dir / name
        return path.read_text() if path.exists() else ""

    def end(
        self,
        agent: Agent,
        *,
        grace: float = 0.3,
        verify: float = 60.0,
        polite: Polite = Polite.MAIN_FIRST,
        **options: object,
    ) -> TerminationResult:
        """End the agent's tree; `before[STEP]` is done when that intent is committed."""
        plan = TerminationPlan(
            agent.agent_id,
            agent.identity,
            timedelta(seconds=grace),
            timedelta(seconds=verify),
            polite,
            cgroup=agent.cgroup,
            **options,  # type: ignore[arg-type] # the test's own words
        )

        def guard() -> Guard:
            return Guard(host=HOST, protected=self.fleet.processes_but(plan.agent_id))

        return asyncio.run(TreeTermination(plan, self.scanner, Clock(), guard, self).run())

    # -- what it says, see `KillLog`

    async def before_signal(
        self, step: KillStep, members: list[TreeMember], snapshot: dict[str, object] | None
    ) -> None:
        self.steps.append(step)
        if step in self.before:
            self.before.pop(step)()

    def signalled(self, name: str, pids: list[int]) -> None:
        self.sent.append((name, pids))

    def refused(self, pid: int, why: str) -> None:
        pass

    async def grace_started(self, grace: Grace) -> None:
        self.graces.append(grace)

    def left(self) -> list[int]:
        return pids_with("SCENE", str(self.dir))

    def close(self) -> None:
        for _ in range(50):
            left = self.left()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.02)
        for process in self.started:
            process.wait()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with contextlib.ExitStack() as held:
        made = Scene(tmp_path, held)
        held.callback(made.close)
        yield made


def test_a_term_handler_that_forks_20_and_a_saver_leaves_nobody(scene: Scene) -> None:
    """Each of the 20 ignores TERM, the saver is a daemon in a session of its own."""
    agent = scene.python(
        """
def save(*_):
    for _ in range(20):
        subprocess.Popen(["sh", "-c", "trap '' TERM HUP; sleep 1000"])
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.execvp("sleep", ["sleep", "1000"])
        os._exit(0)
signal.signal(signal.SIGTERM, save)
open("up", "w")
while True: time.sleep(100)
"""
    )
    ended = scene.end(agent)

    assert (ended.reason, scene.left()) == (None, [])
    assert len(ended.members) >= 22


def test_a_wrapper_that_restarts_what_dies_restarts_nothing_at_the_end(scene: Scene) -> None:
    """It is stopped before its child is killed; so the child that lived when the grace was over was the last one."""
    agent = scene.python(
        DEAF
        + """
while True:
    child = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.01; done"])
    print(child.pid, file=open("starts", "a", 1))
    open("up", "w")
    child.wait()
"""
    )
    scene.before["stop"] = lambda: os.rename(scene.dir / "starts", scene.dir / "before")
    ended = scene.end(agent)

    assert ended.reason is None
    assert scene.left() == []
    assert scene.text("before").count("\n") == 1
    assert scene.text("starts") == ""


def test_the_end_wakes_nobody_it_has_stopped(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that dies before its stopped children has the kernel continue them, with SIGHUP (setpgid(2))."""

    def slowly(
        member: Identity, sig: signal.Signals, guard: Guard, pidfd: int | None, look: SignalTarget
    ) -> SendResult:
        sent = send(member, sig, guard, pidfd, look)
        time.sleep(0.1)  # as in a large tree
        return sent

    monkeypatch.setattr(pinned_tree, "send", slowly)
    agent = scene.python(
        DEAF
        + """
if os.fork() == 0:
    os.setpgid(0, 0)
    signal.signal(signal.SIGHUP, lambda *_: open("woken", "w"))
    open("up", "w")
    while True: time.sleep(100)
while True: time.sleep(100)
"""
    )
    assert scene.end(agent, force=True).reason is None
    assert scene.left() == []
    assert not (scene.dir / "woken").exists()


def test_who_turns_out_to_be_anothers_after_he_was_stopped_goes_on(scene: Scene) -> None:
    """A child registers as an agent of its own between STOP and KILL."""
    agent = scene.python(
        DEAF + 'child = subprocess.Popen(["sleep", "1000"]); print(child.pid, file=open("up", "w"))\ntime.sleep(1000)'
    )
    child = int(wait_for(lambda: scene.text("up").strip(), "the child's pid"))

    def register() -> None:
        wait_for(lambda: state(child) == "T", "it is stopped")
        scene.admit("b", child)

    scene.before["kill"] = register
    ended = scene.end(agent, force=True)

    assert (ended.reason, scene.left()) == (None, [child])
    wait_for(lambda: state(child) == "S", "it goes on")
    assert child not in [m.pid for m in ended.members]


@pytest.mark.parametrize("broken_off", [RegistryUnavailable("away"), asyncio.CancelledError()], ids=["registry", "end"])
def test_nobody_stays_stopped_when_the_attempt_is_broken_off(scene: Scene, broken_off: BaseException) -> None:
    """The registry is away when KILL is to be committed; the daemon is told to stop."""
    agent = scene.python(DEAF + 'subprocess.Popen(["sleep", "1000"]); open("up", "w")\ntime.sleep(1000)')

    def fail() -> None:
        wait_for(lambda: {state(pid) for pid in scene.left()} == {"T"}, "both are stopped")
        raise broken_off

    scene.before["kill"] = fail
    with pytest.raises(type(broken_off)):
        scene.end(agent, force=True)

    assert len(scene.left()) == 2
    wait_for(lambda: {state(pid) for pid in scene.left()} == {"S"}, "all go on")


def test_what_a_killed_daemon_had_stopped_is_ended_without_another_grace(scene: Scene) -> None:
    """Its intent told who; one of them is another agent's by now, and goes on."""
    agent = scene.python(
        'child = subprocess.Popen(["sleep", "1000"]); print(child.pid, file=open("up", "w"))\ntime.sleep(1000)'
    )
    child = int(wait_for(lambda: scene.text("up").strip(), "the child's pid"))
    known = asyncio.run(scene.scanner.trees())[A]
    assert len(known) == 2
    for member in known:
        os.kill(member.identity.pid, signal.SIGSTOP)
    wait_for(lambda: {state(m.identity.pid) for m in known} == {"T"}, "both are stopped")
    scene.admit("b", child)

    ended = scene.end(agent, grace=100, stopped=known)

    assert (ended.reason, scene.left()) == (None, [child])
    assert "SIGTERM" not in [name for name, _ in scene.sent]
    wait_for(lambda: state(child) == "S", "the other agent's goes on")


def test_a_stopped_agent_acts_on_term(scene: Scene) -> None:
    """CONT goes out right after it."""
    agent = scene.python(
        """
def bye(*_):
    open("handled", "w")
    os._exit(0)
signal.signal(signal.SIGTERM, bye)
open("up", "w")
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(1000)
"""
    )
    wait_for(lambda: agent.identity and state(agent.identity.pid) == "T", "it is stopped")
    ended = scene.end(agent, grace=10)

    assert (scene.dir / "handled").exists()
    assert ended.reason is None and not any("SIGKILL" in member.sent for member in ended.members)


def test_who_ends_right_before_it_is_waited_for_is_not_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a hundred that obey TERM one or two do: the answer to `kill` would come when their grace is over."""
    agent = scene.python('open("up", "w"); time.sleep(1000)')
    wait = pinned_tree.PinnedTree.exit_or

    async def late(self: pinned_tree.PinnedTree, hurry: asyncio.Event, timeout: float) -> None:
        wait_for(lambda: agent.identity and not alive(agent.identity.pid), "it has ended")
        await wait(self, hurry, timeout)

    monkeypatch.setattr(pinned_tree.PinnedTree, "exit_or", late)
    began = time.monotonic()
    ended = scene.end(agent, grace=100)

    assert ended.reason is None
    assert time.monotonic() - began < 60, "the grace was waited for"


def test_fifty_that_ignore_term_are_ended_by_one_deadline(scene: Scene) -> None:
    """The grace is the tree's, not each process's."""
    agent = scene.python(
        DEAF
        + """
for _ in range(49):
    subprocess.Popen(["sleep", "1000"])
open("up", "w")
time.sleep(1000)
"""
    )
    began = time.monotonic()
    ended = scene.end(agent, grace=0.5)
    took = time.monotonic() - began

    assert ended.reason is None
    assert len(ended.members) == 50
    assert not any(alive(m.pid) for m in ended.members)
    assert 0.5 <= took < 50 * 0.5 / 2, f"{took:.2f} s, where a grace for each takes 25"


def test_a_child_agent_and_what_it_started_outlive_its_parent(scene: Scene) -> None:
    """It descends from the parent and sits in its session; the innermost agent counts. It is not even stopped."""
    agent = scene.python(
        DEAF
        + """
environ = {**os.environ, "AGENT_WATCHDOG_ID": os.environ["AGENT_WATCHDOG_ID"] + "-child"}
watch = "trap 'echo woken >> signals' CONT TERM HUP; sleep 1000 & echo $$ $! > new; mv new up; while :; do wait; done"
subprocess.Popen(["sh", "-c", watch], env=environ)
own = subprocess.Popen(["sleep", "1000"])
time.sleep(1000)
"""
    )
    child, grandchild = (int(pid) for pid in scene.text("up").split())
    scene.admit(f"{A}-child", child)
    ended = scene.end(agent)

    assert (ended.reason, len(ended.members)) == (None, 2)
    assert sorted(scene.left()) == sorted([child, grandchild])
    assert scene.text("signals") == ""


@needs_root
def test_whoever_may_not_be_signalled_is_told_and_the_others_end(scene: Scene) -> None:
    """A daemon of somebody's own, and a child of his agent that runs as root by now."""
    agent = scene.python(
        DEAF
        + """
child = subprocess.Popen(["sleep", "1000"])
print(child.pid, file=open("up", "w"))
os.setuid(65534)
time.sleep(1000)
"""
    )
    main = agent.identity.pid if agent.identity else 0
    child = int(wait_for(lambda: scene.text("up").strip(), "the child's pid"))
    wait_for(lambda: os.stat(f"/proc/{main}").st_uid == 65534, "setuid")
    agent.reg = replace(agent.reg, owner_uid=65534)
    os.setresuid(65534, 65534, 0)
    try:
        ended = scene.end(agent)
    finally:
        os.setresuid(0, 0, 0)

    assert ended.reason == "not_permitted"
    assert {m.pid: m.how() for m in ended.members} == {main: "after SIGKILL", child: "alive (not_permitted)"}
    assert state(child) == "S"
    assert pending(child) == 0


def test_a_traced_process_acts_on_term(scene: Scene) -> None:
    """Its tracer, of the same tree, gets TERM too, and its end sets it free."""
    agent = scene.python(
        """
import ctypes
def bye(*_):
    open("handled", "w")
    os._exit(0)
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, bye)
    open("ready", "w")
    while True: time.sleep(100)
while not os.path.exists("ready"): time.sleep(0.01)
assert ctypes.CDLL(None, use_errno=True).ptrace(16, child, 0, 0) == 0  # PTRACE_ATTACH
print(child, file=open("up", "w"))
time.sleep(1000)
"""
    )
    child = int(wait_for(lambda: scene.text("up").strip(), "the child's pid"))
    wait_for(lambda: state(child) == "t", "it is traced")
    ended = scene.end(agent, grace=20)

    assert (ended.reason, scene.left()) == (None, [])
    assert (scene.dir / "handled").exists()
    assert ended.reason is None and not any("SIGKILL" in member.sent for member in ended.members)


# -- with a cgroup of its own

DAEMON = """
def orphan(argv, environ):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(argv[0], argv, environ)
        os._exit(0)
    os.wait()
"""


@pytest.fixture
def own() -> Iterator[str]:
    """The path of a cgroup as `run` makes it for the agent."""
    with scratch() as directory:
        yield f"{path_of(directory)}/{cgroup_names(A)[0]}"


@needs_v2
def test_its_own_cgroup_is_killed_as_a_whole(scene: Scene, own: str) -> None:
    """Also who has no marker, no parent and no session of its: a daemon with an environment of its own."""
    agent = scene.python(
        DEAF
        + DAEMON
        + """
orphan(["/bin/sleep", "1000"], {"SCENE": os.environ["SCENE"]})
subprocess.Popen(["sleep", "1000"])
open("up", "w")
time.sleep(1000)
""",
        own,
    )
    ended = scene.end(agent)

    assert (ended.reason, scene.left(), len(ended.members)) == (None, [], 3)
    assert "stop" not in scene.steps
    assert scene.steps[-2:] == ["freeze", "kill"]
    assert cgroups.events(own) == cgroups.Events(populated=False, frozen=False)


@needs_v2
def test_with_a_foreign_member_in_it_each_is_ended_by_itself(scene: Scene, own: str) -> None:
    """Another agent lives in it, and is neither frozen nor killed."""
    agent = scene.python(
        DEAF
        + """
other = subprocess.Popen(["sh", "-c", "while :; do date +%s%N >> beats; sleep 0.01; done"])
print(other.pid, file=open("up", "w"))
time.sleep(1000)
""",
        own,
    )
    other = int(wait_for(lambda: scene.text("up").strip(), "the other's pid"))
    scene.admit("b", other)
    ended = scene.end(agent)

    assert (ended.reason, [m.pid for m in ended.members]) == (None, [agent.identity.pid if agent.identity else 0])
    assert "freeze" not in scene.steps
    assert alive(other)


@needs_v2
@pytest.mark.parametrize("step", ["freeze", "kill"])
def test_it_is_thawed_when_the_attempt_is_broken_off(scene: Scene, own: str, step: str) -> None:
    """Nothing stays frozen."""
    agent = scene.python(DEAF + 'open("up", "w"); time.sleep(1000)', own)

    def fail() -> None:
        assert cgroups.events(own).frozen is (step == "kill")
        raise RegistryUnavailable("away")

    scene.before[step] = fail
    with pytest.raises(RegistryUnavailable):
        scene.end(agent, force=True)

    assert cgroups.events(own) == cgroups.Events(populated=True, frozen=False)


@needs_v2
def test_who_joins_it_after_it_was_frozen_has_it_thawed(scene: Scene, own: str) -> None:
    """Another agent's process was moved into it: it goes on, the agent's own are ended one by one."""
    agent = scene.python(DEAF + 'subprocess.Popen(["sleep", "1000"]); open("up", "w"); time.sleep(1000)', own)
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            scene.admit("b", other.pid)
            scene.before["freeze"] = lambda: cgroups.move(other.pid, own)
            ended = scene.end(agent, force=True)

            assert (ended.reason, len(ended.members), scene.left()) == (None, 2, [])
            assert scene.steps == ["looked", "freeze", "stop", "kill"]
            assert other.poll() is None
            assert not cgroups.events(own).frozen
        finally:
            other.kill()


@needs_v2
def test_what_a_killed_daemon_had_frozen_is_ended(scene: Scene, own: str) -> None:
    """Its intent was to freeze."""
    agent = scene.python(DEAF + 'open("up", "w"); time.sleep(1000)', own)
    known = asyncio.run(scene.scanner.trees())[A]
    assert cgroups.freeze(own, 10)
    ended = scene.end(agent, grace=100, stopped=known)

    assert (ended.reason, scene.left()) == (None, [])
    assert not cgroups.events(own).frozen


@needs_v2
def test_a_cgroup_that_is_not_frozen_or_holds_others_is_not_killed(scene: Scene, own: str) -> None:
    """The one place that writes cgroup.kill asks by itself."""
    agent = scene.python('open("up", "w"); time.sleep(1000)', own)
    assert agent.identity is not None
    guard = Guard(HOST)
    for ours, still, reason in (
        (agent.identity, False, "not_frozen"),
        (replace(agent.identity, pid=agent.identity.pid + 1), True, "foreign"),
    ):
        (cgroups.freeze(own, 10) if still else cgroups.thaw(own))
        with pytest.raises(SignalRefused) as refusal:
            kill_cgroup(own, {ours: None}, guard)
        assert refusal.value.reason == reason
    protected = replace(guard, protected=frozenset({(agent.identity.pid, agent.identity.start_ticks)}))
    with pytest.raises(SignalRefused, match="belongs to another agent"):
        kill_cgroup(own, {agent.identity: None}, protected)
    assert alive(agent.identity.pid)
    assert kill_cgroup(own, {agent.identity: None}, guard) == frozenset({agent.identity.pid})


@needs_v2
def test_whoever_in_it_cannot_be_seen_is_not_taken_for_dead(
    scene: Scene, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """hidepid=2 hides a child that runs as root from somebody's own daemon; the cgroup tells that it is there."""
    agent = scene.python('open("up", "w"); time.sleep(1000)', own)
    with subprocess.Popen(["sleep", "1000"]) as other:
        try:
            cgroups.move(other.pid, own)
            real = os.path.exists
            monkeypatch.setattr(os.path, "exists", lambda path: path != f"/proc/{other.pid}/stat" and real(path))
            ended = scene.end(agent)

            assert (ended.reason, ended.unseen, ended.alive) == ("not_permitted", (other.pid,), ())
            assert other.poll() is None
        finally:
            other.kill()
            other.wait()
    assert scene.end(agent).reason is None


@needs_v2
@pytest.mark.parametrize("main", [DEAF, ""], ids=["deaf", "obeys TERM"])
def test_what_forks_and_exits_all_the_time_does_not_outlive_its_cgroup(scene: Scene, own: str, main: str) -> None:
    """No look sees it, as each of its pids is gone before it is read; frozen it stands still."""
    agent = scene.python(
        f"""
if os.fork() == 0:
    {DEAF}
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if os.fork(): os._exit(0)
{main}
open("up", "w")
time.sleep(1000)
""",
        own,
    )
    ended = scene.end(agent)

    assert (ended.reason, scene.left()) == (None, [])
    assert not cgroups.events(own).populated


@needs_v2
@pytest.mark.parametrize("look", [0.0, 1.0], ids=["looks are quick", "a look takes longer than all of verify"])
def test_who_outlives_it_got_kill_and_is_not_said_to_be_held_by_our_own_freezer(
    scene: Scene, own: str, look: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen once on a busy machine, where the time was over between the freeze and KILL: "frozen by cgroup ...; thaw it"
    told of one that a debugger held, and KILL had gone out to nobody.
    """
    agent = scene.python('open("up", "w"); time.sleep(1000)', own)
    assert agent.identity is not None
    holder = subprocess.Popen([sys.executable, "-c", HOLDS_ITS_EXIT, str(agent.identity.pid)], cwd=scene.dir)
    trees = scene.scanner.trees

    async def slowly() -> Trees:
        await asyncio.sleep(look)
        return await trees()

    monkeypatch.setattr(scene.scanner, "trees", slowly)
    try:
        wait_for((scene.dir / "traced").exists, "it is traced")
        for number in range(6):  # at another moment of a round each
            ended = scene.end(agent, grace=0.1, verify=0.4 + 0.05 * number)
            (member,) = ended.members
            assert (ended.reason, member.lives_on()) == ("traced", f"alive (held by a debugger, process {holder.pid})")
            assert "SIGKILL" in member.sent
    finally:
        holder.kill()
        holder.wait()
    assert scene.end(agent).reason is None


def test_a_grace_that_runs_is_told_of_the_main_process_and_then_of_all(scene: Scene) -> None:
    """The rest gets TERM at half of it."""
    agent = scene.python(
        DEAF
        + 'subprocess.Popen(["sh", "-c", "trap : TERM; while :; do sleep 0.05; done"])\n'
        + 'open("up", "w")\ntime.sleep(1000)'
    )
    scene.before["term_rest"] = lambda: scene.graces.append((0.0, False))
    began = time.monotonic()
    assert scene.end(agent, grace=8.0).reason is None
    main, half, everybody = scene.graces
    assert began < main[0] < main[0] + 4 <= everybody[0]  # each has a whole one
    assert (main[1], half[0], everybody[1]) == (False, 0.0, True)


def test_one_that_has_ended_before_it_is_taken_in_was_somebody_new(scene: Scene) -> None:
    """Q9: a look that found only such found somebody, and proves nothing."""
    with subprocess.Popen(["sleep", "1000"]) as process:
        found = identity.read_identity(process.pid, HOST)
        process.kill()
    assert found is not None
    made = pinned_tree.PinnedTree(None, lambda: Guard(host=HOST), scene)
    assert made.admit(TreeMember(found, 1, os.getuid(), "sleep", "S", "marker"))
    assert made.all() == ()


SAVES = """
def save(name, seconds):
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(seconds), open(name, "w"), os._exit(0)))
"""


@pytest.mark.parametrize(("main", "child"), [(None, 0.8), (0.6, 0.65)])
@pytest.mark.parametrize("polite", Polite)
def test_each_has_one_whole_grace_from_its_own_term(
    scene: Scene, main: float | None, child: float, polite: Polite
) -> None:
    """Case P7: a deaf main process must not cost the child, which is told later, what it holds."""
    grace = 4.0
    own = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if main is None else f'save("main", {main * grace})'
    agent = scene.python(
        SAVES
        + f"""
if os.fork() == 0:
    save("child", {child * grace})
    open("below", "w")
    time.sleep(1000)
{own}
while not os.path.exists("below"):
    time.sleep(0.01)
open("up", "w")
while True:
    time.sleep(1000)"""
    )
    began = time.monotonic()

    ended = scene.end(agent, grace=grace, polite=polite)

    assert (ended.reason, scene.left()) == (None, [])
    assert (scene.dir / "child").exists()
    assert (scene.dir / "main").exists() is (main is not None)
    if main is None:
        assert time.monotonic() - began >= grace * (1 if polite is Polite.ALL else 1.5)


@pytest.mark.parametrize("polite", Polite)
def test_who_is_started_in_the_grace_is_told_once_and_has_a_whole_one(scene: Scene, polite: Polite) -> None:
    """The sibling: a saver that a handler starts got no TERM at all. Nobody gets a second one ("now!")."""
    agent = scene.python(
        SAVES
        + """
def start(*_):
    open("terms", "a").write("x")
    if os.path.exists("started"):
        return
    open("started", "w")
    if os.fork() == 0:
        save("saver", 1.0)
        time.sleep(1000)
signal.signal(signal.SIGTERM, start)
open("up", "w")
while True:
    time.sleep(1000)"""
    )

    ended = scene.end(agent, grace=2.0, polite=polite)

    assert (ended.reason, scene.left()) == (None, [])
    assert (scene.dir / "saver").exists()
    assert scene.text("terms") == "x"


def test_a_tree_that_obeys_costs_no_word_of_its_grace(scene: Scene) -> None:
    """Each is a durable write."""
    agent = scene.python('open("up", "w")\ntime.sleep(1000)')
    assert scene.end(agent, grace=60.0).reason is None
    assert scene.graces == []


def test_no_grace_is_told_of_whom_no_term_could_reach(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later attempt that may signal him gives him TERM and all of it, not what is left of somebody else's."""
    agent = scene.python('subprocess.Popen(["sleep", "1000"])\nopen("up", "w")\ntime.sleep(1000)')
    assert agent.identity is not None
    main = agent.identity.pid, agent.identity.start_ticks
    monkeypatch.setattr(scene.fleet, "processes_but", lambda _: frozenset({main}))
    assert scene.end(agent, grace=3.0).reason == "protected"
    assert (scene.graces, scene.left()) == ([], [agent.identity.pid])


def test_a_grace_that_was_given_before_is_not_given_again(scene: Scene) -> None:
    """All had TERM 60 s ago, and 30 s were promised: KILL comes at once, and no second TERM."""
    agent = scene.python(DEAF + 'open("up", "w")\ntime.sleep(1000)')
    ended = scene.end(agent, grace=30.0, termed=(time.monotonic() - 60, True), begun=True)
    assert (ended.reason, scene.left(), scene.graces) == (None, [], [])
    assert {name for name, _ in scene.sent} <= {"SIGSTOP", "SIGKILL"}


def test_what_is_left_of_a_grace_is_given(scene: Scene) -> None:
    """TERM goes out once more: it may be that who got it has started others since."""
    agent = scene.python(
        'signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), open("saved", "w"), os._exit(0)))\n'
        'open("up", "w")\ntime.sleep(1000)'
    )
    ended = scene.end(agent, grace=60.0, termed=(time.monotonic() - 10, True), begun=True)
    assert (ended.reason, {name for name, _ in scene.sent}) == (None, {"SIGTERM"})
    assert (scene.dir / "saved").exists()


@pytest.mark.parametrize("late", ["term_main", "term_rest"])
def test_whoever_gets_term_late_gets_the_time_to_obey_it(scene: Scene, late: str) -> None:
    """A disk or a host that holds us up for longer than the grace: it counts from the TERM that goes out."""
    save = """
def save(name):
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.3), open(name, "w"), os._exit(0)))
child = os.fork()
save("saved" if child else "child")
open("up" if child else "below", "w")
time.sleep(1000)"""
    agent = scene.python(save)
    wait_for(lambda: (scene.dir / "below").exists(), "its child is up")
    scene.before[late] = lambda: time.sleep(4.5)

    ended = scene.end(agent, grace=4.0)

    assert (ended.reason, {name for name, _ in scene.sent}) == (None, {"SIGTERM"})
    assert (scene.dir / "saved").exists() and (scene.dir / "child").exists()


@pytest.fixture(params=[True, False], ids=["pidfs", "no-pidfs"])
def inodes(request: pytest.FixtureRequest) -> Iterator[bool]:
    """As on this kernel, and as on one before 6.9, where a pidfd's inode tells nothing."""
    identity.use_pidfd_inodes(None if request.param else False)
    if request.param and not identity.pidfd_inodes_work():
        pytest.skip("this kernel has no pidfs (>= 6.9)")
    yield bool(request.param)
    identity.use_pidfd_inodes(None)


def hang(monkeypatch: pytest.MonkeyPatch, pid: int) -> None:
    """From now on a read of its stat line has not returned."""
    monkeypatch.setitem(bounded.skipped, (pid, "stat"), object())


def test_an_agent_whose_files_hang_is_killed_by_the_pidfd_that_was_pinned_before(
    scene: Scene, inodes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it started; where a process has no inode of its own the fleet's pidfd is all that there is."""
    agent = scene.python(DEAF + 'subprocess.Popen(["sleep", "1000"])\nopen("up", "w")\nwhile True: time.sleep(100)')
    assert agent.identity is not None
    agent.pidfd = identity.pin(agent.identity)
    hang(monkeypatch, agent.identity.pid)
    ended = scene.end(agent, main_pidfd=agent.pidfd)
    agent.close()

    assert (ended.reason, scene.left()) == (None, [])
    assert agent.identity in {member.seen.identity for member in ended.members}
    assert len(ended.members) == 2


def test_one_that_was_never_pinned_is_sent_nothing(scene: Scene, inodes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child that hung before any look at it: it lives on, and the tree is not called dead."""
    agent = scene.python(
        'child = subprocess.Popen(["sleep", "1000"])\nprint(child.pid, file=open("child", "w"))\nopen("up", "w")\n'
        "while True: time.sleep(100)"
    )
    child = int(wait_for(lambda: scene.text("child"), "its pid"))
    hang(monkeypatch, child)
    ended = scene.end(agent, verify=0.5)

    assert ended.reason == "unreadable"
    assert scene.left() == [child]
    assert child not in {pid for _, pids in scene.sent for pid in pids}
    monkeypatch.undo()
    assert scene.end(agent).reason is None
    assert scene.left() == []
