"""A crowd of light processes, forks of one interpreter:  sleepers.py COUNT [deaf] [lead] [every=SECONDS SOCKET...]

Prints their pids in one line. With `every` each beats on its own socket (in the order of the pids) once it is there.
Ends all of them when stdin ends. `deaf`: they ignore TERM, INT and HUP. `lead`: each
leads a process group of its own.
"""

import gc
import os
import random
import signal
import socket
import sys
import time

POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def live(path: str | None, every: float) -> None:
    """One process: sleeps for ever, or beats."""
    while path is None:
        time.sleep(100_000)
    while not os.path.exists(path):
        time.sleep(0.5)
    speaker = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    due = time.monotonic() + random.random() * every
    while True:
        time.sleep(max(0.0, due - time.monotonic()))
        due += every
        try:
            speaker.sendto(b"WATCHDOG=1", path)
        except OSError as error:
            os.write(2, f"refused: {error}\n".encode())


def main() -> None:
    count, words = int(sys.argv[1]), sys.argv[2:]
    deaf = "deaf" in words
    every = next((float(word[6:]) for word in words if word.startswith("every=")), 0.0)
    sockets = [word for word in words if word.startswith("/")]
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    pids, held = [], []
    for number in range(count):
        pid = os.fork()
        if pid == 0:
            for sig in POLITE:
                signal.signal(sig, signal.SIG_IGN if deaf else signal.SIG_DFL)
            if "lead" in words:
                os.setpgid(0, 0)
            os.close(0)
            os.closerange(3, 8192)
            live(sockets[number] if sockets else None, every)
        pids.append(pid)
        held.append(os.pidfd_open(pid))
    print(*pids, flush=True)
    sys.stdin.read()
    for pidfd in held:
        try:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        except ProcessLookupError:
            continue


main()
