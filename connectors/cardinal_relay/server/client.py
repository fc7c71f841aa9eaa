"""Client of a server: its requests, and the records that it is sent.

One task receives requests and answers them in order, another one sends records while there is credit: the ring's chunks
unchanged, or chunks of a catch-up read for positions that the ring does not hold.

Rules:

1. A client costs the memory of its positions and two messages. No request is received while it accepts no answer.
2. A client that accepts nothing of a message for ``slow_timeout`` is closed; it may reconnect at its position. One that
   grants no credit costs nothing, and stays.
3. A client never silently misses records: what cannot be read from its positions ends its reading.
4. A protocol violation closes the connection with :attr:`~protocol.CloseCode.PROTOCOL`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from websockets.exceptions import ConnectionClosed

from cardinal.errors import (
    CardinalError,
    CursorExpiredError,
    LogDamagedError,
    RemoteProtocolError,
    TopicError,
    UnreachableError,
)
from cardinal_relay.transport import protocol
from cardinal_relay.transport.connection import SILENT_INTERVALS, keep_alive

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from websockets.asyncio.server import ServerConnection

    from cardinal.protocols.streams.types import Partition

    from .catch_up import CatchUpRead, CatchUpReads
    from .settings import ServeSettings
    from .status import Totals
    from .streams import Streams
    from .upstream import Upstream

CLOSE_SECONDS: Final = 2.0
_SPARE_SECONDS: Final = 0.5
_RETRY_SECONDS: Final = 0.5
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
    """A READ: its id, the next offset to send of each partition, and how far the ring has been searched for it.

    Attributes:
        resets: of the upstream when it began.
        paused: partitions that are not sent; another set is another plan with the same positions.
        exists: false until positions beyond the ring are known to be not beyond the end.

    """

    id: int = 0
    positions: dict[Partition, int] = field(default_factory=dict)
    resets: int = 0
    paused: frozenset[Partition] = frozenset()
    index: int = 0
    exists: bool = False

    @property
    def wanted(self) -> dict[Partition, int]:
        """The positions of the partitions to send."""
        return {tp: at for tp, at in self.positions.items() if tp not in self.paused}


class Client:
    """Client of a server.

    Arguments:
        connection: the websocket.
        streams: the served streams.
        catch_up: the slots for records that the ring does not hold.
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
        catch_up: CatchUpReads,
        totals: Totals,
        settings: ServeSettings,
    ) -> None:
        self.plan = Plan()
        self.credit = 0
        self._connection = connection
        self._streams = streams
        self._catch_up = catch_up
        self._older: CatchUpRead | None = None
        self._totals = totals
        self._settings = settings
        self._upstream: Upstream | None = None
        self._newest_ms = 0
        self._woken = asyncio.Event()
        self._heard = time.monotonic()

    async def run(self) -> None:
        """Serve until the client leaves, breaks the protocol or is too slow."""
        if _UNSENT_OPTION is not None:
            with contextlib.suppress(OSError):  # it has left already
                plain = self._connection.transport.get_extra_info("socket")
                plain.setsockopt(socket.IPPROTO_TCP, _UNSENT_OPTION, _UNSENT_BYTES)
        settings = self._settings
        alive = asyncio.create_task(keep_alive(self._connection, settings.ping_interval, lambda: self._heard))
        tasks = [alive, asyncio.create_task(self._receive()), asyncio.create_task(self._send_records())]
        code, reason = 1000, ""
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if alive in done and alive.result():
                seconds = SILENT_INTERVALS * settings.ping_interval
                fields = {"kind": "silent", "peer": self._address, "seconds": seconds}
                _log.warning("the client %(peer)s is closed: it answered no ping for %(seconds)g s", fields)
            for task in done:
                task.result()
        except ConnectionClosed:
            pass
        except _ProtocolError as error:
            self._totals.refused += 1
            code, reason = protocol.CloseCode.PROTOCOL, str(error)[:120]
        except _SlowError:
            self._totals.slow += 1
            seconds = settings.slow_timeout
            fields = {"kind": "slow", "peer": self._address, "seconds": seconds}
            _log.warning("the client %(peer)s is closed: it accepted nothing for %(seconds)g s", fields)
            code, reason = protocol.CloseCode.SLOW, "nothing was accepted for too long"
        except CardinalError as error:
            fields = {"kind": "unavailable", "peer": self._address, "error": error}
            _log.warning("the client %(peer)s is disconnected: %(error)s", fields)
            code, reason = protocol.CloseCode.UNAVAILABLE, "the stream cannot be read now"
        except Exception:  # noqa: BLE001 - the outermost loop of a client
            _log.exception("the client %(peer)s is disconnected", {"kind": "failed", "peer": self._address})
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
        """Number of records to send, and seconds since the newest sent one."""
        if self._upstream is None:
            return 0, 0.0
        ring = self._upstream.ring
        behind = sum(max(0, ring.ends.get(tp, at) - at) for tp, at in self.plan.wanted.items())
        sent_ms = self._newest_ms or ring.oldest_ms
        return behind, max(0.0, now_ms - sent_ms) / 1000 if behind and sent_ms else 0.0

    @property
    def _address(self) -> str:
        host, port = self._connection.remote_address[:2]
        return f"{host}:{port}"

    def wake(self) -> None:
        """Wake the sending task."""
        self._woken.set()

    # --- requests ------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        async for message in self._connection:
            self._heard = time.monotonic()
            try:
                request = protocol.decode_request(message)
            except RemoteProtocolError as error:
                raise _ProtocolError(str(error)) from None
            try:
                answer = await self._answer(request)
            except CardinalError as error:
                answer = _failed(getattr(request, "id", 0), error)  # credit and pauses cannot fail
            if answer is not None:
                await self._connection.send(protocol.encode_message(answer))

    async def _answer(self, request: protocol.Request) -> protocol.Answer | None:
        match request:
            case protocol.Credit(size):
                self.credit = min(self.credit + size, _CREDIT_MAX)
            case protocol.Pause(partitions):
                self.plan = replace(self.plan, paused=frozenset(partitions), index=0)
            case protocol.Read(number, positions):
                return self._read(number, protocol.by_partition(positions))
            case protocol.ListTopics(number):
                return protocol.Topics(number, tuple(sorted(await self._streams.list_topics())))
            case protocol.GetWatermarks(number, topics):
                watermarks = await self._enter(topics).watermarks()
                return protocol.Watermarks(number, _rows_of(topics, watermarks))
            case protocol.FindTime(number, topics, timestamp_ms):
                offsets = await self._enter(topics).offsets_for_time(timestamp_ms)
                return protocol.Offsets(number, _rows_of(topics, offsets))
        self.wake()
        return None

    def _enter(self, topics: Sequence[str]) -> Upstream:
        """Attach the client to the upstream of these topics."""
        upstream = self._streams.find(frozenset(topics))
        if upstream is not self._upstream:
            self._leave()
            self.plan, self._upstream = Plan(), upstream
            upstream.clients.add(self)
        return upstream

    def _leave(self) -> None:
        self._release()
        if self._upstream is not None:
            self._streams.leave(self, self._upstream)
            self._upstream = None

    def _read(self, number: int, positions: dict[Partition, int]) -> protocol.Failed | None:
        try:
            upstream = self._enter([topic for topic, _ in positions])
        except CardinalError as error:
            self.plan = Plan()
            return _failed(0, error, read=number)
        self.plan = Plan(number, positions, upstream.resets)
        self.wake()
        return None

    # --- records -------------------------------------------------------------------------------------------------

    @property
    def reads(self) -> bool:
        """True while it reads, without an error."""
        return bool(self.plan.wanted)

    async def _send_records(self) -> None:
        while True:
            upstream, plan = self._upstream, self.plan
            if upstream is None or not (wanted := plan.wanted):
                self._release()
                await self._changed()
            elif error := upstream.error or upstream.lost(plan.positions, plan.resets):
                await self._end_reading(plan, error)
            elif not plan.exists:
                await self._check_ends(plan, upstream)
            elif self.credit <= 0:
                await self._changed()
            elif (found := upstream.ring.after(plan.index, wanted)) is None:
                await self._send_older(plan, upstream)
            else:
                self._release()
                if found[0]:
                    await self._send(plan, found[0])
                plan.index = found[1]
                if not found[0]:
                    await self._changed()

    async def _check_ends(self, plan: Plan, upstream: Upstream) -> None:
        """End a reading beyond the end: the topic was recreated while the client was unreachable."""
        ends = upstream.ring.ends
        if any(at > ends.get(tp, 0) for tp, at in plan.positions.items()):
            try:
                ends = {tp: high for tp, (_, high) in (await upstream.watermarks()).items()}
            except UnreachableError:
                await asyncio.sleep(_RETRY_SECONDS)
                return
            except TopicError as error:
                await self._end_reading(plan, error)
                return
        missing = {tp: (at, ends[tp]) for tp, at in plan.positions.items() if at > ends.get(tp, at)}
        if missing:
            await self._end_reading(plan, CursorExpiredError("beyond the end", missing=missing))
        plan.exists = True

    async def _send_older(self, plan: Plan, upstream: Upstream) -> None:
        """Send the next chunks of a catch-up read."""
        try:
            if self._older is None or self._older.closed:
                topics = tuple(sorted({topic for topic, _ in plan.positions}))
                self._older = await self._catch_up.open(self, upstream, topics)
            chunks = await self._older.read(plan.wanted)
        except (CursorExpiredError, LogDamagedError, TopicError) as error:
            self._release()
            if plan is self.plan:
                await self._end_reading(plan, error)
        except UnreachableError as error:
            if self._older is not None and not self._older.closed:  # else its slot was taken back
                self._release()
                fields = {"kind": "catch_up", "peer": self._address, "error": error}
                _log.warning("a catch-up read failed, retrying: %(error)s", fields)
                await asyncio.sleep(_RETRY_SECONDS)
        else:
            if chunks and plan is self.plan:
                await self._send(plan, chunks)

    def _release(self) -> None:
        older, self._older = self._older, None
        if older is not None:
            self._catch_up.release(older)

    async def _send(self, plan: Plan, chunks: Sequence[protocol.Chunk]) -> None:
        frame = protocol.encode_frame(plan.id, chunks)
        for chunk in chunks:
            plan.positions[chunk.tp] = chunk.next
            self._newest_ms = chunk.newest_ms or self._newest_ms
            self._totals.records += chunk.count
        self._totals.bytes += len(frame)
        self.credit -= len(frame)
        try:
            async with asyncio.timeout(self._settings.slow_timeout) as limit:
                await self._connection.send(self._fragments(frame, limit))
        except TimeoutError:
            raise _SlowError from None
        self._heard = time.monotonic()

    def _fragments(self, frame: bytes, limit: asyncio.Timeout) -> Iterator[memoryview]:
        """Fragments of a message, so that pings are sent in between; each one is a sign of life of the client."""
        view = memoryview(frame)
        size = max(_FRAGMENT_BYTES, -(-len(view) // _FRAGMENTS_MAX))
        for at in range(0, len(view), size):
            self._heard = time.monotonic()
            limit.reschedule(asyncio.get_running_loop().time() + self._settings.slow_timeout)
            yield view[at : at + size]

    async def _changed(self) -> None:
        """Wait until something changes after the last call."""
        await self._woken.wait()
        self._woken.clear()

    async def _end_reading(self, plan: Plan, error: CardinalError) -> None:
        """End the reading; the connection stays."""
        if plan is self.plan:
            self.plan = Plan()
        await self._connection.send(protocol.encode_message(_failed(0, error, read=plan.id)))


def _rows_of(topics: Sequence[str], found: Mapping[Partition, Any]) -> tuple[tuple[str, int, Any], ...]:
    return protocol.rows({tp: value for tp, value in found.items() if tp[0] in topics})


def _failed(number: int, error: CardinalError, *, read: int = 0) -> protocol.Failed:
    """The answer for an error: names topics and positions, nothing about the upstream."""
    match error:
        case TopicError(topic=topic):
            return protocol.Failed(number, protocol.Reason.TOPIC, topic, read=read)
        case CursorExpiredError(missing=missing):
            return protocol.Failed(number, protocol.Reason.EXPIRED, partitions=protocol.rows(missing), read=read)
        case UnreachableError():
            return protocol.Failed(number, protocol.Reason.UNAVAILABLE, read=read)
        case _:
            _log.error("a request of a client failed: %(error)s", {"kind": "failed", "error": error})
            return protocol.Failed(number, protocol.Reason.FAILED, read=read)
