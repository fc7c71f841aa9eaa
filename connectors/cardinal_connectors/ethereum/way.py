"""From what was given to the node's head, once or again and again: which blocks come next.

Rules:

1. A block is given after its parent was given (or is published); the first block of a stream needs none, but has the
   number that the stream starts with, and as block 0 the hash by which the chain is known.
2. Near the head the way is walked by parent hash; a long one is fetched by number from the highest block that the
   node's chain and ours have in common, each block linked to the one before.
3. Nothing is gone to that is not ``lag`` blocks below the head, or not as final as the settings ask for.
4. A block that was given is not given again, whichever branch the node's chain is on.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from cardinal.errors import IntegrityError, NodeUnreachableError
from cardinal.protocols.streams.types import BlockRef, Finality

from .backfill import Batches, backfill
from .blocks import ChainMovedError
from .fetch import Answer
from .gate import Admitted, Blocks, Gate
from .rules import Rules, clamped
from .totals import Learned, Totals
from .walk import common_block, walk_back
from .worker import Prepared
from .workers import worker_count, working

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload

    from .blocks import Fetched, Header
    from .known import KnownBlocks
    from .node import Node
    from .settings import FeedSettings

_LOG: Final = logging.getLogger("cardinal.connectors.ethereum")


class Way:
    """How far one stream of payloads has come.

    Arguments:
        node: where blocks come from.
        known: what is published; grows by what is given.
        chain_id: the id of the node's chain.
        settings: bounds.
        start: the first block's number, where nothing is known.
        until: the last block's number, or None.
        elsewhere: other nodes' blocks.
        learned: what the feed knows of total difficulties.

    Attributes:
        ended: ``until`` was given, and the node's chain has it.
        target: the number of the block that is gone to; None before the first look.

    """

    def __init__(
        self,
        node: Node,
        known: KnownBlocks,
        chain_id: int,
        settings: FeedSettings,
        *,
        start: int,
        until: int | None,
        elsewhere: Callable[[], Sequence[Blocks]] = lambda: (),
        learned: Learned | None = None,
    ) -> None:
        self.ended = False
        self.target: int | None = None
        self._node = node
        self._fetcher = node.fetcher
        self._known = known
        self._settings = settings
        self._told = False
        self._mark = (node.address, settings.finality)
        self._start = start
        self._until = until
        self._rules = Rules.of(chain_id, settings)
        self._totals = Totals(
            node.fetcher,
            known,
            sum_blocks=settings.sum_blocks,
            preset=self._rules.chain.final_total_difficulty,
            learned=learned,
        )
        self._gate = Gate(node, self._totals, chain_id, settings, elsewhere=elsewhere)

    async def advance(self) -> AsyncGenerator[Payload]:
        """Look at the head once and give what leads to it.

        Raises:
            ChainMovedError: the node's chain changed on the way; what was given stands, look again.
            NodeUnreachableError, NodeAnswerError, ReorgTooDeepError, IntegrityError.

        """
        head = await self._target()
        if head is None:
            return
        merged = int(head.difficulty, 16) == 0 and head.height > 0
        finality = await self._node.finality() if merged else None
        async with aclosing(self._towards(head, finality)) as blocks:
            async for fetched in blocks:
                if fetched is None:
                    raise ChainMovedError("The node does not have a block below its head (any more).")
                if fetched.header.id not in self._known:
                    yield await self._given(fetched, finality)

    async def _target(self) -> Header | None:
        """The block to go to; None where nothing is to do, for now or for good."""
        lowest = self._known.oldest().number if self._known else self._start
        if self._until is not None and self._until < lowest:
            self.ended = True
            return None
        head = await self._highest()
        if head is None:
            return None
        if self._until is not None and head.height > self._until:
            head = await self._fetcher.header(self._until)
            if head is None:
                raise ChainMovedError("The node does not have a block below its head (any more).")
        self.target = head.height
        if head.height < lowest:
            if self._known and (self._node.head or 0) < lowest:
                raise self._behind(head.height, lowest)
            return None  # with a lag, or waiting for finality: not yet
        if head.id in self._known:
            self.ended = head.height == self._until
            return None
        return head

    async def _highest(self) -> Header | None:
        """The highest block that may be given; None where there is none yet."""
        latest = await self._node.latest()
        if latest is None:
            raise ChainMovedError("The node has no head.")
        if self._settings.finality is not None:
            limit = await self._node.mark(self._settings.finality)
        else:
            limit = latest.height
        if limit is None and not self._told:
            self._told = True
            _LOG.warning("The node at %s says of no block that it is %s: nothing is given until it does.", *self._mark)
        if limit is None or (limit := min(limit, latest.height - self._settings.lag)) < 0:
            return None
        if limit == latest.height:
            return latest
        header = await self._fetcher.header(limit)
        if header is None:
            raise ChainMovedError("The node does not have a block below its head (any more).")
        return header

    async def _towards(self, head: Header, finality: Finality | None) -> AsyncGenerator[Fetched | Prepared | None]:
        first = self._start
        if self._known:
            if head.height - self._known.highest <= self._settings.walk:
                path = await walk_back(self._fetcher, self._known, head, limit=self._settings.walk)
                if path is not None:
                    for walked in path:
                        yield walked
                    return
            first = (await common_block(self._fetcher, self._known, head)).number + 1
        async with working(worker_count(head.height - first, self._settings)) as workers:
            batches = Batches(
                *(self._fetcher, workers, self._rules, finality),
                last=head.height,
                totals=self._totals,
                settings=self._settings,
            )
            async with aclosing(backfill(batches.by_numbers, first, head.height, self._settings)) as blocks:
                async for block in blocks:
                    yield await self._fetcher.assembled(block) if isinstance(block, Answer) else block

    async def _given(self, block: Fetched | Prepared, finality: Finality | None) -> Payload:
        """The payload of a block that passes the gate and has its place.

        The place is looked at before the gate, too: on a branch that is not followed nothing is worth checking, and
        no total difficulty can be told.
        """
        self._place(block.header)
        header, total, payload = await self._admitted(block, finality)
        if header is not block.header:
            self._place(header)  # the gate asked again, and the first answer may have named another parent
        ref = BlockRef(header.height, header.id)
        self._known.add(ref, header.parent, total=total, difficulty=int(header.difficulty, 16))
        return payload

    async def _admitted(self, block: Fetched | Prepared, finality: Finality | None) -> Admitted:
        """A block through the gate, or one that went through it in another process and was given its right total."""
        if isinstance(block, Prepared):
            with contextlib.suppress(IntegrityError):
                if (total := await self._totals.of(block.header)) == block.total:
                    return Admitted(block.header, total, block.payload)
            again = await self._fetcher.by_hash(block.header.id)
            if again is None:
                raise ChainMovedError("The node does not have a block below its head (any more).")
            block = again
        return await self._gate.admit(block, None if finality is None else clamped(finality, block.header.height))

    def _place(self, header: Header) -> None:
        """ChainMovedError where a block is no child of one that was given: the chain moved between two answers."""
        if self._known:
            if self._known.number(header.parent) != header.height - 1:
                raise ChainMovedError(f"Block {header.height} ({header.hash}) is no child of a block that was given.")
        elif header.height != self._start or (header.height == 0 and header.id != (self._node.genesis or header.id)):
            raise ChainMovedError(f"Block {header.height} ({header.hash}) is not the first one, block {self._start}.")

    def _behind(self, height: int, lowest: int) -> NodeUnreachableError:
        return NodeUnreachableError(
            f"The node at {self._node.address} is at block {height}, below {lowest}, the lowest that is remembered: "
            f"it has not caught up yet, or was rewound; wait for it or use another node.",
            address=self._node.address,
        )
