"""`agent-watchdog run` without a terminal: what it tells the daemon, and how it starts and ends an agent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Answer, FakeDaemon, Request, Start, lives, stat_of, wait_for


def test_registers_then_tells_the_pid_then_how_it_ended(start: Start, daemon: FakeDaemon) -> None:
    """Order of section "register, spawn with env, PATCH pid"; the exit status is the agent's."""
    wrapper = start(
        "run", "--name", "alpha", "--stall-after", "2m", "--tag", "a", "--tag", "b", "--", "sh", "-c", "exit 3"
    )
    assert wrapper.wait(60) == 3
    register, pid, end = daemon.requests
    assert (register.method, register.path) == ("POST", "/v1/agents")
    assert register.body["name"] == "alpha"
    assert register.body["stall_after_seconds"] == 120
    assert register.body["tags"] == ["a", "b"]
    assert "pid" not in register.body
    agent = f"/v1/agents/{register.body['agent_id']}"
    assert (pid.method, pid.path, list(pid.body)) == ("PATCH", agent, ["pid"])
    assert (end.method, end.path, end.body) == ("PATCH", agent, {"exit_code": 3})


def test_the_agent_knows_who_it_is(start: Start, daemon: FakeDaemon) -> None:
    """Marker, notify socket and control socket are in its environment; a service manager's own words are not."""
    wrapper = start("run", "--", "env", WATCHDOG_USEC="1000", WATCHDOG_PID="1", LISTEN_FDS="1")
    seen = dict(line.split("=", 1) for line in wrapper.communicate(timeout=60)[0].splitlines() if "=" in line)
    body = daemon.requests[0].body
    assert seen["AGENT_WATCHDOG_ID"] == body["agent_id"]
    assert seen["NOTIFY_SOCKET"] == body["notify_socket"]
    assert seen["AGENT_WATCHDOG_SOCKET"] == daemon.path
    assert not {"WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS"} & set(seen)
    assert not Path(seen["NOTIFY_SOCKET"]).exists(), "the socket is removed at the end"


def test_parent_is_the_agent_in_whose_environment_it_is_started(start: Start, daemon: FakeDaemon) -> None:
    """`parent` defaults to AGENT_WATCHDOG_ID; --parent says otherwise."""
    start("run", "--", "true", AGENT_WATCHDOG_ID="f" * 32).wait(60)
    start("run", "--parent", "boss", "--", "true", AGENT_WATCHDOG_ID="f" * 32).wait(60)
    assert [r.body["parent"] for r in daemon.seen("POST")] == ["f" * 32, "boss"]


def test_an_agent_without_a_name_is_called_after_its_program(start: Start, daemon: FakeDaemon) -> None:
    """The program's name and a suffix, so that two of them can live."""
    start("run", "--", "/bin/true").wait(60)
    assert str(daemon.requests[0].body["name"]).startswith("true-")


def test_paths_are_registered_as_absolute_ones(start: Start, daemon: FakeDaemon, tmp_path: Path) -> None:
    """The daemon stands elsewhere."""
    wrapper = start("run", "--worktree", "w", "--temp-dir", "t", "--beat-file", "b", "--log", "l", "--", "true")
    _, err = wrapper.communicate(timeout=60)
    body = daemon.requests[0].body
    assert [body[key] for key in ("worktree", "temp_dir", "beat_file", "log")] == [str(tmp_path / x) for x in "wtbl"]
    assert f"--worktree {tmp_path}/w does not exist yet" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGUSR1, signal.SIGRTMIN])
def test_dies_of_the_signal_that_the_agent_died_of(start: Start, daemon: FakeDaemon, number: int) -> None:
    """Whoever waits for us sees a death by signal, not an exit with 128 + n; and no core file of ours."""
    wrapper = start("run", "--", sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(number)})")
    assert wrapper.wait(60) == -number
    assert daemon.requests[-1].body == {"exit_signal": number}


