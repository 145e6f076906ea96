"""One whole story of another uid's agent, by the daemon inside the hardened unit with only its capabilities."""

import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from tests.systemd.machine import Machine
from tests.systemd.service import BIN, client, install, start
from tests.world import AGENTS, wait_for

pytestmark = pytest.mark.systemd
# A hook of the operator's that writes down what it inherited.
SCRIPT = "env > $HOME/environment; id -u > $HOME/uid; (setsid sleep 600 &); cat /proc/self/cgroup > $HOME/cgroup"
HOOK = f"""
[[hook]]
name = "look"
on = ["completed", "failed", "stopped", "killed", "lost"]
run = "temp_dir"

[[hook]]
name = "tree"
on = ["completed", "failed", "stopped", "killed", "lost"]
run = "worktree"

[[hook]]
name = "environment"
on = ["completed", "failed", "stopped", "killed", "lost"]
command = ["sh", "-c", "{SCRIPT}"]
"""


@pytest.fixture(scope="module")
def served(machine: Machine) -> Iterator[Machine]:
    """The service is up, and alice has a repository below /home and bob one below /srv."""
    install(machine)
    path = machine.root / "etc/agent-watchdog/agent-watchdog.toml"
    path.write_text(path.read_text() + HOOK)
    start(machine)
    for name, place in (("alice", "/home/alice"), ("bob", "/srv/bob")):
        machine.add_user(name)
        machine.run("install", "--directory", f"--owner={name}", place)
        script = (
            f"cd {place} && git init -q -b main main && cd main && git config user.email t@e && git config user.name t"
            " && git commit -q --allow-empty -m first && git worktree add -q -b work ../tree"
            f" && echo unsaved > .git/info/exclude && mkdir /tmp/{name} && echo x > /tmp/{name}/scratch"
        )
        machine.run("sh", "-c", script, user=name, environ={"HOME": f"/home/{name}"})
    yield machine


def history(machine: Machine, event: str, name: str) -> list[dict[str, Any]]:
    return [entry for entry in machine.events() if entry["event"] == event and entry.get("name") == name]


@pytest.mark.parametrize(("name", "place"), [("alice", "/home/alice"), ("bob", "/srv/bob")])
def test_a_stalled_agent_is_ended_and_put_in_order(served: Machine, name: str, place: str) -> None:
    """Stall, kill of a stubborn tree, temp dir below /tmp and worktree below /home or /srv put away as its owner."""
    served.start(
        f"agent-of-{name}",
        *(BIN / "agent-watchdog", "run", "--name", name, "--stall-after", "2s"),
        *("--worktree", f"{place}/tree", "--temp-dir", f"/tmp/{name}", "--", "sh", "-c"),
        f"trap '' TERM; {BIN}/agent-watchdog beat; (setsid sleep 500 &); while :; do sleep 1; done",
        user=name,
    )

    served.wait_event("agent.stalled", name=name)
    finished = served.wait_event("kill.finished", name=name)
    served.wait_event("agent.ended", name=name)

    assert finished["name"] == name
    hooks = {entry["hook"]: entry for entry in history(served, "cleanup.hook_finished", name)}
    assert {hook: entry["outcome"] for hook, entry in hooks.items()} == {
        "look": "done",
        "tree": "done",
        "environment": "done",
    }, json.dumps(served.events()[-20:], indent=1)
    assert not (served.root / f"tmp/{name}").exists()
    assert not (served.root / place.lstrip("/") / "tree").exists()
    trash = served.root / place.lstrip("/") / "main/.git/agent-watchdog/trash"
    assert {found.lstat().st_uid for found in [trash, *trash.rglob("*")]} == {served.uid(name)}
    listed = served.run("git", "-C", f"{place}/main", "worktree", "list", user=name).stdout
    assert len(listed.splitlines()) == 1


