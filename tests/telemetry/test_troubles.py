"""The daemon's own recent errors: kept until they are over, and named with their remedy by `status` and `doctor`."""

import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clocks import Later
from tests.control.test_metrics_listener import free_port
from tests.e2e.test_reload import reload
from tests.world import World, make_world, wait_for
from watchdog.telemetry.catalogue import CATALOGUE, WARNING
from watchdog.telemetry.troubles import HOUR, KEPT, OF_AGENTS, PASSED, STATE, Troubles


def test_each_warning_is_shown_somewhere() -> None:
    """A new one belongs to one group; otherwise the person on call finds it only in the log."""
    groups = [set(KEPT), set(STATE), set(OF_AGENTS), set(PASSED)]
    loud = {event for event, entry in CATALOGUE.items() if entry.level >= WARNING}

    assert loud == set.union(*groups)
    assert sum(map(len, groups)) == len(loud)
    assert {end for kind in KEPT.values() for end in kind.ends} <= CATALOGUE.keys()
    assert all(CATALOGUE[event].act for event in KEPT.keys() - {"sweep.failed"})


def test_a_trouble_lasts_until_its_end_or_for_its_time() -> None:
    """Two of one event are distinguished by their keys; the end of one is not the other's; secrets are removed."""
    clock = Later()
    kept = Troubles(clock)
    for listen in ("127.0.0.1:1", "127.0.0.1:2"):
        kept.hear("metrics.failed", {"listen": listen, "error": "taken"})
    kept.hear("metrics.listening", {"listen": "127.0.0.1:1"})
    kept.hear("control.failed", {"route": "/x", "exc_info": ValueError("postgresql://me:secret@db")})
    kept.hear("control.failed", {"route": "/x", "exc_info": ValueError("again")})
    kept.hear("agent.late", {})

    assert [(one["event"], one["count"]) for one in kept.facts()] == [("control.failed", 2), ("metrics.failed", 1)]
    assert "127.0.0.1:2: taken" in str(kept.facts()[1]["what"])
    assert "secret" not in str(kept.facts())

    clock.at += HOUR + 1
    assert [one["event"] for one in kept.facts()] == ["metrics.failed"]

    kept.hear("config.reloaded", {"changed": ("metrics.listen",)})
    assert kept.facts() == []


@pytest.mark.parametrize(
    ("event", "fields", "todo"),
    [
        ("metrics.failed", {"error": "Address already in use"}, "another program listens there: `ss -ltnp`"),
        ("metrics.failed", {"error": "Permission denied"}, "a port below 1024"),
        ("metrics.failed", {"error": "Cannot assign requested address"}, "this host has no such address"),
        ("metrics.failed", {"error": "Address family not supported by protocol"}, "the unit lacks the drop-in"),
        ("metrics.failed", {"error": "else"}, CATALOGUE["metrics.failed"].act),
        (
            "notify.failed",
            {"why": "exit status 127: /x: No such file or directory"},
            "create the program that it names",
        ),
        ("notify.failed", {"why": "exit status 126: /x: Permission denied"}, "let the daemon's uid execute"),
        ("notify.failed", {"why": "exit status 3: the gateway refused"}, CATALOGUE["notify.failed"].act),
    ],
)
def test_a_remedy_depends_on_the_text(event: str, fields: dict[str, object], todo: str) -> None:
    """B5: "is the port taken, or does the unit lack the drop-in?" was the remedy for "Address already in use"."""
    kept = Troubles(Later())
    kept.hear(event, fields)
    assert str(kept.facts()[0]["todo"]).startswith(todo)


def test_a_hook_that_hung_is_a_trouble_while_it_is_tried_again() -> None:
    """A2: at 90 s of a hung worktree `status` was fine.

    One that failed at once is tried again before a person looks.
    """
    kept = Troubles(Later())
    try_of = {"agent_id": "a", "hook": "git_locks", "name": "alpha", "attempt": 1, "message": "ended after 60 s"}
    kept.hear("cleanup.hook_retried", {**try_of, "outcome": "failed"})
    assert kept.facts() == []

    kept.hear("cleanup.hook_retried", {**try_of, "outcome": "timeout"})
    (found,) = kept.facts()
    said = "the cleanup hook git_locks ran out of time for alpha in try 1 and is tried again: ended after 60 s"
    assert found["what"] == said
    assert "timeout 5 ls" in str(found["todo"])

    kept.hear("cleanup.hook_finished", {**try_of, "hook": "worktree"})
    assert len(kept.facts()) == 1
    kept.hear("cleanup.hook_failed", {**try_of, "attempt": 3})
    assert [one["event"] for one in kept.facts()] == ["cleanup.hook_failed"]
    kept.hear("cleanup.hook_retried", {**try_of, "outcome": "timeout"})
    kept.hear("cleanup.hook_finished", try_of)
    assert kept.facts() == []


