"""How a chain's blocks are checked and written, apart from where they come from: what a worker process needs to know.

Pure: no node, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cardinal.apps.evm import StateDelta, verify
from cardinal.apps.evm.chains import Chain, chain_of
from cardinal.apps.evm.rpc.block import EncodedBlock
from cardinal.apps.evm.rpc.payload import payload_of
from cardinal.apps.evm.rpc.structures import RpcBlock, RpcHeader, RpcReceipt
from cardinal.errors import ApplicationError, IntegrityError
from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import Finality

from .settings import FeedSettings


@dataclass(frozen=True, slots=True)
class Rules:
    """What a block has to satisfy.

    Attributes:
        chain: what is known of the chain.
        checks: names of :data:`cardinal.apps.evm.checks.integrity.CHECKS`; the hash is among them on every chain.

    """

    chain: Chain
    checks: tuple[str, ...]

    @classmethod
    def of(cls, chain_id: int, settings: FeedSettings) -> Rules:
        """The presets of a chain (or the user's), without what the settings leave out."""
        chain = settings.chain or chain_of(chain_id)
        return cls(chain, tuple(name for name in chain.checks if name not in settings.unchecked))

    def checked(
        self, block: RpcBlock, receipts: list[RpcReceipt], uncles: list[RpcHeader], wanted: bytes
    ) -> EncodedBlock:
        """A block that agrees with itself and with the hash (32 bytes) that was asked for; else IntegrityError."""
        shown: Any = block  # structures are taken as well as mappings, which alone the signature names
        have: Any = receipts
        ommers: Any = uncles
        written = verify(shown, have, uncles=ommers, chain=self.chain, checks=self.checks)
        if written.hash != wanted:
            raise IntegrityError(
                f"The node gave block 0x{written.hash.hex()} where 0x{wanted.hex()} was asked for; ask another node.",
                number=written.number,
                block_hash=wanted,
                check="hash",
            )
        return written

    def payload(
        self, written: EncodedBlock, total: int, finality: Finality | None, delta: StateDelta | None = None
    ) -> Payload:
        """What is published of a block; one that lacks what no root covers fails like one that contradicts itself.

        Arguments:
            written: a block that passed.
            total: its total difficulty; zero where the application decides, as after a merge of which nothing is known
                (:mod:`.totals`).
            finality: marks, none above the block.
            delta: what it did to the state; None announces nothing of it.

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
                f"Block {written.number} (0x{written.hash.hex()}) cannot be published: {unfit}.",
                number=written.number,
                block_hash=written.hash,
                check="form",
            ) from unfit


def clamped(finality: Finality, height: int) -> Finality:
    """What a block may say of finality: nothing about blocks above it, which its reader does not have yet."""

    def clamp(number: int | None) -> int | None:
        return None if number is None else min(number, height)

    return Finality(clamp(finality.safe), clamp(finality.finalized))
