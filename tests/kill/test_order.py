"""An order: who holds its claim, its outcome as text, how far it has come, what withdraws it, who waits for it."""

import ast
import asyncio
import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from watchdog import kill
from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.core.agent import Beat, Policy, Registration, Status
from watchdog.core.conversations import Conversation
from watchdog.core.kill import KillOptions, KillStep, Reason
from watchdog.core.process import Identity, TreeMember
from watchdog.kill.order import (
    AgentDeath,
    KillOrder,
    KillOutcome,
    KillProgress,
    OpenOrder,
    OutcomeWaiters,
    claim_is_stale,
    daemon_identity,
    member_json,
    result_of,
    withdrawn,
)
from watchdog.kill.terminate import Grace
from watchdog.processes.identity import boot_id, read_identity
from watchdog.registry.rows import HoldRow, RequestRow

HOST = "host of two words"


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """A process that another daemon could be."""
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


def claim(pid: int, *, ticks: int | None = None, boot: str | None = None, host: str = HOST) -> str:
    """What a daemon with that pid writes."""
    identity = read_identity(pid, host)
    assert identity is not None
    return f"daemon {pid} {identity.start_ticks if ticks is None else ticks} of boot {boot or boot_id()} of host {host}"


def test_a_claim_of_a_living_daemon_is_its_own_until_it_has_gone(other: subprocess.Popen[bytes]) -> None:
    """The same text, before and after."""
    its = claim(other.pid)
    assert not claim_is_stale(its, HOST)
    other.kill()
    other.wait()
    assert claim_is_stale(its, HOST)


def test_a_later_process_with_the_same_pid_and_another_boot_hold_nothing(other: subprocess.Popen[bytes]) -> None:
    """Pids come again; a boot that is over comes never."""
    identity = read_identity(other.pid, HOST)
    assert identity is not None
    assert claim_is_stale(claim(other.pid, ticks=identity.start_ticks - 1), HOST)
    assert claim_is_stale(claim(other.pid, boot=str(uuid.uuid4())), HOST)


def test_another_host_s_claim_is_never_ours_to_take(other: subprocess.Popen[bytes]) -> None:
    """Whether its process lives can be seen only there."""
    its = claim(other.pid, host="elsewhere")
    other.kill()
    other.wait()
    assert not claim_is_stale(its, HOST)


def test_our_own_claim_and_text_that_no_daemon_wrote_are_free() -> None:
    """The answer to our claim was lost; a person wrote into the table by hand."""
    assert daemon_identity(HOST) == claim(os.getpid())
    for text in (None, "", "me", daemon_identity(HOST), "daemon x y of boot b of host h", "daemon 1 2"):
        assert claim_is_stale(text, HOST), text


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PROCESS: dict[str, object] = {"pid": 7, "name": "sleep", "how": "after SIGTERM", "started": None}


def death(**more: object) -> AgentDeath:
    facts: dict[str, object] = {
        "pid": 7,
        "task_id": "t",
        "task_status": "failed",
        "killed_at": AT,
        "grace": timedelta(seconds=10),
        "silence": timedelta(seconds=61.04),
        "resume": "claude --resume x",
        "conversation": None,
        "stop_reason": None,
        "exit_code": None,
        "exit_signal": 15,
    }
    return AgentDeath(**{**facts, **more})  # type: ignore[arg-type] # the test's own words


def test_the_death_of_an_agent_is_told_in_the_keys_of_the_first_version_and_in_their_order() -> None:
    """Text for text: the row and the history have it, and scripts read it."""
    told = KillOutcome("a", "stalled: 1 process ended on TERM", status=Status.KILLED, processes=(PROCESS,))
    told = KillOutcome(told.agent_id, told.message, None, told.status, False, told.processes, death())
    assert json.dumps(told.json(), separators=(",", ":")) == (
        '{"success":true,"agent_id":"a","action":"graceful_kill","pid":7,"kill_signal":"SIGTERM","task_id":"t",'
        '"killed_at":"2026-01-02T03:04:05Z","grace_period_seconds":10.0,"killed_gracefully":true,'
        '"seconds_since_heartbeat":61.0,"message":"stalled: 1 process ended on TERM","status":"killed",'
        '"resume":"claude --resume x","resumable":true,"stop_reason":null,"exit_code":null,"exit_signal":15,'
        '"processes":[{"pid":7,"name":"sleep","how":"after SIGTERM","started":null}],"task_status":"failed"}'
    )


