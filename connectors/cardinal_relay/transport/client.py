"""Client of ``cardinal serve``: one connection, on an event loop of its own thread, that reconnects.

Rules:

1. The first connection is made or refused before the constructor returns. Later the client reconnects, with growing
   pauses, to the next of the server's addresses each time; an outage and its end are logged once.
2. A refusal (token, certificate, another protocol) ends the client.
3. A request whose connection breaks is repeated on the next one until its timeout.
4. The inbox knows what to read: every connection begins with its READ.
5. The thread never waits for the reader: pings are answered even if the reader is slow.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

try:
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import ConnectionClosed, WebSocketException
    from websockets.typing import Subprotocol
except ImportError as absent:
    from cardinal.errors import MissingExtraError

    raise MissingExtraError("a websocket transport", "server") from absent

from cardinal.errors import CardinalError, RemoteProtocolError, TransportError, UnreachableError

from . import protocol
from .connection import LIBRARY_LOGGER, keep_alive
from .errors import connection_error, request_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .inbox import Inbox
    from .settings import WebsocketSettings

_Answer = TypeVar("_Answer", protocol.Topics, protocol.Watermarks, protocol.Offsets)

CLOSE_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 1.0
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

_log = logging.getLogger("cardinal.websocket")


class Client:
    """Client of a server; rules above.

    Arguments:
        settings: the servers.
        inbox: receives records and the end of a reading, and has the requests that concern them.

    Raises:
        UnreachableError, RefusedError, RemoteProtocolError, TransportError: the first connection failed.

    """

    def __init__(self, settings: WebsocketSettings, inbox: Inbox) -> None:
        self._settings = settings
        self._inbox = inbox
        self._tls = settings.tls() if settings.tls else None
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[protocol.Answer]] = {}
        self._failure: CardinalError | None = None
        self._reason = ""
        self._unreachable_since = 0.0
        self._pauses = _pauses()
        self._heard = 0.0
        self._first: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop = asyncio.new_event_loop()
        self._connection: ClientConnection | None = None
        self._connected = asyncio.Event()
        self._due = asyncio.Event()
        self._task = self._loop.create_task(self._run())
        self._thread = threading.Thread(target=self._work, name="cardinal-websocket", daemon=True)
        self._thread.start()
        try:
            self._first.result()
        except BaseException:
            self.close()
            raise

    # --- for the reader's thread -------------------------------------------------------------------------------

    def request(self, make: Callable[[int], protocol.Request], answer: type[_Answer], purpose: str) -> _Answer:
        """Send a request and wait for its answer.

        Raises:
            UnreachableError: the server is unreachable, or has not answered in time.
            CardinalError: the request failed at the server, or the client has ended.

        """
        if self._failure is not None:
            raise self._failure
        requesting = self._request(make, purpose)
        try:
            waiting = asyncio.run_coroutine_threadsafe(requesting, self._loop)
            response = waiting.result(self._settings.connect_timeout + CLOSE_SECONDS)
        except (RuntimeError, TimeoutError, concurrent.futures.CancelledError):  # the loop has ended meanwhile
            if self._loop.is_closed():
                requesting.close()
            raise self._failure or _closed_error() from None
        if isinstance(response, protocol.Failed):
            raise request_error(response, self._settings.address)
        if not isinstance(response, answer):
            self.close()
            raise RemoteProtocolError(f"the server at {self._settings.address} answered another request")
        return response

    def wake(self) -> None:
        """Send the inbox's requests; without a connection the next one begins with them."""
        self._call(self._due.set)

    def close(self) -> None:
        """End the connection and the thread. May be called twice."""
        self._failure = self._failure or _closed_error()
        self._call(self._task.cancel)
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * CLOSE_SECONDS)

    # --- the loop ------------------------------------------------------------------------------------------------

    def _call(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(call)

    def _work(self) -> None:
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - a bug of ours must not leave the reader waiting
            _log.exception("the websocket client has failed")
            self._end(TransportError(f"the websocket client failed: {type(error).__name__}; its log has the reason"))
        finally:
            self._end(self._failure or _closed_error())
            self._loop.run_until_complete(_cancel_others())
            self._loop.close()

    async def _run(self) -> None:
        settings = self._settings
        for attempt, address in enumerate(itertools.cycle(self._settings.addresses), 1):
            try:
                async with connect(
                    address,
                    ssl=self._tls,
                    subprotocols=[Subprotocol(protocol.SUBPROTOCOL)],
                    compression=None,
                    additional_headers=dict(settings.headers),
                    user_agent_header="cardinal-streams",
                    proxy=None,
                    open_timeout=settings.connect_timeout,
                    ping_interval=None,
                    close_timeout=CLOSE_SECONDS,
                    max_size=settings.frame_max,
                    logger=LIBRARY_LOGGER,
                ) as connection:
                    if connection.subprotocol != protocol.SUBPROTOCOL:
                        raise RemoteProtocolError(
                            f"the server at {settings.address} does not speak {protocol.SUBPROTOCOL}: use the same "
                            "version of Cardinal on both sides"
                        )
                    await self._converse(connection)
            except (CardinalError, WebSocketException, OSError, EOFError, ValueError) as error:
                failure = connection_error(error, settings, first=not self._first.done())
            if not isinstance(failure, UnreachableError) or (
                not self._first.done() and attempt >= len(settings.addresses)
            ):
                self._end(failure)
                return
            if self._first.done() and not self._unreachable_since:
                self._unreachable_since = time.monotonic()
                _log.warning("%s; reconnecting", failure)
            self._reason = str(failure)
            await asyncio.sleep(next(self._pauses))

    def _end(self, error: CardinalError) -> None:
        self._failure = self._failure or error
        self._inbox.end(self._failure)
        self._break_requests()
        self._connected.set()
        if not self._first.done():
            self._first.set_exception(self._failure)

    def _break_requests(self) -> None:
        for future in self._pending.values():
            if not future.done():
                future.set_exception(ConnectionError())

    # --- one connection --------------------------------------------------------------------------------------------

    async def _converse(self, connection: ClientConnection) -> NoReturn:
        """Exchange messages until the connection ends, by one of the library's errors or of ours."""
        self._inbox.connected()
        self._connection = connection
        self._connected.set()
        if not self._first.done():
            self._first.set_result(None)
        self._heard = time.monotonic()
        interval = self._settings.ping_interval
        tasks = [
            asyncio.create_task(self._write(connection, interval)),
            asyncio.create_task(keep_alive(connection, interval, lambda: self._heard)),
        ]
        try:
            while True:
                fragments: list[Any] = []
                async for fragment in connection.recv_streaming():
                    self._heard = time.monotonic()
                    fragments.append(fragment)
                self._receive(fragments[0][:0].join(fragments))
        finally:
            for task in tasks:
                task.cancel()
            self._connection = None
            self._connected.clear()
            self._break_requests()

    async def _write(self, connection: ClientConnection, interval: float) -> None:
        """Send the inbox's requests, and regularly a sign of life.

        Our pong to the server's ping may wait behind records for long.
        """
        with contextlib.suppress(ConnectionClosed):  # the receiving side reports it
            while True:
                self._due.clear()
                for request in self._inbox.requests():
                    await connection.send(protocol.encode_message(request))
                try:
                    async with asyncio.timeout(interval):  # wait_for may lose a cancellation
                        await self._due.wait()
                except TimeoutError:
                    await connection.send(protocol.encode_message(protocol.Credit(0)))

    def _returned(self) -> None:
        """Reset the reconnect pauses, once the server has sent a message; not for one that only closes connections."""
        if self._unreachable_since:
            self._pauses = _pauses()
            seconds, self._unreachable_since = time.monotonic() - self._unreachable_since, 0.0
            _log.info("the server at %s is back after %.1f s", self._settings.address, seconds)

    def _receive(self, message: bytes | str) -> None:
        self._returned()
        if isinstance(message, bytes):
            self._inbox.add(*protocol.decode_frame(message), len(message))
            if self._inbox.due:
                self._due.set()
            return
        answer = protocol.decode_answer(message)
        if isinstance(answer, protocol.Failed) and answer.read:
            error = request_error(answer, self._settings.address)
            if isinstance(error, UnreachableError):
                raise error  # reconnect
            self._inbox.fail(answer.read, error)
        elif (future := self._pending.get(answer.id)) is not None and not future.done():
            future.set_result(answer)

    async def _request(self, make: Callable[[int], protocol.Request], purpose: str) -> protocol.Answer:
        address, timeout = self._settings.address, self._settings.connect_timeout
        try:
            async with asyncio.timeout(timeout):
                while True:
                    connection = await self._wait_for_connection()
                    with contextlib.suppress(ConnectionError, ConnectionClosed):
                        return await self._exchange(connection, make)
                    await asyncio.sleep(0)  # sending on a closed connection fails at once: its reader ends it first
        except TimeoutError:
            raise UnreachableError(
                f"the server at {address} did not answer a request for {purpose} within {timeout:g} s", address=address
            ) from None

    async def _wait_for_connection(self) -> ClientConnection:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_AWAY_SECONDS):
                await self._connected.wait()
        if self._failure is not None:
            raise self._failure
        if self._connection is None:
            address = self._settings.address
            raise UnreachableError(f"the request cannot be sent: {self._reason}", address=address)
        return self._connection

    async def _exchange(self, connection: ClientConnection, make: Callable[[int], protocol.Request]) -> protocol.Answer:
        number = next(self._ids)
        future = self._pending[number] = self._loop.create_future()
        try:
            await connection.send(protocol.encode_message(make(number)))
            answer: protocol.Answer = await future
            return answer
        finally:
            del self._pending[number]


def _closed_error() -> TransportError:
    return TransportError("this source is closed; open another one")


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _pauses() -> Iterator[float]:
    """Seconds between connections, with jitter, so that a server's clients do not all return at once."""
    # A generator of its own: the program may have seeded the global one.
    jitter = random.Random()  # noqa: S311 - no secret
    pause = _FIRST_PAUSE
    while True:
        yield pause * jitter.uniform(0.5, 1.0)
        pause = min(2 * pause, _LONGEST_PAUSE)
