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
from typing import TYPE_CHECKING, Any, NamedTuple

from cardinal.apps.evm import verify
from cardinal.apps.evm.payload import payload_of
from cardinal.errors import ApplicationError, IntegrityError

from .walk import ChainMovedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cardinal.apps.evm.encoded import EncodedBlock
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
                written = self._checked(fetched, wanted)
                total = await self._totals.of(fetched.header)
                return Admitted(fetched.header, total, self._payload(written, total, finality))
            except IntegrityError:
                if attempt == self._settings.verifications:
                    raise
            await asyncio.sleep(self._settings.rpc.pause(attempt))
            again = await self._fetcher.by_hash(wanted)
            if again is None:
                raise ChainMovedError(f"The node does not have block {height} (0x{wanted.hex()}) any more.")
            fetched = again
        raise AssertionError  # pragma: no cover - the loop above ends by return or raise

    def _checked(self, fetched: Fetched, wanted: bytes) -> EncodedBlock:
        if fetched.header.id != wanted:
            raise IntegrityError(
                f"The node gave block {fetched.header.hash} where 0x{wanted.hex()} was asked for; ask another node.",
                number=fetched.header.height,
                block_hash=wanted,
                check="hash",
            )
        # Structures are taken as well as mappings, which alone the signature names.
        block: Any = fetched.block
        receipts: Sequence[Any] = fetched.receipts
        uncles: Sequence[Any] = fetched.uncles
        return verify(block, receipts, uncles=uncles)

    def _payload(self, written: EncodedBlock, total: int, finality: Finality | None) -> Payload:
        """The payload; a block that lacks what no root covers fails like one that contradicts itself."""
        try:
            # After the merge the application decides, so that producers on different nodes agree (:mod:`.totals`).
            worked = total if int(written.shown.difficulty, 16) else None
            return payload_of(written, chain_id=self._chain_id, finality=finality, total_difficulty=worked)
        except ApplicationError as unfit:
            raise IntegrityError(
                f"Block {written.number} (0x{written.hash.hex()}) cannot be published: {unfit}.",
                number=written.number,
                block_hash=written.hash,
                check="form",
            ) from unfit
