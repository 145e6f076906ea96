"""POST /agents, PATCH /agents/ID, POST /agents/ID/beat."""

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.control.office import ALICE, BOB, HOST, ME, ROOT, Office, wait_for
from tests.setuid import leashed
from watchdog.core.agent import Status, Verdict
from watchdog.core.custody import DaemonProcess, Holder
from watchdog.core.kill import Reason
from watchdog.processes.identity import read_identity


def test_an_agent_without_a_pid_is_starting_and_gets_its_environment(office: Office) -> None:
    """Register, spawn with env, PATCH pid: the row is there before the answer, the pid makes it running."""
    status, answer = office.ask("POST", "/v1/agents", {"name": "alpha", "task": "T-1", "stall_after_seconds": 120})
    assert status == 201
    agent_id = answer["agent_id"]
    assert answer["env"] == {
        "AGENT_WATCHDOG_ID": agent_id,
        "NOTIFY_SOCKET": f"{office.directory}/notify/{agent_id}",
        "AGENT_WATCHDOG_SOCKET": office.socket_path,
    }
    registry = office.context.registry
    row, task = registry.agents.get(agent_id), registry.history.task("T-1")
    assert row is not None and row.status is Status.STARTING and row.registration.owner_uid == ME
    assert task is not None and task.assigned_agent == agent_id
    assert office.agent("alpha").heartbeat.said.promised
    status, answer = office.ask("PATCH", f"/v1/agents/{agent_id}", {"pid": office.process()})
    assert (status, answer["status"]) == (200, "running")
    row = registry.agents.get(agent_id)
    assert row is not None and row.status is Status.RUNNING
    assert row.identity == office.agent("alpha").identity is not None


def test_identity_and_owner_come_from_the_kernel(office: Office) -> None:
    """What a process is and whose it is is read from /proc; a body that claims it is refused."""
    pid = office.process()
    office.register("alpha", pid=pid)
    reg = office.agent("alpha").reg
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    assert reg.identity is not None
    assert (reg.identity.pid, reg.identity.start_ticks) == (pid, int(stat[19]))
    assert (reg.owner_uid, reg.command) == (ME, "sleep")
    status, answer = office.ask("POST", "/agents", {"name": "beta", "owner_uid": 0, "start_ticks": 1})
    assert status == 400
    assert "owner_uid: unknown key; known are" in answer["message"]
    assert "start_ticks: unknown key" in answer["message"]


def test_every_fault_is_named_with_its_key_at_once(office: Office) -> None:
    """Wrong values are reported together: key, what is wrong, what would be right."""
    body = {
        "name": "12",
        "pid": "77",
        "tags": ["a b"],
        "ttl_seconds": -1,
        "worktree": "../x",
        "temp_dir": "/tmp/a/../b",
        "beat_file": "/tmp/a\nb",
        "task": "\u001b[31m",
    }
    status, answer = office.ask("POST", "/v1/agents", body)
    assert (status, answer["error"]) == (400, "bad_request")
    for key in ("name:", "pid:", "tags.0:", "ttl_seconds:", "worktree:", "temp_dir:", "beat_file:", "task:"):
        assert any(line.startswith(key) for line in answer["message"].splitlines()), key
    assert "\x1b" not in answer["message"]
    assert len(office.context.fleet) == 0


@pytest.mark.parametrize("name", ["all", "stalled", "orphans", "42", "a b", "", "x" * 65, "tag:x", "ä", "--force"])
def test_a_name_that_means_something_else_is_refused(office: Office, name: str) -> None:
    """Reserved words, pids and groups stay what they are."""
    status, answer = office.ask("POST", "/v1/agents", {"name": name})
    assert status == 400
    assert answer["message"].startswith("name: ")


def test_a_name_belongs_to_one_living_agent_of_its_owner(office: Office) -> None:
    """A taken name is refused with the id of its agent; after that one's end it may be taken again."""
    first = office.register("alpha")
    status, answer = office.ask("POST", "/v1/agents", {"name": "alpha"})
    assert (status, answer["error"]) == (409, "conflict")
    assert first in answer["message"]
    assert office.ask("POST", "/v1/kill", {"targets": ["alpha"]})[0] == 200
    assert office.register("alpha") != first