@pytest.mark.parametrize("name", ["alice", "bob"])
def test_a_hook_gets_nothing_of_the_services(served: Machine, name: str) -> None:
    """No socket of ours or systemd's, no marker; the owner's uid; a unit of its own, of which nothing is left."""
    home = served.root / "home" / name
    wait_for((home / "cgroup").exists, "the hook of the story before")
    environment = dict(line.split("=", 1) for line in (home / "environment").read_text().splitlines() if "=" in line)

    assert not [
        key
        for key in environment
        if key.startswith(("NOTIFY", "WATCHDOG", "LISTEN", "INVOCATION", "SYSTEMD", "JOURNAL"))
        or key in ("AGENT_WATCHDOG_ID", "AGENT_WATCHDOG_SOCKET")
    ]
    assert (home / "uid").read_text().strip() == str(served.uid(name))
    assert f"/agent-hooks.slice/agent-watchdog-helper-{served.uid(name)}-" in (home / "cgroup").read_text()
    wait_for(
        lambda: (
            "sleep 600" not in served.enter("systemd-cgls", "--no-pager", "--full", "-u", "agent-hooks.slice").stdout
        ),
        "nothing left of the hooks",
    )


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
def test_exit_keys_reach_the_pane_of_another_uid(served: Machine) -> None:
    """Typed by a helper in a unit of its own, which sees the socket below /tmp and the pane's terminal."""
    policy = '[[policy]]\nmatch = { name = "talker" }\nexit_keys = ["bye", "Enter"]\ngrace_seconds = 5\n'
    path = served.root / "etc/agent-watchdog/agent-watchdog.toml"
    path.write_text(path.read_text() + policy)
    served.systemctl("reload", "agent-watchdog.service")
    command = (BIN / "agent-watchdog", "run", "--name", "talker", "--", sys.executable, AGENTS / "agent.py", "read")
    tmux = ("tmux", "-f", "/dev/null", "new-session", "-d", shlex.join(map(str, command)))
    served.start("terminal-of-alice", *tmux, user="alice", properties=("RemainAfterExit=yes",))
    served.wait_event("agent.first_beat", name="talker")

    stopped = client(served, "stop", "talker")

    (typed,) = history(served, "stop.keys", "talker")
    assert "typed into tmux pane" in typed["why"]
    assert stopped["message"] == "it exited by itself when it was asked to stop"
    assert not history(served, "kill.signal_sent", "talker")


def test_reap_works_in_the_hardened_unit(served: Machine) -> None:
    """Each owner is asked by a helper in a unit of its own; what a service manager runs in one is no orphan."""
    rows = {row["name"]: row for row in client(served, "list", "--all")["agents"]}
    agent_id = rows["alice"]["agent_id"]
    served.start("of-alice", "sleep", "900", user="alice", environ={"AGENT_WATCHDOG_ID": agent_id})

    answer = client(served, "reap")

    kept = [one for one in answer["findings"] if one["kind"] == "process" and one["agent_id"] == agent_id]
    assert [one["action"] for one in kept] == ["keep"], answer
    assert "in a unit of its own" in kept[0]["why"]
    assert answer["success"]
    assert [one for one in served.events() if one["event"] == "reap.trouble"] == []


def test_an_owner_without_an_entry_in_passwd_is_served(served: Machine) -> None:
    """A uid of a container; systemd knows no such user."""
    served.run("sh", "-c", "mkdir /tmp/nameless && touch /tmp/nameless/x && chown -R 54321 /tmp/nameless")
    served.start(
        "agent-nameless",
        *("setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", BIN / "agent-watchdog", "run"),
        *("--name", "nameless", "--temp-dir", "/tmp/nameless", "--", "true"),
    )

    served.wait_event("agent.ended", name="nameless")

    assert not (served.root / "tmp/nameless").exists()


def test_a_helper_that_hangs_is_ended_with_its_unit(served: Machine) -> None:
    """A heartbeat file that is looked at gives alice a shared helper: SIGSTOP it, and another takes its place."""
    served.run("sh", "-c", "touch /home/alice/beat", user="alice")
    served.start("agent-file", "sleep", "600", user="alice")
    pid = served.show("agent-file", "MainPID")["MainPID"]
    body = json.dumps({"name": "file", "pid": int(pid), "beat_file": "/home/alice/beat", "stall_after_seconds": 600})
    request = ("curl", "-sS", "--unix-socket", "/run/agent-watchdog/control.sock")
    served.run(*request, "-d", body, "-H", "Content-Type: application/json", "http://x/v1/agents", user="alice")

    def helpers(uid: str) -> list[str]:
        listed = served.systemctl("list-units", "--plain", "--no-legend", f"agent-watchdog-helper-{uid}-*")
        return [line.split()[0] for line in listed.splitlines()]

    hers = partial(helpers, served.run("id", "-u", "alice").stdout.strip())
    wait_for(lambda: len(hers()) == 1, "one helper of alice, that of a test before this one may still be there")
    (first,) = hers()
    served.systemctl("kill", "--signal=STOP", first)
    wait_for(lambda: hers() and first not in hers(), "another helper in its place")
    served.systemctl("stop", "agent-watchdog")

    wait_for(lambda: not helpers("*"), "no helper without a daemon")
    served.systemctl("start", "agent-watchdog")
    assert client(served, "status")["pid"]


def test_doctor_is_content_with_a_file_that_only_root_may_read(served: Machine) -> None:
    """As `make install` leaves it: 0640, and a state directory of root's. What root's daemon said of it is told."""
    path = served.root / "etc/agent-watchdog/agent-watchdog.toml"
    path.chmod(0o640)

    def faults() -> list[str]:
        found = client(served, "doctor", user="alice", check=False)["findings"]
        return [finding["what"] for finding in found if finding["severity"] == "fault"]

    assert faults() == []

    good = path.read_text()
    path.write_text("[kil]\n")
    served.systemctl("reload", "agent-watchdog", check=False)  # refused
    served.wait_event("config.invalid")
    assert faults() == ["the last reload was refused: see its log"]
    path.write_text(good)
    served.systemctl("reload", "agent-watchdog")
