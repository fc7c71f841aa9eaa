"""Writer of promotion: agreed blocks on the topics, each once, by one node at a time.

Rules (``connectors/cardinal_ingest/docs/replication.md``, section 8; RD9):

1. The topic of markers is the transactional id. To take it fences its last owner and ends what that left open; only
   then the last marker is read, so nothing of the old owner's can come after it.
2. One write is one transaction: all content, the Batches, the marker. Each is sent when everything before it is
   acknowledged.
3. **The marker is last.** Were a delayed request to abort to arrive in the middle of a transaction, it would remove the
   records before it while the marker behind it commits: blocks would be lost. As the last record, a marker that is
   committed follows records that are. A delayed request to commit can at worst publish blocks without their marker,
   which are then written again, and consumers ignore the second copy.
4. A write that does not end cleanly discards the producer for good
   (:mod:`cardinal.transports.kafka.transactions`), with all writes behind it: take it again, and the marker says what
   was committed.

The marker's value is the caller's. Where the topic of markers holds none, the highest ``cardinal-agreed`` header of the
default topic stands for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from cardinal._concurrency import run_in_thread
from cardinal.config.settings import find_url
from cardinal.consuming.gc_pause import collector_waits
from cardinal.errors import LocalProtocolError
from cardinal.producing.inflight import block
from cardinal.producing.pings import Pinger
from cardinal.protocols.streams.types import Routed
from cardinal.transports.kafka import KafkaSource, open_fenced_sink
from cardinal_ingest.cluster.reading import newest
from cardinal_ingest.cluster.topics import cluster_settings

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from cardinal.config.url import TransportUrl
    from cardinal.producing.layout import Stream
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import Record
    from cardinal.transports.kafka import TransactionalKafkaSink
    from cardinal.transports.kafka.admin import TopicInfo
    from cardinal.transports.kafka.settings import KafkaSettings

AGREED_HEADER: Final = "cardinal-agreed"
"""Header of a promoted Batch: the :class:`Agreed` place of its block."""

_THREAD: Final = "cardinal-ingest-promoting"
_CLOSING: Final = "cardinal-kafka-closing"
_CLOSE_SECONDS: Final = 10.0
_PING_SECONDS: Final = 30.0
_PLACE: Final = struct.Struct(">QI")


@dataclass(frozen=True, slots=True, order=True)
class Agreed:
    """The place of a block in the agreed order: the number of its batch, and its index there, from 0."""

    num: int
    index: int

    def header(self) -> bytes:
        """Twelve bytes: num in 8, index in 4, big-endian."""
        return _PLACE.pack(self.num, self.index)

    @classmethod
    def of(cls, record: Record) -> Self | None:
        """The place of a promoted Batch; None for any other record."""
        for name, value in record.headers:
            if name == AGREED_HEADER and len(value) == _PLACE.size:
                return cls(*_PLACE.unpack(value))
        return None


class _Owner(NamedTuple):
    """A producer that has taken the transactional id, and its pings: transactions as well."""

    sink: TransactionalKafkaSink
    pinger: Pinger

    def close(self) -> None:
        """Wait for what is in flight, for a bounded time, and release the connection."""
        self.pinger.stop()
        self.sink.close()
        self.pinger.join(_CLOSE_SECONDS)


class PromotionWriter:
    """Writer of promotion, of one node.

    Arguments:
        url: the stream's.
        app: the stream's application.
        cluster: the cluster's name; ``cluster:<name>`` is the producer of every record.
        key: of markers.
        markers: their topic, which exists.

    """

    def __init__(self, url: str | TransportUrl, app: Stream, *, cluster: str, key: bytes, markers: TopicInfo) -> None:
        self._url = find_url(url)
        self._app = app
        self._settings = cluster_settings(self._url)
        self._producer_id = f"cluster:{cluster}"
        self._key = key
        self._markers = markers
        self._owner: _Owner | None = None
        self._splitting = asyncio.Lock()

    @property
    def usable(self) -> bool:
        """True where this node has taken promotion, and its producer was not discarded."""
        return self._owner is not None and self._owner.sink.usable

    async def take(self) -> bytes | Agreed | None:
        """Take promotion with a new producer: the last owner, wherever it is, writes nothing any more.

        Returns:
            The value of the last committed marker. Where there is none, the place of the last promoted block, which
            stands for a marker with its index + 1; None where no block was promoted.

        Raises:
            TopicSettingError, TopicError: the topics cannot carry the stream.
            UnreachableError, RefusedError, FencedError: the broker is unreachable or says no, or another node takes
                promotion at this moment.

        """
        self._discard()
        taking = run_in_thread(self._take, _THREAD)
        try:
            owner, last = await asyncio.wrap_future(taking)
        except asyncio.CancelledError:
            taking.add_done_callback(_close_unwanted)
            raise
        self._owner = owner
        return last

    async def write(self, blocks: Sequence[tuple[Agreed, Payload]], marker: bytes) -> None:
        """Put blocks on the topics, and the marker of their end, in one transaction. Returns when it is committed.

        Writes follow each other in the order of these calls. One that is cancelled may be committed all the same.

        Arguments:
            blocks: the next ones in the agreed order.
            marker: the value that names their end.

        Raises:
            SplitError, OversizeError: a block that no producer can write; nothing was sent, and the producer is usable.
            LocalProtocolError: promotion was not taken.
            TransportError: not known to be committed; take promotion again. FencedError: another node has taken it.

        """
        if self._owner is None:
            raise LocalProtocolError("take promotion before blocks are written")
        sink = self._owner.sink
        async with self._splitting:
            sent = await asyncio.wrap_future(run_in_thread(partial(self._send, sink, blocks, marker), _THREAD))
        await asyncio.wrap_future(sent)

    async def close(self) -> None:
        """Wait for what is in flight, for a bounded time, and release the connection. May be called twice."""
        owner, self._owner = self._owner, None
        if owner is not None:
            await asyncio.wrap_future(run_in_thread(owner.close, _THREAD))

    # --- on a thread ---------------------------------------------------------------------------------------

    def _discard(self) -> None:
        """Nobody waits for it: what it has in flight is ended by whoever takes promotion next."""
        owner, self._owner = self._owner, None
        if owner is not None:
            run_in_thread(owner.close, _CLOSING)

    def _take(self) -> tuple[_Owner, bytes | Agreed | None]:
        sink = open_fenced_sink(self._settings, self._app, producer_id=self._producer_id, log=self._markers)
        try:
            last = self._last()
            topic, seconds = self._app.default_topic, _PING_SECONDS
            pinger = Pinger(sink, topic, self._producer_id, seconds=seconds, may=lambda: sink.usable)
        except BaseException:
            sink.close()
            raise
        pinger.start()
        return _Owner(sink, pinger), last

    def _last(self) -> bytes | Agreed | None:
        """The last marker, or what stands for it."""
        with contextlib.closing(KafkaSource(self._settings, [self._markers.name])) as markers:
            if found := newest(markers, lambda record: record.key == self._key):
                return found[self._markers.name, 0].value
        return last_agreed(self._settings, self._app.default_topic)

    def _send(
        self, sink: TransactionalKafkaSink, blocks: Sequence[tuple[Agreed, Payload]], marker: bytes
    ) -> Future[None]:
        with collector_waits():
            parts = [part for _, payload in blocks for part in block(payload, self._app, sink).parts]
            return sink.transact(
                [message for part in parts for message in part.content],
                [part.batch for part in parts],
                (Routed(self._markers.name, self._key, marker),),
                [part.written for part in parts],
                [[(AGREED_HEADER, place.header())] for place, _ in blocks],
            )


def last_agreed(settings: KafkaSettings, topic: str) -> Agreed | None:
    """The highest place that Batches of a default topic have; None where none was promoted."""
    with contextlib.closing(KafkaSource(settings, [topic])) as batches:
        promoted = newest(batches, lambda record: Agreed.of(record) is not None)
    return max(filter(None, map(Agreed.of, promoted.values())), default=None)


def _close_unwanted(taking: Future[tuple[_Owner, bytes | Agreed | None]]) -> None:
    """Release a producer that nobody waited for."""
    if taking.exception() is None:
        owner, _ = taking.result()
        run_in_thread(owner.close, _CLOSING)
