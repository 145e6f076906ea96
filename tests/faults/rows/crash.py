"""The daemon dies in the middle of a kill: at every effect, with a reboot, with an old registry put back."""

import difflib
import json
import pprint
import re
import shutil
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.faults.crash.failpoints import Plan, effects
from tests.faults.crash.story import End, Point, points, tell, telling
from tests.faults.table import Row, Run
from tests.tables import FULL
from tests.world import alive, started_at

AT_ONCE = 2  # stories; they wait most of the time
POINTS = 120  # about so many there are; FULL does all, and the figure says how many


ENDED = frozenset({"commit close_agent killed"})
KILLING = frozenset({"signal SIGKILL", "cgroup open cgroup.kill"})  # the second where it has a cgroup of its own


def at_points(one: Callable[[End, Point], str | None], run: Run, until: frozenset[str] = ENDED) -> None:
    """Do `one` at those points that are chosen, or at all, up to an effect; it says what went wrong, if anything.

    It gets the end of a story in which nobody was killed.
    """
    expected, story, _ = tell(None)
    # Not at CONT: who obeys the TERM before it is perhaps gone. Before it is after TERM, after it before what follows.
    found = [point for point in points(story) if point.at.name != "signal SIGCONT"]
    found = found[: 1 + max(number for number, point in enumerate(found) if point.at.name in until)]
    chosen = found if FULL else run.random.sample(found, min(run.times, len(found)))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = pool.map(partial(one, expected), chosen)
        wrong = [f"{point}:\n{words}" for point, words in zip(chosen, ends, strict=True) if words]
    assert not wrong, "\n".join(wrong)
    run.note(f"{len(chosen)} of {len(found)} points, {len({point.at for point in found})} effects")


def difference(expected: End, end: End) -> str | None:
    """In words, as short as can be."""
    if end == expected:
        return None
    before, now = (pprint.pformat(one).splitlines() for one in (expected, end))
    return "\n".join(difflib.unified_diff(before, now, lineterm="", n=0))


def killed(expected: End, point: Point) -> str | None:
    """Rows, files, refs, processes, hooks, signals: all as if it had not been killed."""
    end, _, struck = tell(point.at, after=point.after)
    return difference(expected, end) if struck else "it was never reached"


def rebooted(_: End, point: Point) -> str | None:
    """A living process has the number, and even the start tick, that the row tells, of another boot."""
    with telling() as story:
        world = story.world
        story.start(Plan(str(story.trace), point.at, point.after))
        story.agents()
        story.hush()
        assert story.died()
        (pid, boot) = story.rows("SELECT pid, boot_id FROM agent_lifecycle WHERE name = 'mute'")[0]
        story.end_family()
        impostor = world.spawn(*world.script("agent.py", "witness", "sleep"))
        ticks, other = started_at(impostor.pid), str(uuid.uuid4())
        world.sql(f"UPDATE agent_lifecycle SET boot_id = '{other}', pidfd_inode = NULL")
        world.sql(f"UPDATE agent_lifecycle SET pid = {impostor.pid}, start_ticks = {ticks} WHERE name = 'mute'")
        for request_id, members in story.rows("SELECT request_id, members FROM kill_request"):
            stored = json.loads(members)
            for member in stored:
                member["identity"]["boot_id"] = other
                if member["identity"]["pid"] == pid:
                    member["identity"] |= {"pid": impostor.pid, "start_ticks": int(ticks or 0), "pidfd_inode": None}
            world.sql(
                f"UPDATE kill_request SET members = '{json.dumps(stored)}', claimed_by = replace(claimed_by, '{boot}',"
                f" '{other}') WHERE request_id = '{request_id}'"
            )
        before = world.count("kill.signal_sent")
        world.start()
        world.wait_status("mute", "lost")
        world.wait_status("well", "lost")
        words = []
        if world.stop() != 0 or not alive(impostor.pid) or world.witnessed():
            words.append(f"the impostor: {world.witnessed()}")
        if world.count("kill.signal_sent") != before:
            words.append("signals went out after the reboot")
        hooks, tree = story.hooks(), story.tree.exists() or any(story.world.temporary.iterdir())
        requests = story.rows("SELECT status FROM kill_request WHERE reason != 'lost'")
        if hooks != ["once"] or tree or ("open",) in requests or ("claimed",) in requests:
            words.append(f"hooks {hooks}, left {tree}, orders {requests}")
        return "; ".join(words) or None


