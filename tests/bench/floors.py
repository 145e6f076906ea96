"""The bare limit: loops that do the same and nothing else.  floors.py watch|stop|kill PID..."""

import os
import select
import signal
import sys
import time


def main() -> None:
    poll = select.epoll()
    held = {os.pidfd_open(int(word)): word for word in sys.argv[2:]}
    for pidfd in held:
        poll.register(pidfd, select.EPOLLIN)
    print("ready", flush=True)
    if sys.argv[1] == "watch":
        while held:
            for pidfd, _ in poll.poll():
                print(held.pop(pidfd), flush=True)
                poll.unregister(pidfd)
    began = time.monotonic()
    for sig, grace in ((signal.SIGTERM, 2.0), (signal.SIGKILL, 60.0)):
        for pidfd in held:
            signal.pidfd_send_signal(pidfd, sig)
        deadline = time.monotonic() + grace
        while held and (left := deadline - time.monotonic()) > 0:
            for pidfd, _ in poll.poll(left):
                del held[pidfd]
                poll.unregister(pidfd)
    print(time.monotonic() - began, flush=True)


main()
