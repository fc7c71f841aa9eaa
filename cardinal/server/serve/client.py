"""Client of a server: what it has requested, and what it is sent.

Three tasks: one receives requests and answers them in order, one chooses records while there is credit, one writes to
the socket. Where a position is in the ring, the ring's chunks are sent as they are; where it is older, a catch-up read
goes before.

Rules:

1. A client costs its positions, one message that waits and one that is being written. Without credit it costs nothing.
2. One that accepts nothing for ``slow_timeout`` while it is older than the ring, or in the midst of a message, is
   closed; it may reconnect at its position.
3. Positions are checked when they are named: a client is never sent less than it requested without an error.
4. What breaks the protocol closes the connection with :attr:`~protocol.CloseCode.PROTOCOL`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from typing import TYPE_CHECKING, Any, Final

from websockets.exceptions import ConnectionClosed

from cardinal.errors import CardinalError, CursorExpiredError, RemoteProtocolError, TopicError, UnreachableError
from cardinal.transports.websocket import protocol

from .subscription import Subscription

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from websockets.asyncio.server import ServerConnection

    from cardinal.protocols.streams.types import Partition

    from .catch_up import CatchUpReads
    from .status import Totals
    from .streams import Streams
    from .upstream import Upstream

CLOSE_SECONDS: Final = 2.0
_SPARE_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 0.5
_ANSWERS_MAX: Final = 8
_FRAGMENT_BYTES: Final = 64 << 10
_FRAGMENTS_MAX: Final = 1024

_UNSENT_BYTES: Final = 512 << 10
"""Bytes that the system keeps unsent for a client; Linux would keep 4 MiB for one that accepts nothing."""

_UNSENT_OPTION: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)

_log = logging.getLogger("cardinal.serve")


class Client:
    """See the module.

    Arguments:
        connection: the websocket.
        streams: what is served.
        catch_up: reads of what is older than the ring.
        totals: counts of all clients.

    Attributes:
        subscription: what it reads.
        heard: when it last sent something, or accepted some of a message, by the monotonic clock.

    """

    def __init__(self, connection: ServerConnection, streams: Streams, catch_up: CatchUpReads, totals: Totals) -> None:
        self.subscription = Subscription(totals)
        self.heard = time.monotonic()
        self._connection = connection
        self._streams = streams
        self._catch_up_reads = catch_up
        self._totals = totals
        self._upstream: Upstream | None = None
        self._written = asyncio.Event()
        self._writing = False

    async def run(self) -> None:
        """Serve until the client leaves, breaks the protocol or is too slow."""
        if _UNSENT_OPTION is not None:
            with contextlib.suppress(OSError):  # it has left already
                plain = self._connection.transport.get_extra_info("socket")
                plain.setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, _UNSENT_BYTES)
        tasks = [asyncio.create_task(self._choose()), asyncio.create_task(self._write())]
        try:
            async for message in self._connection:
                self.heard = time.monotonic()
                while self.subscription.outbox.qsize() >= _ANSWERS_MAX:
                    self._written.clear()
                    await self._written.wait()
                await self._receive(message)
        except ConnectionClosed:
            pass
        except RemoteProtocolError as error:
            self._totals.refused += 1
            await self.close(protocol.CloseCode.PROTOCOL, str(error)[:120])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._leave()
            await self.close()

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection in a bounded time: a client that accepts nothing would not get the close message."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS + _SPARE_SECONDS):
                await self._connection.close(code, reason)
        except TimeoutError:
            self._connection.transport.abort()

    @property
    def unsent(self) -> int:
        """Bytes that wait in the socket's buffer."""
        return self._connection.transport.get_write_buffer_size()

    def is_slow(self, timeout: float) -> bool:
        """Whether it is to be closed (rule 2)."""
        client, upstream = self.subscription, self._upstream
        if time.monotonic() - client.progress <= timeout:
            return False
        starved = client.credit <= 0 and upstream is not None and not upstream.ring.holds(client.wanted())
        return self._writing or starved

    def lag(self, now_ms: float) -> tuple[int, float]:
        """See :meth:`Subscription.lag`."""
        return self.subscription.lag(self._upstream.ring, now_ms) if self._upstream else (0, 0.0)

    # --- requests ------------------------------------------------------------------------------------------------

    async def _receive(self, message: str | bytes) -> None:
        request = protocol.decode_request(message)
        if isinstance(request, protocol.Credit):
            self.subscription.grant(request.size)
            return
        try:
            answer = await self._answer(request)
        except RemoteProtocolError:
            raise
        except CardinalError as error:
            answer = _failed(request.id, error)
        self._put(answer)
        if isinstance(answer, protocol.Reading) and isinstance(request, protocol.Read):
            self.subscription.begin(request.id, protocol.by_partition(request.positions))

    def _put(self, answer: protocol.Answer) -> None:
        self.subscription.outbox.put_nowait(protocol.encode_message(answer))

    async def _answer(
        self,
        request: protocol.ListTopics | protocol.Open | protocol.GetWatermarks | protocol.FindTime | protocol.Read,
    ) -> protocol.Answer:
        match request:
            case protocol.ListTopics(number):
                return protocol.Topics(number, tuple(sorted(await self._streams.list_topics())))
            case protocol.Open(number, topics):
                return await self._open(number, frozenset(topics))
            case protocol.GetWatermarks(number):
                return protocol.Watermarks(number, self._mine(await self._opened().watermarks()))
            case protocol.FindTime(number, timestamp_ms):
                return protocol.Offsets(number, self._mine(await self._opened().offsets_for_time(timestamp_ms)))
            case protocol.Read(number, positions):
                await self._check(protocol.by_partition(positions))
                return protocol.Reading(number)

    async def _open(self, number: int, topics: frozenset[str]) -> protocol.Watermarks:
        if self._upstream is None:
            self._upstream = self._streams.enter(self.subscription, topics)
        elif topics != self.subscription.topics:
            raise RemoteProtocolError("a connection is about the topics that it was opened for")
        try:
            return protocol.Watermarks(number, self._mine(await self._upstream.watermarks()))
        except CardinalError:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._upstream is not None:
            self._streams.leave(self.subscription, self._upstream)
            self._upstream = None

    def _opened(self) -> Upstream:
        if self._upstream is None:
            raise RemoteProtocolError("a connection begins with the topics that it is about")
        return self._upstream

    def _mine(self, found: Mapping[Partition, Any]) -> tuple[tuple[str, int, Any], ...]:
        return protocol.rows({tp: value for tp, value in found.items() if tp[0] in self.subscription.topics})

    async def _check(self, positions: Mapping[Partition, int | None]) -> None:
        """Refuse positions that nothing can be sent from."""
        upstream, topics = self._opened(), self.subscription.topics
        for tp, position in positions.items():
            if position is None and not self.subscription.knows(tp):
                raise RemoteProtocolError(f"{tp[0]!r}:{tp[1]} has no position to continue from")
        resets = -1
        while resets != upstream.resets:  # records that were lost meanwhile make the check worthless
            resets = upstream.resets
            unsure = {
                tp: position
                for tp, position in positions.items()
                if position is not None and not (tp[0] in topics and upstream.ring.covers(tp, position))
            }
            if not unsure:
                return
            marks = await upstream.watermarks()
            missing = {}
            for tp, position in unsure.items():
                if tp not in marks or tp[0] not in topics:
                    raise TopicError("there is no such partition", topic=tp[0])
                low, high = marks[tp]
                if not low <= position <= high:
                    missing[tp] = (position, high if position > high else low)
            if missing:
                raise CursorExpiredError("expired", missing=missing)

    # --- records -------------------------------------------------------------------------------------------------

    async def _choose(self) -> None:
        """Queue records until cancelled."""
        try:
            while True:
                await self._choose_once()
        except CardinalError as error:
            _log.warning("a client is disconnected: %s", error)
            await self.close(protocol.CloseCode.UNAVAILABLE, "the stream cannot be read now")
        except Exception:  # noqa: BLE001 - the outermost loop of a client
            _log.exception("a client is disconnected")
            await self.close(protocol.CloseCode.UNAVAILABLE, "the server has failed")

    async def _choose_once(self) -> None:
        client, upstream, plan = self.subscription, self._upstream, self.subscription.plan
        if upstream is None or not plan.wanted:
            await client.changed()
        elif error := client.expired or upstream.error:
            self._fail(error)
        elif not client.accepts:
            await client.changed()
        elif (found := upstream.ring.after(plan.index, client.wanted())) is None:
            await self._catch_up(upstream)
        else:
            plan.index = found.next
            if found.chunks:
                client.send(found.chunks)
            else:
                await client.changed()

    async def _catch_up(self, upstream: Upstream) -> None:
        try:
            await self._catch_up_reads.run(self.subscription, upstream)
        except (CursorExpiredError, TopicError) as error:
            self._fail(error)
        except UnreachableError as error:
            _log.warning("a catch-up read failed, retrying: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    def _fail(self, error: CardinalError) -> None:
        """End the reading; the connection stays."""
        self.subscription.end()
        self._put(_failed(0, error))

    async def _write(self) -> None:
        client = self.subscription
        with contextlib.suppress(ConnectionClosed):
            while True:
                message = await client.outbox.get()
                self._writing, client.progress = True, time.monotonic()
                self._written.set()
                client.wake()  # the next message may be queued while this one is written
                large = isinstance(message, bytes) and len(message) > _FRAGMENT_BYTES
                await self._connection.send(self._fragments(message) if large else message)
                self._writing = False
                client.progress = self.heard = time.monotonic()

    def _fragments(self, message: str | bytes) -> Iterator[memoryview]:
        """Fragments of a message, so that pings get between them; each one is progress of the client."""
        view = memoryview(message)  # type: ignore[arg-type] # only bytes are large
        size = max(_FRAGMENT_BYTES, -(-len(view) // _FRAGMENTS_MAX))
        for at in range(0, len(view), size):
            self.subscription.progress = self.heard = time.monotonic()
            yield view[at : at + size]


def _failed(number: int, error: CardinalError) -> protocol.Failed:
    """The answer for an error: it names topics and positions, nothing of what the server reads from."""
    match error:
        case TopicError(topic=topic):
            return protocol.Failed(number, protocol.Reason.TOPIC, topic)
        case CursorExpiredError(missing=missing):
            return protocol.Failed(number, protocol.Reason.EXPIRED, partitions=protocol.rows(missing))
        case UnreachableError():
            return protocol.Failed(number, protocol.Reason.UNAVAILABLE)
        case _:
            _log.error("a request of a client failed: %s", error)
            return protocol.Failed(number, protocol.Reason.FAILED)
