"""A whole tree is killed: real processes that fork, restart, stop, and turn out to be another agent's."""

import asyncio
import os
import signal
import time
from dataclasses import replace

import pytest

from tests.kill.scene import DEAF, A, Scene, state
from tests.processes.conftest import needs_root, pending
from tests.world import alive, wait_for
from watchdog.core.kill import Polite
from watchdog.kill.terminate import Grace


def test_a_term_handler_that_forks_20_and_a_saver_leaves_no_process(scene: Scene) -> None:
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


def test_what_a_killed_daemon_had_stopped_is_ended_without_another_grace(scene: Scene) -> None:
    """Its last intent names them; one of them is another agent's by now, and continues."""
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
def test_a_process_that_may_not_be_signalled_is_reported_and_the_others_end(scene: Scene) -> None:
    """A user's own daemon, and a child of that user's agent that runs as root by now."""
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


@pytest.mark.faults
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


SAVES = """
def save(name, seconds):
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(seconds), open(name, "w"), os._exit(0)))
"""


@pytest.mark.parametrize(("main", "child"), [(None, 0.8), (0.6, 0.65)])
@pytest.mark.parametrize("polite", Polite)
def test_each_has_one_whole_grace_from_its_own_term(
    scene: Scene, main: float | None, child: float, polite: Polite
) -> None:
    """Case P7: a deaf main process must not cost the child, which gets TERM later, what it holds."""
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
def test_a_process_started_in_the_grace_gets_term_once_and_has_a_whole_one(scene: Scene, polite: Polite) -> None:
    """The sibling: a saver that a handler starts had got no TERM at all. No process gets a second one ("now!")."""
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
    """A later attempt that may signal it gives it TERM and a whole grace, not what is left of another's."""
    agent = scene.python('subprocess.Popen(["sleep", "1000"])\nopen("up", "w")\ntime.sleep(1000)')
    assert agent.identity is not None
    main = agent.identity.pid, agent.identity.start_ticks
    monkeypatch.setattr(scene.fleet, "processes_but", lambda _: frozenset({main}))
    assert scene.end(agent, grace=3.0).reason == "protected"
    assert (scene.graces, scene.left()) == ([], [agent.identity.pid])


def test_a_grace_that_was_given_before_is_not_given_again(scene: Scene) -> None:
    """All had TERM 60 s ago, and 30 s were promised: KILL comes at once, and no second TERM."""
    agent = scene.python(DEAF + 'open("up", "w")\ntime.sleep(1000)')
    ended = scene.end(agent, grace=30.0, termed=Grace(time.monotonic() - 60, True), begun=True)
    assert (ended.reason, scene.left(), scene.graces) == (None, [], [])
    assert {name for name, _ in scene.sent} <= {"SIGSTOP", "SIGKILL"}


def test_what_is_left_of_a_grace_is_given(scene: Scene) -> None:
    """TERM is sent once more: processes that got it may have started others since."""
    agent = scene.python(
        'signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), open("saved", "w"), os._exit(0)))\n'
        'open("up", "w")\ntime.sleep(1000)'
    )
    ended = scene.end(agent, grace=60.0, termed=Grace(time.monotonic() - 10, True), begun=True)
    assert (ended.reason, {name for name, _ in scene.sent}) == (None, {"SIGTERM"})
    assert (scene.dir / "saved").exists()


@pytest.mark.parametrize("late", ["term_main", "term_rest"])
def test_a_process_that_gets_term_late_gets_the_time_to_obey_it(scene: Scene, late: str) -> None:
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
