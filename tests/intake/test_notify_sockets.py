"""The daemon's notify sockets: senders are identified, and no message is lost or starved."""

import asyncio
import itertools
import os
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator

import pytest

from watchdog.intake.notify_sockets import REST, Message, NotifySockets


@pytest.fixture
def directory() -> Iterator[str]:
    """A short path: a unix socket's has 108 bytes."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        yield made


def listen(
    directory: str, talk: Callable[[dict[str, str]], object], until: Callable[[list[tuple[str, Message]]], bool]
) -> list[tuple[str, Message]]:
    """Open sockets for agents a and b, let `talk` send in a thread, return the received messages."""
    heard: list[tuple[str, Message]] = []

    async def main() -> None:
        sockets = NotifySockets(directory, lambda agent, message: heard.append((agent, message)))
        paths = {name: sockets.open(name, os.geteuid()) for name in ("a", "b")}
        speaker = threading.Thread(target=talk, args=(paths,))
        speaker.start()
        async with asyncio.timeout(60):
            while not until(heard):
                await asyncio.sleep(0.02)
        await asyncio.to_thread(speaker.join)
        sockets.close("a")
        sockets.close_all()
        assert not os.path.exists(paths["a"])
        assert os.path.exists(paths["b"])

    asyncio.run(main())
    return heard


def send(path: str, data: bytes = b"WATCHDOG=1") -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
        speaker.sendto(data, path)


def test_the_kernel_names_the_sender_even_after_its_exit(directory: str) -> None:
    """A short-lived systemd-notify is attributed by its agent's socket, with uid and pid."""
    heard = listen(
        directory,
        lambda paths: (
            subprocess.run(
                ["systemd-notify", "--no-block", "WATCHDOG=1"],
                env={**os.environ, "NOTIFY_SOCKET": paths["a"]},
                check=True,
            )
            and None
        ),
        lambda heard: len(heard) == 1,
    )

    ((agent, message),) = heard
    assert ("a", b"WATCHDOG=1", os.geteuid()) == (agent, message.data, message.uid)
    assert message.pid > 1


def test_a_barrier_is_closed_so_that_systemd_notify_returns(directory: str) -> None:
    """`systemd-notify` waits until its BARRIER=1 descriptor is closed; it must not wait its full 5 s."""
    heard = listen(
        directory,
        lambda paths: (
            subprocess.run(
                ["systemd-notify", "WATCHDOG=1"], env={**os.environ, "NOTIFY_SOCKET": paths["a"]}, check=True, timeout=4
            )
            and None
        ),
        lambda heard: len(heard) == 2,
    )

    assert [message.data for _, message in heard] == [b"WATCHDOG=1", b"BARRIER=1"]


def test_a_flood_on_one_socket_loses_nothing_on_another(directory: str) -> None:
    """200 of 200 beats of b arrive while a is flooded without pause."""
    done = threading.Event()

    def talk(paths: dict[str, str]) -> None:
        def flood() -> None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
                speaker.setblocking(False)
                while not done.is_set():
                    try:
                        speaker.sendto(b"WATCHDOG=1", paths["a"])
                    except BlockingIOError:
                        continue

        flooder = threading.Thread(target=flood)
        flooder.start()
        for _ in range(200):
            send(paths["b"])
        done.set()
        flooder.join()

    heard = listen(directory, talk, lambda heard: done.is_set() and sum(agent == "b" for agent, _ in heard) >= 200)

    assert sum(agent == "b" for agent, _ in heard) == 200


