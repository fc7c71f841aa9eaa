"""The serving service: a stream to many clients over websockets, from one reading of it.

Rules:

1. The stream is read once, into a ring of recent records that all clients share; :mod:`.serving.session` says what
   happens to a client that is older, or slow.
2. A client shows a token where the server has one: ``Authorization: Bearer``, compared in constant time. Tokens in a
   file may be changed while clients are connected (:mod:`.serving.tokens`). No token is ever printed. Browsers are
   refused (a page from anywhere could read along, else).
3. Memory is bounded: the ring, a few sources for older positions, a frame for each client, and so many clients.
4. What is served (Kafka) may go away and come back; clients wait on their connections.
5. Who asks by plain HTTP is told how it goes: ``/health`` (200 while what is served is being read, else 503), and
   ``/metrics`` for Prometheus, with the token where there is one.

The protocol is in :mod:`cardinal.transports.websocket.wire`.
"""

from __future__ import annotations

import asyncio
import errno
import http
import importlib
import logging
import os
import ssl
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cardinal.errors import ConfigurationError, MissingExtraError, PortInUseError
from cardinal.server.serving.counts import Counts
from cardinal.server.serving.errands import Errands
from cardinal.server.serving.metrics import ServeProgress, exposition
from cardinal.server.serving.session import Session
from cardinal.server.serving.streams import Streams
from cardinal.server.serving.tokens import Tokens
from cardinal.transports.websocket.frames import CLIENT_FRAME_MAX, SUBPROTOCOL, CloseCode
from cardinal.transports.websocket.quiet import QuietLogger

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from cardinal.transports import TransportUrl
    from cardinal.transports.registry import Topics

__all__ = ["DEFAULT_PORT", "ServeProgress", "ServeService", "ServeSettings"]

DEFAULT_PORT: Final = 8765
_WATCH_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 5.0
_FAILED_SECONDS: Final = 1.0
"""To release what was opened where the beginning failed, or was broken off."""

