"""POST /purge, the daemon's side: whose conversation is not touched, and what is kept of one that went."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

from tests.control.office import Office

ID = "11111111-2222-4333-8444-555555555555"
TRANSCRIPT = f"/srv/.claude/projects/-srv-app/{ID}.jsonl"


@dataclass
class Helper:
    """An owner's helper that finds these files of any conversation, until they are moved."""

    left: list[str]
    takes: float = 0.0  # seconds
    now: int = 0  # calls that run
    most: int = 0  # of them at once

    async def ask(self, uid: int, call: str, args: Any, timeout: float, option: str = "") -> object:
        assert (call, args["conversation"]["id"]) == ("purge", ID)
        self.now += 1
        self.most = max(self.most, self.now)
        paths = list(self.left)
        await asyncio.sleep(self.takes)
        self.now -= 1
        if not args["dry_run"]:
            self.left.clear()
        return {"paths": paths, "trash": "/srv/.claude/trash"}


@pytest.fixture
def helper(office: Office) -> Helper:
    """The one of all owners."""
    office.context.helpers.call_in_fresh_helper = (made := Helper([TRANSCRIPT])).ask  # type: ignore[method-assign]
    return made


def test_two_purges_at_once_are_one_after_the_other(office: Office, helper: Helper) -> None:
    """The second finds nothing left, which is what was wanted."""
    office.register("alpha", transcript=TRANSCRIPT, type="claude", pid=office.process())
    office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    helper.takes = 0.3
    with ThreadPoolExecutor() as pool:
        asked = pool.map(lambda _: office.ask("POST", "/v1/purge", {"agent": "alpha", "yes": True}), range(3))
    answers = [answer for _, answer in asked]
    assert all(answer["success"] for answer in answers)
    assert sorted(answer["paths"] for answer in answers) == [[], [], [TRANSCRIPT]]
    assert helper.most == 1


@pytest.mark.usefixtures("helper")
def test_a_conversation_that_a_living_agent_is_in_stays(office: Office) -> None:
    """Two agents may share one: what is written there is the other's work."""
    office.register("alpha", transcript=TRANSCRIPT, type="claude", pid=office.process())
    office.register("beta", transcript=TRANSCRIPT, type="claude", pid=office.process())
    office.register("gamma", transcript=TRANSCRIPT.replace("5", "6"), type="claude", pid=office.process())
    office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    status, answer = office.ask("POST", "/v1/purge", {"agent": "alpha", "yes": True})
    assert (status, answer["error"]) == (409, "conflict")
    assert answer["message"].startswith(f"beta is in conversation {ID} too; stop it first")
    office.ask("POST", "/v1/kill", {"targets": ["beta"]})
    status, answer = office.ask("POST", "/v1/purge", {"agent": "alpha", "yes": True})
    assert (status, answer["action"], answer["paths"]) == (200, "purged", [TRANSCRIPT])


def test_a_purge_that_finds_nothing_more_still_says_that_it_cannot_be_resumed(office: Office, helper: Helper) -> None:
    """The daemon that moved it may have been killed before it wrote that down. It is written once."""
    office.worker.more = {"resume": f"claude --resume {ID}"}
    office.register("alpha", transcript=TRANSCRIPT, type="claude", pid=office.process())
    office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    helper.left.clear()
    assert office.ask("POST", "/v1/purge", {"agent": "alpha"})[1]["message"].startswith("nothing is left")
    assert office.log.events[-1]["event"] != "agent.purged"
    for _ in range(2):
        assert office.ask("POST", "/v1/purge", {"agent": "alpha", "yes": True})[1]["success"]
    assert [event["event"] for event in office.log.events].count("agent.purged") == 1
    assert office.ask("POST", "/v1/stop", {"targets": ["alpha"]})[1]["resumable"] is False