def put_back(expected: End, point: Point) -> str | None:
    """A copy from before the order comes back while the daemon is dead."""
    with telling() as story:
        world = story.world
        story.start(Plan(str(story.trace), point.at, point.after))
        story.agents()
        copy = story.copy_of_registry()
        story.hush()
        assert story.died()
        untouched = not any(effect.name in KILLING for effect, _ in effects(story.trace))
        for path in world.state.glob("registry.db*"):
            path.unlink()
        shutil.move(copy, world.state / "registry.db")
        (world.state / "registry.db").chmod(0o600)
        world.start()
        if untouched:
            return difference(expected, story.end())
        world.wait_status(
            "mute", "completed", "failed", "killed", seconds=60
        )  # of whom is left nothing, nobody knows how it ended
        world.stop()
        words = []
        if story.hooks() != ["once"] or story.tree.exists() or any(story.world.temporary.iterdir()):
            words.append(f"hooks {story.hooks()}")
        if world.witnessed() or world.signalled() - story.family:
            words.append(f"signals to others: {world.witnessed()}")
        return "; ".join(words) or None


CALL = re.compile(r"^(\d+) +(\w+)\((.*)\) += (-?\d+)")


def strace_sees_no_other_signal(run: Run) -> None:
    """What the kernel was asked for, by the daemon and by whatever it started."""
    for _ in range(run.times):
        with telling() as story:
            out = story.world.dir / "strace"
            calls = "kill,tkill,tgkill,pidfd_send_signal,rt_sigqueueinfo,rt_tgsigqueueinfo,clone,clone3,fork,vfork"
            options = ("-D", "-f", "-qq", "--decode-fds=pidfd", "-e", "signal=none", "-e", f"trace={calls}")
            story.world.start(prefix=("strace", *options, "-o", str(out)))
            story.agents()
            story.hush()
            end = story.end()
            assert not end.strangers
            sent = _judged(out, story.family)
    run.note(f"{sent} signals, all by pidfd_send_signal to the tree")


def _judged(out: Path, family: set[int]) -> int:
    """How many signals went out; fails when one went elsewhere, or by another call than to an own child."""
    lines = [match.groups() for line in out.read_text().splitlines() if (match := CALL.match(line))]
    children = {int(result) for _, name, _, result in lines if name in ("clone", "clone3", "fork", "vfork")}
    sent = 0
    for _, name, arguments, result in lines:
        if name == "pidfd_send_signal":
            found = re.search(r"<pid:(\d+)>", arguments)
            assert found is not None, arguments
            assert int(found[1]) in family, arguments
            sent += int(result) == 0
        elif name in ("kill", "tkill", "rt_sigqueueinfo"):
            assert int(arguments.split(",")[0]) in children, f"{name}({arguments})"
        elif name.startswith(("tgkill", "rt_tg")):
            raise AssertionError(f"{name}({arguments})")
    assert sent > 0
    return sent


KILL = "the daemon gets SIGKILL before or after an effect (commit, signal, hook run, each change that a hook makes)"
ROWS = [
    Row(
        "killed at every effect of stall, kill, cleanup",
        KILL,
        "rows of all tables, files, refs and processes as if it had not been; each hook took effect once; no stranger"
        " got a signal",
        partial(at_points, killed),
        runs=POINTS,
        least=3,
        share=40,
        limit=3600,
    ),
    Row(
        "rebooted at every effect up to the KILL",
        f"{KILL}; its boot id is another one then, and a living process has the agent's number and start tick",
        "never signalled, closed as lost, hooks run once",
        partial(at_points, rebooted, until=KILLING),
        runs=POINTS // 2,
        least=2,
        limit=3600,
    ),
    Row(
        "an old registry put back at every effect",
        f"{KILL}; a copy of the registry from before the order is put in its place",
        "who lives is judged and ended again, who does not is closed; hooks took effect once; no stranger got a signal",
        partial(at_points, put_back),
        runs=POINTS,
        least=3,
        share=40,
        limit=3600,
    ),
    Row(
        "every signal that the kernel was asked for",
        "stall, kill, cleanup under strace, which follows all that the daemon starts",
        "pidfd_send_signal alone, to the agent's tree alone",
        strace_sees_no_other_signal,
    ),
]