def test_what_was_never_known_is_null_and_a_conversation_stands_behind_the_command_for_it() -> None:
    """An agent without a pid, a beat, or a grace, killed at once."""
    conversation = Conversation("claude", "0-1", None, "/w")
    facts = death(pid=None, grace=None, silence=None, resume=None, conversation=conversation)
    told = KillOutcome("a", "m", status=Status.KILLED, killed=True, death=facts).json()
    keys = ("action", "pid", "kill_signal", "grace_period_seconds", "killed_gracefully", "seconds_since_heartbeat")
    assert [told[key] for key in keys] == ["force_kill", None, "SIGKILL", None, False, None]
    assert told["resumable"] is False
    names = list(told)
    assert names[names.index("resumable") + 1] == "conversation"


def test_orphans_survivors_and_the_withdrawn_have_what_is_known_of_them() -> None:
    """Orphans have no death of their own: their agent's was reported before."""
    orphans = KillOutcome("a", "1 process that outlived it ended", status=Status.LOST, processes=(PROCESS,)).json()
    assert list(orphans) == ["success", "agent_id", "action", "message", "status", "processes"]
    assert KillOutcome("a", "not ended, d_state: x", "kill_failed").json() == {
        "success": False,
        "error": "kill_failed",
        "agent_id": "a",
        "message": "not ended, d_state: x",
    }
    assert withdrawn("a").json() == {
        "success": False,
        "error": "withdrawn",
        "agent_id": "a",
        "message": "withdrawn",
    }


@pytest.mark.parametrize(
    "row",
    [
        {"success": True, "status": "killed", "message": "m", "a key of another version": [1]},
        {"message": "m", "error": 7},
        {"status": "weird"},
        {"status": []},
    ],
)
def test_what_an_earlier_daemon_wrote_goes_on_as_it_is(row: dict[str, object]) -> None:
    """Also what this version does not know; the note on a grace is taken out, once."""
    told, termed = KillOutcome.of_row("a", {"termed": {"mono": 1.0}, **row})
    assert termed == {"mono": 1.0}
    assert told is not None and told.json() == row
    assert told.status is (Status.KILLED if row.get("status") == "killed" else None)
    assert told.cleaned([]).json() == {**row, "cleanup": []}


def test_an_order_that_has_come_to_nothing_yet_has_no_outcome() -> None:
    """Nor has one of which only a grace is noted."""
    assert KillOutcome.of_row("a", {}) == (None, None)
    assert KillOutcome.of_row("a", {"termed": 1}) == (None, 1)


def test_a_hook_that_left_a_command_to_type_stands_beside_the_others() -> None:
    """The kill itself is a success."""
    run: dict[str, object] = {"hook": "pane", "outcome": "failed", "message": "m", "retry": "tmux kill-pane -t %1"}
    told = KillOutcome("a", "m", status=Status.KILLED, death=death()).cleaned([run]).json()
    assert list(told)[-3:] == ["cleanup", "pane_cleanup_failed", "pane_retry_command"]
    assert (told["cleanup"], told["pane_cleanup_failed"]) == ([run], True)
    assert told["pane_retry_command"] == "tmux kill-pane -t %1"


def test_a_finished_order_is_told_as_its_row_has_it() -> None:
    """A withdrawn one keeps only why; an open one has no result."""
    row = RequestRow("r", "a", Reason.STALLED, "daemon", "done", AT, outcome={"success": True}, finished_at=AT)
    assert result_of(row) == {"success": True}
    called_off = RequestRow("r", "a", Reason.STALLED, "daemon", "withdrawn", AT, outcome={"why": "w"}, finished_at=AT)
    assert result_of(called_off) == withdrawn("a", "w").json()
    assert result_of(RequestRow("r", "a", Reason.STALLED, "daemon", "open", AT)) is None


NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEAD = KillOutcome("a", "dead", status=Status.KILLED)


def agent() -> Agent:
    reg = Registration("a", "alpha", os.getuid(), "host", boot_id(), identity=Identity("host", boot_id(), 2, 7))
    return Agent(reg, Policy(), Status.RUNNING)


def opened(reason: Reason = Reason.STALLED, by: str = "daemon") -> OpenOrder:
    return OpenOrder(KillOrder("r", agent(), reason, KillOptions(), by, "why", 0))


