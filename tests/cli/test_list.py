"""What `list` tells first: one word for each agent, the most urgent on top, the reason of each failure."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import PROGRAM, told
from tests.cli.terminal import a_terminal, drawn
from tests.control.office import Office
from watchdog.cli import list as listing
from watchdog.cli import verbs
from watchdog.cli.diagnosis import attention
from watchdog.cli.output import table
from watchdog.cli.seen import Seen
from watchdog.cli.why import story
from watchdog.core.agent import State, Status, Verdict
from watchdog.core.hooks import HookOutcome
from watchdog.core.observed_activity import ActivityKind

Json = dict[str, object]


def agent(name: str, status: str = "running", **more: object) -> Json:
    """One as `/v1/agents` has it."""
    return {"name": name, "agent_id": name * 8, "owner_uid": 0, "status": status, "pid": 77, "why": "", **more}


def listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], agents: list[Json], **status: object
) -> list[str]:
    """The lines of `list` for these agents and that state of the daemon."""
    answers: dict[str, Json] = {"/v1/agents": {"agents": agents}, "/v1/status": dict(status)}
    monkeypatch.setattr(listing, "ask", lambda _arguments, _method, path: (200, answers[path]))
    assert verbs.main(["list"]) == 0
    return capsys.readouterr().out.splitlines()


def cells(lines: list[str], title: str) -> dict[str, str]:
    """One column, by name."""
    head = next(line for line in lines if line.startswith("NAME "))
    begin = head.index(title)
    return {line.split()[0]: line[begin:].split("  ")[0] for line in lines[lines.index(head) + 1 :]}


def test_an_agent_that_has_ended_has_no_verdict_any_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """O28: it was "killed healthy". Nor is its pid its own any more, which is another's by and by."""
    over = {"completed_at": "2026-01-01T00:00:00Z", "verdict": "healthy", "needs_person": True, "note": "page 3"}
    agents = [agent("a", "killed", **over), agent("b", "failed", verdict="starting"), agent("c", verdict="late")]
    lines = listed(monkeypatch, capsys, agents)
    assert cells(lines, "VERDICT") == {"a": "-", "b": "-", "c": "late"}
    assert cells(lines, "PID") == {"a": "-", "b": "-", "c": "77"}
    assert not any("page 3" in line for line in lines), "its last note is of then"
    assert lines[0] == "1 agent: 1 late; 2 ended"


def test_the_most_urgent_stand_first_each_with_one_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """O34: sorted by what a person has to see to. A verdict that no answer changes is not called a need."""
    agents = [
        agent("a", verdict="healthy"),
        agent("b", verdict="waiting"),
        agent("c", verdict="waiting", needs_person=True),
        agent("d", verdict="stalled", needs_person=True),
        agent("e", "unkillable", verdict="stalled"),
        agent("f", "completed", completed_at="2026-01-01T00:00:00Z"),
        agent("g", "completed", completed_at="2026-01-02T00:00:00Z"),
        agent("h", "killed", completed_at="2026-01-01T00:00:00Z", cleanup_failed=["cleanup hook x failed: y"]),
        agent("i", verdict="healthy", needs_person=True),
    ]
    lines = listed(monkeypatch, capsys, agents)
    total = "6 agents: 1 unkillable, 2 need a person, 1 stalled, 1 healthy, 1 waiting"
    assert lines[0] == f"{total}; 3 ended, 1 of them with a failed cleanup"
    assert "".join(cells(lines, "VERDICT")) == "ecidabhgf"
    assert {name for name, word in cells(lines, "VERDICT").items() if word == "needs a person"} == {"c", "i"}


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"registry_problem": "/r.db: SQLITE_FULL: full"},
            ["the registry cannot be used: /r.db: SQLITE_FULL: full", "kills no agent", "make room"],
        ),
        ({"holds": [{"agent_id": None, "reason": "deploy", "by_uid": 0}]}, ["all agents are held: deploy", "unhold"]),
        ({"doubts": ["mass stall"]}, ["kills for silence are held back: mass stall", "unhold"]),
        ({"doubts": ["load"], "lasting_doubts": ["load"]}, ["holds back kills for silence: load", "unhold"]),
        ({"mode": "observe"}, ["only observes"]),
        ({"interval_seconds": 1, "last_sweep": "2026-01-01T00:00:00+00:00"}, ["the last sweep was"]),
    ],
)
def test_what_stands_above_every_agent_stands_above_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: Json, words: list[str]
) -> None:
    """Nobody saw in `list` that all is held, or that the registry is away. One line each, with what to do."""
    for agents in ([], [agent("a")]):
        first, *rest = listed(monkeypatch, capsys, agents, **status)
        wrong = bool(attention(Seen(uid=0, status=status, sweep_age=1e6 if "last_sweep" in status else 0)))
        assert first.startswith("ATTENTION: " if wrong else "note: "), "one word for one thing: that of `status`"
        assert all(word in first for word in words), first
        assert not any("ATTENTION" in line for line in rest)


