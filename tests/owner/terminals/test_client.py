"""A terminal's own program: its answer, its end, and what it can reach; attacks: tests/attacks/test_terminals.py."""

import os
import sys
import threading
from pathlib import Path

import pytest

from watchdog.owner.terminals import client


@pytest.fixture
def held(tmp_path: Path) -> int:
    """Any file in place of a socket."""
    return os.open(tmp_path, os.O_PATH | os.O_CLOEXEC)


def run(code: str, held: int, given: bytes = b"", seconds: float = 60.0, limit: int = 1000) -> client.ClientResult:
    return client.run([sys.executable, "-c", code], {"WORD": "x"}, held, given, seconds, limit)


def test_what_it_prints_and_how_it_ends(held: int) -> None:
    said = run("import os, sys; print(sys.stdin.read(), os.environ['WORD']); sys.exit(3)", held, b"given")
    assert (said.status, said.output, said.late, said.missing) == (3, b"given x\n", False, False)
    failed = run("import sys; print('words', file=sys.stderr); sys.exit(1)", held)
    assert (failed.status, failed.error) == (1, "words")
    killed = run("import os; os.kill(os.getpid(), 9)", held)
    assert (killed.status, killed.late) == (-9, False)
    os.close(held)


def test_it_has_no_terminal_and_four_descriptors(held: int) -> None:
    """In a session of its own; the fifth is the listing itself."""
    said = run("import os; print(os.getsid(0) == os.getpid(), sorted(map(int, os.listdir('/proc/self/fd'))))", held)
    assert said.output == b"True [0, 1, 2, 3, 4]\n"
    said = run("import os\ntry: os.open('/dev/tty', 0)\nexcept OSError as e: print(e.errno)", held)
    assert said.output == b"6\n"  # ENXIO
    said = run("import os; print(os.readlink('/proc/self/fd/3'))", held)
    assert said.output.decode().strip() == os.readlink(f"/proc/self/fd/{held}")
    os.close(held)


def test_one_that_is_not_there_is_missing(held: int) -> None:
    said = client.run(["no-such-program"], {"PATH": "/nowhere"}, held, b"", 60, 1000)
    assert (said.missing, said.error) == (True, "No such file or directory")
    os.close(held)


def test_one_that_is_late_is_ended_and_output_is_limited(held: int) -> None:
    late = run("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(1000)", held, seconds=0.3)
    assert (late.late, late.status) == (True, None)
    assert len(run("print('x' * 100000)", held, limit=1000).output) == 1000
    os.close(held)


def test_any_number_of_descriptors_may_be_open(held: int) -> None:
    """In a busy helper the socket's has any number, such as those that a child's are moved by."""
    opened = [os.dup(held) for _ in range(120)]
    for number in (100, 101, 102, 103):
        assert run("import os; print(os.readlink('/proc/self/fd/3'))", number).output
    for one in [*opened, held]:
        os.close(one)


def test_threads_ask_beside_each_other(held: int) -> None:
    """As the calls of a helper do: each gets its own answer."""
    answers: dict[int, bytes] = {}

    def ask(number: int) -> None:
        answers[number] = run(f"print({number})", held).output

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: f"{number}\n".encode() for number in range(12)}
    os.close(held)
