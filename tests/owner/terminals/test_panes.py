"""Panes of tmux: found by who sits in them, closed only where they are an agent's own; real servers of our own."""

import math
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.owner.tmux_servers import Servers, child_of, command_of, end, pane_with
from tests.world import alive, started_at, wait_for
from watchdog.errors import OwnerCallFailed
from watchdog.owner.terminals import TERMINALS, tmux
from watchdog.owner.terminals.base import ListedPane, Pane, TerminalServer, pane_json, reached
from watchdog.owner.terminals.pane_lookup import stat_of
from watchdog.owner.terminals.panes import close, never_found, pane_screen

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")
AGENT = "exec sleep 1000"
WRAPPED = "exec bash -c 'sleep 1000; exec sh'"


@pytest.fixture
def servers() -> Iterator[Servers]:
    with Servers() as servers:
        yield servers


def screen(pane: Pane) -> list[str]:
    lines = pane_screen(2, 0, pane_json(pane))["lines"]
    assert isinstance(lines, list)
    return lines


def refusal(pid: int, told: dict[str, str]) -> str:
    with pytest.raises(OwnerCallFailed) as caught:
        pane_with(pid, told)
    return caught.value.reason


# -- found


def test_a_pane_is_known_by_its_server_and_its_first_process(servers: Servers) -> None:
    """The agent is its first process; another server's session of the same name is another one."""
    pane, pid = servers.session("work", AGENT)
    servers.session("work", AGENT, name="two")

    found = pane_with(pid)

    server = int(servers.tmux("display-message", "-p", "#{pid}"))
    assert (found.terminal, found.server, found.pane) == ("tmux", servers.socket(), pane)
    assert (found.server_pid, found.server_ticks) == (server, int(started_at(server) or 0))
    assert (found.pid, found.ticks, found.own, found.chain) == (pid, int(started_at(pid) or 0), True, ())


def test_a_pane_is_found_without_a_word_in_the_environment(servers: Servers) -> None:
    """Whoever has cleared TMUX still sits there: every server of the owner's is asked, whatever killed ones left."""
    servers.session("other", AGENT)
    for number in range(100):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(servers.socket(f"a{number}"))
    _, pid = servers.session("work", f"exec env -u TMUX -u TMUX_PANE TMUX_TMPDIR={servers.dir} sleep 1000")
    assert pane_with(pid).pid == pid


def test_who_has_a_terminal_of_its_own_is_found_by_who_started_it(servers: Servers) -> None:
    """A program between (hcom's, script(1)) gives the agent another terminal; the pane is that program's."""
    _, first = servers.session("work", "exec script -qc 'sleep 1000; :' /dev/null")
    agent = child_of(first)

    found = pane_with(agent)

    assert (found.pid, found.own) == (first, True)
    assert found.chain[-1] == (first, int(started_at(first) or 0))
    end(agent)  # it would outlive the server


def test_a_shell_that_a_person_has_is_not_the_agents(servers: Servers) -> None:
    """The agent was typed there: the pane is found, and is not its own; nor is it when a registry names it."""
    pane, shell = servers.session("mine", "/bin/sh")
    servers.tmux("send-keys", "-t", pane, "sleep 1000", "Enter")
    agent = child_of(shell)

    assert not pane_with(agent).own
    assert not pane_with(agent, {"terminal": "tmux", "pane": pane}).own


def test_who_has_no_terminal_sits_in_no_pane(servers: Servers) -> None:
    """It carries the variables of a pane, and is headless."""
    _, first = servers.session("work", "setsid -f sleep 1000; exec sleep 1001")
    agent = wait_for(lambda: next(iter(_sleepers(servers)), None), "the headless one")
    try:
        assert refusal(agent, {}) == "no_pane"
    finally:
        os.kill(agent, signal.SIGKILL)
    assert pane_with(first).pid == first


def _sleepers(servers: Servers) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as words, open(f"/proc/{name}/environ", "rb") as environ:
                if words.read() == b"sleep\0" + b"1000\0" and str(servers.dir).encode() in environ.read():
                    found.append(int(name))
        except (OSError, ValueError):
            continue
    return found


# -- case I1: names