def test_one_agents_hold_is_no_banner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands in that agent's line, before what it holds back."""
    held = agent("a", held="mine (by uid 0)", why="silent for 9m", verdict="stalled")
    lines = listed(monkeypatch, capsys, [held], holds=[{"agent_id": "a", "reason": "mine", "by_uid": 0}])
    assert lines[0] == "1 agent: 1 stalled"
    assert lines[-1].endswith("held: mine (by uid 0); silent for 9m")


def test_what_another_daemon_watches_is_called_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A1: it was "healthy", with a silence and a limit that count for nothing here."""
    theirs: dict[str, Any] = {"promised": True, "after_seconds": 30, "counted_seconds": 3, "verdict": "healthy"}
    theirs |= {"elsewhere": "root's daemon (pid 7, /run/s)", "why": "watched by root's daemon (pid 7, /run/s)"}
    lines = listed(monkeypatch, capsys, [agent("a", **theirs), agent("b", verdict="healthy")])
    assert lines[0] == "2 agents: 1 elsewhere, 1 healthy"
    assert cells(lines, "VERDICT") == {"a": "elsewhere", "b": "healthy"}
    assert cells(lines, "SILENT")["a"] == "-"
    assert next(story({"agent": agent("a", **theirs)})) == "a  running, elsewhere"


def test_a_wait_has_no_limit_of_silence(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """ "9m of 30s" beside `waiting` looks like a fault."""
    silent: dict[str, Any] = {"promised": True, "after_seconds": 30, "counted_seconds": 540}
    agents = [agent("a", verdict="waiting", **silent), agent("b", verdict="late", **silent)]
    assert cells(listed(monkeypatch, capsys, agents), "SILENT") == {"a": "9m", "b": "9m of 30s"}


def ended_with_a_failed_hook(office: Office, name: str) -> str:
    """One that ended well, and whose cleanup did not."""
    agent_id, now = office.register(name), office.context.now()
    registry = office.context.registry
    registry.agents.transition(agent_id, {Status.STARTING}, Status.RUNNING, now=now, who="test", why="")
    registry.agents.transition(agent_id, {Status.RUNNING}, Status.ENDING, now=now, who="test", why="")
    for hook, outcome, message in (
        ("pane", HookOutcome.DONE, "closed"),
        ("worktree", HookOutcome.FAILED, "exit status 3: no route to host"),
        ("temp_dir", HookOutcome.TIMEOUT, ""),
    ):
        registry.history.open_run(f"{name}-{hook}", agent_id, hook, now)
        registry.history.finish_run(f"{name}-{hook}", outcome, message, now)
    registry.agents.transition(
        agent_id, {Status.ENDING}, Status.COMPLETED, now=now, who="test", why="exited", exit_code=0
    )
    office.on_loop(lambda: office.context.fleet.drop(agent_id))
    return agent_id


FAILED = ["cleanup hook worktree failed: exit status 3: no route to host", "cleanup hook temp_dir ran out of time"]


def test_a_failed_hook_has_its_reason_wherever_its_agent_is_shown(
    office: Office, capsys: pytest.CaptureFixture[str]
) -> None:
    """O29: in `list --all` its reason was blank, as the agent itself had ended well."""
    agent_id = ended_with_a_failed_hook(office, "alpha")
    assert verbs.main(["list", "--all"]) == 0
    total, _, line = capsys.readouterr().out.splitlines()
    assert total == "0 agents; 1 ended, 1 of them with a failed cleanup"
    assert all(words in line for words in (*FAILED, "exited by itself with status 0")), line

    (shown,) = office.ask("GET", "/v1/agents?all")[1]["agents"]
    assert {one.partition(": it gave")[0] for one in shown["cleanup_failed"]} == set(FAILED)
    assert office.ask("GET", f"/v1/agents/{agent_id}")[1]["agent"]["cleanup_failed"] == shown["cleanup_failed"]
    assert verbs.main(["why", "alpha"]) == 0
    why = capsys.readouterr().out
    assert FAILED[0] in why.partition("what happened")[0]
    assert "agent-watchdog reap then runs it again" in why.partition("what happens next")[2].partition("details")[0]


def test_a_list_without_the_registry_is_shown_without_these(office: Office) -> None:
    """It comes from memory; who is being cleaned up is asked for in the registry, and may not be waited for."""
    office.register("alpha")
    office.age("alpha", status=Status.ENDING)
    assert office.ask("GET", "/v1/agents")[1]["agents"][0]["cleanup_failed"] == []
    office.context.status.facts = lambda: {"registry_problem": "gone"}  # type: ignore[method-assign]
    assert "cleanup_failed" not in office.ask("GET", "/v1/agents")[1]["agents"][0]


def test_an_unkillable_agent_is_listed_with_what_holds_it(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """O29's sibling: its verdict's line stood there, which said nothing of the kill that had failed."""
    office.register("alpha")
    office.age("alpha", status=Status.UNKILLABLE, line="silent for 9m", lives_on="d_state: dd[77] alive (d_state)")
    for words in (["list"], ["why", "alpha"], ["kill", "alpha", "--dry-run"]):
        verbs.main(words)
        assert "cannot be killed: d_state: dd[77] alive" in capsys.readouterr().out, words


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({"state": State.WAITING, "verdict": Verdict.WAITING}, True),
        ({"state": State.IDLE, "verdict": Verdict.WAITING}, False),
        ({"needed_human": True, "verdict": Verdict.HEALTHY}, True),
        ({"verdict": Verdict.HEALTHY}, False),
    ],
)
def test_who_needs_a_person_is_called_so(
    office: Office, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], needs: bool
) -> None:
    """O32: `waiting` was one word for a tool, a rest and a question; `list`, `why` and JSON have it alike."""
    office.register("alpha")
    office.age("alpha", **changes)
    assert office.ask("GET", "/v1/agents")[1]["agents"][0]["needs_person"] is needs
    for words in (["list"], ["why", "alpha"]):
        assert verbs.main(words) == 0
        assert ("needs a person" in capsys.readouterr().out) is needs, words


def test_a_remedy_is_not_cut(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A5: the line of a frozen agent ended in "echo THAWED >". An agent's own words are cut, and show it."""
    frozen = f"cannot be killed: frozen: sh[35] alive (thaw it as root: echo THAWED > /sys/{'g' * 100}/freezer.state)"
    failed = f"cleanup hook x ran out of time: ended after 60 s; does that hang? timeout 5 ls /home/{'a' * 90}"
    agents = [agent("a", "unkillable", why=frozen), agent("b", "ending", cleanup_failed=[failed], note="n" * 400)]
    _, _, first, second = listed(monkeypatch, capsys, agents)
    assert frozen in first and failed in second
    assert second.endswith("nnn...") and len(second) < 400


