"""Serving service: a stream sent to many clients over websockets, read once.

Rules:

1. The stream is read once, into a ring of recent records that all clients share; for older and slow clients see
   :mod:`.client`.
2. With tokens, a client sends one in ``Authorization: Bearer``, compared in constant time. The token file is read at
   every handshake. No token is ever logged. Browsers are refused: any page could connect otherwise.
3. Memory is bounded: the ring, the slots of catch-up reads, two messages per client, the number of clients.
4. Clients keep their connections during an outage of the stream.

The protocol is :mod:`cardinal_relay.transport.protocol`.
"""

from __future__ import annotations

import asyncio
import hmac
import http
import logging
import ssl
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import WeakSet

try:
    from websockets.asyncio.server import Server, ServerConnection, serve
    from websockets.typing import Subprotocol
except ImportError as absent:
    from cardinal.errors import MissingExtraError

    raise MissingExtraError("cardinal serve", "server") from absent

from cardinal.config.listening import refusal
from cardinal.config.secrets import read_secret
from cardinal.errors import CardinalError, ConfigurationError, PortInUseError
from cardinal_relay.transport.connection import LIBRARY_LOGGER
from cardinal_relay.transport.protocol import REQUEST_MAX, SUBPROTOCOL, CloseCode

from .catch_up import CatchUpReads
from .client import CLOSE_SECONDS, Client
from .settings import ServeSettings
from .status import ServeStatus, Totals
from .streams import Streams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from websockets.http11 import Request, Response

    from cardinal.transports import TransportUrl
    from cardinal.transports.registry import Topics

_WATCH_SECONDS: Final = 0.5
_STOP_SECONDS: Final = 5.0
_FAILED_SECONDS: Final = 1.0
_ACCEPTING_STEPS: Final = 3
"""Steps of the loop from accepting a connection to its protocol's start."""
_BEARER: Final = "Bearer "

_log = logging.getLogger("cardinal.serve")


