"""Who still holds a datagram socket: real processes."""

import sys

from tests.processes.conftest import Family, needs_root
from watchdog.processes.channels import hold_datagram_sockets

HOLDS = (
    "import socket, time; s = socket.socket(socket.AF_UNIX, socket.SOCK_{}); {}\n"
    "print('up', flush=True); time.sleep(300)"
)


def test_who_keeps_a_socket_of_that_kind_open_holds_one(family: Family) -> None:
    """One that makes a socket for each word holds none between, and a stream is another kind."""
    holds, closed = family.python(HOLDS.format("DGRAM", "")), family.python(HOLDS.format("DGRAM", "s.close()"))
    stream = family.python(HOLDS.format("STREAM", ""))
    for process in (holds, closed, stream):
        assert family.line(process) == "up"
    assert hold_datagram_sockets((holds.pid, closed.pid, stream.pid)) == {holds.pid}


def test_who_is_gone_holds_none(family: Family) -> None:
    """Its number says nothing."""
    ended = family.start("true")
    ended.wait()
    assert hold_datagram_sockets((ended.pid,)) == frozenset()


@needs_root
def test_one_in_a_network_namespace_of_its_own_is_seen_there(family: Family) -> None:
    """Sockets are listed by namespace: each process is compared with its own list."""
    inside = family.start("unshare", "--net", sys.executable, "-c", HOLDS.format("DGRAM", ""))
    outside = family.python(HOLDS.format("STREAM", ""))
    for process in (inside, outside):
        assert family.line(process) == "up"
    assert hold_datagram_sockets((outside.pid, inside.pid)) == {inside.pid}
