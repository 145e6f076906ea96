"""`[metrics] listen`: figures over TCP, nothing else, and never a reason to stop."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TextIO

import pytest

from tests.telemetry.test_logger import Begin, begin, lines, out
from watchdog.config.settings import parse
from watchdog.control import metrics_listener
from watchdog.control.metrics_listener import MetricsListener
from watchdog.errors import ConfigError
from watchdog.telemetry.logger import finish, get_logger
from watchdog.telemetry.metrics import Metrics

__all__ = ["begin", "out"]


def free_port(family: socket.AddressFamily = socket.AF_INET, host: str = "127.0.0.1") -> int:
    with socket.socket(family) as found:
        found.bind((host, 0))
        port: int = found.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def scraper() -> AsyncIterator[MetricsListener]:
    made = MetricsListener(Metrics(), get_logger())
    try:
        yield made
    finally:
        await made.close()


async def ask(port: int, request: str = "GET /metrics", host: str = "127.0.0.1") -> str:
    """What comes back, up to the end of the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    try:
        return (await asyncio.wait_for(reader.read(), 60)).decode()
    except ConnectionResetError:
        return ""
    finally:
        writer.close()


def test_figures_come_over_tcp_and_nothing_else_does() -> None:
    """A client of the port sees no agent and kills none."""

    async def story() -> None:
        async with scraper() as made:
            port = free_port()
            await made.keep(f"127.0.0.1:{port}")
            text = await ask(port)
            assert text.startswith("HTTP/1.1 200")
            assert 'agent_watchdog_agents{verdict="stalled"} 0.0' in text
            for request in ("GET /", "GET /agents", "GET /v1/status", "POST /kill", "GET /v1/metrics"):
                assert (await ask(port, request)).startswith("HTTP/1.1 404"), request
            assert (await ask(port, "POST /metrics")).startswith("HTTP/1.1 405")

    asyncio.run(story())


def test_ipv6_is_served() -> None:
    """In brackets, as in a URL."""
    try:
        port = free_port(socket.AF_INET6, "::1")
    except OSError:
        pytest.skip("this machine has no ::1")

    async def story() -> None:
        async with scraper() as made:
            await made.keep(f"[::1]:{port}")
            assert (await ask(port, host="::1")).startswith("HTTP/1.1 200")

    asyncio.run(story())


def test_a_port_that_is_taken_is_said_once_and_taken_when_it_is_free(begin: Begin, out: TextIO) -> None:
    """The daemon looks after agents meanwhile."""
    sink = begin("info", "json", stream=out)

    async def story() -> None:
        async with scraper() as made:
            with socket.socket() as other:
                other.bind(("127.0.0.1", 0))
                other.listen()
                port = other.getsockname()[1]
                for _ in range(3):
                    await made.keep(f"127.0.0.1:{port}")
            await made.keep(f"127.0.0.1:{port}")
            assert (await ask(port)).startswith("HTTP/1.1 200")

    asyncio.run(story())
    finish(sink)
    told = [(line["event"], line.get("error")) for line in lines(out)]
    assert told == [("metrics.failed", "Address already in use"), ("metrics.listening", None)]


def test_the_address_changes_while_running() -> None:
    """As a reload does it: the old port is closed, an empty value closes all."""

    async def story() -> None:
        async with scraper() as made:
            first, second = free_port(), free_port()
            await made.keep(f"127.0.0.1:{first}")
            await made.keep(f"127.0.0.1:{second}")
            assert (await ask(second)).startswith("HTTP/1.1 200")
            with pytest.raises(ConnectionRefusedError):
                await ask(first)
            await made.keep("")
            with pytest.raises(ConnectionRefusedError):
                await ask(second)

    asyncio.run(story())


def test_strangers_cost_neither_descriptors_nor_log_lines(
    begin: Begin, out: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen connections, none for long, and no line for what is no HTTP."""
    monkeypatch.setattr(metrics_listener, "PATIENCE", 0.5)
    sink = begin("info", "json", stream=out)

    async def story() -> None:
        async with scraper() as made:
            port = free_port()
            await made.keep(f"127.0.0.1:{port}")
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
            ended = [await asyncio.wait_for(reader.read(), 60) for reader, _ in silent]
            assert ended == [b""] * 30, "each was closed by us"
            for _, writer in silent:
                writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\x16\x03\x01 hello\r\n\r\n")
            await asyncio.wait_for(reader.read(), 60)
            writer.close()
            assert (await ask(port)).startswith("HTTP/1.1 200")

    asyncio.run(story())
    finish(sink)
    assert [line["event"] for line in lines(out)] == ["metrics.listening"]


def test_a_client_that_asks_without_end_is_answered_a_few_times_a_second(begin: Begin, out: TextIO) -> None:
    """Its user is unknown. Seen at bc51ea4: one user with 32 clients had root's `kill` take 4.8 s, `status` 0.7."""
    sink = begin("info", "json", stream=out)

    async def one(port: int) -> int:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
            said = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            return said.count(b"HTTP/1.1 200")
        return 0

    async def story() -> None:
        async with scraper() as made:
            port = free_port()
            await made.keep(f"127.0.0.1:{port}")
            began = time.monotonic()
            answers = [await one(port) for _ in range(200)]
            most = metrics_listener.BURST + metrics_listener.RATE * (time.monotonic() - began) + 1
            assert max(answers) == 1, "the other requests of a connection are not answered"
            assert metrics_listener.BURST <= sum(answers) <= min(most, 150)

    asyncio.run(story())
    finish(sink)


@pytest.mark.parametrize(
    "value", ["127.0.0.1:0", "127.0.0.1:65536", "9477", "prometheus.local:9477", "[::1]", "::1:9477"]
)
def test_an_address_that_is_none_is_refused_at_the_start(value: str) -> None:
    """Port 0 would be another one each time; a name would make the daemon wait for DNS."""
    with pytest.raises(ConfigError, match=r"metrics\.listen: .* must be HOST:PORT"):
        parse(f'[metrics]\nlisten = "{value}"\n'.encode(), "x")


def test_a_good_address_is_taken() -> None:
    """One of each kind."""
    for value in ("127.0.0.1:9477", "localhost:1", "[::]:65535", ""):
        parse(f'[metrics]\nlisten = "{value}"\n'.encode(), "x")