@pytest.fixture
def world(nursery: None) -> Iterator[World]:
    yield from make_world()


def verdict(world: World) -> tuple[int, str]:
    """The exit status of `status`, and its first line."""
    done = world.cli("status", check=False)
    return done.returncode, done.stdout.splitlines()[0]


def test_a_pager_and_a_metrics_port_that_fail_are_shown_at_once(world: World, tmp_path: Path) -> None:
    """The verdict, its exit status and `doctor`, each with cause and remedy; all is fine again when they work."""
    pager = tmp_path / "pager"
    pager.write_text('#!/bin/sh\ntest "$AGENT_WATCHDOG_EVENT" || exit 4\ncat\necho the gateway refused >&2\nexit 3\n')
    pager.chmod(0o755)
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        world.configure(notify={"on": ["agent.registered"], "command": [str(pager)]}, metrics={"listen": listen})
        world.start()
        world.wait_event("metrics.failed")
        world.registered("alpha", "sleep", "600")
        world.wait_event("notify.failed")

        code, first = verdict(world)
        told = world.cli("status", check=False).stdout
        found = world.cli("doctor", check=False)

    assert told.count(f"{listen}: Address already in use") == told.count("failed for agent.registered") == 1
    assert code == 1 and first.startswith("ATTENTION: nothing is served at [metrics]") and first.endswith("and 1 more")
    assert found.returncode == 1
    assert f"nothing is served at [metrics] listen = {listen}: Address already in use" in found.stdout
    assert "the command of [notify] failed for agent.registered:" in found.stdout
    assert "the gateway refused" in found.stdout
    assert "do: another program listens there: `ss -ltnp`" in found.stdout
    above, _, _ = found.stdout.partition("do: its output stands above (in the log: `why` of the line)")
    line = found.stdout.partition("; to try it: ")[2].splitlines()[0]
    tried = subprocess.run(["sh", "-c", line], env={}, capture_output=True, text=True, check=False, timeout=60)
    assert (tried.returncode, tried.stdout, tried.stderr) == (
        3,
        '{"event": "agent.registered"}\n',
        "the gateway refused\n",
    )
    assert "the gateway refused" in above and "the gateway refused" in world.wait_event("notify.failed")["why"]

    world.wait_event("metrics.listening")
    pager.write_text("#!/bin/sh\n")
    world.registered("beta", "sleep", "600")
    world.wait_event("notify.recovered")
    code, first = verdict(world)
    assert (code, first.partition(" watched")[0]) == (0, "fine: 2 agents")


def test_an_unused_port_and_another_pager_end_their_trouble(world: World) -> None:
    """No event ever says that the former ones work again."""
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        world.configure(notify={"on": ["agent.registered"], "command": ["false"]}, metrics={"listen": listen})
        world.start()
        world.registered("alpha", "sleep", "600")
        world.wait_event("notify.failed")
        world.configure(notify={"on": ["agent.registered"], "command": ["/bin/false"]}, metrics={"listen": ""})
        reload(world, "config.reloaded")

        assert verdict(world)[0] == 0
        before = len(world.events())
        world.registered("beta", "sleep", "600")
        world.wait_event("notify.failed", after=before)  # for this command, too
        assert verdict(world)[0] == 1


def test_a_hook_that_hangs_is_shown_in_its_second_try(world: World, tmp_path: Path) -> None:
    """A2: `status`, `doctor`, `list` and `why`, long before its tries are used up; fine again when it succeeds."""
    gate = tmp_path / "gate"
    tmp_path.chmod(0o755)
    command = f"test -e {gate} || sleep 600"
    hook = f"""[[hook]]\nname = "own"\nretries = 40\ntimeout_seconds = 2\ncommand = ["/bin/sh", "-c", "{command}"]\n"""
    world.config.write_text(world.config.read_text() + hook)
    world.start()
    world.run("alpha", "true").wait(60)
    world.wait_event("cleanup.hook_retried")

    code, first = verdict(world)
    assert code == 1 and "the cleanup hook own ran out of time for alpha in try" in first
    found = world.cli("doctor", check=False)
    assert found.returncode == 1 and "own ran out of time for alpha" in found.stdout
    why = wait_for(lambda: told if "is running" in (told := world.cli("why", "alpha").stdout) else "", "a try runs")
    assert "It has ended by itself; its cleanup goes on, and waits for the hook own, try " in why
    assert "running after" not in why

    gate.touch()
    wait_for(lambda: verdict(world)[0] == 0, "it is over")


