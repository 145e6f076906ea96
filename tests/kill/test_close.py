"""How an end is reported: of an agent without a known process, one whose `run` saw nothing, one that lives on."""

import os

import pytest

from watchdog.agents.agent import Agent
from watchdog.core.agent import Policy, Registration, Status
from watchdog.core.kill import KillOptions, Reason
from watchdog.core.process import Identity
from watchdog.kill.close import message_of, status_of, survivors_outcome, task_of
from watchdog.kill.order import KillOrder, KillProgress
from watchdog.kill.terminate import TerminationResult


def agent(identity: Identity | None = None, source: str = "register") -> Agent:
    reg = Registration("a", "alpha", os.getuid(), "host", "boot", identity=identity, source=source)
    return Agent(reg, Policy(), Status.RUNNING)


def test_an_agent_that_registered_no_process_is_not_reported_to_have_lost_one() -> None:
    """`remove` and `stop` of it: "no process was left to kill" sounds as if one had run."""
    told = [
        message_of(KillOrder("r", who, Reason.STOP, KillOptions(), "uid 0", "removed", 0), KillProgress())
        for who in (agent(), agent(identity=Identity("host", "boot", 2, 7)))
    ]
    assert told == ["no pid was ever registered, so there was nothing to kill", "no process of it was left to kill"]


@pytest.mark.parametrize(
    ("source", "code", "number", "status"),
    [
        ("run", 0, None, Status.COMPLETED),
        ("run", 1, None, Status.FAILED),
        ("run", None, 9, Status.FAILED),
        ("run", None, None, Status.FAILED),
        ("register", None, None, Status.COMPLETED),  # no parent was to see it: before Linux 6.15 nothing ever does
    ],
)
def test_a_success_that_its_run_did_not_see_is_none(
    source: str, code: int | None, number: int | None, status: Status
) -> None:
    """The `run` of an agent is its witness; one that reports nothing was killed too."""
    who = agent(source=source)
    who.exit.code, who.exit.signal, who.exit.source = code, number, "as somebody says"
    order, progress = KillOrder("r", who, Reason.GONE, KillOptions(), "daemon", "gone", 0), KillProgress()

    assert status_of(order, progress) is status
    assert message_of(order, progress).startswith(("exited by itself", "killed by signal 9"))
    assert message_of(order, progress).endswith(" (as somebody says)")


def test_what_may_not_be_signalled_says_whose_right_was_missing() -> None:
    """Only if root could signal it, so that root can order it."""
    who = agent()
    order = KillOrder("r", who, Reason.OPERATOR, KillOptions(by_root=True), "uid 0", "w", 0)
    result = TerminationResult(reason="not_permitted", unseen=(9, 7))
    told = survivors_outcome(order, result)
    assert (told.error, told.status) == ("permission_denied", None)
    assert told.message == (
        "not ended, not_permitted: pid 7 in its cgroup, which we may not see, pid 9 in its cgroup, which we may not see"
    )
    assert survivors_outcome(order, TerminationResult(reason="d_state")).error == "kill_failed"


def test_the_task_of_an_agent_is_what_became_of_its_work() -> None:
    """Cancelled by the one who ordered that; completed if the work was done; else as the policy says, or failed."""
    who = agent()
    order = KillOrder("r", who, Reason.STALLED, KillOptions(), "daemon", "silent", 0)
    assert task_of(order, Status.KILLED, "m") == (who.policy.task_status, "Agent killed: silent")
    assert task_of(order, Status.FAILED, "m") == ("failed", "Agent failed: m")
    assert task_of(order, Status.COMPLETED, "m") == ("completed", None)
    done = KillOrder("r", who, Reason.STALLED, KillOptions(), "daemon", "silent", 0, finished=True)
    assert task_of(done, Status.KILLED, "m") == ("completed", None)
    cancelled = KillOrder("r", who, Reason.STOP, KillOptions(cancel=True), "uid 0", "no need", 0)
    assert task_of(cancelled, Status.STOPPED, "m") == ("cancelled", "cancelled by uid 0: no need")


@pytest.mark.parametrize(
    ("hows", "words"),
    [
        (
            ["after SIGKILL", "after SIGTERM", "after SIGTERM", "by itself"],
            "4 processes ended: 1 by KILL, TERM was not enough; 2 on TERM; 1 by itself",
        ),
        (["after SIGTERM", "by itself", "by itself"], "3 processes ended: 1 on TERM; 2 by themselves"),
        (["after SIGKILL", "after SIGKILL"], "2 processes ended by KILL, TERM was not enough"),
        (["after SIGTERM, while no daemon was there"], "1 process ended on TERM"),
    ],
)
def test_a_kill_counts_what_ended_by_what(hows: list[str], words: str) -> None:
    """The sentence says what its own lines say: one that ended by itself was not ended by KILL."""
    who = agent(Identity("host", "boot", 1, 7))
    progress = KillProgress(touched=True, killed=any("SIGKILL" in how for how in hows), main_signalled=True)
    for pid, how in enumerate(hows, 1):
        progress.processes[Identity("host", "boot", pid, 7)] = {"pid": pid, "name": "x", "how": how}
    order = KillOrder("r", who, Reason.STALLED, KillOptions(), "daemon", "silent", 0)
    assert message_of(order, progress) == f"stalled: {words}"
