"""What `why` tells first: the story and the remedy, then the evidence; the reason of each failure."""

import json
from datetime import timedelta

import pytest

from tests.cli.conftest import told
from tests.cli.test_list import Json, agent
from tests.control.office import Office
from watchdog.cli.why import story
from watchdog.core.agent import State, Status, Verdict
from watchdog.core.hooks import HookOutcome
from watchdog.core.kill import Reason
from watchdog.core.observed_activity import ActivityKind, Sight


def test_a_process_that_cannot_be_read_has_no_name_of_another_time() -> None:
    """A3: the main process of an agent was listed as `agent-watchdog`, as it was called before its exec."""
    members = [{"pid": pid, "name": "agent-watchdog", "state": "?", "via": "main"} for pid in (77, 78)]
    lines = "\n".join(story({"agent": agent("a", members=members, command="python3")}))
    assert "      77 python3          cannot be read, known by main" in lines
    assert "      78 -                cannot be read" in lines
    assert "agent-watchdog " not in lines


def test_the_story_and_the_remedy_come_before_the_evidence() -> None:
    """O31: ten lines of "no evidence" stood above what had happened."""
    signals = [
        {"signal": "lease", "says": None, "missing": "it has none"},
        {"signal": "state", "says": "working", "trust": "its own word"},
    ]
    one = agent("alpha", verdict="late", outlook=["It is late."], signals=signals, needs_person=True, pane="tmux %1")
    events = [{"at": "2026-01-01T00:00:00Z", "event": "agent.late", "why": "silent", "who": "daemon"}]
    text = "\n".join(story({"agent": one, "events": events}))
    order = ["needs a person", "agent.late: silent", "It is late.", "do: answer it in its pane", "details", "evidence"]
    order += ["state       working", "lease       no evidence: it has none"]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)


@pytest.mark.parametrize(
    ("hook", "status", "details", "is_told"),
    [
        ("worktree", "kept", {"reasons": ["it is not clean: 1 paths"]}, True),
        ("worktree", "kept", {"refused": "link"}, False),
        ("worktree", "done", {}, False),
        ("temp_dir", "kept", {"reasons": ["a repository lies in it"]}, False),
    ],
)
def test_a_kept_worktree_comes_with_the_command_to_look_at_it(
    hook: str, status: str, details: dict[str, object], is_told: bool
) -> None:
    """A newcomer read that a dirty worktree was kept, and not what to do next."""
    run = {"hook": hook, "status": status, "message": "kept /w/a b", "details": details}
    lines = "\n".join(story({"agent": agent("a", worktree="/w/a b"), "cleanup": [run]}))

    assert ("  do: see what its worktree still holds: git -C '/w/a b' status;" in lines) == is_told
    assert ("git -C '/w/a b' worktree remove '/w/a b'" in lines) == is_told


def test_of_a_long_history_the_story_has_both_ends() -> None:
    """Else the remedy stands below a thousand lines; `events` has all of them."""
    events = [
        {"at": f"2026-01-01T00:00:{number % 60:02}Z", "event": "agent.nudged", "why": f"number {number};", "who": "x"}
        for number in range(1000)
    ]
    lines = list(story({"agent": {**agent("alpha"), "agent_id": "a" * 32}, "events": events}))
    told = [line for line in lines if "agent.nudged" in line]
    assert len(told) == 40
    assert ["number 0;" in told[0], "number 999;" in told[-1]] == [True, True]
    assert f"  ... 960 events between (agent-watchdog events --agent {'a' * 32})" in lines


def moments(*events: tuple[str, str], run_at: str) -> list[str]:
    """The story's lines of a hook that failed in its last try then."""
    evidence = {"hook": "mine", "outcome": "failed", "attempt": 1}
    told = [
        {"at": f"2026-01-01T00:00:{at}Z", "event": event, "why": "w", "who": "daemon", "evidence": evidence}
        for at, event in events
    ]
    run = {"hook": "mine", "status": "failed", "message": "no", "finished_at": f"2026-01-01T00:00:{run_at}Z"}
    lines = "\n".join(story({"agent": agent("a"), "events": told, "cleanup": [run]})).partition("what happened\n")[2]
    return [line.split("  ")[2].split(": ")[0].strip() for line in lines.partition("\n\n")[0].splitlines()]


