"""One client of `cardinal serve`: what it asks, and what it is sent.

Two tasks: one receives requests and answers them in order, one sends records while there is credit. Where a position
lies in the ring, the ring's chunks are sent as they are; where it is older, a source of the client's own reads up to
the ring.

Rules:

1. Nothing is kept for a client but its positions: it is sent a frame when it has given leave for it. One that gives
   none costs nothing; when it gives leave again, it is sent what follows its positions.
2. One that has taken nothing for ``slow_seconds`` and has fallen out of the ring is closed with
   :attr:`~cardinal.transports.websocket.frames.CloseCode.SLOW`; it may come back at its position. One whose positions
   are not kept at all any more is told so (FAILED, expired).
3. Positions are checked when they are named: a client is never sent less than it asked for without being told.
4. What is no frame of the protocol closes the connection with ``CloseCode.PROTOCOL``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from cardinal.errors import CardinalError, CursorExpiredError, RemoteProtocolError, TopicError
from cardinal.transports.websocket import frames
from cardinal.transports.websocket.wire import decode_request, encode_answer

from .refusals import failed
from .sending import Sender, TooSlowError
from .taking import Taking

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cardinal.protocols.streams.types import Partition

    from .counts import Counts
    from .errands import Errands
    from .stream import Stream
    from .streams import Streams

_log = logging.getLogger(__name__)


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
        self._counts = counts
        self._taking = Taking(socket.transport.get_write_buffer_size)
        self._sender = Sender(socket, self._taking, streams, errands, counts, slow_seconds=slow_seconds)

    async def run(self) -> None:
        """Serve until the client leaves, breaks the rules or is too slow."""
        self._counts.clients.add(self._taking)
        # Who waits for what is served does not see that the client has gone.
        works = (self._receive(), self._sender.run(), self._socket.wait_closed())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            self._counts.clients.discard(self._taking)
            if (stream := self._taking.stream) is not None:
                stream.forget(self._taking.wake.set)
                self._streams.leave(stream)
        await self._say_goodbye(ends)

    async def _say_goodbye(self, ends: Sequence[BaseException | None]) -> None:
        for end in ends:
            match end:
                case RemoteProtocolError():
                    self._counts.refused += 1
                    await self._socket.close(frames.CloseCode.PROTOCOL, str(end)[:120])
                case TooSlowError():
                    self._counts.slow += 1
                    await self._socket.close(frames.CloseCode.SLOW, "nothing was taken for too long: come back")
                case CardinalError():
                    _log.warning("a client is sent away: %s", end)
                    await self._socket.close(frames.CloseCode.UPSTREAM, "what is served cannot be read now")
                case None | asyncio.CancelledError():
                    pass
                case _:
                    if not isinstance(end, self._streams.closed_error):
                        raise end

    # --- requests ------------------------------------------------------------------------------------------------

    async def _receive(self) -> None:
        async for message in self._socket:
            frame = decode_request(message)
            if isinstance(frame, frames.Credit):
                self._taking.give(frame.size)
                continue
            losses = self._taking.stream.ring.losses if self._taking.stream else 0
            try:
                answer = await self._answer(frame)
            except CardinalError as error:
                if isinstance(error, RemoteProtocolError):
                    raise
                answer = failed(frame.id, error)
            if answer is not None:
                await self._socket.send(encode_answer(answer))
            if isinstance(answer, frames.Reading) and isinstance(frame, frames.Read):
                self._taking.read(frame, losses)

    async def _answer(
        self, frame: frames.Open | frames.Topics | frames.Marks | frames.Times | frames.Read
    ) -> frames.Answer | None:
        match frame:
            case frames.Topics(number):
                return frames.Names(number, tuple(sorted(await self._streams.topics())))
            case frames.Open(number, topics):
                await self._open(topics)
                return frames.MarkList(number, self._mine(await self._opened().marks()))
            case frames.Marks(number):
                return frames.MarkList(number, self._mine(await self._opened().marks()))
            case frames.Times(number, timestamp_ms):
                return frames.OffsetList(number, self._mine(await self._opened().times(timestamp_ms)))
            case frames.Read(number):
                if number <= self._taking.plan.id:
                    return None
                await self._check(frame.positions)
                return frames.Reading(number)

    async def _open(self, topics: Iterable[str]) -> None:
        chosen = frozenset(topics)
        if self._taking.stream is None:
            self._taking.open(await self._streams.enter(chosen), chosen)
        elif chosen != self._taking.topics:
            raise RemoteProtocolError("a connection is about the topics that it was opened for")

    def _opened(self) -> Stream:
        if self._taking.stream is None:
            raise RemoteProtocolError("a connection begins with the topics that it is about")
        return self._taking.stream

    def _mine(self, found: Mapping[Partition, Any]) -> dict[Partition, Any]:
        return {where: value for where, value in found.items() if where[0] in self._taking.topics}

    async def _check(self, positions: Mapping[Partition, int]) -> None:
        """Refuse positions that nothing can be sent from."""
        ring = self._opened().ring
        unsure: dict[Partition, int] = {}
        for where, position in positions.items():
            if position == frames.GO_ON:
                if where not in self._taking.positions:
                    raise RemoteProtocolError(f"nothing was read of {where[0]!r}:{where[1]}, so it cannot go on")
            elif where[0] not in self._taking.topics or not ring.covers(where, position):
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