def test_a_hook_that_fails_is_shown_until_it_works(world: World, tmp_path: Path) -> None:
    """`reap` tries it again; `status` without a daemon is 69."""
    gate = tmp_path / "gate"
    tmp_path.chmod(0o755)
    tries = f"echo the-words-that-it-printed >&2; test -e {gate}"
    hook = f"""[[hook]]\nname = "own"\nretries = 0\ncommand = ["/bin/sh", "-c", "{tries}"]\n"""
    world.config.write_text(world.config.read_text() + hook)
    world.start()
    world.run("alpha", "true").wait(60)
    world.wait_event("cleanup.hook_failed")

    code, first = verdict(world)
    assert code == 1 and "the cleanup hook own failed for alpha" in first
    doctor = world.cli("doctor", check=False).stdout
    assert "do: `agent-watchdog why alpha` has its output" in doctor and "`agent-watchdog reap` runs it again" in doctor
    assert "the-words-that-it-printed" in world.cli("why", "alpha").stdout

    gate.touch()
    world.cli("reap", check=False)
    wait_for(lambda: verdict(world)[0] == 0, "it is over")
    world.stop()
    assert world.cli("status", check=False).returncode == 69


def test_a_remedy_that_names_why_is_for_an_event_that_why_shows() -> None:
    """Of an event only in the log `why AGENT` shows nothing; the field `why` is called the line's."""
    named = {event for event, spec in CATALOGUE.items() if re.search(r"why AGENT", spec.act)}
    assert named <= OF_AGENTS | {"cleanup.hook_failed", "cleanup.hook_retried", "kill.unkillable"}
    assert not [event for event, spec in CATALOGUE.items() if re.search(r"`why`(?! of the line)", spec.act)]


def test_what_the_configuration_no_longer_has_needs_no_attention() -> None:
    """The trouble of a hook or source goes with it, also one that a try reports late; those that stay keep theirs."""
    kept = Troubles(Later())
    failed = {"agent_id": "a", "name": "alpha", "attempt": 3, "message": "exit status 1"}
    for hook in ("mine", "worktree"):
        kept.hear("cleanup.hook_failed", {**failed, "hook": hook})
        kept.hear("source.unread", {"source": "hcom", "path": f"/{hook}", "why": "it is locked"})

    kept.configure("hook", [("worktree",), ("pane",)])
    kept.configure("source", [("hcom", "/worktree")])
    kept.hear("config.reloaded", {"changed": ("hook", "source")})
    kept.hear("cleanup.hook_retried", {**failed, "hook": "mine", "outcome": "timeout"})
    kept.hear("source.unread", {"source": "hcom", "path": "/mine", "why": "it is locked"})

    assert sorted(str(one["what"]) for one in kept.facts()) == [
        "the [[source]] hcom at /worktree cannot be read: it is locked",
        "the cleanup hook worktree failed for alpha: exit status 1",
    ]


def test_a_failing_hook_that_was_taken_out_is_no_longer_named_by_status(world: World) -> None:
    """`status` is fine after the reload; `list` and `why` say that the hook is not tried again, and promise nothing."""
    plain = world.config.read_text()
    world.config.write_text(plain + '[[hook]]\nname = "mine"\nretries = 0\ncommand = ["/bin/false"]\n')
    world.start()
    world.registered("alpha", "sleep", "600")
    world.cli("kill", "alpha", check=False)
    world.wait_event("cleanup.hook_failed")
    assert verdict(world)[0] == 1
    assert "agent-watchdog reap then runs it again" in world.cli("why", "alpha").stdout

    world.config.write_text(plain + '[[hook]]\nname = "other"\ncommand = ["/bin/true"]\n')
    reload(world, "config.reloaded")

    assert verdict(world)[0] == 0
    gone = "the configuration no longer has this hook, so it is not tried again"
    why = world.cli("why", "alpha").stdout
    assert gone in why and "agent-watchdog reap" not in why and "It has ended; nothing will change." in why
    assert gone in " ".join(world.cli("list", "--all").stdout.split())