def test_replace_ends_the_old_one_first(office: Office) -> None:
    """With replace, the living agent of that name is ended and then the name is free."""
    office.register("alpha")
    office.register("alpha", replace=True)
    assert office.worker.ended == ["alpha"]
    office.worker.stubborn.add("alpha")
    status, answer = office.ask("POST", "/v1/agents", {"name": "alpha", "replace": True})
    assert status == 409
    assert "has not ended" in answer["message"]


def test_the_same_registration_again_is_no_second_agent(office: Office) -> None:
    """An answer can be lost: same id, uid and process give 200; another process gives 409; an ended id stays used."""
    agent_id, pid = uuid.uuid4().hex, office.process()
    body = {"name": "alpha", "agent_id": agent_id, "pid": pid}
    assert office.ask("POST", "/v1/agents", body)[0] == 201
    assert office.ask("POST", "/v1/agents", body)[0] == 200
    assert len(office.context.fleet) == 1
    assert office.ask("POST", "/v1/agents", {**body, "pid": office.process()})[0] == 409
    assert office.ask("POST", "/v1/agents", {**body, "name": "beta"})[0] == 409
    office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    status, answer = office.ask("POST", "/v1/agents", body)
    assert status == 409
    assert "has ended" in answer["message"]


def test_a_beat_may_give_a_type_to_an_agent_without_one(office: Office) -> None:
    """A vendor hook in a `run` of a script: its limits are the vendor's from then on. A type that was given stays."""
    for name, given, kept in (("alpha", "", "claude"), ("beta", "mine", "mine")):
        agent_id = office.ask("POST", "/v1/agents", {"name": name, "type": given})[1]["agent_id"]
        assert office.ask("POST", f"/v1/agents/{agent_id}/beat", {"type": "claude"})[0] == 204
        agent = office.context.fleet.get(agent_id)
        assert agent is not None
        assert (agent.reg.agent_type, agent.policy.after.total_seconds()) == (kept, 900 if kept == "claude" else 120)
        row = office.context.registry.agents.get(agent_id)
        assert row is not None
        assert row.registration.agent_type == kept


def test_log_and_transcript_are_kept_and_a_beat_may_move_the_transcript(office: Office) -> None:
    """A vendor starts another transcript in the same process (`/clear`); a later daemon has to look there too."""
    told = {"log": "/var/log//x.log", "transcript": "/t/1.jsonl"}
    agent_id = office.ask("POST", "/v1/agents", {"name": "alpha", "pid": office.process(), **told})[1]["agent_id"]
    assert office.ask("POST", f"/v1/agents/{agent_id}/beat", {"transcript": "/t/2.jsonl"})[0] == 204
    shown = office.ask("GET", f"/v1/agents/{agent_id}")[1]["agent"]
    assert (shown["log"], shown["transcript"]) == ("/var/log/x.log", "/t/2.jsonl")
    row = office.context.registry.agents.get(agent_id)
    assert row is not None and row.registration.transcript == "/t/2.jsonl"
    assert office.ask("POST", "/v1/agents", {"name": "beta", "transcript": "t.jsonl"})[0] == 400


@pytest.mark.parametrize("bad", ["zz", "A" * 32, "0" * 31, "0" * 32 + "\n"])
def test_an_id_that_is_no_id_is_refused(office: Office, bad: str) -> None:
    """Ids become file names; they are 32 hex digits and nothing else."""
    assert office.ask("POST", "/v1/agents", {"name": "alpha", "agent_id": bad})[0] == 400


def test_processes_that_are_never_agents_are_refused(office: Office) -> None:
    """pid 1, the daemon, its ancestors, kernel threads, processes that are gone, others' main processes."""
    gone = office.process()
    office.end_process(gone)
    taken = office.process()
    office.register("alpha", pid=taken)
    cases = {0: 400, 1: 400, -1: 400, os.getpid(): 400, os.getppid(): 400, gone: 404, taken: 409, 2**22 + 1: 400}
    if Path("/proc/2/comm").exists() and Path("/proc/2/comm").read_text() == "kthreadd\n":
        cases[2] = 400
    for pid, expected in cases.items():
        status, answer = office.ask("POST", "/v1/agents", {"name": "beta", "pid": pid})
        assert (status, answer["message"].startswith("pid: ")) == (expected, True), (pid, answer)
    assert len(office.context.fleet) == 1


