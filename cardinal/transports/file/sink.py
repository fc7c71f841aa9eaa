"""Sink on a folder.

Messages are in the segments in the order in which they were sent, a block's seal after its content: a readable seal
means a complete block, even where the rest was cut off. Writing and acknowledging: :mod:`.committer`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cardinal._concurrency import report
from cardinal.errors import OversizeError, TopicError, TransportError
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, Record, Routed, path_text
from cardinal.transports.base import Capabilities, Sink

from .committer import Call, Committer, Headers, Message

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cardinal._concurrency import Done
    from cardinal.transports.written import Written

    from .settings import FileSettings
    from .writer import LogWriter

_PATH: Final = slice(33, None)


class FileSink(Sink):
    """Sink on a folder.

    Arguments:
        writer: the folder's writer; it ends with the sink.
        settings: a URL's options.
        topics: the stream's topics; missing ones are created with a heartbeat in every partition.
        producer_id: goes into a header of every record.
        recent: reads the newest records of the default topic.
        clock: seconds since 1970, for timestamps.

    """

    capabilities = Capabilities(channels=True, records=True)

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
        self._limit = settings.max_message_bytes
        producer = (PRODUCER_HEADER, producer_id.encode())
        self._headers: Headers = (producer,)
        self._sealed: Headers = (producer, (SEALED_HEADER, b"1"))
        self._recent = recent
        self._numbers: dict[str, list[int]] = {}
        self._committer = Committer(writer, settings, self._numbers, clock)
        self._create(topics, settings.partitions)
        self._committer.start()

    # --- Sink ----------------------------------------------------------------------------------------------

    def check(self, messages: Sequence[Routed]) -> int:
        """Refuse messages that the folder does not carry: see :meth:`cardinal.transports.base.Sink.check`."""
        self._committer.check()
        total, limit = 0, self._limit
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

    def post(self, block: Sequence[Routed], seal: Routed | None, done: Done, written: Written | None = None) -> None:
        """Send messages of one block: see :meth:`cardinal.transports.base.Sink.post`."""
        del written
        size = self.check(block if seal is None else (*block, seal))
        messages: list[Message] = [(topic, key, value, self._headers, None) for topic, key, value in block]
        if seal is not None:
            messages.append((seal.topic, seal.key, seal.value, self._sealed, None))
        report(self._committer.submit(Call(messages, size), wait=bool(block)), done)

    def replay(self, records: Sequence[Record]) -> Future[None]:
        """Send records with their headers and times: see :meth:`cardinal.transports.base.Sink.replay`."""
        size = self.check([Routed(record.topic, record.key, record.value) for record in records])
        messages: list[Message] = [(it.topic, it.key, it.value, it.headers, it.timestamp_ms) for it in records]
        return self._committer.submit(Call(messages, size), wait=True)

    def recent(self, limit: int) -> list[Record]:
        """The newest records of the default topic, at most ``limit`` per partition."""
        return self._recent(limit)

    def open_channel(self, topic: str) -> None:
        """Create a topic with one partition: see :meth:`cardinal.transports.base.Sink.open_channel`."""
        self._create((topic,), 1)
        if (count := len(self._numbers[topic])) != 1:
            raise TopicError(
                f"the reorg channel {topic} has {count} partitions, and its order needs exactly one",
                topic=topic,
            )

    def flush(self, timeout: float) -> None:
        """Wait until everything sent is acknowledged or has failed."""
        self._committer.flush(timeout)

    def close(self) -> None:
        """Flush for a bounded time, fail the remaining calls, release the folder."""
        self._committer.close()

    # --- inside --------------------------------------------------------------------------------------------

    def _create(self, topics: Sequence[str], partitions: int) -> None:
        """Use the existing ones of these topics; create the others, with a heartbeat in every partition."""
        with self._committer.writing:
            existing: dict[str, list[int]] = {}
            for topic, number in sorted(self._writer.offsets):
                existing.setdefault(topic, []).append(number)
            missing = [topic for topic in topics if topic not in existing]
            if missing:
                new = [(topic, number) for topic in missing for number in range(partitions)]
                self._writer.declare(dict.fromkeys(new, 0))
                now = self._committer.now()
                _, error = self._writer.append(
                    [[Record(topic, number, 0, b"", b"", now, self._headers) for topic, number in new]]
                )
                if error is not None:
                    raise TransportError(f"nothing can be written to {self._writer.folder}: {error.strerror}")
                self._writer.sync()
            self._numbers |= {topic: existing.get(topic, list(range(partitions))) for topic in topics}