def test_a_lone_message_is_read_at_once(directory: str) -> None:
    """No further read follows; a message before the rest is over is read then."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        heard: list[float] = []
        looks: list[float] = []
        sockets = NotifySockets(directory, lambda agent, message: heard.append(loop.time()))
        drain = sockets.drain_all

        def look() -> bool:
            looks.append(loop.time())
            return drain()

        sockets.drain_all = look  # type: ignore[method-assign]
        path = sockets.open("a", os.geteuid())

        async def until(count: int) -> None:
            async with asyncio.timeout(10):
                while len(heard) < count:
                    await asyncio.sleep(0.001)

        began = loop.time()
        send(path)
        await until(1)
        if loop.time() - began < REST:  # a machine that stood still meanwhile proves nothing
            await asyncio.sleep(2 * REST)
            assert len(looks) == 1
        for _ in range(3):
            send(path)
            await until(len(heard) + 1)
        assert all(later - sooner >= REST - 0.001 for sooner, later in itertools.pairwise(looks))
        sockets.close_all()

    asyncio.run(main())


def test_an_oversized_datagram_is_marked_and_costs_nothing_else(directory: str) -> None:
    """Over 4096 bytes: reported as truncated; the next one is received as usual."""

    def talk(paths: dict[str, str]) -> None:
        send(paths["a"], b"X" * 9000)
        send(paths["a"])

    heard = listen(directory, talk, lambda heard: len(heard) == 2)

    assert [message.truncated for _, message in heard] == [True, False]


def test_many_descriptors_are_all_closed(directory: str) -> None:
    """A message with more descriptors than there is room for leaks none."""

    def talk(paths: dict[str, str]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
            speaker.connect(paths["a"])
            for _ in range(5):
                socket.send_fds(speaker, [b"WATCHDOG=1"], [0] * 200)

    before = len(os.listdir("/proc/self/fd"))
    listen(directory, talk, lambda heard: len(heard) == 5)

    assert before == len(os.listdir("/proc/self/fd"))


def test_descriptors_in_a_message_are_never_ours_to_close(directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """close(2) calls the file's own `flush`: a FUSE server that never answers would stop the loop.

    The other end of a pipe still sees them closed, which is what BARRIER=1 waits for.
    """
    ours, theirs = os.pipe()
    closed: list[int] = []
    close = os.close

    def watched(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)

    def talk(paths: dict[str, str]) -> None:
        monkeypatch.setattr(os, "close", watched)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaker:
            speaker.connect(paths["a"])
            socket.send_fds(speaker, [b"BARRIER=1"], [theirs])
        close(theirs)
        assert os.read(ours, 1) == b""

    heard = listen(directory, talk, lambda heard: len(heard) == 1)
    close(ours)
    assert heard[0][1].uid == os.geteuid() and heard[0][1].pid == os.getpid()
    assert closed == []


class Rationed:
    """So many messages of one uid per read."""

    def __init__(self, most: int) -> None:
        self.most = self.left = most
        self.behind = False

    def renew(self) -> bool:
        behind, self.behind, self.left = self.behind, False, self.most
        return behind

    def take(self, owner_uid: int) -> bool:
        self.behind = self.behind or not self.left
        self.left -= bool(self.left)
        return not self.behind


def test_messages_beyond_a_budget_are_read_later_and_each_socket_gets_its_turn(directory: str) -> None:
    """Ten sockets with eight messages each, four per read: no socket waits for another's queue, no message is lost."""
    heard: list[tuple[str, Message]] = []

    async def main() -> None:
        sockets = NotifySockets(directory, lambda agent, message: heard.append((agent, message)), budget=Rationed(4))
        paths = [sockets.open(str(number), os.geteuid()) for number in range(10)]
        for path in paths:
            for number in range(8):
                send(path, b"X_AGENT_PROGRESS=%d" % number)
        for look in range(1, 21):
            assert sockets.drain_all()
            assert len(heard) == 4 * look
            if look == 3:
                assert len({agent for agent, _ in heard}) == 10
        assert not sockets.drain_all()
        sockets.close_all()

    asyncio.run(main())
    for agent in map(str, range(10)):
        words = [message.data for name, message in heard if name == agent]
        assert words == [b"X_AGENT_PROGRESS=%d" % number for number in range(8)]


def test_a_socket_whose_directory_was_removed_is_closed_all_the_same(directory: str) -> None:
    """Logout removes runtime directories; an agent's row is still closed."""

    async def main() -> None:
        sockets = NotifySockets(directory, lambda agent, message: None)
        os.unlink(sockets.open("a", os.geteuid()))
        sockets.close("a")

    asyncio.run(main())