def test_the_run_of_an_agent_is_no_agent(office: Office) -> None:
    """Ending it would end its agent; a `run` whose agent is not registered here is a process as others are."""
    cli = Path(sys.executable).parent / "agent-watchdog"
    environ = {**os.environ, "AGENT_WATCHDOG_SOCKET": office.socket_path}
    wrapper = subprocess.Popen([str(cli), "run", "--name", "inner", "--", "sleep", "600"], env=environ, cwd="/")
    office.processes.append(wrapper)

    def known() -> bool:
        return any(agent.identity is not None for agent in office.context.fleet)

    wait_for(known, "it is registered with its pid")
    status, answer = office.ask("POST", "/v1/agents", {"name": "outer", "pid": wrapper.pid})
    assert status == 409
    assert f"{wrapper.pid} is the `agent-watchdog run` of agent" in answer["message"]
    assert "(inner)" in answer["message"]


def test_a_limit_shorter_than_two_beats_is_refused_or_raised(office: Office) -> None:
    """Asked for: refused. Only the configuration's: raised for this agent, and said (case C12)."""
    status, answer = office.ask(
        "POST", "/v1/agents", {"name": "alpha", "stall_after_seconds": 50, "interval_seconds": 30}
    )
    assert status == 400
    assert "at least 60" in answer["message"]
    status, answer = office.ask("POST", "/v1/agents", {"name": "alpha", "interval_seconds": 14400})
    assert status == 201
    assert "raised to 8h" in answer["notes"][0]
    assert office.agent("alpha").heartbeat.silence.after == timedelta(hours=8)
    told = [event for event in office.log.events if event["event"] == "agent.registered"]
    assert "raised to 8h" in str(told[0]["note"])


def test_a_second_agent_in_a_worktree_is_told_of_the_first(office: Office) -> None:
    """Case F2: a user that forgot the first should not find out by its changes."""
    first = office.register("alpha", worktree="/w/tree/")
    status, answer = office.ask("POST", "/v1/agents", {"name": "beta", "worktree": "/w/tree"})
    assert (status, f"worktree of alpha ({first})" in answer["notes"][0]) == (201, True)


def test_parents_are_living_agents_and_temp_dirs_have_one_agent(office: Office) -> None:
    """A parent is named by name or id; two living agents cannot share a directory that is removed at the end."""
    parent = office.register("alpha", temp_dir="/tmp/x/")
    office.register("child", parent="alpha")
    assert office.agent("child").reg.parent_id == parent
    status, answer = office.ask("POST", "/v1/agents", {"name": "beta", "parent": "nobody"})
    assert (status, answer["message"][:7]) == (400, "parent:")
    status, answer = office.ask("POST", "/v1/agents", {"name": "beta", "temp_dir": "/tmp/"})
    assert (status, answer["error"]) == (400, "bad_request")
    status, answer = office.ask("POST", "/v1/agents", {"name": "beta", "temp_dir": "/tmp//x"})
    assert (status, answer["message"][:9]) == (409, "temp_dir:")
    status, answer = office.ask("POST", "/v1/agents", {"name": "beta", "temp_dir": "/tmp/x/sub"})
    assert (status, answer["message"][:9]) == (409, "temp_dir:")
    assert f"alpha ({parent})" in answer["message"]
    office.register("sub", parent="child", temp_dir="/tmp/x/sub")
    own = f"{office.directory}/notify/{parent}"
    status, answer = office.ask("POST", "/v1/agents", {"name": "beta", "notify_socket": own})
    assert (status, answer["message"][:14]) == (400, "notify_socket:")


def test_a_queued_agent_starts_with_its_pid(office: Office) -> None:
    """Queued is never judged; the pid makes it running (case C5)."""
    agent_id = office.register("alpha", queued=True)
    assert office.agent("alpha").status is Status.QUEUED
    assert office.ask("PATCH", f"/v1/agents/{agent_id}", {"pid": office.process()})[0] == 200
    assert office.agent("alpha").status is Status.RUNNING
    status, answer = office.ask("PATCH", f"/v1/agents/{agent_id}", {"pid": office.process()})
    assert status == 409
    assert "already" in answer["message"]


def test_run_tells_how_its_agent_ended(office: Office) -> None:
    """Exit status or signal is recorded and the next look comes soon."""
    agent_id = office.register("alpha")
    before = office.looked
    assert office.ask("PATCH", f"/v1/agents/{agent_id}", {"exit_code": 3})[0] == 200
    assert (office.agent("alpha").exit.code, office.looked) == (3, before + 1)
    assert office.ask("PATCH", f"/v1/agents/{agent_id}", {"exit_signal": 9})[0] == 200
    assert office.agent("alpha").exit.signal == 9
    for body in ({}, {"exit_code": 1, "exit_signal": 9}, {"exit_code": 256}, {"exit_code": True}):
        assert office.ask("PATCH", f"/v1/agents/{agent_id}", body)[0] == 400, body


