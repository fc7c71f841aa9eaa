"""One client of `cardinal serve`: what it asks, and what it is sent.

Two tasks: one receives requests and answers them in order, one sends records while there is credit. Where a position
lies in the ring, the ring's chunks are sent as they are; where it is older, a source of the client's own reads up to
the ring.

Rules:

1. Nothing is kept for a client but its positions: it is sent a frame when it has given leave for it. One that gives
   none costs nothing; when it gives leave again, it is sent what follows its positions.
2. One that has taken nothing for ``slow_seconds`` and has fallen out of the ring is closed with
   :attr:`~cardinal.transports.websocket.wire.CloseCode.SLOW`; it may come back at its position. One whose positions are
   not kept at all any more is told so (FAILED, expired).
3. Positions are checked when they are named: a client is never sent less than it asked for without being told.
4. What is no frame of the protocol closes the connection with ``CloseCode.PROTOCOL``.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import (
    CardinalError,
    CursorExpiredError,
    RemoteProtocolError,
    TopicError,
    UnreachableError,
)
from cardinal.transports.websocket.chunks import encode_chunks
from cardinal.transports.websocket.frames import (
    GO_ON,
    Answer,
    CloseCode,
    Credit,
    Failed,
    MarkList,
    Marks,
    Names,
    OffsetList,
    Open,
    Read,
    Reading,
    Reason,
    Times,
    Topics,
)
from cardinal.transports.websocket.wire import decode_request, encode_answer, encode_records

from .ring import FRAME_BYTES
from .stream import Appetite

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source
    from cardinal.transports.websocket.chunks import Chunk

    from .errands import Errand, Errands
    from .stream import Stream
    from .streams import Streams

_CREDIT_MAX: Final = 1 << 40
_TICK_SECONDS: Final = 0.5
_TURN_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_AGAIN_SECONDS: Final = 0.5
_ERRAND_BYTES: Final = 1 << 20

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Plan:
    """What a client reads: by which READ, which partitions, and how far the ring has been looked through for it."""

    id: int
    wanted: frozenset[Partition]
    place: int = 0


@dataclass(slots=True)
class Counts:
    """What sessions have done, for all of a server."""

    bytes: int = 0
    frames: int = 0
    slow: int = 0
    refused: int = 0
    clients: set[Session] = field(default_factory=set)


class _TooSlowError(Exception):
    """Ends a session by rule 2."""


class Session:
    """See the module.

    Arguments:
        socket: the websocket.
        streams: what is served.
        errands: sources for what is older than the ring.
        counts: told of what happens.
        slow_seconds: see rule 2.

    """

    def __init__(
        self,
        socket: Any,  # noqa: ANN401 - the library is imported late
        streams: Streams,
        errands: Errands,
        counts: Counts,
        *,
        slow_seconds: float,
    ) -> None:
        self._socket = socket
        self._streams = streams
        self._errands = errands
        self._counts = counts
        self._slow_seconds = slow_seconds
        self._stream: Stream | None = None
        self._topics: frozenset[str] = frozenset()
        self._positions: dict[Partition, int] = {}
        self._plan = _Plan(0, frozenset())
        self._credit = 0
        self._credited = time.monotonic()
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Serve until the client leaves, breaks the rules or is too slow."""
        self._counts.clients.add(self)
        tasks = [asyncio.create_task(self._receive()), asyncio.create_task(self._send())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            self._counts.clients.discard(self)
            if self._stream is not None:
                self._stream.forget(self._wake.set)
                await self._streams.leave(self._stream)
        await self._say_goodbye(ends)

    async def _say_goodbye(self, ends: Sequence[BaseException | None]) -> None:
        for end in ends:
            match end:
                case RemoteProtocolError():
                    self._counts.refused += 1
                    await self._socket.close(CloseCode.PROTOCOL, str(end)[:120])
                case _TooSlowError():
                    self._counts.slow += 1
                    await self._socket.close(CloseCode.SLOW, "nothing was taken for too long: come back")
                case CardinalError():
                    _log.warning("a client is sent away: %s", end)
                    await self._socket.close(CloseCode.UPSTREAM, "what is served cannot be read now")
                case None | asyncio.CancelledError():
                    pass
                case _:
                    if not isinstance(end, self._streams.closed_error):
                        raise end

    # --- requests ------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        async for message in self._socket:
            frame = decode_request(message)
            if isinstance(frame, Credit):
                self._credit = min(self._credit + frame.size, _CREDIT_MAX)
                self._credited = time.monotonic()
                self._wake.set()
                continue
            try:
                answer = await self._answer(frame)
            except CardinalError as error:
                if isinstance(error, RemoteProtocolError):
                    raise
                answer = _failed(frame.id, error)
            if answer is not None:
                await self._socket.send(encode_answer(answer))
            if isinstance(answer, Reading) and isinstance(frame, Read):
                self._read(frame)

    async def _answer(self, frame: Open | Topics | Marks | Times | Read) -> Answer | None:
        match frame:
            case Topics(number):
                return Names(number, tuple(sorted(await self._streams.topics())))
            case Open(number, topics):
                await self._open(topics)
                return MarkList(number, self._mine(await self._opened().marks()))
            case Marks(number):
                return MarkList(number, self._mine(await self._opened().marks()))
            case Times(number, timestamp_ms):
                return OffsetList(number, self._mine(await self._opened().times(timestamp_ms)))
            case Read(number):
                if number <= self._plan.id:
                    return None
                await self._check(frame.positions)
                return Reading(number)

    async def _open(self, topics: Iterable[str]) -> None:
        chosen = frozenset(topics)
        if self._stream is not None and chosen != self._topics:
            raise RemoteProtocolError("a connection is about the topics that it was opened for")
        if self._stream is None:
            self._stream = await self._streams.enter(chosen)
            self._topics = chosen
            self._stream.listen(self._wake.set)

    def _opened(self) -> Stream:
        if self._stream is None:
            raise RemoteProtocolError("a connection begins with the topics that it is about")
        return self._stream

    def _mine(self, found: Mapping[Partition, Any]) -> dict[Partition, Any]:
        return {where: value for where, value in found.items() if where[0] in self._topics}

    async def _check(self, positions: Mapping[Partition, int]) -> None:
        """Refuse positions that nothing can be sent from."""
        ring = self._opened().ring
        unsure: dict[Partition, int] = {}
        for where, position in positions.items():
            if position == GO_ON:
                if where not in self._positions:
                    raise RemoteProtocolError(f"nothing was read of {where[0]!r}:{where[1]}, so it cannot go on")
            elif where[0] not in self._topics or not ring.covers(where, position):
                unsure[where] = position
        if not unsure:
            return
        marks = self._mine(await self._opened().marks())
        for where in unsure:
            if where not in marks:
                raise TopicError("there is no such partition", topic=where[0])
        missing = {
            where: (position, marks[where][position > marks[where][1]])
            for where, position in unsure.items()
            if not marks[where][0] <= position <= marks[where][1]
        }
        if missing:
            raise CursorExpiredError("not kept", missing=missing)

    def _read(self, frame: Read) -> None:
        for where, position in frame.positions.items():
            if position != GO_ON:
                self._positions[where] = position
        self._plan = _Plan(frame.id, frozenset(frame.positions))
        self._wake.set()

    # --- records -------------------------------------------------------------------------------------------------

    async def _send(self) -> None:
        while True:
            self._wake.clear()
            stream, plan = self._stream, self._plan
            if stream is None or not plan.wanted:
                await self._wake.wait()
            elif stream.error is not None:
                await self._fail(stream.error)
            elif self._credit <= 0:
                await self._wait_for_credit(stream)
            elif (found := stream.ring.after(plan.place, self._wanted(plan))) is None:
                await self._catch_up(stream)
            elif found.chunks:
                plan.place = found.place
                await self._put(plan, found.chunks)
            else:
                plan.place = found.place
                await self._wake.wait()

    def _wanted(self, plan: _Plan) -> dict[Partition, int]:
        return {where: self._positions[where] for where in plan.wanted}

    async def _wait_for_credit(self, stream: Stream) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK_SECONDS):
                await self._wake.wait()
        idle = time.monotonic() - self._credited
        if self._credit <= 0 and idle > self._slow_seconds and not stream.ring.holds(self._wanted(self._plan)):
            raise _TooSlowError

    async def _put(self, plan: _Plan, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self._positions[chunk.where] = chunk.next
        frame = encode_records(plan.id, [chunk.data for chunk in chunks])
        self._credit -= len(frame)
        self._counts.bytes += len(frame)
        self._counts.frames += 1
        await self._socket.send(frame)

    async def _fail(self, error: CardinalError) -> None:
        """The reading ends; the connection goes on."""
        self._plan = _Plan(self._plan.id, frozenset())
        await self._socket.send(encode_answer(_failed(0, error)))

    # --- what is older than the ring -------------------------------------------------------------------------------

    async def _catch_up(self, stream: Stream) -> None:
        """One turn with a source of its own."""
        topics = tuple(sorted(self._topics))
        try:
            async with self._errands.turn(lambda: self._streams.open(topics)) as errand:
                await self._turn(stream, errand)
        except (CursorExpiredError, TopicError) as error:
            await self._fail(error)
        except UnreachableError as error:
            _log.warning("what is served cannot be read now: %s", error)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _turn(self, stream: Stream, errand: Errand) -> None:
        began = time.monotonic()
        appetite = Appetite(_ERRAND_BYTES)
        reading: _Plan | None = None
        while not stream.ring.holds(self._wanted(self._plan)) and self._plan.wanted:
            if self._errands.waiting and time.monotonic() - began > _TURN_SECONDS:
                return
            self._wake.clear()
            if self._credit <= 0:
                await self._wait_for_credit(stream)
                if self._credit <= 0 and self._errands.waiting:
                    return
            elif reading is not self._plan:
                plan = self._plan
                await self._aim(errand, reading, plan)
                reading = plan
            else:
                await self._step(errand, reading, appetite)

    async def _aim(self, errand: Errand, before: _Plan | None, plan: _Plan) -> None:
        """Let the source read what the plan wants. To pause costs less than to assign anew."""
        wanted = self._wanted(plan)

        def aim(source: Source) -> None:
            there = source.positions()
            if before is not None and all(there.get(where) == at for where, at in wanted.items()):
                source.pause(there.keys() - wanted.keys())
            else:
                source.assign(wanted)

        await errand.use(aim)

    async def _step(self, errand: Errand, plan: _Plan, appetite: Appetite) -> None:
        """Poll once, and send what came, frame by frame."""

        def poll(source: Source) -> list[Chunk]:
            before = source.positions()
            records = source.poll(appetite.records, _POLL_SECONDS)
            chunks = encode_chunks(records, before, source.positions())
            appetite.had(len(records), sum(len(chunk.data) for chunk in chunks))
            return chunks

        chunks: list[Chunk] = await errand.use(poll)
        while chunks and self._plan is plan:
            if self._credit <= 0:
                self._wake.clear()
                await self._wait_for_credit(self._opened())
                if self._credit <= 0 and self._errands.waiting:
                    return  # what is left is read again in the next turn
                continue
            size = count = 0
            while count < len(chunks) and size < FRAME_BYTES:
                size += len(chunks[count].data)
                count += 1
            await self._put(plan, chunks[:count])
            del chunks[:count]


def _failed(number: int, error: CardinalError) -> Failed:
    """What a client is told: which of its topics and positions it is about, nothing of what the server reads from."""
    match error:
        case TopicError(topic=topic):
            return Failed(number, Reason.TOPIC, topic)
        case CursorExpiredError(missing=missing):
            return Failed(number, Reason.EXPIRED, places=dict(missing))
        case UnreachableError():
            return Failed(number, Reason.AWAY)
        case _:
            _log.error("a request of a client failed: %s", error)
            return Failed(number, Reason.FAILED)
