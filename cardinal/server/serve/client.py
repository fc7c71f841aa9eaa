"""Client of a server: its requests, and the records that it is sent.

One task receives requests and answers them in order, another one sends records while there is credit: the ring's chunks
unchanged, after a catch-up read for positions older than the ring.

Rules:

1. A client costs the memory of its positions and one message. No request is received while it accepts no answer.
2. A client that accepts nothing for ``slow_timeout`` while it is older than the ring, or in the middle of a message, is
   closed; it may reconnect at its position.
3. Positions are checked with the READ: a client never silently misses records.
4. A protocol violation closes the connection with :attr:`~protocol.CloseCode.PROTOCOL`.
5. The answer to a READ and its records are sent under one lock, so that none belong to an earlier READ.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from websockets.exceptions import ConnectionClosed

from cardinal.errors import CardinalError, CursorExpiredError, RemoteProtocolError, TopicError, UnreachableError
from cardinal.transports.websocket import protocol
from cardinal.transports.websocket.connection import keep_alive

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from websockets.asyncio.server import ServerConnection

    from cardinal.protocols.streams.types import Partition

    from .settings import ServeSettings
    from .status import Totals
    from .streams import Streams
    from .upstream import Upstream

CLOSE_SECONDS: Final = 2.0
_SPARE_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 0.5
_TICK_SECONDS: Final = 0.5
_CREDIT_MAX: Final = 1 << 40
_FRAGMENT_BYTES: Final = 64 << 10
_FRAGMENTS_MAX: Final = 1024

_UNSENT_BYTES: Final = 512 << 10
"""Send buffer of a client's socket; Linux would buffer 4 MiB for one that accepts nothing."""

_UNSENT_OPTION: Final[int | None] = getattr(socket, "TCP_NOTSENT_LOWAT", None)

_log = logging.getLogger("cardinal.serve")


class _ProtocolError(Exception):
    """The client broke the protocol; distinct from a RemoteProtocolError of the upstream."""


class _SlowError(Exception):
    """The client accepted nothing for too long."""


@dataclass(slots=True)
class Plan:
    """The partitions of a READ, its id, and how far the ring has been searched for it."""

    id: int
    wanted: frozenset[Partition]
    index: int = 0