def test_the_end_of_one_whose_pid_was_never_known_closes_it(office: Office) -> None:
    """Its row came too late for the pid; no look would ever find that it has ended, `run` tells it."""
    held = office.register("held", source="run")
    agent_id = office.register("alpha", source="run")
    assert office.ask("POST", "/v1/hold", {"targets": ["held"]})[0] == 200
    for known in (held, agent_id):
        assert office.ask("PATCH", f"/v1/agents/{known}", {"exit_code": 0})[0] == 200
    assert [(name, reason) for name, reason, *_ in office.worker.asked] == [("alpha", Reason.GONE)]


def test_a_run_that_ended_before_its_row_was_committed_leaves_no_ghost(office: Office) -> None:
    """The registry was locked for longer than its command took: no process is left to report the end."""
    code = """
import socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])
body = b'{"name": "alpha", "source": "run"}'
s.sendall(b"POST /v1/agents HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(body), body))
"""

    held = office.context.registrar.turn(ME)

    def hold() -> Awaitable[Any]:
        return held.__aenter__()

    def let_go() -> Awaitable[Any]:
        return held.__aexit__(None, None, None)

    office.on_loop(hold)
    subprocess.run([sys.executable, "-c", code, office.socket_path], check=True)
    office.on_loop(let_go)
    wait_for(lambda: office.worker.asked, "it is closed")
    assert [(name, reason) for name, reason, *_ in office.worker.asked] == [("alpha", Reason.GONE)]


def test_a_beat_renews_silence_and_the_same_again_is_a_new_one(office: Office) -> None:
    """Content says what the agent does; each message counts (case C15)."""
    agent_id = office.register("alpha", stall_after_seconds=120)
    office.age("alpha", 100)
    said = {"state": "working", "progress": 1, "note": "builds"}
    for count in (1, 2):
        assert office.ask("POST", f"/v1/agents/{agent_id}/beat", said) == (204, {})
        agent = office.agent("alpha")
        assert (agent.heartbeat.rhythm.beats, agent.heartbeat.silence.lasted, agent.heartbeat.said.note) == (
            count,
            timedelta(),
            "builds",
        )
    status, answer = office.ask("POST", f"/agents/{agent_id}/beat", {"state": "dancing"})
    assert (status, answer["message"][:6]) == (400, "state:")


def test_an_old_beat_shortens_silence_but_never_lengthens_it(office: Office) -> None:
    """`run` passes on the last beat of our absence: it counts, less its age; an agent that was late stays late."""
    agent_id = office.register("alpha", stall_after_seconds=120)
    path = f"/v1/agents/{agent_id}/beat"
    for age, silence, left in ((30, 100, 30), (30, 10, 10), (500, 100, 100)):
        office.age("alpha", silence)
        assert office.ask("POST", path, {"age_seconds": age})[0] == 204
        assert office.agent("alpha").heartbeat.silence.lasted == timedelta(seconds=left), age
    assert office.agent("alpha").heartbeat.rhythm.beats == 3
    office.age("alpha", 300, late_looks=2, touched=None)
    office.ask("POST", path, {"age_seconds": 500})
    assert (
        office.agent("alpha").heartbeat.silence.lasted,
        office.agent("alpha").heartbeat.silence.doubts.late_looks,
    ) == (timedelta(seconds=300), 2)
    agent, mono = office.agent("alpha"), time.monotonic()
    agent.watch(mono - 5, mono, 20)
    assert agent.heartbeat.silence.lasted == timedelta(seconds=305), "and its silence continues from where it was"
    office.age("alpha", 10, touched=None)  # at a look 40 s ago
    office.ask("POST", path, {"age_seconds": 30})
    mono = time.monotonic()
    agent.watch(mono - 40, mono, 60)
    assert 30 <= agent.heartbeat.silence.lasted.total_seconds() < 35, "from when it was said, and not from that look on"
    office.ask("POST", path, {"age_seconds": 30, "silent_for_seconds": 100})
    assert office.agent("alpha").heartbeat.ages.lease_left == timedelta(seconds=70)
    assert office.agent("alpha").heartbeat.silence.lasted == timedelta()


