"""A producer's messages to a folder.

Rules:

1. One order: messages stand in the segments in the order in which they were handed over, a block's seal after its
   content. So a seal that can be read means what it has to mean, whatever is cut off behind it.
2. A call is acknowledged when its messages are written whole and on the disk as ``fsync`` says. Calls that wait
   meanwhile go together: one write and one fsync for all of them.
3. A call that the disk has no room for fails alone, with a DeliveryError; it can be sent again when there is room.
4. What is handed over and not acknowledged is bounded in bytes: ``send`` waits, never on the thread that writes, and
   never for a seal alone.

A thread of the sink writes; futures end on it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from cardinal.errors import CardinalError, DeliveryError, OversizeError, TopicError, TransportError
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, Record, Routed, path_text
from cardinal.transports.partitioner import fnv1a_partition

from .settings import Fsync

if TYPE_CHECKING:
    from .settings import FileSettings
    from .writer import LogWriter

_HASH: Final = slice(1, 33)
_PATH: Final = slice(33, None)
_GROUP_BYTES: Final = 4 << 20
_BLOCK_BYTES: Final = 256 << 10
"""When an Avro block has so many bytes, the next call begins another one: a reader decodes whole blocks."""

_CLOSE_SECONDS: Final = 10.0

_Headers: TypeAlias = tuple[tuple[str, bytes], ...]
_Message: TypeAlias = tuple[str, bytes, bytes, _Headers, int | None]
"""Topic, key, value, headers, and the time where it is kept."""


@dataclass(slots=True)
class _Call:
    """What was handed over together."""

    messages: list[_Message]
    size: int
    future: Future[None] = field(default_factory=Future)

    @property
    def block_hash(self) -> bytes:
        return self.messages[0][1][_HASH]


class FileSink:
    """A :class:`~cardinal.transports.base.Sink` (and ``ChannelSink`` and ``RecordSink``) on a folder.

    Arguments:
        writer: the folder's writer; it ends with the sink.
        settings: a URL's options.
        topics: the stream's topics; missing ones are created with a heartbeat in every partition.
        producer_id: goes into a header of every record.
        recent: reads the newest records of the default topic.
        clock: seconds since 1970, for timestamps.

    """

    def __init__(
        self,
        writer: LogWriter,
        settings: FileSettings,
        topics: Sequence[str],
        *,
        producer_id: str,
        recent: Callable[[int], list[Record]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._writer = writer
        self._settings = settings
        who = (PRODUCER_HEADER, producer_id.encode())
        self._headers: _Headers = (who,)
        self._sealed: _Headers = (who, (SEALED_HEADER, b"1"))
        self._recent = recent
        self._clock = clock
        self._numbers: dict[str, list[int]] = {}
        self._changed = threading.Condition()
        self._calls: deque[_Call] = deque()
        self._unsynced: list[_Call] = []
        self._sync_at = 0.0
        self._under_way = 0
        self._open_calls = 0
        self._failure: TransportError | None = None
        self._closed = self._stopping = False
        self._writing = threading.RLock()  # a future's callback may open a channel
        self._create(topics, settings.partitions)
        self._thread = threading.Thread(target=self._work_off, name="cardinal-file-sink", daemon=True)
        self._thread.start()

    # --- Sink ----------------------------------------------------------------------------------------------

    def check(self, messages: Sequence[Routed]) -> None:
        """Refuse what the folder does not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        self._check(messages)

    def send(self, block: Sequence[Routed], seal: Routed | None) -> Future[None]:
        """Hand over messages of one block: see :meth:`cardinal.transports.base.Sink.send`."""
        size = self._check(block if seal is None else (*block, seal))
        messages: list[_Message] = [(topic, key, value, self._headers, None) for topic, key, value in block]
        if seal is not None:
            messages.append((*seal, self._sealed, None))
        return self._hand_over(_Call(messages, size), wait=bool(block))

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Hand over records with their headers and times: see :meth:`cardinal.transports.base.RecordSink.replay`."""
        size = self._check([Routed(record.topic, record.key, record.value) for record in records])
        messages: list[_Message] = [(one.topic, one.key, one.value, one.headers, one.timestamp_ms) for one in records]
        return self._hand_over(_Call(messages, size), wait=True)

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic, at most ``limit`` a partition."""
        return self._recent(limit)

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition: see :meth:`cardinal.transports.base.ChannelSink.open_channel`."""
        self._create((topic,), 1)
        if (count := len(self._numbers[topic])) != 1:
            raise TopicError(
                f"the reorg channel {topic} has {count} partitions, and its order needs exactly one",
                topic=topic,
            )

    def flush(self, timeout: float) -> None:
        """Wait until everything handed over is acknowledged or has failed."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._open_calls == 0, timeout):
                raise TransportError(
                    f"{self._open_calls} sends are not acknowledged after {timeout:g} s; flush again or close"
                )

    def close(self) -> None:
        """Flush for a bounded time, fail what is left, release the folder."""
        if self._closed:
            return
        with contextlib.suppress(TransportError):
            self.flush(_CLOSE_SECONDS)
        with self._changed:
            self._closed = self._stopping = True
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_CLOSE_SECONDS)

    # --- handing over --------------------------------------------------------------------------------------

    def _check(self, messages: Sequence[Routed]) -> int:
        """The size of all these messages, every one of them within the limit and of a topic of ours."""
        if self._closed:
            raise TransportError("this sink is closed; open another one")
        if self._failure is not None:
            raise self._failure
        total, limit = 0, self._settings.max_message_bytes
        for message in messages:
            if message.topic not in self._numbers:
                raise TopicError(f"the topic {message.topic} is not of this stream", topic=message.topic)
            size = len(message.key) + len(message.value)
            if size > limit:
                path = path_text(message.key[_PATH])
                raise OversizeError(
                    f"a message of {size} bytes ({path!r}) is larger than the {limit} of cardinal.max.message.bytes",
                    path=path,
                    size=size,
                    limit=limit,
                )
            total += size
        return total

    def _hand_over(self, call: _Call, *, wait: bool) -> Future[None]:
        call.future.set_running_or_notify_cancel()
        if not call.messages:
            call.future.set_result(None)
            return call.future
        with self._changed:
            if wait and threading.current_thread() is not self._thread:
                self._changed.wait_for(
                    lambda: self._under_way == 0 or self._under_way + call.size <= self._settings.queue_bytes
                )
            if self._closed:
                raise TransportError("this sink is closed; open another one")
            self._under_way += call.size
            self._open_calls += 1
            self._calls.append(call)
            self._changed.notify_all()
        return call.future

    def _create(self, topics: Sequence[str], partitions: int) -> None:
        """Create topics that are not in the log yet, a heartbeat in every partition; take those that are."""
        with self._writing:
            there: dict[str, list[int]] = {}
            for topic, number in sorted(self._writer.offsets):
                there.setdefault(topic, []).append(number)
            missing = [topic for topic in topics if topic not in there]
            if missing:
                new = [(topic, number) for topic in missing for number in range(partitions)]
                self._writer.declare(dict.fromkeys(new, 0))
                now = self._now()
                _, error = self._writer.append(
                    [[Record(topic, number, 0, b"", b"", now, self._headers) for topic, number in new]]
                )
                if error is not None:
                    raise TransportError(f"nothing can be written to {self._writer.folder}: {error.strerror}")
                self._writer.sync()
            self._numbers |= {topic: there.get(topic, list(range(partitions))) for topic in topics}

    def _now(self) -> int:
        # A clock that jumps back would hide records from who looks for a time.
        return max(self._writer.latest, int(self._clock() * 1000))

    # --- the thread ----------------------------------------------------------------------------------------

    def _work_off(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._calls or self._stopping, self._patience())
                calls = self._take()
                ending = self._stopping and not self._calls
            try:
                with self._writing:
                    if calls:
                        self._write(calls)
                    if self._unsynced and (ending or time.monotonic() >= self._sync_at):
                        self._writer.sync()
                        done, self._unsynced = self._unsynced, []
                        self._finish(done, None)
            except TransportError as error:
                self._fail_for_good(error, calls)
            if ending and not self._calls:
                break
        with self._writing:
            self._writer.close()

    def _take(self) -> list[_Call]:
        calls: list[_Call] = []
        size = 0
        while self._calls and size < _GROUP_BYTES:
            calls.append(self._calls.popleft())
            size += calls[-1].size
        return calls

    def _patience(self) -> float | None:
        return max(0.0, self._sync_at - time.monotonic()) if self._unsynced else None

    def _write(self, calls: Sequence[_Call]) -> None:
        blocks, ends = self._pack(calls)
        whole, error = self._writer.append(blocks)
        written = sum(end < whole for end in ends)
        self._wrote(calls[:written])
        if error is not None and len(calls) == 1:
            self._finish(calls[written:], error)
        elif error is not None:
            # What does not fit together may fit one by one: only what has no room fails.
            for call in calls[written:]:
                self._write((call,))

    def _wrote(self, calls: Sequence[_Call]) -> None:
        if self._settings.fsync is Fsync.NEVER:
            self._finish(calls, None)
        elif calls:
            if not self._unsynced:
                interval = self._settings.fsync_interval_ms / 1000 if self._settings.fsync is Fsync.INTERVAL else 0.0
                self._sync_at = time.monotonic() + interval
            self._unsynced += calls

    def _pack(self, calls: Sequence[_Call]) -> tuple[list[list[Record]], list[int]]:
        """The calls' records in blocks, and for every call the number of the block that holds its last record."""
        offsets = dict(self._writer.offsets)
        now = self._now()
        blocks: list[list[Record]] = [[]]
        ends: list[int] = []
        size = 0
        for call in calls:
            for topic, key, value, headers, time_ms in call.messages:
                if size >= _BLOCK_BYTES:
                    blocks.append([])
                    size = 0
                numbers = self._numbers[topic]
                where = (topic, numbers[fnv1a_partition(key, len(numbers))])
                offset = offsets[where]
                offsets[where] = offset + 1
                blocks[-1].append(Record(*where, offset, key, value, now if time_ms is None else time_ms, headers))
                size += len(key) + len(value)
            ends.append(len(blocks) - 1)
        return blocks, ends

    def _finish(self, calls: Sequence[_Call], error: OSError | TransportError | None) -> None:
        """End these calls. Not under the lock: their callbacks may send."""
        with self._changed:
            self._under_way -= sum(call.size for call in calls)
            self._open_calls -= len(calls)
            self._changed.notify_all()
        for call in calls:
            if error is None:
                call.future.set_result(None)
            elif isinstance(error, CardinalError):
                call.future.set_exception(error)
            else:
                call.future.set_exception(self._no_room(call, error))

    def _no_room(self, call: _Call, error: OSError) -> DeliveryError:
        return DeliveryError(
            f"block 0x{call.block_hash.hex()} could not be written to {self._writer.folder}: {error.strerror}; "
            "make room and send it again",
            block_hash=call.block_hash,
        )

    def _fail_for_good(self, error: TransportError, calls: Sequence[_Call]) -> None:
        """The writer stopped: everything under way fails, and whatever comes."""
        self._failure = error
        with self._changed:
            waiting = {id(call): call for call in (*self._unsynced, *calls, *self._calls)}
            self._unsynced = []
            self._calls.clear()
        self._finish([call for call in waiting.values() if not call.future.done()], error)
