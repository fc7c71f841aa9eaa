"""What stands between a node and the topics: a block that contradicts itself does not pass.

Rules:

1. Every block is checked whole: header hash, roots of transactions, receipts and withdrawals, bloom, log order
   (:func:`cardinal.apps.evm.verify`), and that it is the child of the block that its place asks for.
2. A block that fails is fetched again by hash, so often as the settings say: one bad answer does not stop a stream.
   After that its :class:`~cardinal.errors.IntegrityError` is raised, and the block is never given.
3. A node that lacks the block by then has moved on: :class:`.walk.ChainMovedError`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from cardinal.apps.evm import payload_from_rpc, verify
from cardinal.errors import ApplicationError, IntegrityError

from .walk import ChainMovedError

if TYPE_CHECKING:
    from cardinal.protocols.streams.payload import Payload
    from cardinal.protocols.streams.types import Finality

    from .fetch import BlockFetcher, Fetched, Header
    from .settings import FeedSettings
    from .totals import Totals


class Admitted(NamedTuple):
    """A block that passed: its header, its total difficulty, and what is published of it."""

    header: Header
    total: int
    payload: Payload


class Gate:
    """Admits blocks of one node.

    Arguments:
        fetcher: where a block that failed is fetched again.
        totals: what total difficulties are checked against.
        chain_id: whose paths the payloads have.
        settings: how often a block is fetched again, and the pause between.

    """

    def __init__(self, fetcher: BlockFetcher, totals: Totals, chain_id: int, settings: FeedSettings) -> None:
        self._fetcher = fetcher
        self._totals = totals
        self._chain_id = chain_id
        self._settings = settings

    async def admit(self, fetched: Fetched, finality: Finality | None) -> Admitted:
        """The block with this hash, checked; it may be a later answer of the node than the one given here.

        Raises:
            IntegrityError: no answer of the node passed.
            ChainMovedError: the node does not have the block any more.

        """
        wanted, height = fetched.header.id, fetched.header.height
        for attempt in range(1, self._settings.verifications + 1):
            try:
                self._check(fetched, wanted)
                total = await self._totals.of(fetched.header)
                return Admitted(fetched.header, total, self._payload(fetched, total, finality))
            except IntegrityError:
                if attempt == self._settings.verifications:
                    raise
            await asyncio.sleep(self._settings.rpc.pause(attempt))
            again = await self._fetcher.by_hash(wanted)
            if again is None:
                raise ChainMovedError(f"The node does not have block {height} (0x{wanted.hex()}) any more.")
            fetched = again
        raise AssertionError  # pragma: no cover - the loop above ends by return or raise

    def _check(self, fetched: Fetched, wanted: bytes) -> None:
        if fetched.header.id != wanted:
            raise IntegrityError(
                f"The node gave block {fetched.header.hash} where 0x{wanted.hex()} was asked for; ask another node.",
                number=fetched.header.height,
                block_hash=wanted,
                check="hash",
            )
        verify(fetched.block, fetched.receipts, uncles=fetched.uncles)

    def _payload(self, fetched: Fetched, total: int, finality: Finality | None) -> Payload:
        """The payload; a block that lacks what no root covers fails like one that contradicts itself."""
        try:
            return payload_from_rpc(
                {**fetched.block, "totalDifficulty": hex(total)},
                fetched.receipts,
                chain_id=self._chain_id,
                finality=finality,
                uncles=fetched.uncles,
            )
        except ApplicationError as unfit:
            raise IntegrityError(
                f"Block {fetched.header.height} ({fetched.header.hash}) cannot be published: {unfit}.",
                number=fetched.header.height,
                block_hash=fetched.header.id,
                check="form",
            ) from unfit
