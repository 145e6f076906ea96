"""How far an order has come, what withdraws it, and what whoever waits for it is told."""

import ast
import asyncio
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from watchdog import kill
from watchdog.agents.agent import Agent
from watchdog.agents.holds import Holds
from watchdog.core.agent import Beat, Policy, Registration, Status
from watchdog.core.kill import KillOptions, KillStep, Reason
from watchdog.core.process import Identity, TreeMember
from watchdog.kill.order import KillOrder, member_json
from watchdog.kill.outcome import KillOutcome
from watchdog.kill.progress import KillProgress, OpenOrder, OutcomeWaiters
from watchdog.kill.terminate import Grace
from watchdog.processes.identity import boot_id
from watchdog.registry.rows import HoldRow, RequestRow

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
    """What an edited row says otherwise begins it anew."""
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
    """Nobody else saw it; so its processes are told of as if it had been."""
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


def test_a_person_who_wants_the_same_is_withdrawn_by_no_beat_and_no_doubt() -> None:
    """His reason becomes the order's; what the daemon asked for before it begins is stored anew."""
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


def test_whoever_waits_is_told_how_far_it_has_come_and_what_is_left() -> None:
    """Dead and being cleaned up; then its outcome. What could not be ended is told, and holds no more when it is."""

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
    """Whoever asks is told so."""

    async def story() -> None:
        told = await OutcomeWaiters(DEAD).wait(10, 0.01)
        assert told is not None and (told["cleanup"], told["cleanup_left"]) == ([], [])

    asyncio.run(story())


def test_a_step_is_committed_before_it_counts_as_what_its_row_has() -> None:
    """Evidence and members go with the next write, once."""
    progress = KillProgress()
    member = TreeMember(Identity("host", boot_id(), 2, 7), 1, 0, "sleep", "S", "marker")
    progress.intend(KillStep.LOOKED, (member,))
    progress.looked({"processes": []}, {"verdict": "stalled"})
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
        for owner in ast.parse((Path(kill.__path__[0]) / "progress.py").read_text()).body
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