class Client:
    """Client of a server.

    Arguments:
        connection: the websocket.
        streams: the served streams.
        catch_up: sends records older than the ring.
        totals: counts of all clients.
        settings: the server's.

    Attributes:
        plan: of its last READ.
        credit: bytes that may be sent.

    """

    def __init__(
        self,
        connection: ServerConnection,
        streams: Streams,
        catch_up: Callable[[Client, Upstream], Awaitable[None]],
        totals: Totals,
        settings: ServeSettings,
    ) -> None:
        self.plan = Plan(0, frozenset())
        self.credit = 0
        self._connection = connection
        self._streams = streams
        self._read_older = catch_up
        self._totals = totals
        self._settings = settings
        self._upstream: Upstream | None = None
        self._positions: dict[Partition, int] = {}
        self._sent_ms: dict[Partition, int] = {}
        self._error: CardinalError | None = None  # the error that ended its reading
        self._sending = asyncio.Lock()
        self._woken = asyncio.Event()
        self._heard = self._progress = time.monotonic()

    async def run(self) -> None:
        """Serve until the client leaves, breaks the protocol or is too slow."""
        if _UNSENT_OPTION is not None:
            with contextlib.suppress(OSError):  # it has left already
                plain = self._connection.transport.get_extra_info("socket")
                plain.setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, _UNSENT_BYTES)
        alive = keep_alive(self._connection, self._settings.ping_interval, lambda: self._heard)
        tasks = [asyncio.create_task(one) for one in (self._receive(), self._send_records(), alive)]
        code, reason = 1000, ""
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except ConnectionClosed:
            pass
        except _ProtocolError as error:
            self._totals.refused += 1
            code, reason = protocol.CloseCode.PROTOCOL, str(error)[:120]
        except _SlowError:
            self._totals.slow += 1
            code, reason = protocol.CloseCode.SLOW, "nothing was accepted for too long"
        except CardinalError as error:
            _log.warning("a client is disconnected: %s", error)
            code, reason = protocol.CloseCode.UNAVAILABLE, "the stream cannot be read now"
        except Exception:  # noqa: BLE001 - the outermost loop of a client
            _log.exception("a client is disconnected")
            code, reason = protocol.CloseCode.UNAVAILABLE, "the server has failed"
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._leave()
            await self.close(code, reason)

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

    def lag(self, now_ms: float) -> tuple[int, float]:
        """Number of records to send, and seconds since the newest sent one of these partitions."""
        if self._upstream is None:
            return 0, 0.0
        ring = self._upstream.ring
        behind = {tp: ring.ends[tp] - at for tp, at in self.wanted().items() if ring.ends.get(tp, at) > at}
        times = [self._sent_ms.get(tp) or ring.oldest_ms for tp in behind]
        return sum(behind.values()), max((now_ms - at for at in times if at), default=0.0) / 1000

    # --- for the upstream ------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Wake the sending task."""
        self._woken.set()

    def expire(self, lost: Mapping[Partition, tuple[int, int]]) -> None:
        """End the reading: the offsets of its topics are no longer valid."""
        topics = {topic for topic, _ in self._positions}
        missing = {
            tp: (max(at, self._positions.get(tp, at)), limit) for tp, (at, limit) in lost.items() if tp[0] in topics
        }
        if missing:
            self._error = CursorExpiredError("the stream was recreated", missing=missing)

    # --- requests ------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        async for message in self._connection:
            self._heard = time.monotonic()
            try:
                request = protocol.decode_request(message)
            except RemoteProtocolError as error:
                raise _ProtocolError(str(error)) from None
            if isinstance(request, protocol.Credit):
                self._grant(request.size)
                continue
            try:
                answer = await self._answer(request)
            except CardinalError as error:
                answer = _failed(request.id, error)
            if answer is not None:
                await self._connection.send(protocol.encode_message(answer))

    def _grant(self, size: int) -> None:
        if size:
            self.credit = min(self.credit + size, _CREDIT_MAX)
            self._progress = time.monotonic()
            self.wake()

    async def _answer(
        self, request: protocol.ListTopics | protocol.GetWatermarks | protocol.FindTime | protocol.Read
    ) -> protocol.Answer | None:
        match request:
            case protocol.ListTopics(number):
                return protocol.Topics(number, tuple(sorted(await self._streams.list_topics())))
            case protocol.GetWatermarks(number, topics):
                watermarks = await self._enter(topics).watermarks()
                return protocol.Watermarks(number, _rows_of(topics, watermarks))
            case protocol.FindTime(number, topics, timestamp_ms):
                offsets = await self._enter(topics).offsets_for_time(timestamp_ms)
                return protocol.Offsets(number, _rows_of(topics, offsets))
            case protocol.Read(number, positions):
                await self._read(number, protocol.by_partition(positions))
                return None

    def _enter(self, topics: Sequence[str]) -> Upstream:
        """Attach the client to the upstream of these topics."""
        upstream = self._streams.find(frozenset(topics))
        if upstream is not self._upstream:
            self._leave()
            self.plan, self._upstream = Plan(self.plan.id, frozenset()), upstream
            upstream.clients.add(self)
        return upstream

    def _leave(self) -> None:
        if self._upstream is not None:
            self._streams.leave(self, self._upstream)
            self._upstream = None

    async def _read(self, number: int, positions: Mapping[Partition, int | None]) -> None:
        """Begin a READ, and answer it. CardinalError: nothing can be sent from these positions."""
        answer = protocol.encode_message(protocol.Reading(number))
        named = {tp: position for tp, position in positions.items() if position is not None}
        upstream = self._enter([topic for topic, _ in positions]) if positions else None
        while upstream is not None:
            if len(named) == len(positions):
                begun: dict[Partition, int] = {} if self._error else self._positions
            elif self._error or not positions.keys() <= named.keys() | self._positions.keys():
                raise self._error or CursorExpiredError("there is no position to continue from", missing={})
            else:
                begun = self._positions
            resets = upstream.resets
            await _check(upstream, named)
            async with self._sending:
                if resets == upstream.resets:  # records that were lost meanwhile make the check worthless
                    self._positions, self._error = begun | named, None
                    self._begin(number, positions)
                    await self._connection.send(answer)
                    return
        async with self._sending:
            self._begin(number, positions)
            await self._connection.send(answer)

    def _begin(self, number: int, positions: Iterable[Partition]) -> None:
        self.plan, self._progress = Plan(number, frozenset(positions)), time.monotonic()
        self.wake()

    # --- records -------------------------------------------------------------------------------------------------

    @property
    def reads(self) -> bool:
        """True while it reads, without an error."""
        return bool(self.plan.wanted) and self._error is None

    def wanted(self) -> dict[Partition, int]:
        """The positions of the partitions of the READ."""
        return {tp: self._positions[tp] for tp in self.plan.wanted}

    async def _send_records(self) -> None:
        while True:
            upstream, plan = self._upstream, self.plan
            if upstream is None or not plan.wanted:
                await self._changed()
            elif error := self._error or upstream.error:
                await self._end_reading(error)
            elif self.credit <= 0:
                await self.wait_for_credit()
            elif (found := upstream.ring.after(plan.index, self.wanted())) is None:
                await self._catch_up(upstream)
            elif not found[0]:
                plan.index = found[1]
                await self._changed()
            elif await self.send(plan, found[0]):
                plan.index = found[1]

    async def send(self, plan: Plan, chunks: Sequence[protocol.Chunk]) -> bool:
        """Send the next chunks of a plan; False if the client has another plan."""
        async with self._sending:
            if plan is not self.plan:
                return False
            frame = protocol.encode_frame(plan.id, chunks)
            for chunk in chunks:
                self._positions[chunk.tp] = chunk.next
                self._sent_ms[chunk.tp] = chunk.newest_ms or self._sent_ms.get(chunk.tp, 0)
                self._totals.records += chunk.count
            self._totals.bytes += len(frame)
            self.credit -= len(frame)
            try:
                async with asyncio.timeout(self._settings.slow_timeout) as limit:
                    await self._connection.send(self._fragments(frame, limit))
            except TimeoutError:
                raise _SlowError from None
            self._heard = self._progress = time.monotonic()
            return True

    def _fragments(self, frame: bytes, limit: asyncio.Timeout) -> Iterator[memoryview]:
        """Fragments of a message, so that pings are sent in between; each one is a sign of life of the client."""
        view = memoryview(frame)
        size = max(_FRAGMENT_BYTES, -(-len(view) // _FRAGMENTS_MAX))
        for at in range(0, len(view), size):
            self._heard = time.monotonic()
            limit.reschedule(asyncio.get_running_loop().time() + self._settings.slow_timeout)
            yield view[at : at + size]

    async def wait_for_credit(self) -> None:
        """Wait briefly for a change. _SlowError: the client is older than the ring, and grants no credit."""
        slow, upstream = self._settings.slow_timeout, self._upstream
        older = upstream is not None and not upstream.ring.holds(self.wanted())
        if older and time.monotonic() - self._progress > slow:
            raise _SlowError
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(_TICK_SECONDS, slow / 2)):
                await self._changed()

    async def _changed(self) -> None:
        """Wait until something changes after the last call."""
        await self._woken.wait()
        self._woken.clear()

    async def _catch_up(self, upstream: Upstream) -> None:
        try:
            await self._read_older(self, upstream)
        except (CursorExpiredError, TopicError) as error:
            await self._end_reading(error)
        except UnreachableError as error:
            _log.warning("a catch-up read failed, retrying: %s", error)
            await asyncio.sleep(_RETRY_SECONDS)

    async def _end_reading(self, error: CardinalError) -> None:
        """End the reading; the connection stays."""
        async with self._sending:
            self.plan, self._error = Plan(self.plan.id, frozenset()), error
            await self._connection.send(protocol.encode_message(_failed(0, error)))


async def _check(upstream: Upstream, positions: Mapping[Partition, int]) -> None:
    """Refuse positions from which nothing can be sent."""
    unsure = {tp: position for tp, position in positions.items() if not upstream.ring.covers(tp, position)}
    if not unsure:
        return
    watermarks = await upstream.watermarks()
    missing = {}
    for tp, position in unsure.items():
        if tp not in watermarks:
            raise TopicError("there is no such partition", topic=tp[0])
        low, high = watermarks[tp]
        if not low <= position <= high:
            missing[tp] = (position, high if position > high else low)
    if missing:
        raise CursorExpiredError("expired", missing=missing)


def _rows_of(topics: Sequence[str], found: Mapping[Partition, Any]) -> tuple[tuple[str, int, Any], ...]:
    return protocol.rows({tp: value for tp, value in found.items() if tp[0] in topics})


def _failed(number: int, error: CardinalError) -> protocol.Failed:
    """The answer for an error: names topics and positions, nothing about the upstream."""
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
