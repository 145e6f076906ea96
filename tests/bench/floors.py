"""The bare limit: loops that do the same and nothing else.

floors.py watch PID...    prints each pid when it has ended
floors.py stop PID...     TERM, KILL after 2 s to who is left; prints the seconds until all have ended
floors.py hear SOCKET...  binds the sockets, reads datagrams with credentials; TERM: prints how many
"""

import os
import select
import signal
import socket
import sys
import time


def watch(held: dict[int, str], poll: select.epoll) -> None:
    while held:
        for pidfd, _ in poll.poll():
            print(held.pop(pidfd), flush=True)
            poll.unregister(pidfd)


def stop(held: dict[int, str], poll: select.epoll) -> None:
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


def hear(paths: list[str], poll: select.epoll) -> None:
    count, sockets, over = 0, {}, []
    signal.signal(signal.SIGTERM, lambda *_: over.append(True))
    for path in paths:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        made.bind(path)
        sockets[made.fileno()] = made
        poll.register(made, select.EPOLLIN)
    print("ready", flush=True)
    while not over:
        for number, _ in poll.poll(0.2, len(sockets)):
            sockets[number].recvmsg(4096, socket.CMSG_SPACE(12))
            count += 1
    print(count, flush=True)


def main() -> None:
    poll, words = select.epoll(), sys.argv[2:]
    if sys.argv[1] == "hear":
        return hear(words, poll)
    held = {os.pidfd_open(int(word)): word for word in words}
    for pidfd in held:
        poll.register(pidfd, select.EPOLLIN)
    print("ready", flush=True)
    return watch(held, poll) if sys.argv[1] == "watch" else stop(held, poll)


main()