@pytest.mark.parametrize(
    ("command", "status"), [("/nonexistent/program", 127), ("no-such-program", 127), ("/tmp", 126)]
)
def test_says_why_a_command_cannot_be_run(start: Start, daemon: FakeDaemon, command: str, status: int) -> None:
    """127 and 126, as shells have them, told to the daemon as well."""
    wrapper = start("run", "--", command)
    _, stderr = wrapper.communicate(timeout=60)
    assert wrapper.returncode == status
    assert f"cannot run {command}: " in stderr
    assert daemon.requests[-1].body == {"exit_code": status}


def test_a_script_without_a_first_line_is_run_by_sh(start: Start, tmp_path: Path) -> None:
    """As execvp(3) and every shell do."""
    script = tmp_path / "script"
    script.write_text("exit 5\n")
    script.chmod(0o755)
    assert start("run", "--", "./script").wait(60) == 5


def test_the_command_waits_until_the_daemon_knows_its_pid(start: Start, daemon: FakeDaemon, tmp_path: Path) -> None:
    """Its first beat is not to come from an unknown process."""
    seen_before: list[bool] = []

    def late(request: Request) -> Answer | None:
        if request.method == "PATCH" and "pid" in request.body:
            time.sleep(0.3)  # longer than touch takes
            seen_before.append((tmp_path / "started").exists())
        return None

    daemon.answer = late
    start("run", "--", "touch", "started").wait(60)
    assert seen_before == [False]
    assert (tmp_path / "started").exists()


def test_a_daemon_that_does_not_answer_costs_seconds_not_the_agent(start: Start, daemon: FakeDaemon) -> None:
    """Registering, pid and report are bounded: 2 + 1 + 1 s."""

    def hang(_request: Request) -> Answer | None:
        time.sleep(30)
        return None

    daemon.answer = hang
    began = time.monotonic()
    assert start("run", "--", "sh", "-c", "exit 4").wait(60) == 4
    assert time.monotonic() - began < 20, "one answer was waited for"
    daemon.stop = lambda: None  # type: ignore[method-assign]  # its thread still sleeps


def test_runs_without_a_daemon_and_registers_when_it_comes(
    start: Start, absent_daemon: FakeDaemon, tmp_path: Path
) -> None:
    """One warning; the agent's pid comes with the late registration."""
    wrapper = start("run", "--name", "early", "--stall-after", "2m", "--", "sh", "-c", "echo $$ > pid; exec sleep 60")
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    absent_daemon.start()
    request = wait_for(lambda: absent_daemon.seen("POST", "/agents"))[0]
    assert (request.body["name"], request.body["pid"]) == ("early", pid)
    wrapper.terminate()
    _, stderr = wrapper.communicate(timeout=60)
    assert stderr.count("\n") == 1
    assert "no daemon at" in stderr
    assert absent_daemon.requests[-1].body == {"exit_signal": signal.SIGTERM}


def test_a_daemon_that_is_busy_is_not_called_absent(start: Start, daemon: FakeDaemon) -> None:
    """503: the agent starts, is registered as soon as it may be, and its last word is told then."""
    refuse = [True]

    def answer(_request: Request) -> Answer | None:
        return (503, {"error": "too_many_connections", "message": "close some"}) if refuse[0] else None

    daemon.answer = answer
    program = "import sdnotify, time; sdnotify.SystemdNotifier().notify('WATCHDOG=1\\nSTATUS=kept'); time.sleep(60)"
    wrapper = start("run", "--name", "g", "--", sys.executable, "-c", program)
    wait_for(lambda: len(daemon.requests) >= 2)
    refuse[0] = False
    wait_for(lambda: any(word.get("note") == "kept" for word in daemon.beats()))
    wrapper.terminate()
    said = wrapper.communicate(timeout=60)[1]
    assert "g: the daemon cannot register it yet (close some); tried again" in said
    assert "no daemon" not in said


