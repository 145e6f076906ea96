"""Handling of a `run`'s report about an agent that no daemon saw: a real registrar, a fake helper."""

import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.agents.test_registration import ME, Room, play
from watchdog.agents.holds import Holds
from watchdog.clock import Clock
from watchdog.core.agent import Status
from watchdog.core.kill import Reason
from watchdog.discovery.run_reports import RunReportImporter
from watchdog.processes.identity import boot_id
from watchdog.registry.rows import HoldRow

ID = "f" * 32
PATH = f"/run/user/{ME}/agent-watchdog/reports/{ID}"


def report(**changes: object) -> dict[str, object]:
    """In the format of `run`."""
    registration = {"name": "alpha", "agent_id": ID, "source": "run", "task": "T-1", "command": "claude"}
    whole = {"end": {"exit_code": 3}, "ended_at": 1.5, "boot_id": boot_id(), "registration": registration}
    return {**whole, **changes}


class Reports:
    """An importer with these reports of one owner; it records requests to the kill worker and the helper."""

    def __init__(self, here: Room, **left: object) -> None:
        self.left = left
        self.kills: list[tuple[str, Reason, str]] = []
        self.done: list[str] = []
        self.holds = Holds()
        recorder: Any = SimpleNamespace(event=here.log.event)
        me = cast("Any", self)
        self.it = RunReportImporter(here.registrar, self.holds, me, Clock(), me, recorder, str(here.notify.parent))

    async def request(self, agent: Any, reason: Reason, options: object, by: str, why: str) -> str:
        self.kills.append((agent.reg.name, reason, by))
        agent.ending.begin("r1")
        return "r1"

    async def call(self, uid: int, call: str, args: dict[str, Any], timeout: float) -> dict[str, object]:
        if call == "end_report_done":
            self.done.append(args["path"])
            return {}
        left = self.left if uid == ME else {}
        return {"reports": {path: one for path, one in left.items() if path not in args["passed"]}, "problems": {}}


def test_an_agent_that_no_daemon_saw_is_registered_and_closed_as_gone() -> None:
    """With the exit status that its `run` saw, so that its hooks run and its task gets its outcome. Once."""

    async def story(here: Room) -> None:
        reports = Reports(here, **{PATH: report()})
        for _ in range(2):
            await reports.it.round()
        agent = here.fleet.get(ID)
        assert agent is not None
        assert (agent.reg.name, agent.reg.owner_uid, agent.reg.task_id) == ("alpha", ME, "T-1")
        assert (agent.exit.code, agent.exit.signal) == (3, None)
        assert reports.kills == [("alpha", Reason.GONE, f"uid {ME}")]
        assert not reports.done, "its report is removed when its row is closed"

    play(story)


def test_fields_that_conflict_by_now_are_left_out() -> None:
    """Its parent has ended; its temp dir, its name and its task are another agent's by now."""

    async def story(here: Room) -> None:
        await here.register("alpha", temp_dir="/tmp/of-alpha", task="T-1")
        registration = {**cast("dict[str, object]", report()["registration"]), "parent": "ended", "pid": 4_194_304}
        registration |= {"temp_dir": "/tmp/of-alpha", "replace": True}
        reports = Reports(here, **{PATH: report(registration=registration)})
        await reports.it.round()
        agent = here.fleet.get(ID)
        assert agent is not None
        assert agent.reg.name == f"alpha-{ID[:4]}"
        assert (agent.reg.parent_id, agent.reg.temp_dir, agent.reg.task_id, agent.identity) == (None, None, None, None)

    play(story)


def test_a_report_of_another_boot_or_of_a_closed_row_is_removed() -> None:
    """No process of that agent lives, or everything was handled."""

    async def story(here: Room) -> None:
        reports = Reports(here, **{PATH: report(boot_id="another")})
        await reports.it.round()
        assert (reports.done, len(here.fleet)) == ([PATH], 0)
        agent = await here.register("alpha", agent_id=ID)
        registry, now = here.registry, Clock().now().wall
        to = Status.COMPLETED
        assert await here.registry.write(
            registry.agents.transition, ID, {agent.status}, to, now=now, who="daemon", why="ended"
        )
        here.tracker.forget(agent)
        reports = Reports(here, **{PATH: report()})
        await reports.it.round()
        assert (reports.done, reports.kills) == ([PATH], [])

    play(story)


@pytest.mark.parametrize("why", ["another daemon's", "held"])
def test_a_report_that_is_not_ours_to_handle_stays(why: str) -> None:
    """One addressed to another daemon, and one of an agent that an operator holds."""

    async def story(here: Room) -> None:
        left = report(socket="/run/another/control.sock") if why != "held" else report()
        reports = Reports(here, **{PATH: left})
        if why == "held":
            reports.holds.put(HoldRow(1, ID, "by hand", 0, Clock().now().wall))
        await reports.it.round()
        assert (len(here.fleet), reports.done, reports.kills) == (0, [], [])

    play(story)


@pytest.mark.parametrize(
    ("registration", "words"),
    [
        ({"name": "alpha", "agent_id": "e" * 32, "source": "run"}, "it is not the file's agent, or none of a `run`"),
        ({"name": "alpha", "agent_id": ID}, "it is not the file's agent, or none of a `run`"),
        ({"name": "all", "agent_id": ID, "source": "run"}, "name: 'all' is reserved: it is a kind of target"),
        ({"agent_id": ID, "extra": 1}, "name: Field required\nextra: unknown key; known are"),
        (None, "Input should be an object"),
    ],
)
def test_an_unusable_report_is_logged_once(registration: object, words: str) -> None:
    """Its owner can write anything into the file."""

    async def story(here: Room) -> None:
        reports = Reports(here, **{PATH: report(registration=registration)})
        for _ in range(2):
            await reports.it.round()
        (event,) = here.log.events
        assert event["event"] == "row.quarantined"
        assert f"for uid {ME}: {PATH}: {words}" in str(event["why"])
        assert not len(here.fleet) and not reports.kills

    play(story)


def test_only_root_queries_other_owners() -> None:
    """A user's daemon acts for its own uid alone."""

    async def story(here: Room) -> None:
        uids = await Reports(here).it._uids()
        assert uids >= {ME}
        assert os.geteuid() == 0 or uids == {ME}

    play(story)
