"""Beats as many as one asks for, from one process:  flood.py RATE SECONDS SOCKET...

Sends RATE beats a second round the sockets and never waits: what a full queue refuses is counted and not repeated.
Prints how many were accepted and how many refused.
"""

import os
import socket
import sys
import time

SLICE = 0.002  # seconds between two bundles


def main() -> None:
    rate, seconds = float(sys.argv[1]), float(sys.argv[2])
    speakers = []
    for path in sys.argv[3:]:
        while not os.path.exists(path):
            time.sleep(0.05)
        speakers.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK))
        speakers[-1].connect(path)
    sent = refused = 0
    began = time.monotonic()
    while (passed := time.monotonic() - began) < seconds:
        while sent < rate * passed:
            try:
                speakers[sent % len(speakers)].send(b"WATCHDOG=1")
            except BlockingIOError:
                refused += 1
            sent += 1
        time.sleep(SLICE)
    print(sent - refused, refused, flush=True)


main()