def test_the_last_try_of_a_failed_hook_is_told_once_and_in_its_place() -> None:
    """Its event and its run said the same, and the run of a later try stood where the first one had failed."""
    assert moments(("10", "cleanup.hook_failed"), ("11", "agent.ended"), run_at="10") == [
        "cleanup mine",
        "agent.ended",
    ]
    tries = [("10", "cleanup.hook_failed"), ("11", "agent.ended"), ("40", "cleanup.hook_retried")]
    assert moments(*tries, run_at="40") == ["cleanup.hook_failed", "agent.ended", "cleanup mine"]


@pytest.mark.parametrize(
    ("attempts", "message", "words"),
    [
        (1, "", "cleanup mine: it is running"),
        (2, "", "cleanup mine: try 2 is running"),
        (2, "ended after 60 s", "cleanup mine: try 2 is running; the one before: ended after 60 s"),
    ],
)
def test_a_try_that_runs_is_told_from_the_one_before(attempts: int, message: str, words: str) -> None:
    """A2: "running after 2 tries; ended after 60 s" contradicted itself."""
    run = {"hook": "mine", "status": "running", "attempts": attempts, "message": message, "started_at": "2026-01-01"}
    one = agent("a", "ending", cleanup_failed=["cleanup hook mine is in try 2"] if message else [])
    lines = list(story({"agent": one, "cleanup": [run]}))
    assert any(line.endswith(words) for line in lines), lines
    assert any("tried again by itself" in line for line in lines) is bool(message)


def test_an_end_without_a_kill_is_no_kill_request() -> None:
    """O35: "kill request: reason gone", and "options: cleanup True, beats 4"."""
    gone: Json = {"request_id": "r" * 32, "reason": "gone", "by": "daemon", "status": "done", "created_at": ""}
    gone |= {"options": {"cleanup": True, "beats": 4, "why": "the main process has ended"}, "step": "cleanup"}
    for how, words in (("by itself", "; nothing was signalled"), ("after SIGTERM", "")):
        request = {**gone, "outcome": {"message": "m", "processes": [{"pid": 1, "name": "sh", "how": how}]}}
        lines = list(story({"agent": agent("a"), "requests": [request]}))
        assert f"its end (rrrrrrrr): exited by itself{words}" in lines
        assert not any(word in line for line in lines for word in ("kill request", "options", "beats", "signal:"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"force": True}, "by KILL at once"),
        ({"cleanup": False}, "without cleanup"),
        ({"cancel": True}, "its task was cancelled"),
        ({"grace_seconds": 90.0}, "with 1m30s between TERM and KILL"),
    ],
)
def test_an_option_that_makes_a_difference_is_told_in_words(options: Json, words: str) -> None:
    """The others are left out (O35: "options: cleanup True, beats 4, why …")."""
    request = {"request_id": "r", "reason": "operator", "by": "uid 0", "status": "open", "step": "term_main"}
    given = {"cleanup": True, "beats": 4, "why": "w", **options}
    lines = list(story({"agent": agent("a"), "requests": [{**request, "options": given}]}))
    assert f"  {words}" in lines
    assert not any(word in line for line in lines for word in ("options", "beats", "True", "False"))
    assert "  it has got as far as step term_main" in lines
    assert any(line.endswith("by uid 0: a person wanted it killed") for line in lines)


@pytest.mark.parametrize(
    ("pids", "words"),
    [
        ([10], "  Its main process (10) was stopped at the last scan (state T: by a signal)"),
        ([10, 11], "  Its main process (10) was stopped"),
        ([11], "  Its process 11 was stopped"),
        ([11, 12], "  2 of its processes were stopped"),
    ],
)
def test_an_agent_that_a_stranger_stopped_is_called_so_with_the_command_that_lets_it_go_on(
    pids: list[int], words: str
) -> None:
    """The verdict is the same; `state T` alone, far below, was read by nobody at night."""
    members = [{"pid": pid, "name": "sh", "via": "main", "state": "T" if pid in pids else "S"} for pid in (10, 11, 12)]
    lines = list(story({"agent": agent("a", pid=10, members=members)}))
    told = lines.index(next(line for line in lines if line.startswith(words)))
    assert lines[told].endswith("If the agent is silent, that may be why.")
    assert lines[told + 1] == f"  do: if that is not wanted, let it go on: kill -CONT {' '.join(map(str, pids))}"
    assert sum("state T (stopped by a signal), known by main" in line for line in lines) == len(pids)


