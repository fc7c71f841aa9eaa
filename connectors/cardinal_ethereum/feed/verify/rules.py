"""Verification rules of a chain: checks and encoding of its blocks, shared with worker processes.

Pure: no node, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cardinal.errors import ApplicationError, IntegrityError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Finality
from cardinal_ethereum import StateDelta, verify
from cardinal_ethereum.chains import Chain, chain_of
from cardinal_ethereum.feed.settings import FeedSettings
from cardinal_ethereum.from_rpc.block import EncodedBlock
from cardinal_ethereum.from_rpc.payload import payload_of
from cardinal_ethereum.from_rpc.structures import RpcBlock, RpcHeader, RpcReceipt


@dataclass(frozen=True, slots=True)
class Rules:
    """Verification rules of a chain.

    Attributes:
        chain: parameters of the chain.
        checks: names of :data:`cardinal_ethereum.checks.integrity.CHECKS`; always includes the hash.

    """

    chain: Chain
    checks: tuple[str, ...]

    @classmethod
    def of(cls, chain_id: int, settings: FeedSettings) -> Rules:
        """Rules of the chain's preset (or the user's), without the checks that the settings skip."""
        chain = settings.chain or chain_of(chain_id)
        return cls(chain, tuple(name for name in chain.checks if name not in settings.unchecked))

    def checked(
        self, block: RpcBlock, receipts: list[RpcReceipt], uncles: list[RpcHeader], wanted: bytes
    ) -> EncodedBlock:
        """Verify a block, which must have the requested hash (32 bytes); IntegrityError if it fails."""
        shown: Any = block  # structures are accepted as well as mappings, but only the latter are in the signature
        have: Any = receipts
        ommers: Any = uncles
        written = verify(shown, have, uncles=ommers, chain=self.chain, checks=self.checks)
        if written.hash != wanted:
            raise IntegrityError(
                f"the node returned block 0x{written.hash.hex()} instead of 0x{wanted.hex()}; use another node",
                number=written.number,
                block_hash=wanted,
                check="hash",
            )
        return written

    def payload(
        self, written: EncodedBlock, total: int, finality: Finality | None, delta: StateDelta | None = None
    ) -> Payload:
        """Make the payload of a block; a missing field that no root covers is an IntegrityError too.

        Arguments:
            written: a verified block.
            total: its total difficulty; zero where the application decides, as after a merge without a preset
                (:mod:`.total_difficulty`).
            finality: none above the block.
            delta: its state delta; None announces none.

        """
        try:
            return payload_of(
                written,
                chain_id=self.chain.chain_id,
                finality=finality,
                state=delta,
                total_difficulty=total or None,
                chain=self.chain,
            )
        except ApplicationError as unfit:
            raise IntegrityError(
                f"block {written.number} (0x{written.hash.hex()}) cannot be published: {unfit}",
                number=written.number,
                block_hash=written.hash,
                check="form",
            ) from unfit


def clamped(finality: Finality, height: int) -> Finality:
    """Finality of a block, limited to its own height, since its reader has no block above it."""

    def clamp(number: int | None) -> int | None:
        return None if number is None else min(number, height)

    return Finality(clamp(finality.safe), clamp(finality.finalized))
