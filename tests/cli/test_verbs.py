"""All verbs but `run` and `beat`, against the real control socket."""

import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from tests.cli.terminal import drawn
from tests.control.office import ALICE, BOB, ROOT, Office, make_office, wait_for
from watchdog.cli import reap, verbs
from watchdog.cli.why import story
from watchdog.client import client
from watchdog.core.agent import State, Status, Verdict
from watchdog.core.hooks import HookOutcome
from watchdog.core.kill import Reason
from watchdog.core.observed_activity import ActivityKind, Sight

CLI = Path(sys.executable).parent / "agent-watchdog"
VERBS = (
    *("run", "beat", "register", "list", "why", "events", "status"),
    *("kill", "stop", "cancel", "hold", "unhold", "remove", "purge"),
)
ESCAPES = "\x1b[2J\x07\u202e\x9b31m\r"


@pytest.fixture
def office(monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    """A daemon that the verbs find by the environment."""
    monkeypatch.delenv("AGENT_WATCHDOG_ID", raising=False)
    for made in make_office():
        monkeypatch.setenv("AGENT_WATCHDOG_SOCKET", made.socket_path)
        yield made


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of one verb."""
    status = verbs.main(list(words))
    out, err = capsys.readouterr()
    return status, out, err


@pytest.mark.parametrize(
    "words",
    [[], ["dance"], ["list", "--nope"], ["kill"], ["kill", "a", "--grace", "10"], ["events", "--after", "x"], ["why"]],
    ids=" ".join,
)
def test_usage_errors_end_with_64(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Never 2: a vendor's hook runner would block the agent. The fault is named on stderr."""
    status, out, err = told(capsys, *words)
    assert (status, out) == (64, "")
    assert err.startswith("agent-watchdog: ")


def test_targets_may_stand_on_both_sides_of_a_flag(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """argparse takes one row of them alone."""
    for name in ("alpha", "beta", "gamma"):
        office.register(name)
    assert told(capsys, "kill", "alpha", "--force", "beta", "--reason", "x", "gamma")[0] == 0
    assert [(name, options.force) for name, _, options, _ in office.worker.asked] == [
        ("alpha", True),
        ("beta", True),
        ("gamma", True),
    ]


def test_an_unknown_argument_leads_to_the_help_of_its_verb(capsys: pytest.CaptureFixture[str]) -> None:
    """`list alpha`: the help of all verbs would not show what `list` takes."""
    status, _, err = told(capsys, "list", "alpha")

    assert (status, err) == (
        64,
        "agent-watchdog: unrecognized arguments: alpha\nusage: see agent-watchdog list --help\n",
    )


def test_reap_says_whose_and_how_much_where_it_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes with the marker of an unknown agent have neither: no empty brackets."""
    one = {"kind": "process", "what": "2 processes", "why": "unknown here", "action": "keep"}
    findings = [one, {**one, "name": "alpha"}, {**one, "agent_id": "0123456789ab", "bytes": 5}, {**one, "bytes": 0}]
    monkeypatch.setattr(reap, "ask", lambda *_, **__: (200, {"success": True, "findings": findings}))
    status, out, _ = told(capsys, "reap")
    heads = out.splitlines()[::2]

    whose = ["", " (alpha)", " (01234567, 5 bytes)", " (0 bytes)"]
    assert (status, heads) == (0, [f"keep 2 processes{words}" for words in whose])


def test_help_and_version_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Every verb has a help text that says more than its flags; exit 0."""
    status, out, _ = told(capsys, "--help")
    assert status == 0
    for verb in VERBS:
        assert f"\n    {verb} " in out, verb
        if verb not in ("run", "beat"):
            status, text, _ = told(capsys, verb, "--help")
            assert status == 0
            assert len(text.split("\n\n")[1]) > 60, verb
            assert "--json" in text
    status, out, _ = told(capsys, "--version")
    assert (status, out.split()[0]) == (0, "agent-watchdog")


def test_no_daemon_is_69(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A verb that cannot reach a daemon says where it looked."""
    tmp_path.chmod(0o700)
    for words in (["list"], ["kill", "alpha"], ["events", "--follow"], ["register", "--name", "a"]):
        status, _, err = told(capsys, "--socket", str(tmp_path / "control.sock"), *words)
        assert status == 69, words
        assert "control.sock" in err and "agent-watchdog doctor" in err


def test_a_directory_that_others_can_write_is_78(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The client trusts only a runtime directory that is its own uid's or root's."""
    tmp_path.chmod(0o777)
    assert told(capsys, "--socket", str(tmp_path / "control.sock"), "list")[0] == 78


def test_register_prints_lines_for_eval(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """`eval "$(... register ...)"` sets the agent's environment, quoted or not; the id is in a comment."""
    words = ["register", "--name", "alpha", "--stall-after", "2m", "--tag", "x", "--tag", "y", "--task", "T-1"]
    status, out, _ = told(capsys, *words, "--pid", str(office.process()), "--worktree", ".")
    assert status == 0
    agent = office.agent("alpha")
    assert (agent.reg.tags, agent.reg.task_id, agent.reg.worktree) == (("x", "y"), "T-1", os.getcwd())
    for script in (f"eval {shlex.quote(out)}", f"text={shlex.quote(out)}; eval $text"):
        shell = subprocess.run(
            ["sh", "-ec", f'{script}\necho "$AGENT_WATCHDOG_ID $AGENT_WATCHDOG_SOCKET"'],
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": os.environ["PATH"]},
        )
        assert shell.stdout.split() == [agent.agent_id, office.socket_path], shell.stderr
    assert f"# agent {agent.agent_id} (alpha)" in out
    status, out, _ = told(capsys, "register", "--name", "beta", "--json", "--beat-every", "4h")
    answer = json.loads(out)
    assert (status, answer["name"]) == (0, "beta")
    assert "raised" in answer["notes"][0]


def test_register_says_what_is_wrong(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """The daemon's words, and exit 64 for a request that cannot be right, 1 for one that does not fit now."""
    status, _, err = told(capsys, "register", "--name", "all")
    assert (status, "name:" in err) == (64, True)
    assert told(capsys, "register", "--name", "a", "--temp-dir", "auto")[0] == 64
    office.register("alpha")
    assert told(capsys, "register", "--name", "alpha")[0] == 1
    assert told(capsys, "register", "--name", "alpha", "--replace")[0] == 0
    status, _, err = told(capsys, "register", "--name", "b", "--worktree", "/nowhere/w")
    assert (status, err.splitlines()[1:]) == (0, ["agent-watchdog: --worktree /nowhere/w does not exist yet"])
    assert err.startswith("agent-watchdog: no --pid: it counts as starting")
    assert told(capsys, "register", "--name", "c", "--queued")[2] == ""


def test_the_parent_is_the_agent_in_whose_environment_one_registers(
    office: Office, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A living one; a marker of an agent that has ended is no error."""
    parent = office.register("alpha")
    monkeypatch.setenv("AGENT_WATCHDOG_ID", parent)
    assert told(capsys, "register", "--name", "child")[0] == 0
    assert office.agent("child").reg.parent_id == parent
    office.ask("POST", "/kill", {"targets": ["alpha"]})
    assert told(capsys, "register", "--name", "later")[0] == 0
    assert office.agent("later").reg.parent_id is None


def test_list_is_an_aligned_table_or_json(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain text without a terminal; each column begins where its head does."""
    assert "no agents" in told(capsys, "list")[1]
    office.register("a-rather-long-name", stall_after_seconds=120, tags=["x"])
    office.register("b")
    office.age("a-rather-long-name", 30, verdict=Verdict.HEALTHY, line="silent for 30s of 2m", note="builds")
    status, out, _ = told(capsys, "list")
    total, head, first, second = out.splitlines()
    assert (status, total) == (0, "2 agents: 1 healthy, 1 starting")
    assert head.split() == ["NAME", "ID", "UID", "STATUS", "VERDICT", "SILENT", "PID", "TASK", "WHY"]
    for title, text in (("VERDICT", "healthy"), ("SILENT", "30s of 2m"), ("WHY", "silent for 30s of 2m; note: builds")):
        assert first[head.index(title) :].startswith(text)
    assert second.startswith("b ")
    assert "\x1b" not in out
    assert [a["name"] for a in json.loads(told(capsys, "list", "--json", "--tag", "x")[1])["agents"]] == [
        "a-rather-long-name"
    ]


def test_words_of_others_cannot_move_the_cursor(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """Control characters, escape sequences and direction marks are shown, never sent."""
    agent_id = office.register("alpha")
    office.age("alpha", note=ESCAPES, line=ESCAPES, tool=ESCAPES).sights.see(ActivityKind.LOG, ESCAPES)
    store = office.desk.store.store
    evidence = {"who": ESCAPES, ESCAPES: [ESCAPES], "deep": {"x": ESCAPES}}
    store.add_event("agent.late", agent_id, ESCAPES, ESCAPES, office.desk.now(), evidence=evidence)
    for words in (["list"], ["list", "--json"], ["why", "alpha"], ["events"], ["events", "--json"], ["kill", ESCAPES]):
        _, out, err = told(capsys, *words)
        for character in "\x1b\x07\u202e\x9b\r":
            assert character not in out + err, words


def test_a_terminal_gets_a_table_in_colour_and_none_with_no_color(office: Office) -> None:
    """rich draws for people; NO_COLOR is kept; a hostile name's [markup] stays text."""
    office.register("alpha", stall_after_seconds=120)
    office.age("alpha", 500, verdict=Verdict.STALLED, note="[red]x[/red]")
    seen = {colour: drawn({"NO_COLOR": colour}, "list", columns=200) for colour in ("", "1")}
    assert "\x1b[31mstalled" in seen[""]
    assert "\x1b[31m" not in seen["1"]
    assert all("[red]x[/red]" in text for text in seen.values())


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
    office.desk.safeguards.on = lambda *_: ["the machine slept for 7 s"]  # type: ignore[method-assign]
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
    store, now = office.desk.store.store, office.desk.now()
    store.open_request("r" * 32, agent_id, Reason.STALLED, by="daemon", now=now, why="silent", evidence={"load": 0.5})
    store.claim_request("r" * 32, "daemon 1", now)
    store.save_step("r" * 32, "term_main")
    outcome = {
        "message": "2 processes ended on TERM",
        "processes": [
            {"pid": 77, "name": "sh", "how": "after SIGTERM"},
            {"pid": 78, "name": "node", "how": "by itself"},
        ],
    }
    store.open_run("run1", agent_id, "worktree", now)
    store.finish_run("run1", HookOutcome.KEPT, "dirty: 1 file", now, {"path": "/w"})
    said = {"hook": "worktree", "outcome": "kept"}
    store.add_event("cleanup.hook_finished", agent_id, "daemon", "worktree: kept: dirty", now, evidence=said)
    store.finish_request("r" * 32, "done", outcome, now=now, who="daemon", why="2 processes ended on TERM")
    assert "its time to live ended 1m ago" in "\n".join(story({"agent": {"ttl_left_seconds": -60}}))
    store.transition(agent_id, {Status.RUNNING}, Status.KILLED, now=now, who="daemon", why="all done")
    office.on_loop(lambda: office.desk.fleet.drop(agent_id))
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


def test_events_prints_and_follows_over_a_restart(office: Office, capfd: pytest.CaptureFixture[str]) -> None:
    """Without --follow it ends; with it, it goes on by itself when the daemon comes back."""
    agent_id = office.register("alpha")
    assert verbs.main(["events"]) == 0
    assert f"agent.registered alpha {agent_id[:8]} →" in capfd.readouterr().out, "an id alone tells nobody who it was"
    process = subprocess.Popen(
        [str(CLI), "events", "--follow", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines: list[dict[str, object]] = []
    assert process.stdout is not None and process.stderr is not None
    reader = threading.Thread(target=lambda: lines.extend(json.loads(line) for line in process.stdout or ()))
    reader.start()
    office.register("beta")
    wait_for(lambda: lines, "it follows: one that finds no daemon from the start ends")
    office.stop()
    office.start()
    office.register("gamma")
    try:
        wait_for(lambda: lines and lines[-1]["evidence"]["name"] == "gamma", "the event after the restart")  # type: ignore[index]
    finally:
        process.terminate()
        process.wait(60)
        reader.join(60)
        process.stdout.close()
        process.stderr.close()
    ids = [line["id"] for line in lines]
    assert [line["evidence"]["name"] for line in lines] == ["alpha", "beta", "gamma"]  # type: ignore[index]
    assert ids == sorted(set(ids))  # type: ignore[type-var]


def test_kill_prints_json_with_the_keys_of_the_command(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """One target: one object; several: the summary. Flags reach the worker."""
    office.register("alpha", task="T-1")
    office.register("beta")
    gamma = office.register("gamma")
    words = ["kill", "alpha", "--json", "--grace", "30s", "--no-cleanup", "--reason", "why not"]
    status, out, _ = told(capsys, *words)
    answer = json.loads(out)
    assert (status, answer["success"], answer["task_id"]) == (0, True, "T-1")
    options = office.worker.asked[0][2]
    assert (options.grace, options.cleanup, options.text) == (timedelta(seconds=30), False, "why not")
    for word in (gamma[:8], gamma):
        status, out, _ = told(capsys, "kill", word, "--json")
        assert (status, json.loads(out)["agent_id"]) == (0, gamma)
    status, out, _ = told(capsys, "kill", "stalled", "all", "--json", "--force")
    answer = json.loads(out)
    assert (status, answer["agents_killed"], answer["killed_agents"][0]["name"]) == (0, 1, "beta")
    status, out, _ = told(capsys, "kill", "alpha")
    assert (status, out.split(": ")[1]) == (0, "already dead")


def test_kill_ends_with_1_when_any_target_lives_on(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """Each failure is a line on stderr; the others are ended."""
    office.register("alpha")
    office.register("beta")
    office.worker.stubborn.add("beta")
    status, out, err = told(capsys, "kill", "alpha", "beta", "nobody")
    assert status == 1
    assert "alpha" in out
    assert "): something of it lives" in err and "no agent is called 'nobody'" in err
    assert told(capsys, "kill", "beta")[0] == 1
    office.ask("POST", "/v1/hold", {"targets": ["beta"]})
    status, _, err = told(capsys, "kill", "beta")
    assert (status, "held" in err) == (1, True)


@pytest.mark.skipif(not ROOT, reason="needs root: other people's agents")
def test_kill_ends_with_77_when_all_that_live_on_are_not_ours(office: Office) -> None:
    """Permission is the only reason: 77; one other reason among them: 1."""
    office.register("alpha", ALICE)
    office.register("mine", BOB)
    office.worker.stubborn.add("mine")
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from watchdog.cli import verbs; "
    code += "sys.exit(verbs.main(sys.argv[1:]))"
    root = str(Path(verbs.__file__).parents[2])

    def as_bob(*words: str) -> int:
        done = subprocess.run(
            [sys.executable, "-I", "-c", code, root, *words],
            user=BOB,
            group=BOB,
            extra_groups=[],
            env={"AGENT_WATCHDOG_SOCKET": office.socket_path},
            capture_output=True,
            text=True,
            timeout=60,
            cwd="/",
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode

    assert as_bob("kill", "alpha") == 77
    assert as_bob("kill", "alpha", "mine") == 1
    assert as_bob("why", "alpha") == 77
    assert as_bob("events", "--agent", "alpha") == 77
    assert as_bob("hold") == 77
    assert as_bob("list") == 0


def test_a_dry_run_says_who_and_ends_nobody(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """For everything that destroys."""
    pid = office.process()
    office.register("alpha", pid=pid, task="T-1")
    office.end_process(pid)
    for words in (["kill", "alpha"], ["stop", "all"], ["cancel", "T-1"], ["remove", "alpha"]):
        status, out, _ = told(capsys, *words, "--dry-run")
        assert (status, "alpha" in out, "would be" in out) == (0, True, True), (words, out)
    assert office.worker.asked == []


@pytest.mark.parametrize(
    "words", [("hold", "--for"), ("kill", "stalled", "--stall-after"), ("register", "--name", "a", "--ttl")]
)
def test_no_duration_at_all_is_refused_by_the_flag_s_own_name(
    office: Office, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    """The request's key, which the daemon names, was never typed."""
    status, _, error = told(capsys, *words, "0s")
    assert status == 64
    assert f"{words[-1]}: must be more than 0" in error


def test_hold_unhold_stop_cancel_remove(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """The small verbs do what they say, with --json too."""
    office.register("alpha", task="T-1")
    status, out, _ = told(capsys, "hold", "alpha", "--for", "2h", "--reason", "debugging")
    assert (status, "held: debugging" in out) == (0, True)
    assert "HELD: debugging" in told(capsys, "why", "alpha")[1]
    assert "held: debugging" in told(capsys, "list")[1]
    assert told(capsys, "unhold", "alpha")[0] == 0
    assert told(capsys, "hold", "--reason", "night")[0] == 0
    assert "all agents: night" in told(capsys, "status")[1]
    status, out, _ = told(capsys, "unhold", "--json")
    assert json.loads(out)["success"]
    status, out, _ = told(capsys, "cancel", "T-1", "--json")
    assert (status, json.loads(out)["agents_killed"]) == (0, 1)
    office.register("beta")
    assert told(capsys, "stop", "beta")[0] == 0
    assert told(capsys, "remove", "beta")[0] == 0
    assert told(capsys, "status", "--json")[0] == 0


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("/etc/a.toml", "/etc/a.toml was adopted"),
        ("defaults", "there is no configuration file: the defaults were adopted"),
    ],
)
def test_a_reload_names_what_was_adopted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], config: str, said: str
) -> None:
    """A newcomer without a file read "defaults was adopted"."""
    answer: dict[str, object] = {"success": True, "config": config, "problems": [], "waiting": []}
    monkeypatch.setattr(client, "request", lambda *_, **__: (200, answer))

    assert told(capsys, "reload", "--socket", "/nowhere") == (0, f"{said}\n", "")


def test_a_kill_tells_what_was_done_and_not_what_had_nothing_to_do(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who is paged reads four lines of nothing else. What was not run for want of another is told; `why` has all."""
    office.register("alpha")
    office.worker.more = {
        "cleanup": [
            {"hook": "pane", "outcome": "nothing", "message": "no pane of it is known"},
            {"hook": "worktree", "outcome": "kept", "message": "kept /w: it is not clean"},
            {"hook": "board", "outcome": "nothing", "message": "not run, it needs worktree", "needs": "worktree"},
        ]
    }
    status, out, _ = told(capsys, "kill", "alpha")
    assert (status, "pane" in out) == (0, False)
    assert (
        "  cleanup worktree: kept; /w: it is not clean\n  cleanup board: nothing; not run, it needs worktree\n" in out
    )


@pytest.mark.parametrize("verb", ["kill", "stop"])
def test_a_pane_that_was_not_made_for_the_agent_is_no_news(
    office: Office, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    """Case O27: it is the shell in which it was started, or a hook had nothing to do; the rest is told."""
    office.register("alpha")
    for told_of, outcome, why in (
        (False, "kept", "was left open: it was not made for the agent"),
        (True, "kept", "stays: in use by vim"),
        (False, "nothing", "it has no pane"),
        (True, "failed", "was left open"),
    ):
        office.worker.more = {"cleanup": [{"hook": "pane", "outcome": outcome, "message": f"tmux pane %1 {why}"}]}
        assert ("pane" in told(capsys, verb, "alpha")[1]) is told_of, (outcome, why)
        office.register("alpha")


def test_a_kill_names_the_child_agents_that_it_spares(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """They work on for nobody; who meant them, too, says --children."""
    parent = office.register("alpha")
    office.register("beta", parent=parent)
    assert "1 process ended; child agents still running (--children): beta" in told(capsys, "kill", "alpha")[1]
    assert "live on" not in told(capsys, "kill", "beta")[1]


def test_a_remove_says_that_it_removed(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """ "There was nobody to end" alone leaves open whether the row is closed."""
    office.register("alpha")
    assert "): removed: 1 process ended" in told(capsys, "remove", "alpha")[1]


def test_a_cancel_says_what_became_of_the_task(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where its agent had ended before: "already dead" alone leaves open whether the task goes on."""
    office.register("alpha", task="T-1")
    office.register("beta", task="T-2")
    assert told(capsys, "kill", "alpha")[0] == 0
    for _ in range(2):
        status, out, _ = told(capsys, "cancel", "T-1")
        assert (status, "): task T-1 is cancelled; its agent: already dead: killed" in out) == (0, True)
    assert "): task T-2 is cancelled; its agent: 1 process ended" in told(capsys, "cancel", "T-2")[1]
    status, _, err = told(capsys, "cancel", "T-9")
    assert (status, "no agent has or had task 'T-9'" in err) == (1, True)


def test_a_full_disk_below_stdout_is_told_in_one_line(office: Office) -> None:
    """74 (EX_IOERR), no traceback, neither at the write nor at exit."""
    office.register("alpha")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [str(CLI), "--socket", office.socket_path, "list"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 74
    assert done.stderr == "agent-watchdog: [Errno 28] No space left on device\n"


def test_a_closed_pipe_ends_quietly(office: Office) -> None:
    """`list | head -1` is no error and no traceback."""
    for number in range(200):
        office.desk.store.store.add_event("agent.late", None, "test", "x" * 2000 + str(number), office.desk.now())
    done = subprocess.run(
        ["sh", "-c", f"{shlex.quote(str(CLI))} events | head -n 1"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