@pytest.mark.parametrize("more", [{"why": "it is stopped in its terminal, by Ctrl-Z"}, {"status": "ending"}])
def test_a_stop_that_is_explained_elsewhere_is_not_explained_twice(more: Json) -> None:
    """A person's Ctrl-Z is in its line, and `fg` goes on with it; a kill stops processes itself."""
    stopped = {"pid": 10, "name": "sh", "via": "main", "state": "T"}
    one = {**agent("a", pid=10, members=[stopped]), **more}
    assert not any("kill -CONT" in line for line in story({"agent": one}))


def test_why_tells_the_whole_story_in_order(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """Registration, signals, verdict, who asked for the end and why, each process, each hook, what would change."""
    agent_id = office.register("alpha", task="T-1", stall_after_seconds=120, pid=office.process())
    office.age(
        "alpha",
        150,
        beats=3,
        verdict=Verdict.STALLED,
        line="silent for 2m30s, promised 2m; confirmed by 2 looks",
        state=State.WORKING,
        note="compiles",
        late_looks=2,
    )
    alpha = office.agent("alpha")
    alpha.sights.seen[ActivityKind.LOG] = Sight("its log grew", timedelta(seconds=42))
    alpha.sights.looked(ActivityKind.IO, "late")
    office.context.safeguards.on = lambda *_: ["the machine slept for 7 s"]  # type: ignore[method-assign]
    status, out, _ = told(capsys, "why", "alpha")
    assert status == 0
    for text in (
        "alpha  running, stalled",
        "silent for 2m30s, promised 2m; confirmed by 2 looks",
        "T-1",
        "3 received, the last 2m30s ago",
        "stalled after 2m of silence",
        "compiles",
        "agent.registered",
        "It is stalled, and its kill is held back.",
        "line 9 of 9",
        "lease       no evidence: it has none",
        "transcript  no evidence: none was named",
        "log         its log grew, 42s ago [seen by its owner's helper]",
        "io          no evidence: the look failed: late",
        "the machine slept",
    ):
        assert text in out, text
    registry, now = office.context.registry, office.context.now()
    registry.kills.open_request(
        "r" * 32, agent_id, Reason.STALLED, by="daemon", now=now, why="silent", evidence={"load": 0.5}
    )
    registry.kills.claim_request("r" * 32, "daemon 1", now)
    registry.kills.save_step("r" * 32, "term_main")
    outcome = {
        "message": "2 processes ended on TERM",
        "processes": [
            {"pid": 77, "name": "sh", "how": "after SIGTERM"},
            {"pid": 78, "name": "node", "how": "by itself"},
        ],
    }
    registry.history.open_run("run1", agent_id, "worktree", now)
    registry.history.finish_run("run1", HookOutcome.KEPT, "dirty: 1 file", now, {"path": "/w"})
    said = {"hook": "worktree", "outcome": "kept"}
    registry.history.add_event("cleanup.hook_finished", agent_id, "daemon", "worktree: kept: dirty", now, evidence=said)
    registry.kills.finish_request("r" * 32, "done", outcome, now=now, who="daemon", why="2 processes ended on TERM")
    assert "its time to live ended 1m ago" in "\n".join(story({"agent": {"ttl_left_seconds": -60}}))
    registry.agents.transition(agent_id, {Status.RUNNING}, Status.KILLED, now=now, who="daemon", why="all done")
    office.on_loop(lambda: office.context.fleet.drop(agent_id))
    status, out, _ = told(capsys, "why", "alpha")
    assert status == 0
    order = ["agent.registered", "kill.requested", "worktree: kept; dirty: 1 file", "what happens next", "right before"]
    places = [out.index(text) for text in order]
    assert places == sorted(places)
    assert "cleanup.hook_finished" not in out, "its run has told it"
    for text in (
        "alpha  killed",
        "by the daemon: it had stalled",
        "77 sh",
        "after SIGTERM",
        "load: 0.5",
        "path: /w",
        "nothing will change",
    ):
        assert text in out, text
    assert json.loads(told(capsys, "why", agent_id, "--json")[1])["agent"]["status"] == "killed"
    assert told(capsys, "why", "nobody")[0] == 1