class ServeService:
    """Service of one stream.

    Arguments:
        url: the stream.
        settings: settings of the server.

    Raises:
        ConfigurationError: certificate or key cannot be used.

    """

    def __init__(self, url: str | TransportUrl, settings: ServeSettings) -> None:
        self._totals = Totals()
        self._catch_up = CatchUpReads(settings.catch_up_max)
        self._url = url
        self._settings = settings
        self._streams: Streams | None = None
        self._clients: set[Client] = set()
        self._accepted: WeakSet[ServerConnection] = WeakSet()
        self._server: Server | None = None
        self._port = settings.port
        self._waits_for = "the server is not started"
        self._tls = _tls_context(settings)

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self._port

    @property
    def waits_for(self) -> str:
        """A sentence while the stream is not being read, empty otherwise. May be called on any thread."""
        streams = self._streams
        return streams.main.waits_for if streams is not None else self._waits_for

    def wait_for(self, error: CardinalError) -> None:
        """Report the reason why the stream cannot be opened yet, and log it once."""
        if self._waits_for != str(error):
            self._waits_for = str(error)
            _log.warning("waiting for the stream: %(error)s", {"kind": "waits", "error": error})

    def status(self) -> ServeStatus:
        """Current numbers. Called on the event loop."""
        main = self._streams.main if self._streams is not None else None
        totals, clients, now_ms = self._totals, tuple(self._clients), time.time() * 1000
        lags = [client.lag(now_ms) for client in clients]

        def age(timestamp_ms: int) -> float:
            return max(0.0, now_ms - timestamp_ms) / 1000 if timestamp_ms else 0.0

        return ServeStatus(
            clients=len(clients),
            clients_without_credit=sum(client.reads and client.credit <= 0 for client in clients),
            sent_bytes_total=totals.bytes,
            sent_records_total=totals.records,
            unsent_bytes=sum(client.unsent for client in clients),
            ring_bytes=main.ring.size if main else 0,
            ring_oldest_record_age_seconds=age(main.ring.oldest_ms if main else 0),
            catch_up_clients=self._catch_up.active,
            catch_up_waiting_clients=self._catch_up.waiting,
            catch_ups_total=self._catch_up.total,
            lag_records=max((records for records, _ in lags), default=0),
            lag_seconds=max((seconds for _, seconds in lags), default=0.0),
            head_age_seconds=age(main.head_ms) if main and main.head_ms else None,
            read_records_total=main.records if main else 0,
            upstream_connected=int(not self.waits_for),
            upstream_errors_total=main.errors if main else 0,
            slow_clients_closed_total=totals.slow,
            protocol_errors_total=totals.refused,
            unauthorized_total=totals.unauthorized,
        )

    async def start(self, app: Topics) -> None:
        """Open the stream, then listen. Waits for topics that do not exist yet, or for an unreachable server.

        Arguments:
            app: the application whose topics the stream has.

        Raises:
            ConfigurationError: the token file cannot be used.
            PortInUseError: another process listens there.
            CardinalError: see :func:`cardinal.transports.open_source`.

        """
        settings = self._settings
        if settings.token_file is not None:
            read_tokens(settings.token_file)
        self._streams = Streams(
            self._url, app, ring_bytes=settings.buffer_bytes, compress=settings.compression == "snappy"
        )
        try:
            await self._streams.start()
            self._server = await self._listen()
            self._port = int(self._server.sockets[0].getsockname()[1])
        except BaseException:
            await self._release(_FAILED_SECONDS)
            raise

    async def run(self) -> NoReturn:
        """Serve until cancelled. CardinalError: the stream ended for good."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if self._streams is None:
                raise ConfigurationError("the service is not started")
            if self._streams.main.error is not None:
                raise self._streams.main.error

    async def stop(self) -> None:
        """Close all clients and release everything, within a few seconds. May be called twice."""
        await self._release(_STOP_SECONDS)

    # --- inside --------------------------------------------------------------------------------------------------

    async def _release(self, seconds: float) -> None:
        server, self._server = self._server, None
        streams, self._streams = self._streams, None
        closing = streams.close() if streams is not None else []
        try:
            async with asyncio.timeout(seconds):
                if server is not None:
                    for listening in server.sockets:  # asyncio leaks what it accepted where its server is closed then
                        asyncio.get_running_loop().remove_reader(listening.fileno())
                    await asyncio.gather(*(client.close(1001, "the server stops") for client in tuple(self._clients)))
                    await self._end_accepted()
                    server.close()
                    await server.wait_closed()
                await asyncio.gather(self._catch_up.stop(), *map(asyncio.wrap_future, closing))
        except TimeoutError:
            _log.warning("the stream does not answer: its connections are abandoned")

    async def _end_accepted(self) -> None:
        """End the connections that are no clients yet: the library would wait for their handshakes."""
        for _ in range(_ACCEPTING_STEPS):
            await asyncio.sleep(0)
        ending = [one for one in self._accepted if hasattr(one, "transport")]  # none before the end of a TLS handshake
        for connection in ending:
            connection.transport.abort()
        await asyncio.gather(*(connection.wait_closed() for connection in ending))

    def _connection(self, *arguments: Any, **options: Any) -> ServerConnection:  # noqa: ANN401 - the library's
        connection = ServerConnection(*arguments, **options)
        self._accepted.add(connection)
        return connection

    async def _listen(self) -> Server:
        settings = self._settings
        try:
            return await serve(
                self._serve,
                settings.host,
                settings.port,
                ssl=self._tls,
                origins=[None],
                subprotocols=[Subprotocol(SUBPROTOCOL)],
                create_connection=self._connection,  # type: ignore[arg-type] # a factory will do
                compression=None,
                process_request=self._admit,
                server_header="cardinal",
                ping_interval=None,
                close_timeout=CLOSE_SECONDS,
                max_size=REQUEST_MAX,
                max_queue=2,
                logger=LIBRARY_LOGGER,
            )
        except OSError as error:
            raise PortInUseError(
                f"cannot listen on {settings.host}:{settings.port}: {refusal(error)}; choose another address with "
                "--listen",
                port=settings.port,
            ) from None

    def _admit(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuse a handshake with an HTTP response, or accept it."""
        try:
            file = self._settings.token_file
            tokens = self._settings.tokens if file is None else read_tokens(file)
        except ConfigurationError as error:
            _log.warning("a client is refused: %(error)s", {"kind": "refused", "error": error})
            return connection.respond(http.HTTPStatus.INTERNAL_SERVER_ERROR, "the token file cannot be used\n")
        if tokens and not _authenticated(request.headers.get_all("Authorization"), tokens):
            self._totals.unauthorized += 1
            return connection.respond(http.HTTPStatus.UNAUTHORIZED, "a valid token is required\n")
        if len(self._clients) >= self._settings.clients_max:
            return connection.respond(http.HTTPStatus.SERVICE_UNAVAILABLE, "no capacity for another client\n")
        return None

    async def _serve(self, connection: ServerConnection) -> None:
        if self._streams is None or len(self._clients) >= self._settings.clients_max:  # concurrent handshakes
            await connection.close(CloseCode.UNAVAILABLE, "no capacity for another client")
            return
        client = Client(connection, self._streams, self._catch_up, self._totals, self._settings)
        self._clients.add(client)
        began = time.monotonic()
        try:
            await client.run()
        finally:
            self._clients.discard(client)
            fields = {"kind": "left", "seconds": round(time.monotonic() - began, 3)}
            _log.info("a client left after %(seconds).1f s", fields)


def read_tokens(file: Path) -> tuple[str, ...]:
    """The tokens of a file, one a line. ConfigurationError: it cannot be read, or holds none."""
    tokens = tuple(line.strip() for line in read_secret(file, "token-file").splitlines() if line.strip())
    if not tokens:
        raise ConfigurationError(f"the file {file} of token-file holds no token", setting="token-file")
    return tokens


def _tls_context(settings: ServeSettings) -> ssl.SSLContext | None:
    if settings.certificate is None:
        if settings.key is not None:
            raise ConfigurationError("a key is of no use without its certificate: give both", setting="key-file")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key, password="")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        if isinstance(error, ssl.SSLError):  # OpenSSL's own words name places in its code
            reason = "they are no certificate and its key without a password, in PEM"
        raise ConfigurationError(
            f"certificate {settings.certificate} and its key cannot be used: {reason}", setting="cert-file"
        ) from None
    return context


def _authenticated(headers: Sequence[str], tokens: Sequence[str]) -> bool:
    """True if the one Authorization header holds one of the tokens; in constant time."""
    if len(headers) != 1 or not headers[0].startswith(_BEARER):
        return False
    sent = headers[0].removeprefix(_BEARER).encode("utf-8", "surrogateescape")
    return any([hmac.compare_digest(sent, token.encode()) for token in tokens])  # noqa: C419 - no early end
