"""Verification of fetched blocks: a block that contradicts itself is never published.

Rules:

1. Every block is verified completely: header hash, roots of transactions, receipts and withdrawals, bloom, log order
   (:func:`cardinal_ethereum.verify`), and its parent.
2. A block that fails is refetched by hash, at first at once, as often as configured, and then from each other node: one
   bad response does not stop a stream. After that its :class:`~cardinal.errors.IntegrityError` is raised, and the block
   is never delivered.
3. A check that a chain does not satisfy is skipped (its preset, or ``unchecked``), except hash and parent.
4. A node that no longer has the block raises ``ChainMovedError``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cardinal.errors import FeedError, IntegrityError
from cardinal_ethereum.feed.chain.blocks import ChainMovedError
from cardinal_ethereum.feed.rpc.faults import Fault
from cardinal_ethereum.feed.state.delta import delta_of

from .completion import Completion
from .rules import Rules

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import Finality
    from cardinal_ethereum import StateDelta
    from cardinal_ethereum.feed.chain.blocks import BlockHeader, Fetched
    from cardinal_ethereum.feed.chain.fetch import BlockFetcher
    from cardinal_ethereum.feed.settings import FeedSettings
    from cardinal_ethereum.from_rpc.block import EncodedBlock

    from .total_difficulty import TotalDifficulties


class VerifiedBlock(NamedTuple):
    """Verified block: header, total difficulty and payload."""

    header: BlockHeader
    total: int
    payload: Payload


class BlockSource(Protocol):
    """Source of blocks by hash, and of evidence for their state."""

    fetcher: BlockFetcher

    async def by_hash(self, block_hash: bytes) -> Fetched | None:
        """The block with this hash; None where the node lacks it."""
        ...


class Verifier:
    """Verifier of one node's blocks.

    Arguments:
        node: re-fetches a block that failed.
        elsewhere: other nodes, tried after that.
        totals: expected total difficulties.
        chain_id: chain id in the payloads' paths.
        settings: number of fetches of a block, and the pause between.

    """

    def __init__(
        self,
        node: BlockSource,
        totals: TotalDifficulties,
        chain_id: int,
        settings: FeedSettings,
        *,
        elsewhere: Callable[[], Sequence[BlockSource]] = lambda: (),
    ) -> None:
        self._node = node
        self._elsewhere = elsewhere
        self._rules = Rules.of(chain_id, settings)
        self._completion = Completion(self._rules.chain)
        self._totals = totals
        self._settings = settings

    async def verify(self, fetched: Fetched, finality: Finality | None) -> VerifiedBlock:
        """Verify a block; the result may come from a later response than ``fetched``.

        Raises:
            IntegrityError: no response passed.
            ChainMovedError: the node no longer has the block.

        """
        wanted, height = fetched.header.id, fetched.header.height
        failure: IntegrityError | None = None
        origin = self._node
        sources: list[BlockSource] = [self._node] * (self._settings.verifications - 1)
        for attempt, source in enumerate(chain(sources, self._others()), 1):
            try:
                return await self._verified(fetched, origin, wanted, finality)
            except IntegrityError as wrong:
                failure = wrong
                origin.fetcher.faults[Fault.WRONG] += 1
            if attempt > 1:
                await asyncio.sleep(self._settings.rpc.pause(min(attempt - 1, self._settings.verifications)))
            again = await self._refetched(source, wanted)
            if again is None and source is self._node:
                raise ChainMovedError(f"the node does not have block {height} (0x{wanted.hex()}) any more") from failure
            if again is not None:
                fetched, origin = again, source
        return await self._verified(fetched, origin, wanted, finality)

    async def _verified(
        self, fetched: Fetched, origin: BlockSource, wanted: bytes, finality: Finality | None
    ) -> VerifiedBlock:
        fetched = await self._completion.of(fetched, origin.fetcher)
        written = self._rules.checked(fetched.block, fetched.receipts, fetched.uncles, wanted)
        total = await self._totals.of(fetched.header)
        delta = await self._delta(written, fetched, origin)
        return VerifiedBlock(fetched.header, total, self._rules.payload(written, total, finality, delta))

    async def _delta(self, written: EncodedBlock, fetched: Fetched, origin: BlockSource) -> StateDelta | None:
        """State delta of the block. A standby node without evidence counts like one with false evidence."""
        if not self._settings.state:
            return None
        try:
            return await delta_of(origin.fetcher, written, fetched, self._settings, self._rules.chain.chain_id)
        except FeedError as refused:
            if origin is self._node or isinstance(refused, IntegrityError):
                raise
            raise IntegrityError(
                f"the state delta of block {written.number} cannot be proven elsewhere: {refused}",
                number=written.number,
                block_hash=written.hash,
                check="state",
            ) from refused

    def _others(self) -> Iterator[BlockSource]:
        """The other nodes, looked up on demand."""
        yield from self._elsewhere()

    async def _refetched(self, source: BlockSource, wanted: bytes) -> Fetched | None:
        """Re-fetch the block; the failure of another node is ignored."""
        try:
            return await source.by_hash(wanted)
        except FeedError:
            if source is self._node:
                raise
            return None