def row(step: str | None, **more: object) -> RequestRow:
    return RequestRow("r", "a", Reason.STALLED, "daemon", "claimed", NOW, step=step, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("termed", "began"),
    [
        ({"mono": 900.0, "all": True}, (900.0, True)),
        ({"mono": 900.0, "all": False}, (900.0, False)),
        ({"mono": 1001.0, "all": True}, None),  # another clock's
        ({"mono": "900", "all": True}, None),
        ({"boot_id": "another", "mono": 900.0, "all": True}, None),
        ("900", None),
        (None, None),
    ],
)
def test_a_grace_goes_on_after_a_restart(termed: object, began: tuple[float, bool] | None) -> None:
    """Anything else, as in an edited row, starts it again."""
    here = {"boot_id": boot_id(), **termed} if isinstance(termed, dict) else termed
    progress = KillProgress.of_row(row("term_main", outcome={"termed": here, "message": "m"}), 1000.0)
    assert progress.grace == began
    assert progress.outcome is not None and progress.outcome.json() == {"message": "m"}


@pytest.mark.parametrize(
    ("step", "main", "touched", "killed", "how"),
    [
        (None, False, False, False, "by itself"),
        ("looked", False, False, False, "by itself"),
        ("term_rest", False, True, False, "after SIGTERM"),
        ("term_main", True, True, False, "after SIGTERM"),
        ("another version's", True, True, False, "after SIGTERM"),
        ("kill", True, True, True, "after SIGKILL"),
        ("cleanup", True, True, False, "after SIGTERM"),
    ],
)
def test_what_an_earlier_daemon_was_about_to_do_may_have_been_done(
    step: str | None, main: bool, touched: bool, killed: bool, how: str
) -> None:
    """It was not seen, so its processes are listed as if it had been."""
    member = TreeMember(Identity("host", boot_id(), 2, 7), 1, 0, "sleep", "S", "marker")
    progress = KillProgress.of_row(row(step, members=(member_json(member),)), 0.0)
    assert (progress.main_signalled, progress.touched, progress.begun, progress.killed) == (
        main,
        touched,
        touched,
        killed,
    )
    (process,) = progress.processes.values()
    assert process == {"pid": 2, "name": "sleep", "how": f"{how}, while no daemon was there"}


def test_the_note_on_a_grace_stands_beside_the_outcome_so_far() -> None:
    """As a later daemon reads it."""
    progress = KillProgress(outcome=KillOutcome("a", "not ended", "kill_failed"))
    noted = progress.grace_json(Grace(5.0, True))
    assert noted == {**progress.outcome.json(), "termed": {"boot_id": boot_id(), "mono": 5.0, "all": True}}  # type: ignore[union-attr]
    assert KillProgress.of_row(row("term_all", outcome=noted), 6.0).grace == Grace(5.0, True)


def test_a_beat_a_hold_a_doubt_and_observe_mode_withdraw_what_the_daemon_ordered() -> None:
    """Until the first signal is on its way; then it is finished."""
    holds = Holds()
    one = opened()
    assert one.withdrawal_reason(holds, NOW) is None
    one.cancel("mass stall")
    assert one.withdrawal_reason(holds, NOW) == "mass stall"
    one.observe("only observes")
    assert one.withdrawal_reason(holds, NOW) == "only observes"
    one.order.agent.beat(Beat(), 0.0, NOW)
    assert one.withdrawal_reason(holds, NOW) == "a heartbeat came before the first signal"
    held = opened()
    holds.put(HoldRow(1, "a", "debugging", 0, NOW))
    assert held.withdrawal_reason(holds, NOW) == "held before the first signal: debugging (by uid 0)"
    for each in (one, held):
        each.progress.begin()
        assert each.withdrawal_reason(holds, NOW) is None


def test_an_order_that_a_person_wants_too_is_withdrawn_by_no_beat_and_no_doubt() -> None:
    """The person's reason becomes the order's, and is stored."""
    one = opened()
    one.cancel("mass stall")
    stored = one.merge_request(Reason.OPERATOR, KillOptions(force=True), "uid 0", "enough")
    assert stored is not None and (stored["force"], stored["why"]) == (True, "enough")
    assert (one.order.reason, one.order.by, one.hurry.is_set(), one.pressed) == (
        Reason.OPERATOR,
        "uid 0",
        True,
        True,
    )
    one.order.agent.beat(Beat(), 0.0, NOW)
    assert one.withdrawal_reason(Holds(), NOW) is None
    assert one.merge_request(Reason.OPERATOR, KillOptions(), "uid 0", "again") is None, "nothing is new"


