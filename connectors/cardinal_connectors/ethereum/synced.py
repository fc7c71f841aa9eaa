"""The bytes of Polygon's state syncs (type 127), which no node shows in a block and every check needs (PIP-74)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import structs

from cardinal.errors import NodeAnswerError

if TYPE_CHECKING:
    from cardinal.apps.evm.rpc.structures import RpcBlock

    from .fetch import BlockFetcher

_TYPE: Final = "0x7f"


def lacks_bytes(block: RpcBlock) -> bool:
    """Whether the last transaction of a block is a state sync whose bytes have to be asked for."""
    last = block.transactions[-1] if block.transactions else None
    return last is not None and last.type == _TYPE and last.raw is None


async def with_bytes(fetcher: BlockFetcher, block: RpcBlock) -> RpcBlock:
    """The block, its last transaction with its bytes where it is a state sync and the node gives them.

    Where it does not, the block stays as it is, and is refused by what reads it, which says what is missing.
    """
    if not lacks_bytes(block):
        return block
    last = block.transactions[-1]
    try:
        given = await fetcher.call(str, "eth_getRawTransactionByHash", last.hash)
    except NodeAnswerError:
        return block
    return structs.replace(block, transactions=[*block.transactions[:-1], structs.replace(last, raw=given)])
