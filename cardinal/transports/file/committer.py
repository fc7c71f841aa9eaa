"""Group commit: calls that arrive while the disk is busy are written together.

Rules:

1. Calls are written in the order in which they were submitted, each acknowledged when it is written completely and
   synced according to ``fsync``.
2. A call that does not fit on the disk fails alone, with a DeliveryError. When the writer stops for good, every call
   in flight fails, and every later one.
3. Bytes in flight are bounded. The writing thread, on which futures end, never waits for capacity.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.errors import CardinalError, DeliveryError, TransportError
from cardinal.protocols.streams.types import Record
from cardinal.transports.partitioner import fnv1a_partition

from .settings import Fsync

if TYPE_CHECKING:
    from .settings import FileSettings
    from .writer import LogWriter

_HASH: Final = slice(1, 33)
_GROUP_BYTES: Final = 4 << 20
_BLOCK_BYTES: Final = 256 << 10
"""Bytes of an Avro block after which the next one begins: a reader decodes complete blocks."""

_CLOSE_SECONDS: Final = 10.0

Headers: TypeAlias = tuple[tuple[str, bytes], ...]
Message: TypeAlias = tuple[str, bytes, bytes, Headers, int | None]
"""Topic, key, value, headers, and the time of a replayed record."""


@dataclass(slots=True)
class Call:
    """Messages that were sent together, and the bytes of their keys and values."""

    messages: list[Message]
    size: int
    future: Future[None] = field(default_factory=Future)

    @property
    def block_hash(self) -> bytes:
        """Hash of the block that the messages belong to."""
        return self.messages[0][1][_HASH]


class Committer:
    """Writer thread of a sink. It closes the writer at its end.

    Arguments:
        writer: the folder's writer.
        settings: a URL's options.
        numbers: for every topic its partitions' numbers; creating a topic adds to it, under ``writing``.
        clock: seconds since 1970, for timestamps.

    Attributes:
        writing: held while the writer is used.

    """

    def __init__(
        self, writer: LogWriter, settings: FileSettings, numbers: dict[str, list[int]], clock: Callable[[], float]
    ) -> None:
        self._writer = writer
        self._settings = settings
        self._numbers = numbers
        self._clock = clock
        self.writing = threading.RLock()  # a future's callback may open a channel
        self._changed = threading.Condition()
        self._calls: deque[Call] = deque()
        self._in_flight = 0
        self._open_calls = 0
        self._failure: TransportError | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="cardinal-file-sink", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def check(self) -> None:
        """TransportError where no more calls are accepted."""
        if self._closed:
            raise TransportError("this producer is closed; open another one")
        if self._failure is not None:
            raise self._failure

    def now(self) -> int:
        """The time for new records, milliseconds."""
        # Lookups by time need ascending times, also when the clock jumps back.
        return max(self._writer.latest, int(self._clock() * 1000))

    def submit(self, call: Call, *, wait: bool) -> Future[None]:
        """Queue a call for writing; ``wait``: until there is capacity for it."""
        call.future.set_running_or_notify_cancel()
        if not call.messages:
            call.future.set_result(None)
            return call.future
        with self._changed:
            if wait and threading.current_thread() is not self._thread:
                self._changed.wait_for(
                    lambda: self._in_flight == 0 or self._in_flight + call.size <= self._settings.queue_bytes
                )
            self.check()
            self._in_flight += call.size
            self._open_calls += 1
            self._calls.append(call)
            self._changed.notify_all()
        return call.future

    def flush(self, timeout: float) -> None:
        """Wait until everything submitted is acknowledged or has failed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._open_calls == 0, timeout):
                raise TransportError(
                    f"{self._open_calls} sends are not acknowledged after {timeout:g} s; retry the flush or close"
                )

    def close(self) -> None:
        """Flush for a bounded time, refuse further calls, release the folder. May be called twice."""
        if self._closed:
            return
        with contextlib.suppress(TransportError):
            self.flush(_CLOSE_SECONDS)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    # --- the thread ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._closed)
                calls = self._next_group()
                ending = self._closed and not self._calls
            try:
                with self.writing:
                    if calls:
                        self._write(calls)
            except TransportError as error:
                self._fail_for_good(error, calls)
            if ending and not self._calls:
                break
        with self.writing:
            self._writer.close()

    def _next_group(self) -> list[Call]:
        calls: list[Call] = []
        size = 0
        while self._calls and size < _GROUP_BYTES:
            calls.append(self._calls.popleft())
            size += calls[-1].size
        return calls

    def _write(self, calls: Sequence[Call]) -> None:
        blocks, ends = self._pack(calls)
        complete, error = self._writer.append(blocks)
        written = sum(end < complete for end in ends)
        if written and self._settings.fsync is Fsync.ALWAYS:
            self._writer.sync()
        self._finish(calls[:written], None)
        if error is not None and len(calls) == 1:
            self._finish(calls[written:], error)
        elif error is not None:
            # Calls that do not fit together may fit one by one.
            for call in calls[written:]:
                self._write((call,))

    def _pack(self, calls: Sequence[Call]) -> tuple[list[list[Record]], list[int]]:
        """The calls' records in blocks, and for every call the number of the block that holds its last record."""
        offsets = dict(self._writer.offsets)
        now = self.now()
        blocks: list[list[Record]] = [[]]
        ends: list[int] = []
        size = 0
        for call in calls:
            for topic, key, value, headers, time_ms in call.messages:
                if size >= _BLOCK_BYTES:
                    blocks.append([])
                    size = 0
                numbers = self._numbers[topic]
                tp = (topic, numbers[fnv1a_partition(key, len(numbers))])
                offset = offsets[tp]
                offsets[tp] = offset + 1
                blocks[-1].append(Record(*tp, offset, key, value, now if time_ms is None else time_ms, headers))
                size += len(key) + len(value)
            ends.append(len(blocks) - 1)
        return blocks, ends

    def _finish(self, calls: Sequence[Call], error: OSError | TransportError | None) -> None:
        """Complete these calls. Not under the lock: their callbacks may send."""
        with self._changed:
            self._in_flight -= sum(call.size for call in calls)
            self._open_calls -= len(calls)
            self._changed.notify_all()
        for call in calls:
            if error is None:
                call.future.set_result(None)
            elif isinstance(error, CardinalError):
                call.future.set_exception(error)
            else:
                call.future.set_exception(
                    DeliveryError(
                        f"block 0x{call.block_hash.hex()} could not be written to {self._writer.folder}: "
                        f"{error.strerror}; make room and send it again",
                        block_hash=call.block_hash,
                    )
                )

    def _fail_for_good(self, error: TransportError, calls: Sequence[Call]) -> None:
        """Fail all calls in flight and all later ones: the writer stopped."""
        self._failure = error
        with self._changed:
            waiting = [*(call for call in calls if not call.future.done()), *self._calls]
            self._calls.clear()
        self._finish(waiting, error)
