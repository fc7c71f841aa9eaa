"""Promoter of a cluster's member: puts agreed blocks on the topics, when it is this member's turn.

The turn, the next blocks and the marker are :class:`~cardinal_ingest.protocols.replication.Promotion`'s; the
transaction is :class:`~.promotion_writer.PromotionWriter`'s. Whatever does not end cleanly ends the turn: the
marker decides.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from cardinal.errors import CardinalError
from cardinal_ingest.body_exchange.objects import object_of
from cardinal_ingest.cluster.promotion_writer import Agreed
from cardinal_ingest.node.promoter import STUCK_SECONDS
from cardinal_ingest.protocols.publish import BlockId
from cardinal_ingest.protocols.replication import NO_HASH, Marker, decode_marker, encode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cardinal.protocols.streams import Payload
    from cardinal_ingest.body_exchange.objects import Objects
    from cardinal_ingest.cluster.agreement import Agreement
    from cardinal_ingest.cluster.promotion_writer import PromotionWriter
    from cardinal_ingest.cluster.reading import LogReader
    from cardinal_ingest.node.blocks import Blocks
    from cardinal_ingest.node.store import BodyStore
    from cardinal_ingest.protocols.replication import Placed, Promotion, Run, Step

LOG: Final = logging.getLogger("cardinal.ingest")


class ClusterPromoter:
    """Promoter of one member.

    Arguments:
        agreement: of the member.
        promotion: the rule.
        writer: of the topics.
        store, blocks, objects: of the bodies.

    Attributes:
        promoted: blocks that this member put on the topics.
        last: the number of the newest of them; None while there is none.
        failure: the error that ended the last turn; empty since the next clean commit.

    """

    def __init__(  # noqa: PLR0917 - the parts of a member
        self,
        agreement: Agreement,
        promotion: Promotion,
        writer: PromotionWriter,
        store: BodyStore,
        blocks: Blocks,
        objects: Objects,
    ) -> None:
        self.promotion = promotion
        self.promoted = 0
        self.last: int | None = None
        self.failure = ""
        self._agreement = agreement
        self._writer = writer
        self._store = store
        self._blocks = blocks
        self._objects = objects
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._progress = self._loop.time()

    # --- queries, as of :class:`~cardinal_ingest.node.promoter.Promoter` -------------------------------------------

    @property
    def waiting(self) -> int:
        """Agreed blocks that are not on the topics."""
        num, index = self._agreement.replica.promoted
        winners = self._agreement.replica.winners.items()
        return sum(len(header.items) - (index if at == num else 0) for at, header in winners if at >= num)

    @property
    def lag(self) -> float:
        """Seconds since a block was put on the topics, where some are not."""
        return self._loop.time() - self._progress if self.waiting else 0.0

    @property
    def waits_for(self) -> str:
        """Why nothing is promoted; empty where something is, or could be."""
        return f"no block was put on the topics for {self.lag:.0f} s" if self.lag >= STUCK_SECONDS else ""

    def changed(self) -> None:
        """Something may be there to promote."""
        self._changed.set()

    async def follow(self, reader: LogReader) -> None:
        """Read markers, until cancelled.

        Raises:
            ForeignMarkerError: another cluster writes to these topics.

        """
        last = await reader.open_at_last()
        if last is not None:
            self._read(last.value)
        while True:
            records = await reader.read()
            for record in records if isinstance(records, tuple) else ():
                self._read(record.value)

    async def run(self) -> None:
        """Promote when it is this member's turn, until cancelled.

        Raises:
            CardinalError: what no retry and no other member heals.

        """
        try:
            while True:
                await self._turn()
                try:
                    await self._promote()
                except CardinalError as error:
                    self.failure = str(error)
                    LOG.warning("this node promotes no more for now: %(error)s", {"kind": "promotion", "error": error})
                self.promotion.failed(self._loop.time())
        finally:
            await self._writer.close()

    # --- inside -----------------------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Wait for this member's turn."""
        while True:
            self._changed.clear()
            now = self._loop.time()
            if self.promotion.due(now):
                return
            wait = self.promotion.deadline - now
            try:
                async with asyncio.timeout(None if wait == float("inf") else max(wait, 0.0)):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _promote(self) -> None:
        """Take promotion, and write until it is lost."""
        self.promotion.begin()
        last = await self._writer.take()
        if isinstance(last, bytes):
            self._read(last)
        elif last is not None:
            self._stands_for(last)
        fields = {"kind": "promotes", "batch": self._agreement.replica.promoted[0]}
        LOG.info("this node promotes, from batch %(batch)d on", fields)
        while self._writer.usable:
            self._changed.clear()
            run = self.promotion.next_run()
            if run is None:
                await self._changed.wait()
            else:
                await self._write(run)

    async def _write(self, run: Run) -> None:
        await self._agreement.committed()
        payloads = await asyncio.to_thread(lambda: list(self._payloads(run.blocks)))
        await self._writer.write(payloads, encode(run.marker))
        self.promoted += len(run.blocks)
        self.last = run.blocks[-1].item.number
        self.failure = ""
        self._mark(self.promotion.committed(run.marker, self._loop.time()))

    def _payloads(self, blocks: Iterable[Placed]) -> Iterable[tuple[Agreed, Payload]]:
        for placed in blocks:
            item = placed.item
            block = self._objects.block_of(object_of(BlockId(item.number, item.hash)))
            body = self._store.body(block.number, block.hash)
            yield Agreed(placed.num, placed.index), self._blocks.payload(item.number, body)

    def _stands_for(self, place: Agreed) -> None:
        """Take the last promoted block for the marker that is lost."""
        replica = self._agreement.replica
        batch = replica.winners[place.num].hash if place.num in replica.winners else NO_HASH
        cluster, stream = replica.membership.cluster, replica.membership.stream
        marker = Marker(cluster, stream, place.num, place.index + 1, batch, replica.node)
        self._mark(self.promotion.read(marker, self._loop.time()))

    def _read(self, value: bytes) -> None:
        self._mark(self.promotion.read(decode_marker(value), self._loop.time()))

    def _mark(self, step: Step) -> None:
        """A marker was committed; ``step`` is empty where it says nothing new."""
        if step.rows:
            self._progress = self._loop.time()
            self._agreement.take(step)
        self._changed.set()
