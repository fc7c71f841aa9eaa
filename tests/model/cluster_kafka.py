"""The log and the topics of a simulated cluster: claims, transactions of one fenced id, ends that come late.

A broker verifies that a partition belongs to the transaction, and knows nothing of the instance that a message of the
same epoch belongs to: the end of a transaction that arrives late ends whatever is open.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cardinal_ingest.protocols.replication import Marker, Placed


class FencedError(Exception):
    """Another producer took the id over."""


class NotInTransactionError(Exception):
    """The partition does not belong to the open transaction."""


class Part(NamedTuple):
    """A message of a block other than its last one."""

    placed: Placed


class Seal(NamedTuple):
    """The last message of a block."""

    placed: Placed


Written = Part | Seal | Marker
Status = Literal["open", "committed", "aborted"]
MARKERS = -1
"""The marker's partition."""


@dataclass(slots=True)
class Producer:
    """One instance of a transactional producer."""

    epoch: int
    partitions: set[int] = field(default_factory=set)
    """Partitions that it added to its current transaction."""


class Kafka:
    """Everything that outlives the nodes."""

    def __init__(self) -> None:
        self.up = True
        self.claims: list[bytes] = []
        self.first = 0
        """Offset to which the claims are trimmed."""
        self.records: list[tuple[int, Written]] = []
        self.status: list[Status] = []
        """By transaction."""
        self.markers: list[Marker] = []
        """Committed ones."""
        self._epoch = 0
        self._open: int | None = None
        self._partitions: set[int] = set()

    def producer(self) -> Producer:
        """A new instance: it fences the others, and ends what was open."""
        self._epoch += 1
        self._end("aborted")
        return Producer(self._epoch)

    def write(self, producer: Producer, partition: int, value: Written) -> None:
        if producer.epoch != self._epoch:
            raise FencedError
        if partition in producer.partitions:
            if self._open is None or partition not in self._partitions:
                raise NotInTransactionError
        else:
            if self._open is None:
                self._open = len(self.status)
                self.status.append("open")
                self._partitions = set()
            self._partitions.add(partition)
            producer.partitions.add(partition)
        assert self._open is not None
        self.records.append((self._open, value))

    def end(self, epoch: int, status: Status) -> None:
        """The end of a transaction arrives."""
        if epoch != self._epoch:
            raise FencedError
        self._end(status)

    def _end(self, status: Status) -> None:
        if self._open is None:
            return
        number, self._open = self._open, None
        self.status[number] = status
        if status == "committed":
            for of, value in reversed(self.records):
                if of != number:
                    break
                if isinstance(value, Marker):
                    self.markers.append(value)

    def committed(self) -> list[Written]:
        """What a reader of committed records reads."""
        return [value for number, value in self.records if self.status[number] == "committed"]