def test_a_beat_for_one_that_is_ended_or_has_ended_is_a_conflict(office: Office) -> None:
    """An agent that is being killed cannot beat its way out; one that has ended gets that as the answer."""
    agent_id = office.register("alpha")
    office.age("alpha", status=Status.ENDING, verdict=Verdict.STALLED)
    status, answer = office.ask("POST", f"/v1/agents/{agent_id}/beat", {})
    assert status == 409
    assert "is being killed" in answer["message"]
    office.age("alpha", status=Status.STARTING)
    office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    status, answer = office.ask("POST", f"/v1/agents/{agent_id}/beat", {})
    assert (status, answer["error"]) == (409, "conflict")
    assert "has ended" in answer["message"]
    assert office.ask("POST", f"/v1/agents/{'0' * 32}/beat", {})[0] == 404


@pytest.mark.skipif(not ROOT, reason="needs root: setuid programs, and acting as another uid")
def test_a_process_in_a_setuid_program_may_be_registered_by_no_user(office: Office) -> None:
    """Not by its user, which could take root's process so; not by root, which would get a user's as its own."""
    with leashed(office.directory, ALICE) as process:
        process.exec_setuid()
        for ask in (lambda *a: office.ask_as(ALICE, *a), office.ask):
            status, answer = ask("POST", "/v1/agents", {"name": "mixed", "pid": process.pid})
            assert (status, answer["error"]) == (403, "permission_denied")
            assert f"real uid {ALICE}, effective 0, saved 0, file system 0" in answer["message"]
        process.do("os.setresuid(0, 0, 0)")
        assert office.ask_as(ALICE, "POST", "/v1/agents", {"name": "whole", "pid": process.pid})[0] == 403
    assert len(office.context.fleet) == 0


@pytest.mark.skipif(not ROOT, reason="needs root: acting as another uid")
def test_a_pid_that_is_told_later_makes_an_owner_of_roots_agents_alone(office: Office) -> None:
    """Root started it as a user: the one change. From user to user, or to root, there is none."""
    roots, alices = office.register("roots"), office.register("alices", ALICE)
    for pid in (office.process(BOB), office.process()):
        status, answer = office.ask("PATCH", f"/v1/agents/{alices}", {"pid": pid})
        assert (status, answer["error"]) == (409, "conflict")
        assert "uid 61001's for good" in answer["message"]
    assert office.ask("PATCH", f"/v1/agents/{roots}", {"pid": office.process(BOB)})[0] == 200
    assert office.ask_as(ALICE, "PATCH", f"/v1/agents/{alices}", {"pid": office.process(ALICE)})[0] == 200
    for name, owner in (("roots", BOB), ("alices", ALICE)):
        row = office.context.registry.agents.by_name(name)[0]
        assert office.agent(name).reg.owner_uid == row.registration.owner_uid == owner
        assert not row.registration.dropped


@pytest.mark.skipif(not ROOT, reason="needs root: acting as another uid")
def test_an_agent_that_drops_from_root_is_the_users_for_good(office: Office) -> None:
    """By gosu or setpriv; then not another user's by su, nor root's by sudo."""
    with leashed(office.directory, 0) as process:
        alpha = office.register("alpha", pid=process.pid)
        assert office.ask_as(ALICE, "POST", f"/v1/agents/{alpha}/beat", {})[0] == 403
        process.do(f"os.seteuid({ALICE})")
        assert office.ask("POST", f"/v1/agents/{alpha}/beat", {})[0] == 204
        assert office.agent("alpha").reg.owner_uid == 0, "root again whenever it likes"
        process.do(f"os.seteuid(0); os.setresuid({ALICE}, {ALICE}, {ALICE})")
        assert office.ask("POST", f"/v1/agents/{alpha}/beat", {})[0] == 204
        reg = office.agent("alpha").reg
        assert (reg.owner_uid, reg.dropped) == (ALICE, True)
        process.sudo()
        assert office.ask_as(ALICE, "POST", f"/v1/agents/{alpha}/beat", {})[0] == 204
        process.do(f"os.setresuid({BOB}, {BOB}, {BOB})")
        assert office.ask_as(BOB, "POST", f"/v1/agents/{alpha}/beat", {})[0] == 403
        assert office.agent("alpha").reg == reg
        row = office.context.registry.agents.get(alpha)
        assert row is not None and (row.registration.owner_uid, row.registration.dropped) == (ALICE, True)


