"""State of a stream, from its topics: head, producers, retention, and gaps among the newest blocks.

The newest Batches and pings of the default topic give the producers and their lag; a consumer reads the newest blocks
with their content and reports missing messages.
"""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final

from cardinal.consumer import Consumer
from cardinal.consuming.lookup import Found, batch_of
from cardinal.errors import ConfigurationError
from cardinal.producing.pings import ping_id
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import ENDED_HEADER, PRODUCER_HEADER
from cardinal.protocols.streams.wire.keys import HASH_END
from cardinal.protocols.streams.wire.messages import PING
from cardinal.server.explanation import LackReports
from cardinal.transports import open_source
from cardinal.transports.read_range import read_range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.apps import Application
    from cardinal.protocols.streams.events import Explanation
    from cardinal.protocols.streams.types import Partition, Record
    from cardinal.transports import Source, TransportUrl
    from cardinal.transports.base import OpenTransaction

NAMELESS: Final = "(no id: another implementation)"
"""Name for the producers whose records carry no id, such as those in Go; their pings cannot be told apart either."""
_ALIVE_SECONDS: Final = 95.0
"""Three intervals of pings, and some tolerance."""
_OPEN_SECONDS: Final = 10.0
"""A transaction of a producer of ours takes a fraction of it."""
_OLDEST_RECORDS: Final = 20
_SPARE_RECORDS: Final = 200


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer of the newest blocks.

    Attributes:
        name: its id; for one that only pings, the beginning of its hash; for those without an id, ``NAMELESS``.
        ping_age: seconds since its newest ping; None where none was read.
        blocks: of the newest blocks, those that it sent.
        first: number of blocks that it sent before all others.
        lag: median seconds after the first producer; None where it sent none.
        newest: the highest number that it sent; None where it sent none.
        ended: its last ping says that it ended cleanly.

    """

    name: str
    ping_age: float | None
    blocks: int
    first: int
    lag: float | None
    newest: int | None
    ended: bool = False

    @property
    def alive(self) -> bool:
        """True if it has pinged recently and has not ended."""
        return not self.ended and self.ping_age is not None and self.ping_age < _ALIVE_SECONDS


@dataclass(frozen=True, slots=True)
class StreamState:
    """A stream.

    Attributes:
        chain: ``evm:1``.
        topic: the default topic.
        head: the head of the heaviest complete chain; None where there is none.
        highest: the highest number of a Batch; above the head's where blocks are incomplete or wait for parents.
        head_published: when its first Batch was written, unix seconds.
        oldest: the lowest number among the oldest Batches; None where there are none.
        oldest_published: when it was written, unix seconds.
        first, last: numbers of the newest blocks, which were read with their content; None where there are none.
        missing: those of them without content.
        incomplete: higher blocks that wait for messages or parents.
        producers: by name.
        open_transactions: those that have hidden records from readers for some seconds.

    """

    chain: str
    topic: str
    head: Payload | None = None
    highest: int | None = None
    head_published: float | None = None
    oldest: int | None = None
    oldest_published: float | None = None
    first: int | None = None
    last: int | None = None
    missing: tuple[Explanation, ...] = ()
    incomplete: tuple[Explanation, ...] = ()
    producers: tuple[ProducerState, ...] = ()
    open_transactions: tuple[OpenTransaction, ...] = ()


@dataclass(slots=True)
class _Tail:
    """The newest records of the default topic."""

    batches: dict[bytes, Found] = field(default_factory=dict)
    sent: dict[bytes, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    pings: dict[bytes, int] = field(default_factory=dict)
    ended: set[bytes] = field(default_factory=set)

    def take(self, record: Record) -> None:
        """Note a Batch or a ping."""
        if len(record.key) == HASH_END and record.key[0] == PING:
            at = self.pings.get(record.key[1:], 0)
            self.pings[record.key[1:]] = max(at, record.timestamp_ms)
            # A producer's pings are in one partition, so in their order: one that starts again is not ended.
            ends = any(name == ENDED_HEADER for name, _ in record.headers)
            (self.ended.add if ends else self.ended.discard)(record.key[1:])
        elif (batch := batch_of(record)) is not None:
            self.batches.setdefault(batch.hash, batch)
            name = next((value or b"" for key, value in record.headers if key == PRODUCER_HEADER), b"")
            copies = self.sent[batch.hash]
            named = name.decode("utf-8", "replace") or NAMELESS
            copies[named] = min(copies.get(named, record.timestamp_ms), record.timestamp_ms)


def stream_state(url: TransportUrl, app: Application, blocks: int) -> StreamState:
    """The state of a stream.

    Arguments:
        url: its URL.
        app: its application.
        blocks: the number of its newest blocks to read with their content.

    Raises:
        UnreachableError, RefusedError, TopicError: see :func:`cardinal.transports.open_source`.

    """
    with closing(open_source(url, app, topics=(app.default_topic,))) as source:
        marks = source.watermarks()
        tail, oldest = _Tail(), _Tail()
        begin = {tp: max(low, high - 2 * blocks - _SPARE_RECORDS) for tp, (low, high) in marks.items()}
        _read(source, marks, begin, tail)
        ends = {tp: (low, min(high, low + _OLDEST_RECORDS)) for tp, (low, high) in marks.items()}
        _read(source, ends, {tp: low for tp, (low, _) in marks.items()}, oldest)
        if not tail.batches:
            producers = _producers(tail, blocks)
            return StreamState(app.chain, app.default_topic, producers=producers, open_transactions=_lasting(source))
        numbers = [batch.number for batch in tail.batches.values()]
        first = max(max(numbers) - blocks + 1, min(numbers))
        delivered, missing, incomplete = _read_blocks(url, app, first)
        # The head may have been published meanwhile.
        _read(source, source.watermarks(), {tp: high for tp, (_, high) in marks.items()}, tail)
    with closing(open_source(url, app)) as source:
        hidden = _lasting(source)
    lowest = min(oldest.batches.values(), key=lambda batch: batch.number, default=None)
    head = max(delivered.values(), key=lambda block: block.number, default=None)
    sent = {} if head is None else tail.sent.get(head.hash, {})
    return StreamState(
        app.chain,
        app.default_topic,
        head,
        max(*numbers, -1 if head is None else head.number),
        min(sent.values()) / 1000 if sent else None,
        None if lowest is None else lowest.number,
        None if lowest is None else lowest.record.timestamp_ms / 1000,
        min(delivered, default=None),
        None if head is None else head.number,
        missing,
        incomplete,
        _producers(tail, blocks),
        hidden,
    )


def _lasting(source: Source) -> tuple[OpenTransaction, ...]:
    """Transactions that have been open for some seconds."""
    found, now = source.open_transactions(), time.time()
    return tuple(one for one in found if one.since_ms is None or now - one.since_ms / 1000 > _OPEN_SECONDS)


def _read(
    source: Source, marks: Mapping[Partition, tuple[int, int]], starts: Mapping[Partition, int], into: _Tail
) -> None:
    read_range(source, starts, {tp: high for tp, (_, high) in marks.items()}, into.take)


def _read_blocks(
    url: TransportUrl, app: Application, first: int
) -> tuple[dict[int, Payload], tuple[Explanation, ...], tuple[Explanation, ...]]:
    """The chain from a number on by number, its blocks without content, and the blocks that it waits for."""
    reports = LackReports()
    try:
        consumer = Consumer(url, app, start=first, until="end", on_event=reports.take)
    except ConfigurationError:  # the retained chain begins higher
        consumer = Consumer(url, app, until="end", on_event=reports.take)
    chain: dict[int, Payload] = {}
    lost: dict[int, Explanation] = {}
    with consumer:
        for update in consumer:
            for block in update.removed:
                chain.pop(block.number, None)
                lost.pop(block.number, None)
            for block in update.added:
                if isinstance(block, Payload):
                    chain[block.number] = block
                else:
                    lost[block.number] = reports.with_lack(consumer.explain(block.hash))
        lowest = min((*chain, *lost), default=-1)
        # Of lower blocks and of siblings of the lowest one the first messages were not read.
        awaited = [one for one in consumer.awaited if one.number is None or one.number > lowest]
        return chain, tuple(lost.values()), tuple(awaited)


def _producers(tail: _Tail, blocks: int) -> tuple[ProducerState, ...]:
    now = time.time()
    newest = sorted(tail.batches.values(), key=lambda batch: -batch.number)[:blocks]
    lags: dict[str, list[float]] = defaultdict(list)
    firsts: dict[str, int] = defaultdict(int)
    highest: dict[str, int] = {}
    for batch in newest:
        copies = tail.sent[batch.hash]
        first = min(copies, key=lambda name: copies[name])
        firsts[first] += 1
        for name, at in copies.items():
            lags[name].append((at - copies[first]) / 1000)
            highest[name] = max(highest.get(name, 0), batch.number)
    names = {ping_id(name): name for copies in tail.sent.values() for name in copies}
    ages = {names.get(one, f"{one.hex()[:12]}…"): now - at / 1000 for one, at in tail.pings.items()}
    ended = {names.get(one, f"{one.hex()[:12]}…") for one in tail.ended}
    return tuple(
        ProducerState(
            name,
            ages.get(name),
            len(lags[name]),
            firsts[name],
            median(lags[name]) if lags[name] else None,
            highest.get(name),
            name in ended,
        )
        for name in sorted({*lags, *ages})
    )
