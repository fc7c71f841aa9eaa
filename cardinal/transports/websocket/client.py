"""Client of ``cardinal serve``: one connection, on an event loop of its own thread, that reconnects.

Rules:

1. The first connection is made or refused before the constructor returns. Later a server that is away is waited for,
   with growing pauses, the next of its addresses each time; that is logged once, and so is its return.
2. A refusal (token, certificate, another protocol) ends the client.
3. A request whose connection breaks is repeated on the next one until its time is over.
4. A READ that is not answered in time closes the connection: afterwards nobody could say which positions count.
5. The thread never waits for the reader: pings are answered however slow that is.
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

_Answer = TypeVar("_Answer", protocol.Topics, protocol.Watermarks, protocol.Offsets, protocol.Reading)

CLOSE_SECONDS: Final = 1.0
_AWAY_SECONDS: Final = 1.0
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 2.0

_log = logging.getLogger("cardinal.websocket")


class _BrokenError(Exception):
    """The connection broke while a request was in flight."""


class Client:
    """See the module.

    Arguments:
        settings: the servers.
        inbox: receives records and the end of a reading; None where none are read.

    Attributes:
        topics: the topics to open on every connection; set when a server has accepted them.

    Raises:
        UnreachableError, RefusedError, RemoteProtocolError, TransportError: there is no first connection.

    """

    def __init__(self, settings: WebsocketSettings, inbox: Inbox) -> None:
        self.topics: tuple[str, ...] = ()
        self._settings = settings
        self._inbox = inbox
        self._tls = settings.tls() if settings.tls else None
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[protocol.Answer]] = {}
        self._reads: dict[int, dict[tuple[str, int], int]] = {}
        self._unawaited: set[int] = set()
        self._failure: CardinalError | None = None
        self._reason = ""
        self._first: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop = asyncio.new_event_loop()
        self._outgoing: asyncio.Queue[protocol.Request] | None = None
        self._connection: ClientConnection | None = None
        self._connected = asyncio.Event()
        self._useful = False
        self._heard = 0.0
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
            UnreachableError: the server is away, or has not answered in time.
            CardinalError: the request failed at the server, or the client has ended.

        """
        if self._failure is not None:
            raise self._failure
        requesting = self._request(make, purpose)
        try:
            waiting = asyncio.run_coroutine_threadsafe(requesting, self._loop)
            found = waiting.result(self._settings.connect_timeout + CLOSE_SECONDS)
        except (RuntimeError, TimeoutError, concurrent.futures.CancelledError):  # the loop has ended meanwhile
            requesting.close()
            raise self._failure or _closed_error() from None
        if isinstance(found, protocol.Failed):
            raise request_error(found, self._settings.address)
        if not isinstance(found, answer):
            self.close()
            raise RemoteProtocolError(f"the server at {self._settings.address} answered another request")
        return found

    def update_reading(self) -> None:
        """Send the inbox's partitions; without a connection the next one begins with them."""
        self._call(self._send_read)

    def grant(self) -> None:
        """Send the credit that the inbox has to grant."""
        self._call(self._send_credit)

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
        pauses, away_since = _pauses(), 0.0
        for attempt, address in enumerate(itertools.cycle(self._settings.addresses), 1):
            self._useful = False
            if attempt > 1:
                self._settings = self._settings.again()  # a token may have been replaced
            settings = self._settings
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
                    if away_since:
                        _log.warning(
                            "the server at %s is back after %.1f s", settings.address, time.monotonic() - away_since
                        )
                        away_since = 0.0
                    await self._converse(connection)
            except (CardinalError, WebSocketException, OSError, EOFError, ValueError) as error:
                failure = connection_error(error, settings, first=not self._first.done())
            if not isinstance(failure, UnreachableError) or (
                not self._first.done() and attempt >= len(settings.addresses)
            ):
                self._end(failure)
                return
            if self._useful:
                pauses = _pauses()
            if self._first.done() and not away_since:
                away_since = time.monotonic()
                _log.warning("%s: reconnecting", failure)
            self._reason = str(failure)
            await asyncio.sleep(next(pauses))

    def _end(self, error: CardinalError) -> None:
        self._failure = self._failure or error
        self._inbox.end(self._failure)
        for future in self._pending.values():
            if not future.done():
                future.set_exception(_BrokenError())
        self._connected.set()
        if not self._first.done():
            self._first.set_exception(self._failure)

    # --- one connection --------------------------------------------------------------------------------------------

    async def _converse(self, connection: ClientConnection) -> NoReturn:
        """Exchange messages until the connection ends, by one of the library's errors or of ours."""
        self._outgoing = asyncio.Queue()
        self._unawaited.clear()
        self._reads.clear()
        credit = self._inbox.connected()
        if self.topics:
            opening = next(self._ids)
            self._unawaited.add(opening)
            self._put(protocol.Open(opening, self.topics))
            self._send_read()
        self._put(protocol.Credit(credit))
        self._connection = connection
        self._connected.set()
        if not self._first.done():
            self._first.set_result(None)
        self._heard = time.monotonic()
        tasks = [
            asyncio.create_task(_write(connection, self._outgoing)),
            asyncio.create_task(keep_alive(connection, self._settings.ping_interval, lambda: self._heard)),
            asyncio.create_task(self._show_life()),
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
            self._outgoing = self._connection = None
            self._connected.clear()
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(_BrokenError())

    async def _show_life(self) -> None:
        """Send something from time to time: our pong to the server's ping may wait behind records for long."""
        while True:
            await asyncio.sleep(self._settings.ping_interval)
            self._put(protocol.Credit(self._inbox.grant()))

    def _put(self, message: protocol.Request) -> None:
        if self._outgoing is not None:
            self._outgoing.put_nowait(message)

    def _send_credit(self) -> None:
        # Here, where connections change as well: what is due on one is not granted on another.
        if self._outgoing is not None and (credit := self._inbox.grant()):
            self._put(protocol.Credit(credit))

    def _send_read(self) -> None:
        if self._outgoing is None:
            return
        number = next(self._ids)
        if (wanted := self._inbox.reading(number)) is not None:
            self._unawaited.add(number)
            self._put(protocol.Read(number, protocol.rows(wanted)))

    def _receive(self, message: bytes | str) -> None:
        if isinstance(message, bytes):
            self._useful = True  # a server that only sends us away is tried less and less often
            self._inbox.add(*protocol.decode_frame(message), len(message))
            self._send_credit()
            return
        answer = protocol.decode_answer(message)
        positions = self._reads.pop(answer.id, None)
        if isinstance(answer, protocol.Reading) and positions is not None:
            # Before anything else is received, and whether or not the reader still waits: here the server stands.
            self._inbox.assign(positions, answer.id)
        if (future := self._pending.get(answer.id)) is not None:
            if not future.done():
                future.set_result(answer)
        elif isinstance(answer, protocol.Failed) and (answer.id == 0 or answer.id in self._unawaited):
            error = request_error(answer, self._settings.address)
            if isinstance(error, UnreachableError):
                raise error  # reconnect
            self._inbox.fail(error)
        self._unawaited.discard(answer.id)

    async def _request(self, make: Callable[[int], protocol.Request], purpose: str) -> protocol.Answer:
        address, timeout = self._settings.address, self._settings.connect_timeout
        try:
            async with asyncio.timeout(timeout):
                while True:
                    await self._wait_for_connection()
                    with contextlib.suppress(_BrokenError):
                        return await self._ask(make)
        except TimeoutError:
            raise UnreachableError(
                f"the server at {address} did not answer a request for {purpose} within {timeout:g} s", address=address
            ) from None

    async def _wait_for_connection(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._connected.wait(), _AWAY_SECONDS)
        if self._failure is not None:
            raise self._failure
        if not self._connected.is_set():
            address = self._settings.address
            raise UnreachableError(f"the server at {address} is away ({self._reason})", address=address)

    async def _ask(self, make: Callable[[int], protocol.Request]) -> protocol.Answer:
        number = next(self._ids)
        request = make(number)
        connection = self._connection
        self._pending[number] = future = self._loop.create_future()
        if isinstance(request, protocol.Read):
            self._reads[number] = {tp: at or 0 for tp, at in protocol.by_partition(request.positions).items()}
        self._put(request)
        try:
            answer: protocol.Answer = await future
            return answer
        finally:
            del self._pending[number]
            if self._reads.pop(number, None) is not None and connection is not None:
                connection.transport.abort()  # rule 4; where it broke there is nothing to abort


def _closed_error() -> TransportError:
    return TransportError("this source is closed; open another one")


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)


async def _write(connection: ClientConnection, outgoing: asyncio.Queue[protocol.Request]) -> None:
    with contextlib.suppress(ConnectionClosed):  # the receiving side reports it
        while True:
            await connection.send(protocol.encode_message(await outgoing.get()))


def _pauses() -> Iterator[float]:
    """Seconds between connections, with jitter, so that a server's clients do not all return at once."""
    # A generator of its own: the program may have seeded the global one.
    jitter = random.Random()  # noqa: S311 - no secret
    pause = _FIRST_PAUSE
    while True:
        yield pause * jitter.uniform(0.5, 1.0)
        pause = min(2 * pause, _LONGEST_PAUSE)
