"""Who may do what, and that no user can stop the others: rights, limits, hostile clients, errors."""

import asyncio
import grp
import json
import os
import socket
import subprocess
import sys
from collections.abc import Awaitable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.control.office import ALICE, BOB, HOST, ROOT, Office, make_office, wait_for
from tests.setuid import leashed
from watchdog.control import server
from watchdog.control.server import ROUTES
from watchdog.core.admission import cost_of

as_root = pytest.mark.skipif(not ROOT, reason="needs root: other people's processes")


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    pieces = b""
    while True:
        try:
            piece = connection.recv(65536)
        except ConnectionResetError:
            return pieces
        if not piece:
            return pieces
        pieces += piece


def test_a_socket_that_vanishes_while_it_is_opened_leaves_no_descriptor(
    office: Office, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is removed between bind and stat; the sweeps try again, and each try would cost one."""
    made, bind = [], server.bind

    def disturbed(path: str) -> socket.socket:
        made.append(bind(path))
        os.unlink(path)
        return made[0]

    elsewhere = copy(office.context.registrar)
    elsewhere.apply(replace(office.settings, runtime_dir=str(tmp_path)))

    async def story() -> None:
        with pytest.raises(FileNotFoundError):
            async with server.serve(replace(office.context, registrar=elsewhere)):
                pass

    monkeypatch.setattr(server, "bind", disturbed)
    asyncio.run(story())
    assert made[0].fileno() == -1


@as_root
def test_two_people_cannot_touch_each_others_agents(office: Office) -> None:
    """Neither can beat for, register a process of, see the evidence of, or end the other's agents; root can."""
    of_alice, of_bob = office.process(ALICE), office.process(BOB)
    alpha = office.register("alpha", ALICE, pid=of_alice, task="T-1", worktree="/secret/place")
    office.age("alpha", note="secret words", verdict=None)
    assert office.agent("alpha").reg.owner_uid == ALICE

    def bob(method: str, path: str, body: object | None = None) -> tuple[int, object]:
        return office.ask_as(BOB, method, path, body)

    body = {"name": "mine", "pid": of_alice}
    assert bob("POST", "/v1/agents", body)[0] == 403
    queued = office.register("mine", BOB, queued=True)
    assert bob("PATCH", f"/v1/agents/{queued}", {"pid": of_alice})[0] == 403
    assert bob("PATCH", f"/v1/agents/{alpha}", {"pid": of_bob})[0] == 403
    assert bob("PATCH", f"/v1/agents/{alpha}", {"exit_code": 0})[0] == 403
    assert bob("POST", f"/v1/agents/{alpha}/beat", {})[0] == 403
    assert bob("POST", "/v1/agents", {"name": "child", "parent": "alpha"})[0] == 403
    status, answer = bob("POST", "/v1/agents", {"name": "thief", "task": "T-1"})
    assert (status, "another user's agent" in str(answer)) == (201, True), "watched, without her task"
    assert office.agent("alpha").heartbeat.rhythm.beats == 0
    assert bob("GET", f"/v1/agents/{alpha}")[0] == 403
    assert bob("GET", "/v1/events?agent=alpha")[0] == 403
    _, lines = bob("GET", "/v1/events")
    assert alpha not in str(lines) and queued in str(lines)
    _, answer = bob("GET", "/v1/agents")
    assert isinstance(answer, dict)
    shown = next(agent for agent in answer["agents"] if agent["name"] == "alpha")
    assert set(shown) == {"agent_id", "name", "owner_uid", "status", "verdict"}
    assert "secret" not in json.dumps(answer)
    for route in ("kill", "stop", "remove", "hold", "unhold"):
        for target in ("alpha", alpha, str(of_alice)):
            status, answer = bob("POST", f"/v1/{route}", {"targets": [target]})
            assert status == 403, (route, target, answer)
    _, answer = bob("POST", "/v1/kill", {"targets": ["task:T-1"]})
    assert isinstance(answer, dict) and answer["results"][0]["error"] == "permission_denied"
    _, answer = bob("POST", "/v1/cancel", {"targets": ["T-1"]})
    assert isinstance(answer, dict) and answer["results"][0]["error"] == "permission_denied"
    for route in ("hold", "unhold", "reload"):  # on what all users share
        assert bob("POST", f"/v1/{route}", {})[0] == 403, route
    assert bob("POST", "/v1/kill", {"targets": ["all"]})[0] == 200
    assert office.worker.ended == ["mine"]
    denied = [event for event in office.log.events if event["event"] == "control.denied"]
    routes = [event["route"] for event in denied]
    assert len(routes) == len(set(routes)), "one line per route a minute"
    assert {"/agents", "/kill", "/hold", "/reload"} <= set(routes)

    assert office.ask("POST", "/v1/reload", {})[0] == 200
    assert office.ask("GET", f"/v1/agents/{alpha}")[1]["agent"]["note"] == "secret words"
    assert office.ask("POST", f"/v1/agents/{alpha}/beat", {})[0] == 204
    assert office.ask("POST", "/v1/kill", {"targets": ["alpha"]})[1]["success"]


@as_root
def test_each_may_have_the_same_name_and_root_must_say_which(office: Office) -> None:
    """A name is unique among an owner's agents; for root two of them are ambiguous, with their ids."""
    ids = {office.register("alpha", uid) for uid in (ALICE, BOB)}
    status, answer = office.ask("POST", "/v1/kill", {"targets": ["alpha"]})
    assert (status, answer["error"]) == (409, "ambiguous")
    assert all(agent_id in answer["message"] for agent_id in ids)
    assert office.ask_as(ALICE, "POST", "/v1/kill", {"targets": ["alpha"]})[0] == 200
    assert office.agent("alpha").reg.owner_uid == BOB


@as_root
def test_root_registers_for_the_uid_that_the_process_has(office: Office) -> None:
    """The owner is the user that runs it, not the one that registered it."""
    office.register("alpha", pid=office.process(ALICE))
    assert office.agent("alpha").reg.owner_uid == ALICE
    later = office.register("beta")
    assert office.agent("beta").reg.owner_uid == 0
    office.ask("PATCH", f"/v1/agents/{later}", {"pid": office.process(BOB)})
    assert office.agent("beta").reg.owner_uid == BOB
    row = office.context.registry.agents.get(later)
    assert row is not None and row.registration.owner_uid == BOB


@as_root
def test_a_users_agent_stays_that_users_whatever_its_process_becomes(office: Office) -> None:
    """In the middle of sudo it looks like root's. At f87b3bd a beat in that instant made the agent root's."""
    with leashed(office.directory, ALICE) as process:
        alpha = office.register("alpha", ALICE, pid=process.pid)
        for become in (process.exec_setuid, lambda: process.do("os.setresuid(0, 0, 0)")):
            become()
            assert office.ask_as(ALICE, "POST", f"/v1/agents/{alpha}/beat", {})[0] == 204
            assert office.ask_as(BOB, "POST", f"/v1/agents/{alpha}/beat", {})[0] == 403
            assert office.ask("POST", f"/v1/agents/{alpha}/beat", {})[0] == 204
            story = office.ask_as(ALICE, "GET", f"/v1/agents/{alpha}")[1]["agent"]
            assert (story["owner_uid"], "its owner is uid 61001" in story["untouchable"]) == (ALICE, True)
        assert office.agent("alpha").reg.owner_uid == ALICE
        row = office.context.registry.agents.get(alpha)
        assert row is not None and row.registration.owner_uid == ALICE
        office.ask_as(ALICE, "POST", "/v1/kill", {"targets": ["alpha"]})
        assert [options.by_root for _, _, options, _ in office.worker.asked] == [False]


@as_root
def test_the_admin_group_acts_on_all() -> None:
    """Membership is what the kernel recorded at connect, primary or supplementary."""
    games = grp.getgrnam("games").gr_gid
    for office in make_office('[control]\nadmin_group = "games"\n'):
        alpha = office.register("alpha", ALICE)
        cases: list[tuple[int, list[int], int]] = [
            (BOB, [], 403),
            (BOB, [BOB + 1], 403),
            (games, [], 200),
            (BOB, [BOB + 1, games], 200),
        ]
        for group, more, expected in cases:
            status, _ = office.ask_as(BOB, "GET", f"/v1/agents/{alpha}", group=group, extra_groups=more)
            assert status == expected, (group, more)


def test_every_route_exists_bare_and_below_v1(office: Office) -> None:
    """The contract is additive below /v1; the bare ones are the same."""
    paths = {(method, path) for method, path, *_ in ROUTES}
    assert len(paths) == 21
    for method, path, *_ in ROUTES:
        for prefix in ("", "/v1"):
            if path == "/events" or path == "/metrics":
                continue
            status, answer = office.ask(method, prefix + path.replace("{agent_id}", "nobody"), {})
            assert answer.get("error") != "not_found", (method, path, answer)
            assert status != 500, (method, path, answer)
    status, answer = office.ask("GET", "/v2/agents")
    assert (status, answer["error"]) == (404, "not_found")
    assert office.ask("DELETE", "/v1/agents")[0] == 405


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b'{"targets": "alpha"}', b'{"targets": []}', b"\xff\xfe", b"[" * 5000],
    ids=range(9),
)
def test_a_body_that_is_nonsense_is_refused_as_such(office: Office, body: bytes) -> None:
    """400 with a message, never 500, and never acted upon."""
    connection = office.connect()
    head = f"POST /v1/kill HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body)
    answer = received(connection)
    connection.close()
    assert answer.startswith(b"HTTP/1.1 400 "), answer
    assert office.worker.asked == []