# -- at a terminal


def test_each_colour_has_its_word_and_none_comes_with_no_color_or_without_a_terminal(office: Office) -> None:
    """O32: the cell that is coloured holds the word; without colours the same words are there."""
    for name, verdict in (("asks", Verdict.WAITING), ("rests", Verdict.WAITING), ("dies", Verdict.STALLED)):
        office.register(name)
        office.age(name, verdict=verdict, state=State.WAITING if name == "asks" else State.IDLE)
    coloured, plain = drawn({}, "list", columns=200), drawn({"NO_COLOR": "1"}, "list", columns=200)
    for colour, word in (("1;35", "needs a person"), ("36", "waiting"), ("31", "stalled")):
        assert f"\x1b[{colour}m{word}" in coloured
        assert word in plain
        assert f"\x1b[{colour}m" not in plain
    piped = subprocess.run([PROGRAM, "list"], capture_output=True, text=True, timeout=60, env={**os.environ})
    assert "\x1b" not in piped.stdout
    assert "needs a person" in piped.stdout


def test_a_long_name_leaves_a_narrow_terminal_to_the_others(office: Office) -> None:
    """O3: one of 55 characters hid status, verdict and reason of all."""
    office.register("n" * 55)
    office.register("b", task="T-1")
    office.age("b", verdict=Verdict.LATE, line="silent for 9m, promised 2m; look 1 of 2; " + "and more " * 5)
    lines = drawn({"NO_COLOR": "1"}, "list").splitlines()
    assert max(len(line.replace("\x1b[1m", "").replace("\x1b[0m", "")) for line in lines) <= 80
    row = next(line for line in lines if line.startswith("b "))
    assert [word in row for word in ("running", "late", "T-1")] == [False, True, True], "it is starting"
    assert any(line.startswith("    silent for 9m, promised 2m; look 1 of 2") for line in lines), "below its row"