def test_the_end_is_told_though_the_registration_was_not_answered(start: Start, daemon: FakeDaemon) -> None:
    """The daemon waits for its registry; the command has ended when the row is committed: 404 at first, then told."""
    unknown = [(404, "agent_not_found"), (503, "registry_unavailable"), (404, "agent_not_found")]

    def answer(request: Request) -> Answer | None:
        if request.method == "POST":
            return 503, {"error": "registry_unavailable", "message": "locked"}
        if unknown and "exit_code" in request.body:
            status, error = unknown.pop(0)
            return status, {"error": error, "message": "not yet"}
        return None

    daemon.answer = answer
    wrapper = start("run", "--name", "short", "--", "true")
    assert wrapper.wait(60) == 0
    ends = daemon.seen("PATCH", key="exit_code")
    assert [end.body for end in ends] == [{"exit_code": 0}] * 4
    assert daemon.requests[-1] is ends[-1]


def test_an_agent_that_nobody_knows_delays_no_end_for_long(start: Start, daemon: FakeDaemon) -> None:
    """Bounded by three seconds."""
    daemon.answer = lambda request: (503 if request.method == "POST" else 404, {"message": "no"})
    began = time.monotonic()
    assert start("run", "--", "sh", "-c", "exit 3").wait(60) == 3
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("script", "options", "status", "said"),
    [
        ("TMPDIR=/nowhere/at/all", "--temp-dir auto", 71, "--temp-dir auto: /nowhere/at/all/agent-watchdog-odd"),
        ("ulimit -f 0", "--temp-dir auto", 71, "File too large"),
        ("mkdir gone; cd gone; rmdir ../gone", "--worktree x", 64, "--worktree: x: the current directory is gone"),
        ("", "--temp-dir $'/tmp/\\xff'", 64, "--temp-dir: is not UTF-8"),
        ("", "--task $'\\xff'", 64, "--task: is not UTF-8"),
        ("ln -s $'/tmp/\\xff' link", "--worktree link", 64, "--worktree: its real path is not UTF-8"),
        ("ulimit -n 5", "", 71, "cannot start echo: Too many open files (ulimit -n, -u)"),
    ],
    ids=["no-tmpdir", "no-file-size", "no-cwd", "bytes", "bytes-of-a-task", "bytes-behind-a-link", "no-descriptors"],
)
def test_odd_surroundings_are_told_in_one_line(
    environment: dict[str, str], daemon: FakeDaemon, tmp_path: Path, script: str, options: str, status: int, said: str
) -> None:
    """No traceback, no agent, nothing left behind; sysexits.h says which kind of fault."""
    before = {path.name for path in Path("/tmp").glob("agent-watchdog-odd-*")}
    done = subprocess.run(
        ["bash", "-c", f"{script or ':'}; export TMPDIR; exec {PROGRAM} run --name odd {options} -- echo started"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    lines = [line for line in done.stderr.splitlines() if "before its first beat" not in line]
    assert (done.returncode, done.stdout) == (status, ""), done.stderr
    assert len(lines) == 1
    assert said in lines[0]
    assert {path.name for path in Path("/tmp").glob("agent-watchdog-odd-*")} == before
    if daemon.seen("POST"):
        assert daemon.requests[-1].body == {"exit_code": status}, "no ghost is left"


def test_six_descriptors_are_enough(environment: dict[str, str], daemon: FakeDaemon) -> None:
    """Standard streams, the notify socket, and two to start the agent with."""
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n 6; exec {PROGRAM} run --name few -- sh -c 'echo ok'"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
    assert daemon.requests[-1].body == {"exit_code": 0}


def test_says_from_when_on_silence_is_judged(start: Start, daemon: FakeDaemon) -> None:
    """Its hooks may promise at once. Without --stall-after, one line; with it, none."""
    assert "never killed for silence before its first beat" in start("run", "--", "true").communicate(timeout=60)[1]
    assert start("run", "--stall-after", "1m", "--", "true").communicate(timeout=60)[1] == ""


def test_a_refused_registration_starts_nothing(start: Start, daemon: FakeDaemon, tmp_path: Path) -> None:
    """A name that is taken was asked for on purpose; what we made for the agent is removed again."""
    daemon.answer = lambda _request: (409, {"error": "conflict", "message": "the name alpha is taken"})
    wrapper = start("run", "--name", "alpha", "--temp-dir", "auto", "--", "touch", "started", TMPDIR=str(tmp_path))
    _, stderr = wrapper.communicate(timeout=60)
    assert wrapper.returncode == 1
    assert "the name alpha is taken" in stderr
    assert list(tmp_path.iterdir()) == []


def test_makes_a_temp_dir_with_our_mark(start: Start, daemon: FakeDaemon, tmp_path: Path) -> None:
    """--temp-dir auto: 0700, the agent's id inside, TMPDIR set, registered."""
    wrapper = start("run", "--name", "a", "--temp-dir", "auto", "--", "sh", "-c", "echo $TMPDIR", TMPDIR=str(tmp_path))
    made = Path(wrapper.communicate(timeout=60)[0].strip())
    body = daemon.requests[0].body
    assert made.parent == tmp_path
    assert body["temp_dir"] == str(made)
    assert made.stat().st_mode & 0o7777 == 0o700
    assert (made / ".agent-watchdog").read_text() == f"{body['agent_id']}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "no command given"),
        (["--"], "no command given"),
        (["--name", "7", "--", "true"], "all digits"),
        (["--name", "all", "--", "true"], "is reserved"),
        (["--name", "a/b", "--", "true"], "only letters"),
        (["--name", "", "--", "true"], "1 to 64"),
        (["--name", "a", "--name", "b", "--", "true"], "--name is given 2 times"),
        (["--stall-after", "120", "--", "true"], "--stall-after: 120 has no unit; write 120s"),
        (["--ttl", "soon", "--", "true"], "--ttl: 'soon' is not a duration"),
        (["--ttl", "0s", "--", "true"], "more than 0"),
        (["--nmae", "a", "--", "true"], "unknown option --nmae"),
        (["--replace=1", "--", "true"], "takes no value"),
        (["--tag"], "--tag needs a value"),
    ],
)
def test_a_call_not_understood_ends_with_64(start: Start, arguments: list[str], said: str) -> None:
    """Never 2: that would tell a vendor's hook runner to block the agent."""
    wrapper = start("run", *arguments)
    _, stderr = wrapper.communicate(timeout=60)
    assert wrapper.returncode == 64
    assert said in stderr