def test_a_temp_dir_that_would_never_be_removed_is_told_at_once(office: Office) -> None:
    """Not hours later, when nothing was; where the configuration has it removed, nothing is said."""
    status, answer = office.ask("POST", "/v1/agents", {"name": "alpha", "temp_dir": "/etc"})
    assert status == 201
    assert answer["notes"] == [
        "temp_dir: /etc is not below any of cleanup.roots (/tmp, /var/tmp), so it is never removed"
    ]
    for name, temp in (("beta", "/tmp/x"), ("gamma", "/scratch/agent-watchdog-gamma-1a2b3c4d")):
        status, answer = office.ask("POST", "/v1/agents", {"name": name, "temp_dir": temp})
        assert status == 201 and not answer.get("notes"), answer


def in_the_same_moment(office: Office, uid: int, first: Callable[[], int], second: Callable[[], int]) -> list[int]:
    """The statuses of two requests: the second one comes while the first one's row is being written.

    That takes until the second one writes, too, or waits for its turn.
    """
    begun: list[object] = []
    written, former, turns = asyncio.Event(), office.context.registry.write, office.context.registrar._turns

    def waits() -> bool:
        turn = turns.get(uid)
        return turn is not None and bool(turn._waiters)

    async def write(*words: Any) -> Any:
        begun.append(words)
        await written.wait()
        return await former(*words)

    office.context.registry.write = write  # type: ignore[method-assign,assignment]
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(first)]
        wait_for(lambda: begun, "the first one is being written")
        answers.append(pool.submit(second))
        wait_for(lambda: len(begun) == 2 or waits(), "the second one has come")
        office.loop.call_soon_threadsafe(written.set)
        return [answer.result() for answer in answers]


@pytest.mark.parametrize("known_first", [True, False])
def test_a_process_that_two_tell_of_in_one_moment_is_one_agents(office: Office, known_first: bool) -> None:
    """Siblings of case V8: an orchestrator tells the pid of what it has started, and that one's hook registers it."""
    agent_id, pid = office.register("alpha"), office.process()
    asks = [
        lambda: office.ask("PATCH", f"/v1/agents/{agent_id}", {"pid": pid})[0],
        lambda: office.ask("POST", "/v1/agents", {"name": "by-its-hook", "pid": pid})[0],
    ]
    first, second = asks if known_first else reversed(asks)

    assert in_the_same_moment(office, ME, first, second) == [200 if known_first else 201, 409]
    assert [agent.identity.pid for agent in office.context.fleet if agent.identity] == [pid]
    rows = [row for name in ("alpha", "by-its-hook") for row in office.context.registry.agents.by_name(name)]
    assert [row.identity.pid for row in rows if row.identity] == [pid]


@pytest.mark.skipif(not ROOT, reason="needs root: acting as another uid")
def test_a_name_that_two_take_in_one_moment_is_one_agents(office: Office) -> None:
    """Sibling of case V8: root's agent is found to belong to a user that registers one of that name."""
    roots, pid = office.register("alpha"), office.process(ALICE)
    found = in_the_same_moment(
        office,
        ALICE,
        lambda: office.ask_as(ALICE, "POST", "/v1/agents", {"name": "alpha"})[0],
        lambda: office.ask("PATCH", f"/v1/agents/{roots}", {"pid": pid})[0],
    )

    assert found == [201, 409]
    assert len(list(office.context.fleet.named("alpha", ALICE))) == 1


@pytest.mark.skipif(not ROOT, reason="needs root: only root's daemon takes an agent from another one")
@pytest.mark.parametrize(("there", "here"), [("beta", "beta"), ("all", "agent-{}")])
def test_an_order_of_roots_takes_an_agent_over_whatever_its_daemon_calls_it(
    office: Office, there: str, here: str
) -> None:
    """The name comes from another daemon, and may be one that no agent can have."""
    pid = office.process()
    us, process = read_identity(os.getpid(), HOST), read_identity(pid, HOST)
    assert us is not None and process is not None
    holder = Holder(DaemonProcess(ALICE, us.pid, us.start_ticks), "/nowhere/control.sock", "b" * 32, there)
    office.context.discovery.custodians._learnt[pid, process.start_ticks] = (holder, us, float("inf"))
    status, answer = office.ask("POST", "/v1/kill", {"targets": [str(pid)]})
    assert status == 200, answer
    assert [name for name, *_ in office.worker.asked] == [here.format(pid)]
