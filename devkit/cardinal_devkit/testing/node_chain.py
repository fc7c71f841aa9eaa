"""Chain of a test node, in the form of JSON-RPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from ._jsonrpc import Json

__all__ = ["Json", "Listener", "NodeChain", "Tag"]

Listener: TypeAlias = Callable[[Json], None]
"""Called with the header object of every head that a chain announces, in any thread."""

Tag: TypeAlias = Literal["safe", "finalized"]


class NodeChain(Protocol):
    """Blocks of a node. Hashes are lower-case ``0x`` texts, objects those of Ethereum's JSON-RPC.

    Methods are called in the node's event loop and return without waiting. Any of them may raise
    :class:`~cardinal.errors.NodeAnswerError`, which becomes the JSON-RPC error of that request.
    """

    def chain_id(self) -> int:
        """The chain id."""
        ...

    def head(self) -> int:
        """The number of the newest block."""
        ...

    def mark(self, tag: Tag) -> int | None:
        """The number of the newest safe or finalized block; None where it is unknown (an error in JSON-RPC)."""
        ...

    def hash_at(self, number: int) -> str | None:
        """The hash of the canonical block with this number; None above the head and below the first block."""
        ...

    def block(self, block_hash: str, *, full: bool) -> Json | None:
        """The block, canonical or not, with its transactions as objects (full) or as hashes; None if unknown."""
        ...

    def receipts(self, block_hash: str) -> Json | None:
        """The block's receipts in order, an array; None if the block is unknown."""
        ...

    def transaction_receipt(self, transaction_hash: str) -> Json | None:
        """The receipt of one transaction of the canonical chain; None if there is none."""
        ...

    def uncle(self, block_hash: str, index: int) -> Json | None:
        """The header object of an uncle; None if there is none."""
        ...

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener`` with every new head (its header object) until the returned function is called."""
        ...