def test_a_second_order_of_the_daemons_own_changes_nothing_but_the_next_attempt() -> None:
    """It is tried at once."""
    one = opened()
    assert one.merge_request(Reason.STALLED, KillOptions(), "daemon", "silent") is None
    assert (one.again.is_set(), one.wanted, one.order.why) == (True, False, "why")


def test_callers_that_wait_get_how_far_it_has_come_and_what_is_left() -> None:
    """First dead and being cleaned up, then the outcome. "Could not be killed" is void once it is dead."""

    async def story() -> None:
        waiters = OutcomeWaiters()
        assert await waiters.wait(0.01, None) is None
        waiters.tell(KillOutcome("a", "not ended", "kill_failed"))
        told = await waiters.wait(10, None)
        assert told is not None and told["message"] == "not ended"
        waiters.prove(DEAD)
        assert await waiters.wait(0.01, None) is None, "no sooner than its hooks are done"
        waiters.clean([{"hook": "one"}], ("two",))
        told = await waiters.wait(10, 0.01)
        assert told == {**DEAD.json(), "cleanup": [{"hook": "one"}], "cleanup_left": ["two"]}
        waiters.tell(DEAD)
        assert await waiters.wait(10, 10) == DEAD.json()
        waiters.reopen()
        waiters.leave()
        assert await waiters.wait(10, None) is None, "the daemon stops: not yet"

    asyncio.run(story())


def test_an_order_that_an_earlier_daemon_proved_has_only_its_cleanup_left() -> None:
    """A caller gets that at once."""

    async def story() -> None:
        told = await OutcomeWaiters(DEAD).wait(10, 0.01)
        assert told is not None and (told["cleanup"], told["cleanup_left"]) == ([], [])

    asyncio.run(story())


def test_a_step_is_committed_before_it_counts_as_what_its_row_has() -> None:
    """Evidence and members go with the next write, once."""
    progress = KillProgress()
    member = TreeMember(Identity("host", boot_id(), 2, 7), 1, 0, "sleep", "S", "marker")
    progress.intend(KillStep.LOOKED, (member,))
    progress.keep_evidence({"processes": []}, {"verdict": "stalled"})
    assert progress.unsaved["members"] == [member_json(member)]
    assert progress.unsaved["evidence"] == {"processes": [], "said": {"verdict": "stalled"}}
    progress.saved(KillStep.LOOKED)
    assert progress.unsaved == {"members": None, "evidence": None}
    progress.intend(KillStep.FREEZE, (member,))
    assert not progress.is_stopping
    progress.saved(KillStep.FREEZE)
    progress.intend(KillStep.KILL, (member,))
    assert progress.is_stopping, "all that a successor needs to know"


def test_the_stages_of_a_kill_write_to_nothing_but_themselves_and_the_agent() -> None:
    """An order's progress is the worker's to write: a stage is given a value, and gives one back."""
    wrong = []
    writers = {
        name
        for owner in ast.parse((Path(kill.__path__[0]) / "order.py").read_text()).body
        if isinstance(owner, ast.ClassDef) and owner.name in ("KillProgress", "OpenOrder", "OutcomeWaiters")
        for each in owner.body
        if isinstance(each, ast.FunctionDef) and not each.decorator_list and not each.name.startswith("_")
        for name in [each.name]
    } - {"withdrawal_reason", "beat_since_decision", "wait"}
    for stage in ("ask", "claim", "terminate", "close", "evidence"):
        for node in ast.walk(ast.parse((Path(kill.__path__[0]) / f"{stage}.py").read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if ast.unparse(node.value) not in ("self", "agent"):
                    wrong.append(f"{stage}.py:{node.lineno}: {ast.unparse(node)} is assigned")
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                of = ast.unparse(node.func.value)
                if node.func.attr in writers and of.split(".")[-1] in ("progress", "opened", "waiters"):
                    wrong.append(f"{stage}.py:{node.lineno}: {of}.{node.func.attr}() is called")
    assert not wrong, "\n".join(wrong)
