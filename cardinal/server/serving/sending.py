"""Records to one client: from the ring where its positions lie there, from a source of its own where they are older.

Nothing is sent without leave, and nothing kept for who gives none; rules 1 and 2 of :mod:`.session` are kept here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cardinal.errors import CardinalError, CursorExpiredError, TopicError, UnreachableError
from cardinal.transports.websocket.chunks import encode_chunks
from cardinal.transports.websocket.wire import encode_answer, encode_records

from .refusals import failed
from .ring import FRAME_BYTES
from .stream import Appetite
from .taking import Plan, Taking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.transports import Source
    from cardinal.transports.websocket.chunks import Chunk

    from .counts import Counts
    from .errands import Errand, Errands
    from .stream import Stream
    from .streams import Streams

_TICK_SECONDS: Final = 0.5
_TURN_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_AGAIN_SECONDS: Final = 0.5
_ERRAND_BYTES: Final = 1 << 20

_log = logging.getLogger(__name__)


class TooSlowError(Exception):
    """Ends a session: its client took nothing for too long, and what it would take next is in memory no more."""


@dataclass(slots=True)
class _Turn:
    """With a source of its own: by which plan it reads now, and since when the client has it."""

    errand: Errand
    stream: Stream
    reading: Plan | None = None
    began: float = field(default_factory=time.monotonic)


class Sender:
    """See the module.

    Arguments:
        socket: the websocket.
        taking: what the client takes.
        streams: what is served.
        errands: sources for what is older than the ring.
        counts: told of what is sent.
        slow_seconds: how long a client that has fallen out of the ring may take nothing.

    """

    def __init__(
        self,
        socket: Any,  # noqa: ANN401 - the library is imported late
        taking: Taking,
        streams: Streams,
        errands: Errands,
        counts: Counts,
        *,
        slow_seconds: float,
    ) -> None:
        self._socket = socket
        self._taking = taking
        self._streams = streams
        self._errands = errands
        self._counts = counts
        self._slow_seconds = slow_seconds
        self._appetite = Appetite(_ERRAND_BYTES)  # what it knows of one turn holds for the next
        self._leaving: asyncio.Task[None] | None = None
        """The last frame of a turn, where its client takes longer for it than the turn."""

    async def run(self) -> None:
        """Send until cancelled, or until the client is too slow."""
        try:
            await self._run()
        finally:
            if self._leaving is not None:
                self._leaving.cancel()

    async def _run(self) -> None:
        while True:
            await self._left()
            self._taking.wake.clear()
            stream, plan = self._taking.stream, self._taking.plan
            if stream is None or not plan.wanted:
                await self._taking.wake.wait()
            elif stream.error is not None:
                await self._fail(stream.error)
            elif lost := self._taking.lost():
                await self._fail(CursorExpiredError("what is served was made anew", missing=lost))
            elif self._taking.credit <= 0:
                await self._wait_for_credit(stream)
            else:
                await self._go_on(stream, plan)

    async def _go_on(self, stream: Stream, plan: Plan) -> None:
        """Send what comes next, or wait for it."""
        found = stream.ring.after(plan.place, self._taking.wanted(plan))
        if self._taking.lost():
            return  # the ring began anew since that was looked at: what was found has nothing to do with the positions
        if found is None:
            await self._catch_up(stream)
            return
        plan.place = found.place
        if found.chunks:
            await self._put(self._frame(plan, found.chunks))
        else:
            await self._taking.wake.wait()

    async def _wait_for_credit(self, stream: Stream) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TICK_SECONDS):
                await self._taking.wake.wait()
        idle = time.monotonic() - self._taking.took
        if self._taking.credit <= 0 and idle > self._slow_seconds and not stream.ring.holds(self._taking.wanted()):
            raise TooSlowError

    def _frame(self, plan: Plan, chunks: Sequence[Chunk]) -> bytes:
        for chunk in chunks:
            self._taking.positions[chunk.where] = chunk.next
        frame = encode_records(plan.id, [chunk.data for chunk in chunks])
        self._taking.credit -= len(frame)
        self._counts.bytes += len(frame)
        self._counts.frames += 1
        return frame

    async def _put(self, frame: bytes) -> None:
        await self._socket.send(frame)
        self._taking.took = time.monotonic()  # a large frame takes long on a slow link

    async def _left(self) -> None:
        """Wait until the frame that is under way has left, however long its client takes."""
        if self._leaving is not None:
            await self._leaving
            self._leaving = None

    async def _fail(self, error: CardinalError) -> None:
        """The reading ends; the connection goes on."""
        await self._left()
        self._taking.plan = Plan(self._taking.plan.id, frozenset())
        await self._socket.send(encode_answer(failed(0, error)))

    # --- what is older than the ring -------------------------------------------------------------------------------

    async def _catch_up(self, stream: Stream) -> None:
        """One turn with a source of its own."""
        topics = tuple(sorted(self._taking.topics))
        try:
            async with self._errands.turn(lambda: self._streams.open(topics)) as errand:
                await self._turn(stream, errand)
        except (CursorExpiredError, TopicError) as error:
            await self._fail(error)
        except UnreachableError as error:
            _log.warning("what is served cannot be read now: %s", error)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _turn(self, stream: Stream, errand: Errand) -> None:
        turn = _Turn(errand, stream)
        while not stream.ring.holds(self._taking.wanted()) and self._taking.plan.wanted and not self._taking.lost():
            if self._over(turn):
                return
            self._taking.wake.clear()
            if self._taking.credit <= 0:
                await self._wait_for_credit(stream)
                if self._taking.credit <= 0 and self._errands.waiting:
                    return
            elif turn.reading is not self._taking.plan:
                plan = self._taking.plan
                await self._aim(errand, turn.reading, plan)
                turn.reading = plan
            elif not await self._step(turn, turn.reading):
                return

    def _over(self, turn: _Turn) -> bool:
        return bool(self._errands.waiting) and time.monotonic() - turn.began > _TURN_SECONDS

    async def _aim(self, errand: Errand, before: Plan | None, plan: Plan) -> None:
        """Let the source read what the plan wants. To pause costs less than to assign anew."""
        wanted = self._taking.wanted(plan)

        def aim(source: Source) -> None:
            there = source.positions()
            if before is not None and all(there.get(where) == at for where, at in wanted.items()):
                source.pause(there.keys() - wanted.keys())
            else:
                source.assign(wanted)

        await errand.use(aim)

    async def _step(self, turn: _Turn, plan: Plan) -> bool:
        """Poll once, and send what came, frame by frame; whether all of it went, or is wanted no longer.

        Where it did not, the source stands behind records that were not sent: it must not be polled on. What is left is
        read again in the next turn, by a source that begins before it.
        """

        def poll(source: Source) -> list[Chunk]:
            before = source.positions()
            records = source.poll(self._appetite.records, _POLL_SECONDS)
            chunks = encode_chunks(records, before, source.positions())
            self._appetite.had(len(records), sum(len(chunk.data) for chunk in chunks))
            return chunks

        chunks: list[Chunk] = await turn.errand.use(poll)
        while chunks and self._taking.plan is plan:
            if self._over(turn):
                return False
            if self._taking.credit <= 0:
                self._taking.wake.clear()
                await self._wait_for_credit(turn.stream)
                if self._taking.credit <= 0 and self._errands.waiting:
                    return False
                continue
            size = count = 0
            while count < len(chunks) and size < FRAME_BYTES:
                size += len(chunks[count].data)
                count += 1
            if not await self._send_in(turn, self._frame(plan, chunks[:count])):
                return False
            del chunks[:count]
        return True

    async def _send_in(self, turn: _Turn, frame: bytes) -> bool:
        """Send a frame; False where the turn is over before it has left: that is waited for without the source."""
        self._leaving = leaving = asyncio.create_task(self._put(frame))
        while not (await asyncio.wait({leaving}, timeout=_TICK_SECONDS))[0]:
            if self._over(turn):
                return False
        await self._left()
        return True
