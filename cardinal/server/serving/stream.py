"""One source for all clients: a thread that reads it into the ring, and a second connection for questions.

Rules:

1. A source belongs to one thread. The thread that reads is never asked anything: questions (watermarks, times) have a
   source of their own, on which nothing is read.
2. Questions that are asked while one is under way are answered together by the next one.
3. What the source reads from may go away: it is waited for. What retention removes before it is read is passed over
   for the ring; clients that need it are told by their own positions.
4. Where the source stands behind the end, or above other records than it had read (a topic made anew, a log cut
   short), every reading of that topic is ended, and the ring begins anew: offsets of before mean nothing any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from cardinal._concurrency import new_future
from cardinal.errors import CardinalError, CursorExpiredError, RefusedError, TopicError, TransportError
from cardinal.transports.websocket.chunks import encode_chunks

from .ring import Places, Ring
from .rounds import Rounds
from .threads import Threads

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from concurrent.futures import Future

    from cardinal.protocols.streams.types import Partition
    from cardinal.transports import Source

Marks = dict["Partition", tuple[int, int]]

POLL_BYTES: Final = 4 << 20
_POLL_MAX: Final = 10_000
_POLL_FIRST: Final = 1
_POLL_SECONDS: Final = 0.2
_PARTITIONS_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 0.5

_log = logging.getLogger(__name__)


class Appetite:
    """How many records to ask a source for, so that they are about so many bytes: a source counts records only.

    It begins with one, which may be of any size, and goes up by steps: the next ones may be larger. Where they are at
    once, the source's own bound counts: of Kafka what its client has fetched, of a folder some MiB.

    Arguments:
        size: bytes to get at once.

    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.records = _POLL_FIRST

    def had(self, records: int, size: int) -> None:
        """So many came, of so many bytes in all."""
        if records:
            fitting = self._size * records // max(size, 1)
            self.records = max(1, min(fitting, 2 * self.records, _POLL_MAX))