def test_the_neighbour_whose_name_begins_alike_is_not_meant(servers: Servers) -> None:
    """`kill-session -t agent-1` would end agent-10 when agent-1 has gone."""
    _, pid = servers.session("agent-1", AGENT)
    known = pane_with(pid)
    _, neighbour = servers.session("agent-10", AGENT)
    servers.tmux("kill-session", "-t", "=agent-1")
    wait_for(lambda: not alive(pid), "agent-1 ends")

    assert close(known).outcome == "gone"
    assert refusal(neighbour, {"terminal": "tmux", "server": "one", "session": "agent-1"}) == "no_pane"
    assert alive(neighbour)
    assert len(servers.panes()) == 1


@pytest.mark.parametrize("name", ["a*", "[x]", "a.b:c", "=a", "$1", "{last}", "-t", "%0", "é|x"])
def test_a_name_that_means_something_to_tmux_is_only_a_name(servers: Servers, name: str) -> None:
    """Its own pane is closed; the one that the pattern would fit stays."""
    _, neighbour = servers.session("x", AGENT)
    _, pid = servers.session(name, AGENT)

    found = pane_with(pid, {"terminal": "tmux", "server": "one", "session": name})
    end(pid)

    assert close(found).outcome in ("done", "gone")
    assert alive(neighbour)
    assert len(servers.panes()) == 1


# -- case I2: numbers that begin anew


def test_a_server_that_was_started_anew_gives_the_number_to_a_stranger(servers: Servers) -> None:
    """%0 of the former server is closed; nothing of the new one is touched, shown or taken for the agent's."""
    pane, pid = servers.session("work", AGENT)
    known = pane_with(pid)
    servers.tmux("kill-server")
    wait_for(lambda: not alive(pid), "the agent ends with its server")
    again, stranger = servers.session("work", AGENT)
    assert again == pane

    closed = close(known)

    assert (closed.outcome, alive(stranger)) == ("gone", True)
    assert "its server has gone" in closed.message
    with pytest.raises(OwnerCallFailed, match="its server has gone"):
        screen(known)


