"""Drives a follower over records as a consumer's transport would; after every step somebody may look at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from cardinal.errors import DecodeError
from cardinal.protocols.streams import ChainUpdate, Follower, Incomplete, Record
from cardinal.protocols.streams.assembly.digests import without_content

STEP = 500


def steps(records: Iterable[Record], size: int = STEP) -> Iterator[list[Record]]:
    records = iter(records)
    while part := list(islice(records, size)):
        yield part


def digested(records: Iterable[Record]) -> Iterator[Record]:
    """As the Spark planner reads: what does not decode is left out."""
    for record in records:
        try:
            yield without_content(record)
        except DecodeError:
            continue


class Drive:
    """One consumer.

    Arguments:
        follower: what is driven.
        again: the records of a block whose messages were dropped.
        channel: what comes on a reorg channel's topic while it is read.
        watch: called after every step.

    """

    def __init__(
        self,
        follower: Follower,
        again: Callable[[bytes], list[Record]] = lambda _block: [],
        watch: Callable[[], None] = lambda: None,
        channel: Callable[[str], list[Record]] = lambda _topic: [],
    ) -> None:
        self.follower = follower
        self.again = again
        self.watch = watch
        self.channel = channel
        self.updates: list[ChainUpdate] = []
        self.events: Counter[str] = Counter()
        self.records = 0
        self._positions: dict[tuple[str, int], int] = {}

    def run(self, records: Iterable[Record], size: int = STEP) -> None:
        for part in steps(records, size):
            self._read(part)
            for topic in self.follower.channels():
                self._positions.setdefault((topic, 0), 0)
                self._read(self.channel(topic))
            self._take(self.follower.progress(self._positions, self._positions))
            self.watch()

    def _read(self, part: list[Record]) -> None:
        self.records += len(part)
        self._take(self.follower.receive(part))
        for record in part:
            self._positions[record.topic, record.partition] = record.offset + 1

    def _take(self, out: Iterable[Any]) -> None:
        for value in out:
            self.events[type(value).__name__] += 1
            if isinstance(value, ChainUpdate):
                self.updates.append(value)
            elif isinstance(value, Incomplete) and value.explanation.state == "dropped":
                block = value.explanation.block
                self.follower.reassembler.reread(block)
                self._take(self.follower.receive(self.again(block)))