def test_columns_that_say_nothing_are_left_out_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a file all stand there, for programs that count them."""
    rows = [["a", "-", "x"], ["b", "-", "y"]]
    assert table(("NAME", "TASK", "WHY"), rows)[0] == "NAME  TASK  WHY"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "TASK" not in table(("NAME", "TASK", "WHY"), rows)[0]


def test_a_watch_draws_in_place_as_much_as_fits_and_outlives_the_daemon(office: Office, tmp_path: Path) -> None:
    """O24: it scrolled, and ended with 69 when the daemon was restarted."""
    for number in range(12):
        office.register(f"agent-{number:02}")
    with a_terminal({**os.environ, "NO_COLOR": "1"}, tmp_path) as terminal:
        terminal.resize(rows=8, columns=100)
        terminal.type(f"TERM=xterm exec {PROGRAM} list --watch")
        first = terminal.expect("more lines: enlarge the window, or use list without --watch")
        assert first.partition("\x1b[2J")[2].count("\n") == 6, (
            "one line less than the window, with the one that says so"
        )
        again = terminal.expect("more lines: enlarge the window")
        assert "\x1b[2J" not in again, "it is drawn over, not cleared into the scrollback"
        office.stop()
        terminal.expect("waiting for the daemon")
        office.start()
        office.register("afterwards")
        terminal.expect("afterwards")


def test_a_watch_that_never_found_a_daemon_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `events --follow` does."""
    tmp_path.chmod(0o700)
    assert verbs.main(["--socket", str(tmp_path / "control.sock"), "list", "--watch"]) == 69
    assert "doctor" in capsys.readouterr().err


def test_a_watch_for_a_program_outlives_the_daemon_too(office: Office) -> None:
    """One JSON value a line, as before."""
    office.register("alpha")
    process = subprocess.Popen(
        [PROGRAM, "list", "--watch", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["agents"][0]["name"] == "alpha"
        office.stop()
        assert "waiting for the daemon" in process.stderr.readline()
        office.start()
        while json.loads(process.stdout.readline())["agents"]:
            pass  # of the daemon before; the one that came anew knows of nobody
    finally:
        process.kill()
        process.communicate(timeout=60)


ESCAPES = "\x1b[2J\x07\u202e\x9b31m\r"


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
    registry = office.context.registry
    evidence = {"who": ESCAPES, ESCAPES: [ESCAPES], "deep": {"x": ESCAPES}}
    registry.history.add_event("agent.late", agent_id, ESCAPES, ESCAPES, office.context.now(), evidence=evidence)
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