def test_term_to_the_wrapper_ends_the_agent(start: Start, daemon: FakeDaemon) -> None:
    """What a process sends to us is the agent's."""
    wrapper = start("run", "--", "sleep", "600")
    pid = int(str(wait_for(lambda: daemon.seen("PATCH", key="pid"))[0].body["pid"]))
    wait_for(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    wrapper.terminate()
    assert wrapper.wait(60) == -signal.SIGTERM
    assert not lives(pid)


def test_each_signal_reaches_the_agent_once(start: Start, daemon: FakeDaemon, tmp_path: Path) -> None:
    """HUP, USR1, USR2, WINCH, ALRM, real-time ones; the agent is told by its wrapper alone."""
    numbers = [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGALRM, signal.SIGIO, 40]
    program = (  # not signal.pause(): a signal between the look at the flags and the call would be waited for, for ever
        "import signal\n"
        f"numbers = {[int(n) for n in numbers]}\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, numbers)\n"
        "print('ready', flush=True)\n"
        "while True: print(int(signal.sigwait(numbers)), flush=True)\n"
    )
    wrapper = start("run", "--", sys.executable, "-c", program)
    assert wrapper.stdout is not None
    assert wrapper.stdout.readline() == "ready\n"
    for number in numbers:
        wrapper.send_signal(number)
        assert wrapper.stdout.readline() == f"{int(number)}\n"
    wrapper.terminate()
    assert wrapper.communicate(timeout=60)[0] == ""


def test_the_agent_dies_with_a_killed_wrapper(start: Start, daemon: FakeDaemon) -> None:
    """PDEATHSIG: nobody would hear it any more."""
    wrapper = start("run", "--", "sleep", "600")
    pid = int(str(wait_for(lambda: daemon.seen("PATCH", key="pid"))[0].body["pid"]))
    wait_for(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n")
    wrapper.kill()
    wait_for(lambda: not lives(pid))


def test_without_a_terminal_the_agent_leads_its_own_session(start: Start, daemon: FakeDaemon) -> None:
    """Its session is then a part of its tree."""
    wrapper = start("run", "--", "sleep", "600")
    pid = int(str(wait_for(lambda: daemon.seen("PATCH", key="pid"))[0].body["pid"]))
    assert wait_for(lambda: stat_of(pid)[3] == str(pid))
    assert int(stat_of(pid)[1]) == wrapper.pid


def test_orphans_of_the_agent_come_to_the_wrapper_and_are_reaped(
    start: Start, daemon: FakeDaemon, tmp_path: Path
) -> None:
    """The wrapper is a subreaper: the tree stays one, and leaves no zombies."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    script = "(sh -c 'echo $$ > orphan; read x < fifo' & ); exec sleep 600"
    wrapper = start("run", "--", "sh", "-c", script)
    orphan = int(wait_for(lambda: (tmp_path / "orphan").exists() and (tmp_path / "orphan").read_text()))
    wait_for(lambda: stat_of(orphan)[1] == str(wrapper.pid))
    fifo.write_text("\n")
    wait_for(lambda: not stat_of(orphan))


def test_does_not_wait_for_what_the_agent_leaves(start: Start, daemon: FakeDaemon, tmp_path: Path) -> None:
    """The daemon ends leftovers; the shell that waits for us is not kept."""
    wrapper = start("run", "--", "sh", "-c", "sleep 1000 >&- 2>&- & echo $! > left; exit 6")
    try:
        assert wrapper.wait(60) == 6
    finally:
        os.kill(int((tmp_path / "left").read_text()), signal.SIGKILL)


def test_the_agent_gets_signals_as_if_we_were_not_there(start: Start) -> None:
    """Mask and dispositions: what our caller ignores or blocks, and nothing that Python ignores for itself."""
    command = ["grep", "^Sig[BI]", "/proc/self/status"]
    without_us = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    out, _ = start("run", "--", *command).communicate(timeout=60)
    assert out == without_us
    assert not int(out.split()[3], 16) & 1 << (signal.SIGPIPE - 1)


def test_what_was_ignored_stays_ignored(environment: dict[str, str], tmp_path: Path) -> None:
    """`nohup` in front of us works, and a caller that ignores SIGCHLD gets its exit status all the same."""
    # Not sh: dash takes SIGCHLD for itself.
    agent = "awk '/^SigIgn/ { print } END { exit 9 }' /proc/self/status"
    script = f"trap '' HUP CHLD; exec {PROGRAM} run -- {agent}"
    done = subprocess.run(
        ["bash", "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 9
    ignored = int(done.stdout.split()[1], 16)
    assert ignored & 1 << (signal.SIGHUP - 1)
    assert ignored & 1 << (signal.SIGCHLD - 1)


def test_no_descriptor_of_ours_leaks_into_the_agent(start: Start, daemon: FakeDaemon) -> None:
    """Standard streams only."""
    out, _ = start("run", "--", "sh", "-c", "ls /proc/$$/fd").communicate(timeout=60)
    assert out.split() == ["0", "1", "2"]


def test_standard_input_is_the_agents(environment: dict[str, str]) -> None:
    """Pipes pass us by."""
    done = subprocess.run(
        [PROGRAM, "run", "--", "cat"], env=environment, input="through\n", capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "through\n"


def test_registers_again_with_a_daemon_that_has_forgotten_it(start: Start, daemon: FakeDaemon) -> None:
    """A new registry answers 404 to a beat; the word is not lost."""
    forgot: list[Request] = []

    def forget_once(request: Request) -> Answer | None:
        if request.path.endswith("/beat") and not forgot:
            forgot.append(request)
            return 404, {"error": "agent_not_found", "message": "no such agent"}
        return None

    daemon.answer = forget_once
    again = start("run", "--name", "b", "--", "sh", "-c", f"{PROGRAM} beat --note kept; exec sleep 60")
    wait_for(lambda: len(daemon.beats()) == 2)
    registrations = daemon.seen("POST", "/agents")
    assert [("pid" in r.body) for r in registrations] == [False, True]
    assert daemon.beats()[1]["note"] == "kept"
    again.terminate()
    assert again.wait(60) == -signal.SIGTERM


def test_a_registration_whose_answer_was_lost_is_found_again(start: Start, daemon: FakeDaemon) -> None:
    """409 to our own id: the daemon took it the first time; telling the pid shows it."""
    answers = [(503, "in a moment"), (409, "known")]

    def lose(request: Request) -> Answer | None:
        if request.path == "/v1/agents" and answers:
            status, message = answers.pop(0)
            return status, {"message": message}
        return None

    daemon.answer = lose
    wrapper = start("run", "--", "sh", "-c", f"{PROGRAM} beat; exec sleep 60")
    wait_for(daemon.beats)
    assert [r.method for r in daemon.requests] == ["POST", "POST", "PATCH", "POST"]
    wrapper.terminate()
    assert wrapper.communicate(timeout=60)[1].count("\n") == 2, "not there, from when on silence is judged"


def test_a_name_that_is_taken_by_the_time_the_daemon_comes_is_told_at_the_end(start: Start, daemon: FakeDaemon) -> None:
    """The agent goes on; its screen is its own meanwhile."""

    def taken(request: Request) -> Answer | None:
        if request.path == "/v1/agents":
            return (409, {"message": "alpha is taken"}) if "pid" in request.body else (503, {"message": "in a moment"})
        return 404, {"message": "no such agent"}

    daemon.answer = taken
    wrapper = start("run", "--stall-after", "1m", "--", "sleep", "60")
    wait_for(lambda: daemon.seen("PATCH"))
    time.sleep(1.2)  # longer than a retry after a daemon that was away
    assert len(daemon.seen("POST")) == 2, "not asked again each second"
    wrapper.terminate()
    assert wrapper.communicate(timeout=60)[1].splitlines()[-1].endswith("another living agent has the name")


def test_stays_below_ten_megabytes(start: Start, daemon: FakeDaemon) -> None:
    """At most 2.5 MB over the bare interpreter, whose own size differs from version to version (7.5 MB for 3.11)."""

    def resident(pid: int) -> int:
        # Exact; VmRSS is summed up lazily since Linux 6.2.
        return int(Path(f"/proc/{pid}/smaps_rollup").read_text().partition("Rss:")[2].split()[0])

    # Without byte code the compiler's memory stays with us; installations have it.
    source = Path(__file__).parents[3] / "watchdog"
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(source)], check=True)
    bare = subprocess.Popen([sys.executable, "-I", "-S", "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert bare.stdout is not None
    bare.stdout.readline()
    bare_size = resident(bare.pid)
    bare.communicate(b"\n")
    wrapper = start("run", "--stall-after", "1m", "--", "sleep", "60")
    wait_for(lambda: daemon.seen("PATCH", key="pid"))
    assert resident(wrapper.pid) < bare_size + 2560


# Orphans that end after their parents; ends with 7 when none of them is there any more, not as a zombie either.
LEAVES_ORPHANS = """
for i in 1 2 3 4 5; do (sh -c 'echo $$ >> "$0"; exec sleep 0.1' "$0" &); done
while [ "$(wc -l < "$0")" -lt 5 ]; do sleep 0.01; done
left=500
while [ $left -gt 0 ]; do
    there=0
    while read pid; do [ -e /proc/$pid ] && there=1; done < "$0"
    [ $there = 0 ] && exit 7
    left=$((left - 1)); sleep 0.02
done
exit 1
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a pid namespace")
def test_as_pid_1_of_a_container_it_leaves_no_zombie(environment: dict[str, str], tmp_path: Path) -> None:
    """N07: an image whose first program is `run`; what its agent leaves comes to it."""
    (pids := tmp_path / "pids").touch()
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    agent = ["sh", "-c", LEAVES_ORPHANS, str(pids)]
    done = subprocess.run(
        [*unshare, PROGRAM, "run", "--", *agent], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 7, done.stderr