@pytest.mark.parametrize(
    "words",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/hold HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/status HTTP/1.1\r\nHost x\r\n\r\n",
    ],
    ids=["bytes", "long-line", "chunk", "header"],
)
def test_what_is_not_http_is_answered_in_json(office: Office, words: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """As every other error; no traceback in the log for it."""
    connection = office.connect()
    connection.sendall(words)
    head, _, body = received(connection).partition(b"\r\n\r\n")
    connection.close()
    assert head.startswith(b"HTTP/1.") and b" 400 " in head
    assert b"application/json" in head
    assert json.loads(body)["error"] == "bad_request"
    assert "\n" not in json.loads(body)["message"]
    assert not caplog.records


def test_a_body_over_64_kib_is_refused(office: Office) -> None:
    """The bound holds however it is sent."""
    status, answer = office.ask("POST", "/v1/agents", {"name": "x" * 70_000})
    assert (status, answer["error"]) == (400, "bad_request")
    assert "65536" in answer["message"]


def test_a_fault_of_ours_is_logged_and_harms_no_other_request(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 without a traceback for the client, one line in the log, and the next request is served."""

    def broken(agent_id: str, uid: int) -> str:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(office.context.registrar.tracker.sockets, "open", broken)
    status, answer = office.ask("POST", "/v1/agents", {"name": "alpha"})
    assert (status, answer["error"]) == (500, "internal_error")
    assert "secret" not in answer["message"]
    assert office.log.events[-1]["event"] == "control.failed"
    assert office.ask("GET", "/v1/status")[0] == 200


def subuid(office: Office) -> None:
    """Alice has 65,536 subordinate uids from `SUB` on."""
    (office.directory / "subuid").write_text(f"{ALICE}:{SUB}:65536\n")

    def read() -> bool:
        office.users._looked = float("-inf")
        office.users.look()
        return office.users.user_of(SUB) == ALICE

    wait_for(lambda: office.on_loop(read), "the file is read")


SUB = 3_000_000_000


@as_root
def test_a_user_that_asks_too_often_is_told_when_to_try_again(office: Office) -> None:
    """Subordinate uids drink from the same bucket; another user, root and heartbeats do not notice. CLI: exit 75."""
    subuid(office)
    agent_id = office.register("alpha", ALICE)
    office.on_loop(lambda: office.context.callers.admission.charge(SUB + 7, 1e6))

    status, answer = office.ask_as(SUB + 9, "GET", "/v1/agents")
    assert (status, answer["error"]) == (429, "limited")
    assert answer["message"].startswith(
        f"the user of uid {SUB + 9} (uid {ALICE}) exceeds its share of requests; try again"
    )
    assert office.ask_as(ALICE, "POST", f"/v1/agents/{agent_id}/beat", {})[0] == 204
    assert office.ask_as(BOB, "GET", "/v1/agents")[0] == 200
    assert office.ask("GET", "/v1/agents")[0] == 200
    _, told = office.ask("GET", "/v1/status")
    assert [(one["uid"], one["kind"], one["refused"]) for one in told["limited"]] == [(ALICE, "requests", 1)]
    assert office.ask_as(BOB, "GET", "/v1/status")[1]["limited"] == []
    assert [event["kind"] for event in office.log.events if event["event"] == "user.limited"] == ["requests"]

    code = "import sys; from watchdog.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "--socket", office.socket_path, "list"],
        user=ALICE,
        group=ALICE,
        extra_groups=[],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, "try again in" in done.stderr) == (75, True), done.stderr


@as_root
def test_a_second_request_of_a_connection_is_paid_for_too(office: Office) -> None:
    """No user gets a hundred for the price of one by keeping a connection, or by a first line that comes in pieces."""
    code = """
import os, socket, sys
s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(sys.argv[1])
def ask(*pieces):
    for piece in pieces:
        s.sendall(piece)
    got = b""
    while b"\\r\\n\\r\\n" not in got or not got.rstrip().endswith(b"}"):
        got += s.recv(65536)
    return got.split()[1].decode()
print(ask(b"GET /v1/status HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"), flush=True)
input()
print(ask(b"GET /v1/status HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n"), flush=True)
s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect(sys.argv[1])
print(ask(b"GET /v1/st", b"atus HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n"), flush=True)
"""
    process = subprocess.Popen(
        ["/usr/bin/python3", "-I", "-c", code.replace("\\\\", "\\"), office.socket_path],
        user=ALICE,
        group=ALICE,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    )
    with process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "200\n"
        office.on_loop(lambda: office.context.callers.admission.charge(ALICE, 1e6))
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "429\n"
        assert process.stdout.readline() == "429\n"
        assert process.wait(60) == 0


@as_root
def test_what_a_request_makes_us_look_at_is_paid_for(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each name, whether an agent has it or not. A user that owes already is refused before that."""
    charged: list[tuple[int, float]] = []
    monkeypatch.setattr(office.context.callers.admission, "charge", lambda uid, cost: charged.append((uid, cost)))
    monkeypatch.setattr(type(office.context.callers), "charge_answer", lambda *_: 0.0)
    names = [f"nobody{number}" for number in range(256)]
    for route in ("kill", "stop", "remove", "hold", "unhold"):
        charged.clear()
        office.ask_as(ALICE, "POST", f"/v1/{route}", {"targets": names})
        assert charged == [(ALICE, 0.5 * 255)], route

    monkeypatch.setattr(office.context.callers.admission, "owes", lambda uid: 5.0)
    charged.clear()
    for route in ("kill", "stop", "remove", "hold", "unhold"):
        assert office.ask_as(ALICE, "POST", f"/v1/{route}", {"targets": names})[0] == 429
        assert office.ask("POST", f"/v1/{route}", {"targets": names})[0] != 429
    assert charged == []


@as_root
def test_each_further_agent_that_is_removed_is_paid_for(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name as by a group. At bc51ea4 only a group was."""
    for number in range(3):
        office.register(f"m{number}", ALICE, queued=True)
    charged: list[float] = []
    monkeypatch.setattr(office.context.callers.admission, "charge", lambda uid, cost: charged.append(cost))
    monkeypatch.setattr(type(office.context.callers), "charge_answer", lambda *_: 0.0)
    office.ask_as(ALICE, "POST", "/v1/remove", {"targets": ["m0", "m1", "m2"], "dry_run": True})
    assert charged == [0.5 * 2, 2.0, 2.0]


@as_root
def test_the_look_that_a_dry_run_asks_for_is_paid_for(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    """As much as by `reap`; if no agent is meant there is no look, and root pays for none."""
    office.register("alpha", ALICE, queued=True)
    charged: list[tuple[int, float]] = []
    monkeypatch.setattr(office.context.callers.admission, "charge", lambda uid, cost: charged.append((uid, cost)))
    monkeypatch.setattr(type(office.context.callers), "charge_answer", lambda *_: 0.0)
    for verb in ("kill", "stop"):
        charged.clear()
        office.ask_as(ALICE, "POST", f"/v1/{verb}", {"targets": ["alpha"], "dry_run": True})
        assert charged == [(ALICE, cost_of("POST", "/reap")[1] - cost_of("POST", f"/{verb}")[1])], verb
        office.ask_as(ALICE, "POST", f"/v1/{verb}", {"targets": ["nobody"], "dry_run": True})
        office.ask("POST", f"/v1/{verb}", {"targets": ["alpha"], "dry_run": True})
        assert len(charged) == 1, verb


@as_root
def test_a_hold_that_says_the_same_again_changes_nothing(office: Office) -> None:
    """One row an agent, however often it is held and let go; one event for each change."""
    office.register("alpha", ALICE)

    def say(route: str, **body: object) -> None:
        assert office.ask_as(ALICE, "POST", f"/v1/{route}", {"targets": ["alpha"], **body})[0] == 200

    def events() -> list[object]:
        return [event["event"] for event in office.log.events if str(event["event"]).startswith("hold.")]

    for _ in range(3):
        say("hold", reason="one")
    assert events() == ["hold.started"]
    say("hold", reason="two")
    say("unhold")
    say("unhold")
    say("hold", reason="three")
    assert events() == ["hold.started", "hold.started", "hold.ended", "hold.started"]
    (row,) = office.context.registry.history.active_holds(HOST)
    assert (row.id, row.reason) == (1, "three")
    assert [held.reason for held in office.context.holds.current(office.context.now())] == ["three"]


@as_root
def test_no_user_can_squat_anothers_temp_dir(office: Office) -> None:
    """A place that a stranger names is not taken from its owner: no hook of the stranger's could remove it."""
    office.register("squatter", BOB, temp_dir="/tmp/of-alice")
    office.register("alpha", ALICE, temp_dir="/tmp/of-alice")
    status, answer = office.ask_as(ALICE, "POST", "/v1/agents", {"name": "beta", "temp_dir": "/tmp/of-alice"})
    assert (status, answer["error"]) == (409, "conflict")


@as_root
def test_a_users_registration_does_not_wait_for_anothers(office: Office) -> None:
    """Bob's is stuck; root's and alice's go on."""
    held = office.context.registrar.turn(BOB)

    def hold() -> Awaitable[Any]:
        return held.__aenter__()

    def let_go() -> Awaitable[Any]:
        return held.__aexit__(None, None, None)

    office.on_loop(hold)
    office.register("alpha", ALICE)
    office.register("roots", pid=office.process())
    office.on_loop(let_go)
