"""A process that does what it is told: `python -I -S puppet.py SOCKET NUMBER`.

It and all that it starts connect to the socket, say number and pid, and answer each order when it is done. When whoever
listens there is gone, so are they.
"""

import os
import signal
import socket
import sys
from contextlib import suppress


def connect(path: str, number: str) -> socket.socket:
    """Say who is here."""
    speaker = socket.socket(socket.AF_UNIX)
    speaker.connect(path)
    speaker.sendall(f"{number} {os.getpid()}\n".encode())
    return speaker


def obey(path: str, number: str) -> None:
    """Until it is told to exit, or nobody is there any more."""
    speaker = connect(path, number)
    while order := speaker.recv(4096).decode().split():
        verb, words = order[0], order[1:]
        if verb == "exit":
            os._exit(int(words[0]))
        if verb == "deaf":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif verb == "name":
            with open("/proc/self/comm", "w") as comm:
                comm.write(" ".join(words))
        elif verb == "beat":
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as beat, suppress(BlockingIOError):
                # Ten that nobody has read yet fill a socket (net.unix.max_dgram_qlen): one more would say nothing new.
                beat.sendto(b"WATCHDOG=1", socket.MSG_DONTWAIT, words[0])
        elif (child := fork(verb)) == 0:
            speaker.close()
            if verb in ("bare", "agent"):  # executed: with an environment of its own
                environ = {"AGENT_WATCHDOG_ID": words[1]} if verb == "agent" else {}
                os.execve(sys.executable, [sys.executable, "-I", "-S", __file__, path, words[0]], environ)
            obey(path, words[0])
            os._exit(0)
        elif verb == "double":
            os.waitpid(child, 0)
        speaker.sendall(b"done\n")


def fork(verb: str) -> int:
    """As fork(2); the child, or with `double` the grandchild, in a session of its own where the verb says so."""
    child = os.fork()
    if child == 0 and verb != "fork":
        os.setsid()
        if verb == "double" and os.fork():
            os._exit(0)
    return child


if __name__ == "__main__":
    obey(sys.argv[1], sys.argv[2])
