"""State of one block of a stream: what it lacks, or how it left the chain."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cardinal.consumer import Consumer
from cardinal.consuming.lookup import batch_of, out_of_order
from cardinal.errors import ConfigurationError
from cardinal.protocols.streams.events import Incomplete, reorg_at
from cardinal.protocols.streams.lazy import BoundedDict
from cardinal.protocols.streams.ordering.orderer import PRUNED, REMOVED
from cardinal.transports import open_source
from cardinal.transports.read_range import read_range

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cardinal.apps import Application
    from cardinal.consuming.healing import HealingFailed
    from cardinal.protocols.streams.events import Event, Explanation
    from cardinal.protocols.streams.types import Record
    from cardinal.transports import TransportUrl

_LINKS: Final = 8
"""Batches remembered while a block is searched, for each block by which they are out of order: forks, copies."""
_OFF_CHAIN: Final = (REMOVED, PRUNED, "on a side branch", "waiting for parent", "below the first block")
"""Beginnings of the states of complete blocks that are not on the chain."""


class LackReports:
    """Missing messages of incomplete blocks, from their reports: consumers forget them after the delivery."""

    def __init__(self) -> None:
        self._lacks: dict[bytes, Explanation] = {}

    def take(self, event: Event | HealingFailed) -> None:
        """Note a report."""
        if isinstance(event, Incomplete):
            self._lacks[event.explanation.block] = event.explanation

    def with_lack(self, known: Explanation) -> Explanation:
        """The explanation with what the block lacked."""
        lack = self._lacks.get(known.block)
        return known if lack is None else replace(lack, state=known.state, reason=known.reason)


def explain_block(url: TransportUrl, app: Application, block_hash: bytes) -> Explanation:
    """The state of one block, from reading the stream from shortly below it to the end.

    A block that other blocks replaced left the chain, also where the chain read here never held it: a producer
    publishes what was its node's chain.
    """
    with closing(open_source(url, app, topics=(app.default_topic,))) as source:
        family = _Family(block_hash, out_of_order(app.reorg_threshold, len(source.watermarks())))
        marks = source.watermarks()
        read_range(
            source,
            {tp: low for tp, (low, _) in marks.items()},
            {tp: high for tp, (_, high) in marks.items()},
            family.take,
        )
    start = "earliest" if family.number is None else max(0, family.number - app.reorg_threshold)
    try:
        return _explain(url, app, start, family)
    except ConfigurationError:  # no ancestry down to it: the stream begins higher
        return _explain(url, app, "earliest", family)


class _Family:
    """The Batch of a block, and the parent links of the Batches around it.

    ``apart``: blocks by which Batches are out of order.
    """

    def __init__(self, block_hash: bytes, apart: int) -> None:
        self.hash = block_hash
        self.number: int | None = None
        self._apart = apart
        self._links: BoundedDict[bytes, tuple[int, bytes]] = BoundedDict(_LINKS * apart)

    def take(self, record: Record) -> bool:
        """Note a Batch; True when those that follow are too high to matter."""
        batch = batch_of(record)
        if batch is None:
            return False
        self._links[batch.hash] = batch.number, batch.parent
        if batch.hash == self.hash:
            self.number = batch.number
        return self.number is not None and batch.number > self.number + self._apart

    def placed(self, known: Explanation, chain: Mapping[int, bytes]) -> Explanation:
        """The explanation, where the chain has another block in its place: with the reorg in which it left."""
        number, at = self.number, self.hash
        if number is None or not known.state.startswith(_OFF_CHAIN) or chain.get(number, at) == at:
            return known
        while at in self._links:
            number, parent = self._links[at]
            if chain.get(number - 1) == parent:
                return replace(known, state=REMOVED, number=self.number, reason=reorg_at(number))
            at = parent
        return replace(known, state=REMOVED, number=self.number, reason=f"in a reorg that began below block {number}")


def _explain(url: TransportUrl, app: Application, start: str | int, family: _Family) -> Explanation:
    reports = LackReports()
    number = family.number
    chain: dict[int, bytes] = {}
    with Consumer(url, app, start=start, until="end", on_event=reports.take) as consumer:
        for update in consumer:
            for block in update.removed:
                chain.pop(block.number, None)
            chain.update((block.number, block.hash) for block in update.added)
            if number is not None and update.added and update.added[-1].number >= number + app.reorg_threshold // 2:
                break
        return family.placed(reports.with_lack(consumer.explain(family.hash)), chain)