def test_a_server_that_is_just_ending_is_looked_at_once_more(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kill-server`: it answers strangely before it has gone, and its panes with it."""
    _, pid = servers.session("work", AGENT)
    known = pane_with(pid)
    asked = tmux.TMUX.panes

    def ending(server: TerminalServer, until: float) -> list[ListedPane]:
        servers.tmux("kill-server")
        return asked(server, until)

    monkeypatch.setitem(TERMINALS, "tmux", replace(tmux.TMUX, panes=ending))
    assert close(known).outcome == "gone"


def test_a_server_at_another_socket_with_the_same_names_is_another(servers: Servers) -> None:
    """Same session name, same pane id: the one on the agent's own socket is closed."""
    pane, pid = servers.session("work", "exec sh -c 'sleep 1000; exec sleep 1001'")
    other, stranger = servers.session("work", AGENT, name="two")
    assert other == pane
    known = pane_with(child_of(pid))
    end(child_of(pid))
    wait_for(lambda: command_of(pid) == "sleep 1001", "its launcher goes on")

    assert close(known).outcome == "done"
    assert alive(stranger)
    assert servers.panes("two") == [f"work @0 {other}"]


def test_a_pane_in_which_another_process_was_started_is_kept(servers: Servers) -> None:
    """respawn-pane: the same number, somebody else's process."""
    pane, pid = servers.session("work", AGENT)
    known = pane_with(pid)
    servers.tmux("respawn-pane", "-k", "-t", pane, AGENT)
    wait_for(lambda: not alive(pid), "the agent ends")
    assert close(known).outcome == "kept"
    assert servers.panes() == [f"work @0 {pane}"]


# -- case I4: session groups


def test_the_window_is_closed_in_all_sessions_that_show_it(servers: Servers) -> None:
    """A viewer's session in the group keeps its own other windows."""
    servers.session("base", "exec sleep 1001")
    told = servers.tmux("new-window", "-P", "-F", "#{window_id} #{pane_pid}", "-t", "base:", WRAPPED)
    window, first = told.split()
    servers.tmux("new-session", "-d", "-t", "base", "-s", "viewer")
    kept = servers.tmux("new-window", "-P", "-F", "#{window_id}", "-t", "viewer:", "exec sleep 1002")
    agent = child_of(int(first))
    known = pane_with(agent)
    end(agent)

    assert close(known).outcome == "done"
    windows = [line.split()[:2] for line in servers.panes()]
    assert [*map(tuple, windows)] == [("base", "@0"), ("base", kept), ("viewer", "@0"), ("viewer", kept)]
    assert window not in {one for _, one in windows}


# -- case I8: the pane lives, the agent is dead


@pytest.mark.parametrize("command", [WRAPPED, WRAPPED.removeprefix("exec ")], ids=["its first", "below another"])
def test_the_pane_of_a_launcher_is_closed_after_its_agent(servers: Servers, command: str) -> None:
    """(a) What started the agent has become a shell that waits. A second time there is nothing to do."""
    _, first = servers.session("work", command)
    servers.session("other", AGENT)
    agent = child_of(first)
    known = pane_with(agent)
    end(agent)

    assert close(known).outcome == "done"
    wait_for(lambda: not alive(first), "the shell ends")
    assert len(servers.panes()) == 1
    assert close(known).outcome == "gone"


def test_a_pane_that_is_shown_on_after_its_process_is_closed(servers: Servers) -> None:
    """(b) remain-on-exit."""
    servers.session("other", AGENT)
    servers.tmux("set-option", "-g", "remain-on-exit", "on")
    _, pid = servers.session("work", AGENT)
    known = pane_with(pid)
    end(pid)
    wait_for(lambda: "1" in servers.tmux("list-panes", "-t", "=work:", "-F", "#{pane_dead}") or None, "it is dead")

    assert close(known).outcome == "done"
    assert len(servers.panes()) == 1


def test_a_pane_in_which_somebody_works_is_kept(servers: Servers) -> None:
    """(c) In the shell that the launcher left somebody has started something."""
    pane, first = servers.session("work", WRAPPED)
    agent = child_of(first)
    known = pane_with(agent)
    end(agent)
    wait_for(lambda: command_of(first) == "sh", "the shell is there")
    servers.tmux("send-keys", "-t", pane, "cat", "Enter")
    working = child_of(first, "cat")

    closed = close(known)

    assert (closed.outcome, alive(working)) == ("kept", True)
    assert f"in use by cat[{working}]" in closed.message


def test_a_pane_in_which_somebody_reads_is_kept(servers: Servers) -> None:
    """The last words of a dead agent, scrolled to."""
    servers.tmux("new-session", "-d", "-s", "other", AGENT)
    servers.tmux("set-option", "-g", "remain-on-exit", "on")
    pane, pid = servers.session("work", AGENT)
    known = pane_with(pid)
    end(pid)
    servers.tmux("copy-mode", "-t", pane)
    assert close(known).outcome == "kept"
    assert len(servers.panes()) == 2


def test_the_shell_in_which_a_person_had_typed_it_is_kept(servers: Servers) -> None:
    """It waits for its next command."""
    pane, shell = servers.session("mine", "/bin/sh")
    servers.tmux("send-keys", "-t", pane, "sleep 1000", "Enter")
    agent = child_of(shell)
    known = pane_with(agent)
    end(agent)

    assert close(known).outcome == "kept"
    assert alive(shell)


def test_a_pane_in_which_somebody_types_is_kept(servers: Servers) -> None:
    """Nothing runs in the shell that the launcher left; a person at it has pressed a key just now."""
    pane, first = servers.session("work", WRAPPED)
    agent = child_of(first)
    known = pane_with(agent)
    with servers.person("work") as keys:
        os.write(keys, b"x")
        wait_for(lambda: "x" in servers.tmux("capture-pane", "-p", "-t", pane), "the key arrives")
        end(agent)
        closed = close(known)
    assert (closed.outcome, alive(first)) == ("kept", True)
    assert "a person who types in it" in closed.message


def test_another_pane_in_which_somebody_types_is_no_reason(servers: Servers) -> None:
    """He looks at its neighbour."""
    pane, first = servers.session("work", WRAPPED)
    other = servers.tmux("split-window", "-P", "-F", "#{pane_id}", "-t", pane, "exec cat")
    agent = child_of(first)
    known = pane_with(agent)
    with servers.person("work") as keys:
        os.write(keys, b"x")
        wait_for(lambda: "x" in servers.tmux("capture-pane", "-p", "-t", other), "the key arrives")
        end(agent)
        assert close(known).outcome == "done"


# -- a server that does not answer, and one that was never found


def test_a_server_that_hangs_is_waited_for_so_long(servers: Servers) -> None:
    """It is told as failed, with the command that a person may type; a last screen is given up sooner."""
    _, first = servers.session("work", WRAPPED)
    agent = child_of(first)
    known = pane_with(agent)
    end(agent)
    os.kill(known.server_pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(OwnerCallFailed, match="did not answer"):
            screen(known)
        looked = time.monotonic() - began
        closed = close(known)
    finally:
        os.kill(known.server_pid, signal.SIGCONT)

    assert looked < 2
    assert (closed.outcome, time.monotonic() - began < 8) == ("failed", True)
    assert closed.retry == f"tmux -S {servers.socket()} kill-pane -t '{known.pane}'"


def test_what_a_hanging_server_was_told_it_does_not_do_later(servers: Servers) -> None:
    """It reads the words of a client that was given up; meanwhile the pane may be somebody's."""
    servers.session("other", AGENT)
    pane, first = servers.session("work", WRAPPED)
    known = pane_with(child_of(first))
    os.kill(known.server_pid, signal.SIGSTOP)
    try:
        with reached(known.server) as server, pytest.raises(OwnerCallFailed, match="did not answer"):
            tmux.close(server, known, time.monotonic() + 0.1)
        with reached(known.server) as server, pytest.raises(OwnerCallFailed, match="did not answer"):
            tmux.write(server, known, "late", time.monotonic() + 0.1)
        late = math.ceil(time.time() + 0.1) + 0.1  # time(2) is a tick behind
        wait_for(lambda: time.time() > late, "the deadline is over")
    finally:
        os.kill(known.server_pid, signal.SIGCONT)
    assert len(servers.panes()) == 2
    assert "late" not in servers.tmux("capture-pane", "-p", "-t", pane)


def test_who_came_between_the_look_and_the_act_is_left_alone(servers: Servers) -> None:
    """Another process in the pane, or somebody who reads: the server itself looks once more."""
    pane, first = servers.session("work", AGENT)
    known = pane_with(first)
    until = time.monotonic() + 5
    servers.tmux("copy-mode", "-t", pane)
    with reached(known.server) as server, pytest.raises(OwnerCallFailed, match="used for something else"):
        tmux.write(server, known, "x", until)
    with reached(known.server) as server, pytest.raises(OwnerCallFailed, match="used for something else"):
        tmux.close(server, known, until)
    servers.tmux("respawn-pane", "-k", "-t", pane, AGENT)
    with reached(known.server) as server, pytest.raises(OwnerCallFailed, match="used for something else"):
        tmux.write(server, known, "x", until)
    with reached(known.server) as server, pytest.raises(OwnerCallFailed, match="used for something else"):
        tmux.close(server, known, until)
    assert servers.panes() == [f"work @0 {pane}"]


def test_a_server_whose_queue_is_full_is_no_server_that_has_gone(tmp_path: Path) -> None:
    """Each look at one that hangs stays in its queue: in the end no other fits."""
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as waiting:
        server.bind(str(tmp_path / "s"))
        server.listen(0)
        waiting.connect(str(tmp_path / "s"))
        with pytest.raises(OwnerCallFailed) as caught, reached(str(tmp_path / "s")):
            pass
    assert caught.value.reason == "unheard"


def test_a_pane_whose_server_lost_its_socket_is_not_gone(servers: Servers) -> None:
    """Somebody cleaned /tmp: told as failed, and without a command, which would reach nobody, or a stranger's."""
    _, first = servers.session("work", WRAPPED)
    agent = child_of(first)
    known = pane_with(agent)
    end(agent)
    os.rename(servers.socket(), servers.socket("away"))
    closed = close(known)
    assert (closed.outcome, closed.retry) == ("failed", "")
    assert f"its server, pid {known.server_pid}, lives" in closed.message
    _, stranger = servers.session("work", AGENT)
    closed = close(known)
    assert (closed.outcome, closed.retry) == ("failed", "")
    assert alive(stranger)
    os.rename(servers.socket("away"), servers.socket())
    assert close(known).outcome == "done"
    end(stranger)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_users_directory_of_that_name_is_passed_over(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes first may call a directory of /tmp like that of somebody else's tmux."""
    servers.session("work", AGENT)
    monkeypatch.setenv("TMUX_TMPDIR", str(servers.dir))
    assert servers.socket() in tmux.servers({}, "")
    os.chown(os.path.dirname(servers.socket()), 61001, 61001)
    try:
        assert servers.socket() not in tmux.servers({}, "")
    finally:
        os.chown(os.path.dirname(servers.socket()), 0, 0)


@pytest.mark.parametrize(
    ("told", "command"),
    [
        pytest.param({"pane": "%77"}, "tmux kill-pane -t '%77'", id="of a server without a name"),
        pytest.param({"pane": "%77", "server": "x y"}, "tmux -L 'x y' kill-pane -t '%77'", id="of a named one"),
        pytest.param(
            {"pane": "%7", "server": "/s'"}, """tmux -S '/s'"'"'' kill-pane -t '%7'""", id="of one at a socket"
        ),
        pytest.param(
            {"terminal": "kitty", "pane": "5; reboot", "server": "/s'; x"},
            """kitty @ --to 'unix:/s'"'"'; x' close-window --match 'id:5; reboot'""",
            id="of a kitty that is no kitty",
        ),
        pytest.param(
            {"terminal": "wezterm", "pane": "5; reboot", "server": "/s'; x"},
            """WEZTERM_UNIX_SOCKET='/s'"'"'; x' wezterm cli kill-pane --pane-id '5; reboot'""",
            id="of a wezterm that is none",
        ),
        pytest.param({"session": "work"}, "", id="no pane was told"),
    ],
)
def test_a_pane_that_was_only_told_of_is_left_to_a_person(told: dict[str, str], command: str) -> None:
    """Nobody saw the agent in it; it may be anybody's."""
    missing = never_found({"terminal": "tmux", **told})
    assert (missing.outcome, missing.retry) == ("kept", command)


# -- the last screen


def test_the_last_screen_is_kept_without_secrets_and_cut(servers: Servers) -> None:
    """A secret that was broken at the edge of the pane is whole again, and hidden."""
    long, secret = "x" * 300, "sk-ant-" + "a1b2c3d4" * 12
    words = f"printf '%s\\n' begin {long} key={secret} $(seq 30) last; exec sleep 1000"
    pane, pid = servers.session("work", words)
    wait_for(lambda: servers.tmux("capture-pane", "-p", "-t", pane), "it has a terminal")
    known = pane_with(pid)

    lines = wait_for(lambda: ((now := screen(known)) and now[-1] == "last" and now) or None, "it has spoken")
    assert len(lines) <= 40
    assert all(len(line) <= 160 for line in lines)
    servers.tmux("resize-window", "-t", "=work:", "-y", "60")
    shown = "\n".join(screen(known))
    assert secret not in shown
    assert secret[-12:] not in shown


def test_a_secret_whose_begin_has_left_the_screen_is_hidden(servers: Servers) -> None:
    """Its end stands alone in the first line. What is far above the screen is not kept."""
    secret = "sk-ant-" + "a1b2c3d4" * 30
    servers.tmux("new-session", "-d", "-s", "other", AGENT)
    pane, pid = servers.session(
        "work", f"printf '%s\\n' before $(seq 100 120) key={secret} $(seq 20) last; exec sleep 1000"
    )
    wait_for(lambda: "last" in servers.tmux("capture-pane", "-p", "-t", pane), "it has spoken")
    lines = screen(pane_with(pid))
    assert "before" not in lines
    assert not any("a1b2c3d4" in line for line in lines)


def test_what_a_person_does_in_his_shell_is_no_last_screen(servers: Servers) -> None:
    """The agent was typed there and sleeps in the background: its own words are not shown any more."""
    pane, shell = servers.session("mine", "/bin/bash --norc -i")
    servers.tmux("send-keys", "-t", pane, "sleep 1000", "Enter")
    agent = child_of(shell)
    known = pane_json(pane_with(agent))
    ticks = int(started_at(agent) or 0)
    wait_for(lambda: pane_screen(agent, ticks, known)["lines"], "it has the foreground")
    servers.tmux("send-keys", "-t", pane, "C-z")
    wait_for(lambda: stat_of(agent).state == "T", "it is stopped")
    with pytest.raises(OwnerCallFailed, match="another program"):
        pane_screen(agent, ticks, known)
