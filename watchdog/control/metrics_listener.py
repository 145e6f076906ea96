"""GET /metrics over TCP, where `[metrics] listen` says so. Nothing else is reachable there: no agent, no verb.

It is a help for whoever watches us and never a reason to stop: a port that is taken, or a unit that allows no TCP, is
said once and tried again with each sweep.
"""

import asyncio
import socket

from aiohttp import web

from watchdog.clock import Clock
from watchdog.config.fields import split_address
from watchdog.control.server import Speaker
from watchdog.core.admission import Bucket
from watchdog.telemetry.logger import EventLogger
from watchdog.telemetry.metrics import CONTENT_TYPE, Metrics

MOST = 16  # connections at a time; Prometheus has one, and descriptors are for pidfds
# Connections a second, of one request each: any client of the port may ask without end, its user is unknown, and an
# answer takes 2 ms of the event loop. Connections beyond are closed at once.
RATE, BURST = 20.0, 40.0
PATIENCE = 10.0  # seconds of one connection: a scrape takes milliseconds


class MetricsListener:
    """Keeps listening at the configured address."""

    def __init__(self, metrics: Metrics, log: EventLogger) -> None:
        self._metrics = metrics
        self._log = log
        self._at = ""
        self._said = ""
        self._server: asyncio.Server | None = None
        self._runner: web.AppRunner | None = None
        self._open: set[asyncio.BaseTransport] = set()
        self._clock = Clock()
        self._bucket = Bucket(BURST, self._clock.mono())

    async def keep(self, listen: str) -> None:
        """Listen at HOST:PORT ("": nowhere) from now on. Never raises; what is wrong is said once."""
        if listen == self._at:
            return
        await self.close()
        self._said = self._said if self._said.startswith(f"{listen}: ") else ""
        address = split_address(listen)
        if address is None:
            return
        try:
            await self._serve(*address)
        except OSError as error:
            await self.close()
            words = f"{listen}: {error.strerror or error}"
            if words != self._said:
                self._said = words
                self._log.event("metrics.failed", listen=listen, error=error.strerror or str(error))
            return
        self._at, self._said = listen, ""
        self._log.event("metrics.listening", listen=listen)

    async def close(self) -> None:
        """Stop serving."""
        server, runner = self._server, self._runner
        self._at, self._server, self._runner = "", None, None
        if server is not None:
            server.close()
        for transport in list(self._open):
            transport.close()
        if runner is not None:
            await runner.cleanup()

    async def _serve(self, host: str, port: int) -> None:
        listener = socket.socket(
            socket.AF_INET6 if ":" in host else socket.AF_INET,
            socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
        )
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            app = web.Application(client_max_size=1024)
            app.router.add_get("/metrics", self._answer)
            self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
            await self._runner.setup()
            inner = self._runner.server
            assert inner is not None
            loop = asyncio.get_running_loop()

            def guarded() -> asyncio.BaseProtocol:
                # No log line for each request, and none for each client that does not speak HTTP.
                return _Bounded(Speaker(inner, loop=loop, access_log=None), self)  # type: ignore[arg-type]

            self._server = await loop.create_server(guarded, sock=listener)
        except BaseException:
            listener.close()
            raise

    async def _answer(self, _: web.Request) -> web.Response:
        answer = web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})
        answer.force_close()  # what else came on this connection is not answered
        return answer

    def enter(self, transport: asyncio.BaseTransport) -> bool:
        """Whether one more connection is served."""
        self._bucket.fill(self._clock.mono(), RATE, BURST)
        if len(self._open) >= MOST or self._bucket.wait(1.0, RATE) > 0:
            return False
        self._bucket.spend(1.0, RATE)
        self._open.add(transport)
        return True

    def leave(self, transport: asyncio.BaseTransport) -> None:
        """A connection that was served has ended."""
        self._open.discard(transport)


class _Bounded(asyncio.Protocol):
    """Stands before aiohttp's protocol: few connections, and none for long."""

    def __init__(self, inner: web.RequestHandler, gate: MetricsListener) -> None:
        self._inner = inner
        self._gate = gate
        self._transport: asyncio.BaseTransport | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if not self._gate.enter(transport):
            transport.abort()
            return
        self._transport = transport
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, transport.abort)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._transport is not None:
            self._inner.data_received(data)

    def eof_received(self) -> None:
        if self._transport is not None:
            self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._transport is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._transport is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._gate.leave(self._transport)
        if self._timer is not None:
            self._timer.cancel()
        self._inner.connection_lost(exc)
