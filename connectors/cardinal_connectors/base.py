"""What a feed of blocks is. Feeds are found by URL scheme in the entry-point group ``cardinal.connectors``.

An entry point is a callable ``open_feed(url: str, *, chain_id: int | None = None) -> BlockFeed``; its name is the
scheme:

    [project.entry-points."cardinal.connectors"]
    my = "my_package:open_feed"                       # cardinal produce --from my://… --to kafka://…

:mod:`cardinal.testing.feeds` holds a feed to the laws below. A feed may offer more, each for itself:

* ``block(hash) -> Payload | None``: any block by its hash, for healing and for half-published blocks;
* ``learn(weights) -> None``: takes the weights of published blocks, by hash, which those above them have to fit;
* ``locate(text) -> int``: a block's number by its hash or time;
* ``check_beginning(start, until)``: refuses numbers that it has no blocks for, before a stream is begun;
* ``target -> int | None``: the number of the block that is gone to, for progress.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from cardinal.protocols.streams.payload import Payload
from cardinal.protocols.streams.types import BlockRef


@runtime_checkable
class BlockFeed(Protocol):
    """Blocks of one chain, in an order in which they can be published.

    Laws: a payload is given only after its checks passed; its parent was given before it, is in ``published``, or is
    the first payload's parent (a reorg through the first block gives its sibling), or it is the first; after a reorg
    the next payload is the new branch's first block above the common ancestor; nothing that the node's chain keeps is
    left out.
    """

    async def chain_id(self) -> int:
        """The id of the chain that the node serves."""
        ...

    def follow(
        self, published: Sequence[BlockRef] = (), *, start: int | None = None, until: int | None = None
    ) -> AsyncIterator[Payload]:
        """Backfill, then follow the head.

        Arguments:
            published: the newest blocks that are already on the topics, one chain, oldest first. The feed goes on
                after the highest of them that the node's chain has.
            start: the first block number, where nothing is published yet; default 0.
            until: stop after the block with this number is given and the node's chain has it; default: never.

        Raises:
            NodeUnreachableError, NodeAnswerError, WrongChainError, IntegrityError.

        """
        ...

    async def close(self) -> None:
        """Release connections. May be called twice."""
        ...