_WINDOW_BITS: Final = 12
_BEARER: Final = "Bearer "
_METRICS: Final = "/metrics"
_HEALTH: Final = "/health"
_HEALTHY: Final = (http.HTTPStatus.OK, "serves\n")
_SICK: Final = (http.HTTPStatus.SERVICE_UNAVAILABLE, "what is to be served is not read now\n")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """How to serve.

    Attributes:
        host, port: where to listen; port 0 takes any.
        tokens: one of them has to be shown; none: everybody may read.
        token_file: a file that holds them, one a line, and may change; then ``tokens`` count for nothing.
        certificate, key: PEM files, for ``wss``; ``key`` may be in the certificate's file.
        compression: whether a client that asks for permessage-deflate gets it.
        ring_bytes: recent records that are kept in memory for all.
        clients_max: clients at once.
        errands_max: sources at once for clients that are older than the ring.
        slow_seconds: a client that has fallen out of the ring and took nothing for so long is closed.
        ping_seconds: how often clients are looked for; each has as long to answer.

    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    tokens: tuple[str, ...] = field(default=(), repr=False)
    token_file: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    compression: str = "deflate"
    ring_bytes: int = 64 << 20
    clients_max: int = 256
    errands_max: int = 4
    slow_seconds: float = 60.0
    ping_seconds: float = 20.0


class ServeService:
    """See the module.

    Arguments:
        url: what is served.
        app: the application whose topics these are.
        settings: how.

    """

    def __init__(self, url: str | TransportUrl, app: Topics, settings: ServeSettings) -> None:
        try:
            self._library: Any = importlib.import_module("websockets.asyncio.server")
            self._errors: Any = importlib.import_module("websockets.exceptions")
            self._deflate: Any = importlib.import_module("websockets.extensions.permessage_deflate")
            self._connection: Any = importlib.import_module("cardinal.server.serving.connection")
        except ImportError:
            raise MissingExtraError("cardinal serve", "server") from None
        self._url = url
        self._app = app
        self._settings = settings
        self._tokens = Tokens(settings.tokens, settings.token_file)
        self._counts = Counts()
        self._streams: Streams | None = None
        self._errands: Errands | None = None
        self._server: Any = None
        self._connections = 0

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(next(iter(self._server.sockets)).getsockname()[1])

    @property
    def reading(self) -> bool:
        """Whether what is served is being read: all that /health asks, of whom everybody may ask."""
        return self._streams is not None and self._streams.main.reading

    @property
    def progress(self) -> ServeProgress:
        """What it does."""
        errands, streams, counts = self._errands, self._streams, self._counts
        clients = tuple(counts.clients)
        return ServeProgress(
            clients=len(clients),
            catching_up=errands.under_way + errands.waiting if errands else 0,
            waiting=errands.waiting if errands else 0,
            stalled=sum(client.plan.wanted != frozenset() and client.credit <= 0 for client in clients),
            records=streams.main.records if streams else 0,
            bytes=counts.bytes,
            frames=counts.frames,
            slow=counts.slow,
            refused=counts.refused,
            unauthorized=counts.unauthorized,
            ring_bytes=streams.main.ring.size if streams else 0,
            unsent_bytes=sum(client.unsent() for client in clients),
            lag_records=max((client.lag() for client in clients), default=0),
            reading=self.reading,
        )

    async def start(self) -> None:
        """Open what is served, then listen.

        Raises:
            ConfigurationError: certificate, key or the file of tokens cannot be used.
            PortInUseError: another process listens there.
            CardinalError: see :func:`cardinal.transports.open_source`.

        """
        tls = self._context()
        await self._tokens.open()
        self._streams = Streams(
            self._url,
            self._app,
            ring_bytes=self._settings.ring_bytes,
            closed_error=self._errors.ConnectionClosed,
        )
        self._errands = Errands(self._settings.errands_max)
        try:
            await self._streams.start()
            self._server = await self._listen(tls)
        except BaseException:
            await self._release(_FAILED_SECONDS)
            raise

    async def run(self) -> NoReturn:
        """Serve until cancelled, or until what is served is gone for good. CardinalError: why."""
        streams = self._started()
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if streams.main.error is not None:
                raise streams.main.error

    async def stop(self) -> None:
        """Send the clients away, and release everything, as far as that goes in a few seconds. May be called twice."""
        await self._release(_STOP_SECONDS)

    # --- inside --------------------------------------------------------------------------------------------------

    async def _release(self, seconds: float) -> None:
        server, self._server = self._server, None
        streams, self._streams = self._streams, None
        errands, self._errands = self._errands, None
        try:
            async with asyncio.timeout(seconds):
                if server is not None:
                    server.close(code=1001, reason="the server stops")
                    await server.wait_closed()
                await asyncio.gather(*(each.stop() for each in (streams, errands, self._tokens) if each is not None))
        except TimeoutError:
            _log.warning("what is served does not answer: its connections are left as they are")

    def _started(self) -> Streams:
        if self._streams is None:
            raise ConfigurationError("the service is not started")
        return self._streams

    async def _listen(self, tls: ssl.SSLContext | None) -> Any:  # noqa: ANN401 - the library is imported late
        settings = self._settings
        try:
            return await self._library.serve(
                self._serve,
                settings.host,
                settings.port,
                ssl=tls,
                origins=[None],
                subprotocols=[SUBPROTOCOL],
                compression=None,
                extensions=self._extensions(),
                process_request=self._admit,
                server_header="cardinal",
                ping_interval=None,
                close_timeout=self._connection.CLOSE_SECONDS,
                max_size=CLIENT_FRAME_MAX,
                max_queue=2,
                logger=QuietLogger(__name__),
                create_connection=partial(self._connection.Connection, ping_seconds=settings.ping_seconds),
            )
        except OSError as error:
            where = f"{settings.host}:{settings.port}"
            known = error.errno is not None and error.errno in errno.errorcode  # asyncio says more than is of use
            reason = os.strerror(error.errno or 0) if known else error.strerror
            raise PortInUseError(
                f"cannot listen on {where}: {reason}; give another address by --listen", port=settings.port
            ) from None

    def _extensions(self) -> Sequence[Any]:
        if self._settings.compression != "deflate":
            return []
        # Small windows: memory is needed for every client that asks for it.
        return [
            self._deflate.ServerPerMessageDeflateFactory(
                server_max_window_bits=_WINDOW_BITS, compress_settings={"memLevel": 5, "level": 1}
            )
        ]

    def _context(self) -> ssl.SSLContext | None:
        settings = self._settings
        if settings.certificate is None:
            if settings.key is not None:
                raise ConfigurationError("a key is of no use without its certificate: give both", setting="key-file")
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Clients that read and write on two threads may stand still where a ticket comes while they write, and none of
        # ours ever shows one.
        context.num_tickets = 0
        try:
            context.load_cert_chain(settings.certificate, settings.key, password="")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            if isinstance(error, ssl.SSLError):  # OpenSSL's own words say where in its code
                reason = "they are no certificate and its key without a password, in PEM"
            raise ConfigurationError(
                f"certificate {settings.certificate} and its key cannot be used: {reason}", setting="cert-file"
            ) from None
        return context

    async def _admit(self, connection: Any, request: Any) -> Any:  # noqa: ANN401 - the same
        """Look at a request before it becomes a client: an HTTP response refuses it."""
        plain = request.headers.get("Upgrade") is None
        if plain and request.path == _HEALTH:
            return connection.respond(*_HEALTHY if self.reading else _SICK)
        if self._tokens.wanted and not await self._tokens.know(_shown(request.headers.get_all("Authorization"))):
            self._counts.unauthorized += 1
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "show the token of this server\n")
        if plain and request.path == _METRICS:
            return connection.respond(http.HTTPStatus.OK, exposition(self.progress))
        if self._connections >= self._settings.clients_max:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "no room for another client\n")
        return None

    async def _serve(self, socket: Any) -> None:  # noqa: ANN401 - the same
        streams, errands = self._streams, self._errands
        if streams is None or errands is None:
            await socket.close(1001, "the server stops")
            return
        if self._connections >= self._settings.clients_max:  # many knocked at the same time
            await socket.close(CloseCode.UPSTREAM, "no room for another client")
            return
        self._connections += 1
        began = time.monotonic()
        watch = asyncio.create_task(socket.watch())
        try:
            session = Session(socket, streams, errands, self._counts, slow_seconds=self._settings.slow_seconds)
            await session.run()
        finally:
            watch.cancel()
            self._connections -= 1
            _log.info("a client left after %.1f s", time.monotonic() - began)


def _shown(headers: Sequence[str]) -> bytes:
    """The token in a request's header; nothing where there is none, or more than one."""
    shown = headers[0] if len(headers) == 1 else ""
    return shown.removeprefix(_BEARER).encode("utf-8", "surrogateescape") if shown.startswith(_BEARER) else b""
