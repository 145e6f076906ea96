"""What signals request of the daemon, in processes of their own: the first stop counts, and a storm loses none."""

import signal
import subprocess
import sys

import pytest

BEGIN = """
import asyncio, os, signal, sys, threading, time
from watchdog.service.signal_flags import SignalFlags
me = os.getpid()
def send(number): os.kill(me, number)
async def main():
    called, woken = [], asyncio.Event()
    def call():
        called.append(1)
        woken.set()
    flags = SignalFlags(call)
    async def soon():
        await asyncio.wait_for(woken.wait(), 60)
        woken.clear()
"""
END = "\nasyncio.run(main())\n"


def said(story: str) -> "subprocess.CompletedProcess[str]":
    """The output of that process; its code is below `main`."""
    body = "".join(f"    {line}\n" for line in story.strip().splitlines())
    return subprocess.run(
        [sys.executable, "-c", BEGIN + body + END],
        capture_output=True,
        text=True,
        timeout=100,
        stdin=subprocess.DEVNULL,
    )


def test_the_first_stop_counts_and_a_reload_is_kept_beside_it() -> None:
    """The part that reloads clears it."""
    done = said("""
send(signal.SIGHUP); await soon()
print(flags.stop, flags.reload)
flags.reload = False
send(signal.SIGINT); await soon()
send(signal.SIGTERM); await soon()
print(flags.stop.name, flags.reload)
""")
    assert (done.stdout.splitlines(), done.stderr) == (["None True", "SIGINT False"], "")


def test_a_stop_among_a_storm_of_reloads_is_seen() -> None:
    """The pair was full, and the byte of a TERM was lost with it; each further one was a traceback."""
    done = said("""
for _ in range(5000): send(signal.SIGHUP)
send(signal.SIGTERM)
for _ in range(5000): send(signal.SIGHUP)
await soon()
print(flags.stop.name, flags.reload, len(called) < 100)
""")
    assert (done.stdout.splitlines(), done.stderr) == (["SIGTERM True True"], "")


@pytest.mark.parametrize(("number", "unheeded"), [("SIGTERM", True), ("SIGINT", True), ("SIGHUP", False)])
def test_a_stop_that_a_stuck_loop_does_not_handle_is_seen_by_a_thread(number: str, unheeded: bool) -> None:
    """A reload is no reason to end the process."""
    done = said(f"""
seen = []
thread = threading.Thread(target=lambda: (send(signal.{number}), time.sleep(0.1), seen.append(flags.unheeded())))
assert not flags.unheeded()
thread.start(); thread.join()
print(seen)
""")
    assert (done.stdout.splitlines(), done.stderr) == ([f"[{unheeded}]"], "")


def test_signals_after_the_end_are_ignored() -> None:
    """They would become our exit status."""
    done = said("""
flags.close()
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT): send(number)
print(flags.stop, flags.reload, signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
""")
    assert (done.returncode, done.stdout.splitlines(), done.stderr) == (0, ["None False True"], "")


def test_stop_requests_are_signals() -> None:
    """The exit timer searches for these among the pending ones."""
    from watchdog.service.signal_flags import SIGNALS, STOPS

    assert set(SIGNALS) > STOPS
    assert set(SIGNALS) - STOPS == {signal.SIGHUP}