class Stream:
    """See the module. Made and used on the event loop.

    Arguments:
        topics: the topics that it reads.
        make: opens a source of them; called on other threads.
        ring: what it fills.
        begin: which positions to begin at, of the watermarks.

    """

    def __init__(
        self,
        topics: tuple[str, ...],
        make: Callable[[], Source],
        ring: Ring,
        begin: Callable[[Marks], Mapping[Partition, int]],
    ) -> None:
        self.topics = frozenset(topics)
        self.ring = ring
        self.error: CardinalError | None = None
        self.reading = False
        self.records = 0
        self.users = 0
        self._make = make
        self._begin = begin
        self._listeners: set[Callable[[], None]] = set()
        self._loop = asyncio.get_running_loop()
        self._told = threading.Event()
        self._stop = threading.Event()
        self._ended: Future[None] | None = None
        self._asker: Source | None = None
        self._asking = Threads(1, "cardinal-serve-ask")
        self._rounds = Rounds(self._ask_marks)
        self._counted = 0.0
        self._known: frozenset[Partition] = frozenset()

    # --- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open both sources and begin to read. Raises what :func:`cardinal.transports.open_source` does."""
        source = await self._asking.run(self._open)
        self._ended = new_future()
        reading = (source, self._ended)
        threading.Thread(target=self._read, args=reading, name="cardinal-serve-read", daemon=True).start()

    async def stop(self) -> None:
        """End the reading and release both."""
        self._stop.set()
        self._asking.submit(self._close_asker)
        ends: list[Awaitable[None]] = [self._asking.stop()]
        if self._ended is not None:
            ends.append(asyncio.wrap_future(self._ended))
        await asyncio.gather(*ends)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call this on the event loop whenever there is something new."""
        self._listeners.add(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Call it no longer."""
        self._listeners.discard(listener)

    # --- questions ---------------------------------------------------------------------------------------------

    async def marks(self) -> Marks:
        """Start and end of every partition, asked for after this call. CardinalError: the source's."""
        return await self._rounds.ask()

    async def times(self, timestamp_ms: int) -> dict[Partition, int]:
        """The first offset of every partition whose record is not older."""

        def ask(source: Source) -> dict[Partition, int]:
            return source.offsets_for_time(timestamp_ms)

        found: dict[Partition, int] = await self._ask(ask)
        return found

    async def _ask_marks(self) -> Marks:
        marks: Marks = await self._ask(self._look)
        # The end of what clients were sent already is never below the end that they are told.
        ends = self.ring.ends()
        return {where: (low, max(high, ends.get(where, high))) for where, (low, high) in marks.items()}

    async def _ask(self, ask: Callable[[Source], Any]) -> Any:  # noqa: ANN401 - what the question gives
        return await self._asking.run(lambda: self._answer(ask))

    def _answer(self, ask: Callable[[Source], Any]) -> Any:  # noqa: ANN401 - the same
        if self._asker is None:
            self._asker = self._make()
        return ask(self._asker)

    def _close_asker(self) -> None:
        if self._asker is not None:
            self._asker.close()

    def _look(self, source: Source) -> Marks:
        now = time.monotonic()
        if now - self._counted > _PARTITIONS_SECONDS:
            self._counted = now
            source.partitions()
        return source.watermarks()

    # --- the thread that reads -----------------------------------------------------------------------------------

    def _open(self) -> Source:
        source = self._make()
        try:
            self._assign(source)
        except BaseException:
            source.close()
            raise
        return source

    def _assign(self, source: Source) -> None:
        positions = dict(self._begin(source.watermarks()))
        source.assign(positions)
        self.ring.begin(positions)

    def _read(self, source: Source, ended: Future[None]) -> None:
        self.reading = True
        try:
            self._read_on(source)
        except CardinalError as error:
            self.error = error
        except Exception as error:  # noqa: BLE001 - nobody may be left to wait for a thread that is gone
            _log.exception("the reading of what is served has failed")
            self.error = TransportError(f"what is served cannot be read any more: {type(error).__name__}; see the log")
        self.reading = False
        self._tell()
        try:
            source.close()
        finally:
            ended.set_result(None)

    def _read_on(self, source: Source) -> None:
        """Until told to stop. CardinalError: what does not heal by itself."""
        appetite = Appetite(POLL_BYTES)
        looked, had = time.monotonic(), 0
        expired: CursorExpiredError | None = None
        while not self._stop.is_set():
            try:
                if expired is not None:
                    self._begin_again(source, expired)
                    expired = None
                self._read_once(source, appetite)
                if time.monotonic() - looked > _PARTITIONS_SECONDS:
                    looked = time.monotonic()
                    self._look_for_partitions(source)
                    if self.records == had:
                        # A source whose server is away just gives nothing; a question to it does not.
                        source.watermarks()
                    had, self.reading = self.records, True
            except CursorExpiredError as error:
                expired = error
            except (TopicError, RefusedError):
                raise
            except TransportError as error:
                if self.reading:
                    _log.warning("what is served cannot be read now: %s", error)
                self.reading = False
                self._stop.wait(_AGAIN_SECONDS)

    def _begin_again(self, source: Source, error: CursorExpiredError) -> None:
        """Read on from the ends, where the source can not be read on from where it stands."""
        marks = source.watermarks()
        lost = _lost(source.positions(), marks, error)
        source.assign({where: high for where, (_, high) in marks.items()})
        self.ring.begin(source.positions(), lost)
        if lost:
            _log.warning("what is served was made anew, or has lost records; who reads it is told: %s", error)
        else:
            _log.warning("records were removed before they were read, and are passed over: %s", error)
        self._tell()

    def _read_once(self, source: Source, appetite: Appetite) -> None:
        before = source.positions()
        records = source.poll(appetite.records, _POLL_SECONDS)
        chunks = encode_chunks(records, before, source.positions())
        if chunks:
            appetite.had(len(records), sum(len(chunk.data) for chunk in chunks))
            self.ring.append(chunks)
            self.records += len(records)
            self._tell()

    def _look_for_partitions(self, source: Source) -> None:
        positions = source.positions()
        added = set(source.partitions()) - positions.keys()
        if added:
            marks = source.watermarks()
            lows = {where: marks[where][0] for where in added}
            source.assign(positions | lows)
            self.ring.add(lows)
            self._tell()

    def _tell(self) -> None:
        """Wake everybody, once for as much as has come until they run."""
        if not self._told.is_set():
            self._told.set()
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._told.clear()
        for listener in tuple(self._listeners):
            listener()


def _lost(positions: Mapping[Partition, int], marks: Marks, error: CursorExpiredError) -> Places:
    """Where a source stood, and where that partition ends now, if more was lost than what retention removes."""
    at_fault = {where: at for where, (at, _) in error.missing.items() if where not in marks or at >= marks[where][0]}
    if error.missing and not at_fault:
        return {}
    # A topic that was made anew is so in all of its partitions, and the error names one.
    behind = {where: at for where, at in positions.items() if where in marks and at > marks[where][1]}
    found = {
        where: (at, min(at, marks[where][1] if where in marks else 0)) for where, at in (at_fault | behind).items()
    }
    return found or {where: (at, at) for where, at in positions.items()}
