"""Seeded schedule of messages between producers and a consumer: every order and fault that Kafka's rules allow.

    faults = Faults(seed=3)
    log = faults.publish({"a": blocks, "b": blocks})      # blocks: for each block its messages, the Batch last
    for record in faults.deliver(log): ...                # faults.deliver(log, reader=1): another consumer's order

Rules:

1. Equal seeds and arguments give equal records.
2. Copies of one key are in one partition (FNV-1a), and a partition is delivered in its order. Nothing else about order
   is certain: partitions advance at very different speeds.
3. A producer has many blocks in flight; messages of a block arrive in any order, its sealed Batch after all of them and
   after its parent's. A producer that does not seal sends its Batches at any time.
4. Messages are duplicated; blocks fail in the middle and are resent; a killed producer restarts some blocks further
   back. In the end every block of every producer is complete on the topics.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.types import PRODUCER_HEADER, SEALED_HEADER, Partition, Record, Routed
from cardinal.protocols.streams.wire.codec import decode
from cardinal.protocols.streams.wire.messages import Batch
from cardinal.transports.partitioner import fnv1a_partition

_BEGAN_MS: Final = 1_600_000_000_000
_BURST: Final = 12
_RESTARTS: Final = 3
_REWIND: Final = 4


@dataclass(frozen=True, slots=True)
class FaultSettings:
    """Probabilities of faults.

    Attributes:
        partitions: partitions of every topic.
        in_flight: blocks that a producer has in flight.
        duplicates: probability that a message is sent twice.
        failures: probability that an attempt to send a block ends in the middle.
        restarts: probability, at each block, that the producer is killed there (at most three times each).

    """

    partitions: int = 2
    in_flight: int = 4
    duplicates: float = 0.05
    failures: float = 0.1
    restarts: float = 0.03

    def __post_init__(self) -> None:
        if self.partitions < 1 or self.in_flight < 1:
            raise ConfigurationError("partitions and in_flight must be 1 or more", setting="partitions")
        for name, value in (("duplicates", self.duplicates), ("failures", self.failures), ("restarts", self.restarts)):
            if not 0 <= value < 1:
                raise ConfigurationError(f"{name} must be 0 or more and below 1, not {value}", setting=name)


@dataclass(slots=True)
class TopicLog:
    """Content of the topics: records by partition, in the order of their offsets."""

    partitions: dict[Partition, list[Record]] = field(default_factory=dict)

    def ends(self) -> dict[Partition, int]:
        """The offset after the last record of every partition."""
        return {where: len(records) for where, records in self.partitions.items()}


class Faults:
    """Schedule of a seed.

    Arguments:
        seed: any integer.
        settings: probabilities of faults.

    """

    def __init__(self, seed: int = 0, settings: FaultSettings | None = None) -> None:
        self.seed = seed
        self.settings = settings or FaultSettings()

    def records(self, producers: Mapping[str, Iterable[Sequence[Routed]]]) -> list[Record]:
        """Records that one consumer receives from these producers: :meth:`publish`, then :meth:`deliver`."""
        return self.deliver(self.publish(producers))

    def publish(
        self, producers: Mapping[str, Iterable[Sequence[Routed]]], *, unsealed: Collection[str] = ()
    ) -> TopicLog:
        """The topics after several producers have sent their blocks.

        Arguments:
            producers: configured id to blocks, parents first; a block is its messages, the Batch last
                (:func:`cardinal.protocols.streams.split`).
            unsealed: ids of producers that do not seal, as those of the Go implementation.

        Raises:
            ConfigurationError: a block that does not end with its Batch.

        """
        source = random.Random(f"{self.seed}/publish")  # noqa: S311 - repeatable, no secret
        writer = _Writer(self.settings.partitions)
        senders = [
            _Sender(name, [_checked(block) for block in blocks], source, self.settings, seals=name not in unsealed)
            for name, blocks in producers.items()
        ]
        for sender in senders:
            writer.create(sender.topics(), sender.name)
        busy = [sender for sender in senders if sender.busy]
        while busy:
            sender = source.choice(busy)
            for _ in range(source.randint(1, _BURST)):
                if sender.busy:
                    sender.send(writer)
            busy = [sender for sender in busy if sender.busy]
        return writer.log

    def deliver(self, log: TopicLog, *, reader: int = 0, start: Mapping[Partition, int] | None = None) -> list[Record]:
        """Records from ``start`` on (default: from the beginning), in the order of one consumer.

        Arguments:
            log: the topics.
            reader: number of the consumer; each has another order.
            start: the first offset of a partition; absent partitions begin at 0.

        """
        source = random.Random(f"{self.seed}/deliver/{reader}")  # noqa: S311 - repeatable, no secret
        at = {tp: (start or {}).get(tp, 0) for tp in sorted(log.partitions)}
        # Speeds differ by orders of magnitude: one partition may end before another begins.
        speeds = {tp: 10.0 ** source.uniform(-2, 1) for tp in at}
        left = [tp for tp in at if at[tp] < len(log.partitions[tp])]
        out: list[Record] = []
        while left:
            tp = source.choices(left, [speeds[each] for each in left])[0]
            burst = log.partitions[tp][at[tp] : at[tp] + source.randint(1, _BURST)]
            out += burst
            at[tp] += len(burst)
            if at[tp] >= len(log.partitions[tp]):
                left.remove(tp)
        return out


class _Writer:
    """Writer of partitions."""

    def __init__(self, partitions: int) -> None:
        self.log = TopicLog()
        self._partitions = partitions
        self._now = _BEGAN_MS

    def create(self, topics: Iterable[str], producer: str) -> None:
        """Create missing topics, with a heartbeat in each partition."""
        for topic in sorted(topics):
            for number in range(self._partitions):
                if (topic, number) not in self.log.partitions:
                    self.log.partitions[topic, number] = []
                    self._append((topic, number), b"", b"", ((PRODUCER_HEADER, producer.encode()),))

    def append(self, message: Routed, headers: tuple[tuple[str, bytes], ...]) -> None:
        """Append to the partition of the key."""
        self._append(
            (message.topic, fnv1a_partition(message.key, self._partitions)), message.key, message.value, headers
        )

    def _append(self, where: Partition, key: bytes, value: bytes, headers: tuple[tuple[str, bytes], ...]) -> None:
        records = self.log.partitions[where]
        self._now += 1
        records.append(Record(*where, len(records), key, value, self._now, headers))


@dataclass(slots=True)
class _Block:
    """A block of a producer: its messages, and its Batch, encoded and decoded."""

    content: list[Routed]
    seal: Routed
    hash: bytes
    parent: bytes


@dataclass(slots=True)
class _Attempt:
    """One attempt to send a block: the remaining messages, and if it fails after them."""

    block: _Block
    left: list[Routed]
    fails: bool


class _Sender:
    """One producer, with its blocks in flight."""

    def __init__(
        self, name: str, blocks: list[_Block], source: random.Random, settings: FaultSettings, *, seals: bool
    ) -> None:
        self.name = name
        self._blocks = blocks
        self._source = source
        self._settings = settings
        self._seals = seals
        self._who = ((PRODUCER_HEADER, name.encode()),)
        self._next = 0
        self._open: deque[_Attempt] = deque()
        self._waiting: set[bytes] = set()
        self._restarts_left = _RESTARTS

    @property
    def busy(self) -> bool:
        """True if messages are left to send."""
        return bool(self._open) or self._next < len(self._blocks)

    def topics(self) -> set[str]:
        """The topics of all messages."""
        return {message.topic for block in self._blocks for message in (*block.content, block.seal)}

    def send(self, writer: _Writer) -> None:
        """Make one step: begin a block, send one message, end an attempt, or be killed."""
        while len(self._open) < self._settings.in_flight and self._next < len(self._blocks):
            block = self._blocks[self._next]
            self._next += 1
            self._waiting.add(block.hash)
            self._open.append(self._attempt(block))
        attempt = self._source.choice(self._open)
        if attempt.left:
            message = attempt.left.pop()
            writer.append(message, self._who)
            if self._chance(self._settings.duplicates):
                attempt.left.insert(self._source.randint(0, len(attempt.left)), message)
        elif attempt.fails:
            again = self._attempt(attempt.block)
            attempt.left, attempt.fails = again.left, again.fails
        elif not self._seals or attempt.block.parent not in self._waiting:
            if self._seals:
                writer.append(attempt.block.seal, (*self._who, (SEALED_HEADER, b"1")))
            self._open.remove(attempt)
            self._waiting.discard(attempt.block.hash)
            self._perhaps_killed()

    def _attempt(self, block: _Block) -> _Attempt:
        """All of a block's messages in any order, or some of them for an attempt that fails."""
        left = list(block.content) if self._seals else [*block.content, block.seal]
        self._source.shuffle(left)
        fails = self._chance(self._settings.failures)
        return _Attempt(block, left[: self._source.randint(0, len(left))] if fails else left, fails)

    def _perhaps_killed(self) -> None:
        """Kill the producer: blocks in flight are lost, and it restarts some blocks before the oldest of them."""
        if self._restarts_left and self._chance(self._settings.restarts):
            self._restarts_left -= 1
            oldest = min((self._blocks.index(attempt.block) for attempt in self._open), default=self._next)
            self._open.clear()
            self._waiting.clear()
            self._next = max(0, oldest - self._source.randint(0, _REWIND))

    def _chance(self, probability: float) -> bool:
        return self._source.random() < probability


def _checked(messages: Sequence[Routed]) -> _Block:
    """A block of messages; ConfigurationError where they do not end with a Batch."""
    batch = decode(messages[-1].key, messages[-1].value) if messages else None
    if not isinstance(batch, Batch):
        raise ConfigurationError("a block's messages end with its Batch, as split() gives them", setting="producers")
    return _Block(list(messages[:-1]), messages[-1], batch.hash, batch.parent)
