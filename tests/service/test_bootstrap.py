"""Signals and errors during the start of the two commands: Ctrl-C and TERM while modules are still being imported."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.world import BIN, World, make_world


@pytest.fixture
def world() -> Iterator[World]:
    yield from make_world()


# Replaces a module that both import, and takes its time.
SLOW = "import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("command", "option"), [("daemon", "--check"), ("client", "list")])
def test_a_signal_during_the_import_kills_it_silently(
    tmp_path: Path, command: str, option: str, number: signal.Signals
) -> None:
    """Killed by the signal, as a shell sees it; no traceback."""
    (tmp_path / "argparse.py").write_text(SLOW)
    first = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import agent_watchdogd"  # PYTHONPATH comes last
    with subprocess.Popen(
        [sys.executable, "-c", f"{first}; sys.exit(agent_watchdogd.{command}())", option],
        env={"HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # `make test &` ignores it
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(number)
        assert process.wait(60) == -number
        assert process.stderr.read() == b""


def test_signals_that_the_parent_blocked_or_ignored_reach_it(world: World) -> None:
    """TERM and HUP blocked, SIGCHLD ignored: a cleanup works, a reload too, and it stops when asked to."""
    block = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals());"
    ignore = "signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    world.start(prefix=(sys.executable, "-c", block + ignore))
    world.run("one", "true", options=("--temp-dir", "auto")).wait(60)
    assert world.wait_event("cleanup.hook_finished", hook="temp_dir")["outcome"] == "done"
    assert world.daemon is not None
    world.daemon.send_signal(signal.SIGHUP)
    world.wait_event("config.reloaded")
    assert world.stop() == 0


@pytest.mark.parametrize("allowed", [20, 100])
def test_too_few_descriptors_are_reported_before_anything_is_opened(world: World, allowed: int) -> None:
    """With 20 it ended in a traceback, with 100 no hook's child could be started; 75, as for all temporary failures."""
    world.start(wait=False, prefix=("prlimit", f"--nofile={allowed}:{allowed}"))
    assert world.daemon is not None
    assert world.daemon.wait(60) == 75
    assert world.log.read_text() == (
        f"agent-watchdogd: only {allowed} file descriptors are allowed, and 128 are the least to work with;"
        " use `ulimit -n 65536` in a shell, LimitNOFILE=65536 in a unit\n"
    )


def test_a_ready_daemon_collects_garbage_except_what_it_imported(world: World) -> None:
    tell = "import gc, os, agent_watchdogd; end = os._exit\ndef told(code):\n"
    tell += " with open(os.environ['WORLD'] + '/gc', 'w') as file:\n"
    tell += "  file.write(f'{gc.isenabled()} {gc.get_freeze_count() > 10_000}')\n end(code)\n"
    world.start(daemon=(sys.executable, "-c", f"{tell}os._exit = told\nagent_watchdogd.daemon()"))
    assert world.stop() == 0
    assert (world.dir / "gc").read_text() == "True True"


def test_an_environment_with_the_other_watchdog_is_refused(world: World, tmp_path: Path) -> None:
    """Which of the two packages of one name was installed last is unknown."""
    (tmp_path / "watchdog-6.0.0.dist-info").mkdir()
    (tmp_path / "watchdog-6.0.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: watchdog\nVersion: 6.0.0\n"
    )
    world.start(wait=False, PYTHONPATH=str(tmp_path))
    assert world.daemon is not None
    assert world.daemon.wait(60) == 78
    assert "holds watchdog 6.0.0 too" in world.log.read_text()


def test_a_start_that_fails_before_there_is_a_log_is_in_the_log_file(world: World) -> None:
    """B3: each line on stderr has the program's name, and the log file of the other settings has the event."""
    file = world.dir / "own.log"
    world.configure(log={"file": str(file), "format": "json"}, kil={"a": 1}, kill={"foo": 1})
    argv = [str(BIN / "agent-watchdogd"), "--config", str(world.config)]
    done = subprocess.run(argv, env=world.environ, capture_output=True, text=True, timeout=60)

    assert done.returncode == 78
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all(line.startswith(f"agent-watchdogd: {world.config}: kil") for line in lines)
    (event,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert event["event"] == "daemon.failed"
    assert "kill.foo: unknown key" in event["error"]

    file.unlink()
    assert subprocess.run([*argv, "--check"], env=world.environ, capture_output=True, timeout=60).returncode == 78
    assert not file.exists()  # a check changes nothing
    world.configure(log={"file": str(world.config)}, kil={"a": 1})
    before = world.config.read_bytes()
    assert subprocess.run(argv, env=world.environ, capture_output=True, timeout=60).returncode == 78
    assert world.config.read_bytes() == before  # no log is written where it must not be
